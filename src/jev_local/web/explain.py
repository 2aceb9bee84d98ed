"""`POST /v1/cache/explain`: why one request did not reuse what another had read. Nothing is evaluated for it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from jev_local.core.compared import Compared
from jev_local.core.explain import Explanation
from jev_local.engine.decision import Status
from jev_local.web.gate import Admission
from jev_local.web.presence import CLIENT_GONE, ClientGone, while_present
from jev_local.web.responses import json_response
from jev_local.wire.bodies import BodyLimits, read_body, require_json
from jev_local.wire.explain import build, read_pair

AT_ONCE = 2
"""They wait for nothing that a decision needs, but each has the inference server tokenise whole prompts."""


class Explains(Protocol):
    """What is needed from the engine."""

    async def explain(self, a: Compared, b: Compared) -> Explanation: ...

    def status(self) -> Status: ...


class Explain:
    """The endpoint. One instance serves the whole process, because it counts the requests in flight."""

    def __init__(self, *, engine: Explains, limits: BodyLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._admission = Admission(AT_ONCE)

    async def answer(self, request: Request) -> Response:
        """The reply. Raises CallerError, Busy or BackendError. The requests' text is in it, and nowhere else."""
        with self._admission.admit():
            try:
                require_json(request.headers.get("content-type", ""))
                body = await read_body(request.stream(), request.headers, self._limits)
                if body.oversized is not None:
                    raise body.oversized
                local = self._engine.status().model
                a, b = await asyncio.to_thread(read_pair, body.text, model=local)
                found = await while_present(request.receive, self._engine.explain(a, b))
            except (ClientDisconnect, ClientGone):
                return Response(status_code=CLIENT_GONE)
            return json_response(build(found).model_dump(mode="json"))
