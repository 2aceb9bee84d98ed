"""What the rounds come to: medians, ratios of what ran in the same round, and whether the targets are met."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tools.state_cache_bench import Reply
from tools.state_cache_cases import SHORT, WARM, Case
from tools.state_cache_rounds import FLOOR, Measured, Revisited, Round, difference, probabilities

LONG = "1025"
"""The case that most targets are set for."""

QUOTIENT, OVER_FLOOR, SHORT_OVER_OFF, WARM_OVER_SUFFIX = 0.87, 1.15, 1.05, 1.5
EXTRA_TOKENS = 2
"""That a question may evaluate beyond its own."""


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:.0f} ({self.least:.0f}-{self.most:.0f})"


@dataclass(frozen=True, slots=True)
class Target:
    """`value` has to be `bound` at least, or at most."""

    case: str
    what: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def times(rounds: Sequence[Round]) -> dict[str, Spread]:
    """Milliseconds of every mode that was asked, of the floor, and of the floor's two parts."""
    modes = {mode: spread([round_.replies[mode].ms for round_ in rounds]) for mode in rounds[0].replies}
    return modes | {
        FLOOR: spread([round_.floor.ms for round_ in rounds]),
        "floor_prefix": spread([round_.floor.prefix_ms for round_ in rounds]),
        "floor_suffix": spread([round_.floor.suffix_ms for round_ in rounds]),
    }


def ratios(rounds: Sequence[Round]) -> dict[str, float]:
    """Medians of ratios within a round, so that a machine that slows down meanwhile slows both sides."""

    def paired(above: Callable[[Round], float], below: Callable[[Round], float]) -> float:
        return statistics.median(above(round_) / below(round_) for round_ in rounds)

    def ms(mode: str) -> Callable[[Round], float]:
        return lambda round_: round_.replies[mode].ms

    found = {
        "auto/floor": paired(ms("auto"), lambda round_: round_.floor.ms),
        "auto/floor_suffix": paired(ms("auto"), lambda round_: round_.floor.suffix_ms),
    }
    if "off" not in rounds[0].replies:
        return found
    found |= {
        "auto/off": paired(ms("auto"), ms("off")),
        "off/auto": paired(ms("off"), ms("auto")),
        "off/shared": paired(ms("off"), ms("shared")),
        "off/floor": paired(ms("off"), lambda round_: round_.floor.ms),
    }
    return found | {"quotient": found["off/auto"] / found["off/floor"]}


def differences(rounds: Sequence[Round]) -> dict[str, float]:
    """The largest of any probability between two modes in the same round."""
    if "off" not in rounds[0].replies:
        return {}
    read = [{mode: probabilities(reply) for mode, reply in round_.replies.items()} for round_ in rounds]
    return {
        "off-auto": max(difference(modes["off"], modes["auto"]) for modes in read),
        "shared-auto": max(difference(modes["shared"], modes["auto"]) for modes in read),
    }


def evaluated(rounds: Sequence[Round]) -> int:
    """The most tokens that auto had evaluated."""
    return max(round_.replies["auto"].number("processed-tokens") for round_ in rounds)


def allowed(case: Case) -> int:
    """Tokens that an engine evaluates which reads the prefix once, unless it was read before, and loses a few with
    each question."""
    prefix = 0 if case.name == WARM else case.prefix_tokens
    return prefix + case.suffix_tokens + EXTRA_TOKENS * case.questions


def targets(measured: Measured) -> list[Target]:
    """Those set for this case, as far as there are rounds to judge by."""
    if not measured.rounds:
        return []
    name, found = measured.case.name, ratios(measured.rounds)
    if name == SHORT:
        return [Target(name, "auto / off", found["auto/off"], SHORT_OVER_OFF)]
    if name == WARM:
        return [Target(name, "auto / floor without its prefix", found["auto/floor_suffix"], WARM_OVER_SUFFIX)]
    set_ = [Target(name, "off/auto as a share of off/floor", found["quotient"], QUOTIENT, at_least=True)]
    if name == LONG:
        set_ += [
            Target(name, "auto / floor", found["auto/floor"], OVER_FLOOR),
            Target(name, "tokens evaluated in auto", evaluated(measured.rounds), allowed(measured.case)),
        ]
    return set_


def replies(measured: Measured) -> list[Reply]:
    return [reply for round_ in measured.rounds for reply in round_.replies.values()]


def unanswered(got: Sequence[Reply]) -> int:
    return sum(reply.status != 200 for reply in got)


def summary(measured: Measured) -> dict[str, Any]:
    """In numbers, for the JSON and the tables alike."""
    rounds = measured.rounds
    if not rounds:
        return {}
    auto = [round_.replies["auto"] for round_ in rounds]
    return {
        "times_ms": times(rounds),
        "ratios": ratios(rounds),
        "differences": differences(rounds) | ({} if measured.alone is None else {"alone-auto": measured.alone}),
        "evaluated_tokens": evaluated(rounds),
        "allowed_tokens": allowed(measured.case),
        "strategies": Counter(reply.headers.get("x-jev-local-strategy", "") for reply in auto),
        "sources": Counter(reply.source for reply in auto),
    }


def revisit_summary(revisited: Revisited) -> dict[str, Any]:
    """Per visit: milliseconds, where the prefix came from, and the tokens evaluated for a state."""
    found: dict[str, Any] = {}
    for number in (1, 2):
        got = [visit.reply for visit in revisited.visits if visit.visit == number]
        if got:
            found[f"visit_{number}"] = {
                "times_ms": spread([reply.ms for reply in got]),
                "sources": Counter(reply.source for reply in got),
                "evaluated_tokens": spread([reply.number("processed-tokens") for reply in got]),
                "unanswered": unanswered(got),
            }
    return found
