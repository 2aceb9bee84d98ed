"""A typed, synchronous client for `POST /v1/systemone` and `/v1/cache/explain`. All of httpx, and all of its errors,
end here.

    ClientError
    ├── UnusableServer   no request could be made with this URL or key
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
from jev_local.explained import Explained
from jev_local.explained import parse as parse_explained
from jev_local.received import Received, parse
from jev_local.settings import DEFAULT_API_URL
from jev_local.wire.hosts import is_loopback

PATH = "/v1/systemone"
EXPLAIN_PATH = "/v1/cache/explain"
DEFAULT_TIMEOUT = 120.0

T = TypeVar("T")


class ClientError(JevError):
    """No answers came back."""


class UnusableServer(ClientError):
    """A URL that names no server, or a key that fits in no header."""


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
    """One server at `url`, the root without `/v1`. `key` empty: none is sent. `timeout` is in seconds, for the whole
    reply. Raises UnusableServer."""

    def __init__(self, url: str = DEFAULT_API_URL, *, key: str = "", timeout: float = DEFAULT_TIMEOUT) -> None:
        root = _root(url)
        self.url = str(root).rstrip("/")
        self._timeout = timeout
        headers = {"Accept": "application/json", "User-Agent": f"jev-local/{__version__}"}
        if key:
            if not (key.isascii() and key.isprintable() and " " not in key):
                raise UnusableServer("an API key is printable ASCII without spaces")
            headers["Authorization"] = f"Bearer {key}"
        self._http = httpx.Client(
            base_url=root,
            headers=headers,
            timeout=timeout,
            # A proxy from the environment cannot reach this machine's loopback, and must not see what goes there.
            trust_env=not is_loopback(root.host),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

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
        started = time.monotonic()
        try:
            with self._http.stream(
                "POST", path, content=body, headers={"Content-Type": "application/json"}
            ) as response:
                content = self._read(response, started)
        except httpx.TimeoutException as error:
            raise self._timed_out() from error
        except httpx.DecodingError as error:
            raise BadReply(f"The reply from {self.url} cannot be decompressed.") from error
        except httpx.RequestError as error:
            raise Unreachable(f"No answer from {self.url}: {_cause(error)}.") from error
        headers = dict(response.headers)
        if not response.is_success:
            raise Refused(response.status_code, _reasons(content, response.reason_phrase), headers)
        try:
            return read(content, headers)
        except ValueError as error:
            raise BadReply(f"What {self.url} answered is no {what}: {error}.") from error

    def _read(self, response: httpx.Response, started: float) -> bytes:
        # httpx times each read; a server that trickles would keep a caller for ever.
        content = bytearray()
        for chunk in response.iter_bytes():
            content += chunk
            if time.monotonic() - started > self._timeout:
                raise self._timed_out()
        return bytes(content)

    def _timed_out(self) -> TimedOut:
        return TimedOut(f"No complete answer from {self.url} within {self._timeout:g} s.")


def _root(url: str) -> httpx.URL:
    try:
        root = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise UnusableServer(f"not a URL: {error}") from error
    if root.scheme not in ("http", "https") or not root.host:
        raise UnusableServer("a server's URL begins with http:// or https:// and names a host")
    if root.userinfo or root.query or root.fragment:
        raise UnusableServer("a server's URL has no user name, query or fragment")
    return root


def _cause(error: httpx.RequestError) -> str:
    """httpx words: "[Errno 111] Connection refused", or nothing at all for some broken connections."""
    text = str(error).rstrip(".")
    return text.split("] ", 1)[-1] if text else type(error).__name__


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
