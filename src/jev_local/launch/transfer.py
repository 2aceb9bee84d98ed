"""One file over HTTP: resumed where an earlier run stopped, and never longer than it should be."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import httpx

from jev_local.launch.errors import CannotStart

PROBE_SECONDS = 3.0
STALL_SECONDS = 20.0
FRUITLESS = 3
"""Attempts in a row without a single new byte before we give up."""

PAUSE = 1.0
"""Seconds after the first of them, twice as many after the second: a wireless network needs a moment to come back."""

CAP = 16 * 1024**3
"""Bytes that are taken from a host that does not tell how many will come."""

LINKED_SIZE = "X-Linked-Size"
"""In a redirect to where the bytes are: how many there are. The hub says it."""

AS_IT_IS = {"Accept-Encoding": "identity"}

Progress = Callable[[int, int | None], None]
"""Told the bytes that are there, and those of the whole file where that is known."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A file behind an address. `host` names who has it. `headers` may hold a token: they go to the host in `url`, and
    to no other that it redirects to. `refused` is what a 401 or 403 means there."""

    host: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    refused: str = ""


class Unreachable(CannotStart):
    """This source does not give the file now. Another may."""


class TooLong(CannotStart):
    """More bytes than the file has, so it is another file."""


class _Busy(httpx.HTTPError):
    """A status that may be another one in a moment."""


def learn_size(remote: Remote) -> int | None:
    """Bytes of the file, without fetching it; None where its host does not tell. Unreachable, within seconds, where
    nobody answers, or where the answer is no."""
    with _client(remote, PROBE_SECONDS) as client:
        attempt = 1
        while True:
            try:
                return _told_by_head(client, remote)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if attempt == FRUITLESS:
                    raise Unreachable(f"{remote.host} cannot be reached", details=repr(error)) from error
                time.sleep(PAUSE * attempt)
                attempt += 1


def _told_by_head(client: httpx.Client, remote: Remote) -> int | None:
    reply = client.head(remote.url, headers={**remote.headers, **AS_IT_IS})
    if reply.status_code != 405:  # a host may know GET alone
        _require_no_refusal(remote, reply.status_code)
    hops = 0
    # Where the first host knows the size, the address it sends us to may be signed for a GET and nothing else.
    while LINKED_SIZE not in reply.headers and reply.next_request is not None and hops < client.max_redirects:
        reply = client.send(reply.next_request)
        hops += 1
    told = reply.headers.get(LINKED_SIZE)
    if told is None and reply.status_code == 200:
        told = reply.headers.get("Content-Length")
    return int(told) or None if told is not None and told.isdecimal() else None


def download(remote: Remote, part: Path, *, size: int | None, progress: Progress) -> None:
    """Make `part` the whole file, going on where it ends. `size` is how long that may become. Unreachable when the
    host gives up, TooLong when it gives too much; what came so far stays in `part`."""
    longest, fruitless = _length(part), 0
    with _client(remote, STALL_SECONDS) as client:
        while True:
            try:
                _go_on(client, remote, part, size, progress)
                return
            except httpx.HTTPError as error:
                fruitless = 0 if _length(part) > longest else fruitless + 1
                longest = max(longest, _length(part))
                if fruitless >= FRUITLESS:
                    raise Unreachable(_why(remote, error), details=repr(error)) from error
                time.sleep(PAUSE * fruitless)


def _go_on(client: httpx.Client, remote: Remote, part: Path, size: int | None, progress: Progress) -> None:
    there = _length(part)
    if size is not None and there == size:
        return
    if size is not None and there > size:  # of another file, whatever it is
        there = 0
    headers = {**remote.headers, **AS_IT_IS, **({"Range": f"bytes={there}-"} if there else {})}
    with client.stream("GET", remote.url, headers=headers, follow_redirects=True) as reply:
        if reply.status_code == 416 and there:  # nothing after the last byte: it is all there, or the digest will tell
            return
        if reply.status_code not in (200, 206):
            _require_no_refusal(remote, reply.status_code)
            raise _Busy(f"answers {reply.status_code}")
        with _opened(part) as file:
            begin = _begin(reply, there)
            file.truncate(begin)
            file.seek(begin)
            if begin != there and reply.status_code == 206:
                raise httpx.RemoteProtocolError("another range than the one that was asked for")
            _pour(remote, reply, file, size, progress)


def _begin(reply: httpx.Response, there: int) -> int:
    """Where in the file this reply begins; 0 also for a range that cannot be put anywhere."""
    if reply.status_code == 200:  # ranges are not served: from the start
        return 0
    told = re.match(r"bytes (\d+)-", reply.headers.get("Content-Range", ""))
    return there if told is None or int(told[1]) == there else 0


def _pour(remote: Remote, reply: httpx.Response, file: BinaryIO, size: int | None, progress: Progress) -> None:
    length = reply.headers.get("Content-Length", "")
    total = file.tell() + int(length) if length.isdecimal() else None
    limit = CAP if size is None else size
    if total is not None and total > limit:
        raise TooLong(f"{remote.host} has {total} bytes for it, and there should be {limit} at most")
    progress(file.tell(), total or size)
    for piece in reply.iter_raw():
        if file.tell() + len(piece) > limit:
            raise TooLong(f"{remote.host} gives more than the {limit} bytes that there should be at most")
        file.write(piece)
        progress(file.tell(), total or size)
    if total is None and size is not None and file.tell() < size and "Transfer-Encoding" not in reply.headers:
        raise httpx.RemoteProtocolError("the connection was closed, which may be the end of the file or not")
    file.flush()
    os.fsync(file.fileno())  # or a power cut could leave a hole in what was found to be right


def _opened(part: Path) -> BinaryIO:
    """For writing, made if need be, and never through a symbolic link."""
    return os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b")


def _length(part: Path) -> int:
    return part.lstat().st_size if part.exists() else 0


def _require_no_refusal(remote: Remote, status: int) -> None:
    """Unreachable for a status that asking again would not change."""
    if 400 <= status < 500 and status not in (408, 429):
        why = f": {remote.refused}" if status in (401, 403) and remote.refused else ""
        raise Unreachable(f"{remote.host} answers {status}{why}")


def _why(remote: Remote, error: httpx.HTTPError) -> str:
    if isinstance(error, _Busy):
        return f"{remote.host} {error}"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"{remote.host} cannot be reached"
    return f"the download from {remote.host} broke off"


def _client(remote: Remote, seconds: float) -> httpx.Client:
    try:
        return httpx.Client(timeout=seconds)
    except (ImportError, OSError, ValueError) as error:  # of a proxy or a certificate that the environment names
        raise Unreachable(
            f"{remote.host} cannot be reached with the proxy and the certificates that are set", details=repr(error)
        ) from error
