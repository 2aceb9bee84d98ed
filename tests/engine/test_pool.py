"""Leases survive cancellation at every point where one can wait."""

from __future__ import annotations

import asyncio
import random

import pytest

from jev_local.core.slots import SlotTable
from jev_local.engine.pool import SlotPool
from jev_local.errors import BackendUnavailable, Busy

PROMPT = (1, 2, 3)


def pool(count: int = 1, *, patience: float = 60) -> SlotPool:
    return SlotPool(SlotTable(count=count, limit=count, context=100), patience=patience)


async def can_lease(slots: SlotPool) -> bool:
    async with asyncio.timeout(0.2), slots.lease(PROMPT, need=4):
        return True


def waiting(slots: SlotPool) -> int:
    return slots._table.waiting


def test_a_cancelled_waiter_does_not_take_the_slot_with_it() -> None:
    async def scene() -> None:
        slots = pool()
        async with slots.lease(PROMPT, need=4):
            waiter = asyncio.create_task(can_lease(slots))
            await asyncio.sleep(0)
            assert waiting(slots) == 1
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert waiting(slots) == 0
        assert await can_lease(slots)

    asyncio.run(scene())


def test_a_grant_that_arrives_together_with_the_cancellation_is_passed_on() -> None:
    async def scene() -> None:
        slots = pool()
        order: list[str] = []

        async def use(name: str) -> None:
            async with slots.lease(PROMPT, need=4):
                order.append(name)

        async with slots.lease(PROMPT, need=4):
            first, second = asyncio.create_task(use("first")), asyncio.create_task(use("second"))
            await asyncio.sleep(0)
        first.cancel()  # its future has just been set by the release above, and its task has not run
        with pytest.raises(asyncio.CancelledError):
            await first
        await second
        assert order == ["second"]
        assert await can_lease(slots)

    asyncio.run(scene())


def test_a_waiter_cancelled_before_the_release_is_skipped() -> None:
    async def scene() -> None:
        slots = pool()
        async with slots.lease(PROMPT, need=4):
            gone, next_one = asyncio.create_task(can_lease(slots)), asyncio.create_task(can_lease(slots))
            await asyncio.sleep(0)
            gone.cancel()  # cancelled, but its task has not run when the slot comes back
        assert await next_one
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(scene())


def test_what_a_failed_lease_says_of_its_slot_is_not_believed() -> None:
    async def scene() -> None:
        slots = pool(2)
        with pytest.raises(RuntimeError):
            async with slots.lease(PROMPT, need=4) as lease:
                lease.holds = (1, 2, 3)
                raise RuntimeError
        async with slots.lease((9,), need=2):
            pass
        async with slots.lease(PROMPT, need=4) as lease:
            assert lease.slot == 0, "nothing is known of slot 0, so it is just the one left longest ago"

    asyncio.run(scene())


def test_under_random_cancellation_no_slot_is_lost() -> None:
    async def scene() -> None:
        dice = random.Random(3)
        slots = pool(3)
        holders: set[int] = set()

        async def use() -> None:
            async with slots.lease((dice.randint(1, 4),), need=2) as lease:
                assert lease.slot not in holders
                holders.add(lease.slot)
                try:
                    for _ in range(dice.randint(0, 4)):
                        await asyncio.sleep(0)
                finally:
                    holders.remove(lease.slot)

        running: list[asyncio.Task[None]] = []
        for _ in range(600):
            running.append(asyncio.create_task(use()))
            if dice.random() < 0.5:
                dice.choice(running).cancel()
            if dice.random() < 0.7:
                await asyncio.sleep(0)
        results = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(r, asyncio.CancelledError) or r is None for r in results)
        async with (
            asyncio.timeout(1),
            slots.lease(PROMPT, need=4),
            slots.lease(PROMPT, need=4),
            slots.lease(PROMPT, need=4),
        ):
            assert waiting(slots) == 0

    asyncio.run(scene())


def test_nobody_waits_for_ever() -> None:
    async def scene() -> None:
        slots = pool(patience=0.05)
        async with slots.lease(PROMPT, need=4):
            with pytest.raises(Busy, match=r"within 0\.05 s"):
                await can_lease(slots)
            assert waiting(slots) == 0
        assert await can_lease(slots)

    asyncio.run(scene())


def test_a_closed_pool_lets_nobody_wait_hold_or_come() -> None:
    async def scene() -> None:
        slots = pool()
        async with slots.lease(PROMPT, need=4):
            waiter = asyncio.create_task(can_lease(slots))
            await asyncio.sleep(0)
            slots.close(BackendUnavailable("restarted"))
            with pytest.raises(BackendUnavailable, match="restarted"):
                await waiter
            with pytest.raises(BackendUnavailable, match="restarted"):
                slots.require_open()
        with pytest.raises(BackendUnavailable, match="restarted"):
            await can_lease(slots)

    asyncio.run(scene())
