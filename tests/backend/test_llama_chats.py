"""Chats as llama-server is asked to answer them, and what it may say instead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import respx

from jev_local.backend.llama import LlamaBackend
from jev_local.core.chats import Chat
from jev_local.core.events import Event
from jev_local.errors import (
    BackendFault,
    BackendLoading,
    BackendTimeout,
    BackendUnavailable,
    Declined,
    JevError,
    PromptTooLong,
)

URL = "http://llama.test"
DOCUMENT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi?"}], "max_tokens": 9, "n_predict": 8, "x": [1]}
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def relayed(reply: httpx.Response | Exception, **fields: Any) -> tuple[list[Event], dict[str, Any]]:
    """The events, and what was sent."""

    async def scene() -> tuple[list[Event], dict[str, Any]]:
        backend = LlamaBackend(URL, timeout=1)
        try:
            with respx.mock(base_url=URL) as router:
                route = router.post("/v1/chat/completions")
                route.mock(side_effect=reply) if isinstance(reply, Exception) else route.mock(return_value=reply)
                chat = Chat("chat", DOCUMENT)
                options = {"slot": 5, "reuse": True, "max_tokens": 7, **fields}
                async with backend.relay(chat, DOCUMENT, **options) as events:
                    found = [event async for event in events]
                return found, json.loads(route.calls[0].request.content)
        finally:
            await backend.aclose()

    return asyncio.run(scene())


def test_what_is_sent_and_what_comes_back() -> None:
    events, sent = relayed(httpx.Response(200, content=CHUNK + DONE))
    assert [event.raw for event in events] == [CHUNK, DONE]
    assert sent == {
        "messages": DOCUMENT["messages"],
        "x": [1],
        "id_slot": 5,
        "cache_prompt": True,
        "stream": True,
        "return_progress": True,
        "stream_options": {"include_usage": True},
        "echo": True,
        "max_tokens": 7,
    }


def refusal(status: int, kind: str, message: str, **fields: Any) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": status, "type": kind, "message": message, **fields}})


@pytest.mark.parametrize(
    ("reply", "error", "says"),
    [
        (refusal(400, "invalid_request_error", "Failed to\nparse it"), Declined, "request: Failed to parse it"),
        (refusal(500, "server_error", "[json.exception.type_error.302] no"), Declined, "type_error"),
        (refusal(400, "invalid_request_error", "x" * 900), Declined, "x…"),
        (refusal(500, "server_error", "Compute error."), BackendFault, "answered 500"),
        (refusal(503, "unavailable_error", "Loading model"), BackendLoading, "still loading"),
        (
            refusal(400, "exceed_context_size_error", "too long", n_prompt_tokens=9, n_ctx=8),
            PromptTooLong,
            "9 tokens",
        ),
        (httpx.Response(502, content=b"<html>"), BackendFault, "without a reason"),
        (httpx.Response(200, content=CHUNK + b"data: {no"), BackendFault, "broke off"),
        (httpx.Response(200, content=b"data: nonsense\n\n"), BackendFault, "no JSON"),
        (
            httpx.Response(
                200, content=CHUNK + b'data: {"error":{"code":500,"message":"x","type":"server_error"}}\n\n'
            ),
            BackendFault,
            "answered 500",
        ),
        (httpx.ConnectError("no"), BackendUnavailable, "not reachable"),
        (httpx.RemoteProtocolError("no"), BackendUnavailable, "closed the connection"),
        (httpx.ReadTimeout("no"), BackendTimeout, "within 1 s"),
    ],
)
def test_what_goes_wrong(reply: httpx.Response | Exception, error: type[JevError], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        relayed(reply)
    assert type(caught.value) is error or error is BackendFault
    assert len(caught.value.message) < 600


def test_an_error_of_the_reader_is_not_the_servers() -> None:
    async def scene() -> None:
        backend = LlamaBackend(URL, timeout=1)
        with respx.mock(base_url=URL) as router:
            router.post("/v1/chat/completions").mock(return_value=httpx.Response(200, content=CHUNK + DONE))
            async with backend.relay(Chat("chat", DOCUMENT), DOCUMENT, slot=0, reuse=True, max_tokens=1) as events:
                await anext(events)
                raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        asyncio.run(scene())


def test_a_stream_that_is_left_is_closed() -> None:
    closed = asyncio.Event()

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield CHUNK
                await asyncio.sleep(0)

        async def aclose(self) -> None:
            closed.set()

    async def scene() -> None:
        backend = LlamaBackend(URL, timeout=1)
        with respx.mock(base_url=URL) as router:
            router.post("/v1/chat/completions").mock(return_value=httpx.Response(200, stream=Endless()))
            async with backend.relay(Chat("chat", DOCUMENT), DOCUMENT, slot=0, reuse=True, max_tokens=1) as events:
                await anext(events)
        assert closed.is_set()

    asyncio.run(scene())


def test_what_a_template_says_no_to_is_the_callers() -> None:
    async def scene() -> None:
        backend = LlamaBackend(URL, timeout=1)
        with respx.mock(base_url=URL) as router:
            route = router.post("/apply-template")
            route.mock(return_value=refusal(500, "server_error", "Conversation roles must alternate"))
            with pytest.raises(Declined, match="must alternate"):
                await backend.render(DOCUMENT)
            route.mock(return_value=httpx.Response(200, json={"prompt": "<user>Hi?"}))
            assert await backend.render(DOCUMENT) == "<user>Hi?"
            assert json.loads(route.calls[-1].request.content) == DOCUMENT

    asyncio.run(scene())
