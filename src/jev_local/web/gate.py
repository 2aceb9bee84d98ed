"""Who may come in: the Host header, the key for everything under /v1/, and the count of requests in flight.

All three are decided before a byte of the body is read. Host: on a loopback address only an IP address, localhost or
the name that was listened on; anything else is 403.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from jev_local.errors import Busy, CallerError, MissingKey, WrongKey
from jev_local.web.responses import problem_response
from jev_local.wire.hosts import is_address, is_localhost, is_loopback, without_port
from jev_local.wire.problems import FOREIGN_HOST, problem


class HostGate:
    """On a loopback address, refuses requests whose Host header has a name that is not this machine's.

    The default key is public knowledge, and a browser lets a web page read what its own name answers: a page whose
    name was made to point at 127.0.0.1 (DNS rebinding) could ask questions here. `host` is what the server listens on;
    where that is more than loopback, other names are as good as ours and nothing is refused.
    """

    def __init__(self, app: ASGIApp, *, host: str) -> None:
        self._app = app
        self._host = host.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._on_loopback(scope) and not all(map(self._is_ours, _hosts(scope))):
            await problem_response(FOREIGN_HOST)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _on_loopback(self, scope: Scope) -> bool:
        if is_address(self._host) or is_localhost(self._host):
            return is_loopback(self._host)
        # A name stands for one address, and that is where the connection came in. No name is every address.
        server = scope.get("server")
        return bool(self._host and server and is_loopback(server[0]))

    def _is_ours(self, host: str) -> bool:
        return host in ("", self._host) or is_address(host) or is_localhost(host)


class KeyGate:
    """Lets requests under /v1/ through when they carry `key`; an empty key lets everyone through.

    It stands before the router, so paths that do not exist are behind it as well.
    """

    def __init__(self, app: ASGIApp, *, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._key and _guarded(scope["path"]):
            try:
                check_key(scope["headers"], self._key)
            except CallerError as error:
                await problem_response(problem(error))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def check_key(headers: list[tuple[bytes, bytes]], key: bytes) -> None:
    """Raises MissingKey or WrongKey unless one of the keys in `headers` is `key`. Names are lower-case, as in ASGI."""
    shown = list(_keys(headers))
    if not shown:
        raise MissingKey("An API key is required: send `Authorization: Bearer KEY` or `X-API-Key: KEY`.")
    # In constant time: how long a refusal takes says nothing about how close the key was.
    if not any(hmac.compare_digest(one, key) for one in shown):
        raise WrongKey("The API key is not valid.")


def _hosts(scope: Scope) -> Iterator[str]:
    # Programs of the HTTP/1.0 kind send none; browsers always do.
    for name, value in scope["headers"]:
        if name == b"host":
            yield without_port(value.decode("latin-1").strip().lower())


def _guarded(path: str) -> bool:
    return path == "/v1" or path.startswith("/v1/")


def _keys(headers: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.strip().partition(b" ")
            if scheme.lower() == b"bearer" and token.strip():
                yield token.strip()
        elif name == b"x-api-key" and value.strip():
            yield value.strip()


class Admission:
    """At most `limit` requests at a time; who comes then is told to come back rather than made to wait."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_flight = 0

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Holds one place for the length of the block. Raises Busy when there is none."""
        if self._in_flight >= self._limit:
            raise Busy(f"All {self._limit} places are taken. Try again in a moment.")
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
