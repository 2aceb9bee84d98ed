"""Diagnostics to headers and back."""

from __future__ import annotations

import httpx
from hypothesis import given
from hypothesis import strategies as st

from jev_local.wire.headers import DIAGNOSTICS, Diagnostics, count_warnings, parse, render

counts = st.integers(0, 10**12)
names = st.from_regex(r"[a-z][a-z-]{0,12}", fullmatch=True)
diagnostics = st.builds(
    Diagnostics,
    state_cache=names,
    prefix_tokens=counts,
    cached_tokens=counts,
    processed_tokens=counts,
    warnings=st.dictionaries(names, st.integers(1, 999), max_size=4).map(lambda d: tuple(sorted(d.items()))),
    timings_ms=st.lists(st.tuples(names, st.integers(0, 10**8).map(lambda n: n / 100)), max_size=4).map(tuple),
)


@given(diagnostics)
def test_there_and_back(sent: Diagnostics) -> None:
    assert parse(httpx.Headers(render(sent))) == sent


def test_what_goes_over_the_wire() -> None:
    sent = Diagnostics(
        state_cache="off-short",
        prefix_tokens=32,
        processed_tokens=480,
        warnings=count_warnings(["low-mass", "wants-to-think", "low-mass", "low-mass"]),
        timings_ms=(("tokenize", 1.234), ("total", 56.0)),
    )
    assert render(sent) == {
        "X-Jev-Local-State-Cache": "off-short",
        "X-Jev-Local-Prefix-Tokens": "32",
        "X-Jev-Local-Cached-Tokens": "0",
        "X-Jev-Local-Processed-Tokens": "480",
        "X-Jev-Local-Confidence": "typesafe",
        "X-Jev-Local-Warnings": "low-mass=3,wants-to-think=1",
        "Server-Timing": "tokenize;dur=1.23, total;dur=56.00",
    }


def test_all_of_them_are_there_when_there_is_nothing_to_say() -> None:
    told = render(Diagnostics(state_cache="off"))
    assert tuple(told) == DIAGNOSTICS
    assert told["X-Jev-Local-Warnings"] == "none"


def test_another_server_has_none() -> None:
    assert parse(httpx.Headers({"server-timing": "total;dur=3"})) is None


def test_nonsense_is_left_out() -> None:
    read = parse(
        httpx.Headers(
            {
                "x-jev-local-state-cache": "off",
                "x-jev-local-prefix-tokens": "-3",
                "x-jev-local-cached-tokens": "9" * 5000,
                "x-jev-local-warnings": "none, =4, low-mass=x, slow=2,",
                "server-timing": 'cache;desc="a";dur=2.5, miss, total;dur=1.2.3, db;dur=',
            }
        )
    )
    assert read == Diagnostics(
        state_cache="off", confidence="", warnings=(("low-mass", 0), ("slow", 2)), timings_ms=(("cache", 2.5),)
    )
