"""`POST /v1/chat/completions` and `/v1/completions`: what llama-server answers, byte for byte but for the count of
reused tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from jev_local.core.chats import Chat, Endpoint
from jev_local.core.events import Event, prompt_ms
from jev_local.engine.decision import Engine, Talk
from jev_local.errors import JevError
from jev_local.settings import ApiSettings
from jev_local.web.frame import exchange
from jev_local.web.gate import Admission
from jev_local.web.presence import CLIENT_GONE, ClientGone, while_present
from jev_local.web.relay import EventStream, Relay
from jev_local.wire import headers
from jev_local.wire.assembled import Assembly
from jev_local.wire.bodies import BodyLimits, read_body, require_json
from jev_local.wire.chat import read_relayed
from jev_local.wire.counted import Counts, corrected
from jev_local.wire.intake import check_model
from jev_local.wire.problems import problem, problem_event

LARGE = 256 * 1024

FAULTS = logging.getLogger("jev_local.web")


class Chats:
    """Both endpoints. One instance serves the whole process, because it counts the chats in flight: not among the
    decisions, which would be refused while callers chat."""

    def __init__(self, *, engine: Engine, settings: ApiSettings, limits: BodyLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._admission = Admission(settings.max_in_flight)

    async def answer(self, request: Request, endpoint: Endpoint) -> Response:
        """The reply. Raises CallerError, Busy or BackendError; what they look like is in `wire.problems`."""
        with ExitStack() as held:
            held.enter_context(self._admission.admit())
            try:
                require_json(request.headers.get("content-type", ""))
                body = await read_body(request.stream(), request.headers, self._limits)
                if body.oversized is not None:
                    raise body.oversized
                chat = await _read(body.text, endpoint)
                check_model(chat.model, self._engine.status().model)
                return await self._answer(request, chat, held)
            except (ClientDisconnect, ClientGone):
                return Response(status_code=CLIENT_GONE)

    async def _answer(self, request: Request, chat: Chat, held: ExitStack) -> Response:
        relay = Relay(self._engine, chat)
        streams = False
        try:
            talk = await while_present(request.receive, relay.begun())
            exchange(request.scope).tokens = talk.trace.cached_tokens, talk.trace.processed_tokens
            if chat.stream:
                streams = True
                pieces = _pieces(chat, talk, relay, request_id=exchange(request.scope).id)
                return EventStream(pieces, relay=relay, held=held.pop_all(), headers=_diagnostics(talk))
            document = await while_present(request.receive, _document(chat, talk, relay))
            return Response(document, headers=_diagnostics(talk), media_type="application/json")
        finally:
            if not streams:
                await relay.end()


async def _read(body: bytes, endpoint: Endpoint) -> Chat:
    # Megabytes take long enough to keep other requests waiting; small bodies are not worth a thread.
    if len(body) > LARGE:
        return await asyncio.to_thread(read_relayed, body, endpoint)
    return read_relayed(body, endpoint)


async def _pieces(chat: Chat, talk: Talk, relay: Relay, *, request_id: str) -> AsyncIterator[bytes]:
    """The events for a caller who streams. An error that comes now can only be told in one more of them."""
    told = False
    try:
        async for event in relay.events():
            told = event.kind == "error"
            if event.kind != "progress" or chat.wants_progress:
                yield corrected(event.raw, _counts(talk, event)) if event.counted and talk.is_counted else event.raw
    except JevError as error:
        FAULTS.warning("%s %s in a stream", request_id, type(error).__name__)
        if not told:
            yield problem_event(problem(error))


async def _document(chat: Chat, talk: Talk, relay: Relay) -> bytes:
    assembly, last = Assembly(chat.endpoint), None
    async for event in relay.events():
        if event.kind == "chunk" and event.value is not None:
            assembly.take(event.value, len(event.raw))
            last = event
    document = assembly.document()
    return corrected(document, _counts(talk, last)) if talk.is_counted else document


def _counts(talk: Talk, event: Event | None) -> Counts:
    """Of the whole prompt: what was read of it before llama-server was asked, and the rest, of which `event` tells."""
    own = 0.0 if event is None else prompt_ms(event)
    return Counts(talk.trace.cached_tokens, talk.trace.processed_tokens, talk.prompt_ms + own)


def _diagnostics(talk: Talk) -> dict[str, str]:
    trace = talk.trace
    return headers.render(
        headers.Diagnostics(
            state_cache=trace.state_cache,
            prefix_tokens=trace.prefix_tokens,
            source=trace.source,
            strategy=trace.strategy,
            cached_tokens=trace.cached_tokens,
            processed_tokens=trace.processed_tokens,
            timings_ms=trace.timings_ms,
        )
    )
