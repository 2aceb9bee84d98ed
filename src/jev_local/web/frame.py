"""What surrounds every request: its id, one line in the log, and the last catch.

This is plain ASGI, not Starlette's BaseHTTPMiddleware: that one puts itself between a handler and `receive`,
and a handler behind it does not learn that its client has gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jev_local.errors import BackendUnavailable
from jev_local.web.responses import problem_response
from jev_local.wire.headers import REQUEST_ID
from jev_local.wire.problems import INTERNAL, problem

ACCESS = logging.getLogger("jev_local.access")
FAULTS = logging.getLogger("jev_local.web")

_KEY = "jev_local.exchange"
_STOPPING = BackendUnavailable("The server is stopping.")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_UNKNOWN = "(unknown)"
# Supervisors and load balancers ask for these many times a minute, and the answer is in `/ready` for whoever wants it.
_POLLED = {"/health": (200,), "/ready": (200, 503)}
_PACKAGE = __name__.partition(".")[0]


@dataclass(slots=True)
class Exchange:
    """One request and what became of it. `status` is 0 until a response begins; `tokens` is None
    where no model was asked, else (reused, evaluated)."""

    id: str = field(default_factory=lambda: f"req_{uuid4().hex}")
    status: int = 0
    tokens: tuple[int, int] | None = None


def exchange(scope: Scope) -> Exchange:
    """The exchange that a handler's request belongs to."""
    found = scope[_KEY]
    assert isinstance(found, Exchange)  # noqa: S101  nothing else is put there
    return found


class Frame:
    """Gives every response its `x-typesafe-request-id`, writes the access log, turns what nobody caught into a 500.

    `routes` are the app's; they are looked at when a request ends and may be added to until then.
    """

    def __init__(self, app: ASGIApp, *, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        this = scope[_KEY] = Exchange()

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                this.status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = this.id
            await send(message)

        begun = time.perf_counter()
        try:
            await self._app(scope, receive, send_marked)
        except asyncio.CancelledError:
            # The server stops and has waited long enough. The handler's work has ended on the way up to here; the
            # client gets an answer that it can act on, instead of a broken connection, and the log no stack trace.
            if this.status:
                raise
            await problem_response(problem(_STOPPING))(scope, receive, send_marked)
        except Exception as error:
            # Types and places only. A message or a local variable may hold the caller's text.
            FAULTS.error("%s %s at %s", this.id, type(error).__name__, _place(error))
            if this.status:
                # Half a response is out: all that is left is to break the connection, which the server does for us.
                raise RuntimeError(f"{this.id}: the response broke off") from None
            await problem_response(INTERNAL)(scope, receive, send_marked)
        finally:
            _log(_template(scope, self._routes), scope["method"], this, 1000 * (time.perf_counter() - begun))


def _template(scope: Scope, routes: Sequence[BaseRoute]) -> str:
    """The path of the route that is meant, as it is written in `app.py`: what a caller put into a path (a key pasted
    behind the slash) is not for the log."""
    for route in routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            return route.path
    return _UNKNOWN


def _log(path: str, method: str, this: Exchange, ms: float) -> None:
    level = logging.DEBUG if this.status in _POLLED.get(path, ()) else logging.INFO
    tokens = "" if this.tokens is None else " cached={} processed={}".format(*this.tokens)
    method = method if method in _METHODS else _UNKNOWN
    ACCESS.log(level, "%s %s %s %d %.1fms%s", this.id, method, path, this.status, ms, tokens)


def _place(error: Exception) -> str:
    """Where it came from: the innermost line of this package, then the innermost of all where that differs."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"/{_PACKAGE}/" in frame.filename.replace("\\", "/")]
    told: list[str] = []
    for frame in (*ours[-1:], *frames[-1:]):
        place = f"{_tail(frame.filename)}:{frame.lineno}"
        if place not in told:
            told.append(place)
    return " from ".join(told)


def _tail(path: str) -> str:
    return "/".join(path.replace("\\", "/").split("/")[-3:])
