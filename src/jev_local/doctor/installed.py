"""What lies on this machine: this package, the wheel with a llama-server, fetched ones, and models known by name."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from jev_local import __version__
from jev_local.doctor.facts import Installed, ModelFile
from jev_local.launch.fetch import is_verified
from jev_local.launch.home import Home
from jev_local.launch.models import CATALOGUE, Model
from jev_local.launch.pins import Pinned
from jev_local.launch.unpacked import SERVER

MOST_FILES = 10_000


def look(environment: Mapping[str, str], home: Home) -> Installed:
    """Folders that are not there hold nothing; what cannot be looked into is told."""
    troubles: list[str] = []
    names = _names(home.models, troubles)
    return Installed(
        package=__version__,
        python=platform.python_version(),
        wheel=wheel_version(),
        runtimes=tuple(
            name for name in _names(home.runtimes, troubles) if size_of(home.runtimes / name / SERVER) is not None
        ),
        llama_server=environment.get("LLAMA_SERVER") or None,
        models_folder=str(home.models),
        models=tuple(file for model in CATALOGUE.values() for file in _files(model, home.models, names)),
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


def _files(model: Model, folder: Path, names: tuple[str, ...]) -> Iterator[ModelFile]:
    for pinned in model.files:
        path = folder / pinned.file
        if (size := size_of(path)) is not None:
            yield ModelFile(model.name, pinned.file, "verified" if is_verified(pinned, path) else "unverified", size)
        elif (begun := _begun(model, pinned, folder, names)) is not None:
            yield ModelFile(model.name, pinned.file, "partial", begun)
        if (aside := size_of(folder / f"{pinned.file}.wrong")) is not None:
            yield ModelFile(model.name, f"{pinned.file}.wrong", "wrong", aside)


def _begun(model: Model, pinned: Pinned, folder: Path, names: tuple[str, ...]) -> int | None:
    """Bytes of a download that goes on when it is asked for again."""
    stagings = {f".fetching-{model.name}", f".fetching-{pinned.file}"}
    if not (there := stagings.intersection(names)):
        return None
    return sum(
        size_of(Path(at) / name) or 0 for staging in there for at, _, held in os.walk(folder / staging) for name in held
    )
