"""SlotPool: SlotTable and futures. `lease` is the only way to a slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

from jev_local.core.plan import Tokens
from jev_local.core.slots import Grant, SlotTable
from jev_local.errors import BackendError, Busy


@dataclass(slots=True)
class Lease:
    """`slot` is ours until the `async with` ends. Set `holds` to what the slot contains after each pass; what it
    says when the block is left by an exception is not believed."""

    slot: int
    holds: Tokens = ()


class SlotPool:
    """Hands out the slots of one run of llama-server. `patience`: seconds that anybody waits for a slot at most."""

    def __init__(self, table: SlotTable, *, patience: float) -> None:
        self._table = table
        self._patience = patience
        self._tickets = count()
        self._futures: dict[int, asyncio.Future[int]] = {}
        self._closed: BackendError | None = None

    def close(self, error: BackendError) -> None:
        """The server behind these slots is gone: `error` for everybody who waits for one, holds one or asks for one."""
        self._closed = error
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)

    def require_open(self) -> None:
        """Raises what `close` was given. To be asked before each use of a lease: its slot may belong to the next
        run of the server by now, whose own pool knows nothing of it."""
        if self._closed is not None:
            raise self._closed

    @asynccontextmanager
    async def lease(self, prompt: Tokens, *, need: int) -> AsyncIterator[Lease]:
        """Wait for a slot, preferably one that holds the beginning of `prompt` already, and for `need` tokens of the
        context. Raises Busy when none came free in time.

        Cancellation is an ordinary way out: a ticket that waits is withdrawn, a slot that was held goes back with
        contents unknown.
        """
        self.require_open()
        ticket = next(self._tickets)
        slot = await self._granted(ticket, prompt, need)
        lease, holds = Lease(slot), Tokens()
        try:
            yield lease
            holds = lease.holds
        finally:
            self._hand_out(self._table.release(ticket, holds=holds))

    async def _granted(self, ticket: int, prompt: Tokens, need: int) -> int:
        future = self._futures[ticket] = asyncio.get_running_loop().create_future()
        self._hand_out(self._table.request(ticket, prompt, need=need))
        try:
            async with asyncio.timeout(self._patience):
                slot: int = await future
            return slot
        except BaseException as reason:
            # The grant may have come in the same turn of the loop as the cancellation.
            granted = future.done() and not future.cancelled() and future.exception() is None
            self._hand_out(self._table.release(ticket, holds=()) if granted else self._table.withdraw(ticket))
            if isinstance(reason, TimeoutError):
                raise Busy(f"No slot came free within {self._patience:g} s.", retry_after=5.0) from None
            raise
        finally:
            del self._futures[ticket]

    def _hand_out(self, grants: list[Grant]) -> None:
        for grant in grants:
            future = self._futures.get(grant.ticket)
            if future is None or future.done():
                # Cancelled, and its task has not run yet: pass the slot on instead of losing it.
                self._hand_out(self._table.release(grant.ticket, holds=()))
            else:
                future.set_result(grant.slot)
