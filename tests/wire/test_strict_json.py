"""One table of bodies that Python's reader takes or dies of, and what ours says to them."""

from __future__ import annotations

import json
import sys
import time
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev_local.errors import InvalidBody
from jev_local.wire.strict_json import parse

DEEPEST = b"[" * 64 + b"]" * 64

REFUSED = {
    "empty": (b"", "json_invalid", ("body",)),
    "words": (b"not json", "json_invalid", ("body",)),
    "cut off": (b'{"a": [1, 2', "json_invalid", ("body",)),
    "something behind": (b"{} {}", "json_invalid", ("body",)),
    "single quotes": (b"{'a': 1}", "json_invalid", ("body",)),
    "raw newline in a string": (b'{"a": "x\ny"}', "json_invalid", ("body",)),
    "zero byte": (b'{"a": 1}\x00', "json_invalid", ("body",)),
    "latin-1": ('{"a": "ü"}'.encode("latin-1"), "utf8_invalid", ("body",)),
    "utf-16": ('{"a": 1}'.encode("utf-16"), "utf8_invalid", ("body",)),
    "raw surrogate": (b'{"a": "\xed\xa0\x80"}', "utf8_invalid", ("body",)),
    "NaN": (b'{"a": NaN}', "json_invalid", ("body",)),
    "-Infinity": (b'{"a": -Infinity}', "json_invalid", ("body",)),
    "1e999": (b'{"a": 1e999}', "number_too_large", ("body",)),
    "-1e999": (b'{"a": -1e999}', "number_too_large", ("body",)),
    "5,000 digits": (b'{"a": ' + b"7" * 5000 + b"}", "number_too_long", ("body",)),
    "the same key twice": (b'{"a": 1, "a": 1}', "duplicate_key", ("body", "a")),
    "twice, spelled differently": (b'{"a": 1, "\\u0061": 1}', "duplicate_key", ("body", "a")),
    "twice, further in": (b'{"x": [0, {"b": 1, "b": 2}]}', "duplicate_key", ("body", "x", 1, "b")),
    "twice, in what is overwritten": (b'{"x": {"b": 1, "b": 2}, "x": {}}', "duplicate_key", ("body", "x")),
    "high surrogate": (b'{"a": "\\ud83d"}', "lone_surrogate", ("body", "a")),
    "low surrogate": (b'{"a": ["\\uDE00"]}', "lone_surrogate", ("body", "a", 0)),
    "pair the wrong way round": (b'{"a": "\\ude00\\ud83d"}', "lone_surrogate", ("body", "a")),
    "surrogate key": (b'{"a": {"\\ud83d": 1}}', "lone_surrogate", ("body", "a")),
    "65 arrays": (b"[" + DEEPEST + b"]", "nested_too_deep", ("body",)),
    "65 objects": (b'{"a":' * 65 + b"1" + b"}" * 65, "nested_too_deep", ("body",)),
    "1,000 deep": (b"[" * 1000 + b"]" * 1000, "nested_too_deep", ("body",)),
    "100,000 deep": (b'{"a":[' * 100_000 + b"1" + b"]}" * 100_000, "nested_too_deep", ("body",)),
    "deep and never closed": (b"[" * 3_000_000, "nested_too_deep", ("body",)),
    "deep behind an escaped quote": (b'["\\"", ' + b"[" * 70 + b"]" * 71, "nested_too_deep", ("body",)),
}


@pytest.mark.parametrize(("body", "kind", "loc"), REFUSED.values(), ids=REFUSED)
def test_refuses(body: bytes, kind: str, loc: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidBody) as refused:
        parse(body)
    (issue,) = refused.value.issues
    assert (issue.type, issue.loc) == (kind, loc)
    assert refused.value.__cause__ is None


TAKEN: dict[str, tuple[bytes, Any]] = {
    "byte order mark": (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
    "64 deep": (DEEPEST, json.loads(DEEPEST)),
    "brackets in strings": (json.dumps(["[{" * 5000, '\\"[', "]"]).encode(), ["[{" * 5000, '\\"[', "]"]),
    "wide, not deep": (b"[" + b"[]," * 5000 + b"[]]", [[]] * 5001),
    "a pair by escapes": (b'"\\ud83d\\ude00"', "\U0001f600"),
    "a backslash before u": (b'"\\\\ud83d"', "\\ud83d"),
    "4,000 digits": (b"7" * 4000, int("7" * 4000)),
    "zero": (b"1e-999", 0.0),
    "the same key in two objects": (b'[{"a": 1}, {"a": 1}]', [{"a": 1}, {"a": 1}]),
    "escaped zero": (b'"\\u0000"', "\x00"),
}


@pytest.mark.parametrize(("body", "value"), TAKEN.values(), ids=TAKEN)
def test_takes(body: bytes, value: Any) -> None:
    assert parse(body) == value


@pytest.mark.parametrize(
    "body",
    [b'"\\"' * 2_000_000, b'["' + b'\\"' * 3_000_000, b"[]," * 1_000_000, b'"' * 3_000_000],
    ids=["quotes", "escapes", "pairs", "nothing but quotes"],
)
def test_time_grows_with_the_length_and_no_faster(body: bytes) -> None:
    begun = time.process_time()
    with pytest.raises(InvalidBody):
        parse(body)
    # A quadratic scan of these would take hours; this one takes about half a second.
    assert time.process_time() - begun < 20


def test_a_reader_deep_in_the_stack_is_no_worse_off() -> None:
    def down(levels: int) -> Any:
        return down(levels - 1) if levels else parse(DEEPEST)

    assert down(sys.getrecursionlimit() // 2) == json.loads(DEEPEST)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(json_values, st.booleans())
def test_reads_what_json_writes(value: Any, ascii_only: bool) -> None:
    assert parse(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=200) | st.text(alphabet='[]{}",:\\u0019d8eE.-tfn \n', max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with suppress(InvalidBody):
        json.dumps(parse(body), ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize("part", [b"{},", b"[{}],", b"0,", b'"",'])
def test_millions_of_small_values_are_refused_before_they_take_their_memory(part: bytes) -> None:
    body = b"[" + part * (8_000_000 // len(part)) + b"0]"
    tracemalloc.start()
    with pytest.raises(InvalidBody, match="more than 500000 values"):
        parse(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * len(body)
