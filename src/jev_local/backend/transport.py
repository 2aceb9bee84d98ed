"""One llama-server's address: requests and streams over HTTP. httpx and its errors end here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Any

import httpx

from jev_local.backend.dialect import BadReply, error_in, error_of, events
from jev_local.core.events import Event, Splitter
from jev_local.errors import BackendFault, BackendTimeout, BackendUnavailable

CONNECT_SECONDS = 5.0
CONNECTIONS = 3
"""To ask on, and kept. llama-server has four threads for HTTP more than it has slots, a kept connection has one of them
to itself for 5 seconds, and what comes when none is left waits that long. Each slot has one request at most."""

ASK_SECONDS = 60.0
"""For everything but a forward pass: even a 10 MB text is tokenised within it."""

JSON = {"Content-Type": "application/json"}


class Transport:
    """Connections to one llama-server. Everything raises BackendError, or PromptTooLong where the server says so."""

    def __init__(self, url: str) -> None:
        # trust_env off: a proxy from the environment must never see states on their way to loopback.
        self._client = httpx.AsyncClient(
            base_url=url,
            trust_env=False,
            timeout=httpx.Timeout(ASK_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
        )
        # llama-server's streamed replies leave a connection unusable for the next request, so each gets its own.
        self._streams = httpx.AsyncClient(
            base_url=url,
            trust_env=False,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_keepalive_connections=0),
            headers={"Connection": "close"},
        )

    async def aclose(self) -> None:
        await self._client.aclose()
        await self._streams.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float = ASK_SECONDS,
        waits: bool = False,
    ) -> Any:
        """One small exchange. A kept connection that the server had closed meanwhile is tried once more: nothing
        was read from it, and none of these calls changes anything. `waits`: the server puts it off behind the batches
        of others, so that it may be in nobody's way."""
        client = self._streams if waits else self._client
        async with translated(path.partition("?")[0], seconds):
            try:
                response = await client.request(method, path, json=body)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                response = await client.request(method, path, json=body)
            if response.status_code != 200:
                raise error_of(response.status_code, response.content)
            return response.json()

    @asynccontextmanager
    async def stream(self, path: str, content: bytes) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events of a streamed reply to the JSON in `content`. Belongs inside `translated`."""
        async with self._streams.stream("POST", path, content=content, headers=JSON) as response:
            if response.status_code != 200:
                raise error_of(response.status_code, await response.aread())
            yield events(response.aiter_bytes())

    @asynccontextmanager
    async def relayed(self, path: str, content: bytes, *, silence: float) -> AsyncIterator[AsyncIterator[Event]]:
        """The events of a streamed reply, as they came; the first is there when the block begins. `silence`: seconds
        between two of them at most. Raises Refused where the server says no at once; where it says so later, its event
        comes before the error."""
        async with AsyncExitStack() as stack:
            timeout = httpx.Timeout(None, connect=CONNECT_SECONDS, read=silence)
            with _told(path, silence):
                reply = self._streams.stream("POST", path, content=content, headers=JSON, timeout=timeout)
                response = await stack.enter_async_context(reply)
                if response.status_code != 200:
                    raise error_of(response.status_code, await response.aread())
            found = await stack.enter_async_context(aclosing(_relayed_events(response, path, silence)))
            first = await anext(found, None)
            yield _chained(first, found)


async def _relayed_events(response: httpx.Response, path: str, silence: float) -> AsyncGenerator[Event]:
    splitter = Splitter()
    with _told(path, silence):
        async for chunk in response.aiter_bytes():
            for event in splitter.feed(chunk):
                yield event
                if event.kind == "error":
                    raise error_in({"error": event.value})
        splitter.finish()


async def _chained(first: Event | None, rest: AsyncIterator[Event]) -> AsyncIterator[Event]:
    if first is not None:
        yield first
        async for event in rest:
            yield event


@asynccontextmanager
async def translated(path: str, seconds: float) -> AsyncIterator[None]:
    """Within it, what goes wrong with a request to `path` is told as one of our errors."""
    with _told(path, seconds):
        async with asyncio.timeout(seconds):
            yield


@contextmanager
def _told(path: str, seconds: float) -> Iterator[None]:
    try:
        yield
    except (TimeoutError, httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout) as error:
        raise BackendTimeout(f"The inference server did not finish {path} within {seconds:g} s.") from error
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise BackendUnavailable("The inference server is not reachable. Is it running?") from error
    except httpx.TransportError as error:
        raise BackendUnavailable(f"The inference server closed the connection during {path}.") from error
    except NONSENSE as error:
        raise _nonsense(path, error) from error


NONSENSE = (
    BadReply,
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    httpx.DecodingError,
)
"""What reading a reply raises that is not built as llama-server builds it."""


def _nonsense(path: str, error: Exception) -> BackendFault:
    if isinstance(error, BadReply):
        reason = str(error)
    elif isinstance(error, (json.JSONDecodeError, UnicodeDecodeError, RecursionError, httpx.DecodingError)):
        reason = "not valid JSON"
    else:
        reason = "a field is missing or has the wrong type"
    return BackendFault(f"The inference server's reply to {path} makes no sense: {reason}.")


@contextmanager
def sense(path: str) -> Iterator[None]:
    """Within it, a missing or mistyped field of a reply is the server's fault."""
    try:
        yield
    except NONSENSE as error:
        raise _nonsense(path, error) from error
