"""Prefixes with pictures in every way there is, on the arithmetic server, whose numbers depend on every picture."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.backend import CONTROLS, END, MARKER, FakeBackend
from jev_local.core.pictures import Album, Picture
from jev_local.core.questions import Choice, Noul, Option, Question
from jev_local.core.sharing import Policy, Profile, Strategy
from jev_local.engine.decide import Decider
from jev_local.engine.decision import Decision
from jev_local.engine.session import Session, open_session
from jev_local.engine.snapshots import SnapshotStore
from jev_local.errors import InvalidRequest, PromptTooLong

AUTO, OFF = Policy("auto"), Policy("auto", pictures=False)
STRATEGIES: tuple[Strategy, ...] = ("in-place", "fan-out", "restore")
every_strategy = pytest.mark.parametrize("only", STRATEGIES)
every_model = pytest.mark.parametrize("truncates", [True, False], ids=["attention", "hybrid"])

RED, BLUE = Picture(b"\x89PNG red" + bytes(60), 8, 8), Picture(b"\x89PNG blue" + bytes(59), 8, 8)
MARK = "[image 0123]"
FOUR: tuple[Question, ...] = tuple(
    Choice(f"q{i}", f"{'What' if i % 2 else 'Which'} is {i * i}?", (Option("lamp"), Option("chair"))) for i in range(4)
)
PAIRS = Choice("many", "Which?", tuple(Option(f"n{i}") for i in range(30)))


class Stage:
    def __init__(self, backend: FakeBackend, store: SnapshotStore, session: Session, policy: Policy) -> None:
        self.backend, self.store, self.session, self.policy = backend, store, session, policy

    async def ask(
        self,
        album: Album,
        state: str = "A slide.",
        questions: tuple[Question, ...] = FOUR,
        policy: Policy | None = None,
    ) -> Decision:
        decider = Decider(self.backend, self.session, self.store, policy or self.policy)
        decision = await decider.decide(state=state, questions=questions, album=album)
        assert sorted(self.backend.entered) == sorted(self.backend.left)
        return decision


def preferring(profile: Profile, strategy: Strategy) -> Profile:
    return replace(
        profile, trials=tuple(replace(each, ms=1.0 if each.name == strategy else 100.0) for each in profile.trials)
    )


@asynccontextmanager
async def staged(
    place: Path, only: Strategy = "in-place", policy: Policy = AUTO, **options: Any
) -> AsyncIterator[Stage]:
    store = SnapshotStore(place, budget=10_000_000)
    await store.open()
    try:
        backend = FakeBackend(**{"slots": 4, "context": 16384, "directory": place, "vision": True} | options)
        session = await open_session(backend, workers=4, policy=policy, directory=place)
        session.picture_profile = preferring(session.picture_profile, only)
        backend.forget_calls()
        backend.sent.clear()
        yield Stage(backend, store, session, policy)
        await store.settled()
        assert not store._ledger._pins
        assert session.pool._table.held == 0
    finally:
        await store.close()


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await scene

    asyncio.run(limited())


def probabilities(decision: Decision) -> list[float]:
    return [p for answer in decision.answers for p in answer.reading.probabilities]


@every_strategy
@every_model
def test_answers_are_those_of_evaluating_each_question_from_nothing(
    tmp_path: Path, only: Strategy, truncates: bool
) -> None:
    """With pictures before the state, in it and in a question; one picture twice; labels of two tokens."""

    async def scene() -> None:
        async with staged(tmp_path, only, truncates=truncates) as stage:
            in_question = Noul("n", f"Is {MARK} like it?")
            for album, state, questions in (
                (Album((RED,)), "A slide.", FOUR),
                (Album((BLUE,)), "A slide.", FOUR),
                (Album((RED, BLUE)), "A slide.", FOUR[:1]),
                (Album(placed={MARK: RED}), f'{{"a":"{MARK}","b":"{MARK}"}}', FOUR),
                (Album((BLUE,), {MARK: RED}), "A slide.", (*FOUR, in_question)),
                (Album((RED,)), "A long state. " * 200, (*FOUR, PAIRS)),
            ):
                plain = await stage.ask(album, state, questions, policy=Policy())
                assert plain.trace.state_cache == "off-images"
                for _ in range(2):
                    shared = await stage.ask(album, state, questions)
                    assert probabilities(shared) == pytest.approx(probabilities(plain), abs=1e-9)
                    assert (shared.trace.state_cache, shared.trace.reevaluated) == ("shared", 0)
                assert shared.trace.source in ("slot", "memory")

    play(scene())


@every_strategy
@every_model
def test_a_picture_is_evaluated_once_for_all_questions_and_kept(
    tmp_path: Path, only: Strategy, truncates: bool
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, only, truncates=truncates) as stage:
            first = await stage.ask(Album((RED,)))
            once = first.usage.input_tokens - (len(FOUR) - 1) * first.trace.prefix_tokens
            assert len(RED.data) < first.trace.processed_tokens <= once + 2 * len("Question:")
            assert first.trace.source == "computed"
            for slot in range(4):  # somebody else was there
                await stage.backend.evaluate((9, 9), slot=slot, reuse=False)
            stage.session.pool._table.__post_init__()
            again = await stage.ask(Album((RED,)))
            assert again.trace.source == "memory"
            assert again.trace.processed_tokens < first.trace.processed_tokens - len(RED.data)
            other = await stage.ask(Album((BLUE,)))
            assert other.trace.source == "computed"

    play(scene())


def test_a_single_question_is_kept_too(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path) as stage:
            first = await stage.ask(Album((RED,)), questions=FOUR[:1])
            assert (first.trace.state_cache, stage.store.report().entries) == ("shared", 1)

    play(scene())


@pytest.mark.parametrize("mode", ["auto", "shared"])
def test_off_evaluates_every_question_in_full_in_slots_of_their_own(tmp_path: Path, mode: Any) -> None:
    async def scene() -> None:
        async with staged(tmp_path, policy=Policy(mode, pictures=False)) as stage:
            decision = await stage.ask(Album((RED,)))
            assert decision.trace.state_cache == "off-images"
            assert decision.trace.cached_tokens == 0
            calls = [call for call in stage.backend.trail if call.name == "complete"]
            assert [call.reuse for call in calls] == [False] * 4
            assert {call.slot for call in calls} == {0, 1, 2, 3}
            assert stage.store.report().entries == 0
            text = await stage.ask(Album(), state="A long text. " * 100)
            assert text.trace.state_cache == "shared", "states without images are shared all the same"

    play(scene())


def test_off_leaves_slots_to_those_who_wait(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, policy=OFF, slots=1) as stage:
            decisions = await asyncio.gather(*(stage.ask(Album((RED,))) for _ in range(3)))
            assert {tuple(probabilities(decision)) for decision in decisions} == {tuple(probabilities(decisions[0]))}

    play(scene())


@every_model
def test_nothing_of_a_caller_becomes_a_control_token_or_a_picture(tmp_path: Path, truncates: bool) -> None:
    async def scene() -> None:
        async with staged(tmp_path, truncates=truncates) as stage:
            (control,) = CONTROLS
            nasty = f"x {control} {MARKER} {control[:3]}{control}{control[3:]}"
            await stage.ask(Album((RED,)), state=nasty, questions=(Noul("n", nasty, nasty, nasty), *FOUR))
            assert stage.backend.sent
            assert all(text.count(MARKER) == 1 and control not in text for text in stage.backend.sent)
            assert all(END not in prompt for prompt in stage.backend.prompts)
            assert any("<\u2060|end|>" in text for text in stage.backend.sent), "still to be read"

    play(scene())


def test_a_vocabulary_that_joins_what_was_cut_answers_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, joins="\nQ") as stage:
            decision = await stage.ask(Album((RED,)))
            assert decision.trace.state_cache == "off-images"
            assert "Nothing is shared" in caplog.text
            alone = await stage.ask(Album((RED,)), policy=Policy())
            assert probabilities(decision) == pytest.approx(probabilities(alone), abs=1e-9)

    play(scene())


def test_a_server_that_does_not_count_pictures_is_told_of(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, blind=True) as stage:
            assert not stage.session.picture_profile.sharing
            assert "count" in stage.session.picture_profile.reason

    play(scene())


@pytest.mark.parametrize("policy", [AUTO, Policy("shared"), Policy("auto", stable=True)])
def test_a_server_whose_slots_are_stale_shares_no_pictures_and_answers(tmp_path: Path, policy: Policy) -> None:
    async def scene() -> None:
        async with staged(tmp_path, policy=policy) as stage:
            stage.session.picture_profile = Profile(reason="no way of reusing a prefix")
            decision = await stage.ask(Album((RED,)))
            assert decision.trace.state_cache == "off-images"

    play(scene())


def test_a_model_without_eyes_names_the_projector(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, vision=False) as stage:
            with pytest.raises(InvalidRequest, match="--mmproj"):
                await stage.ask(Album((RED,)))
            assert stage.backend.calls == []

    play(scene())


def test_pictures_count_against_the_context(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, context=1024) as stage:
            with pytest.raises(PromptTooLong):
                await stage.ask(Album((Picture(bytes(1000), 8, 8),)))
            assert "complete" not in stage.backend.calls

    play(scene())


def test_a_picture_is_counted_once(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path) as stage:
            for _ in range(3):
                await stage.ask(Album((RED, RED)))
            assert stage.backend.calls.count("picture_size") == 1

    play(scene())


def test_two_token_labels_that_a_vocabulary_would_join_are_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path) as stage:
            stage.backend.joins = "(A"
            read = stage.backend._read
            stage.backend._read = lambda text, *, special: read(text.replace("(A", "\x03"), special=special)  # type: ignore[method-assign]
            with pytest.raises(InvalidRequest, match="fewer"):
                await stage.ask(Album((RED,)), questions=(PAIRS,))
            fine = await stage.ask(Album((RED,)))
            assert fine.trace.state_cache == "shared"

    play(scene())
