from __future__ import annotations

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jev_local.core.ledger import EVICTED_KNOWN, Entry, SnapshotLedger


def entry(key: str, size: int = 10, *, name: str = "") -> Entry:
    return Entry(key, name or f"file-{key}", size, 7, "memory")


def ledger(*entries: Entry, budget: int = 30) -> SnapshotLedger:
    book = SnapshotLedger(budget)
    for each in entries:
        assert book.admit(each) == []
    return book


def test_who_was_used_longest_ago_goes_first() -> None:
    a, b, c = entry("a"), entry("b"), entry("c")
    book = ledger(a, b, c)
    assert book.find("a") is a
    assert book.admit(entry("d")) == [b]
    assert book.admit(entry("e", 20)) == [c, a]
    assert (book.bytes, book.entries, book.evictions) == (30, 2, 3)


def test_hits_and_misses_are_counted_and_a_hit_that_was_none_is_put_right() -> None:
    book = ledger(entry("a"))
    assert book.find("b") is None
    assert book.find("a") is not None
    assert (book.hits, book.misses) == (1, 1)
    book.missed()
    assert (book.hits, book.misses) == (0, 2)
    assert book.peek("a") is not None
    assert (book.hits, book.misses) == (0, 2)


def test_an_entry_takes_the_place_of_one_with_its_key() -> None:
    old, other, new = entry("a", 20), entry("b"), entry("a", 15, name="new")
    book = ledger(old, other)
    assert book.admit(new) == [old], "nobody else has to go for it"
    assert (book.peek("a"), book.bytes, book.evictions) == (new, 25, 0)


