"""From a source to the table: both builds, the models, every scenario."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path

from image_cache import proving, stock
from image_cache.counted import Models
from image_cache.products import SERVER
from image_cache.proving import Rig

CONTEXTS = Path(__file__).resolve().parents[2] / "native" / "tests" / "two_contexts.cpp"


def prove(folder: Path, work: Path, *, jobs: int, source: Path | None) -> int:
    """The table on standard output, and nothing else there. 0 if every row of it came as it had to."""
    with contextlib.redirect_stdout(sys.stderr):
        differing = stock.both(folder, work, jobs=jobs, source=source)
        models = Models(*importlib.import_module("tiny_vision").write(work / "models"))
        found = proving.rows(Rig(folder / "bin" / SERVER, work / "bin" / SERVER, models, work))
        contexts = stock.compiled_contexts(folder, CONTEXTS, work / "two_contexts")
        found += [proving.contexts_row(contexts, models), proving.files_row(differing)]
    print(proving.table(found))
    wrong = [row for row in found if row.wrong]
    if wrong:
        print(f"{len(wrong)} rows came otherwise than they had to; the logs are in {work}", file=sys.stderr)
    return 1 if wrong else 0
