"""llama-server's streams, cut at any place, come out as the same events and the same bytes."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev_local.core.events import EVENT_LIMIT, Event, Splitter
from jev_local.errors import BackendFault

PROGRESS = {
    "choices": [{"finish_reason": None, "index": 0, "delta": {"role": "assistant", "content": None}}],
    "prompt_progress": {"total": 9, "cache": 0, "processed": 0, "time_ms": 0},
}
WORD = {"choices": [{"finish_reason": None, "index": 0, "delta": {"content": "a\u2028b\u0085c\r\n\n d"}}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 9}, "timings": {"cache_n": 0}}
ERROR = {"error": {"code": 500, "message": "no", "type": "server_error"}}


def sse(value: object) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


STREAM = b"".join((sse(PROGRESS), b":\n\n", sse(WORD), sse(USAGE), sse(ERROR), b"data: [DONE]\n\n"))
KINDS = ["progress", "comment", "chunk", "chunk", "error", "done"]


def split(*chunks: bytes) -> list[Event]:
    splitter = Splitter()
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    splitter.finish()
    return events


def one(value: object) -> Event:
    (event,) = split(sse(value))
    return event


def test_a_stream_at_once() -> None:
    events = split(STREAM)
    assert [event.kind for event in events] == KINDS
    assert [event.counted for event in events] == [False, False, False, True, False, False]
    assert [event.value for event in events] == [PROGRESS, None, WORD, USAGE, ERROR["error"], None]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_where_it_is_cut_makes_no_difference(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    events = split(*(STREAM[begin:end] for begin, end in pairwise(places)))
    assert b"".join(event.raw for event in events) == STREAM
    assert events == split(STREAM)


def test_byte_by_byte() -> None:
    assert split(*(bytes([byte]) for byte in STREAM)) == split(STREAM)


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        ({"delta": {"role": "assistant", "content": None}}, "progress"),
        ({"delta": {"content": "a"}}, "chunk"),
        ({"delta": {"tool_calls": [{"index": 0}]}}, "chunk"),
        ({"delta": {"reasoning_content": "a"}}, "chunk"),
        ({"text": ""}, "progress"),
        ({"text": "a"}, "chunk"),
        ({"text": "", "finish_reason": "stop"}, "chunk"),
    ],
)
def test_progress_that_says_something_is_no_mere_progress(choice: dict[str, object], kind: str) -> None:
    assert one({"choices": [choice], "prompt_progress": {}}).kind == kind
    assert one({"choices": [choice]}).kind == "chunk"


@pytest.mark.parametrize(("name", "counted"), [("usage", True), ("timings", True), ("other", False)])
def test_what_has_numbers(name: str, counted: bool) -> None:
    assert one({"choices": [], name: {"a": 1}}).counted is counted
    assert one({"choices": [], name: None}).counted is False


@pytest.mark.parametrize(
    "data", [b"data: {\n\n", b"data: []\n\n", b"data: " + b"[" * 5000 + b"\n\n", b"data: \xff\n\n"]
)
def test_nonsense(data: bytes) -> None:
    with pytest.raises(BackendFault):
        split(data)


def test_a_stream_that_breaks_off() -> None:
    for end in (len(STREAM) - 1, len(STREAM) - 2, 10):
        with pytest.raises(BackendFault):
            split(STREAM[:end])


def test_an_event_without_end() -> None:
    splitter = Splitter()
    piece = b"a" * (1024 * 1024)
    with pytest.raises(BackendFault):
        for _ in range(EVENT_LIMIT // len(piece) + 1):
            splitter.feed(piece)
