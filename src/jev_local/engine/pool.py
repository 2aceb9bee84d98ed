"""SlotPool: SlotTable and futures. `lease` is the only way to a slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

from jev_local.core.plan import PrefixPlan, Tokens
from jev_local.core.slots import Grant, SlotTable


@dataclass(slots=True)
class Lease:
    """`slot` is ours until the `async with` ends. Set `holds` to what the slot contains after each pass; what it
    says when the block is left by an exception is not believed."""

    slot: int
    holds: Tokens = ()


class SlotPool:
    """Hands out the slots of one llama-server process."""

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._tickets = count()
        self._futures: dict[int, asyncio.Future[int]] = {}

    @property
    def waiting(self) -> int:
        return self._table.waiting

    @asynccontextmanager
    async def lease(self, plan: PrefixPlan) -> AsyncIterator[Lease]:
        """Wait for a slot, preferably one that holds the plan's prompts already. Cancellation is an ordinary way
        out: a ticket that waits is withdrawn, a slot that was held goes back with contents unknown."""
        ticket = next(self._tickets)
        slot = await self._granted(ticket, plan)
        lease, holds = Lease(slot), Tokens()
        try:
            yield lease
            holds = lease.holds
        finally:
            self._hand_out(self._table.release(ticket, holds=holds))

    async def _granted(self, ticket: int, plan: PrefixPlan) -> int:
        future = self._futures[ticket] = asyncio.get_running_loop().create_future()
        # +1: the token that every pass generates takes a place in the context as well.
        self._hand_out(self._table.request(ticket, plan.branches[0], need=plan.longest + 1))
        try:
            slot: int = await future
            return slot
        except asyncio.CancelledError:
            # The grant may have come in the same turn of the loop as the cancellation.
            granted = future.done() and not future.cancelled()
            self._hand_out(self._table.release(ticket, holds=()) if granted else self._table.withdraw(ticket))
            raise
        finally:
            del self._futures[ticket]

    def _hand_out(self, grants: list[Grant]) -> None:
        for grant in grants:
            future = self._futures.get(grant.ticket)
            if future is None or future.cancelled():
                # Cancelled, and its task has not run yet: pass the slot on instead of losing it.
                self._hand_out(self._table.release(grant.ticket, holds=()))
            else:
                future.set_result(grant.slot)
