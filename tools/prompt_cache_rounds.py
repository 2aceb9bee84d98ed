"""The conditions of `benchmark_prompt_cache`: what is asked, in which order, and what came of it.

Every round has editions of the policy of its own, so that nothing is warm from an earlier one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.prompt_cache_answers import Verdict, judge
from tools.prompt_cache_client import ChatClient, Reply
from tools.prompt_cache_material import Material, Prompt, fresh, stamp
from tools.prompt_cache_memory import Watch
from tools.prompt_cache_server import cache_lines

COLD, SEQUENTIAL, CONCURRENCY, MIXED, ORDER = "cold start", "sequential", "concurrency", "mixed prefixes", "order"

FIRST, AGAIN = "policy not read before", "policy read before"
COMMON, OWN = "common prefix, read before", "one prefix a client, none read before"
TOGETHER, ONE_BY_ONE = "together", "one after another"
VISIT, BACK = "visit", "back"
AFTER, BEFORE = "date and customer after the policy", "date and customer before the policy"
PREPARING = "preparing"
"""Not measured: it has the policy read."""

SHORT_ANSWER = 16
"""Tokens, where only the first one matters."""

ASKED_AGAIN = 2
"""Requests of each order after the one that has the policy read."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. group: the number of clients, or of prefixes. log: what the server logged of its caches."""

    condition: str
    round: int
    role: str
    reply: Reply
    group: int = 1
    verdict: Verdict | None = None
    edition: str = ""
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """The same requests in one `way`. wall: seconds from the first to the end of the last; peak: bytes."""

    kind: str
    way: str
    clients: int
    round: int
    wall: float
    replies: tuple[Reply, ...]
    peak: int | None


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the server. Seconds, and bytes where the process was found."""

    load: float
    reply: Reply
    loaded: int | None
    peak: int | None


@dataclass(slots=True)
class Bench:
    """A running server, and all that was asked. spans: when each condition was measured, on time.perf_counter()."""

    client: ChatClient
    material: Material
    watch: Watch
    log: Path | None = None
    step: Callable[[], None] = lambda: None
    asked: list[Asked] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)

    async def ask(
        self, condition: str, number: int, role: str, prompt: Prompt, *, group: int = 1, most: int | None = None
    ) -> Asked:
        """most: tokens of an answer that nobody reads."""
        begin = self.log.stat().st_size if self.log is not None and self.log.exists() else 0
        reply = await self.client.ask(prompt, max_tokens=most)
        verdict = judge(reply.text, prompt.question) if most is None and reply.error is None else None
        lines = cache_lines(self.log, begin) if self.log is not None and role not in (TOGETHER, PREPARING) else ()
        asked = Asked(condition, number, role, reply, group, verdict, prompt.edition, lines)
        self.asked.append(asked)
        self.step()
        return asked


async def spanned(bench: Bench, condition: str, work: Awaitable[None]) -> None:
    began = time.perf_counter()
    try:
        await work
    finally:
        bench.spans[condition] = (began, time.perf_counter())


async def sequential(bench: Bench, rounds: int) -> None:
    """All questions about one edition, one at a time. Another question is the first in every round."""
    count = len(bench.material.questions)
    for number in range(rounds):
        edition = fresh()
        for place in range(count):
            prompt = bench.material.prompt(edition, number + place)
            await bench.ask(SEQUENTIAL, number, AGAIN if place else FIRST, prompt)


async def concurrency(bench: Bench, clients: Sequence[int], rounds: int) -> None:
    """Every number of clients, with a policy in common and with one each, at once and one after another."""
    for number in range(rounds):
        for count in clients:
            for kind in (COMMON, OWN):
                for way in (TOGETHER, ONE_BY_ONE) if number % 2 else (ONE_BY_ONE, TOGETHER):
                    bench.batches.append(await _batch(bench, number, count, kind, way))


async def _batch(bench: Bench, number: int, count: int, kind: str, way: str) -> Batch:
    material = bench.material
    editions = [fresh()] * count if kind == COMMON else [fresh() for _ in range(count)]
    if kind == COMMON:
        opening = material.prompt(editions[0], count)
        await bench.ask(CONCURRENCY, number, PREPARING, opening, group=count, most=SHORT_ANSWER)
    prompts = [material.prompt(edition, case, case=case + 1) for case, edition in enumerate(editions)]
    began = time.perf_counter()
    if way == TOGETHER:
        calls = (bench.ask(CONCURRENCY, number, way, prompt, group=count) for prompt in prompts)
        asked = await asyncio.gather(*calls)
    else:
        asked = [await bench.ask(CONCURRENCY, number, way, prompt, group=count) for prompt in prompts]
    ended = time.perf_counter()
    bench.watch.look()
    replies = tuple(one.reply for one in asked)
    return Batch(kind, way, count, number, ended - began, replies, bench.watch.peak(since=began))


async def mixed(bench: Bench, prefixes: Sequence[int], rounds: int) -> None:
    """So many editions in turn, and back to the first one with another question."""
    for number in range(rounds):
        for count in prefixes:
            editions = [fresh() for _ in range(count)]
            for place, edition in enumerate(editions):
                prompt = bench.material.prompt(edition, place)
                await bench.ask(MIXED, number, VISIT, prompt, group=count, most=SHORT_ANSWER)
            back = bench.material.prompt(editions[0], 1)
            await bench.ask(MIXED, number, BACK, back, group=count, most=SHORT_ANSWER)


async def order(bench: Bench, rounds: int) -> None:
    """The same, with what changes in every request behind the policy and in front of it."""
    stamps = 0
    for number in range(rounds):
        for role in (BEFORE, AFTER) if number % 2 else (AFTER, BEFORE):
            edition = fresh()
            for place in range(1 + ASKED_AGAIN):
                stamps += 1
                told = stamp(stamps)
                before, behind = (told, "") if role == BEFORE else ("", told)
                prompt = bench.material.prompt(edition, place, before=before, behind=behind)
                await bench.ask(ORDER, number, role if place else PREPARING, prompt)


def steps(questions: int, clients: Sequence[int], prefixes: Sequence[int], rounds: int) -> int:
    """How many requests all of it has."""
    concurrent = sum(2 * (1 + count) + 2 * count for count in clients)
    return rounds * (questions + concurrent + sum(count + 1 for count in prefixes) + 2 * (1 + ASKED_AGAIN))
