"""The straight line without any reuse, on a server made of arithmetic whose true distribution is known."""

from __future__ import annotations

import asyncio
import math
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase
from typing import TypeVar

import pytest

from fakes.backend import FakeBackend, weigh
from jev_local.core.answers import ChoiceAnswer, NoulAnswer
from jev_local.core.labels import LabelBook
from jev_local.core.prompts import DEFAULT_STYLE
from jev_local.core.questions import Choice, Noul, Option, Question, Score
from jev_local.core.sharing import Policy
from jev_local.engine.decide import Decider
from jev_local.engine.session import open_session
from jev_local.engine.snapshots import SnapshotStore
from jev_local.errors import BackendFault, BackendTimeout, BackendUnavailable, InvalidRequest, PromptTooLong

T = TypeVar("T")
UNUSED = SnapshotStore(Path("unused"), budget=0)
REFUND = Noul("refund", "Does the customer want money back?")
TEAM = Choice("team", "Whose is it?", (Option("billing", "money"), Option("tech"), Option("sales")))
ANGER = Score("anger", "How angry?", ("calm", "annoyed", "furious"))


def run(scene: Callable[[FakeBackend, Decider], Awaitable[T]], **options: object) -> T:
    async def play() -> T:
        backend = FakeBackend(**options)  # type: ignore[arg-type]
        session = await open_session(backend, workers=4)
        backend.forget_calls()
        return await scene(backend, Decider(backend, session, UNUSED, Policy()))

    return asyncio.run(play())


def many(count: int) -> Choice:
    return Choice("many", "Which?", tuple(Option(f"n{i}") for i in range(count)))


def test_answers_come_in_the_order_of_the_questions_with_counts_that_add_up() -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        got = await decider.decide(state="Charged twice.", questions=(ANGER, REFUND, TEAM))
        assert [a.id for a in got.answers] == ["anger", "refund", "team"]
        assert backend.calls == ["tokenize", "complete", "complete", "complete"], "1 + N round trips"
        assert not any(call.reuse for call in backend.trail)
        assert got.usage.input_tokens == got.trace.cached_tokens + got.trace.processed_tokens
        assert got.usage.output_tokens == 3
        assert (got.trace.state_cache, got.trace.strategy, got.trace.source) == ("off", "plain", "none")
        assert (got.trace.cached_tokens, got.trace.reevaluated) == (0, 0)
        assert [name for name, _ in got.trace.timings_ms] == [
            "tokenize", "lease", "prefix", "restore", "decode", "total"
        ]  # fmt: skip
        assert set(backend.entered) == {0}

    run(scene)


def test_one_option_is_answered_without_asking() -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        only = Choice("only", None, (Option("x"),))
        got = await decider.decide(state="", questions=(only, Score("level", None, ("l",))))
        assert backend.calls == []
        assert [a.reading.probabilities for a in got.answers] == [(1.0,), (1.0,)]
        assert (got.usage.input_tokens, got.usage.output_tokens) == (0, 0)

    run(scene)


def test_a_noul_reads_the_models_own_distribution() -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        (got,) = (await decider.decide(state="s", questions=(REFUND,))).answers
        assert isinstance(got, NoulAnswer)
        weights = weigh(backend.prompts[-1])
        yes, no = weights[ord("A")], weights[ord("B")]
        assert got.noul == pytest.approx(yes / (yes + no), abs=1e-9)
        letters = math.fsum(weights.pop(ord(letter)) for letter in ascii_uppercase)
        best = math.fsum(sorted(weights.values(), reverse=True)[:64])
        assert got.reading.mass == pytest.approx((yes + no) / (letters + best), abs=1e-9)

    run(scene)


