"""The memory and the disk of this machine, with the limits that a container or a service puts on them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from jev_local.doctor.facts import Room, Store

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
IN_MEMORY = ("tmpfs", "ramfs", "ramdisk")
UNLIMITED = 2**60
"""A limit of a control group beyond this is version 1's way to say that there is none."""

READ_BYTES = 1 << 20


def memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> Room:
    """Of the whole machine, or of the tightest control group that this process is in."""
    kib: dict[str, str] = dict(re.findall(r"^(\w+): +(\d+) kB$", _text(proc / "meminfo"), re.MULTILINE))
    if "MemTotal" not in kib:
        return Room("memory of this machine", _physical(), None)
    total = int(kib["MemTotal"]) * 1024
    available = int(kib["MemAvailable"]) * 1024 if "MemAvailable" in kib else total
    what = "memory of this machine"
    for limit, used in _limits(proc, cgroups):
        if limit < total:
            total, what = limit, "memory this process may use (its control group's limit)"
        available = max(0, min(available, limit - used))
    return Room(what, total, available)


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _limits(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """Limit and bytes in use, without what the kernel can take back, of every control group above this process."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            root, names = cgroups, ("memory.max", "memory.current", "inactive_file", "active_file")
        elif "memory" in controllers.split(","):
            root = cgroups / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file")
        else:
            continue
        # In a container the path is the host's, and only the root of it can be seen.
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            if (limit := _number(group / names[0])) is not None and limit < UNLIMITED:
                held: dict[str, str] = dict(re.findall(r"^(\w+) (\d+)$", _text(group / "memory.stat"), re.MULTILINE))
                back = sum(int(held.get(name, 0)) for name in names[2:])
                yield limit, max(0, (_number(group / names[1]) or 0) - back)
            if group == root:
                break


def store(folder: Path, most: int, proc: Path = PROC) -> Store:
    """The folder of saved states, which may not be there yet."""
    there = next((path for path in (folder, *folder.parents) if os.path.isdir(path)), None)
    free = None
    if there is not None:
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(there).free
    return Store(
        folder=str(folder),
        bytes=most,
        kept=_kept(folder),
        free=free,
        in_memory=there is not None and _file_system(there, proc) in IN_MEMORY,
    )


def _kept(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries if entry.is_file())
    except OSError:
        return 0


def _file_system(folder: Path, proc: Path) -> str:
    """The kind of the file system that `folder` lies on; empty where that cannot be told."""
    try:
        real = folder.resolve()
    except (OSError, RuntimeError):  # links that go round in a circle
        return ""
    kind, deepest = "", -1
    for line in _text(proc / "self" / "mounts").splitlines():
        _, point, found, *_ = (*line.split(" "), "", "", "")
        at = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point))
        if real.is_relative_to(at) and len(at.parts) >= deepest:  # the last of those on one point is on top
            kind, deepest = found, len(at.parts)
    return kind


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isascii() and text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(READ_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
