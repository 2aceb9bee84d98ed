"""The public conformance suite, against whatever listens at a URL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

# The module has no `__main__`, and its script may be anywhere.
PROGRAM = (sys.executable, "-c", "import sys; from jevcompat.cli import main; sys.exit(main())")

MUST = 32
SHOULD = {False: 13, True: 15}
"""With a key there are two more: how a missing and a wrong one are refused."""


def check_conformant(url: str, folder: Path, *, key: str = "", seconds: float = 900) -> None:
    """All MUST and all SHOULD, none of them inconclusive or left out. `seconds` bounds the whole run."""
    report = folder / "jevcompat.json"
    options = ["--timeout", "300", "--json", str(report), *(["--key", key] if key else [])]
    done = subprocess.run(
        [*PROGRAM, "test", url, *options],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        # The suite drives the official SDK, which reads these.
        env={name: value for name, value in os.environ.items() if not name.startswith("TYPESAFE_")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(report.read_text())["summary"]
    counts = {level: (summary[level]["passed"], summary[level]["failed"]) for level in ("MUST", "SHOULD")}
    assert counts == {"MUST": (MUST, 0), "SHOULD": (SHOULD[bool(key)], 0)}, done.stdout
