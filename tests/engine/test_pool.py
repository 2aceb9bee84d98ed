"""Leases survive cancellation at every point where one can wait."""

from __future__ import annotations

import asyncio
import random

import pytest

from jev_local.core.plan import PrefixPlan
from jev_local.core.slots import SlotTable
from jev_local.engine.pool import SlotPool


def plan(*tokens: int) -> PrefixPlan:
    return PrefixPlan(0, (tokens or (1, 2, 3),))


def pool(count: int = 1) -> SlotPool:
    return SlotPool(SlotTable(count=count, limit=count, context=100))


async def can_lease(slots: SlotPool) -> bool:
    async with asyncio.timeout(0.2), slots.lease(plan()):
        return True


def test_a_cancelled_waiter_does_not_take_the_slot_with_it() -> None:
    async def scene() -> None:
        slots = pool()
        async with slots.lease(plan()):
            waiter = asyncio.create_task(can_lease(slots))
            await asyncio.sleep(0)
            assert slots.waiting == 1
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert slots.waiting == 0
        assert await can_lease(slots)

    asyncio.run(scene())


def test_a_grant_that_arrives_together_with_the_cancellation_is_passed_on() -> None:
    async def scene() -> None:
        slots = pool()
        order: list[str] = []

        async def use(name: str) -> None:
            async with slots.lease(plan()):
                order.append(name)

        async with slots.lease(plan()):
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
        async with slots.lease(plan()):
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
            async with slots.lease(plan(1, 2, 3)) as lease:
                lease.holds = (1, 2, 3)
                raise RuntimeError
        async with slots.lease(plan(9)):
            pass
        async with slots.lease(plan(1, 2, 3)) as lease:
            assert lease.slot == 0, "nothing is known of slot 0, so it is just the one left longest ago"

    asyncio.run(scene())


def test_under_random_cancellation_no_slot_is_lost() -> None:
    async def scene() -> None:
        dice = random.Random(3)
        slots = pool(3)
        holders: set[int] = set()

        async def use() -> None:
            async with slots.lease(plan(dice.randint(1, 4))) as lease:
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
        async with asyncio.timeout(1), slots.lease(plan()), slots.lease(plan()), slots.lease(plan()):
            assert slots.waiting == 0

    asyncio.run(scene())
