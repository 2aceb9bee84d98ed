"""What set-up chose, kept for every later start: a small file beside the caches."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jev_local.launch.errors import CannotStart
from jev_local.launch.home import Home


@dataclass(frozen=True, slots=True)
class Chosen:
    """`model`: a name or a path, None for the default. `server`: a llama-server of ours, None for the wheel's.
    `backend`: what it computes on (cpu, cuda, rocm, metal). `library_path`: LD_LIBRARY_PATH that it needs."""

    model: str | None = None
    backend: str | None = None
    server: Path | None = None
    library_path: str | None = None


def read(home: Home) -> Chosen:
    """What was chosen; nothing where nothing was. CannotStart for a file that somebody else wrote."""
    path = home.choice
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Chosen()
    except OSError as error:
        raise CannotStart(f"cannot read {path}: {error.strerror}") from error
    try:
        return _parsed(json.loads(content))
    except (TypeError, ValueError) as error:
        raise CannotStart(f"{path} is not what set-up writes ({error}): remove it, and set up again") from error


def _parsed(document: Any) -> Chosen:
    if not isinstance(document, dict) or not all(
        value is None or isinstance(value, str) for value in document.values()
    ):
        raise TypeError("not an object of texts")
    server = document.get("server")
    return Chosen(**{**document, "server": Path(server) if server else None})


def write(home: Home, chosen: Chosen) -> None:
    """Keep it, whole or not at all."""
    home.make()
    document = asdict(chosen) | {"server": str(chosen.server) if chosen.server else None}
    fresh = home.choice.with_suffix(".new")
    try:
        fresh.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        os.replace(fresh, home.choice)
    except OSError as error:
        raise CannotStart(f"cannot write {home.choice}: {error.strerror}") from error
