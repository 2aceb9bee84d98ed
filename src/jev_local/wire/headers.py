"""Diagnostics that travel in response headers, because the JSON is TypeSafe's and stays as it is.

The names below are the only place where they are written. Every 200 of `/v1/systemone` carries all of them:

    X-Jev-Local-State-Cache       how the shared state was handled, e.g. off-short
    X-Jev-Local-Prefix-Tokens     tokens that all questions begin with
    X-Jev-Local-Cached-Tokens     tokens reused, over all questions
    X-Jev-Local-Processed-Tokens  tokens that were really evaluated
    X-Jev-Local-Confidence        whose formulas `confidence` follows: typesafe
    X-Jev-Local-Warnings          codes with counts, "low-mass=3,wants-to-think=1", or "none"
    Server-Timing                 stage;dur=milliseconds (W3C Server Timing)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

REQUEST_ID = "x-typesafe-request-id"
STATE_CACHE = "X-Jev-Local-State-Cache"
PREFIX_TOKENS = "X-Jev-Local-Prefix-Tokens"
CACHED_TOKENS = "X-Jev-Local-Cached-Tokens"
PROCESSED_TOKENS = "X-Jev-Local-Processed-Tokens"
CONFIDENCE = "X-Jev-Local-Confidence"
WARNINGS = "X-Jev-Local-Warnings"
TIMING = "Server-Timing"

DIAGNOSTICS = (STATE_CACHE, PREFIX_TOKENS, CACHED_TOKENS, PROCESSED_TOKENS, CONFIDENCE, WARNINGS, TIMING)

# Not an empty value: some proxies drop headers that have none.
NO_WARNINGS = "none"

_TIMING_ENTRY = re.compile(r"\s*([!#$%&'*+.^_`|~\w-]+)\s*;(?:.*;)?\s*dur=([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """How an answer came about. warnings: code -> count; timings_ms: stage -> milliseconds, in order."""

    state_cache: str
    prefix_tokens: int = 0
    cached_tokens: int = 0
    processed_tokens: int = 0
    confidence: str = "typesafe"
    warnings: tuple[tuple[str, int], ...] = ()
    timings_ms: tuple[tuple[str, float], ...] = ()


def count_warnings(codes: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Warning codes of all questions -> (code, how many), sorted by code."""
    return tuple(sorted(Counter(codes).items()))


def render(diagnostics: Diagnostics) -> dict[str, str]:
    """All of `DIAGNOSTICS`, ready to send."""
    d = diagnostics
    return {
        STATE_CACHE: d.state_cache,
        PREFIX_TOKENS: str(d.prefix_tokens),
        CACHED_TOKENS: str(d.cached_tokens),
        PROCESSED_TOKENS: str(d.processed_tokens),
        CONFIDENCE: d.confidence,
        WARNINGS: ",".join(f"{code}={count}" for code, count in d.warnings) or NO_WARNINGS,
        TIMING: ", ".join(f"{stage};dur={ms:.2f}" for stage, ms in d.timings_ms),
    }


def parse(headers: Mapping[str, str]) -> Diagnostics | None:
    """`render` read backwards from a response's headers, whose lookup ignores case (as httpx's does).

    None when the server is not ours. Values that make no sense count as 0 or are left out: these are
    diagnostics, and a client does not fail over them.
    """
    state_cache = headers.get(STATE_CACHE)
    if state_cache is None:
        return None
    return Diagnostics(
        state_cache=state_cache,
        prefix_tokens=_count(headers.get(PREFIX_TOKENS, "")),
        cached_tokens=_count(headers.get(CACHED_TOKENS, "")),
        processed_tokens=_count(headers.get(PROCESSED_TOKENS, "")),
        confidence=headers.get(CONFIDENCE, ""),
        warnings=tuple(_warnings(headers.get(WARNINGS, ""))),
        timings_ms=tuple(_timings(headers.get(TIMING, ""))),
    )


def _count(value: str) -> int:
    return int(value) if value.isascii() and value.isdigit() and len(value) < 20 else 0


def _warnings(value: str) -> Iterable[tuple[str, int]]:
    for entry in value.split(","):
        code, equals, count = entry.strip().partition("=")
        if code and equals:
            yield code, _count(count)


def _timings(value: str) -> Iterable[tuple[str, float]]:
    for entry in value.split(","):
        if found := _TIMING_ENTRY.match(entry):
            try:
                yield found[1], float(found[2])
            except ValueError:
                continue
