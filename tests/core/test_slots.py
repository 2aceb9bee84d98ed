from __future__ import annotations

import random

from jev_local.core.slots import Grant, SlotTable


def table(count: int = 2, *, limit: int = 9, context: int = 100) -> SlotTable:
    return SlotTable(count=count, limit=limit, context=context)


def test_a_free_slot_is_granted_at_once_lowest_first() -> None:
    slots = table()
    assert slots.request(1, (1,), need=1) == [Grant(1, 0)]
    assert slots.request(2, (1,), need=1) == [Grant(2, 1)]
    assert slots.request(3, (1,), need=1) == []
    assert (slots.held, slots.waiting) == (2, 1)


def test_who_came_first_is_served_first() -> None:
    slots = table(1)
    for ticket in (1, 2, 3):
        slots.request(ticket, (ticket,), need=1)
    assert slots.release(1, holds=()) == [Grant(2, 0)]
    assert slots.release(2, holds=()) == [Grant(3, 0)]


def test_the_slot_that_holds_the_longest_prefix_is_preferred() -> None:
    slots = table(3)
    for ticket, holds in ((1, (1, 2, 3)), (2, (1, 2, 9)), (3, (7,))):
        slots.request(ticket, holds, need=1)
    for ticket, holds in ((1, (1, 2, 3)), (2, (1, 2, 9)), (3, (7,))):
        slots.release(ticket, holds=holds)
    assert slots.request(4, (1, 2, 9, 4), need=1) == [Grant(4, 1)]
    assert slots.request(5, (1, 2, 9, 4), need=1) == [Grant(5, 0)], "the next best"


def test_without_a_match_the_slot_left_longest_ago_is_taken() -> None:
    slots = table(2)
    slots.request(1, (1,), need=1)
    slots.request(2, (2,), need=1)
    slots.release(2, holds=(2,))
    slots.release(1, holds=(1,))
    assert slots.request(3, (3,), need=1) == [Grant(3, 1)]


def test_a_slot_with_unknown_contents_matches_nothing() -> None:
    slots = table(2)
    slots.request(1, (1, 2), need=1)
    slots.release(1, holds=())
    slots.request(2, (5,), need=1)
    slots.release(2, holds=(1,))
    assert slots.request(3, (1, 2), need=1) == [Grant(3, 1)]


def test_no_more_leases_than_the_limit() -> None:
    slots = table(4, limit=1)
    assert slots.request(1, (1,), need=1) == [Grant(1, 0)]
    assert slots.request(2, (2,), need=1) == []
    assert slots.release(1, holds=()) == [Grant(2, 1)]


def test_prompts_read_at_once_fit_the_context_together_and_nobody_overtakes() -> None:
    slots = table(4, context=100)
    assert slots.request(1, (1,), need=60) == [Grant(1, 0)]
    assert slots.request(2, (2,), need=41) == []
    assert slots.request(3, (3,), need=1) == [], "it would fit, but it is not its turn"
    assert slots.release(1, holds=()) == [Grant(2, 1), Grant(3, 2)]


def test_a_lone_prompt_larger_than_the_context_is_not_kept_waiting_for_ever() -> None:
    assert table(context=10).request(1, (1,), need=11) == [Grant(1, 0)]


def test_withdrawing_the_head_lets_the_others_go() -> None:
    slots = table(4, context=10)
    slots.request(1, (1,), need=5)
    slots.request(2, (2,), need=9)
    slots.request(3, (3,), need=5)
    assert slots.withdraw(2) == [Grant(3, 1)]


def test_no_slot_is_ever_lost_or_doubled() -> None:
    dice = random.Random(7)
    for _ in range(200):
        slots = table(dice.randint(1, 4), limit=dice.randint(1, 5), context=50)
        held: dict[int, int] = {}
        waiting: list[int] = []
        granted: list[Grant] = []
        for ticket in range(60):
            action = dice.random()
            if action < 0.5 or not held:
                waiting.append(ticket)
                granted = slots.request(ticket, (dice.randint(0, 3),), need=dice.randint(1, 50))
            elif action < 0.85 or not waiting:
                done = dice.choice(sorted(held))
                del held[done]
                granted = slots.release(done, holds=())
            else:
                gone = dice.choice(waiting)
                waiting.remove(gone)
                granted = slots.withdraw(gone)
            for grant in granted:
                assert grant.slot not in held.values()
                assert grant.ticket == waiting.pop(0)
                held[grant.ticket] = grant.slot
            assert (slots.held, slots.waiting) == (len(held), len(waiting))
        while held:
            done = next(iter(held))
            del held[done]
            for grant in slots.release(done, holds=()):
                held[grant.ticket] = grant.slot
                waiting.remove(grant.ticket)
        assert not waiting
