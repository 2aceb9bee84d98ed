"""What is pinned becomes a verified file in its folder.

What is there and was verified once is taken as it is: its size and time stand in a small file beside it. Otherwise it
is fetched into a folder of its own, checked, and moved into place whole. Interrupted anywhere, the next run goes on.
A source that does not answer is followed by the next one; one that gives another file ends it all.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from jev_local.launch import sources
from jev_local.launch.alone import alone
from jev_local.launch.errors import CannotStart, NotFetched
from jev_local.launch.home import make_folder
from jev_local.launch.notes import read_note, write_note
from jev_local.launch.pins import Pinned
from jev_local.launch.progress import Meter, bytes_in, say
from jev_local.launch.regular import opened, own_folder, replace
from jev_local.launch.remote import Unreachable
from jev_local.launch.transfer import CAP, TooLong

HASH_BYTES = 8 * 1024 * 1024

READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
"""How a folder says that it takes nothing new."""

LARGER_DISK = "set JEV_HOME to a larger disk"


def fetch(pinned: Pinned, folder: Path, *, log: Path | None = None, larger_disk: str = LARGER_DISK) -> Path:
    """The verified file in `folder`, fetched if need be. CannotStart says what to do (`larger_disk`: what else, where
    this one has no room), and `log` (else one beside what was fetched so far) what every source said."""
    target = folder / pinned.file
    if is_verified(pinned, target):
        return target
    try:
        make_folder(folder)
        with alone(_lock(target), f"Waiting for another process that fetches {pinned.what}"):
            if not is_verified(pinned, target):
                _settle(pinned, target, log or _staging(target) / "fetch.log", larger_disk)
    except OSError as error:
        if error.errno not in READ_ONLY or not target.is_file():
            raise failed(error, folder, needed=_needed(pinned, target)) from error
        _verify(pinned, target, target)  # as good as any, in a folder that somebody else keeps
        _say_unnoted(target, error)
    return target


def _settle(pinned: Pinned, target: Path, log: Path, larger_disk: str) -> None:
    """Make `target` the right file, while nobody else does."""
    if target.is_file() and target.stat().st_size == 0:  # what a full disk leaves of a copy
        target.unlink()
    if target.exists():  # put there by hand, or the sidecar was lost
        _verify(pinned, target, target)
    else:
        staged = _fetch(pinned, target, log, larger_disk)
        _verify(pinned, staged, target)
        os.replace(staged, target)
    try:
        remember(pinned, target)
    except OSError as error:
        _say_unnoted(target, error)
    shutil.rmtree(_staging(target), ignore_errors=True)


def _say_unnoted(target: Path, error: OSError) -> None:
    say(f"{target} is the right file; it is checked at every start, for that cannot be noted ({error.strerror})")


def _needed(pinned: Pinned, target: Path) -> int | None:
    """Bytes that it still takes; None where nobody knows."""
    return None if pinned.size is None else max(0, pinned.size - bytes_in(_staging(target))) + sources.SPARE


def discard(pinned: Pinned, folder: Path) -> None:
    """The fetched file and what was noted of it, once nobody needs them."""
    target = folder / pinned.file
    for path in (target, _sidecar(target), _lock(target)):
        path.unlink(missing_ok=True)


def is_verified(pinned: Pinned, path: Path) -> bool:
    """Whether the file is the one that was hashed, by size and time of change. Hashing a gigabyte takes seconds."""
    try:
        known = read_note(_sidecar(path))
        found = path.stat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and bool(known == _note(pinned, found))


def remember(pinned: Pinned, path: Path) -> None:
    """Note that this file was found to be the right one. OSError where that cannot be."""
    write_note(_sidecar(path), _note(pinned, path.stat()), mode=0o644)


def _note(pinned: Pinned, found: os.stat_result) -> dict[str, Any]:
    return {"sha256": pinned.sha256, "size": found.st_size, "mtime_ns": found.st_mtime_ns}


def _sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _staging(target: Path) -> Path:
    return target.with_name(f".fetching-{target.name}")


def _lock(target: Path) -> Path:
    return target.with_name(f".{target.name}.lock")


def _fetch(pinned: Pinned, target: Path, log: Path, larger_disk: str) -> Path:
    """The unverified file, in the staging folder."""
    folder = target.parent
    staging = _staging(target)
    own_folder(staging)
    licence = f" ({pinned.licence})" if pinned.licence else ""
    say(f"Fetching {pinned.what}{licence} into {folder}; interrupted, it resumes")
    failures: list[Unreachable] = []
    for source in pinned.sources:
        if failures:
            say(f"  {failures[-1].message}; trying {sources.name(source)}")
        try:
            return sources.take(pinned, source, staging, larger_disk=larger_disk)
        except Unreachable as failure:
            failures.append(failure)
        except TooLong as excess:
            _set_aside(sources.part(pinned, staging), target, excess.message)
    by_hand = f"Without a network: put {pinned.file} (SHA-256 {pinned.sha256}) into {folder}"
    said = [f"{failure.message}\n{failure.details}" for failure in failures]
    text = "\n\n".join((f"Could not fetch {pinned.what}", *said, by_hand, ""))
    raise NotFetched(
        f"could not fetch {pinned.what} ({'; '.join(failure.message for failure in failures)}): connect this machine "
        f"to the network and run this again{f', or {pinned.otherwise}' if pinned.otherwise else ''}; "
        f"{_logged(log, text)}"
    )


def _logged(log: Path, text: str) -> str:
    """Where the details are. What went wrong is not hidden by a log that cannot be written."""
    try:
        replace(log, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        return f"details are nowhere, for {log} cannot be written: {error.strerror}"
    return f"details: {log}"


def _verify(pinned: Pinned, path: Path, target: Path) -> None:
    """Return if `path` has the digest; else set it aside, so that nothing loads it, and stop."""
    digest = hashlib.sha256()
    try:
        with opened(path, through_links=True) as file:
            size = os.fstat(file.fileno()).st_size
            if size > (most := CAP if pinned.size is None else pinned.size):
                _set_aside(path, target, f"it has {size} bytes, and there should be {most} at most")
            with Meter("  checking", size) as meter:
                while piece := file.read(HASH_BYTES):
                    digest.update(piece)
                    meter.at(file.tell())
    except ValueError as error:
        raise CannotStart(f"{path} is {error}: move it away, and run this again") from error
    except OSError as error:
        raise CannotStart(f"cannot read {path}: {error.strerror}") from error
    if digest.hexdigest() != pinned.sha256:
        _set_aside(path, target, f"its SHA-256 is {digest.hexdigest()} instead of {pinned.sha256}")


def _set_aside(path: Path, target: Path, why: str) -> NoReturn:
    """Nothing loads it and nothing goes on with it, and whoever wonders can look at it."""
    aside = target.with_name(target.name + ".wrong")
    try:
        if path.exists() and path.stat().st_size > 0:
            os.replace(path, aside)
            fate = f"It was set aside as {aside}; run this again to fetch a fresh one"
        else:
            path.unlink(missing_ok=True)
            fate = "Nothing of it was kept; run this again to fetch a fresh one"
    except OSError as error:
        fate = f"It cannot be set aside ({error.strerror}): move {path} away, and run this again to fetch a fresh one"
    with suppress(OSError):
        _sidecar(target).unlink(missing_ok=True)
    shutil.rmtree(_staging(target), ignore_errors=True)
    raise CannotStart(f"{target.name} is not the file it should be: {why}. {fate}")


def failed(error: OSError, folder: Path, *, needed: int | None = None) -> CannotStart:
    """What to say of an error while something was written below `folder`, which still takes so many bytes. One of
    writing to the terminal goes on as it is."""
    if isinstance(error, BrokenPipeError):
        raise error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        room = "some space" if needed is None else f"{needed / 1e6:.0f} MB"
        return CannotStart(f"the disk of {folder} is full: free {room} and run this again")
    if error.errno == errno.EFBIG:
        return CannotStart(f"the disk of {folder} is full, or takes no file of that size: it has to have room for it")
    return CannotStart(f"cannot write to {error.filename or folder}: {error.strerror}")
