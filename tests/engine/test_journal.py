from __future__ import annotations

from itertools import count

from jev_local.engine.journal import Journal, Note


def note(journal: Journal, *stem: int, run: str = "run-1", kept: bool = True) -> None:
    journal.note(stem, run=run, source="computed", cached=0, processed=len(stem), kept=kept)


def test_the_last_two_requests_of_a_beginning_are_remembered() -> None:
    ticks = count(10)
    journal = Journal(clock=lambda: next(ticks))
    assert journal.last((1, 2, 3)) is None
    for run in ("run-1", "run-2", "run-3"):
        note(journal, 1, 2, 3, run=run)
    assert [(each.at, each.run) for each in journal.notes((1, 2, 3))] == [(11, "run-2"), (12, "run-3")]
    assert journal.last((1, 2, 3)) == Note(12, "run-3", "computed", 0, 3, kept=True)
    assert journal.last((1, 2)) is None


def test_those_asked_about_longest_ago_are_forgotten() -> None:
    journal = Journal(capacity=3)
    for stem in (1, 2, 3, 1, 4):
        note(journal, stem)
    assert len(journal) == 3
    assert [stem for stem in (1, 2, 3, 4) if journal.last((stem,)) is not None] == [1, 3, 4]


def test_nothing_of_the_tokens_is_kept() -> None:
    journal = Journal()
    note(journal, *range(70_000, 71_000))
    assert "70500" not in repr(journal.__dict__)
