"""An engine without a model: proper distributions, and a door that tests can hold shut.

Nothing in it sleeps. `events` records what happened in the order in which it happened, and a test waits
for an entry with `until`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from jev_local.core.answers import Reading, answer
from jev_local.core.chats import Chat
from jev_local.core.compared import Compared
from jev_local.core.events import Event, Splitter
from jev_local.core.explain import Explanation, Side
from jev_local.core.parting import Move, Place
from jev_local.core.pictures import NO_PICTURES, Album
from jev_local.core.questions import Choice, Noul, Question, Score
from jev_local.core.reasons import Check
from jev_local.engine.decision import CacheReport, Decision, Status, Trace, Usage

READY = Status(
    status="ready",
    model="fake-1b",
    build="b11042",
    slots=4,
    context=8192,
    vision=False,
    single_labels=255,
    state_cache={
        "mode": "auto",
        "sharing": True,
        "reason": None,
        "strategies": [{"name": "in-place", "exact": True, "ms": 12.5}, {"name": "restore", "exact": True, "ms": None}],
    },
    chats={"slots": 2, "context": 4096, "reason": None},
)

TRACE = Trace(
    state_cache="shared",
    prefix_tokens=12,
    cached_tokens=34,
    processed_tokens=56,
    source="memory",
    strategy="fan-out",
    reevaluated=2,
    timings_ms=(("restore", 0.25), ("total", 1.5)),
)

CACHE = CacheReport(
    mode="auto",
    sharing=True,
    saving=False,
    reason="The disk is full.",
    bytes=4096,
    budget=8192,
    entries=3,
    hits=5,
    misses=7,
    evictions=11,
)


EXPLANATION = Explanation(
    a=Side("decision", 58, 29),
    b=Side("chat", 60, 30),
    agree=21,
    whole=False,
    place=Place("date-time", "before", "left", "right", "one", "other"),
    moves=(Move("date-time", "one", "other", 47),),
    checks=(Check("text", "differs", "It parts."),),
    advice="Put it behind.",
)

SAID = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null}}],"id":"c1","created":1,"model":"m",'
    b'"system_fingerprint":"f","object":"chat.completion.chunk",'
    b'"prompt_progress":{"total":9,"cache":0,"processed":0,"time_ms":0}}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"\xe3\x81\xaf\xe3\x81\x84"}}],"id":"c1","created":1,"model":"m",'
    b'"system_fingerprint":"f","object":"chat.completion.chunk"}\n\n',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"id":"c1","created":1,"model":"m",'
    b'"system_fingerprint":"f","object":"chat.completion.chunk"}\n\n',
    b'data: {"choices":[],"id":"c1","created":1,"model":"m","system_fingerprint":"f",'
    b'"object":"chat.completion.chunk","usage":{"completion_tokens":2,"prompt_tokens":9,"total_tokens":11,'
    b'"prompt_tokens_details":{"cached_tokens":8}},"timings":{"cache_n":8,"prompt_n":1,"prompt_ms":2.5,'
    b'"prompt_per_token_ms":2.5,"prompt_per_second":400.0,"predicted_n":2,"predicted_ms":1.0}}\n\n',
    b"data: [DONE]\n\n",
)
"""What llama-server sends of a chat whose usage was asked for."""


@dataclass
class FakeEngine:
    """`open` cleared: `decide` waits at the door. `leaving` cleared: a cancelled `decide` takes its time to end.
    `error`: raised once the door is open.
    """

    state: Status = READY
    error: BaseException | None = None
    warnings: tuple[str, ...] = ()
    mass: float = 0.75
    trace: Trace = TRACE
    report: CacheReport = CACHE
    calls: list[tuple[str, tuple[Question, ...]]] = field(default_factory=list)
    albums: list[Album] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    chats: list[Chat] = field(default_factory=list)
    counted: bool = True
    said: Sequence[bytes | BaseException | asyncio.Event] = SAID

    def __post_init__(self) -> None:
        self.open, self.leaving = asyncio.Event(), asyncio.Event()
        self.open.set()
        self.leaving.set()
        self._changed = asyncio.Condition()

    async def start(self) -> None:
        await self._note("start")

    async def stop(self) -> None:
        await self._note("stop")

    def status(self) -> Status:
        return self.state

    def cache(self) -> CacheReport:
        self.events.append("cache")  # nobody waits for what takes no time
        return self.report

    async def clear_cache(self) -> int:
        await self._note("clear")
        deleted, self.report = self.report.entries, replace(self.report, bytes=0, entries=0)
        return deleted

    async def decide(self, *, state: str, questions: tuple[Question, ...], album: Album = NO_PICTURES) -> Decision:
        number = len(self.calls)
        self.calls.append((state, questions))
        self.albums.append(album)
        await self._note(f"begin {number}")
        try:
            await self.open.wait()
            if self.error is not None:
                raise self.error
        except asyncio.CancelledError:
            await self._note(f"cancelled {number}")
            await self.leaving.wait()
            await self._note(f"left {number}")
            raise
        await self._note(f"done {number}")
        return Decision(
            model=self.state.model or "fake-1b",
            answers=tuple(answer(question, self._read(state, question)) for question in questions),
            usage=Usage(input_tokens=len(state) + len(questions), output_tokens=len(questions)),
            trace=self.trace,
        )

    @asynccontextmanager
    async def chat(self, chat: Chat) -> AsyncIterator[FakeTalk]:
        number = len(self.chats)
        self.chats.append(chat)
        await self._note(f"chat {number}")
        try:
            await self.open.wait()
            if self.error is not None:
                raise self.error
            yield FakeTalk(self, self.trace, is_counted=self.counted)
        except asyncio.CancelledError:
            await self._note(f"chat cancelled {number}")
            raise
        await self._note(f"chat done {number}")

    async def explain(self, a: Compared, b: Compared) -> Explanation:
        return EXPLANATION

    async def until(self, event: str, *, seconds: float = 5.0) -> None:
        """Waits until `event` is in `events`; the limit is there for tests that would hang."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(lambda: event in self.events)

    async def _note(self, event: str) -> None:
        self.events.append(event)
        async with self._changed:
            self._changed.notify_all()

    def _read(self, state: str, question: Question) -> Reading:
        """Depends on the state and the question's words, never on its id or its neighbours; sums to 1."""
        match question:
            case Noul():
                options: tuple[str, ...] = ("yes", "no")
            case Choice():
                options = tuple(f"{option.key}:{option.text}" for option in question.options)
            case Score():
                options = question.levels
        words = repr(replace(question, id=""))
        weights = [math.exp(4 * _hash(state, words, option)) for option in options]
        total = math.fsum(weights)
        return Reading(tuple(weight / total for weight in weights), mass=self.mass, warnings=self.warnings)


@dataclass
class FakeTalk:
    """Says what is in `engine.said`, an Event to wait for and an error to raise among it."""

    engine: FakeEngine
    trace: Trace
    prompt_ms: float = 5.0
    is_counted: bool = True

    async def events(self) -> AsyncIterator[Event]:
        for each in self.engine.said:
            if isinstance(each, BaseException):
                raise each
            if isinstance(each, asyncio.Event):
                await each.wait()
            else:
                for event in Splitter().feed(each):
                    yield event


def _hash(*parts: str) -> float:
    """0 to 1, the same on every run."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:7]) / 2**56
