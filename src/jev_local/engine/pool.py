"""SlotPool: SlotTable and futures. `lease` is the only way to a slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count

from jev_local.core.slots import UNKNOWN, Contents, Grant, SlotTable, Wish
from jev_local.errors import BackendError, Busy, NotSupported


@dataclass(slots=True)
class Lease:
    """`slot` is ours until the `async with` ends, and holds `contents`, of which the first `reusable` tokens of the
    stem can be gone on from. Set `contents` to what the slot holds after each pass; what it says when the block is
    left by an exception is not believed."""

    slot: int
    reusable: int
    wish: Wish
    ticket: int
    contents: Contents = UNKNOWN


class SlotPool:
    """Hands out the slots of one run of llama-server. `patience`: seconds that anybody waits for a slot at most.
    `erase` empties a slot whose contents are in the way of others."""

    def __init__(self, table: SlotTable, *, patience: float, erase: Callable[[int], Awaitable[None]]) -> None:
        self._table = table
        self._patience = patience
        self._erase = erase
        self._tickets = count()
        self._futures: dict[int, asyncio.Future[Grant]] = {}
        self._closed: BackendError | None = None
        self._calm, self._stirred = asyncio.Event(), asyncio.Event()
        self._calm.set()

    def close(self, error: BackendError) -> None:
        """The server behind these slots is gone: `error` for everybody who waits for one, holds one or asks for one."""
        self._closed = error
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)

    async def calm(self, seconds: float) -> bool:
        """Whether there comes a moment within `seconds` in which no decision holds a slot."""
        try:
            async with asyncio.timeout(seconds):
                await self._calm.wait()
        except TimeoutError:
            return False
        return True

    async def stirred(self) -> None:
        """Until a decision holds a slot."""
        await self._stirred.wait()

    def require_open(self) -> None:
        """Raises what `close` was given. To be asked before each use of a lease: its slot may belong to the next
        run of the server by now, whose own pool knows nothing of it."""
        if self._closed is not None:
            raise self._closed

    @asynccontextmanager
    async def lease(self, wish: Wish) -> AsyncIterator[Lease]:
        """Wait for a slot, preferably one that holds the stem already, and for `wish.need` tokens of the context.
        Raises Busy when none came free in time.

        Cancellation is an ordinary way out: a ticket that waits is withdrawn, a slot that was held goes back with
        contents unknown.
        """
        self.require_open()
        ticket = next(self._tickets)
        grant = await self._granted(ticket, wish)
        async with self._held(grant, wish) as lease:
            yield lease

    @asynccontextmanager
    async def lease_now(self, wish: Wish) -> AsyncIterator[Lease | None]:
        """One more slot if there is one that nobody waits for, else None."""
        self.require_open()
        grant = self._table.request_now(next(self._tickets), wish)
        self._note()
        if grant is None:
            yield None
            return
        async with self._held(grant, wish) as lease:
            yield lease

    async def give_way(self, lease: Lease) -> bool:
        """Let those who wait go first, where anybody does: True when the lease was given back meanwhile, and its slot
        may be another one that holds something else."""
        if not self._table.waiting_for(lease.wish.use):
            return False
        self._hand_out(self._table.release(lease.ticket, contents=lease.contents))
        # Until it is granted anew the lease holds nothing, and the end of its block must not release what it lacks.
        lease.slot = -1
        grant = await self._granted(lease.ticket, lease.wish)
        lease.slot, lease.reusable, lease.contents = grant.slot, grant.reusable, UNKNOWN
        await self._make_room(grant)
        return True

    @asynccontextmanager
    async def _held(self, grant: Grant, wish: Wish) -> AsyncIterator[Lease]:
        lease, left = Lease(grant.slot, grant.reusable, wish, grant.ticket), UNKNOWN
        try:
            await self._make_room(grant)
            yield lease
            left = lease.contents
        finally:
            if lease.slot >= 0:
                self._hand_out(self._table.release(lease.ticket, contents=left))

    async def _make_room(self, grant: Grant) -> None:
        # A server without a slot directory erases nothing on request. It drops idle slots by itself where an
        # evaluation needs their place, and only restoring, which it cannot do either, would find none.
        with suppress(NotSupported):
            for slot in grant.erase:
                await self._erase(slot)
        if grant.erase:
            self._hand_out(self._table.erased(grant.ticket, grant.erase))

    async def _granted(self, ticket: int, wish: Wish) -> Grant:
        future = self._futures[ticket] = asyncio.get_running_loop().create_future()
        self._hand_out(self._table.request(ticket, wish))
        try:
            async with asyncio.timeout(self._patience):
                grant: Grant = await future
            return grant
        except BaseException as reason:
            # The grant may have come in the same turn of the loop as the cancellation.
            granted = future.done() and not future.cancelled() and future.exception() is None
            self._hand_out(self._table.release(ticket, contents=UNKNOWN) if granted else self._table.withdraw(ticket))
            if isinstance(reason, TimeoutError):
                raise Busy(f"No slot came free within {self._patience:g} s.", retry_after=5.0) from None
            raise
        finally:
            del self._futures[ticket]

    def _hand_out(self, grants: list[Grant]) -> None:
        self._note()
        for grant in grants:
            future = self._futures.get(grant.ticket)
            if future is None or future.done():
                # Cancelled, and its task has not run yet: pass the slot on instead of losing it.
                self._hand_out(self._table.release(grant.ticket, contents=UNKNOWN))
            else:
                future.set_result(grant)

    def _note(self) -> None:
        """The table has changed. A decision that waits while none has a slot waits for chats, and they go on."""
        stirred = self._table.held_for("decision") > 0
        for event, is_so in ((self._stirred, stirred), (self._calm, not stirred)):
            if is_so:
                event.set()
            else:
                event.clear()
