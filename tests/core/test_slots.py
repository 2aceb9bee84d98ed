from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jev_local.core.plan import Tokens
from jev_local.core.slots import UNKNOWN, Contents, Grant, SlotTable, Wish

LONG = 10


def table(count: int = 2, *, limit: int = 9, context: int = 100) -> SlotTable:
    return SlotTable(count=count, limit=limit, context=context, long=LONG)


def wish(*stem: int, need: int = 1) -> Wish:
    return Wish(stem, need)


def state(first: int, length: int = LONG) -> Tokens:
    return tuple(range(first, first + length))


def filled(slots: SlotTable, *contents: Tokens | Contents) -> SlotTable:
    """`slots`, with `contents` left in them one after another: the lowest slot first."""
    granted = [slots.request(-1 - i, wish(need=0))[0] for i in range(len(contents))]
    for grant in sorted(granted, key=lambda grant: grant.slot):
        left = contents[grant.slot]
        slots.release(grant.ticket, contents=left if isinstance(left, Contents) else Contents(left))
    return slots


@pytest.mark.parametrize(
    ("contents", "prompt", "reusable"),
    [
        (UNKNOWN, (1, 2), 0),
        (Contents((1, 2, 3)), (1, 2, 9), 2),
        (Contents((1, 2, 3)), (1, 2), 2),
        (Contents((1, 2, 3)), (1, 2, 3, 4), 3),
        (Contents((1, 2, 3), marks=()), (1, 2, 9), 0),
        (Contents((1, 2, 3), marks=()), (1, 2, 3, 4), 3),
        (Contents((1, 2, 3), marks=()), (1, 2), 0),
        (Contents((1, 2, 3, 4), marks=(1, 3)), (1, 2, 9), 1),
        (Contents((1, 2, 3, 4), marks=(1, 3)), (1, 2, 3, 9), 3),
        (Contents((1, 2, 3, 4), marks=(2,)), (1, 2), 2),
        (Contents((1, 2, 3, 4), marks=(2,)), (1, 9), 0),
    ],
)
def test_what_can_be_gone_on_from(contents: Contents, prompt: Tokens, reusable: int) -> None:
    assert contents.reusable(prompt) == reusable


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_long_prompts_fill_the_slots_from_above_and_short_ones_from_below(count: int) -> None:
    short, long = table(count), table(count)
    lower, upper = list(range(count // 2)), list(range(count // 2, count))
    in_short = [short.request(i, wish(need=i))[0].slot for i in range(count)]
    assert in_short == [*lower, *upper], "then those of the other half"
    in_long = [long.request(i, Wish(state(0), i))[0].slot for i in range(count)]
    assert in_long == [*reversed(upper), *reversed(lower)]


def test_what_the_slot_holds_does_not_count_as_long() -> None:
    for stem, grant in ((state(0, 18), Grant(1, 2, 8)), (state(0, 17), Grant(1, 0, 0))):
        slots = filled(table(4), (), (), state(0, 8), ())
        assert slots.request(1, Wish(stem, 1)) == [grant], "8 of it are not half, and 9 to evaluate are short"


def test_in_a_half_the_slot_left_longest_ago_is_taken() -> None:
    slots = table(4)
    for i in range(4):
        slots.request(i, wish())
    for i in (1, 0, 3, 2):
        slots.release(i, contents=UNKNOWN)
    assert [slots.request(i, wish())[0].slot for i in (10, 11)] == [1, 0]
    assert [slots.request(i, Wish(state(0), 1))[0].slot for i in (12, 13)] == [3, 2]


def test_the_slot_that_holds_most_of_the_stem_is_preferred() -> None:
    slots = filled(table(3), (1, 2, 3), (1, 2, 9), (7,))
    assert slots.request(4, wish(1, 2, 9, 4)) == [Grant(4, 1, 3)]
    assert slots.request(5, wish(1, 2, 9, 4)) == [Grant(5, 0, 2)], "the next best, with just half of it"


def test_less_than_half_of_the_stem_is_no_reason() -> None:
    slots = filled(table(2), (7, 8), (1, 2, 3))
    assert slots.request(1, wish(1, 2, 3, 4, 5, 6, 0)) == [Grant(1, 0, 0)]


def test_a_slot_that_cannot_be_cut_back_is_preferred_for_its_marks_alone() -> None:
    held = (1, 2, 3, 4)
    for marks, grant in (((), Grant(1, 0, 0)), ((2,), Grant(1, 1, 2)), (None, Grant(1, 1, 3))):
        slots = filled(table(2), (), Contents(held, marks))
        assert slots.request(1, wish(1, 2, 3, 9)) == [grant]


def test_what_is_reusable_is_told_also_where_it_was_no_reason() -> None:
    slots = filled(table(1), (1, 2))
    assert slots.request(1, wish(1, 2, 3, 4, 5, 6)) == [Grant(1, 0, 2)]


def test_unknown_contents_match_nothing() -> None:
    slots = filled(table(2), (), (5,))
    slots.request(1, wish(5))
    slots.release(1, contents=UNKNOWN)
    assert slots.request(2, wish(5)) == [Grant(2, 0, 0)]


def test_who_came_first_is_served_first() -> None:
    slots = table(1)
    for ticket in (1, 2, 3):
        slots.request(ticket, wish(ticket))
    assert slots.release(1, contents=UNKNOWN) == [Grant(2, 0, 0)]
    assert slots.release(2, contents=UNKNOWN) == [Grant(3, 0, 0)]


def test_no_more_leases_than_the_limit() -> None:
    slots = table(4, limit=1)
    assert len(slots.request(1, wish())) == 1
    assert slots.request(2, wish()) == []
    assert slots.request_now(3, wish()) is None
    assert [grant.ticket for grant in slots.release(1, contents=UNKNOWN)] == [2]


def test_prompts_read_at_once_fit_the_context_together_and_nobody_overtakes() -> None:
    slots = table(4)
    slots.request(1, wish(1, need=60))
    assert slots.request(2, wish(2, need=41)) == []
    assert slots.request(3, wish(3, need=1)) == [], "it would fit, but it is not its turn"
    assert slots.request_now(4, wish(4, need=1)) is None
    assert [grant.ticket for grant in slots.release(1, contents=Contents((1,)))] == [2, 3]


def test_one_more_slot_at_once_or_not_at_all() -> None:
    slots = table(2)
    slots.request(1, wish(need=60))
    assert slots.request_now(2, wish(need=41)) is None
    assert slots.request_now(3, wish(need=40)) == Grant(3, 1, 0)
    assert slots.request_now(4, wish(need=0)) is None
    assert (slots.held, slots.waiting) == (2, 0)


def test_a_lone_prompt_larger_than_the_context_is_not_kept_waiting_for_ever() -> None:
    slots = filled(table(context=10), state(0, 3))
    assert slots.request(1, Wish(state(50), 11)) == [Grant(1, 1, 0, erase=(0,))]


def test_withdrawing_the_head_lets_the_others_go() -> None:
    slots = table(4, context=10)
    slots.request(1, wish(1, need=5))
    slots.request(2, wish(2, need=9))
    slots.request(3, wish(3, need=5))
    assert [grant.ticket for grant in slots.withdraw(2)] == [3]


def test_idle_contents_in_the_way_are_erased_those_left_longest_ago_first() -> None:
    slots = filled(table(4), state(0, 30), state(100, 30), state(200, 30))
    assert slots.request(1, wish(9, need=30)) == [Grant(1, 0, 0)], "its own slot's contents are in nobody's way"
    slots.release(1, contents=Contents(state(0, 30)))
    assert slots.request(2, wish(*state(0, 30), need=71)) == [Grant(2, 0, 30, erase=(1, 2))]


def test_no_more_is_erased_than_is_in_the_way() -> None:
    slots = filled(table(4), state(0, 30), state(100, 30), state(200, 30))
    assert slots.request(1, wish(*state(200, 30), need=70)) == [Grant(1, 2, 30, erase=(0,))]


def test_an_erased_slot_is_free_only_when_it_is() -> None:
    slots = filled(table(2), state(0, 60))
    assert slots.request(1, Wish(state(200), 50)) == [Grant(1, 1, 0, erase=(0,))]
    assert slots.request_now(2, wish(need=5)) is None
    assert slots.request(3, wish(need=5)) == []
    assert slots.erased(1, (0,)) == [Grant(3, 0, 0)]


def test_who_leaves_before_it_has_erased_leaves_what_is_there() -> None:
    slots = filled(table(2), state(0, 60))
    slots.request(1, Wish(state(200), 50))
    assert slots.release(1, contents=UNKNOWN) == []
    assert slots.request(2, Wish(state(0, 60), 60)) == [Grant(2, 1, 0, erase=(0,))], "nobody knows what is in it"
    assert slots.erased(2, (0,)) == []
    assert slots.request(3, wish(1, need=40)) == [Grant(3, 0, 0)]


def test_unknown_contents_take_what_their_lease_needed() -> None:
    slots = table(2)
    slots.request(1, wish(1, need=60))
    slots.release(1, contents=UNKNOWN)
    assert slots.request(2, Wish(state(200), 41)) == [Grant(2, 1, 0, erase=(0,))]


def test_unknown_contents_may_be_those_that_were_there_before() -> None:
    slots = filled(table(2), state(0, 60))
    assert slots.request(1, wish(7, need=5)) == [Grant(1, 0, 0)]
    slots.release(1, contents=UNKNOWN)
    assert slots.request(2, Wish(state(200), 50)) == [Grant(2, 1, 0, erase=(0,))], "it left without a pass"


def test_alone_there_is_one_lease_and_nothing_beside_it() -> None:
    slots = filled(table(3), state(0, 5), state(100, 5), state(200, 5))
    slots.alone = True
    assert slots.request(1, wish(*state(100, 5))) == [Grant(1, 1, 5, erase=(0, 2))]
    assert slots.erased(1, (0, 2)) == []
    assert slots.request_now(2, wish()) is None
    assert slots.request(3, wish()) == []
    assert slots.release(1, contents=Contents(state(100, 5))) == [Grant(3, 0, 0, erase=(1,))]


def test_one_slot_is_enough() -> None:
    slots = table(1)
    for ticket in range(3):
        prompt = state(100 * ticket, 80)
        assert slots.request(ticket, Wish(prompt, 81)) == [Grant(ticket, 0, 0)]
        slots.release(ticket, contents=Contents(prompt))


@pytest.mark.parametrize(("count", "limit", "context"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_table_of_nothing_is_refused(count: int, limit: int, context: int) -> None:
    with pytest.raises(ValueError, match="needs slots, a limit and a context"):
        SlotTable(count=count, limit=limit, context=context)


STEMS = st.tuples(st.sampled_from([0, 100]), st.integers(0, 30)).map(lambda each: state(*each))
WISHES = st.tuples(STEMS, st.integers(1, 12)).map(lambda each: Wish(each[0], len(each[0]) + each[1]))
ENDS = st.sampled_from(["whole", "marked", "unused", "unknown"])


class Table(RuleBasedStateMachine):
    """A table, and beside it a server whose slots really hold what was evaluated in them and not erased."""

    CONTEXT = 60

    def __init__(self) -> None:
        super().__init__()
        self.slots = SlotTable(count=4, limit=3, context=self.CONTEXT, long=LONG)
        self.tickets = 0
        self.waiting: list[tuple[int, Wish]] = []
        self.leases: dict[int, tuple[Grant, Wish]] = {}
        self.to_erase: dict[int, tuple[int, ...]] = {}
        self.really: list[Tokens] = [()] * 4
        self.left_as_it_was = False

    def take(self, grants: list[Grant]) -> None:
        for grant in grants:
            ticket, wanted = self.waiting.pop(0)
            assert ticket == grant.ticket, "first come, first served"
            self.begin(grant, wanted)

    def begin(self, grant: Grant, wanted: Wish) -> None:
        busy = {lease.slot for lease, _ in self.leases.values()}
        busy.update(slot for slots in self.to_erase.values() for slot in slots)
        assert not busy & {grant.slot, *grant.erase}
        assert grant.slot not in grant.erase
        held = self.really[grant.slot]
        assert held[: grant.reusable] == wanted.stem[: grant.reusable]
        assert len(held) >= grant.reusable
        self.leases[grant.ticket] = grant, wanted
        self.left_as_it_was = False
        if grant.erase:
            self.to_erase[grant.ticket] = grant.erase

    def new(self) -> int:
        self.tickets += 1
        return self.tickets

    @rule(wanted=WISHES)
    def request(self, wanted: Wish) -> None:
        ticket = self.new()
        self.waiting.append((ticket, wanted))
        self.take(self.slots.request(ticket, wanted))

    @rule(wanted=WISHES)
    def request_now(self, wanted: Wish) -> None:
        ticket = self.new()
        grant = self.slots.request_now(ticket, wanted)
        if grant is not None:
            assert not self.waiting
            self.begin(grant, wanted)

    @precondition(lambda self: self.to_erase)
    @rule(data=st.data())
    def erase(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.to_erase)))
        slots = self.to_erase.pop(ticket)
        for slot in slots:
            self.really[slot] = ()
        self.take(self.slots.erased(ticket, slots))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), end=ENDS)
    def release(self, data: st.DataObject, end: str) -> None:
        """A lease that had to make room and did not has not used its slot either."""
        ticket = data.draw(st.sampled_from(sorted(self.leases)))
        grant, wanted = self.leases.pop(ticket)
        unable = self.to_erase.pop(ticket, None) is not None
        contents = UNKNOWN
        self.left_as_it_was = unable or end == "unused"
        if not unable and end != "unused":
            prompt = (*wanted.stem, 999)
            self.really[grant.slot] = prompt
            contents = {"whole": Contents(prompt), "marked": Contents(prompt, (len(wanted.stem),))}.get(end, UNKNOWN)
        self.take(self.slots.release(ticket, contents=contents))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(gone)
        self.take(self.slots.withdraw(gone[0]))

    @invariant()
    def nothing_is_lost(self) -> None:
        assert (self.slots.held, self.slots.waiting) == (len(self.leases), len(self.waiting))
        assert len(self.leases) <= 3
        assert self.leases or not self.waiting, "nobody waits for nothing"

    @invariant()
    def the_context_is_enough(self) -> None:
        """Once room is made. What one lease left as it was, the next grant makes good."""
        if self.to_erase or self.left_as_it_was or not self.leases:
            return
        taken = {grant.slot for grant, _ in self.leases.values()}
        needs = sum(wanted.need for _, wanted in self.leases.values())
        idle = sum(len(held) for slot, held in enumerate(self.really) if slot not in taken)
        assert needs + idle <= self.CONTEXT


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=40, stateful_step_count=30)


