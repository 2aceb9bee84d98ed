"""A client that goes away: its work ends, completely, before its place is given to another."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from fakes.asgi import KEY, ONE_NOUL, Wire, app_for, http, scene
from fakes.engine import FakeEngine
from fakes.served import served
from jev_local.errors import BackendUnavailable
from jev_local.web.presence import ClientGone, while_present


async def present() -> dict[str, str]:
    await asyncio.Event().wait()
    raise AssertionError


@scene
async def test_what_the_work_returns_or_raises() -> None:
    async def fine() -> int:
        return 7

    async def broken() -> int:
        raise ValueError("no")

    assert await while_present(present, fine()) == 7  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no"):
        await while_present(present, broken())  # type: ignore[arg-type]
    assert len(asyncio.all_tasks()) == 1


@scene
async def test_messages_that_are_no_goodbye() -> None:
    messages = iter(["http.request", "http.request", "http.disconnect"])

    async def receive() -> dict[str, str]:
        return {"type": next(messages)}

    with pytest.raises(ClientGone):
        await while_present(receive, asyncio.Event().wait())  # type: ignore[arg-type]


@scene
async def test_a_finished_answer_counts_even_when_the_client_left_at_the_same_moment() -> None:
    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def fine() -> int:
        return 7

    assert await while_present(gone, fine()) == 7  # type: ignore[arg-type]


@scene
async def test_work_that_was_stopped_from_below_is_not_a_cancelled_handler() -> None:
    async def stopped() -> int:
        raise asyncio.CancelledError

    with pytest.raises(BackendUnavailable):
        await while_present(present, stopped())  # type: ignore[arg-type]


@scene
async def test_a_cancelled_handler_takes_its_work_with_it() -> None:
    engine = FakeEngine()
    engine.open.clear()
    handler = asyncio.create_task(
        while_present(present, engine.decide(state="", questions=()))  # type: ignore[arg-type]
    )
    await engine.until("begin 0")
    handler.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handler
    assert engine.events == ["begin 0", "cancelled 0", "left 0"]
    assert len(asyncio.all_tasks()) == 1


@scene
async def test_the_place_is_held_until_the_cancelled_work_has_ended() -> None:
    engine = FakeEngine()
    engine.open.clear()
    engine.leaving.clear()
    app = app_for(engine, max_in_flight=1)
    wire = Wire(app)
    wire.body()
    await engine.until("begin 0")
    wire.disconnect()
    await engine.until("cancelled 0")

    async with http(app) as client:
        assert (await client.post("/v1/systemone", json=ONE_NOUL)).status_code == 529
        assert not wire.task.done()
        engine.leaving.set()
        await asyncio.wait_for(wire.task, 5)
        assert engine.events == ["begin 0", "cancelled 0", "left 0"]
        engine.open.set()
        assert (await client.post("/v1/systemone", json=ONE_NOUL)).status_code == 200


@scene
async def test_a_server_that_stops_ends_the_work_and_says_so() -> None:
    engine = FakeEngine()
    engine.open.clear()
    wire = Wire(app_for(engine))
    wire.body()
    await engine.until("begin 0")
    wire.task.cancel()
    await asyncio.wait_for(wire.task, 5)
    assert engine.events == ["begin 0", "cancelled 0", "left 0"]
    assert wire.status == 503
    assert "retry-after" in wire.headers
    assert b"stopping" in wire.sent[1]["body"]


@scene
async def test_a_client_that_leaves_while_sending() -> None:
    engine = FakeEngine()
    wire = Wire(app_for(engine))
    wire.chunk(b'{"state":')
    wire.disconnect()
    await asyncio.wait_for(wire.task, 5)
    assert engine.calls == []


def test_a_socket_closed_for_real() -> None:
    engines: list[FakeEngine] = []
    begun, left = threading.Event(), threading.Event()

    class Told(FakeEngine):
        async def _note(self, event: str) -> None:
            await super()._note(event)
            if event == "begin 0":
                begun.set()
            if event == "left 0":
                left.set()

    def make() -> object:
        engines.append(Told())
        engines[0].open.clear()
        return app_for(engines[0], max_in_flight=1)

    with served(make) as url:  # type: ignore[arg-type]
        host, port = url.removeprefix("http://").split(":")
        body = b'{"state":"s","questions":{"q":{"type":"noul","instructions":"x"}}}'
        head = f"POST /v1/systemone HTTP/1.1\r\nHost: {host}\r\nX-API-Key: {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port))) as client:
            client.sendall(head.encode() + body)
            assert begun.wait(5)
            assert not left.is_set()
            closed = time.monotonic()
        assert left.wait(5), "the work went on for a client that had gone"
        assert time.monotonic() - closed < 1.0
        assert engines[0].events == ["start", "begin 0", "cancelled 0", "left 0"]


def test_an_oversized_body_over_a_real_socket_gets_its_answer() -> None:
    import httpx

    with served(lambda: app_for(FakeEngine())) as url, httpx.Client(trust_env=False) as client:

        def chunks() -> object:
            for _ in range(26):
                yield b" " * 2**20

        for content in (b" " * (26 * 2**20), chunks()):
            response = client.post(f"{url}/v1/systemone", content=content, headers={"x-api-key": KEY})  # type: ignore[arg-type]
            assert response.status_code == 413
        assert client.post(f"{url}/v1/systemone", json=ONE_NOUL, headers={"x-api-key": KEY}).status_code == 200
