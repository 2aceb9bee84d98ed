"""What a process keeps in memory, and a folder on disk, as they change over time."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WARM_UP = 60.0
"""Seconds in which a process still takes what it then keeps."""

WINDOW = 60.0
"""Seconds at each end of what is left that are compared."""


@dataclass(frozen=True, slots=True)
class Sample:
    """seconds: since the load began. rss: bytes of the process."""

    seconds: float
    rss: int


def resident(pid: int) -> int:
    """Bytes that `pid` keeps in memory; outside of Linux its children's too, because there it is a guard beside the
    program. 0 where it is gone."""
    if sys.platform == "linux":
        try:
            return from_status(Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
        except OSError:
            return 0
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,rss="], capture_output=True, text=True, timeout=30, check=True
    )
    return from_listing(listing.stdout, pid)


def from_status(text: str) -> int:
    """VmRSS of a /proc/PID/status, in bytes; a process that has just ended has none."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "VmRSS":
            return int(value.split()[0]) * 1024
    return 0


def from_listing(text: str, pid: int) -> int:
    """Of `pid` and its children, from lines of process, parent and kilobytes."""
    rows = [[int(field) for field in line.split()] for line in text.splitlines() if line.strip()]
    return sum(kilobytes * 1024 for process, parent, kilobytes in rows if pid in (process, parent))


def folder_bytes(folder: Path, pattern: str) -> tuple[int, int]:
    """Of all files that match `pattern`, and of the largest of them."""
    sizes = []
    for path in folder.glob(pattern):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # deleted meanwhile
            continue
    return sum(sizes), max(sizes, default=0)


def warm_up(seconds: float) -> float:
    """How much of a load of `seconds` is not compared: a quarter of a short one."""
    return min(WARM_UP, seconds / 4)


def growth(samples: Sequence[Sample], *, since: float) -> int | None:
    """Bytes: the median of the last minute minus that of the first one after `since`, or of as much as there is without
    the two overlapping. None where that is less than a sample each."""
    kept = [sample for sample in samples if sample.seconds >= since]
    if not kept:
        return None
    begun, ended = kept[0].seconds, kept[-1].seconds
    window = min(WINDOW, (ended - begun) / 2)
    first = [sample.rss for sample in kept if sample.seconds <= begun + window]
    last = [sample.rss for sample in kept if sample.seconds > ended - window]
    if not first or not last or ended == begun:
        return None
    return round(statistics.median(last) - statistics.median(first))
