"""The one table from error types to what a caller sees: status, `detail` and headers.

`detail` has the three shapes of the contract: a list for everything about the body (422), an object with
`error_type` and `message` for everything else, and a plain string for 404 and 405, which the router writes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from jev_local import errors

_LONGEST_KEY = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as it goes over the wire."""

    status: int
    detail: dict[str, str] | list[dict[str, Any]]
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        return _json({"detail": self.detail})

    def openai_body(self) -> bytes:
        """The same, and what OpenAI's clients look for beside it."""
        return _json({"error": self.error(), "detail": self.detail})

    def error(self) -> dict[str, Any]:
        if isinstance(self.detail, dict):
            kind, message = self.detail["error_type"], self.detail["message"]
        else:
            kind = "invalid_request_error"
            message = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in self.detail)
        return {"message": message, "type": kind, "param": None, "code": self.status}


@dataclass(frozen=True, slots=True)
class _Row:
    status: int
    error_type: str
    headers: tuple[tuple[str, str], ...] = ()
    retry_after: float | None = None


# The most special type wins, so a row stands for its subclasses that have none of their own.
_TABLE: dict[type[errors.JevError], _Row] = {
    errors.CallerError: _Row(400, "api_usage_error"),
    errors.InvalidBody: _Row(422, "api_usage_error"),
    errors.ChatsOff: _Row(404, "api_usage_error"),
    errors.PromptTooLong: _Row(400, "max_tokens_exceeded"),
    errors.WrongKey: _Row(401, "authentication_error", (("www-authenticate", "Bearer"),)),
    errors.MissingKey: _Row(403, "authentication_error"),
    # The rest of such a body is still on its way, and may be for hours: the connection is given up.
    errors.BodyTimeout: _Row(408, "request_timeout", (("connection", "close"),)),
    errors.BodyTooLarge: _Row(413, "request_too_large"),
    errors.UnsupportedEncoding: _Row(415, "api_usage_error", (("accept-encoding", "zstd, gzip"),)),
    errors.UnsupportedMediaType: _Row(
        415, "api_usage_error", (("accept-post", "application/json, multipart/form-data"),)
    ),
    errors.Busy: _Row(529, "system_overloaded", retry_after=1.0),
    errors.BackendFault: _Row(502, "backend_error"),
    errors.BackendUnavailable: _Row(503, "backend_unavailable", retry_after=2.0),
    errors.BackendLoading: _Row(503, "backend_loading", retry_after=2.0),
    errors.BackendTimeout: _Row(504, "backend_timeout"),
}

INTERNAL = Problem(500, {"error_type": "internal_error", "message": "The server failed to answer this request."})
"""What an error that nobody foresaw looks like from outside. It says nothing, because it may know too much."""


FOREIGN_HOST = Problem(
    403,
    {
        "error_type": "api_usage_error",
        "message": "This server listens on this machine only and answers under localhost or an IP address. The Host "
        "header has another name, and a web page could have made that name point here. A proxy in front of the server "
        "has to send `Host: localhost`.",
    },
)
"""For a request under a name that is not this machine's."""


def problem(error: errors.JevError) -> Problem:
    """How `error` is told to the caller."""
    row = next((_TABLE[kind] for kind in type(error).__mro__ if kind in _TABLE), None)
    if row is None:
        return INTERNAL
    headers = dict(row.headers)
    wait = error.retry_after if isinstance(error, errors.Busy) else row.retry_after
    if wait is not None:
        headers |= retry_headers(wait)
    if isinstance(error, errors.InvalidBody):
        return Problem(row.status, [_issue(issue) for issue in error.issues], headers)
    return Problem(row.status, {"error_type": row.error_type, "message": error.message}, headers)


def problem_event(found: Problem) -> bytes:
    """`found` where a stream of events has begun already."""
    return b"data: " + _json({"error": found.error()}) + b"\n\n"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def retry_headers(seconds: float) -> dict[str, str]:
    """Both spellings of "come back in": whole seconds (at least 1) for everybody, milliseconds for TypeSafe's SDKs."""
    return {"retry-after": str(max(1, math.ceil(seconds))), "retry-after-ms": str(max(1, math.ceil(seconds * 1000)))}


def _issue(issue: errors.Issue) -> dict[str, Any]:
    told: dict[str, Any] = {"type": issue.type, "loc": [_short(part) for part in issue.loc], "msg": issue.msg}
    if issue.ctx:
        told["ctx"] = dict(issue.ctx)
    return told


def _short(part: str | int) -> str | int:
    # Keys are the caller's and may be as long as the whole body.
    return part[:_LONGEST_KEY] + "…" if isinstance(part, str) and len(part) > _LONGEST_KEY else part
