"""Seat: one leased slot at work. Everything that is done with a slot goes through it, so that what the slot holds, what
it cost and whose server it is are kept in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from jev_local.backend.port import Backend, Completion, Saved
from jev_local.core.plan import Tokens, common
from jev_local.core.sharing import Profile, Strategy
from jev_local.core.slots import UNKNOWN, Contents
from jev_local.core.spelling import Prompt, Spelling, steps
from jev_local.engine.pool import Lease
from jev_local.engine.session import Session
from jev_local.engine.tally import Tally
from jev_local.errors import BackendUnavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pass:
    """How the next token after some prompts is read: `bias` on `labels`, and `beside` runners-up with them."""

    labels: Tokens
    bias: float
    beside: int


@dataclass(slots=True)
class Seat:
    """`marks` are the lengths at which this slot can be gone on from, where the model cannot be cut back anywhere.
    `spelling`: of the prompts that are read here, where they have pictures."""

    backend: Backend
    session: Session
    lease: Lease
    tally: Tally
    marks: tuple[int, ...] = ()
    spelling: Spelling | None = None

    @property
    def profile(self) -> Profile:
        """What can be done with prefixes of this kind."""
        return self.session.profile_for(pictures=self.spelling is not None)

    def distrust(self, strategy: Strategy) -> None:
        self.session.distrust(strategy, pictures=self.spelling is not None)

    def steps(self, held: int, end: int, chunk: int) -> list[int]:
        """The lengths to evaluate a stem to, see `core.spelling.steps`."""
        return steps(held, end, chunk, cuts=None if self.spelling is None else self.spelling.cuts)

    def marked(self, marks: tuple[int, ...]) -> None:
        """The slot can be gone on from at `marks`, whatever is evaluated behind them."""
        self.marks = marks
        self.lease.contents = replace(self.lease.contents, marks=self._marks())

    def reusable(self, tokens: Tokens) -> int:
        """How many of the first `tokens`, which begin with the stem that the slot was asked for, need no evaluation."""
        touched = self.lease.contents != UNKNOWN
        return self.lease.contents.reusable(tokens) if touched else self.lease.reusable

    async def evaluate(self, tokens: Tokens, *, reuse: bool) -> int:
        """Bring `tokens` into the slot, where they end exactly; how many of them were there."""
        self.session.pool.require_open()
        completion = await self.backend.evaluate(self._spelled(tokens), slot=self.lease.slot, reuse=reuse)
        self._took([tokens], [completion], reuse=reuse, prepared=True)
        return completion.cached_tokens

    async def read(self, prompts: Sequence[Tokens], how: Pass, *, reuse: bool) -> list[Completion]:
        """One forward pass per prompt, one after another. In which order, llama-server decides: while other slots are
        at work it puts off what waits for this one, and takes it up as it comes."""
        self.session.pool.require_open()
        completions = await self.backend.complete(
            [self._spelled(prompt) for prompt in prompts],
            slot=self.lease.slot,
            labels=how.labels,
            bias=how.bias,
            runners_up=how.beside,
            reuse=reuse,
        )
        self._took(prompts, completions, reuse=reuse, prepared=False)
        return completions

    async def require_same_server(self) -> None:
        """Raises BackendUnavailable where another run of the server answers by now. It may have come up between two
        looks of the watcher, with other settings, and would take the snapshots of its predecessor."""
        if await self.backend.instance() != self.session.info.instance:
            raise BackendUnavailable("The inference server has restarted. Try again in a moment.")

    async def restore(self, name: str, tokens: Tokens) -> bool:
        """Put the snapshot `name` of `tokens` into the slot; False where it holds something else. Raises BackendFault
        where the server refused it."""
        self.session.pool.require_open()
        self.lease.contents, self.lease.reusable = UNKNOWN, 0
        with self.tally.stage("restore"):
            held = await self.backend.restore(self.lease.slot, name)
        if held != len(tokens):
            return False
        self.marks = (held,)
        self.lease.contents = Contents(tokens, self._marks())
        return True

    async def save(self, name: str) -> Saved:
        """Write the slot to `name`. Cancelled, it still waits until the server is done: what is written afterwards
        would be deleted by nobody."""
        self.session.pool.require_open()
        return await to_the_end(self.backend.save(self.lease.slot, name))

    def _took(
        self, prompts: Sequence[Tokens], completions: Sequence[Completion], *, reuse: bool, prepared: bool
    ) -> None:
        if completions[0].alias != self.session.info.alias:
            # Token ids of one vocabulary mean nothing in another's.
            raise BackendUnavailable("The inference server has changed its model. Try again in a moment.")
        self.tally.count(completions, prepared=prepared)
        if not reuse:
            self.marks = ()
        # Of several prompts any may have been the last one, so what they begin with is all that is known.
        known = min(common(prompts[0], prompt) for prompt in prompts)
        self.lease.contents = Contents(
            prompts[0][:known], self._marks(), ends=len(prompts) == 1, most=max(map(len, prompts))
        )

    @property
    def ends(self) -> tuple[int, ...] | None:
        """Where the slot can be gone on from once something was generated in it: anywhere, or nowhere for certain."""
        return None if self.profile.truncates else ()

    def _marks(self) -> tuple[int, ...] | None:
        return None if self.profile.truncates else self.marks

    def _spelled(self, tokens: Tokens) -> Prompt:
        return tokens if self.spelling is None else self.spelling.spell(tokens)


async def to_the_end(work: Awaitable[T]) -> T:
    """What `work` gives, also when the one who waits is cancelled: then after `work` has ended."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # looked at, so that nobody is told that it was not
        raise
