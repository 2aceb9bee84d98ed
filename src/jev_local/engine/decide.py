"""Decider: one request, one straight line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from jev_local.backend.port import Backend, Completion
from jev_local.core.answers import Reading, answer
from jev_local.core.labels import Label, NotEnoughLabels
from jev_local.core.plan import Tokens, share
from jev_local.core.prompts import question_text, shared_text
from jev_local.core.questions import Question, width
from jev_local.core.readout import (
    BIAS,
    MANY_RUNNERS_UP,
    RUNNERS_UP,
    STRONGER_BIAS,
    NoDistribution,
    StepReading,
    combine,
    read_step,
    steps,
    warnings,
)
from jev_local.engine.decision import Decision, Trace, Usage
from jev_local.engine.pool import Lease
from jev_local.engine.session import Session, chats
from jev_local.errors import BackendFault, BackendUnavailable, InvalidRequest, PromptTooLong

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
            plan = share(await self._prompts(state, asked))
            self._check_room(plan.longest + max(len(a.labels[0].tokens) - 1 for a in asked))
            tally.stage("tokenize", tally.started)
            prefix, queued = plan.prefix, perf_counter()
            async with self._session.pool.lease(plan) as lease:
                tally.stage("lease", queued)
                begun = perf_counter()
                for one, prompt in zip(asked, plan.branches, strict=True):
                    tally.asked += len(prompt)
                    readings[one.question.id] = await self._read(one, prompt, lease, tally)
                tally.stage("decode", begun)
        return Decision(
            model=self._session.info.model,
            answers=tuple(answer(q, readings.get(q.id, CERTAIN)) for q in questions),
            usage=tally.usage(),
            trace=tally.trace(prefix),
        )

    async def _prompts(self, state: str, asked: Sequence[_Asked]) -> list[Tokens]:
        style = self._session.style
        shared = shared_text(style, state)
        added = [question_text(style, one.question, [label.text for label in one.labels]) for one in asked]
        self._check_bytes(shared, added)
        return await chats(self._backend, self._session, shared=shared, added=added)

    async def _read(self, one: _Asked, prompt: Tokens, lease: Lease, tally: _Tally) -> Reading:
        passes = steps(one.labels)
        beside = MANY_RUNNERS_UP if passes.two else RUNNERS_UP
        (first,) = await self._step([prompt], [passes.first], beside, lease, tally)
        if passes.two:
            prompts = [(*prompt, token) for token in passes.first]
            first = combine(first, await self._step(prompts, passes.second, beside, lease, tally))
        return Reading(first.probabilities, first.mass, warnings(first, thought=self._session.thought))

    async def _step(
        self, prompts: Sequence[Tokens], tokens: Sequence[Tokens], beside: int, lease: Lease, tally: _Tally
    ) -> list[StepReading]:
        """One pass per prompt, reading `tokens[i]` after `prompts[i]`. All of them get the bias: a token that is
        not among a prompt's own is divided out of its reading again."""
        biased = sorted({token for group in tokens for token in group})
        for bias in (BIAS, STRONGER_BIAS):
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
                raise BackendFault(f"No answer can be read: {error}.") from error
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
        longest = len(shared.encode()) + max(len(text.encode()) for text in added)
        at_least = len(self._session.frame.head) + -(-longest // self._session.info.token_bytes)
        if at_least > self._session.room:
            raise PromptTooLong(needed=at_least, available=self._session.room, at_least=True)

    def _check_room(self, longest: int) -> None:
        if longest > self._session.room:
            raise PromptTooLong(needed=longest, available=self._session.room)