def test_255_options_on_bytes_are_the_products_of_two_steps() -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        got = await decider.decide(state="s", questions=(many(255),))
        (answer,) = got.answers
        prompt = backend.prompts[0]
        pairs = [(a, b) for a in "ABCDEFGHIJ" for b in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"][:255]

        def own(prompt: tuple[int, ...], token: str) -> float:
            weights = weigh(prompt)
            return weights[ord(token)] / math.fsum(weights.values())

        joint = [own(prompt, a) * own((*prompt, ord(a)), b) for a, b in pairs]
        assert answer.reading.probabilities == pytest.approx([p / math.fsum(joint) for p in joint], abs=1e-12)
        assert answer.reading.mass == pytest.approx(math.fsum(joint), rel=1e-6)
        assert len(backend.calls) == 1 + 1 + 10, "one call for each of the first tokens"
        assert got.usage.input_tokens == len(prompt), "a question's prompt counts once, however often it is read"
        assert got.usage.output_tokens == 11

    run(scene, context=16384)


@pytest.mark.parametrize("hidden", ["B", "ABC"])
def test_labels_that_were_not_returned_are_looked_for_with_a_stronger_bias(hidden: str) -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        backend.hide = frozenset(map(ord, hidden))
        (got,) = (await decider.decide(state="s", questions=(TEAM,))).answers
        assert isinstance(got, ChoiceAnswer)
        weights = weigh(backend.prompts[-1])
        total = math.fsum(weights[ord(x)] for x in "ABC")
        assert got.reading.probabilities == pytest.approx([weights[ord(x)] / total for x in "ABC"], abs=1e-9)
        assert backend.calls == ["tokenize", "complete", "complete"]

    run(scene)


@pytest.mark.parametrize("options", [2, 255])
def test_a_pass_without_any_probabilities_is_looked_at_again(options: int) -> None:
    """What llama-server gives where the token it drew is only part of a character."""

    async def scene(backend: FakeBackend, decider: Decider) -> None:
        question = Choice("q", "Which?", tuple(Option(f"part {i}") for i in range(options)))
        want = (await decider.decide(state="s", questions=(question,))).answers[0]
        backend.hide = frozenset(range(256))
        got = (await decider.decide(state="s", questions=(question,))).answers[0]
        assert got.reading.probabilities == pytest.approx(want.reading.probabilities, abs=1e-9)
        assert got.reading.mass == pytest.approx(want.reading.mass, abs=1e-9)

    run(scene, context=16384)


def test_a_state_that_cannot_fit_is_refused_before_it_is_tokenised() -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        with pytest.raises(PromptTooLong, match=r"at least \d+ tokens, the context has 4096.*CTX_SIZE"):
            await decider.decide(state="x" * 5000, questions=(REFUND,))
        assert backend.calls == []

    run(scene)


def test_the_last_token_that_fits_is_accepted_and_the_next_is_not() -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        await decider.decide(state="x", questions=(REFUND,))
        spare = backend.context - 1 - len(backend.prompts[-1])
        await decider.decide(state="x" * (1 + spare), questions=(REFUND,))
        with pytest.raises(PromptTooLong) as refused:
            await decider.decide(state="x" * (2 + spare), questions=(REFUND,))
        assert (refused.value.needed, refused.value.available) == (backend.context + 1, backend.context)

    run(scene)


@pytest.mark.parametrize("error", [BackendTimeout("t"), BackendUnavailable("u"), BackendFault("f")])
def test_a_fault_gives_the_slot_back(error: Exception) -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        backend.fail = error  # type: ignore[assignment]
        with pytest.raises(type(error)):
            await decider.decide(state="s", questions=(REFUND, TEAM))
        got = await decider.decide(state="s", questions=(REFUND,))
        assert len(got.answers) == 1

    run(scene, slots=1)


def test_cancellation_gives_the_slot_back() -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        backend.gate = asyncio.Event()
        task = asyncio.create_task(decider.decide(state="s", questions=(REFUND,)))
        await backend.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        backend.gate = None
        async with asyncio.timeout(1):
            await decider.decide(state="s", questions=(REFUND,))

    run(scene, slots=1)


def test_requests_at_the_same_time_use_slots_of_their_own_and_keep_their_answers_apart() -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        async def ask(i: int) -> float:
            questions: tuple[Question, ...] = (Noul("q", f"Is it {i}?"),)
            (got,) = (await decider.decide(state=f"state {i}", questions=questions)).answers
            assert isinstance(got, NoulAnswer)
            return got.noul

        alone = [await ask(i) for i in range(12)]
        together = await asyncio.gather(*(ask(i) for i in range(12)))
        assert together == alone

    run(scene, slots=3)


def test_another_model_behind_the_same_address_is_noticed() -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        backend.alias = "other.gguf"
        with pytest.raises(BackendUnavailable, match="changed its model"):
            await decider.decide(state="s", questions=(REFUND,))

    run(scene)


def test_a_large_state_under_many_questions_is_refused_at_once_and_without_its_copies() -> None:
    """A state that passes the bound on bytes and fails the one on tokens, asked about a thousand times."""

    async def scene(backend: FakeBackend, decider: Decider) -> None:
        questions = tuple(Noul(f"q{i}", f"Is it {i}?") for i in range(1000))
        tracemalloc.start()
        begun = time.perf_counter()
        with pytest.raises(PromptTooLong):
            await decider.decide(state="x" * 300_000, questions=questions)
        took = time.perf_counter() - begun
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 60_000_000, "one state's tokens, not a thousand"
        assert took < 5

    run(scene, token_bytes=81)


def test_too_much_text_in_all_questions_together_is_refused_before_it_is_tokenised() -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        questions = tuple(Noul(f"q{i}", "x" * 100_000) for i in range(50))
        with pytest.raises(InvalidRequest, match="in several requests"):
            await decider.decide(state="s", questions=questions)
        assert backend.calls == []

    run(scene, token_bytes=81)


def test_what_idle_slots_hold_is_erased_where_it_is_in_the_way(tmp_path: Path) -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        for letter in "abcd":
            await decider.decide(state=letter * 2000, questions=(REFUND,))
        assert backend.entered == [3, 3, 2, 2, 3, 3, 2], "the slot left last is erased before the next one is filled"
        assert backend.calls.count("erase") == 3
        assert backend.fullest <= backend.context

    run(scene, slots=4, directory=tmp_path)


def test_a_server_that_cannot_erase_its_slots_is_left_to_itself() -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        for letter in "abcd":
            got = await decider.decide(state=letter * 2000, questions=(REFUND,))
            assert len(got.answers) == 1

    run(scene, slots=4, directory=None)


def test_more_options_than_the_vocabulary_can_tell_apart() -> None:
    async def scene(backend: FakeBackend, decider: Decider) -> None:
        decider._session = replace(decider._session, labels=LabelBook(decider._session.labels.singles, ()))
        with pytest.raises(InvalidRequest, match="labels for 26 options, not for 27"):
            await decider.decide(state="s", questions=(many(27),))

    run(scene)


def test_a_server_that_only_knows_certainty_is_refused_at_start() -> None:
    async def scene() -> None:
        with pytest.raises(BackendFault, match="speculative"):
            await open_session(FakeBackend(certain=True), workers=1)

    asyncio.run(scene())


def test_the_assistants_message_begins_as_the_style_says() -> None:
    async def scene() -> None:
        session = await open_session(FakeBackend(), workers=1)
        assert bytes(session.frame.tail) == f"<assistant>{DEFAULT_STYLE.prefill}".encode()

    asyncio.run(scene())


def test_a_template_that_drops_the_text_is_refused_and_one_that_trims_it_is_not() -> None:
    async def scene() -> None:
        with pytest.raises(BackendFault, match="cannot be asked"):
            await open_session(FakeBackend(template="drops"), workers=1)
        trimmed = await open_session(FakeBackend(template="trims"), workers=1)
        plain = await open_session(FakeBackend(), workers=1)
        assert trimmed.frame == plain.frame

    asyncio.run(scene())


def test_without_a_system_role_the_system_text_opens_the_users_message() -> None:
    async def scene() -> None:
        style = replace(DEFAULT_STYLE, system="Decide.")
        session = await open_session(FakeBackend(system_role=False), workers=1, style=style)
        assert bytes(session.frame.head[1:]) == b"<user>Decide.\n"

    asyncio.run(scene())
