"""Archives of a build become one folder, whole or not there."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from jev_local.launch.errors import CannotStart
from jev_local.launch.pins import Pinned
from jev_local.launch.progress import Meter

SERVER = "llama-server"
RECORD = "jev-runtime.json"
SPARE = 256 * 1024 * 1024
"""Free bytes left over."""

LARGEST = 16 * 1024**3
"""Bytes of everything in an archive. The libraries of a GPU are some 2 GB."""


def is_unpacked(folder: Path, archives: Sequence[Pinned]) -> bool:
    """Whether this very archives were unpacked there to the end."""
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return bool(record == _record(archives)) and (folder / SERVER).is_file()


def _record(archives: Sequence[Pinned]) -> dict[str, list[str]]:
    return {"archives": [archive.sha256 for archive in archives]}


def unpack(files: Sequence[Path], archives: Sequence[Pinned], folder: Path) -> None:
    """The contents of `files`, which are `archives`, as the new `folder`: what lies beside llama-server in the first,
    and every library in the others. CannotStart for a damaged archive or a full disk."""
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        for number, file in enumerate(files):
            part = fresh / f"part-{number}"
            _extract(file, part)
            _gather(_home_of_server(part, file) if number == 0 else part, fresh)
            shutil.rmtree(part)
        (fresh / RECORD).write_text(json.dumps(_record(archives)), "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _extract(file: Path, target: Path) -> None:
    """Python's own filter refuses what would land outside, devices and pipes, and links that lead out."""
    if not hasattr(tarfile, "data_filter"):
        raise CannotStart("unpacking safely takes Python 3.11.4 or newer")
    target.mkdir()
    done = 0
    try:
        with (
            file.open("rb") as packed,
            Meter(f"  unpacking {file.name}", file.stat().st_size) as meter,
            tarfile.open(fileobj=packed, mode="r:gz") as tar,
        ):
            for member in tar:
                done += member.size
                _require_room(member.size, done, file, target)
                tar.extract(member, target, filter="data")
                meter.at(packed.tell())
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise CannotStart(f"{file} is damaged, or not a .tar.gz: {error}") from error


def _require_room(size: int, so_far: int, file: Path, target: Path) -> None:
    if so_far > LARGEST:
        raise CannotStart(f"{file} holds more than {LARGEST / 1e9:.0f} GB, which no build of llama-server does")
    if (free := shutil.disk_usage(target).free) < size + SPARE:
        raise CannotStart(
            f"no room to unpack {file.name}: {target.parents[1]} has {free / 1e6:.0f} MB free after {so_far / 1e6:.0f} "
            "MB of it; free some, or set JEV_HOME to a larger disk"
        )


def _home_of_server(part: Path, file: Path) -> Path:
    found = [path.parent for path in part.rglob(SERVER) if path.is_file()]
    if len(found) != 1:
        raise CannotStart(f"{file} holds {len(found)} programs called {SERVER}, not one")
    return found[0]


def _gather(source: Path, target: Path) -> None:
    """Every file and link below `source` goes right into `target`. Links there are by name, so they still hold."""
    for path in sorted(source.rglob("*")):
        if path.is_symlink() or path.is_file():
            os.replace(path, target / path.name)
