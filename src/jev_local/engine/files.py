"""What saved states need of a file system: whether a file is still the one that was looked at, and a private folder."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)


class NotPrivate(Exception):
    """Others could read or change what is in the folder. The text goes on after "The folder of saved states"."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What tells a regular file of ours from another one, and from itself after somebody has written to it. `modified`
    can be set back afterwards, as by a program that restores a backup; `changed` cannot."""

    inode: int
    size: int
    modified: int
    changed: int


def look(path: Path) -> Facts | None:
    """None for anything but a regular file of ours; links are not followed."""
    try:
        return _facts(path.lstat())
    except OSError:
        return None


def seal(path: Path) -> Facts | None:
    """Like `look`, and closes the file to others where that is possible."""
    try:
        descriptor = _open(path)
    except OSError:
        return None
    try:
        with suppress(OSError):
            os.fchmod(descriptor, 0o600)
        return _facts(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def checksum(path: Path, size: int) -> tuple[Facts, str] | None:
    """The SHA-256 of a regular file of ours with `size` bytes, and which file was read. None where there is none, or
    where it changed meanwhile."""
    try:
        with os.fdopen(_open(path), "rb") as file:
            before = _facts(os.fstat(file.fileno()))
            if before is None or before.size != size:
                return None
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return (before, digest) if _facts(os.fstat(file.fileno())) == before else None
    except OSError:
        return None


def remove(folder: Path, names: Iterable[str]) -> None:
    """Delete what is there of `names`. What cannot be deleted is logged: the next start tries again."""
    for name in names:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            log.warning("The saved state %s cannot be deleted (%s).", name, error.strerror)


def private_folder(path: Path, *, is_ours: Callable[[str], bool]) -> None:
    """Make `path` a folder that is ours alone. Raises NotPrivate, or OSError. One that is open to others is closed if
    it holds nothing but what `is_ours`: anything else may be shared on purpose, or be /tmp."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise NotPrivate("is a symbolic link. Name the folder that it points to")
    if not stat.S_ISDIR(found.st_mode):
        raise NotPrivate("is not a folder. Name another")
    if found.st_uid != os.geteuid():
        raise NotPrivate("belongs to another user. Name one of your own")
    if found.st_mode & 0o077:
        if not all(is_ours(entry.name) and entry.lstat().st_uid == found.st_uid for entry in path.iterdir()):
            raise NotPrivate("is open to other users and holds other files. Close it (chmod 700), or name another")
        path.chmod(0o700)


def _open(path: Path) -> int:
    """Neither through a link nor waiting for the other end of a pipe."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _facts(found: os.stat_result) -> Facts | None:
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return None
    return Facts(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
