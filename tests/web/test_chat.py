"""The relay of chats: what reaches the caller, and what becomes of a caller who leaves or does not read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fakes.asgi import KEY, Wire, app_for, http, scene
from fakes.engine import SAID, FakeEngine
from jev_local.errors import BackendFault, BackendUnavailable, Busy, ChatsOff, ChatTooLong, Declined
from jev_local.web import relay
from jev_local.wire.bodies import BodyLimits
from jev_local.wire.headers import DIAGNOSTICS

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello?"}]}
STREAM = HELLO | {"stream": True, "stream_options": {"include_usage": True}}
CACHED, PROCESSED = 34, 56
"""What the fake engine says of every prompt."""


@scene
async def test_a_chat_in_one_piece() -> None:
    engine = FakeEngine()
    async with http(app_for(engine)) as client:
        reply = await client.post(CHAT, json=HELLO)
    assert reply.status_code == 200
    document = reply.json()
    assert document["choices"][0]["message"] == {"role": "assistant", "content": "はい"}
    assert document["usage"]["prompt_tokens_details"] == {"cached_tokens": CACHED}
    assert document["timings"]["cache_n"] == CACHED
    assert document["timings"]["prompt_n"] == PROCESSED
    assert document["timings"]["prompt_ms"] == 7.5, "what was read before, and what llama-server read of it"
    assert [name for name in DIAGNOSTICS if name.lower() not in reply.headers] == []
    assert reply.headers["x-jev-local-cached-tokens"] == str(CACHED)
    assert reply.headers["x-typesafe-request-id"].startswith("req_")
    assert engine.chats[0].document == HELLO


@scene
async def test_a_stream_is_passed_on_as_it_is_but_for_the_numbers() -> None:
    async with http(app_for(FakeEngine())) as client:
        reply = await client.post(CHAT, json=STREAM)
        progress = await client.post(CHAT, json=STREAM | {"return_progress": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in reply.headers
    said = b"".join(SAID[1:3])  # type: ignore[arg-type]
    assert reply.content.startswith(said), "without the progress that nobody asked for"
    assert progress.content.startswith(b"".join(SAID[:3]))  # type: ignore[arg-type]
    assert reply.content.endswith(b"data: [DONE]\n\n")
    usage = json.loads(reply.content.split(b"\n\n")[2].removeprefix(b"data: "))
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == CACHED


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ChatsOff("Chats are not served here: no."), 404),
        (ChatTooLong(needed=10, available=5), 400),
        (Declined("It does not."), 400),
        (Busy("Later."), 529),
        (BackendUnavailable("Gone."), 503),
        (BackendFault("Nonsense."), 502),
    ],
)
@scene
async def test_an_error_before_the_answer_has_its_status(error: Exception, status: int) -> None:
    async with http(app_for(FakeEngine(error=error))) as client:
        for body in (HELLO, STREAM):
            reply = await client.post(CHAT, json=body)
            assert reply.status_code == status
            assert reply.json()["error"]["message"] == reply.json()["detail"]["message"] == str(error)


@scene
async def test_an_error_within_the_answer() -> None:
    said = (*SAID[:2], BackendFault("It broke off."))
    async with http(app_for(FakeEngine(said=said))) as client:
        whole = await client.post(CHAT, json=HELLO)
        stream = await client.post(CHAT, json=STREAM)
    assert (whole.status_code, whole.json()["error"]["message"]) == (502, "It broke off.")
    assert stream.status_code == 200
    last = stream.content.split(b"\n\n")[-2]
    assert json.loads(last.removeprefix(b"data: "))["error"]["message"] == "It broke off."


@scene
async def test_what_llama_server_says_of_its_own_error_is_not_said_twice() -> None:
    theirs = b'data: {"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}\n\n'
    async with http(app_for(FakeEngine(said=(*SAID[:2], theirs, BackendFault("500."))))) as client:
        stream = await client.post(CHAT, json=STREAM)
    assert stream.content == SAID[1] + theirs  # type: ignore[operator]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "messages"),
        (HELLO | {"n": 2}, "n"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/a"}}]}]}, ""),
    ],
)
@scene
async def test_a_request_that_is_not_relayed(body: dict[str, Any], said: str) -> None:
    engine = FakeEngine()
    async with http(app_for(engine)) as client:
        reply = await client.post(CHAT, json=body)
    assert reply.status_code in (400, 422)
    assert said in reply.json()["error"]["message"]
    assert engine.chats == []


@scene
async def test_the_door_is_that_of_decisions() -> None:
    async with http(app_for(FakeEngine()), key=None) as client:
        for path in (CHAT, "/v1/completions"):
            assert (await client.post(path, json=HELLO)).status_code == 403
            wrong = await client.post(path, json=HELLO, headers={"authorization": "Bearer no"})
            assert wrong.status_code == 401
            right = {"authorization": f"Bearer {KEY}", "content-type": "multipart/form-data; boundary=x"}
            assert (await client.post(path, content=b"x", headers=right)).status_code == 415
            foreign = await client.post(path, json=HELLO | {"model": "other"}, headers={"x-api-key": KEY})
            assert foreign.status_code in (400, 422)


@scene
async def test_chats_and_decisions_are_counted_apart() -> None:
    engine = FakeEngine()
    engine.open.clear()
    app = app_for(engine, max_in_flight=1)
    waiting = Wire(app, path=CHAT)
    waiting.body(HELLO)
    await engine.until("chat 0")
    async with http(app) as client:
        assert (await client.post(CHAT, json=HELLO)).status_code == 529
        asked = asyncio.create_task(client.post("/v1/systemone", json={"state": "x", "questions": {"q": NOUL}}))
        await engine.until("begin 0")
        engine.open.set()
        assert (await asked).status_code == 200
        await waiting.task
        assert waiting.status == 200
        assert (await client.post(CHAT, json=HELLO)).status_code == 200


NOUL = {"type": "noul", "instructions": "Is it?"}


@pytest.mark.parametrize("body", [HELLO, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("when", ["before", "within"])
@scene
async def test_a_caller_who_leaves_ends_the_work(body: dict[str, Any], when: str) -> None:
    engine = FakeEngine(said=(*SAID[:2], asyncio.Event()))
    if when == "before":
        engine.open.clear()
    app = app_for(engine, max_in_flight=1)
    wire = Wire(app, path=CHAT)
    wire.body(body)
    await engine.until("chat 0")
    if when == "within" and body is STREAM:
        while len(wire.sent) < 2:
            await asyncio.sleep(0)
    wire.disconnect()
    await wire.task
    assert engine.events[-1] == "chat cancelled 0"
    assert len(asyncio.all_tasks()) == 1
    engine.open.set()
    engine.said = SAID
    async with http(app) as client:
        assert (await client.post(CHAT, json=HELLO)).status_code == 200, "its place is free"


@scene
async def test_the_larger_limit_is_for_images_alone() -> None:
    engine = FakeEngine()
    body = {"messages": [{"role": "user", "content": '"assets"' + "x" * 500}], '"assets"': None, "assets": None}
    async with http(app_for(engine, limits=BodyLimits(size=400, with_assets=4000))) as client:
        assert (await client.post(CHAT, json=body)).status_code == 413
    assert engine.chats == []


@scene
async def test_of_several_prompts_llama_servers_own_counts_hold() -> None:
    async with http(app_for(FakeEngine(counted=False))) as client:
        document = (await client.post(CHAT, json=HELLO)).json()
        stream = await client.post(CHAT, json=STREAM)
    assert document["usage"]["prompt_tokens_details"]["cached_tokens"] == 8
    assert document["timings"]["prompt_ms"] == 2.5
    assert stream.content == b"".join(SAID[1:])  # type: ignore[arg-type]


@scene
async def test_a_caller_who_never_reads_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "UNREAD_SECONDS", 0.05)
    engine = FakeEngine()
    app = app_for(engine, max_in_flight=1)
    wire = Wire(app, path=CHAT)

    async def never(message: dict[str, Any]) -> None:
        if message.get("body"):
            await asyncio.Event().wait()

    wire.task.cancel()
    wire.task = asyncio.create_task(app(wire.scope, wire._receive, never))
    wire.body(STREAM)
    await wire.task
    async with http(app) as client:
        assert (await client.post(CHAT, json=HELLO)).status_code == 200


@scene
async def test_a_caller_who_does_not_read_keeps_no_slot() -> None:
    engine = FakeEngine()
    wire = Wire(app_for(engine), path=CHAT)
    reads = asyncio.Event()

    async def unread(message: dict[str, Any]) -> None:
        wire.sent.append(message)
        await reads.wait()

    wire._send = unread  # type: ignore[method-assign]
    wire.task.cancel()
    wire.task = asyncio.create_task(app_for(engine)(wire.scope, wire._receive, unread))
    wire.body(STREAM)
    await engine.until("chat done 0")
    assert not wire.task.done()
    reads.set()
    await wire.task
    assert b"".join(message.get("body", b"") for message in wire.sent).endswith(b"[DONE]\n\n")
