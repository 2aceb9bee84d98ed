"""What the blocks come to: medians, ratios to everything off, and how far answers lie apart. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jev_local.launch.image_lookups import Lookups
from tools.image_cache_blocks import BOTH, OFF, ON, PREFIX, Asked, Block, Condition

CONDITIONS = (OFF, ON, PREFIX, BOTH)
EXACT = ((OFF, OFF), (ON, ON), (OFF, ON))
"""Where only the encoder cache is another, and with one worker nothing else."""


@dataclass(frozen=True, slots=True)
class Row:
    """Of all whole blocks under one condition. Milliseconds; `again` is the median of the `further` requests. Lookups
    are of each first request, and of all further ones together. Speed-ups are None where there is no block to compare
    with."""

    condition: Condition
    first: tuple[float, ...]
    first_lookups: tuple[Lookups, ...]
    again: float
    least: float
    most: float
    further: int
    further_lookups: Lookups
    state_cache: tuple[str, ...]
    first_speedup: float | None
    again_speedup: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest between the probabilities that two replies gave an option, one reply of each kind. None: no two.

    By turn, a reply is only compared with those that came at the same place in their blocks: where a slot's tokens lie
    in the server's memory depends on what went before, and the sums over them are rounded accordingly.
    """

    one: Condition
    other: Condition
    by_turn: bool
    value: float | None

    @property
    def between(self) -> str:
        names = f"{self.one.name} among themselves" if self.one == self.other else f"{self.one.name}, {self.other.name}"
        return f"{names}, turn by turn" if self.by_turn else names


@dataclass(frozen=True, slots=True)
class Summary:
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    choices_agree: bool
    faults: tuple[str, ...]


def summary(blocks: Sequence[Block], *, workers: int) -> Summary:
    whole = [block for block in blocks if block.is_whole]
    kinds = {kind: [block for block in whole if block.condition == kind] for kind in CONDITIONS}
    found = differences(kinds)
    return Summary(
        rows=tuple(row(kind, mine, kinds[OFF]) for kind, mine in kinds.items() if mine),
        differences=found,
        choices_agree=choices_agree(replies(whole)),
        faults=faults(found, workers=workers),
    )


def row(condition: Condition, blocks: Sequence[Block], off: Sequence[Block]) -> Row:
    first, again = times(blocks)
    first_off, again_off = times(off)
    return Row(
        condition=condition,
        first=first,
        first_lookups=tuple(block.asked[0].lookups for block in blocks),
        again=statistics.median(again),
        least=min(again),
        most=max(again),
        further=len(again),
        further_lookups=sum((one.lookups for block in blocks for one in block.asked[1:]), Lookups()),
        state_cache=tuple(sorted({one.state_cache for one in replies(blocks)})),
        first_speedup=statistics.median(first_off) / statistics.median(first) if off else None,
        again_speedup=statistics.median(again_off) / statistics.median(again) if off else None,
    )


def times(blocks: Sequence[Block]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Milliseconds of the first requests, and of all others."""
    first = tuple(block.asked[0].ms for block in blocks)
    return first, tuple(one.ms for block in blocks for one in block.asked[1:])


def differences(kinds: Mapping[Condition, Sequence[Block]]) -> tuple[Difference, ...]:
    """What the cache changes is to be read next to what changes without it."""
    pairs = ((OFF, OFF), (ON, ON), (OFF, ON), (OFF, PREFIX), (OFF, BOTH), (PREFIX, BOTH))
    found = [Difference(one, other, False, apart(replies(kinds[one]), replies(kinds[other]))) for one, other in pairs]
    found += [Difference(one, other, True, apart_by_turn(kinds[one], kinds[other])) for one, other in EXACT]
    return tuple(found)


def replies(blocks: Sequence[Block]) -> list[Asked]:
    return [one for block in blocks for one in block.asked]


def apart_by_turn(these: Sequence[Block], those: Sequence[Block]) -> float | None:
    """The largest of the first requests, of the second ones, and so on. None where a block had only itself."""
    if these == those and len(these) == 1:
        return None
    turns = zip(*(block.asked for block in these), strict=True), zip(*(block.asked for block in those), strict=True)
    found = [apart(here, there) for here, there in zip(*turns, strict=False)]
    return max((one for one in found if one is not None), default=None)


def apart(these: Sequence[Asked], those: Sequence[Asked]) -> float | None:
    """The largest difference of a probability between one of `these` and one of `those`. Some option that only one of
    them gave counts in full."""
    if not these or not those:
        return None
    here, there = ranges(these), ranges(those)
    return max(
        (
            max(here[key][1] - there[key][0], there[key][1] - here[key][0]) if key in here and key in there else 1.0
            for key in here.keys() | there.keys()
        ),
        default=0.0,
    )


def ranges(asked: Sequence[Asked]) -> dict[tuple[str, str], tuple[float, float]]:
    """Least and largest probability of each option of each question."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for reply in asked:
        for name, answer in reply.answers.items():
            for option, probability in answer.probabilities.items():
                least, most = found.get((name, option), (probability, probability))
                found[name, option] = min(least, probability), max(most, probability)
    return found


def choices_agree(asked: Iterable[Asked]) -> bool:
    """Whether every reply chose the same options."""
    return len({tuple(sorted((name, answer.choice) for name, answer in one.answers.items())) for one in asked}) <= 1


def faults(found: Sequence[Difference], *, workers: int) -> tuple[str, ...]:
    """One worker reads the questions one after the other, so that at the same turn everything is where it was in every
    other block: a difference is then the cache's doing. Prefix sharing goes another way, which may round otherwise."""
    if workers != 1:
        return ()
    return tuple(
        f"{one.between}: {one.value:.2e} with one worker, where it has to be 0"
        for one in found
        if one.by_turn and one.value
    )
