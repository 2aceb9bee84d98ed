"""Request ids, the access log, and errors that nobody foresaw."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from fakes.asgi import AUTH, KEY, ONE_NOUL, Wire, app_for, http, scene
from fakes.engine import FakeEngine
from jev_local.engine.decision import Status
from jev_local.web.frame import Frame

SECRET = "zq7-caller-text"


@scene
async def test_every_response_has_an_id_of_its_own() -> None:
    app = app_for(FakeEngine())
    seen: list[str] = []
    async with http(app) as client:
        for method, path in [
            ("GET", "/health"),
            ("GET", "/ready"),
            ("GET", "/docs"),
            ("GET", "/openapi.json"),
            ("GET", "/v1/models"),
            ("GET", "/v1/x"),
            ("GET", "/x"),
            ("PUT", "/health"),
            ("POST", "/v1/systemone"),
            ("HEAD", "/health"),
        ]:
            response = await client.request(method, path, headers={"x-typesafe-request-id": "req_mine"})
            seen += response.headers.get_list("x-typesafe-request-id")
    assert len(set(seen)) == len(seen) == 10
    assert all(re.fullmatch("req_[0-9a-f]{32}", id_) for id_ in seen)


@scene
async def test_the_log_has_a_line_a_request_and_nothing_private(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jev_local.access")
    body = {"state": SECRET, "questions": {SECRET: {"type": "noul", "instructions": SECRET}}}
    async with http(app_for(FakeEngine())) as client:
        answered = await client.post(f"/v1/systemone?token={SECRET}", json=body)
        refused = await client.post("/v1/systemone", json={**body, "model": SECRET})
        await client.put("/health", headers={"x-api-key": SECRET})
    lines = [record.getMessage() for record in caplog.records if record.name == "jev_local.access"]
    id_ = answered.headers["x-typesafe-request-id"]
    assert re.fullmatch(rf"{id_} POST /v1/systemone 200 \d+\.\dms cached=34 processed=56", lines[0])
    assert re.fullmatch(rf"{refused.headers['x-typesafe-request-id']} POST /v1/systemone 400 \d+\.\dms", lines[1])
    assert " PUT /health 405 " in lines[2]
    assert len(lines) == 3
    assert SECRET not in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize("key", [KEY, ""])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/v1/{SECRET}"),
        ("GET", f"/{SECRET}"),
        ("POST", f"/v1/systemone/{SECRET}"),
        ("GET", f"/health/{SECRET}"),
        ("GET", f"//health?{SECRET}"),
        ("GET", f"/no%0d%0aFAKE%20LINE/{SECRET}" + "x" * 500),
        (SECRET, "/elsewhere"),
        (SECRET, "/health"),
    ],
)
@scene
async def test_what_is_not_ours_in_a_request_line_is_not_logged(
    key: str, method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with http(app_for(FakeEngine(), key=key)) as client:
        response = await client.request(method, path)
    lines = [record.getMessage() for record in caplog.records if record.name == "jev_local.access"]
    ours = "/health" if path == "/health" else r"\(unknown\)"
    told = "GET|POST" if method != SECRET else r"\(unknown\)"
    assert len(lines) == 1
    assert re.fullmatch(rf"req_[0-9a-f]{{32}} ({told}) {ours} {response.status_code} \d+\.\dms", lines[0])
    # httpx, the client in this test, logs the URLs it asks for; the server's side says nothing.
    told_by_us = [record.getMessage() for record in caplog.records if not record.name.startswith("http")]
    assert SECRET not in "".join(told_by_us)


@pytest.mark.parametrize(
    ("method", "path", "state", "status", "level"),
    [
        ("GET", "/health", "ready", 200, logging.DEBUG),
        ("HEAD", "/health", "ready", 200, logging.DEBUG),
        ("GET", "/ready", "ready", 200, logging.DEBUG),
        ("GET", "/ready", "starting", 503, logging.DEBUG),
        ("HEAD", "/ready", "unavailable", 503, logging.DEBUG),
        ("POST", "/ready", "ready", 405, logging.INFO),
        ("GET", "/healthy", "ready", 404, logging.INFO),
        ("GET", "/v1/models", "ready", 200, logging.INFO),
        ("GET", "/docs", "ready", 200, logging.INFO),
    ],
)
@scene
async def test_what_supervisors_ask_all_the_time_is_logged_for_debugging_only(
    *, method: str, path: str, state: Any, status: int, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "jev_local.access")
    async with http(app_for(FakeEngine(state=Status(status=state)))) as client:
        assert (await client.request(method, path)).status_code == status
    assert [record.levelno for record in caplog.records if record.name == "jev_local.access"] == [level]


@scene
async def test_a_refused_key_is_logged_with_the_path_it_was_shown_at(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jev_local.access")
    async with http(app_for(FakeEngine()), key=SECRET) as client:
        await client.post("/v1/systemone", json=ONE_NOUL)
    assert " POST /v1/systemone 401 " in caplog.messages[-1]
    assert SECRET not in caplog.text


@scene
async def test_a_client_that_left_is_logged_as_499(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jev_local.access")
    engine = FakeEngine()
    engine.open.clear()
    wire = Wire(app_for(engine))
    wire.body()
    await engine.until("begin 0")
    wire.disconnect()
    await asyncio.wait_for(wire.task, 5)
    assert " 499 " in caplog.messages[-1]


@pytest.mark.parametrize("error", [ValueError(SECRET), KeyError(SECRET), ExceptionGroup(SECRET, [OSError(SECRET)])])
@scene
async def test_an_unforeseen_error_says_nothing(caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    async with http(app_for(FakeEngine(error=error))) as client:
        response = await client.post("/v1/systemone", json={**ONE_NOUL, "state": SECRET})
        assert (await client.get("/health")).status_code == 200
    assert response.status_code == 500
    assert response.json() == {
        "detail": {"error_type": "internal_error", "message": "The server failed to answer this request."}
    }
    assert SECRET not in response.text
    assert SECRET not in caplog.text
    (record,) = [record for record in caplog.records if record.name == "jev_local.web"]
    told = record.getMessage()
    assert response.headers["x-typesafe-request-id"] in told
    assert type(error).__name__ in told
    assert re.search(r"jev_local/web/\w+\.py:\d+ from \S*fakes/engine\.py:\d+", told)
    assert record.exc_info is None


@scene
async def test_a_response_that_breaks_off_is_not_ended_as_if_it_were_whole() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError(SECRET)

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/"}
    with pytest.raises(RuntimeError) as raised:
        await Frame(broken, routes=[])(scope, None, send)  # type: ignore[arg-type]
    assert SECRET not in str(raised.value)
    assert raised.value.__suppress_context__
    assert [message["type"] for message in sent] == ["http.response.start"]


@scene
async def test_a_key_in_a_header_reaches_no_error_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with http(app_for(FakeEngine(error=ValueError(KEY)))) as client:
        response = await client.post("/v1/systemone", json=ONE_NOUL, headers=AUTH)
    assert KEY not in response.text
    assert KEY not in caplog.text
