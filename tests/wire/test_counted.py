"""llama-server's numbers are corrected, and no text is ever touched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev_local.wire.counted import Counts, corrected

COUNTS = Counts(cached=900, processed=100, prompt_ms=250.0)
FINAL = (
    b'{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"a"}}],"created":17,'
    b'"usage":{"completion_tokens":4,"prompt_tokens":1000,"total_tokens":1004,'
    b'"prompt_tokens_details":{"cached_tokens":999}},"id":"x","timings":{"cache_n":999,"prompt_n":1,'
    b'"prompt_ms":21.7560,"prompt_per_token_ms":21.756,"prompt_per_second":45.9,"predicted_n":4,"predicted_ms":1.50,'
    b'"predicted_per_token_ms":4e-05,"predicted_per_second":1e+20}}'
)
RIGHT = (
    b'{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"a"}}],"created":17,'
    b'"usage":{"completion_tokens":4,"prompt_tokens":1000,"total_tokens":1004,'
    b'"prompt_tokens_details":{"cached_tokens":900}},"id":"x","timings":{"cache_n":900,"prompt_n":100,'
    b'"prompt_ms":250.0,"prompt_per_token_ms":2.5,"prompt_per_second":400.0,"predicted_n":4,"predicted_ms":1.50,'
    b'"predicted_per_token_ms":4e-05,"predicted_per_second":1e+20}}'
)


@pytest.mark.parametrize(("before", "after"), [(b"", b""), (b"data: ", b"\n\n")])
def test_a_document_and_an_event(before: bytes, after: bytes) -> None:
    assert corrected(before + FINAL + after, COUNTS) == before + RIGHT + after


@pytest.mark.parametrize(
    ("raw", "right"),
    [
        (b'{"usage":{}}', b'{"usage":{"prompt_tokens_details":{"cached_tokens":900}}}'),
        (b'{"usage":{"a":1}}', b'{"usage":{"a":1,"prompt_tokens_details":{"cached_tokens":900}}}'),
        (
            b'{"usage":{"prompt_tokens_details":{"audio_tokens":1},"a":2}}',
            b'{"usage":{"prompt_tokens_details":{"audio_tokens":1,"cached_tokens":900},"a":2}}',
        ),
        (b'{ "usage" : { "prompt_tokens_details" : { "cached_tokens" : 1 } } }',) * 2,
        (b'{"timings":{"prompt_ms":null,"cache_n":-1}}', b'{"timings":{"prompt_ms":250.0,"cache_n":900}}'),
        (b'{"usage":null,"timings":null}',) * 2,
        (b'{"timings":{"predicted_n":1}}',) * 2,
        (b":\n\n",) * 2,
        (b"data: [DONE]\n\n",) * 2,
    ],
)
def test_shapes(raw: bytes, right: bytes) -> None:
    assert corrected(raw, COUNTS) == right.replace(b'"cached_tokens" : 1', b'"cached_tokens" : 900')


def test_nothing_evaluated() -> None:
    made = json.loads(corrected(FINAL, Counts(cached=1000, processed=0, prompt_ms=0.0)))["timings"]
    assert [
        made[name] for name in ("cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second")
    ] == [
        1000,
        0,
        0.0,
        0.0,
        0.0,
    ]


LURES = (
    '"usage":{"prompt_tokens_details":{"cached_tokens":1}}',
    '{"usage":{"prompt_tokens_details":{"cached_tokens":1}}}',
    ',"timings":{"cache_n":1,"prompt_n":2,"prompt_ms":3}',
    '\\"usage":{}',
    '"timings":{}',
    "\\",
    '"',
    "usage",
)
texts = st.lists(st.one_of(st.sampled_from(LURES), st.text(max_size=4)), max_size=6).map("".join)


@given(texts, texts, st.booleans())
def test_a_callers_text_is_never_touched(text: str, key: str, ascii_only: bool) -> None:
    def written(cached: int) -> bytes:
        document: dict[str, Any] = {
            "choices": [{"text": text, "logprobs": {"content": [{"token": text, "bytes": [1]}]}}],
            "model": text,
            f"x{key}": {"usage_": text},
            "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": cached}},
            "id": text,
            "timings": {"cache_n": cached, "predicted_n": 1},
            "end": text,
        }
        return json.dumps(document, ensure_ascii=ascii_only, separators=(",", ":")).encode("utf-8", "surrogatepass")

    assert corrected(written(1), COUNTS) == written(900)


def test_a_large_document_takes_no_longer_than_reading_it() -> None:
    text = json.dumps(LURES[1] * 200_000).encode()
    raw = b'{"choices":[{"text":' + text + b"}]," + FINAL[1:]
    assert corrected(raw, COUNTS) == b'{"choices":[{"text":' + text + b"}]," + RIGHT[1:]
