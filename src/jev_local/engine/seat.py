"""Seat: one leased slot at work. Everything that is done with a slot goes through it, so that what the slot holds, what
it cost and whose server it is are kept in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from jev_local.backend.port import Backend, Completion, Saved
from jev_local.core.plan import Tokens
from jev_local.core.slots import UNKNOWN, Contents
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


@dataclass(frozen=True, slots=True)
class Lead:
    """Prompts that go before those that are read, so that the slot can be gone on from at `marks` afterwards."""

    prompts: tuple[Tokens, ...] = ()
    marks: tuple[int, ...] = ()


NO_LEAD = Lead()


@dataclass(slots=True)
class Seat:
    """`marks` are the lengths at which this slot can be gone on from, where the model cannot be cut back anywhere."""

    backend: Backend
    session: Session
    lease: Lease
    tally: Tally
    marks: tuple[int, ...] = ()

    def reusable(self, tokens: Tokens) -> int:
        """How many of the first `tokens`, which begin with the stem that the slot was asked for, need no evaluation."""
        touched = self.lease.contents != UNKNOWN
        return self.lease.contents.reusable(tokens) if touched else self.lease.reusable

    async def evaluate(self, tokens: Tokens, *, reuse: bool) -> None:
        """Bring `tokens` into the slot, where they end exactly."""
        self.session.pool.require_open()
        completion = await self.backend.evaluate(tokens, slot=self.lease.slot, reuse=reuse)
        self._took(tokens, [completion], reuse=reuse, prepared=True)

    async def read(
        self, prompts: Sequence[Tokens], how: Pass, *, reuse: bool, lead: Lead = NO_LEAD
    ) -> list[Completion]:
        """One forward pass per prompt, one after another, after those of `lead`, which are not read."""
        self.session.pool.require_open()
        completions = await self.backend.complete(
            [*lead.prompts, *prompts],
            slot=self.lease.slot,
            labels=how.labels,
            bias=how.bias,
            runners_up=how.beside,
            reuse=reuse,
        )
        ahead, read = completions[: len(lead.prompts)], completions[len(lead.prompts) :]
        if ahead:
            self._took(lead.prompts[-1], ahead, reuse=reuse, prepared=True)
            self.marks = lead.marks
        self._took(prompts[-1], read, reuse=reuse, prepared=False)
        return read

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

    def _took(self, held: Tokens, completions: Sequence[Completion], *, reuse: bool, prepared: bool) -> None:
        if completions[0].alias != self.session.info.alias:
            # Token ids of one vocabulary mean nothing in another's.
            raise BackendUnavailable("The inference server has changed its model. Try again in a moment.")
        self.tally.count(completions, prepared=prepared)
        if not reuse:
            self.marks = ()
        self.lease.contents = Contents(held, self._marks())

    def _marks(self) -> tuple[int, ...] | None:
        return None if self.session.profile.truncates else self.marks


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
