"""One question to an HTTP server: one deadline for all of it, and one cap for the reply.

httpx times each read, so a server that says a byte now and then keeps its caller for ever, and looking up a name has no
timeout at all. So an exchange runs on a thread of its own. The caller waits for as long as it said, and breaks off what
is still open then.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from threading import Lock, Thread

from jev_local.line import Asked, Line, NoReply, Reply
from jev_local.threads import start_without_interrupts

LONGEST = 1_000_000.0
"""Seconds, eleven days: what an operating system takes for one wait in milliseconds is not much more."""


class Exchange:
    """Questions to the server at `root`, a URL with http or https and a host, and no slash at its end. `headers` go
    with each of them. A connection is kept for the next question. Several threads may ask at once. Raises NoReply
    (unusable)."""

    def __init__(self, root: str, *, headers: Mapping[str, str] | None = None) -> None:
        self._root, self._headers = root, dict(headers or {})
        self._lock = Lock()
        self._is_closed = False
        self._idle = [Line(root)]

    def ask(
        self,
        method: str,
        path: str,
        *,
        seconds: float,
        most: int,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """The reply to one request, a redirect as well, within `seconds` and with `most` bytes of content. Raises
        NoReply."""
        seconds = min(seconds, LONGEST)
        asked = Asked(method, self._root + path, {**self._headers, **(headers or {})}, body, seconds, most)
        with self._lock:
            line = self._idle.pop() if self._idle else None
        line = line or Line(self._root)
        answer: Future[Reply] = Future()
        try:
            start_without_interrupts(Thread(target=_carry, args=(line, asked, answer), daemon=True))
            reply = answer.result(seconds)
        except TimeoutError:
            line.cut()
            raise NoReply(
                "unfinished" if line.is_connected else "unconnected", f"no complete answer within {seconds:g} s"
            ) from None
        except BaseException:
            line.cut()
            raise
        self._keep(line)
        return reply

    def close(self) -> None:
        with self._lock:
            self._is_closed, idle, self._idle = True, self._idle, []
        for line in idle:
            line.close()

    def _keep(self, line: Line) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(line)
                return
        line.close()


def ask_once(method: str, url: str, *, seconds: float, most: int, headers: Mapping[str, str] | None = None) -> Reply:
    """Like `Exchange.ask`, for a single question to a whole `url`."""
    exchange = Exchange(url, headers=headers)
    try:
        return exchange.ask(method, "", seconds=seconds, most=most)
    finally:
        exchange.close()


def _carry(line: Line, asked: Asked, answer: Future[Reply]) -> None:
    try:
        reply = line.carry(asked)
    except BaseException as error:
        answer.set_exception(error)
    else:
        answer.set_result(reply)
