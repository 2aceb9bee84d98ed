"""Diagnostics that travel in response headers, because the JSON is TypeSafe's and stays as it is.

The names below are the only place where they are written. Every 200 of `/v1/systemone` carries all of them:

    X-Jev-Local-State-Cache       how the shared state was handled, e.g. off-short
    X-Jev-Local-Prefix-Tokens     tokens that all questions begin with
    X-Jev-Local-Prefix-Source     where they came from: none, computed, slot, memory or disk
    X-Jev-Local-Strategy          how the questions went on from them: in-place, fan-out, restore or plain
    X-Jev-Local-Cached-Tokens     tokens reused, over all questions
    X-Jev-Local-Processed-Tokens  tokens that were really evaluated
    X-Jev-Local-Reevaluated       questions whose reuse failed and that were evaluated again in full
    X-Jev-Local-Confidence        whose formulas `confidence` follows: typesafe
    X-Jev-Local-Warnings          codes with counts, "low-mass=3,wants-to-think=1", or "none"
    Server-Timing                 stage;dur=milliseconds (W3C Server Timing)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

REQUEST_ID = "x-typesafe-request-id"
STATE_CACHE = "X-Jev-Local-State-Cache"
PREFIX_TOKENS = "X-Jev-Local-Prefix-Tokens"
PREFIX_SOURCE = "X-Jev-Local-Prefix-Source"
STRATEGY = "X-Jev-Local-Strategy"
CACHED_TOKENS = "X-Jev-Local-Cached-Tokens"
PROCESSED_TOKENS = "X-Jev-Local-Processed-Tokens"
REEVALUATED = "X-Jev-Local-Reevaluated"
CONFIDENCE = "X-Jev-Local-Confidence"
WARNINGS = "X-Jev-Local-Warnings"
TIMING = "Server-Timing"

DIAGNOSTICS = (
    STATE_CACHE,
    PREFIX_TOKENS,
    PREFIX_SOURCE,
    STRATEGY,
    CACHED_TOKENS,
    PROCESSED_TOKENS,
    REEVALUATED,
    CONFIDENCE,
    WARNINGS,
    TIMING,
)

# Not an empty value: some proxies drop headers that have none.
NO_WARNINGS = "none"

_FAMILY = "x-jev-local-"


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """How an answer came about. warnings: code -> count; timings_ms: stage -> milliseconds, in order."""

    state_cache: str
    prefix_tokens: int = 0
    source: str = "none"
    strategy: str = "plain"
    cached_tokens: int = 0
    processed_tokens: int = 0
    reevaluated: int = 0
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
        PREFIX_SOURCE: d.source,
        STRATEGY: d.strategy,
        CACHED_TOKENS: str(d.cached_tokens),
        PROCESSED_TOKENS: str(d.processed_tokens),
        REEVALUATED: str(d.reevaluated),
        CONFIDENCE: d.confidence,
        WARNINGS: ",".join(f"{code}={count}" for code, count in d.warnings) or NO_WARNINGS,
        TIMING: ", ".join(f"{stage};dur={ms:.2f}" for stage, ms in d.timings_ms),
    }


def pick(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What a response's headers tell about its answers, to be shown as it came: name and value, ours first and in our
    order, then those of the family that came after this client. Names in `headers` are lower case."""
    known = [*DIAGNOSTICS, REQUEST_ID.title()]
    others = sorted(name.title() for name in headers if name.startswith(_FAMILY))
    names = dict.fromkeys([*known, *others])  # each once, in this order
    return tuple((name, headers[name.lower()]) for name in names if name.lower() in headers)
