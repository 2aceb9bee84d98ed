"""Prompts with pictures, on their way to llama-server and in what comes back. The real one is in tests/live."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx
import pytest
import respx

from jev_local.backend.dialect import HALF_A_CHARACTER
from jev_local.backend.llama import LlamaBackend
from jev_local.core.pictures import Picture
from jev_local.core.spelling import Spelled
from jev_local.errors import BackendFault, BackendUnavailable, InvalidRequest, JevError, Misspelled, Withheld

T = TypeVar("T")
URL = "http://llama.test"
CAT, DOG = Picture(b"cat", 2, 1), Picture(b"dog", 1, 2)
PROMPT = Spelled(("a ", CAT, " b ", DOG, CAT), 9)


def reply(*, cached: int = 1, processed: int = 8) -> bytes:
    timings = {"cache_n": cached, "prompt_n": processed}
    event = {"index": 0, "stop": True, "id_slot": 0, "model": "m", "timings": timings}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def failure(kind: str, message: str = "state text", code: int = 400) -> dict[str, Any]:
    return {"error": {"code": code, "type": kind, "message": message}}


def play(
    call: Callable[[LlamaBackend], Awaitable[T]], *, markers: tuple[str, ...] = ("<m>",), **routes: httpx.Response
) -> tuple[T, list[httpx.Request]]:
    """What `call` gives, and what was sent for it. `markers`: what /props names, one after another."""

    async def scene() -> tuple[T, list[httpx.Request]]:
        backend = LlamaBackend(URL, timeout=5)
        named = [httpx.Response(200, json={"media_marker": marker}) for marker in markers]
        try:
            with respx.mock(base_url=URL, assert_all_called=False) as router:
                router.get("/props").mock(side_effect=[*named, *[named[-1]] * 5])
                for name, response in routes.items():
                    path = {"completion": "/completion", "count": "/v1/chat/completions/input_tokens"}[name]
                    router.post(path).mock(return_value=response)
                router.post("/apply-template").respond(json={"prompt": "<user><m><end>"})
                router.post("/tokenize").mock(
                    side_effect=lambda request: httpx.Response(
                        200, json={"tokens": [1] * (3 if json.loads(request.content)["add_special"] else 2)}
                    )
                )
                return await call(backend), [sent.request for sent in router.calls]
        finally:
            await backend.aclose()

    return asyncio.run(scene())


def evaluate(backend: LlamaBackend) -> Awaitable[Any]:
    return backend.evaluate(PROMPT, slot=0, reuse=True)


def test_a_prompt_is_sent_as_text_with_its_pictures_in_order() -> None:
    got, sent = play(evaluate, completion=httpx.Response(200, content=reply()))
    assert (got.cached_tokens, got.processed_tokens) == (1, 8)
    body = json.loads(sent[-1].content)
    cat, dog = (base64.b64encode(picture.data).decode() for picture in (CAT, DOG))
    assert body["prompt"] == [{"prompt_string": "a <m> b <m><m>", "multimodal_data": [cat, dog, cat]}]


@pytest.mark.parametrize("processed", [7, 9])
def test_another_length_than_foretold_is_a_misspelling(processed: int) -> None:
    with pytest.raises(Misspelled):
        play(evaluate, completion=httpx.Response(200, content=reply(processed=processed)))
    loose = Spelled(PROMPT.contents, None)
    got, _ = play(
        lambda backend: backend.evaluate(loose, slot=0, reuse=True),
        completion=httpx.Response(200, content=reply(processed=processed)),
    )
    assert got.processed_tokens == processed


@pytest.mark.parametrize(
    ("answer", "markers", "error"),
    [
        (httpx.Response(400, json=failure("invalid_request_error")), ("<m>",), InvalidRequest),
        (httpx.Response(400, json=failure("invalid_request_error")), ("<m>", "<n>"), BackendUnavailable),
        (httpx.Response(500, json=failure("server_error", code=500)), ("<m>",), BackendFault),
        (httpx.Response(500, json=failure("server_error", f"{HALF_A_CHARACTER} x", 500)), ("<m>",), Withheld),
    ],
    ids=["unreadable", "restarted meanwhile", "its own fault", "half a character"],
)
def test_whose_fault_a_refusal_is(answer: httpx.Response, markers: tuple[str, ...], error: type[JevError]) -> None:
    with pytest.raises(error) as raised:
        play(evaluate, markers=markers, completion=answer)
    assert type(raised.value) is error or error is BackendFault
    assert "state text" not in raised.value.message


def test_a_picture_is_counted_without_the_chat_around_it() -> None:
    got, requests = play(
        lambda backend: backend.picture_size(CAT), count=httpx.Response(200, json={"input_tokens": 151})
    )
    assert got == 151 - 3 - 2
    sent = json.loads(next(one for one in requests if "input_tokens" in one.url.path).content)
    ((part,),) = [message["content"] for message in sent["messages"]]
    assert part["image_url"]["url"].endswith(base64.b64encode(CAT.data).decode())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(500, json=failure("server_error", code=500)), InvalidRequest),
        (httpx.Response(404, json=failure("not_found_error", code=404)), BackendFault),
        (httpx.Response(200, json={"input_tokens": 2}), BackendFault),
        (httpx.Response(200, json={}), BackendFault),
    ],
)
def test_a_picture_that_cannot_be_counted(answer: httpx.Response, error: type[JevError]) -> None:
    with pytest.raises(error):
        play(lambda backend: backend.picture_size(CAT), count=answer)
