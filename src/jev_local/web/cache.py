"""`/v1/cache`: what is saved of the states that were asked about, in numbers, and its deletion."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jev_local.engine.decision import CacheReport, Engine
from jev_local.web.responses import json_response

METHODS = ("GET", "DELETE")
"""Both on one route: the router writes a 405 from the first route that it finds for a path."""


async def answer(request: Request, engine: Engine) -> Response:
    """The report, or the number of states that are deleted now."""
    if request.method == "DELETE":
        return json_response({"deleted": await engine.clear_cache()})
    return json_response(_told(engine.cache()))


def _told(report: CacheReport) -> dict[str, Any]:
    # Field by field: what is added to the report below is not for callers before somebody has thought about it.
    return {
        "mode": report.mode,
        "sharing": report.sharing,
        "saving": report.saving,
        "reason": report.reason,
        "bytes": report.bytes,
        "budget": report.budget,
        "entries": report.entries,
        "hits": report.hits,
        "misses": report.misses,
        "evictions": report.evictions,
    }
