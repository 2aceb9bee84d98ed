"""What is taken out of a .tar.gz: nothing that could land anywhere else than where it was asked for."""

from __future__ import annotations

import os
import posixpath
import shutil
import tarfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from jev_local.launch.errors import CannotStart


@contextmanager
def opened(archive: Path) -> Iterator[tarfile.TarFile]:
    """The archive, read-only. What is wrong with it becomes CannotStart, also while it is read."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise CannotStart(f"{archive} is damaged, or not a .tar.gz: {error}") from error


def unpack_tree(archive: Path, target: Path, *, landmark: str, wanted: Collection[str]) -> None:
    """Into the new folder `target`, those entries at the top of a source tree that are `wanted`.

    The tree may lie in a folder of the archive; `landmark` is a file in it, and tells where that is.
    """
    with opened(archive) as tar:
        members = [(_safe_name(member), member) for member in tar.getmembers()]
        roots = sorted(name[: -len(landmark)] for name, _ in members if f"/{name}".endswith(f"/{landmark}"))
        if len(roots) != 1:
            raise CannotStart(f"{archive} holds {len(roots)} llama.cpp source trees (by {landmark}), not one")
        root = roots[0]
        target.mkdir(parents=True)
        for name, member in members:
            inside = name.removeprefix(root)
            if name.startswith(root) and inside.partition("/")[0] in wanted:
                _write(tar, member, target / inside)


def copy_member(archive: Path, name: str, target: Path) -> list[str]:
    """The one file called `name`, wherever it is in the archive, as `target`. Returns the names of all the files."""
    with opened(archive) as tar:
        members = [(_safe_name(member), member) for member in tar.getmembers()]
        found = [member for path, member in members if posixpath.basename(path) == name]
        if len(found) != 1:
            raise CannotStart(f"{archive} holds {len(found)} files called {name}, not one")
        try:
            content = tar.extractfile(found[0])  # follows links, within the archive
        except KeyError:
            content = None
        if content is None:
            raise CannotStart(f"{name} in {archive} is not a file")
        _pour(content, target)
    return [posixpath.basename(path) for path, _ in members]


def _safe_name(member: tarfile.TarInfo) -> str:
    """Its path. Refused if that leads out, or if it is neither a file nor a folder nor a link."""
    name = posixpath.normpath(member.name)
    if name.startswith(("/", "../")) or name == "..":
        raise CannotStart(f"this archive is refused: its entry {member.name!r} would be written outside the folder")
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise CannotStart(f"this archive is refused: its entry {member.name!r} is a device or a pipe")
    return name


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    # No link is ever made, so none can be written through. The sources that are built have none.
    if member.issym() or member.islnk():
        raise CannotStart(f"this archive is refused: its entry {member.name!r} is a link")
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None  # noqa: S101  # it is a file
    _pour(content, path)
    path.chmod(0o755 if member.mode & 0o100 else 0o644)
    os.utime(path, (member.mtime, member.mtime))  # the same archive again is then nothing new to the build


def _pour(content: IO[bytes], path: Path) -> None:
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file, 1024 * 1024)
