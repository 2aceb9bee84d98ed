"""The table of errors: every type has a row, and every row its shape."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from jev_local import errors
from jev_local.errors import Issue, JevError
from jev_local.wire.problems import INTERNAL, problem, retry_headers

CASES: list[tuple[JevError, int, str | None, set[str]]] = [
    (errors.InvalidBody(Issue(("body",), "missing", "is required")), 422, None, set()),
    (errors.InvalidRequest("no"), 400, "api_usage_error", set()),
    (errors.UnknownModel("m"), 400, "api_usage_error", set()),
    (errors.PromptTooLong(needed=9000, available=8192), 400, "max_tokens_exceeded", set()),
    (errors.ChatTooLong(needed=9000, available=8192), 400, "max_tokens_exceeded", set()),
    (errors.Declined("no"), 400, "api_usage_error", set()),
    (errors.ChatsOff("no"), 404, "api_usage_error", set()),
    (errors.MissingKey("m"), 403, "authentication_error", set()),
    (errors.WrongKey("m"), 401, "authentication_error", {"www-authenticate"}),
    (errors.BodyTimeout("m"), 408, "request_timeout", {"connection"}),
    (errors.BodyTooLarge("m"), 413, "request_too_large", set()),
    (errors.UnsupportedEncoding("m"), 415, "api_usage_error", {"accept-encoding"}),
    (errors.UnsupportedMediaType("m"), 415, "api_usage_error", {"accept-post"}),
    (errors.CallerError("m"), 400, "api_usage_error", set()),
    (errors.Busy("m"), 529, "system_overloaded", {"retry-after", "retry-after-ms"}),
    (errors.BackendUnavailable("m"), 503, "backend_unavailable", {"retry-after", "retry-after-ms"}),
    (errors.BackendLoading("m"), 503, "backend_loading", {"retry-after", "retry-after-ms"}),
    (errors.BackendTimeout("m"), 504, "backend_timeout", set()),
    (errors.BackendFault("m"), 502, "backend_error", set()),
    (errors.NotSupported("m"), 502, "backend_error", set()),
    (errors.Misspelled("m"), 502, "backend_error", set()),
    (errors.Withheld("m"), 502, "backend_error", set()),
    (errors.CannotShare("m"), 502, "backend_error", set()),
    (errors.BackendError("m"), 500, "internal_error", set()),
    (errors.JevError("m"), 500, "internal_error", set()),
]


@pytest.mark.parametrize(("error", "status", "error_type", "headers"), CASES, ids=lambda v: type(v).__name__)
def test_a_row(error: JevError, status: int, error_type: str | None, headers: set[str]) -> None:
    told = problem(error)
    assert told.status == status
    assert set(told.headers) == headers
    detail = json.loads(told.body())["detail"]
    if error_type is None:
        assert detail == [{"type": "missing", "loc": ["body"], "msg": "is required"}]
    else:
        message = INTERNAL.detail["message"] if status == 500 else error.message  # type: ignore[call-overload]
        assert detail == {"error_type": error_type, "message": message}


def tree(kind: type[JevError]) -> Iterator[type[JevError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from tree(below)


def test_no_type_is_forgotten() -> None:
    # Types that other modules derive for themselves find a row through their parent.
    ours = {kind for kind in tree(JevError) if kind.__module__ == errors.__name__}
    assert ours == {type(error) for error, *_ in CASES}


@pytest.mark.parametrize(
    ("seconds", "whole", "ms"), [(0.0, "1", "1"), (0.25, "1", "250"), (1.0, "1", "1000"), (1.2, "2", "1200")]
)
def test_when_to_come_back(seconds: float, whole: str, ms: str) -> None:
    assert retry_headers(seconds) == {"retry-after": whole, "retry-after-ms": ms}
    assert problem(errors.Busy("m", retry_after=seconds)).headers == retry_headers(seconds)


def test_a_key_as_long_as_a_body_is_cut_and_any_key_can_be_written() -> None:
    key = '\x00\n"</script>\u2028鍵' + "k" * 10**6
    body = problem(errors.InvalidBody(Issue(("body", key, 3), "missing", "is required", (("max", 1),)))).body()
    (issue,) = json.loads(body)["detail"]
    assert issue["loc"][1].startswith(key[:100])
    assert issue["loc"][2] == 3
    assert issue["ctx"] == {"max": 1}
    assert len(body) < 1000
