"""What set-up chose, kept for every later start: a small file beside the caches."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jev_local.launch.alone import alone
from jev_local.launch.errors import CannotStart
from jev_local.launch.home import Home
from jev_local.launch.notes import read_note, write_note


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
        return _parsed(read_note(path))
    except FileNotFoundError:
        return Chosen()
    except OSError as error:
        raise CannotStart(f"cannot read {path}: {error.strerror}") from error
    except (TypeError, ValueError) as error:
        raise CannotStart(f"{path} is not what set-up writes ({error}): remove it, and set up again") from error


def _parsed(document: Any) -> Chosen:
    if not isinstance(document, dict):
        raise TypeError("not an object")
    for value in document.values():
        if value is None:
            continue
        if not isinstance(value, str) or b"\0" in os.fsencode(value):  # as no path and no variable can be
            raise TypeError("not all of it is text")
    server = document.get("server")
    return Chosen(**{**document, "server": Path(server) if server else None})


def change(home: Home, to: Callable[[Chosen], Chosen]) -> Chosen:
    """Keep what `to` makes of the present choice, and return it. Of two at once neither is lost."""
    home.make()
    with alone(home.choice.with_suffix(".lock"), "Waiting for another set-up to write down its choice"):
        chosen = to(read(home))
        document = asdict(chosen) | {"server": str(chosen.server) if chosen.server else None}
        try:
            write_note(home.choice, document)
        except OSError as error:
            raise CannotStart(f"cannot write {home.choice}: {error.strerror}") from error
    return chosen
