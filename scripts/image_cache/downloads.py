"""An archive with a known digest, from GitHub into a folder: resumed where an earlier run stopped, whole or not there.

A file that somebody put there by hand counts as well, if it is the right one.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from jev_local.launch.errors import CannotStart
from jev_local.launch.progress import Meter, Waiting, say

STALL_SECONDS = 20.0
FRUITLESS = 3
"""Attempts in a row without a single new byte before we give up."""

PAUSE = 1.0
"""Seconds after the first of them, twice as many after the second."""

HASH_BYTES = 4 * 1024 * 1024


def fetched(url: str, digest: str, folder: Path, *, otherwise: str) -> Path:
    """The file behind `url`, with the SHA-256 `digest`, in `folder`. CannotStart says why it is not there, and ends
    with `otherwise`: what else can be done."""
    target = folder / url.rpartition("/")[2]
    if target.exists():
        if sha256(target) == digest:
            return target
        target.unlink()
        say(f"{target} is damaged or another file; fetching it again")
    folder.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    say(f"Fetching {url}; interrupted, it resumes")
    _download(url, part, otherwise)
    found = sha256(part)
    if found != digest:
        part.unlink()  # or the next run would resume with it
        raise CannotStart(f"{url} came with the SHA-256 {found} instead of {digest}, and was thrown away; {otherwise}")
    os.replace(part, target)
    return target


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(HASH_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _download(url: str, part: Path, otherwise: str) -> None:
    part.touch()
    host = httpx.URL(url).host
    fruitless = 0
    while True:
        before = part.stat().st_size
        try:
            _go_on(url, part)
            return
        except httpx.HTTPStatusError as error:
            why = f"{host} answers {error.response.status_code} for {url}"
            for_good = error.response.status_code not in (408, 429) and error.response.status_code < 500
        except httpx.HTTPError as error:
            why, for_good = f"{host} cannot be reached ({error})", False
        fruitless = 0 if part.stat().st_size > before else fruitless + 1
        if for_good or fruitless >= FRUITLESS:
            raise CannotStart(f"{why}; {otherwise}")
        time.sleep(PAUSE * fruitless)


def _go_on(url: str, part: Path) -> None:
    there = part.stat().st_size
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={there}-"} if there else {})}
    with httpx.stream("GET", url, headers=headers, follow_redirects=True, timeout=STALL_SECONDS) as reply:
        if reply.status_code == 416 and there:  # nothing after the last byte: all there, or the digest will tell
            return
        reply.raise_for_status()
        if reply.status_code != 206:  # ranges are not served for archives that GitHub packs on demand
            there = 0
        with part.open("r+b") as file, _shown(reply, there) as tell:
            file.truncate(there)
            file.seek(there)
            for piece in reply.iter_raw():
                file.write(piece)
                tell(file.tell())


@contextmanager
def _shown(reply: httpx.Response, there: int) -> Iterator[Callable[[int], None]]:
    """Progress with a total where the server tells one."""
    length = reply.headers.get("Content-Length", "")
    if length.isdecimal():
        with Meter("  from GitHub", there + int(length)) as meter:
            yield meter.at
    else:
        with Waiting("  from GitHub") as waiting:
            yield lambda _: waiting.tick()
