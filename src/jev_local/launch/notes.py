"""Small JSON files that we left for ourselves: what was verified, chosen, unpacked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jev_local.launch import regular

LARGEST = 64 * 1024


def read_note(path: Path, *, largest: int = LARGEST) -> Any:
    """What was noted. ValueError for anything but a regular file of JSON with `largest` bytes at most;
    FileNotFoundError where there is none, and OSError where it cannot be read."""
    content = regular.read(path, largest=largest)
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def write_note(path: Path, document: Any, *, mode: int = 0o600) -> None:
    """Keep it, whole or not at all, in a folder that is there. OSError where that cannot be."""
    regular.replace(path, (json.dumps(document, indent=1) + "\n").encode(), mode=mode)
