"""Decider: one request, one straight line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from jev_local.backend.port import Backend, Completion
from jev_local.core.answers import Reading, answer
from jev_local.core.labels import Label, NotEnoughLabels
from jev_local.core.plan import PrefixPlan, Tokens, share
from jev_local.core.prompts import question_text, shared_text
from jev_local.core.questions import Question, width
from jev_local.core.readout import (
    MANY_RUNNERS_UP,
    RUNNERS_UP,
    STRONGER_BIAS,
    NoDistribution,
    StepReading,
    biases,
    combine,
    read_step,
    steps,
    warnings,
)
from jev_local.engine.decision import Decision, Trace, Usage
from jev_local.engine.pool import Lease
from jev_local.engine.session import Session, tokenize_chats
from jev_local.errors import BackendFault, BackendUnavailable, InvalidRequest, PromptTooLong

QUESTION_BYTES = 4 * 1024 * 1024
"""Of all questions' texts in a request. Each alone is bounded by the context, but a thousand of them would keep
llama-server tokenising for a minute."""

CACHE_MIN_TOKENS = 256
"""From this prefix length on, keeping the prefix in a snapshot would pay. None is made yet, and the trace says so."""

CERTAIN = Reading((1.0,))
"""One option needs no inference."""


@dataclass(slots=True)
class _Tally:
    """Tokens and milliseconds of one request, added up as it goes along. `asked` counts every question's prompt
    once; the others count what the server did, repeated reads included."""

    asked: int = 0
    cached: int = 0
    processed: int = 0
    generated: int = 0
    started: float = field(default_factory=perf_counter)
    stages: list[tuple[str, float]] = field(default_factory=list)

    def count(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            self.cached += completion.cached_tokens
            self.processed += completion.processed_tokens
            self.generated += completion.generated_tokens

    def stage(self, name: str, since: float) -> None:
        self.stages.append((name, (perf_counter() - since) * 1000))

    def usage(self) -> Usage:
        return Usage(input_tokens=self.asked, output_tokens=self.generated)

    def trace(self, prefix: int) -> Trace:
        self.stage("total", self.started)
        return Trace(
            state_cache="off-short" if prefix < CACHE_MIN_TOKENS else "off",
            prefix_tokens=prefix,
            cached_tokens=self.cached,
            processed_tokens=self.processed,
            timings_ms=tuple(self.stages),
        )


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question that the model has to be asked, with the labels its options go by."""

    question: Question
    labels: tuple[Label, ...]


class Decider:
    """Answers questions about one state with the model of one session."""

    def __init__(self, backend: Backend, session: Session) -> None:
        self._backend = backend
        self._session = session

    async def decide(self, *, state: str, questions: tuple[Question, ...]) -> Decision:
        """Readings of all questions. Round trips: one /tokenize, then one /completion a question; questions whose
        labels have two tokens take one more each."""
        tally = _Tally()
        asked = [_Asked(q, self._labels(q)) for q in questions if width(q) > 1]
        readings: dict[str, Reading] = {}
        prefix = 0
        if asked:
            plan = await self._plan(state, asked)
            tally.stage("tokenize", tally.started)
            prefix, queued = plan.prefix, perf_counter()
            async with self._session.pool.lease(plan.prompt(0), need=plan.longest + _room_of_answer(asked)) as lease:
                tally.stage("lease", queued)
                begun = perf_counter()
                for index, one in enumerate(asked):
                    prompt = plan.prompt(index)
                    tally.asked += len(prompt)
                    readings[one.question.id] = await self._read(one, prompt, lease, tally)
                tally.stage("decode", begun)
        return Decision(
            model=self._session.info.model,
            answers=tuple(answer(q, readings.get(q.id, CERTAIN)) for q in questions),
            usage=tally.usage(),
            trace=tally.trace(prefix),
        )

    async def _plan(self, state: str, asked: Sequence[_Asked]) -> PrefixPlan:
        """Every question's complete chat, what they have in common, and the certainty that each of them fits."""
        style = self._session.style
        shared = shared_text(style, state)
        added = [question_text(style, one.question, [label.text for label in one.labels]) for one in asked]
        self._check_bytes(shared, added)
        stem, rests = await tokenize_chats(self._backend, self._session, shared=shared, added=added)
        plan = share(stem, rests)
        needed, available = plan.longest + _room_of_answer(asked), self._session.info.context
        if needed > available:
            raise PromptTooLong(needed=needed, available=available)
        return plan

    async def _read(self, one: _Asked, prompt: Tokens, lease: Lease, tally: _Tally) -> Reading:
        passes = steps(one.labels)
        beside = MANY_RUNNERS_UP if passes.two else RUNNERS_UP
        (first,) = await self._step([prompt], [passes.first], beside, lease, tally)
        if passes.two:
            prompts = [(*prompt, token) for token in passes.first]
            second = await self._step(prompts, passes.second, beside, lease, tally)
            try:
                first = combine(first, second)
            except NoDistribution as error:
                raise BackendFault(f"No answer can be read: {error}.") from error
        return Reading(first.probabilities, first.mass, warnings(first, thought=self._session.thought))

    async def _step(
        self, prompts: Sequence[Tokens], tokens: Sequence[Tokens], beside: int, lease: Lease, tally: _Tally
    ) -> list[StepReading]:
        """One pass per prompt, reading `tokens[i]` after `prompts[i]`. All of them get the bias: a token that is
        not among a prompt's own is divided out of its reading again. Where labels were not returned, another look
        with a stronger bias; a label that even the last one does not lift has no probability worth the name."""
        self._session.pool.require_open()
        biased = sorted({token for group in tokens for token in group})
        for bias in biases(len(biased), runners_up=beside):
            completions = await self._backend.complete(
                prompts, slot=lease.slot, labels=biased, bias=bias, runners_up=beside, reuse=True
            )
            if completions[0].alias != self._session.info.alias:
                # Token ids of one vocabulary mean nothing in another's.
                raise BackendUnavailable("The inference server has changed its model. Try again in a moment.")
            lease.holds = prompts[-1]
            tally.count(completions)
            try:
                found = [
                    read_step(completion.top, group, biased=biased, bias=bias)
                    for completion, group in zip(completions, tokens, strict=True)
                ]
            except NoDistribution as error:
                if bias == STRONGER_BIAS:
                    raise BackendFault(f"No answer can be read: {error}.") from error
                continue
            if not any(reading.missing for reading in found):
                break
        return found

    def _labels(self, question: Question) -> tuple[Label, ...]:
        try:
            return self._session.labels.choose(width(question))
        except NotEnoughLabels as error:
            raise InvalidRequest(f"A question has more options than this model can tell apart: {error}.") from error

    def _check_bytes(self, shared: str, added: Sequence[str]) -> None:
        """Refuse before tokenising what cannot fit, however well it is tokenised: 10 MB take llama-server seconds."""
        sizes = [len(text.encode()) for text in added]
        longest = len(shared.encode()) + max(sizes)
        at_least = len(self._session.frame.head) + -(-longest // self._session.info.token_bytes)
        if at_least > self._session.info.context:
            raise PromptTooLong(needed=at_least, available=self._session.info.context, at_least=True)
        if sum(sizes) > QUESTION_BYTES:
            raise InvalidRequest(
                f"The questions have {sum(sizes)} bytes of text in all, and {QUESTION_BYTES} are read at most. "
                f"Ask them in several requests."
            )


def _room_of_answer(asked: Sequence[_Asked]) -> int:
    """Tokens of context that an answer takes behind its prompt: those of a label, the last of which is generated."""
    return max(len(one.labels[0].tokens) for one in asked)
