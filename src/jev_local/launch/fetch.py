"""What is pinned becomes a verified file in its folder.

What is there and was verified once is taken as it is: its size and time stand in a small file beside it. Otherwise it
is fetched into a folder of its own, checked, and moved into place whole. Interrupted anywhere, the next run goes on.
A source that does not answer is followed by the next one; one that gives another file ends it all.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import NoReturn

from jev_local.launch import sources
from jev_local.launch.alone import alone
from jev_local.launch.errors import CannotStart, NotFetched
from jev_local.launch.pins import Pinned
from jev_local.launch.progress import Meter, say
from jev_local.launch.transfer import TooLong, Unreachable

HASH_BYTES = 8 * 1024 * 1024

LARGER_DISK = "set JEV_HOME to a larger disk"


def fetch(pinned: Pinned, folder: Path, *, log: Path | None = None, larger_disk: str = LARGER_DISK) -> Path:
    """The verified file in `folder`, fetched if need be. CannotStart says what to do (`larger_disk`: what else, where
    this one has no room), and `log` (else one beside what was fetched so far) what every source said."""
    target = folder / pinned.file
    if is_verified(pinned, target):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with alone(_lock(target), f"Waiting for another process that fetches {pinned.what}"):
            if not is_verified(pinned, target):
                if not target.exists():
                    staged = _fetch(pinned, target, log or _staging(target) / "fetch.log", larger_disk)
                    _verify(pinned, staged, target)
                    os.replace(staged, target)
                else:  # put there by hand, or the sidecar was lost
                    _verify(pinned, target, target)
                remember(pinned, target)
                shutil.rmtree(_staging(target), ignore_errors=True)
    except OSError as error:
        raise failed(error, folder) from error
    return target


def discard(pinned: Pinned, folder: Path) -> None:
    """The fetched file and what was noted of it, once nobody needs them."""
    target = folder / pinned.file
    for path in (target, _sidecar(target), _lock(target)):
        path.unlink(missing_ok=True)


def is_verified(pinned: Pinned, path: Path) -> bool:
    """Whether the file is the one that was hashed, by size and time of change. Hashing a gigabyte takes seconds."""
    try:
        known = json.loads(_sidecar(path).read_text())
        found = path.stat()
    except (OSError, ValueError):
        return False
    return bool(known == {"sha256": pinned.sha256, "size": found.st_size, "mtime_ns": found.st_mtime_ns})


def remember(pinned: Pinned, path: Path) -> None:
    """Note that this file was found to be the right one."""
    found = path.stat()
    known = {"sha256": pinned.sha256, "size": found.st_size, "mtime_ns": found.st_mtime_ns}
    fresh = _sidecar(path).with_suffix(".new")
    fresh.unlink(missing_ok=True)  # a link there would be written through
    fresh.write_text(json.dumps(known))
    os.replace(fresh, _sidecar(path))


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
    if staging.is_symlink():
        staging.unlink()
    staging.mkdir(mode=0o700, exist_ok=True)
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
    log.write_text("\n\n".join((f"Could not fetch {pinned.what}", *said, by_hand, "")))
    raise NotFetched(
        f"could not fetch {pinned.what} ({'; '.join(failure.message for failure in failures)}): connect this machine "
        f"to the network and run this again{f', or {pinned.otherwise}' if pinned.otherwise else ''}; details: {log}"
    )


def _verify(pinned: Pinned, path: Path, target: Path) -> None:
    """Return if `path` has the digest; else set it aside, so that nothing loads it, and stop."""
    digest = hashlib.sha256()
    with path.open("rb") as file, Meter("  checking", os.fstat(file.fileno()).st_size) as meter:
        while piece := file.read(HASH_BYTES):
            digest.update(piece)
            meter.at(file.tell())
    if digest.hexdigest() != pinned.sha256:
        _set_aside(path, target, f"its SHA-256 is {digest.hexdigest()} instead of {pinned.sha256}")


def _set_aside(path: Path, target: Path, why: str) -> NoReturn:
    """Nothing loads it and nothing goes on with it, and whoever wonders can look at it."""
    aside = target.with_name(target.name + ".wrong")
    kept = path.exists() and path.stat().st_size > 0
    if kept:
        os.replace(path, aside)
    shutil.rmtree(_staging(target), ignore_errors=True)
    fate = f"It was set aside as {aside}" if kept else "Nothing of it was kept"
    raise CannotStart(f"{target.name} is not the file it should be: {why}. {fate}; run this again to fetch a fresh one")


def failed(error: OSError, folder: Path) -> CannotStart:
    """What to say of an error while something was written below `folder`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CannotStart(f"the disk of {folder} is full: free some space and run this again")
    if error.errno == errno.EFBIG:
        return CannotStart(f"the disk of {folder} is full, or takes no file of that size: it has to have room for it")
    return CannotStart(f"cannot write to {error.filename or folder}: {error.strerror}")
