"""What a misbehaving inference server turns into. The well-behaved one is tested for real in tests/live."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import respx

from jev_local.backend.llama import LlamaBackend
from jev_local.backend.port import Completion, Saved
from jev_local.errors import (
    BackendFault,
    BackendLoading,
    BackendTimeout,
    BackendUnavailable,
    JevError,
    NotSupported,
    PromptTooLong,
)

URL = "http://llama.test"
PROMPT = (1, 2, 3, 4)


def line(event: object) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def probabilities(top: list[tuple[object, object]]) -> dict[str, object]:
    return {
        "index": 0,
        "stop": False,
        "completion_probabilities": [{"top_probs": [{"id": i, "prob": p} for i, p in top]}],
    }


def final(**changes: object) -> dict[str, object]:
    good = {"index": 0, "stop": True, "id_slot": 0, "model": "m", "timings": {"cache_n": 1, "prompt_n": 3}}
    return good | changes


GOOD = [probabilities([(7, 0.75), (8, 0.25)]), final()]
PROGRESS = {"index": 0, "stop": False, "id_slot": -1, "prompt_progress": {"total": 4, "processed": 4}}


def complete(body: bytes, *, status: int = 200) -> list[Completion]:
    async def play() -> list[Completion]:
        backend = LlamaBackend(URL, timeout=5)
        try:
            with respx.mock(base_url=URL) as router:
                router.post("/completion").respond(status, content=body)
                return await ask(backend)
        finally:
            await backend.aclose()

    return asyncio.run(play())


async def ask(backend: LlamaBackend) -> list[Completion]:
    return await backend.complete([PROMPT], slot=0, labels=[7, 8], bias=30.0, runners_up=4, reuse=True)


def test_a_good_reply() -> None:
    (got,) = complete(line(PROGRESS) + b"".join(map(line, GOOD)) + b"data: [DONE]\n\n")
    assert got == Completion({7: 0.75, 8: 0.25}, 1, 3, alias="m")


def test_a_token_that_is_only_part_of_a_character_leaves_no_distribution_and_is_no_fault() -> None:
    assert complete(line(final())) == [Completion({}, 1, 3, alias="m")]


def test_line_separators_inside_a_token_do_not_cut_an_event() -> None:
    event = probabilities([(7, 0.75), (8, 0.25)]) | {"content": "\u2028\u0085"}
    raw = b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"
    assert complete(raw + line(final()))[0].top == {7: 0.75, 8: 0.25}


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        (b"", BackendFault, "ended before the answer"),
        (line(GOOD[0]), BackendFault, "ended before the answer"),
        (line(GOOD[0]) + line(final(id_slot=3)), BackendFault, "another slot"),
        (line(GOOD[0]) + line(final(index=5)), BackendFault, "not sent"),
        (line(GOOD[0]) + line(final(timings={"cache_n": 1, "prompt_n": 1})), BackendFault, "do not add up"),
        (line(GOOD[0]) + line(final(timings={})), BackendFault, "do not add up"),
        (line(GOOD[0]) + line(final(timings=7)), BackendFault, "wrong type"),
        (b'data: {"index": 0, "comp', BackendFault, "ended before the answer"),
        (b'data: {"index": 0, "comp\n\n', BackendFault, "not valid JSON"),
        (b"data: [1]\n\n", BackendFault, "not an object"),
        (b"data: \xff\xfe\n\n", BackendFault, "not valid JSON"),
        (line(probabilities([(7, float("nan"))])) + line(final()), BackendFault, "not a number"),
        (line(probabilities([(7, "0.5")])) + line(final()), BackendFault, "not a number"),
        (line(probabilities([("7", 0.5)])) + line(final()), BackendFault, "not a number"),
        (line({"index": 0, "completion_probabilities": [{}]}) + line(final()), BackendFault, "exactly one token"),
        (line({"index": 0, "completion_probabilities": 5}) + line(final()), BackendFault, "exactly one token"),
        (line({"error": {"code": 500, "type": "server_error", "message": "state text"}}), BackendFault, "server_error"),
        (line({"error": "boom"}), BackendFault, "without a reason"),
        (line({"error": {"code": "x"}}), BackendFault, "no type"),
        (b"error: {}\n\n", BackendFault, "no type"),
        (line({"error": {"code": 500, "type": "SECRET /tmp/path"}}), BackendFault, r"answered 500 \(no type\)"),
        (line({"error": {"code": 500, "type": "x" * 1000}}), BackendFault, r"answered 500 \(no type\)"),
        (line(probabilities([(7, 10**400)])) + line(final()), BackendFault, "not a number"),
        (line(probabilities([(7, 1e308), (8, 1e308)])) + line(final()), BackendFault, "not a number"),
        (line(probabilities([(7, -0.5)])) + line(final()), BackendFault, "not a number"),
        (b"data: " + b"[" * 100_000 + b"\n\n", BackendFault, "not valid JSON"),
        (b"data: " + b"x" * (17 * 1024 * 1024), BackendFault, "larger than any answer"),
    ],
)
def test_nonsense_in_the_stream_is_the_servers_fault(body: bytes, error: type[JevError], says: str) -> None:
    with pytest.raises(error, match=says) as raised:
        complete(body)
    assert "state text" not in raised.value.message


TOO_LONG = {"type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 8192}


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, TOO_LONG, PromptTooLong),
        (400, {"type": "exceed_context_size_error"}, BackendFault),
        (400, {"type": "exceed_context_size_error", "n_prompt_tokens": 1e308 * 10, "n_ctx": 5}, BackendFault),
        (400, {"type": "invalid_request_error"}, BackendFault),
        (500, {"type": "server_error"}, BackendFault),
        (503, {"type": "unavailable_error"}, BackendLoading),
        (401, {"type": "authentication_error"}, BackendFault),
        (400, {"type": "unavailable_error"}, BackendLoading),
        (501, {"type": "not_supported_error"}, NotSupported),
    ],
)
def test_error_replies(status: int, error: dict[str, Any], kind: type[JevError]) -> None:
    body = json.dumps({"error": {"code": status, "message": "quotes the state"} | error}).encode()
    for answer in (lambda: complete(body, status=status), lambda: complete(b"data: " + body + b"\n\n")):
        with pytest.raises(kind) as raised:
            answer()
        assert "quotes" not in raised.value.message


@pytest.mark.parametrize("body", [b"<html>", b"[" * 100_000, b"[]", b"null", b'{"error": 7}'])
def test_an_error_page_that_is_none_of_the_servers(body: bytes) -> None:
    with pytest.raises(BackendFault, match="answered 502 without a reason"):
        complete(body, status=502)
    with pytest.raises(BackendLoading):
        complete(body, status=503)


@pytest.mark.parametrize(
    ("path", "reply", "call"),
    [
        ("/tokenize", {"tokens": [1, -1]}, lambda b: b.tokenize(["a", "b"], special=False)),
        ("/tokenize", {"tokens": [1.5, -1]}, lambda b: b.tokenize(["a"], special=False)),
        ("/tokenize", {}, lambda b: b.tokenize(["a"], special=False)),
        ("/tokenize", [], lambda b: b.tokenize(["a"], special=False)),
        ("/apply-template", {}, lambda b: b.apply_template([])),
        ("/apply-template", 7, lambda b: b.apply_template([])),
        ("/props", [], lambda b: b.instance()),
        ("/props", "x", lambda b: b.describe()),
        ("/props", {}, lambda b: b.describe()),
        ("/slots/1", {"n_saved": 5}, lambda b: b.save(1, "a.slot")),
        ("/slots/1", {"n_saved": "5", "n_written": 9}, lambda b: b.save(1, "a.slot")),
        ("/slots/1", {"n_saved": 5, "n_written": -9}, lambda b: b.save(1, "a.slot")),
        ("/slots/1", [], lambda b: b.save(1, "a.slot")),
        ("/slots/1", {}, lambda b: b.restore(1, "a.slot")),
        ("/slots/1", {"n_restored": True}, lambda b: b.restore(1, "a.slot")),
    ],
)
def test_small_replies_that_make_no_sense(
    path: str, reply: object, call: Callable[[LlamaBackend], Awaitable[object]]
) -> None:
    async def play() -> None:
        backend = LlamaBackend(URL, timeout=5)
        try:
            with respx.mock(base_url=URL) as router:
                router.route(path__regex=f"{path}|/v1/models").respond(200, json=reply)
                await call(backend)
        finally:
            await backend.aclose()

    with pytest.raises(BackendFault, match="makes no sense"):
        asyncio.run(play())


def slots(call: Callable[[LlamaBackend], Awaitable[object]], reply: object, *, status: int = 200) -> tuple[Any, Any]:
    """What `call` gives, and the request that it made."""

    async def play() -> tuple[object, object]:
        backend = LlamaBackend(URL, timeout=5)
        try:
            with respx.mock(base_url=URL) as router:
                route = router.post(path__regex="/slots/.*|/completion")
                route.respond(status, **{"content" if isinstance(reply, bytes) else "json": reply})  # type: ignore[arg-type]
                return await call(backend), route.calls.last.request
        finally:
            await backend.aclose()

    return asyncio.run(play())


def test_a_slot_is_saved_restored_and_erased_by_name() -> None:
    got, sent = slots(lambda b: b.save(3, "a.slot"), {"n_saved": 5, "n_written": 1234, "id_slot": 3})
    assert got == Saved(tokens=5, size=1234)
    assert (sent.url.path, sent.url.query, json.loads(sent.content)) == (
        "/slots/3",
        b"action=save",
        {"filename": "a.slot"},
    )
    got, sent = slots(lambda b: b.restore(2, "a.slot"), {"n_restored": 5, "n_read": 1234})
    assert (got, sent.url.query, json.loads(sent.content)) == (5, b"action=restore", {"filename": "a.slot"})
    _, sent = slots(lambda b: b.erase(0), {"n_erased": 5})
    assert (sent.url.path, sent.url.query) == ("/slots/0", b"action=erase")


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [(501, "not_supported_error", NotSupported), (400, "invalid_request_error", BackendFault)],
)
def test_a_slot_that_cannot_be_saved_or_restored(status: int, kind: str, error: type[JevError]) -> None:
    reply = {"error": {"code": status, "type": kind, "message": "Unable to restore /tmp/path"}}
    for call in (lambda b: b.save(0, "a.slot"), lambda b: b.restore(0, "a.slot"), lambda b: b.erase(0)):
        with pytest.raises(error) as raised:
            slots(call, reply, status=status)
        assert "path" not in raised.value.message


def test_what_is_evaluated_is_not_read() -> None:
    got, sent = slots(lambda b: b.evaluate(PROMPT, slot=0, reuse=False), line(final()))
    assert got == Completion({}, 1, 3, alias="m")
    body = json.loads(sent.content)
    assert (body["prompt"], body["n_predict"], body["cache_prompt"]) == ([list(PROMPT)], 1, False)
    assert "n_probs" not in body
    assert "logit_bias" not in body


class Scripted:
    """A TCP server that reads a request and then does as told, once per connection."""

    def __init__(self, *scripts: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> None:
        self._scripts = list(scripts)
        self.connections = 0

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        script = self._scripts.pop(0)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await script(writer)
        finally:
            writer.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def break_off(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"20\r\ndata: {")
    await writer.drain()


async def dawdle(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    await writer.drain()
    await asyncio.sleep(5)


async def tokens(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n" + b'{"tokens":[5,-1]}')
    await writer.drain()


async def bad_gzip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello")
    await writer.drain()


def scripted(
    scripts: tuple[Callable[[asyncio.StreamWriter], Awaitable[None]], ...],
    call: Callable[[LlamaBackend], Awaitable[object]],
    *,
    timeout: float = 5,
) -> tuple[object, int]:
    async def play() -> tuple[object, int]:
        server = Scripted(*scripts)
        async with server as url:
            backend = LlamaBackend(url, timeout=timeout)
            try:
                return await call(backend), server.connections
            finally:
                await backend.aclose()

    return asyncio.run(play())


@pytest.mark.parametrize("script", [hang_up, break_off])
def test_a_connection_that_breaks_means_unavailable(script: Callable[..., Awaitable[None]]) -> None:
    with pytest.raises(BackendUnavailable, match="closed the connection"):
        scripted((script,), ask)


def test_a_reply_that_cannot_be_unpacked_is_the_servers_fault() -> None:
    for call in (ask, lambda b: b.tokenize(["x"], special=False), lambda b: b.instance()):
        with pytest.raises(BackendFault, match="makes no sense"):
            scripted((bad_gzip,), call)


def test_a_forward_pass_is_never_sent_twice() -> None:
    async def play() -> int:
        server = Scripted(hang_up, hang_up)
        async with server as url:
            backend = LlamaBackend(url, timeout=5)
            with pytest.raises(BackendUnavailable):
                await ask(backend)
            await backend.aclose()
        return server.connections

    assert asyncio.run(play()) == 1


def test_a_server_that_says_nothing_times_out() -> None:
    with pytest.raises(BackendTimeout, match=r"within 0\.3 s"):
        scripted((dawdle,), ask, timeout=0.3)


def test_a_small_question_is_asked_once_more_when_a_kept_connection_was_closed() -> None:
    got, connections = scripted((hang_up, tokens), lambda b: b.tokenize(["x"], special=False))
    assert (got, connections) == ([(5,)], 2)


def test_nobody_listens() -> None:
    async def play() -> None:
        backend = LlamaBackend("http://127.0.0.1:1", timeout=5)
        try:
            await backend.instance()
        finally:
            await backend.aclose()

    with pytest.raises(BackendUnavailable, match="not reachable"):
        asyncio.run(play())


def test_a_proxy_in_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    got, _ = scripted((tokens,), lambda b: b.tokenize(["x"], special=False))
    assert got == [(5,)]
