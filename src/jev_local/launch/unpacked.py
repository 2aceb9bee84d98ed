"""Archives of a build become one folder, whole or not there.

Their digests are pinned, so what is in them is known. What they could do all the same is not left to that: Python's own
filter has had holes, and a pin can be of the wrong file.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import stat
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from jev_local.launch.errors import CannotStart
from jev_local.launch.notes import read_note, write_note
from jev_local.launch.pins import Pinned
from jev_local.launch.progress import Meter

SERVER = "llama-server"
RECORD = "jev-runtime.json"
SPARE = 256 * 1024 * 1024
"""Free bytes left over."""

LARGEST = 16 * 1024**3
"""Bytes of everything in an archive. The libraries of a GPU are some 2 GB."""

MOST_ENTRIES = 10_000
DEEPEST = 8
"""Folders in folders. An official archive has one."""


def is_unpacked(folder: Path, archives: Sequence[Pinned]) -> bool:
    """Whether these very archives were unpacked there to the end, and every file still has its size."""
    try:
        record = read_note(folder / RECORD)
        is_whole = all(_sized(folder / name) == size for name, size in record["files"].items())
        return bool(is_whole and record["archives"] == _digests(archives) and SERVER in record["files"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False


def _digests(archives: Sequence[Pinned]) -> list[str]:
    return [archive.sha256 for archive in archives]


def _sized(path: Path) -> int | str:
    """Bytes of a file, or the target of a link."""
    return os.readlink(path) if path.is_symlink() else path.stat().st_size


def unpack(files: Sequence[Path], archives: Sequence[Pinned], folder: Path) -> None:
    """The contents of `files`, which are `archives`, as the new `folder`: what lies beside llama-server in the first,
    and every file of the others that the first does not have. CannotStart for a damaged archive or a full disk."""
    fresh = folder.with_name(folder.name + ".new")
    _remove(fresh)
    try:
        fresh.mkdir(mode=0o700, parents=True)
        for number, file in enumerate(files):
            part = fresh / f"part-{number}"
            _extract(file, part)
            _gather(_beside_the_server(part, file) if number == 0 else sorted(part.rglob("*")), fresh)
            shutil.rmtree(part)
        made = {path.name: _sized(path) for path in sorted(fresh.iterdir())}
        write_note(fresh / RECORD, {"archives": _digests(archives), "files": made})
        _remove(folder)
        os.replace(fresh, folder)
    finally:
        _remove(fresh)


def _remove(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _extract(file: Path, target: Path) -> None:
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
            for number, member in enumerate(tar):
                done += member.size
                _require_sense(number, done, file)
                _require_room(member.size, done, file, target)
                tar.extract(member, target, filter=_harmless)
                meter.at(packed.tell())
    except (tarfile.TarError, EOFError, zlib.error, OverflowError, ValueError) as error:
        raise CannotStart(f"{file} is damaged, or not a .tar.gz: {error}") from error


class Harmful(tarfile.FilterError):
    """As Python's own refusals: tarfile passes over any other error in silence."""


def _harmless(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    """Nothing that would land outside, no devices and pipes, as Python's own filter has it; besides, no link to
    anything but a file beside it, and no time of its own."""
    kept = tarfile.data_filter(member, path)
    if kept.name.count("/") > DEEPEST:
        raise Harmful(f"{kept.name[:200]!r} is too deep")
    beside = "" if kept.issym() else posixpath.dirname(kept.name)
    if (kept.issym() or kept.islnk()) and posixpath.dirname(kept.linkname) != beside:
        raise Harmful(f"{kept.name!r} is a link to another folder")
    return kept.replace(mtime=None, deep=False)  # type: ignore[arg-type]  # None is: as it comes


def _require_sense(number: int, so_far: int, file: Path) -> None:
    if so_far > LARGEST:
        raise CannotStart(f"{file} holds more than {LARGEST / 1e9:.0f} GB, which no build of llama-server does")
    if number >= MOST_ENTRIES:
        raise CannotStart(f"{file} holds more than {MOST_ENTRIES} files, which no build of llama-server does")


def _require_room(size: int, so_far: int, file: Path, target: Path) -> None:
    if (free := shutil.disk_usage(target).free) < size + SPARE:
        raise CannotStart(
            f"no room to unpack {file.name}: after {so_far / 1e6:.0f} MB of it {(size + SPARE) / 1e6:.0f} MB more are "
            f"needed, and {target.parents[1]} has {free / 1e6:.0f} MB free; free some, or set JEV_HOME to a larger disk"
        )


def _beside_the_server(part: Path, file: Path) -> list[Path]:
    found = [path for path in part.rglob(SERVER) if path.is_file() and not path.is_symlink()]
    if len(found) != 1:
        raise CannotStart(f"{file} holds {len(found)} programs called {SERVER}, not one")
    return sorted(found[0].parent.iterdir())


def _gather(paths: Sequence[Path], target: Path) -> None:
    """Every file and link goes right into `target`, on the disk for good. Links are by name, so they still hold."""
    for path in paths:
        place = target / path.name
        if place.name == RECORD or place.is_symlink() or place.exists():
            continue
        if not path.is_symlink():
            if not path.is_file():
                continue
            path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o755)
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        os.replace(path, place)
