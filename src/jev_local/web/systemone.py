"""`POST /v1/systemone`: body -> questions -> engine -> reply, in one straight line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from jev_local.core.pictures import NO_PICTURES
from jev_local.engine.decision import Decision, Engine
from jev_local.settings import ApiSettings
from jev_local.web.frame import exchange
from jev_local.web.gate import Admission
from jev_local.web.presence import CLIENT_GONE, ClientGone, while_present
from jev_local.wire import headers, reply
from jev_local.wire.bodies import Body, BodyLimits, read_body
from jev_local.wire.intake import Intake, check_model, read_request
from jev_local.wire.pictures import develop
from jev_local.wire.seen import SeenPictures

_LARGE = 256 * 1024

_AT_ONCE = 2
"""Large bodies that are taken apart, or requests whose images are looked into, at a time. Either takes some hundred
megabytes at the worst, and others may wait for it."""

T = TypeVar("T")


class SystemOne:
    """The endpoint. One instance serves the whole process, because it counts the requests in flight."""

    def __init__(self, *, engine: Engine, settings: ApiSettings, limits: BodyLimits) -> None:
        self._engine = engine
        self._details = settings.details
        self._limits = limits
        self._admission = Admission(settings.max_in_flight)
        self._max_pixels = settings.max_image_pixels
        self._seen = SeenPictures()
        # Threads of its own: where a caller has gone, its thread still runs to the end, and still counts as one.
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="bodies")

    async def answer(self, request: Request) -> Response:
        """The reply. Raises CallerError, Busy or BackendError; what they look like is in `wire.problems`."""
        with self._admission.admit():
            try:
                intake = await self._read(await read_body(request.stream(), request.headers, self._limits))
                check_model(intake.model, self._engine.status().model)
                decision = await while_present(request.receive, self._decide(intake))
            except (ClientDisconnect, ClientGone):
                return Response(status_code=CLIENT_GONE)
            exchange(request.scope).tokens = decision.trace.cached_tokens, decision.trace.processed_tokens
            return self._reply(intake, decision)

    async def _read(self, body: Body) -> Intake:
        def read() -> Intake:
            return read_request(body.text, parts=body.parts, oversized=body.oversized)

        # Megabytes take long enough to keep other requests waiting; small bodies are not worth a thread.
        return await self._in_thread(read) if len(body.text) > _LARGE else read()

    async def _decide(self, intake: Intake) -> Decision:
        album = NO_PICTURES
        if intake.uploads:
            album = await self._in_thread(lambda: develop(intake.uploads, max_pixels=self._max_pixels, seen=self._seen))
        return await self._engine.decide(state=intake.state, questions=intake.questions, album=album)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _reply(self, intake: Intake, decision: Decision) -> Response:
        built = reply.build(
            model=decision.model,
            questions=intake.questions,
            answers=decision.answers,
            legends=intake.legends,
            input_tokens=decision.usage.input_tokens,
            output_tokens=decision.usage.output_tokens,
            details=intake.details or self._details,
        )
        return Response(
            reply.encode(built), headers=headers.render(_diagnostics(decision)), media_type="application/json"
        )


def _diagnostics(decision: Decision) -> headers.Diagnostics:
    trace = decision.trace
    return headers.Diagnostics(
        state_cache=trace.state_cache,
        prefix_tokens=trace.prefix_tokens,
        source=trace.source,
        strategy=trace.strategy,
        cached_tokens=trace.cached_tokens,
        processed_tokens=trace.processed_tokens,
        reevaluated=trace.reevaluated,
        warnings=headers.count_warnings(code for answer in decision.answers for code in answer.reading.warnings),
        timings_ms=trace.timings_ms,
    )
