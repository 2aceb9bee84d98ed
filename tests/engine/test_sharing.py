"""A prefix brought into slots in every way there is, by a real store over what the arithmetic server saves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fakes.backend import Call, FakeBackend
from fakes.cancel import ends_cancelled
from jev_local.core.questions import Choice, Noul, Option, Question, Score
from jev_local.core.sharing import Policy, Profile, Strategy
from jev_local.engine.decide import Decider
from jev_local.engine.decision import Decision
from jev_local.engine.folder import NAME
from jev_local.engine.pool import SlotPool
from jev_local.engine.session import Session, open_session
from jev_local.engine.snapshots import SnapshotStore
from jev_local.errors import BackendError, BackendFault, BackendTimeout, BackendUnavailable

MANY = 10_000_000
STATE = "The parcel is late and the lamp in it is broken. " * 30
"""1,470 tokens: three steps of 512."""
SHORT = "Late."
TWELVE: tuple[Question, ...] = tuple(
    Noul(f"q{i}", f"{'Is it true' if i % 2 else 'Do they say'} {i * i}?") for i in range(12)
)
MIXED: tuple[Question, ...] = (
    Noul("yes", "Is it late?"),
    Choice("which", "Which?", (Option("lamp"), Option("chair"), Option("table"))),
    Score("how", "How angry?", ("calm", "annoyed", "furious")),
)
LONG_ONES: tuple[Question, ...] = tuple(Noul(f"q{i}", f"{i} " + "and so on " * 20 + "?") for i in range(5))
"""Each a question of more than a batch."""
PAIRS = Choice("many", "Which?", tuple(Option(f"n{i}") for i in range(30)))
"""More options than letters: labels of two tokens with two first ones."""

AUTO, SHARED, STABLE = Policy("auto"), Policy("shared"), Policy("auto", stable=True)
STRATEGIES: tuple[Strategy, ...] = ("in-place", "fan-out", "restore")
every_strategy = pytest.mark.parametrize("only", STRATEGIES)
every_model = pytest.mark.parametrize("truncates", [True, False], ids=["attention", "hybrid"])


@dataclass
class Stage:
    backend: FakeBackend
    store: SnapshotStore
    session: Session
    policy: Policy

    async def ask(self, state: str = STATE, questions: tuple[Question, ...] = MIXED) -> Decision:
        """Also makes sure that nothing is left of it."""
        try:
            return await Decider(self.backend, self.session, self.store, self.policy).decide(
                state=state, questions=questions
            )
        finally:
            self.assert_let_go()

    async def plainly(self, state: str = STATE, questions: tuple[Question, ...] = MIXED) -> Decision:
        """What a server that is used for nothing else answers without any reuse."""
        backend = FakeBackend(context=self.backend.context)
        session = await open_session(backend, workers=4)
        return await Decider(backend, session, self.store, Policy()).decide(state=state, questions=questions)

    def assert_let_go(self) -> None:
        assert not self.store._ledger._pins
        assert sorted(self.backend.entered) == sorted(self.backend.left)

    async def assert_nothing_is_left(self) -> None:
        await self.store.settled()
        self.assert_let_go()
        table = self.session.pool._table
        assert (table.held, table.waiting) == (0, 0)
        assert all(slot.ticket is None for slot in table._slots)
        assert len(saved(self.store)) == self.store.report().entries

    def called(self, *names: str) -> list[str]:
        """Which of `names` were called, in order."""
        return [name for name in self.backend.calls if name in names]


def saved(store: SnapshotStore) -> set[str]:
    return {path.name for path in store.directory.iterdir() if NAME.fullmatch(path.name)}


def preferring(profile: Profile, strategy: Strategy) -> Profile:
    """`profile`, with `strategy` as the fastest by far: milliseconds of a fake are dice."""
    return replace(
        profile, trials=tuple(replace(each, ms=1.0 if each.name == strategy else 100.0) for each in profile.trials)
    )


@asynccontextmanager
async def staged(
    place: Path, only: Strategy = "in-place", policy: Policy = AUTO, *, budget: int = MANY, **options: Any
) -> AsyncIterator[Stage]:
    store = SnapshotStore(place, budget=budget)
    await store.open()
    try:
        backend = FakeBackend(**{"slots": 4, "context": 16384, "directory": place} | options)
        policy = replace(policy, keeps=budget > 0)
        session = await open_session(backend, workers=4, policy=policy, directory=place)
        session = replace(session, profile=preferring(session.profile, only))
        backend.forget_calls()
        stage = Stage(backend, store, session, policy)
        yield stage
        await stage.assert_nothing_is_left()
    finally:
        await store.close()


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await scene

    asyncio.run(limited())


def probabilities(decision: Decision) -> list[float]:
    return [p for answer in decision.answers for p in (*answer.reading.probabilities, answer.reading.mass)]


@every_strategy
@every_model
@pytest.mark.parametrize("budget", [0, MANY])
@pytest.mark.parametrize("policy", [AUTO, SHARED, STABLE], ids=["auto", "shared", "stable"])
def test_answers_are_those_of_evaluating_each_question_from_nothing(
    tmp_path: Path, only: Strategy, truncates: bool, budget: int, policy: Policy
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, only, policy, budget=budget, truncates=truncates) as stage:
            for state, questions in (
                (STATE, MIXED),
                (STATE, TWELVE),
                (SHORT, TWELVE),
                (STATE, LONG_ONES),
                (STATE, MIXED[:1]),
                (STATE, (*MIXED, PAIRS)),
                (STATE, TWELVE),
            ):
                got, want = await stage.ask(state, questions), await stage.plainly(state, questions)
                assert [answer.id for answer in got.answers] == [question.id for question in questions]
                assert probabilities(got) == pytest.approx(probabilities(want), abs=1e-9)
                assert got.usage.input_tokens == want.usage.input_tokens
                assert got.trace.reevaluated == 0

    play(scene())


def test_a_state_is_computed_then_in_a_slot_then_in_memory_then_on_disk(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, slots=1) as stage:
            sources = [(await stage.ask()).trace.source for _ in range(2)]
            await stage.ask("Something else altogether. " * 30)
            sources.append((await stage.ask()).trace.source)
        async with staged(tmp_path, slots=1) as stage:
            sources.append((await stage.ask()).trace.source)
            sources.append((await stage.ask()).trace.source)
        assert sources == ["computed", "slot", "memory", "disk", "slot"]

    play(scene())


@every_strategy
@every_model
def test_more_states_than_slots_are_found_again(tmp_path: Path, only: Strategy, truncates: bool) -> None:
    async def scene() -> None:
        async with staged(tmp_path, only, slots=2, truncates=truncates) as stage:
            states = [letter * 600 for letter in "abcde"]
            for state in states:
                assert (await stage.ask(state)).trace.source == "computed"
            stage.backend.forget_calls()
            for state in states[:3]:
                got = await stage.ask(state)
                assert got.trace.source == "memory"
                assert got.trace.state_cache == "shared"
                assert got.trace.processed_tokens < 600, "the state is not among what was evaluated"
            assert stage.store.report().entries == 5

    play(scene())


def test_below_the_threshold_no_file_is_made_and_a_slot_is_used_all_the_same(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path) as stage:
            first, second = await stage.ask(SHORT), await stage.ask(SHORT)
            assert saved(stage.store) == set()
            assert [each.trace.state_cache for each in (first, second)] == ["off-short"] * 2
            assert [each.trace.source for each in (first, second)] == ["computed", "slot"]
            assert stage.called("evaluate", "save", "restore") == []
            assert second.trace.processed_tokens < first.trace.processed_tokens

    play(scene())


def test_one_question_uses_the_snapshot_that_others_made(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, slots=1) as stage:
            alone = await stage.ask(questions=MIXED[:1])
            assert (alone.trace.source, alone.trace.state_cache) == ("computed", "off-short")
            assert saved(stage.store) == set()
            await stage.ask("x" * 600)
            await stage.ask()
            await stage.ask("x" * 600)
            again = await stage.ask(questions=MIXED[:1])
            assert (again.trace.source, again.trace.state_cache) == ("memory", "shared")

    play(scene())


def test_in_shared_a_file_is_made_at_any_length(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, policy=SHARED) as stage:
            assert (await stage.ask(SHORT)).trace.state_cache == "shared"
            assert len(saved(stage.store)) == 1

    play(scene())


def test_twelve_questions_take_one_completion(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, slots=1) as stage:
            await stage.ask(questions=TWELVE)
            assert stage.backend.calls == ["tokenize", *["evaluate"] * 3, "save", "complete"]
            await stage.ask("x" * 600)
            stage.backend.forget_calls()
            await stage.ask(questions=TWELVE)
            assert stage.backend.calls == ["tokenize", "restore", "complete"]
            stage.backend.forget_calls()
            await stage.ask(questions=TWELVE)
            assert stage.backend.calls == ["tokenize", "complete"]

    play(scene())


@pytest.mark.parametrize("only", ["restore", "fan-out"])
@every_model
def test_without_a_budget_a_file_of_its_own_lives_as_long_as_the_request(
    tmp_path: Path, only: Strategy, truncates: bool
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, only, budget=0, truncates=truncates) as stage:
            there: set[str] = set()
            for state in (STATE, STATE):
                stage.backend.gate = asyncio.Event()
                stage.backend.arrived.clear()
                asking = asyncio.create_task(
                    Decider(stage.backend, stage.session, stage.store, stage.policy).decide(
                        state=state, questions=LONG_ONES
                    )
                )
                await stage.backend.arrived.wait()
                assert len(saved(stage.store)) == 1
                there |= saved(stage.store)
                stage.backend.gate.set()
                got = await asking
                assert (got.trace.source, got.trace.strategy) == ("computed", only)
                await stage.store.settled()
                assert saved(stage.store) == set()
            assert len(there) == 2
            assert {call.file for call in stage.backend.trail if call.name == "save"} == there
            ends = [len(call.prompts[0]) for call in stage.backend.trail if call.name == "evaluate"]
            assert got.trace.prefix_tokens in ends, "all that the questions agree on"

    play(scene())


@pytest.mark.parametrize("only", ["restore", "fan-out"])
@pytest.mark.parametrize("error", [BackendTimeout("t"), BackendUnavailable("u"), BackendFault("f")])
@pytest.mark.parametrize("at", ["evaluate", "save", "complete"])
def test_without_a_budget_no_error_leaves_a_file(tmp_path: Path, only: Strategy, error: BackendError, at: str) -> None:
    async def scene() -> None:
        async with staged(tmp_path, only, budget=0) as stage:
            stage.backend.at, stage.backend.fail = (at,), error
            if at == "save" and isinstance(error, BackendFault):
                await stage.ask(questions=TWELVE)
            else:
                with pytest.raises(type(error)):
                    await stage.ask(questions=TWELVE)
            await stage.store.settled()
            assert saved(stage.store) == set()

    play(scene())


def test_what_was_not_reused_is_evaluated_anew_and_counted(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path) as stage:
            await stage.ask()
            stage.backend.forgets = 2
            got, want = await stage.ask(), await stage.plainly()
            assert got.trace.reevaluated == 2
            assert probabilities(got) == pytest.approx(probabilities(want), abs=1e-9)

    play(scene())


@every_strategy
def test_in_shared_what_was_not_reused_is_an_error(tmp_path: Path, only: Strategy) -> None:
    async def scene() -> None:
        async with staged(tmp_path, only, SHARED) as stage:
            await stage.ask()
            stage.backend.forgets = 1
            with pytest.raises(BackendFault, match=r"reused 0 of the \d+ tokens"):
                await stage.ask()
            assert (await stage.ask()).trace.reevaluated == 0

    play(scene())


@every_strategy
@pytest.mark.parametrize("policy", [AUTO, SHARED], ids=["auto", "shared"])
def test_a_damaged_snapshot_is_computed_anew_and_never_restored(tmp_path: Path, only: Strategy, policy: Policy) -> None:
    async def scene() -> None:
        async with staged(tmp_path, only, policy, slots=1) as stage:
            await stage.ask()
            (damaged,) = saved(stage.store)
            await stage.ask("x" * 600)
            content = (tmp_path / damaged).read_bytes()
            (tmp_path / damaged).write_bytes(content[: len(content) // 2])
            stage.backend.forget_calls()
            got, want = await stage.ask(), await stage.plainly()
            assert got.trace.source == "computed"
            assert probabilities(got) == pytest.approx(probabilities(want), abs=1e-9)
            assert damaged not in {call.file for call in stage.backend.trail}
            await stage.store.settled()
            assert damaged not in saved(stage.store)

    play(scene())


@every_strategy
@every_model
def test_a_full_disk_costs_nobody_an_answer(
    tmp_path: Path, only: Strategy, truncates: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, only, truncates=truncates) as stage:
            stage.backend.save_fails = True
            for questions in (TWELVE, LONG_ONES):
                state = f"{len(questions)} {STATE}"
                got, want = await stage.ask(state, questions), await stage.plainly(state, questions)
                assert probabilities(got) == pytest.approx(probabilities(want), abs=1e-9)
                assert (got.trace.strategy, got.trace.source, got.trace.reevaluated) == ("in-place", "computed", 0)
            assert stage.called("save") == ["save"], "not tried again for a while"
            assert not stage.store.report().saving
            await stage.store.settled()
            assert saved(stage.store) == set()

    play(scene())
    assert len(caplog.records) == 1


@every_model
def test_where_nothing_goes_on_in_place_a_full_disk_means_evaluating_in_full(tmp_path: Path, truncates: bool) -> None:
    async def scene() -> None:
        async with staged(tmp_path, "restore", truncates=truncates) as stage:
            trials = tuple(replace(each, exact=each.name == "restore") for each in stage.session.profile.trials)
            stage.session = replace(stage.session, profile=replace(stage.session.profile, trials=trials))
            stage.backend.save_fails = True
            got = await stage.ask()
            assert (got.trace.strategy, got.trace.state_cache) == ("plain", "off")
            assert not any(call.reuse for call in stage.backend.trail if call.name == "complete")

    play(scene())


def of_question(trail: list[Call], question: int) -> list[tuple[str, bool]]:
    """What was done for one question: what went before its completion, and that."""
    ends = [i for i, call in enumerate(trail) if call.name == "complete"]
    begin = ends[question - 1] + 1 if question else 0
    return [(call.name, call.reuse) for call in trail[begin : ends[question] + 1]]


@every_model
@pytest.mark.parametrize("budget", [0, MANY])
def test_stable_answers_are_equal_to_the_last_bit(tmp_path: Path, truncates: bool, budget: int) -> None:
    async def scene() -> None:
        async with staged(tmp_path, "in-place", STABLE, budget=budget, truncates=truncates) as stage:
            for state in (STATE, SHORT):
                cold = await stage.ask(state, TWELVE)
                steps = {tuple(of_question(stage.backend.trail, i)) for i in range(1, 12)}
                assert steps == {(("restore", False), ("complete", True))}
                stage.backend.forget_calls()
                warm = await stage.ask(state, TWELVE)
                assert {tuple(of_question(stage.backend.trail, i)) for i in range(1, 12)} == steps
                alone = [(await stage.ask(state, (question,))).answers[0] for question in TWELVE]
                await stage.ask("x" * 3000, TWELVE)
                reversed_ = await stage.ask(state, TWELVE[::-1])
                assert cold.answers == warm.answers == tuple(alone) == reversed_.answers[::-1]
                assert cold.trace.strategy == "restore"

    play(scene())


def test_stable_answers_are_the_same_without_snapshots(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, "in-place", STABLE) as stage:
            want = await stage.ask(questions=TWELVE)
            await stage.store.clear()
            stage.backend.save_fails = True
            assert (await stage.ask(questions=TWELVE)).answers == want.answers

    play(scene())


def test_the_fake_would_notice_other_steps(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, "in-place", slots=1) as stage:
            cold = await stage.ask(questions=TWELVE)
            assert (await stage.ask(questions=TWELVE[3:4])).answers[0] != cold.answers[3]

    play(scene())


@every_model
def test_labels_of_two_tokens_go_back_to_the_prefix(tmp_path: Path, truncates: bool) -> None:
    async def scene() -> None:
        async with staged(tmp_path, truncates=truncates) as stage:
            questions = (replace(PAIRS, id="a"), Choice("b", "Where?", PAIRS.options))
            got = await stage.ask(questions=questions)
            assert got.trace.reevaluated == 0
            assert stage.called("complete") == ["complete"] * 3, "both at once, then each once more"
            rests = sum(len(prompt) - got.trace.prefix_tokens for prompt in stage.backend.prompts)
            assert got.trace.processed_tokens <= got.trace.prefix_tokens + rests
            assert got.usage.output_tokens >= 6

    play(scene())


def test_missing_labels_are_looked_for_again_only_where_they_are_missing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path) as stage:
            stage.backend.hide, stage.backend.hides_after = frozenset(b"AB"), b"say 4?"
            await stage.ask(questions=TWELVE)
            first, again = [call.prompts for call in stage.backend.trail if call.name == "complete"]
            assert len(again) == 1
            assert b"say 4?" in bytes(again[0])
            assert again[0] in first

    play(scene())


@every_strategy
@every_model
def test_half_a_character_is_no_fault_of_the_caller(tmp_path: Path, only: Strategy, truncates: bool) -> None:
    """Some builds fail over it, and with it over everything that was asked in the same round trip."""

    async def scene() -> None:
        async with staged(tmp_path, only, truncates=truncates) as stage:
            want = await stage.plainly(questions=TWELVE)
            stage.backend.withholds = b"say 4?"
            got = await stage.ask(questions=TWELVE)
            assert probabilities(got) == pytest.approx(probabilities(want), abs=1e-9)

    play(scene())


def test_others_go_first_after_sixteen_questions(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, slots=1) as stage:
            questions = tuple(Noul(f"q{i}", f"Is it {i}?") for i in range(40))
            decider = Decider(stage.backend, stage.session, stage.store, stage.policy)
            stage.backend.gate = asyncio.Event()
            large = asyncio.create_task(decider.decide(state=STATE, questions=questions))
            await stage.backend.arrived.wait()
            small = asyncio.create_task(decider.decide(state="y" * 600, questions=MIXED))
            while not stage.session.pool._table.waiting:
                await asyncio.sleep(0)
            stage.backend.gate.set()
            await small
            assert not large.done()
            got, want = await large, await stage.plainly(questions=questions)
            assert probabilities(got) == pytest.approx(probabilities(want), abs=1e-9)
            assert got.trace.reevaluated == 0
            sizes = [len(call.prompts) for call in stage.backend.trail if call.name == "complete"]
            assert sizes == [16, 3, 16, 8]
            assert stage.called("restore") == ["restore"], "the small one took the slot meanwhile"

    play(scene())


@every_model
def test_a_request_below_the_threshold_that_gave_way_goes_on_in_another_slot(tmp_path: Path, truncates: bool) -> None:
    async def scene() -> None:
        async with staged(tmp_path, slots=1, truncates=truncates) as stage:
            questions = tuple(Noul(f"q{i}", f"Is it {i}?") for i in range(40))
            decider = Decider(stage.backend, stage.session, stage.store, stage.policy)
            stage.backend.gate = asyncio.Event()
            large = asyncio.create_task(decider.decide(state=SHORT, questions=questions))
            await stage.backend.arrived.wait()
            small = asyncio.create_task(decider.decide(state="y", questions=MIXED))
            while not stage.session.pool._table.waiting:
                await asyncio.sleep(0)
            stage.backend.gate.set()
            await small
            got, want = await large, await stage.plainly(SHORT, questions)
            assert probabilities(got) == pytest.approx(probabilities(want), abs=1e-9)
            rests = want.usage.input_tokens - 40 * got.trace.prefix_tokens
            assert got.trace.processed_tokens <= 2 * got.trace.prefix_tokens + rests + 2 * 40

    play(scene())


def test_questions_are_spread_over_the_slots_that_nobody_waits_for(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, "fan-out") as stage:
            got = await stage.ask(questions=TWELVE)
            assert got.trace.strategy == "fan-out"
            reads = {call.slot: len(call.prompts) for call in stage.backend.trail if call.name == "complete"}
            assert reads == dict.fromkeys(range(4), 3)
            assert stage.called("restore") == ["restore"] * 3, "the first slot has evaluated it"

    play(scene())


@pytest.mark.parametrize(("questions", "lanes"), [(2, 1), (3, 1), (4, 2), (7, 3), (8, 4), (12, 4)])
def test_no_slot_is_taken_for_a_single_question(tmp_path: Path, questions: int, lanes: int) -> None:
    async def scene() -> None:
        async with staged(tmp_path, "fan-out") as stage:
            got = await stage.ask(questions=TWELVE[:questions])
            assert len(set(stage.backend.entered)) == lanes
            assert got.trace.strategy == ("in-place" if lanes == 1 else "fan-out")

    play(scene())


@every_model
def test_a_slot_that_does_not_take_the_snapshot_is_left_out(tmp_path: Path, truncates: bool) -> None:
    async def scene() -> None:
        async with staged(tmp_path, "fan-out", truncates=truncates) as stage:
            stage.backend.restore_fails = (1,)
            got, want = await stage.ask(questions=TWELVE), await stage.plainly(questions=TWELVE)
            assert probabilities(got) == pytest.approx(probabilities(want), abs=1e-9)
            reads = {call.slot: len(call.prompts) for call in stage.backend.trail if call.name == "complete"}
            assert 1 not in reads
            assert got.trace.reevaluated == 0

    play(scene())


@pytest.mark.parametrize("only", ["in-place", "fan-out"])
@pytest.mark.parametrize("budget", [0, MANY])
@pytest.mark.parametrize("questions", [TWELVE, LONG_ONES, LONG_ONES + TWELVE[:2]], ids=["short", "long", "mixed"])
@pytest.mark.parametrize("wording", ["", "Considering all that was said above and what is usual in such cases, " * 3])
def test_what_cannot_be_cut_back_is_evaluated_once_all_the_same(
    tmp_path: Path, only: Strategy, budget: int, questions: tuple[Noul, ...], wording: str
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, only, budget=budget, truncates=False, slots=4 if only == "fan-out" else 1) as stage:
            asked = tuple(Noul(each.id, f"{wording}{each.instructions}") for each in questions)
            got = await stage.ask(questions=asked)
            prefix = got.trace.prefix_tokens
            lanes = len({call.slot for call in stage.backend.trail if call.name == "complete"})
            lead = prefix - len(stage.session.frame.head) - len(f"Text:\n{STATE}\n")
            rests = got.usage.input_tokens - prefix * len(asked)
            assert lead > (len(wording) or 1)
            assert got.trace.reevaluated == 0
            assert got.trace.cached_tokens >= prefix * len(asked) - lanes * lead
            assert got.trace.processed_tokens <= prefix + rests + 2 * len(asked) + (lanes - 1) * lead
            again = await stage.ask(questions=asked)
            assert again.trace.processed_tokens <= prefix + rests + 2 * len(asked) + (lanes - 1) * lead
            if budget:
                assert again.trace.processed_tokens <= lanes * lead + rests + 2 * len(asked)

    play(scene())


@every_strategy
@every_model
@pytest.mark.parametrize("budget", [0, MANY])
def test_cancelled_wherever_it_waits_a_request_leaves_nothing_behind(
    tmp_path: Path, only: Strategy, truncates: bool, budget: int
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, only, budget=budget, truncates=truncates, slots=3) as stage:
            for state in (STATE, "kept"):
                for turn in count(1):
                    # A state of its own each time, or else what the cancelled one left is found.
                    text = f"{turn} {STATE}" if state is STATE else STATE
                    decider = Decider(stage.backend, stage.session, stage.store, stage.policy)
                    cancelled = await ends_cancelled(turn, decider.decide(state=text, questions=TWELVE[:6]))
                    await stage.assert_nothing_is_left()
                    if not cancelled:
                        break
                assert turn > 5
            want = await stage.plainly(questions=TWELVE)
            assert probabilities(await stage.ask(questions=TWELVE)) == pytest.approx(probabilities(want), abs=1e-9)

    play(scene())


@pytest.mark.parametrize("at", ["save", "restore", "evaluate"])
def test_cancelled_while_the_server_works_a_request_gives_its_slot_back(tmp_path: Path, at: str) -> None:
    async def scene() -> None:
        async with staged(tmp_path, "restore", budget=0) as stage:
            stage.backend.at, stage.backend.gate = (at,), asyncio.Event()
            decider = Decider(stage.backend, stage.session, stage.store, stage.policy)
            asking = asyncio.create_task(decider.decide(state=STATE, questions=TWELVE))
            await stage.backend.arrived.wait()
            asking.cancel()
            if at == "save":
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert not asking.done(), "what is written later would be deleted by nobody"
                stage.backend.gate.set()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await stage.assert_nothing_is_left()
            assert saved(stage.store) == set()

    play(scene())


def test_a_server_that_restarted_meanwhile_is_not_asked_with_an_old_slot(tmp_path: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, "restore") as stage:
            stage.backend.at, stage.backend.gate = ("save",), asyncio.Event()
            decider = Decider(stage.backend, stage.session, stage.store, stage.policy)
            asking = asyncio.create_task(decider.decide(state=STATE, questions=TWELVE))
            await stage.backend.arrived.wait()
            pool: SlotPool = stage.session.pool
            pool.close(BackendUnavailable("restarted"))
            stage.backend.gate.set()
            with pytest.raises(BackendUnavailable, match="restarted"):
                await asking
            assert stage.backend.calls[-1] == "save"

    play(scene())


@pytest.mark.parametrize("when", ["restored", "saved"])
def test_another_run_of_the_server_neither_gets_nor_gives_a_snapshot(tmp_path: Path, when: str) -> None:
    """It may have come up between two looks of the watcher, with other settings that no request would stumble over."""

    async def scene() -> None:
        async with staged(tmp_path) as stage:
            if when == "restored":
                await stage.ask()
                for slot in range(4):  # so that no slot holds it any more
                    await stage.ask(f"{slot} {STATE}")
            kept = saved(stage.store)
            stage.backend.run += 1
            stage.backend.forget_calls()
            with pytest.raises(BackendUnavailable, match="restarted"):
                await stage.ask()
            assert not stage.called("restore", "complete")
            await stage.store.settled()
            assert saved(stage.store) == kept

    play(scene())


def test_what_the_probe_did_not_show_is_learned_from_the_first_request(tmp_path: Path) -> None:
    """A window that the probe's short prompts fit in looks like a slot that can be cut back anywhere."""

    async def scene() -> None:
        async with staged(tmp_path, truncates=False) as stage:
            stage.session.profile = replace(stage.session.profile, truncates=True)
            first = await stage.ask(questions=LONG_ONES)
            assert first.trace.reevaluated > 0
            want = await stage.plainly(questions=LONG_ONES)
            assert probabilities(first) == pytest.approx(probabilities(want), abs=1e-9)
            assert not stage.session.profile.truncates
            second = await stage.ask("Another. " + STATE, questions=LONG_ONES)
            assert (second.trace.reevaluated, second.trace.strategy) == (0, "in-place")

    play(scene())
