"""One file over HTTP: resumed where an earlier run stopped, never longer than it should be, and never in place of more
that came before."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import httpx

from jev_local.launch.errors import CannotStart
from jev_local.launch.regular import growing, length
from jev_local.launch.remote import (
    PROXIES,
    Remote,
    Unreachable,
    are_set,
    client,
    number,
    pieces,
    reply,
    request,
    require_no_refusal,
)

PROBE_SECONDS = 3.0
STALL_SECONDS = 20.0
"""Without a byte, before and in the download."""

LEARN_SECONDS = 15.0
"""For the size, with all attempts."""

ANSWER_SECONDS = 60.0
"""Until the headers of a download are all there."""

LEAST = 64 * 1024
SLOW_SECONDS = 60.0
"""Fewer bytes than that in so long is standing still."""

FRUITLESS = 3
"""Attempts in a row without a single new byte before we give up."""

POOR = 20
"""Attempts in a row that got fewer than LEAST."""

PAUSE = 1.0
"""Seconds after the first of them, twice as many after the second: a wireless network needs a moment to come back."""

CAP = 16 * 1024**3
"""Bytes that are taken from a host that does not tell how many will come."""

LINKED_SIZE = "X-Linked-Size"
"""In a redirect to where the bytes are: how many there are. The hub says it."""

AS_IT_IS = {"Accept-Encoding": "identity"}

Progress = Callable[[int, int | None], None]
"""Told the bytes that are there, and those of the whole file where that is known."""


class TooLong(CannotStart):
    """More bytes than the file has, so it is another file."""


class _Odd(httpx.HTTPError):
    """What the host does, in words that follow its name; it may do better in a moment."""


class _OtherRange(httpx.HTTPError):
    """Bytes of which it is not known where they belong."""


class _Slow(httpx.HTTPError):
    """Drops instead of a stream."""


def learn_size(remote: Remote) -> int | None:
    """Bytes of the file, without fetching it; None where its host does not tell. Unreachable, within seconds, where
    nobody answers, or where the answer is no."""
    until = time.monotonic() + LEARN_SECONDS
    with client(remote, PROBE_SECONDS) as asking:
        attempt = 1
        while True:
            try:
                return _told_by_head(asking, remote, until)
            except httpx.HTTPError as error:
                if attempt == FRUITLESS:
                    why = f"{remote.host} cannot be reached{are_set(PROXIES)}"
                    raise Unreachable(why, details=_shown(error)) from error
                time.sleep(PAUSE * attempt)
                attempt += 1


def _told_by_head(asking: httpx.Client, remote: Remote, until: float) -> int | None:
    question = request(remote, asking, "HEAD", AS_IT_IS)
    try:
        # Where the first host knows the size, the address it sends us to may be signed for a GET and nothing else.
        answer = reply(remote, asking, question, until=until, enough=lambda one: LINKED_SIZE in one.headers)
    except httpx.TooManyRedirects:
        return None
    answer.close()
    if answer.request is question and answer.status_code != 405:  # a host may know GET alone
        require_no_refusal(remote, answer.status_code)
    told = answer.headers.get(LINKED_SIZE)
    if told is None and answer.status_code == 200:
        told = answer.headers.get("Content-Length")
    return number(told) or None


def download(remote: Remote, part: Path, *, size: int | None, progress: Progress) -> None:
    """Make `part` the whole file, going on where it ends. `size` is how long that may become. Unreachable when the
    host gives up, TooLong when it gives too much; what came so far stays in `part`."""
    longest, fruitless, poor, afresh = length(part), 0, 0, False
    with client(remote, STALL_SECONDS) as asking:
        while True:
            try:
                _go_on(asking, remote, part, size, progress, afresh=afresh)
                return
            except httpx.HTTPError as error:
                gained = length(part) - longest
                longest = max(longest, length(part))
                afresh = isinstance(error, _OtherRange)
                poor = 0 if gained >= LEAST else poor + 1
                fruitless = 0 if gained >= LEAST or (gained > 0 and not isinstance(error, _Slow)) else fruitless + 1
                if fruitless >= FRUITLESS or poor >= POOR:
                    raise Unreachable(_why(remote, error), details=_shown(error)) from error
                time.sleep(PAUSE * max(fruitless, poor > 0))


def _go_on(
    asking: httpx.Client, remote: Remote, part: Path, size: int | None, progress: Progress, *, afresh: bool
) -> None:
    there = length(part)
    if size is not None and there == size:
        return
    begin = 0 if afresh or (size is not None and there > size) else there  # longer: of another file, whatever it is
    question = request(remote, asking, "GET", {**AS_IT_IS, **({"Range": f"bytes={begin}-"} if begin else {})})
    with closing(reply(remote, asking, question, until=time.monotonic() + ANSWER_SECONDS)) as answer:
        if answer.status_code == 416 and begin and size is None:  # it is all there, or the digest will tell
            return
        if answer.status_code not in (200, 206):
            if answer.status_code != 416:
                require_no_refusal(remote, answer.status_code)
            raise _Odd(f"answers {answer.status_code}")
        if answer.status_code == 200:  # ranges are not served: from the start
            begin = 0
        whole = _whole(answer, begin, size)
        _require_right_length(remote, whole, size)
        # Nothing says yet that this is more than what is there: it may be the page of a wireless network.
        target = part if begin == there or (size is not None and max(whole or 0, there) >= size) else _again(part)
        with growing(target) as file:
            file.truncate(begin)
            file.seek(begin)
            try:
                _pour(remote, answer, file, progress, whole=whole, size=size)
            except (httpx.HTTPError, CannotStart):
                _keep_the_longer(target, part)
                raise
        if target != part:
            os.replace(target, part)


def _again(part: Path) -> Path:
    """What comes from the start once more."""
    return part.with_suffix(".again")


def _keep_the_longer(target: Path, part: Path) -> None:
    if target != part and length(target) > length(part):
        os.replace(target, part)
    elif target != part:
        target.unlink()


def _whole(answer: httpx.Response, begin: int, size: int | None) -> int | None:
    """Bytes of the whole file as this reply tells of them; `size` for a piece that does not."""
    if answer.status_code == 200:
        return number(answer.headers.get("Content-Length"))
    told = re.match(r"bytes ([0-9]+)-[0-9]+/([0-9]+|\*)", answer.headers.get("Content-Range", ""))
    if told is not None and number(told[1]) != begin:
        raise _OtherRange("another range than the one that was asked for")
    return size if told is None else number(told[2]) or size


def _require_right_length(remote: Remote, whole: int | None, size: int | None) -> None:
    limit = CAP if size is None else size
    if whole is not None and whole > limit:
        raise TooLong(f"{remote.host} has {whole} bytes for it, and there should be {limit} at most")
    if whole is not None and size is not None and whole < size:
        raise _Odd(f"gives {whole} bytes, and there should be {size}")


def _pour(
    remote: Remote, answer: httpx.Response, file: BinaryIO, progress: Progress, *, whole: int | None, size: int | None
) -> None:
    limit, whole = CAP if size is None else size, whole or size
    progress(file.tell(), whole)
    mark, until = file.tell(), time.monotonic() + SLOW_SECONDS
    for piece in pieces(remote, answer):
        if file.tell() + len(piece) > limit:
            raise TooLong(f"{remote.host} gives more than the {limit} bytes that there should be at most")
        file.write(piece)
        progress(file.tell(), whole)
        if (now := time.monotonic()) >= until:
            if file.tell() - mark < LEAST:
                raise _Slow(f"fewer than {LEAST} bytes in {SLOW_SECONDS:.0f} seconds")
            mark, until = file.tell(), now + SLOW_SECONDS
    file.flush()
    os.fsync(file.fileno())  # or a power cut could leave a hole in what was found to be right
    if whole is not None and file.tell() < whole:
        raise httpx.RemoteProtocolError("the reply ended before the file did")


def _why(remote: Remote, error: httpx.HTTPError) -> str:
    if isinstance(error, _Odd):
        return f"{remote.host} {error}"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"{remote.host} cannot be reached{are_set(PROXIES)}"
    return f"the download from {remote.host} broke off"


def _shown(error: httpx.HTTPError) -> str:
    """For a log: a host can put anything of any length into one."""
    return repr(error)[:500]