def chatting(*, total: int | None = None) -> SlotTable:
    """Two slots for decisions and two for chats, with a hundred tokens for either use."""
    return SlotTable(count=2, limit=9, context=100, long=LONG, chats=(2, 100), total=total)


def chat(*stem: int, need: int = 1) -> Wish:
    return Wish(stem, need, "chat")


def test_chats_and_decisions_have_slots_of_their_own() -> None:
    slots = chatting()
    assert [slots.request(i, chat(i, need=40))[0].slot for i in range(2)] == [2, 3]
    assert slots.request(2, chat(2)) == []
    assert slots.request_now(3, chat(3)) is None
    assert [slots.request(i, wish(i, need=50))[0].slot for i in (4, 5)] == [0, 1]
    assert slots.request(6, wish(6)) == []
    assert (slots.held_for("decision"), slots.waiting_for("decision")) == (2, 1)
    assert (slots.held_for("chat"), slots.waiting_for("chat")) == (2, 1)
    assert slots.release(5, contents=UNKNOWN)[0].ticket == 6, "a chat waited longer, and for another slot"
    assert slots.release(0, contents=UNKNOWN)[0].ticket == 2


def test_what_chats_read_takes_nothing_from_decisions() -> None:
    slots = chatting()
    assert slots.request(1, chat(1, need=100)) == [Grant(1, 2, 0)]
    assert slots.request(2, chat(2)) == [], "they have no more"
    assert slots.request(3, wish(3, need=100)) == [Grant(3, 0, 0)]
    slots.release(3, contents=Contents(state(0, 90)))
    assert slots.release(1, contents=Contents(state(100, 90))) == [Grant(2, 3, 0)]
    slots.release(2, contents=Contents((2,)))
    assert slots.request(4, chat(*state(200, 50), need=60)) == [Grant(4, 2, 0)], "no slot of decisions"


