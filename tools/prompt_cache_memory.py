"""What a local server keeps in memory, and the most of it while something is measured.

Counted is what is resident of a process and everything below it. Pages that several of them share count for each, and
what a GPU holds in memory of its own is not in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tools.resident import from_listing, resident

EVERY = 0.1 if sys.platform == "linux" else 0.5
"""Seconds between two looks. Where another program has to be asked, they are dearer."""

FAMILY_EVERY = 1.0
"""Seconds between two looks for processes below the one that is watched."""

LISTEN = "0A"
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Sample:
    """at: a time.perf_counter(); rss: bytes."""

    at: float
    rss: int


def listener(port: int) -> int | None:
    """The process that listens on `port` of this machine, as far as we may know."""
    if sys.platform != "linux":
        return _listed(port)
    sockets = {f"socket:[{inode}]" for inode in listening(port)}
    for entry in PROC.glob("[0-9]*/fd/*") if sockets else ():
        try:
            if os.readlink(entry) in sockets:
                return int(entry.parts[2])
        except OSError:  # gone meanwhile, or somebody else's
            continue
    return None


def listening(port: int) -> set[str]:
    """Inodes of the sockets that listen on `port`."""
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / name).read_text(encoding="utf-8").splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines):
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _listed(port: int) -> int | None:
    if shutil.which("lsof") is None:
        return None
    asked = ["lsof", "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-t"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False).stdout.split()
    return int(told[0]) if told else None


def family(pid: int) -> tuple[int, ...]:
    """`pid` and everything below it, parents first. Only on Linux more than `pid` itself."""
    parents: dict[int, int] = {}
    for entry in PROC.glob("[0-9]*/stat"):
        try:
            parents[int(entry.parts[2])] = int(entry.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
    found = [pid]
    for one in found:  # grows while it is walked
        found += [child for child, parent in parents.items() if parent == one and child not in found]
    return tuple(found)


def measured(pids: Iterable[int]) -> int:
    """Bytes resident of all of them."""
    if sys.platform == "linux":
        return sum(resident(pid) for pid in pids)
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,rss="], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    return sum(from_listing(listing, pid) for pid in pids)


def command(pid: int) -> str | None:
    """The command line of `pid`, which only Linux tells."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return None


class Watch(AbstractContextManager["Watch"]):
    """Looks at `pid` and everything below it in the background; at nothing where it is None."""

    def __init__(self, pid: int | None) -> None:
        self.pid, self.samples = pid, list[Sample]()
        self._family: tuple[int, ...] = ()
        self._counted = -FAMILY_EVERY
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory", daemon=True)

    def __enter__(self) -> Self:
        if self.pid is not None:
            self.look()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> int | None:
        """Bytes just now. None where nothing is looked at, or the process is gone."""
        if self.pid is None:
            return None
        now = time.perf_counter()
        if now - self._counted >= FAMILY_EVERY:
            self._family, self._counted = family(self.pid), now
        rss = measured(self._family)
        if rss:
            self.samples.append(Sample(now, rss))
        return rss or None

    def peak(self, since: float = 0.0, until: float = float("inf")) -> int | None:
        """The most of the samples between two times, in bytes."""
        return max((one.rss for one in self.samples.copy() if since <= one.at <= until), default=None)

    def _look(self) -> None:
        while not self._done.wait(EVERY):
            self.look()