@pytest.mark.parametrize("budget", [0, 30])
def test_what_is_larger_than_the_budget_drives_nobody_out(budget: int) -> None:
    book = ledger(*[entry("a")][: budget // 30], budget=budget)
    large = entry("b", 31)
    assert book.admit(large) == [large]
    assert (book.entries, book.evictions) == (budget // 30, 0)


def test_one_that_cannot_be_kept_leaves_the_one_with_its_key_alone() -> None:
    old, large = entry("a"), entry("a", 31, name="new")
    book = ledger(old)
    assert book.admit(large) == [large]
    assert book.peek("a") is old


def test_what_is_in_use_is_nobodys_victim() -> None:
    a, b, c, d = (entry(key, size) for key, size in (("a", 15), ("b", 15), ("c", 15), ("d", 1)))
    book = ledger(a, b)
    book.pin(a)
    assert book.admit(c) == [b]
    book.pin(c)
    assert book.admit(d) == [d], "the rest is pinned"
    assert book.unpin(a) == [], "it is kept"
    assert book.admit(d) == [a]


def test_a_file_outlives_its_entry_until_the_last_use_ends() -> None:
    forgotten, replaced, cleared = entry("a"), entry("b"), entry("c")
    book = ledger(forgotten, replaced, cleared)
    for used in (forgotten, forgotten, replaced, cleared):
        book.pin(used)
    assert book.forget("a") == []
    assert book.admit(entry("b", name="new")) == []
    assert [gone.name for gone in book.clear()] == ["new"]
    assert (book.bytes, book.entries) == (0, 0)
    assert book.unpin(forgotten) == []
    assert book.unpin(forgotten) == [forgotten]
    assert (book.unpin(replaced), book.unpin(cleared)) == ([replaced], [cleared])


def test_what_was_pinned_before_it_came_and_was_not_kept_goes_at_the_last_unpin() -> None:
    book = ledger(budget=0)
    book.pin(a := entry("a"))
    assert book.admit(a) == []
    assert book.find("a") is None
    assert book.unpin(a) == [a]


def test_forgetting_what_is_not_there_is_nothing() -> None:
    assert ledger().forget("a") == []


def test_the_fate_of_an_entry_is_known_until_it_is_kept_again_or_all_are_cleared() -> None:
    book = ledger(entry("a"), entry("b"), entry("c"))
    assert [book.fate(key) for key in "ad"] == ["held", "unknown"]
    book.admit(entry("d"))
    assert [book.fate(key) for key in "abd"] == ["evicted", "held", "held"]
    book.admit(entry("a", name="again"))
    assert [book.fate(key) for key in "abd"] == ["held", "evicted", "held"]
    book.forget("a")
    assert book.fate("a") == "unknown", "it did not have to make room"
    book.clear()
    assert [book.fate(key) for key in "abcd"] == ["unknown"] * 4


def test_an_entry_that_was_not_kept_or_was_replaced_is_not_evicted() -> None:
    book = ledger(entry("a"))
    book.admit(entry("b", 31))
    book.admit(entry("a", name="new"))
    assert [book.fate(key) for key in "ab"] == ["held", "unknown"]


def test_only_so_many_evicted_ones_are_remembered() -> None:
    book = ledger(entry("first"), budget=10)
    for i in range(EVICTED_KNOWN):
        book.admit(entry(str(i)))
    assert book.fate("first") == "evicted"
    book.admit(entry("last"))
    assert (book.fate("first"), book.fate("0")) == ("unknown", "evicted")


def test_a_budget_is_a_number_of_bytes() -> None:
    with pytest.raises(ValueError, match="got -1"):
        SnapshotLedger(-1)


KEYS = st.sampled_from("abcdef")
BUDGET = 100


class Bookkeeping(RuleBasedStateMachine):
    """Against a list in order of use. Every file is either kept, in use, or was given up for deletion once."""

    def __init__(self) -> None:
        super().__init__()
        self.book = SnapshotLedger(BUDGET)
        self.names = count()
        self.kept: list[Entry] = []
        self.used: list[Entry] = []
        self.made: set[Entry] = set()
        self.deleted: list[Entry] = []
        self.evicted: set[str] = set()

    @rule(key=KEYS, size=st.integers(1, BUDGET + 20), pinned=st.booleans())
    def admit(self, key: str, size: int, pinned: bool) -> None:
        new = entry(key, size, name=str(next(self.names)))
        self.made.add(new)
        if pinned:
            self.use(new)
        before = [each for each in self.kept if each.key != key]
        victims: list[Entry] = []
        for each in before:
            if sum(e.size for e in before if e not in victims) + size <= BUDGET:
                break
            if each not in self.used:
                victims.append(each)
        if sum(e.size for e in before if e not in victims) + size <= BUDGET:
            self.kept = [each for each in before if each not in victims] + [new]
            self.evicted = (self.evicted | {each.key for each in victims}) - {key}
        self.delete(self.book.admit(new))

    @rule(key=KEYS)
    def find(self, key: str) -> None:
        found = self.book.find(key)
        assert found == next((each for each in self.kept if each.key == key), None)
        if found is not None:
            self.kept.remove(found)
            self.kept.append(found)

    @rule(key=KEYS)
    def pin(self, key: str) -> None:
        if (found := self.book.peek(key)) is not None:
            self.use(found)

    @rule(which=st.integers(0, 1000))
    def unpin(self, which: int) -> None:
        if self.used:
            self.delete(self.book.unpin(self.used.pop(which % len(self.used))))

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.kept = [each for each in self.kept if each.key != key]
        self.delete(self.book.forget(key))

    @rule()
    def clear(self) -> None:
        self.kept, self.evicted = [], set()
        self.delete(self.book.clear())

    def use(self, each: Entry) -> None:
        self.book.pin(each)
        self.used.append(each)

    def delete(self, gone: list[Entry]) -> None:
        assert not set(gone) & set(self.used)
        self.deleted += gone

    @invariant()
    def nothing_is_lost_or_deleted_twice(self) -> None:
        assert len(self.deleted) == len(set(self.deleted))
        assert set(self.deleted) == self.made - set(self.kept) - set(self.used)

    @invariant()
    def the_books_are_right(self) -> None:
        assert [self.book.peek(each.key) for each in self.kept] == self.kept
        assert (self.book.entries, self.book.bytes) == (len(self.kept), sum(each.size for each in self.kept))
        assert self.book.bytes <= BUDGET

    @invariant()
    def fates_are_told(self) -> None:
        kept = {each.key for each in self.kept}
        for key in "abcdef":
            expected = "held" if key in kept else "evicted" if key in self.evicted else "unknown"
            assert self.book.fate(key) == expected


class TestBookkeeping(Bookkeeping.TestCase):
    settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
