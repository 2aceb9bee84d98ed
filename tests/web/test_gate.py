"""Keys and places."""

from __future__ import annotations

import asyncio

import pytest

from fakes.asgi import ONE_NOUL, Wire, app_for, http, scene
from fakes.engine import FakeEngine
from jev_local.errors import MissingKey, WrongKey
from jev_local.web.gate import check_key

KEY = "clé-鍵".encode()

Headers = list[tuple[bytes, bytes]]


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer " + KEY)],
        [(b"authorization", b"bearer   " + KEY + b" ")],
        [(b"x-api-key", KEY)],
        [(b"authorization", b"Basic abc"), (b"x-api-key", KEY)],
        [(b"authorization", b"Bearer other"), (b"x-api-key", KEY)],
        [(b"x-api-key", b"other"), (b"x-api-key", KEY)],
    ],
)
def test_the_key_in_either_header(headers: Headers) -> None:
    check_key(headers, KEY)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Basic " + KEY)],
        [(b"authorization", KEY)],
        [(b"x-api-key", b" ")],
        [(b"cookie", b"x-api-key=" + KEY)],
    ],
)
def test_no_key(headers: Headers) -> None:
    with pytest.raises(MissingKey):
        check_key(headers, KEY)


@pytest.mark.parametrize("shown", [b"other", KEY[:-1], KEY + b"x", KEY.upper(), b"\xff\x00"])
def test_another_key(shown: bytes) -> None:
    for headers in ([(b"authorization", b"Bearer " + shown)], [(b"x-api-key", shown)]):
        with pytest.raises(WrongKey) as refused:
            check_key(headers, KEY)
        assert "clé" not in refused.value.message


@pytest.mark.parametrize("path", ["/v1/systemone", "/v1/models", "/v1/nothing", "/v1/", "/v1", "/v1/systemone/"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@scene
async def test_everything_under_v1_wants_it(method: str, path: str) -> None:
    async with http(app_for(FakeEngine()), key=None) as client:
        missing = await client.request(method, path)
        wrong = await client.request(method, path, headers={"x-api-key": "other"})
    assert (missing.status_code, wrong.status_code) == (403, 401)
    for response in (missing, wrong):
        assert response.json()["detail"]["error_type"] == "authentication_error"
        assert response.headers["x-typesafe-request-id"].startswith("req_")


@pytest.mark.parametrize("path", ["/health", "/ready", "/docs", "/openapi.json"])
@scene
async def test_the_rest_does_not(path: str) -> None:
    async with http(app_for(FakeEngine()), key=None) as client:
        assert (await client.get(path)).status_code == 200
        assert (await client.get("/nothing")).status_code == 404


@scene
async def test_an_empty_key_lets_everyone_in() -> None:
    async with http(app_for(FakeEngine(), key=""), key=None) as client:
        bare = await client.post("/v1/systemone", json=ONE_NOUL)
        keyed = await client.post("/v1/systemone", json=ONE_NOUL, headers={"authorization": "Bearer whatever"})
    assert (bare.status_code, keyed.status_code) == (200, 200)


@scene
async def test_no_body_is_read_for_a_stranger() -> None:
    wire = Wire(app_for(FakeEngine()), headers={"authorization": "Bearer other"})
    await asyncio.wait_for(wire.task, 5)
    assert (wire.status, wire.received) == (401, 0)


@scene
async def test_one_too_many_is_sent_away_unread_and_places_come_back() -> None:
    engine = FakeEngine()
    engine.open.clear()
    app = app_for(engine, max_in_flight=2)

    first, second = Wire(app), Wire(app)
    first.body()
    await engine.until("begin 0")
    second.chunk(b'{"state":')  # a place is held from before the body has come
    while second.received == 0:
        await asyncio.sleep(0)

    third = Wire(app)
    third.body()
    await asyncio.wait_for(third.task, 5)
    assert (third.status, third.received) == (529, 0)
    assert int(third.headers["retry-after"]) >= 1
    assert int(third.headers["retry-after-ms"]) >= 1
    assert b"system_overloaded" in third.sent[1]["body"]

    engine.open.set()
    await asyncio.wait_for(first.task, 5)
    fourth = Wire(app)
    fourth.body()
    await asyncio.wait_for(fourth.task, 5)
    assert (first.status, fourth.status) == (200, 200)

    second.disconnect()
    await asyncio.wait_for(second.task, 5)
    async with http(app) as client:
        both = await asyncio.gather(*(client.post("/v1/systemone", json=ONE_NOUL) for _ in range(2)))
    assert [response.status_code for response in both] == [200, 200]


@pytest.mark.parametrize("error", [ValueError("x"), None])
@scene
async def test_a_place_comes_back_whatever_happens(error: Exception | None) -> None:
    async with http(app_for(FakeEngine(error=error), max_in_flight=1)) as client:
        for _ in range(3):
            assert (await client.post("/v1/systemone", json=ONE_NOUL)).status_code == (500 if error else 200)
            assert (await client.post("/v1/systemone", content=b"x")).status_code == 422


@scene
async def test_models_and_health_need_no_place() -> None:
    engine = FakeEngine()
    engine.open.clear()
    app = app_for(engine, max_in_flight=1)
    wire = Wire(app)
    wire.body()
    await engine.until("begin 0")
    async with http(app) as client:
        for path in ("/v1/models", "/health", "/ready"):
            assert (await client.get(path)).status_code == 200
    wire.disconnect()
    await asyncio.wait_for(wire.task, 5)
