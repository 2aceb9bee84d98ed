"""The rounds of `benchmark_state_cache`: who goes when, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tools.state_cache_bench import MODES, Bench, Reply
from tools.state_cache_cases import OTHER_QUESTIONS, CannotMeasure, Case
from tools.state_cache_floor import Floor, floor

FLOOR = "floor"

Step = Callable[[str], None]
"""Told what was just done, for whoever watches."""


@dataclass(frozen=True, slots=True)
class Round:
    """Everything once, in `order`."""

    order: tuple[str, ...]
    replies: dict[str, Reply]
    floor: Floor


@dataclass(slots=True)
class Measured:
    """A case with its rounds. alone: the largest difference between any probability of a question that was asked by
    itself and of the same question among the others."""

    case: Case
    rounds: list[Round] = field(default_factory=list)
    alone: float | None = None


@dataclass(frozen=True, slots=True)
class Visit:
    """The `visit`th time, from 1, that the `state`th state was asked about."""

    state: int
    visit: int
    reply: Reply


@dataclass(slots=True)
class Revisited:
    cases: list[Case]
    visits: list[Visit] = field(default_factory=list)


def rotated(ways: tuple[str, ...], number: int) -> tuple[str, ...]:
    """`ways`, each of them first once in as many rounds as there are ways."""
    first = number % len(ways)
    return ways[first:] + ways[:first]


async def cold(bench: Bench, measured: Measured, rounds: int, step: Step) -> None:
    """Every mode and the floor, each from nothing."""
    case = measured.case
    for number in range(rounds):
        order = rotated((*MODES, FLOOR), number)
        replies: dict[str, Reply] = {}
        lowest: Floor | None = None
        for way in order:
            await bench.fresh()
            if way == FLOOR:
                lowest = await floor(bench.backend, case.plan)
            else:
                mode = next(mode for mode in MODES if mode == way)
                replies[way] = await bench.ask(mode, case.body)
            step(way)
        assert lowest is not None
        measured.rounds.append(Round(order, replies, lowest))
    measured.alone = await alone(bench, case)
    step("alone")


async def alone(bench: Bench, case: Case) -> float:
    """The largest difference between a question asked alone and the same one in the batch that was asked before."""
    await bench.fresh()
    batch = probabilities(await bench.ask("auto", case.body))
    single: dict[tuple[str, str], float] = {}
    for id_, question in case.body["questions"].items():
        single |= probabilities(await bench.ask("auto", {**case.body, "questions": {id_: question}}))
    return difference(batch, single)


async def warm(bench: Bench, measured: Measured, rounds: int, step: Step) -> None:
    """The state was read by other questions before, and its slot is as they left it."""
    case = measured.case
    for number in range(rounds):
        order = rotated(("auto", FLOOR), number)
        replies: dict[str, Reply] = {}
        lowest: Floor | None = None
        for way in order:
            await bench.fresh()
            if way == FLOOR:
                lowest = await floor(bench.backend, case.plan)
            else:
                before = await bench.ask("auto", {**case.body, "questions": OTHER_QUESTIONS})
                if before.status != 200:
                    raise CannotMeasure(f"The questions that go before {case.name} were answered with {before.status}.")
                await bench.store.settled()
                replies[way] = await bench.ask("auto", case.body)
            step(way)
        assert lowest is not None
        measured.rounds.append(Round(order, replies, lowest))


async def revisit(bench: Bench, revisited: Revisited, step: Step) -> None:
    """All states in turn, and then all of them again."""
    await bench.fresh()
    for visit in (1, 2):
        for state, case in enumerate(revisited.cases):
            revisited.visits.append(Visit(state, visit, await bench.ask("auto", case.body)))
            step(f"visit {visit}")


def probabilities(reply: Reply) -> dict[tuple[str, str], float]:
    """(question, option) -> probability; nothing where the reply is no answer."""
    found: dict[tuple[str, str], float] = {}
    answers = reply.body.get("answers", {}) if reply.status == 200 else {}
    for id_, answer in answers.items():
        options = answer.get("probabilities") or {"noul": answer["noul"]}
        found |= {(id_, option): float(p) for option, p in options.items()}
    return found


def difference(a: dict[tuple[str, str], float], b: dict[tuple[str, str], float]) -> float:
    """The largest of any probability; 1 where one of the two lacks any."""
    if a.keys() != b.keys():
        return 1.0
    return max((abs(a[key] - b[key]) for key in a), default=1.0)
