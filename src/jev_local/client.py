"""A typed, synchronous client for `POST /v1/systemone` and `/v1/cache/explain`. What can go wrong:

    ClientError
    ├── UnusableServer   no request could be made with this URL or key, or in this environment
    ├── Refused          the server answered, and the answer was no; carries the status and the server's reasons
    ├── BadReply         the server answered 2xx with something that is not a System One reply
    └── Unreachable      no answer: nobody listens, or the connection broke
        └── TimedOut     no complete answer within the client's timeout

Nothing is retried here: the work behind one request is expensive, and the caller knows whether it is still wanted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, TypeVar

import httpx

from jev_local import __version__
from jev_local.errors import JevError
from jev_local.exchange import Exchange
from jev_local.explained import Explained
from jev_local.explained import parse as parse_explained
from jev_local.line import MOST_PORT, NoReply
from jev_local.received import Received, parse
from jev_local.settings import DEFAULT_API_URL, MIB

PATH = "/v1/systemone"
EXPLAIN_PATH = "/v1/cache/explain"
DEFAULT_TIMEOUT = 120.0

MOST_BYTES = 64 * MIB
"""Of a reply. The names of choices come back twice at most, and a request's JSON has 24 MiB."""

MOST_VALUES = 2_000_000
"""Commas and opening brackets in a reply: a thousand questions of 255 choices have 300,000. As many empty arrays as fit
into the bytes would take more than a gigabyte."""

T = TypeVar("T")


class ClientError(JevError):
    """No answers came back."""


class UnusableServer(ClientError):
    """A URL that names no server, a key that fits in no header, or a proxy or certificates in the environment that
    cannot be used."""


class Refused(ClientError):
    """`reasons` is what the server said, one line each and never empty; `headers` has lower-case names."""

    def __init__(self, status: int, reasons: tuple[str, ...], headers: Mapping[str, str]) -> None:
        super().__init__(f"{status}: {'; '.join(reasons)}")
        self.status, self.reasons, self.headers = status, reasons, headers


class BadReply(ClientError):
    """Whatever listens there does not speak System One, or it spoke it badly."""


class Unreachable(ClientError):
    """Nobody answered."""


class TimedOut(Unreachable):
    """The time was up first."""


class Client:
    """One server at `url`, the root without `/v1`. `key` empty: none is sent. `timeout` is in seconds, for a whole
    question, from looking up the name to the last byte of the reply. Raises UnusableServer."""

    def __init__(self, url: str = DEFAULT_API_URL, *, key: str = "", timeout: float = DEFAULT_TIMEOUT) -> None:
        root = _root(url)
        self.url = str(root).rstrip("/")
        self._timeout = timeout
        headers = {"Accept": "application/json", "User-Agent": f"jev-local/{__version__}"}
        if key:
            if not (key.isascii() and key.isprintable() and " " not in key):
                raise UnusableServer("an API key is printable ASCII without spaces")
            headers["Authorization"] = f"Bearer {key}"
        try:
            self._exchange = Exchange(self.url, headers=headers)
        except NoReply as error:
            raise self._unusable(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._exchange.close()

    def ask(self, body: bytes) -> Received:
        """Send a request body as it stands and return the checked reply. Raises ClientError."""
        started = time.monotonic()
        return self._post(
            PATH,
            body,
            lambda content, headers: parse(content, headers=headers, seconds=time.monotonic() - started),
            what="System One reply",
        )

    def explain(self, a: bytes, b: bytes) -> Explained:
        """Why the request body `b` did not reuse what `a` had read, or would not. Both are JSON texts and go out as
        they stand. Raises ClientError."""
        body = b'{"a":%b,"b":%b}' % (a, b)
        return self._post(EXPLAIN_PATH, body, lambda content, _: parse_explained(content), what="explanation")

    def _post(self, path: str, body: bytes, read: Callable[[bytes, Mapping[str, str]], T], *, what: str) -> T:
        """What `read` makes of the reply; it raises ValueError for one that is no `what`."""
        try:
            reply = self._exchange.ask(
                "POST",
                path,
                body=body,
                headers={"Content-Type": "application/json"},
                seconds=self._timeout,
                most=MOST_BYTES,
            )
        except NoReply as error:
            raise self._named(error) from error
        trouble = reply.trouble or _too_full(reply.content)
        if not reply.is_success:
            raise Refused(reply.status, _reasons(b"" if trouble else reply.content, reply.phrase), reply.headers)
        try:
            if trouble:
                raise ValueError(trouble)
            return read(reply.content, reply.headers)
        except ValueError as error:
            raise BadReply(f"What {self.url} answered is no {what}: {error}.") from error

    def _named(self, error: NoReply) -> ClientError:
        match error.fault:
            case "unusable":
                return self._unusable(error)
            case "unconnected" | "unfinished":
                return TimedOut(f"No complete answer from {self.url} within {self._timeout:g} s.")
            case _:
                return Unreachable(f"No answer from {self.url}: {error.why}.")

    def _unusable(self, error: NoReply) -> UnusableServer:
        return UnusableServer(f"{self.url} cannot be asked: {error.why}")


def _root(url: str) -> httpx.URL:
    try:
        root = httpx.URL(url)
        host = root.host
    except (httpx.InvalidURL, UnicodeError) as error:
        raise UnusableServer(f"not a URL: {error}") from error
    if root.scheme not in ("http", "https") or not host:
        raise UnusableServer("a server's URL begins with http:// or https:// and names a host")
    if root.userinfo or root.query or root.fragment:
        raise UnusableServer("a server's URL has no user name, query or fragment")
    try:
        root.raw_host.decode("ascii").encode("idna")  # as looking it up does
    except UnicodeError as error:
        raise UnusableServer("a host name has parts of 1 to 63 characters with dots between them") from error
    if root.port is not None and not 0 < root.port <= MOST_PORT:
        raise UnusableServer(f"a server's port is a number from 1 to {MOST_PORT}")
    return root


def _too_full(content: bytes) -> str:
    values = content.count(b",") + content.count(b"[") + content.count(b"{")
    return f"it has more than {MOST_VALUES:,} values" if values > MOST_VALUES else ""


def _reasons(content: bytes, phrase: str) -> tuple[str, ...]:
    """What a refusal says. `detail` comes as a list, an object or a string; other servers put `error` or `message`
    instead, and a proxy between sends a page of HTML, of which the status line says enough."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict):
        for key in ("detail", "error", "message"):
            said = body.get(key)
            if reasons := tuple(filter(None, map(_spoken, said if isinstance(said, list) else [said]))):
                return reasons
    return (phrase or "no reason given",)


def _spoken(said: object) -> str:
    match said:
        case str():
            return said if said.strip() else ""
        case {"loc": list(loc), "msg": str(msg)}:
            at = ".".join(map(str, loc[1:] if loc[:1] == ["body"] else loc))
            return f"{at}: {msg}" if at else msg
        case {"message": str(message)} if message.strip():
            return message
        case {"msg": str(message)} | {"error_type": str(message)} | {"type": str(message)}:
            return message
    return ""
