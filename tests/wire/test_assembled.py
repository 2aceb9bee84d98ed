"""Streams put together. That the documents are those of the real server, `tests/live/test_chat_documents.py` shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jev_local.core.chats import Endpoint
from jev_local.errors import BackendFault, InvalidRequest
from jev_local.wire import assembled
from jev_local.wire.assembled import Assembly

HEAD = {"created": 1, "id": "x", "model": "m", "system_fingerprint": "b1", "object": "chat.completion.chunk"}
USAGE = {"choices": [], **HEAD, "usage": {"completion_tokens": 2}, "timings": {"cache_n": 0}}


def delta(**said: Any) -> dict[str, Any]:
    return {"choices": [{"finish_reason": None, "index": 0, "delta": said}], **HEAD}


def end(reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"finish_reason": reason, "index": 0, "delta": {}}], **HEAD}


def text(index: int, said: str, reason: str | None = None, steps: Any = None, **more: Any) -> dict[str, Any]:
    logprobs = None if steps is None else {"content": steps}
    choice = {"text": said, "index": index, "logprobs": logprobs, "finish_reason": reason}
    return {"choices": [choice], "created": 1, "model": "m", "object": "text_completion", **more, "id": "x"}


def step(id_: int, told: str, own: str) -> dict[str, Any]:
    """The probabilities beside a token with the text `own` that was told as `told`."""
    return {
        "id": id_,
        "token": told,
        "bytes": list(told.encode()),
        "logprob": -0.5,
        "top_logprobs": [{"id": id_, "token": own, "bytes": list(own.encode()), "logprob": -0.5}],
    }


def made(endpoint: Endpoint, *chunks: dict[str, Any]) -> Any:
    assembly = Assembly(endpoint)
    for chunk in chunks:
        assembly.take(chunk, 100)
    return json.loads(assembly.document())


def test_a_chat() -> None:
    document = made(
        "chat", delta(role="assistant", content=None), delta(content="H"), delta(content="i 🐈"), end(), USAGE
    )
    assert document == {
        "choices": [{"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "Hi 🐈"}}],
        "created": 1,
        "model": "m",
        "system_fingerprint": "b1",
        "object": "chat.completion",
        "usage": {"completion_tokens": 2},
        "id": "x",
        "timings": {"cache_n": 0},
    }
    assert list(document) == [
        "choices",
        "created",
        "model",
        "system_fingerprint",
        "object",
        "usage",
        "id",
        "timings",
    ]


def test_thoughts_and_calls() -> None:
    calls = [
        [{"index": 0, "id": "a", "type": "function", "function": {"name": "f"}}],
        [{"index": 0, "function": {"arguments": '{"x":'}}],
        [{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}],
        [{"index": 0, "function": {"arguments": "1}"}}],
    ]
    chunks = [delta(reasoning_content="h"), delta(reasoning_content="m"), *(delta(tool_calls=call) for call in calls)]
    (choice,) = made("chat", *chunks, end("tool_calls"), USAGE)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": '{"x":1}'}, "id": "a"},
            {"type": "function", "function": {"name": "g", "arguments": "{}"}, "id": "b"},
        ],
    }


def test_several_texts() -> None:
    numbers = [{"usage": {"prompt_tokens": n}, "timings": {"cache_n": n}} for n in range(3)]
    chunks = [text(2, "c"), text(0, "a"), text(1, "b"), text(0, "A"), text(1, "", "stop", **numbers[1])]
    chunks += [text(2, "", "length", **numbers[2]), text(0, "", "stop", **numbers[0])]
    document = made("text", *chunks)
    told = [(choice["index"], choice["text"], choice["finish_reason"]) for choice in document["choices"]]
    assert told == [(0, "aA", "stop"), (1, "b", "stop"), (2, "c", "length")]
    assert (document["usage"], document["timings"]) == ({"prompt_tokens": 0}, {"cache_n": 0})
    assert document["object"] == "text_completion"


A, B = step(1, "a", "a"), step(2, "b", "b")


@pytest.mark.parametrize(
    ("reason", "steps", "kept"),
    [
        ("length", [A, B], 2),
        ("stop", [A, step(9, "", "")], 2),  # the end of a text is a token as well
        ("stop", [A, step(3, "", " the")], 1),
        ("stop", [A, step(3, "", "cities"), step(4, "cit", " of")], 1),
        ("stop", [A, step(3, "", "x"), step(4, "xy", "y"), B, step(3, "", "stop")], 4),
        ("stop", [A, step(3, "", "s"), step(3, "", "s"), step(4, "s", "x")], 2),
        ("length", [A, step(3, "", "cities")], 2),
        ("stop", [], 0),
    ],
)
def test_the_tokens_of_a_stop_string_are_left_out(reason: str, steps: list[dict[str, Any]], kept: int) -> None:
    usage = {"usage": {"prompt_tokens": 1}}
    chunks = [text(0, one["token"], None, [one]) for one in steps] + [text(0, "", reason, **usage)]
    (choice,) = made("text", *chunks)["choices"]
    assert choice["logprobs"] == ({"content": steps[:kept]} if kept else None)


def test_numbers_are_written_as_they_came() -> None:
    numbers = {"logprob": -3.4028234663852886e38, "a": 1e-05, "b": 0.1, "c": 1.0, "d": 5}
    odd = step(1, "a", "a") | numbers
    (choice,) = made("chat", delta(content="a") | _logprobs(odd), end("length"), USAGE)["choices"]
    assert json.dumps(choice["logprobs"]) == json.dumps({"content": [odd]})


def _logprobs(value: dict[str, Any]) -> dict[str, Any]:
    choice = {"finish_reason": None, "index": 0, "delta": {"content": "a"}, "logprobs": {"content": [value]}}
    return {"choices": [choice]}


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [delta(content="a")],
        [delta(content="a"), end()],  # without the usage that was asked for
        [delta(content="a"), USAGE],
        [USAGE],
    ],
)
def test_a_stream_that_breaks_off(chunks: list[dict[str, Any]]) -> None:
    with pytest.raises(BackendFault):
        made("chat", *chunks)


def test_a_text_that_breaks_off() -> None:
    with pytest.raises(BackendFault):
        made("text", text(0, "a"), text(1, "", "stop", usage={"a": 1}))


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"choices": None},
        {"choices": [1]},
        {"choices": [{"delta": {}}]},
        {"choices": [{"index": -1}]},
        {"choices": [{"index": 10**9}]},
        {"choices": [{"index": 0, "delta": {"content": 5}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 10**9}]}}]},
        {"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [{}]}}]},
    ],
    ids=str,
)
def test_nonsense(chunk: dict[str, Any]) -> None:
    with pytest.raises(BackendFault):
        Assembly("chat").take(chunk, 10)


def test_a_reply_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembled, "REPLY_LIMIT", 250)
    assembly = Assembly("chat")
    assembly.take(delta(content="a"), 100)
    assembly.take(delta(content="a"), 100)
    with pytest.raises(InvalidRequest, match="stream"):
        assembly.take(delta(content="a"), 100)
