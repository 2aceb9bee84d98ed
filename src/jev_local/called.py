"""How a command is typed where this code runs: in a checkout by its script, installed by its name."""

from __future__ import annotations

from pathlib import Path

import jev_local

SCRIPTS = {"up": "./run.sh", "backend": "./run_server.sh", "serve": "./run_api_server.sh", "setup": "./setup.sh"}
"""What a checkout has for the commands of `jev-local`."""


def called(command: str) -> str:
    """What the person types here for a command of `jev-local`."""
    return f"jev-local {command}" if checkout() is None else SCRIPTS[command]


def checkout() -> Path | None:
    """The checkout that this code runs from; None where it was installed."""
    root = Path(jev_local.__file__).resolve().parents[2]
    return root if (root / "src" / "jev_local").is_dir() and (root / "pyproject.toml").is_file() else None
