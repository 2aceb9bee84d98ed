"""Problems and JSON as responses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jev_local.core.chats import CHAT_PATHS
from jev_local.errors import JevError
from jev_local.wire.problems import Problem, problem


def json_response(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(body, status, headers, "application/json")


def problem_response(found: Problem) -> Response:
    return Response(found.body(), found.status, found.headers, "application/json")


async def on_jev_error(request: Request, error: Exception) -> Response:
    """The exception handler for the whole tree of JevError."""
    assert isinstance(error, JevError)  # noqa: S101  it is registered for nothing else
    found = problem(error)
    if request.url.path in CHAT_PATHS.values():
        return Response(found.openai_body(), found.status, found.headers, "application/json")
    return problem_response(found)
