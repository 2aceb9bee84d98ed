"""Small files and growing ones that are ours: never a link, a pipe or a device in the place of one.

A folder may be writable for others, or have been arranged by them. So nothing here writes through a link, reads from
something without an end, or waits for somebody at the other end of a pipe.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_A_FILE = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP)
"""What opening a link, a socket or a device without a driver is answered with."""


def opened(path: Path, *, through_links: bool = False) -> BinaryIO:
    """For reading. ValueError for what is not a regular file; OSError where it cannot be read."""
    flags = _PLAIN & ~os.O_NOFOLLOW if through_links else _PLAIN
    try:
        descriptor = os.open(path, os.O_RDONLY | flags)
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            raise ValueError("not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("not a regular file")
    return os.fdopen(descriptor, "rb")


def read(path: Path, *, largest: int) -> bytes:
    """All of it. ValueError for what is not a regular file, or has more than `largest` bytes; OSError as ever."""
    with opened(path) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"more than {largest} bytes")
    return content


def replace(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Make `path` a new file with this content, whole or not at all; a link there goes, and what it led to stays as it
    is. OSError where that cannot be."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def growing(path: Path) -> BinaryIO:
    """For reading and writing where it is, made if need be, for others to read at most. A link, a pipe or a file with a
    second name there gives way to a new file. OSError where that cannot be."""
    try:
        if not _is_ours(path.lstat()):
            path.unlink()
    except FileNotFoundError:
        pass
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | _PLAIN, 0o644), "r+b")


def length(path: Path) -> int:
    """Bytes in what `growing` would go on with."""
    with suppress(OSError):
        found = path.lstat()
        return found.st_size if _is_ours(found) else 0
    return 0


def own_folder(path: Path) -> None:
    """A folder for our work in one that is there, which nobody else looks into; a link there gives way."""
    if path.is_symlink():
        path.unlink()
    path.mkdir(mode=0o700, exist_ok=True)


def _is_ours(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1
