"""Diagnostics as headers, on both ends."""

from __future__ import annotations

from jev_local.wire.headers import DIAGNOSTICS, Diagnostics, count_warnings, pick, render


def test_what_goes_over_the_wire() -> None:
    sent = Diagnostics(
        state_cache="shared",
        prefix_tokens=32,
        source="disk",
        strategy="restore",
        cached_tokens=96,
        processed_tokens=480,
        reevaluated=1,
        warnings=count_warnings(["low-mass", "wants-to-think", "low-mass", "low-mass"]),
        timings_ms=(("tokenize", 1.234), ("total", 56.0)),
    )
    assert render(sent) == {
        "X-Jev-Local-State-Cache": "shared",
        "X-Jev-Local-Prefix-Tokens": "32",
        "X-Jev-Local-Prefix-Source": "disk",
        "X-Jev-Local-Strategy": "restore",
        "X-Jev-Local-Cached-Tokens": "96",
        "X-Jev-Local-Processed-Tokens": "480",
        "X-Jev-Local-Reevaluated": "1",
        "X-Jev-Local-Confidence": "typesafe",
        "X-Jev-Local-Warnings": "low-mass=3,wants-to-think=1",
        "Server-Timing": "tokenize;dur=1.23, total;dur=56.00",
    }


def test_all_of_them_are_there_when_there_is_nothing_to_say() -> None:
    told = render(Diagnostics(state_cache="off"))
    assert tuple(told) == DIAGNOSTICS
    assert told["X-Jev-Local-Warnings"] == "none"
    assert told["X-Jev-Local-Prefix-Source"] == "none"
    assert told["X-Jev-Local-Strategy"] == "plain"
    assert told["X-Jev-Local-Cached-Tokens"] == told["X-Jev-Local-Reevaluated"] == "0"


def test_what_is_picked_for_showing_is_ours_in_our_order_and_nothing_else() -> None:
    headers = {
        "content-type": "application/json",
        "x-typesafe-request-id": "req_1",
        "server-timing": "total;dur=1",
        "x-jev-local-future": "new",
        "x-jev-local-reevaluated": "0",
        "x-jev-local-strategy": "in-place",
        "x-jev-local-prefix-source": "slot",
        "x-jev-local-state-cache": "shared",
    }
    assert pick(headers) == (
        ("X-Jev-Local-State-Cache", "shared"),
        ("X-Jev-Local-Prefix-Source", "slot"),
        ("X-Jev-Local-Strategy", "in-place"),
        ("X-Jev-Local-Reevaluated", "0"),
        ("Server-Timing", "total;dur=1"),
        ("X-Typesafe-Request-Id", "req_1"),
        ("X-Jev-Local-Future", "new"),
    )


def test_all_that_is_sent_is_picked() -> None:
    sent = render(Diagnostics(state_cache="off", timings_ms=(("total", 1.0),)))
    assert dict(pick({name.lower(): value for name, value in sent.items()})) == sent


def test_another_server_has_none() -> None:
    assert pick({"content-type": "application/json", "x-other": "1"}) == ()
