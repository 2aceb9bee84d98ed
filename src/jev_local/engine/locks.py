"""One API for each inference server, and one for each folder of saved states.

Two APIs in front of one server would hand out the same slots twice, and each would read into what the other left
there. The locks are the kernel's, so they end with the process however it ends.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from filelock import BaseFileLock, FileLock, Timeout

from jev_local.errors import JevError

log = logging.getLogger(__name__)

LOCK_NAME = ".lock"

DEFAULT_PORTS = {"http": 80, "https": 443}


class Occupied(JevError):
    """Another process is at it already."""


class LockRefused(JevError):
    """What is where the lock should be cannot be trusted, or cannot be locked."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Held until `release`, or until the process ends. `lock` is None where none could be made."""

    lock: BaseFileLock | None

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()


def backend_lock(url: str, environment: Mapping[str, str] = os.environ) -> Hold:
    """To be the only API of this user's in front of `url`. Raises Occupied or LockRefused. Where a lock cannot be
    written, as in a home that is read-only, there is none: that is no reason not to answer questions."""
    name = hashlib.sha256(canonical(url).encode()).hexdigest()[:32]
    try:
        folder = _cache(environment) / "jev-local" / "locks"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        lock = _take(folder / f"backend-{name}.lock")
    except (OSError, RuntimeError) as error:  # RuntimeError: no home to be found
        reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        log.warning(
            "No lock can be kept in the cache folder (%s): a second API for this server cannot be detected.", reason
        )
        return Hold(None)
    if lock is None:
        raise Occupied(
            f"Another API serves the inference server at {url} already. Stop it, or give each API an inference server "
            f"of its own (--backend-url)."
        )
    return Hold(lock)


def directory_lock(path: Path) -> Hold:
    """To be the only one that keeps saved states in `path`. Raises Occupied or LockRefused."""
    try:
        lock = _take(path / LOCK_NAME)
    except OSError as error:
        raise LockRefused(
            f"The folder of saved states cannot be locked ({error.strerror}). Name another (--slot-cache-dir)."
        ) from error
    if lock is None:
        raise Occupied(
            "Another API keeps its saved states in this folder already. Stop it, or give each API a folder of its own "
            "(--slot-cache-dir)."
        )
    return Hold(lock)


def canonical(url: str) -> str:
    """The same text for all usual spellings of one server's address. Names are not looked up."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    port = parts.port or DEFAULT_PORTS.get(scheme)
    return f"{scheme}://{_host(parts.hostname or '')}:{port}{parts.path.rstrip('/')}"


def _host(written: str) -> str:
    name = written.lower().removesuffix(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return "localhost" if name.endswith(".localhost") else name
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    # Whoever connects to 0.0.0.0 or [::] gets this machine.
    return "localhost" if address.is_loopback or address.is_unspecified else f"[{address}]"


def _cache(environment: Mapping[str, str]) -> Path:
    named = environment.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():
        return Path(named)
    home = Path(environment.get("HOME") or Path.home())
    return home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"


def _take(path: Path) -> BaseFileLock | None:
    """None where somebody else holds it. OSError where it cannot be made."""
    if path.is_symlink():
        raise LockRefused("A lock file is a symbolic link. Remove the link: nobody but somebody else puts one there.")
    # Not bound to a thread: it is taken in a worker and given back in another.
    lock = FileLock(path, timeout=0, mode=0o600, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    return lock
