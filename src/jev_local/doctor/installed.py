"""What lies on this machine: this package, the wheel with a llama-server, fetched ones, and models known by name."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Literal

from jev_local import __version__
from jev_local.doctor.facts import Folder, Installed, ModelFile
from jev_local.launch.fetch import is_verified
from jev_local.launch.home import Home
from jev_local.launch.models import CATALOGUE, Model
from jev_local.launch.pins import Pinned
from jev_local.launch.sources import part
from jev_local.launch.unpacked import SERVER

MOST_FILES = 10_000


def look(environment: Mapping[str, str], home: Home) -> Installed:
    """Folders that are not there hold nothing; what cannot be looked into is told."""
    troubles: list[str] = []
    _names(home.models, troubles)
    return Installed(
        package=__version__,
        python=platform.python_version(),
        wheel=wheel_version(),
        runtimes=tuple(
            name for name in _names(home.runtimes, troubles) if size_of(home.runtimes / name / SERVER) is not None
        ),
        llama_server=environment.get("LLAMA_SERVER") or None,
        models_folder=folder(home.models),
        cache_folder=folder(home.cache),
        models=tuple(file for model in CATALOGUE.values() for file in _files(model, home.models)),
        troubles=tuple(troubles),
    )


def wheel_version() -> str | None:
    try:
        return metadata.version("xllamacpp")
    except metadata.PackageNotFoundError:
        return None


def size_of(path: Path) -> int | None:
    """Bytes of a file; None where there is none that can be seen."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def _names(folder: Path, troubles: list[str]) -> tuple[str, ...]:
    try:
        with os.scandir(folder) as entries:
            return tuple(sorted(entry.name for entry, _ in zip(entries, range(MOST_FILES), strict=False)))
    except FileNotFoundError:
        return ()
    except OSError as error:
        troubles.append(f"cannot look into {folder}: {error.strerror}")
        return ()


def _files(model: Model, models: Path) -> Iterator[ModelFile]:
    for pinned in model.files:
        path = models / pinned.file
        if (size := size_of(path)) is not None:
            yield ModelFile(model.name, pinned.file, _state(pinned, path, size), size)
        elif there := begun(pinned, models):
            yield ModelFile(model.name, pinned.file, "partial", there)
        if (aside := size_of(models / f"{pinned.file}.wrong")) is not None:
            yield ModelFile(model.name, f"{pinned.file}.wrong", "wrong", aside)


def _state(pinned: Pinned, path: Path, size: int) -> Literal["verified", "unverified", "wrong size"]:
    if is_verified(pinned, path):
        return "verified"
    return "unverified" if pinned.size in (None, size) else "wrong size"


def begun(pinned: Pinned, folder: Path) -> int:
    """Bytes of a download that goes on when it is asked for again; logs beside it are none."""
    staging = folder / f".fetching-{pinned.file}"
    return sum(size_of(path) or 0 for path in (part(pinned, staging), staging / "wheels" / "joined"))


def folder(path: Path) -> Folder:
    """What a start would find of it."""
    nearest = next((at for at in (path, *path.parents) if os.path.lexists(at)), path)
    free = None
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(nearest).free
    writable = os.path.isdir(nearest) and os.access(nearest, os.W_OK | os.X_OK)
    return Folder(str(path), is_there=os.path.isdir(path), writable=writable, free=free)
