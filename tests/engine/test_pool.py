"""Leases survive cancellation at every point where one can wait."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from fakes.cancel import ends_cancelled
from jev_local.core.slots import Contents, SlotTable, Wish
from jev_local.engine.pool import SlotPool
from jev_local.errors import BackendFault, BackendUnavailable, Busy

WISH = Wish((1, 2, 3), 4)
LONG = Wish(tuple(range(600)), 97)
"""Takes the upper slot and all of the context."""


def pool(count: int = 1, *, patience: float = 60, erase: Callable[[int], Awaitable[None]] | None = None) -> SlotPool:
    async def nothing(_: int) -> None:
        await asyncio.sleep(0)

    return SlotPool(SlotTable(count=count, limit=count, context=100), patience=patience, erase=erase or nothing)


async def can_lease(slots: SlotPool) -> bool:
    async with asyncio.timeout(0.2), slots.lease(WISH):
        return True


def waiting(slots: SlotPool) -> int:
    return slots._table.waiting


async def fill(slots: SlotPool, *contents: int) -> None:
    """Leave so many tokens in each slot."""
    async with AsyncExitStack() as leases:
        for size in contents:
            lease = await leases.enter_async_context(slots.lease(Wish((), 0)))
            begun = 1000 * (lease.slot + 1)
            lease.contents = Contents(tuple(range(begun, begun + size)))


def assert_all_free(slots: SlotPool) -> None:
    table = slots._table
    assert (table.held, table.waiting, slots._futures) == (0, 0, {})
    assert all(slot.ticket is None for slot in table._slots)


def test_a_cancelled_waiter_does_not_take_the_slot_with_it() -> None:
    async def scene() -> None:
        slots = pool()
        async with slots.lease(WISH):
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
            async with slots.lease(WISH):
                order.append(name)

        async with slots.lease(WISH):
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
        async with slots.lease(WISH):
            gone, next_one = asyncio.create_task(can_lease(slots)), asyncio.create_task(can_lease(slots))
            await asyncio.sleep(0)
            gone.cancel()  # cancelled, but its task has not run when the slot comes back
        assert await next_one
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(scene())


def test_what_a_failed_lease_says_of_its_slot_is_not_believed() -> None:
    async def scene() -> None:
        slots = pool(1)
        with pytest.raises(RuntimeError):
            async with slots.lease(WISH) as lease:
                lease.contents = Contents((1, 2, 3))
                raise RuntimeError
        async with slots.lease(WISH) as lease:
            assert lease.reusable == 0
            lease.contents = Contents((1, 2, 3))
        async with slots.lease(WISH) as lease:
            assert lease.reusable == 3

    asyncio.run(scene())


def test_under_random_cancellation_no_slot_is_lost() -> None:
    async def scene() -> None:
        dice = random.Random(3)
        slots = pool(3)
        holders: set[int] = set()

        async def use() -> None:
            async with slots.lease(Wish((dice.randint(1, 4),), dice.randint(2, 60))) as lease:
                assert lease.slot not in holders
                holders.add(lease.slot)
                try:
                    for _ in range(dice.randint(0, 4)):
                        await asyncio.sleep(0)
                    held = lease.slot
                    holders.remove(held)
                    if dice.random() < 0.5:
                        await slots.give_way(lease)
                    assert lease.slot not in holders
                    holders.add(lease.slot)
                finally:
                    holders.discard(lease.slot)

        running: list[asyncio.Task[None]] = []
        for _ in range(600):
            running.append(asyncio.create_task(use()))
            if dice.random() < 0.5:
                dice.choice(running).cancel()
            if dice.random() < 0.7:
                await asyncio.sleep(0)
        results = await asyncio.gather(*running, return_exceptions=True)
        assert {type(r) for r in results} == {asyncio.CancelledError, type(None)}
        assert_all_free(slots)

    asyncio.run(scene())


def test_nobody_waits_for_ever() -> None:
    async def scene() -> None:
        slots = pool(patience=0.05)
        async with slots.lease(WISH):
            with pytest.raises(Busy, match=r"within 0\.05 s"):
                await can_lease(slots)
            assert waiting(slots) == 0
        assert await can_lease(slots)

    asyncio.run(scene())


def test_a_closed_pool_lets_nobody_wait_hold_or_come() -> None:
    async def scene() -> None:
        slots = pool()
        async with slots.lease(WISH):
            waiter = asyncio.create_task(can_lease(slots))
            await asyncio.sleep(0)
            slots.close(BackendUnavailable("restarted"))
            with pytest.raises(BackendUnavailable, match="restarted"):
                await waiter
            with pytest.raises(BackendUnavailable, match="restarted"):
                slots.require_open()
        for lease in (slots.lease, slots.lease_now):
            with pytest.raises(BackendUnavailable, match="restarted"):
                async with lease(WISH):
                    pass
        assert_all_free(slots)

    asyncio.run(scene())


def test_one_more_slot_is_had_at_once_or_not_at_all() -> None:
    async def scene() -> None:
        slots = pool(2)
        async with slots.lease(WISH), slots.lease_now(WISH) as second:
            assert second is not None
            async with slots.lease_now(WISH) as third:
                assert third is None
            waiter = asyncio.create_task(can_lease(slots))
            await asyncio.sleep(0)
            assert waiting(slots) == 1
        assert await waiter
        assert_all_free(slots)

    asyncio.run(scene())


def test_nobody_gives_way_to_nobody() -> None:
    async def scene() -> None:
        slots = pool()
        async with slots.lease(WISH) as lease:
            lease.contents = Contents((1, 2))
            assert not await slots.give_way(lease)
            assert lease.contents == Contents((1, 2))

    asyncio.run(scene())


def test_who_waits_goes_first_and_the_lease_comes_back_on_the_slot_that_is_best_then() -> None:
    async def scene() -> None:
        slots = pool(2)
        order: list[str] = []

        async def other() -> None:
            async with slots.lease(LONG) as lease:
                order.append("other")
                lease.contents = Contents((1, 2, 3))

        async with slots.lease(WISH) as lease:
            assert lease.slot == 0
            lease.contents = Contents((1, 9))
            waiter = asyncio.create_task(other())
            await asyncio.sleep(0)
            assert await slots.give_way(lease)
            order.append("we")
            assert (lease.slot, lease.reusable, lease.contents) == (1, 3, Contents())
            lease.contents = Contents((1, 2, 3, 4))
        assert order == ["other", "we"]
        await waiter
        assert_all_free(slots)
        async with slots.lease(Wish((1, 2, 3, 4), 5)) as lease:
            assert (lease.slot, lease.reusable) == (1, 4), "what was set after it came back counts"

    asyncio.run(scene())


def test_cancelled_while_it_gives_way_a_lease_is_neither_lost_nor_given_back_twice() -> None:
    async def scene() -> None:
        slots = pool()
        holding, done = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with slots.lease(WISH):
                holding.set()
                await done.wait()

        async def gives_way() -> None:
            async with slots.lease(WISH) as lease:
                holder = asyncio.create_task(hold())
                await asyncio.sleep(0)
                try:
                    await slots.give_way(lease)
                finally:
                    assert lease.slot == -1
                    done.set()
                    await holder

        giving = asyncio.create_task(gives_way())
        await holding.wait()
        assert waiting(slots) == 1
        giving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await giving
        assert_all_free(slots)
        assert await can_lease(slots)

    asyncio.run(scene())


def test_a_pool_that_closes_while_a_lease_gives_way_says_so() -> None:
    async def scene() -> None:
        slots = pool()
        holding, done = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with slots.lease(WISH):
                holding.set()
                await done.wait()

        async def gives_way() -> None:
            async with slots.lease(WISH) as lease:
                holder = asyncio.create_task(hold())
                await asyncio.sleep(0)
                try:
                    await slots.give_way(lease)
                finally:
                    done.set()
                    await holder

        giving = asyncio.create_task(gives_way())
        await holding.wait()
        slots.close(BackendUnavailable("restarted"))
        with pytest.raises(BackendUnavailable, match="restarted"):
            await giving
        assert_all_free(slots)

    asyncio.run(scene())


def test_a_lease_that_is_not_granted_anew_in_time_ends() -> None:
    async def scene() -> None:
        slots = pool(patience=0.05)
        done = asyncio.Event()

        async def hold() -> None:
            async with slots.lease(WISH):
                await done.wait()

        with pytest.raises(Busy):
            async with slots.lease(WISH) as lease:
                holder = asyncio.create_task(hold())
                await asyncio.sleep(0)
                await slots.give_way(lease)
        done.set()
        await holder
        assert_all_free(slots)

    asyncio.run(scene())


def test_what_is_in_the_way_is_erased_before_the_lease_begins() -> None:
    async def scene() -> None:
        erased: list[int] = []

        async def erase(slot: int) -> None:
            assert slots._table.request_now(99, Wish((), 0)) is None, "neither slot is free meanwhile"
            erased.append(slot)

        slots = pool(2, erase=erase)
        await fill(slots, 60, 60)
        async with slots.lease(Wish((1,), 50)) as lease:
            assert (lease.slot, erased) == (0, [1])
            async with slots.lease_now(Wish((2000,), 50)) as second:
                assert second is not None
                assert (second.slot, second.reusable) == (1, 0)
        assert_all_free(slots)

    asyncio.run(scene())


@pytest.mark.parametrize("gives_way", [False, True])
def test_an_erasure_that_fails_ends_the_lease_and_frees_every_slot(gives_way: bool) -> None:
    async def scene() -> None:
        async def erase(_: int) -> None:
            raise BackendFault("full")

        slots = pool(2, erase=erase)

        async def other() -> None:
            async with slots.lease(LONG) as lease:
                lease.contents = Contents(LONG.stem[:90])

        async def ours() -> None:
            async with slots.lease(Wish((1,), 50)) as lease:
                if gives_way:
                    lease.contents = Contents((1,))
                    waiter = asyncio.create_task(other())
                    await asyncio.sleep(0)
                    try:
                        await slots.give_way(lease)
                    finally:
                        await waiter
                raise AssertionError("there is no room for it")

        if not gives_way:
            await fill(slots, 60, 60)
        with pytest.raises(BackendFault, match="full"):
            await ours()
        assert_all_free(slots)

    asyncio.run(scene())


def test_cancelled_wherever_it_waits_a_lease_leaves_every_slot_free() -> None:
    async def scene() -> None:
        turn, cancelled = 0, True
        while cancelled:
            turn += 1
            slots = pool(2)
            await fill(slots, 60, 60)

            async def other(slots: SlotPool = slots) -> None:
                async with slots.lease(Wish((5,), 90)) as lease:
                    await asyncio.sleep(0)
                    lease.contents = Contents(tuple(range(500, 590)))

            async def ours(slots: SlotPool = slots) -> None:
                async with slots.lease(Wish((1,), 50)) as lease, slots.lease_now(Wish((2,), 10)):
                    waiter = asyncio.create_task(other())
                    try:
                        await asyncio.sleep(0)
                        await slots.give_way(lease)
                    except BaseException:
                        waiter.cancel()
                        raise

            cancelled = await ends_cancelled(turn, ours())
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0)
            assert_all_free(slots)
        assert turn > 3

    asyncio.run(scene())