def test_one_context_for_all_erases_chats_first() -> None:
    slots = chatting(total=100)
    slots.request(1, wish(1, need=1))
    slots.release(1, contents=Contents(state(0, 40)))
    slots.request(2, chat(2, need=1))
    slots.release(2, contents=Contents(state(100, 40)))
    assert slots.request(3, wish(*state(300, 45), need=50))[0].erase == (2,)
    assert slots.erased(3, (2,)) == []
    assert slots.request(4, chat(4, need=60)) == []
    assert slots.release(3, contents=UNKNOWN) == [Grant(4, 2, 0, erase=(0, 1))], "in the end even a decision's"


def test_any_chat_slot_is_good_for_a_long_chat() -> None:
    slots = chatting()
    for ticket, first in enumerate((0, 100)):
        slots.request(ticket, chat(*state(first, 20)))
        slots.release(ticket, contents=Contents(state(first, 20)))
    assert slots.request(2, chat(*state(0, 20))) == [Grant(2, 3, 20)]
    assert slots.request(3, chat(*state(100, 20))) == [Grant(3, 2, 20)]


def test_chats_do_not_overtake_a_decision_that_waits_for_what_all_share() -> None:
    slots = chatting(total=100)
    for ticket in range(2):
        assert slots.request(ticket, chat(ticket, need=30))
    assert slots.request(2, wish(2, need=80)) == []
    assert slots.release(0, contents=UNKNOWN) == []
    assert slots.request(3, chat(3, need=30)) == [], "a slot is free, and the decision came first"
    (granted,) = slots.release(1, contents=UNKNOWN)
    assert granted.ticket == 2
    assert [grant.ticket for grant in slots.release(2, contents=UNKNOWN)] == [3]


def test_a_decision_that_waits_for_its_own_part_keeps_no_chat_waiting() -> None:
    slots = chatting(total=200)
    assert slots.request(1, wish(1, need=90))
    assert slots.request(2, wish(2, need=20)) == []
    assert slots.request(3, chat(3, need=30)) != []
