"""Hosts, keys and places."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI

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


@pytest.mark.parametrize(
    "path", ["/v1/systemone", "/v1/models", "/v1/cache", "/v1/nothing", "/v1/", "/v1", "/v1/systemone/"]
)
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
    await second.until_reading()

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


OURS = [
    "127.0.0.1:8080", "127.0.0.1", "127.8.0.1:1", "192.168.1.7:8080", "[::1]:8080", "[::1]", "[fe80::1]:80",
    "localhost", "localhost:8080", "LocalHost:8080", "localhost.", "jev.localhost:8080", "",
]  # fmt: skip
FOREIGN = [
    "evil.test", "evil.test:8080", "localhost.evil.test", "evillocalhost", "127.0.0.1.evil.test", "127.0.0.1@evil.test",
    "[evil.test]", "evil.test/127.0.0.1", "évil.test", "0x7f.1.evil.test:8080", "local host",
]  # fmt: skip


async def asked(app: FastAPI, host: str, *, path: str = "/v1/models", server: str = "127.0.0.1") -> Wire:
    """The answer to a request under `host`, which came in at the address `server`."""
    wire = Wire(app, path=path, method="GET", server=server)
    wire.scope["headers"].append((b"host", host.encode()))
    await asyncio.wait_for(wire.task, 5)
    return wire


@pytest.mark.parametrize("host", OURS)
@scene
async def test_this_machines_names(host: str) -> None:
    assert (await asked(app_for(FakeEngine()), host)).status == 200


@pytest.mark.parametrize("host", FOREIGN)
@scene
async def test_a_page_that_pointed_its_name_at_this_machine_is_refused(host: str) -> None:
    engine = FakeEngine()
    for path in ("/v1/models", "/v1/systemone", "/health", "/docs", "/nothing"):
        wire = await asked(app_for(engine), host, path=path)
        assert (wire.status, wire.received) == (403, 0)
        assert b"localhost" in wire.sent[1]["body"]
        assert b"evil.test" not in wire.sent[1]["body"]
        assert wire.headers["x-typesafe-request-id"].startswith("req_")
    assert engine.calls == []


@scene
async def test_every_host_header_counts_and_none_is_fine() -> None:
    app = app_for(FakeEngine())
    wire = Wire(app, path="/health", method="GET")
    await asyncio.wait_for(wire.task, 5)
    assert wire.status == 200
    wire = Wire(app, path="/health", method="GET")
    wire.scope["headers"] += [(b"host", b"localhost"), (b"host", b"evil.test")]
    await asyncio.wait_for(wire.task, 5)
    assert wire.status == 403


@pytest.mark.parametrize(
    ("listening", "server", "host", "status"),
    [
        # Other machines may come: then what they call this one is not for us to judge.
        ("0.0.0.0", "127.0.0.1", "evil.test", 200),
        ("0.0.0.0", "192.168.1.7", "box.lan", 200),
        ("::", "::1", "evil.test", 200),
        ("", "127.0.0.1", "evil.test", 200),
        ("192.168.1.7", "192.168.1.7", "evil.test", 200),
        ("box.lan", "192.168.1.7", "evil.test", 200),
        # Loopback by its other names. On Debian a machine's own name is one.
        ("::1", "::1", "evil.test", 403),
        ("127.0.0.2", "127.0.0.2", "evil.test", 403),
        ("localhost", "127.0.0.1", "evil.test", 403),
        ("My-Box", "127.0.1.1", "evil.test", 403),
        ("My-Box", "127.0.1.1", "my-box:8080", 200),
        ("My-Box", "127.0.1.1", "localhost:8080", 200),
    ],
)
@scene
async def test_only_loopback_is_guarded(listening: str, server: str, host: str, status: int) -> None:
    assert (await asked(app_for(FakeEngine(), host=listening), host, server=server)).status == status


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
