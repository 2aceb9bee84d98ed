"""One process at a time, and the others told that they wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from jev_local.launch.progress import Waiting

LOOK_AGAIN = 0.5


@contextmanager
def alone(path: Path, what: str) -> Iterator[None]:
    """The lock of the file `path`, in a folder that is there; the kernel lets go of it when its holder dies. `what` is
    what a process that has to wait says of it."""
    lock = FileLock(path, mode=0o644)  # or the umask alone would say who may write to it
    try:
        with Waiting(what) as waiting:
            while not lock.is_locked:
                try:
                    lock.acquire(timeout=LOOK_AGAIN)
                except Timeout:
                    waiting.tick()
        yield
    finally:
        lock.release()
