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
        strange = await client.get("/no%0d%0aFAKE%20LINE/" + "x" * 500)
        await client.get("/health", headers={"x-api-key": SECRET})
    lines = [record.getMessage() for record in caplog.records if record.name == "jev_local.access"]
    id_ = answered.headers["x-typesafe-request-id"]
    assert re.fullmatch(rf"{id_} POST /v1/systemone 200 \d+\.\dms cached=34 processed=56", lines[0])
    assert re.fullmatch(rf"{refused.headers['x-typesafe-request-id']} POST /v1/systemone 400 \d+\.\dms", lines[1])
    assert lines[2].startswith(f"{strange.headers['x-typesafe-request-id']} GET /no??FAKE?LINE/xxx")
    assert len(lines[2]) < 200
    assert len(lines) == 4
    assert SECRET not in caplog.text
    assert KEY not in caplog.text


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
        await Frame(broken)(scope, None, send)  # type: ignore[arg-type]
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
