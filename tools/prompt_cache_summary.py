"""What the requests come to: how they spread, which were hits, and when a prefix was gone."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tools.prompt_cache_answers import VERDICTS
from tools.prompt_cache_client import Reply
from tools.prompt_cache_rounds import BACK, MIXED, ONE_BY_ONE, TOGETHER, VISIT, Asked, Batch

HIT_SHARE = 0.5
"""Of the policy's tokens, above which a request has found them. Without a count: of the time that reading it took."""


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    least: float
    most: float
    count: int

    def told(self, digits: int = 0, *, scale: float = 1.0) -> str:
        """`median (least-most)`."""
        median, least, most = (f"{value * scale:.{digits}f}" for value in (self.median, self.least, self.most))
        return f"{median} ({least}-{most})"


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return Spread(statistics.median(known), min(known), max(known), len(known)) if known else None


def good(asked: Iterable[Asked]) -> list[Asked]:
    return [one for one in asked if one.reply.error is None]


def verdicts(asked: Iterable[Asked]) -> dict[str, int]:
    """How often each; only of answers that were read."""
    found = Counter(one.verdict for one in asked if one.verdict is not None)
    return {verdict: found[verdict] for verdict in VERDICTS}


def errors(asked: Iterable[Asked]) -> Counter[str]:
    return Counter(one.reply.error for one in asked if one.reply.error is not None)


@dataclass(frozen=True, slots=True)
class Together:
    """`clients` at once, over all rounds. Seconds, bytes, percent.

    median, slowest: of the requests of a batch; wall: of the batch; summed: of its requests' times, another number;
    alone: wall time of the same requests one after another; slowdown: how much longer the median request took than
    that of the same ones alone; completions, tokens: per second of wall time."""

    kind: str
    clients: int
    first: Spread | None
    median: Spread
    slowest: Spread
    wall: Spread
    summed: Spread
    alone: Spread | None
    slowdown: Spread | None
    completions: Spread
    tokens: Spread | None
    cached: Spread | None
    peak: Spread | None
    failed: int


def together(batches: Sequence[Batch], kind: str, clients: int) -> Together | None:
    """None where no batch of this kind was answered."""
    mine = [batch for batch in batches if (batch.kind, batch.clients) == (kind, clients)]
    failed = sum(reply.error is not None for batch in mine for reply in batch.replies)
    whole = [batch for batch in mine if all(reply.error is None for reply in batch.replies)]
    done = [batch for batch in whole if batch.way == TOGETHER]
    alone = {batch.round: batch for batch in whole if batch.way == ONE_BY_ONE}
    pairs = [(batch, alone[batch.round]) for batch in done if batch.round in alone]

    def of(value: Callable[[Batch], float | None]) -> Spread | None:
        return spread(value(batch) for batch in done)

    median, slowest = of(_median), of(lambda batch: max(reply.total for reply in batch.replies))
    wall, summed = of(lambda batch: batch.wall), of(lambda batch: sum(reply.total for reply in batch.replies))
    completions = of(lambda batch: batch.clients / batch.wall)
    if median is None or slowest is None or wall is None or summed is None or completions is None:
        return None
    return Together(
        kind,
        clients,
        spread(reply.first for batch in done for reply in batch.replies),
        median,
        slowest,
        wall,
        summed,
        spread(batch.wall for batch in alone.values()),
        spread((_median(batch) / _median(other) - 1) * 100 for batch, other in pairs),
        completions,
        of(_tokens_a_second),
        spread(reply.cached_tokens for batch in done for reply in batch.replies),
        of(lambda batch: batch.peak),
        failed,
    )


def _median(batch: Batch) -> float:
    return statistics.median(reply.total for reply in batch.replies)


def _tokens_a_second(batch: Batch) -> float | None:
    made = [reply.output_tokens for reply in batch.replies]
    return None if None in made else sum(count for count in made if count is not None) / batch.wall


@dataclass(frozen=True, slots=True)
class Return:
    """Back to the first of `others` + 1 prefixes. inferred: judged by time, for want of a count."""

    others: int
    hits: int
    visits: int
    inferred: bool
    first: Spread | None
    back: Spread | None
    cached: Spread | None

    @property
    def gone(self) -> bool:
        """More often than not."""
        return self.visits > 0 and self.hits * 2 <= self.visits


def returns(asked: Sequence[Asked], policy_tokens: int | None) -> list[Return]:
    """Per number of prefixes, in rising order."""
    mine = [one for one in good(asked) if one.condition == MIXED]
    visits = {one.edition: one for one in mine if one.role == VISIT}
    found = []
    for count in sorted({one.group for one in mine}):
        back = [one for one in mine if one.role == BACK and one.group == count and one.edition in visits]
        judged = [(one, hit(one.reply, visits[one.edition].reply, policy_tokens)) for one in back]
        known = [(one, was) for one, was in judged if was is not None]
        if known:
            found.append(
                Return(
                    count - 1,
                    sum(was for _, was in known),
                    len(known),
                    any(one.reply.cached_tokens is None for one, _ in known),
                    spread(visits[one.edition].reply.first for one, _ in known),
                    spread(one.reply.first for one, _ in known),
                    spread(one.reply.cached_tokens for one, _ in known),
                )
            )
    return found


def hit(reply: Reply, cold: Reply, policy_tokens: int | None) -> bool | None:
    """Whether `reply` had the policy from a cache: by the server's count, else by its first token against that of
    `cold`, which had to read it. None where neither is known."""
    tokens = policy_tokens if policy_tokens is not None else reply.input_tokens
    if reply.cached_tokens is not None and tokens is not None:
        return reply.cached_tokens > HIT_SHARE * tokens
    if reply.first is None or cold.first is None:
        return None
    return reply.first < HIT_SHARE * cold.first


def gone_after(found: Sequence[Return]) -> str:
    """After how many other prefixes the first one is gone, as far as that was tried."""
    if not found:
        return "Not measured."
    kept = [one.others for one in found if not one.gone]
    gone = [one.others for one in found if one.gone]
    if not gone:
        return f"A was still there after {_others(max(kept))}, the most that were tried."
    before = [others for others in kept if others < min(gone)]
    if not before:
        return f"A was gone after {_others(min(gone))} already, the fewest that were tried."
    return f"A was still there after {_others(max(before))}, and gone after {min(gone)}."


def _others(count: int) -> str:
    return "1 other prefix" if count == 1 else f"{count} other prefixes"
