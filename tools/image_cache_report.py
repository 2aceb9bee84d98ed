"""What `benchmark_image_cache` shows and writes."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from jev_local import __version__
from jev_local.backend.devices import devices
from tools.image_cache_blocks import LIMIT, Block, Setup, to_json
from tools.image_cache_question import Question
from tools.image_cache_summary import Row, Summary, summary

PACKAGES = ("fastapi", "uvicorn", "httpx", "pydantic", "pillow")
WIDTH = 150
"""Columns, where nobody says how many there are."""


@dataclass(slots=True)
class Results:
    """Filled as the run goes on, so that one that ends early has something to show."""

    workers: int
    environment: dict[str, Any]
    blocks: list[Block] = field(default_factory=list)
    note: str = ""

    def summary(self) -> Summary:
        return summary(self.blocks, workers=self.workers)


def environment(setup: Setup, question: Question) -> dict[str, Any]:
    """What the numbers depend on. Holds no paths."""
    options = setup.options
    model, projector = Path(options.model), Path(options.mmproj or "")
    return {
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "model": {"file": model.name, "bytes": model.stat().st_size},
        "projector": {"file": projector.name, "bytes": projector.stat().st_size},
        **question.about,
        "settings": {
            "workers": setup.workers,
            "slots": options.parallel,
            "context": options.context,
            "threads": options.threads,
            "gpu_layers": options.gpu_layers,
            "device": options.gpu_device,
            "limit_mib": LIMIT,
        },
        "build": dict(setup.build.record),
        "versions": {"jev_local": __version__, "python": platform.python_version(), **_versions()},
        "machine": {
            "platform": f"{platform.system()} {platform.machine()}",
            "cpu": _processor(),
            "cpus": os.cpu_count(),
            "gpus": [device.name for device in devices(setup.build.server, setup.settings)],
        },
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def written(results: Results) -> dict[str, Any]:
    """The whole run, for the JSON file."""
    found = results.summary()
    told: dict[str, Any] = {"note": results.note} if results.note else {}
    return told | {
        "environment": results.environment,
        "summary": {
            "conditions": [_row(row) for row in found.rows],
            "differences": {one.between: one.value for one in found.differences},
            "choices_agree": found.choices_agree,
            "faults": list(found.faults),
        },
        "blocks": [to_json(block) for block in results.blocks],
    }


def _row(row: Row) -> dict[str, Any]:
    plain = asdict(row)
    plain["first_lookups"] = [_lookups(one) for one in plain["first_lookups"]]
    plain["further_lookups"] = _lookups(plain["further_lookups"])
    return plain


def _lookups(found: dict[str, Any]) -> dict[str, Any]:
    return {"misses": found["misses"], "hits": found["hits"]}


def show(results: Results, console: Console) -> None:
    found = results.summary()
    if not found.rows:
        return
    settings, image = results.environment["settings"], results.environment["image"]
    load = [block.load for block in results.blocks]
    console.print(
        f"{image['width']}x{image['height']} pixels, {results.environment['input']['questions']} questions, "
        f"{settings['slots']} slots, {settings['workers']} workers, context {settings['context']}, device "
        f"{settings['device']}, {results.environment['machine']['cpus']} CPUs with a load average of "
        f"{min(load):.1f} to {max(load):.1f}",
        markup=False,
        soft_wrap=True,
    )
    console.print(_times(found.rows))
    console.print(_apart(found))
    console.print(f"All choices agree: {'yes' if found.choices_agree else 'NO'}", markup=False)
    for fault in found.faults:
        console.print(f"FAULT: {fault}", style="bold red", markup=False, soft_wrap=True)


def _times(rows: Sequence[Row]) -> Table:
    table = Table(title="milliseconds until the whole reply was there", title_justify="left")
    table.add_column("condition")
    for name in ("first", "lookups", "faster", "again: median (least-most)", "lookups", "faster", "State-Cache"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.condition.name,
            ", ".join(f"{ms:.0f}" for ms in row.first),
            ", ".join(dict.fromkeys(str(one) if one else "none" for one in row.first_lookups)),
            _ratio(row.first_speedup),
            f"{row.again:.0f} ({row.least:.0f}-{row.most:.0f}) of {row.further}",
            str(row.further_lookups) if row.further_lookups else "none",
            _ratio(row.again_speedup),
            ", ".join(row.state_cache),
        )
    return table


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _apart(found: Summary) -> Table:
    table = Table(title="largest difference of a probability", title_justify="left")
    table.add_column("replies")
    table.add_column("difference", justify="right")
    for one in found.differences:
        if one.value is not None:
            table.add_row(one.between, f"{one.value:.2e}" if one.value else "0")
    return table
