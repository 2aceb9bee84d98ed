"""Lane: the questions that are read in one slot, one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jev_local.backend.port import Completion
from jev_local.core.answers import Reading
from jev_local.core.labels import Label
from jev_local.core.plan import PrefixPlan, Tokens
from jev_local.core.questions import Question
from jev_local.core.readout import (
    MANY_RUNNERS_UP,
    RUNNERS_UP,
    STRONGER_BIAS,
    NoDistribution,
    StepReading,
    Steps,
    biases,
    combine,
    read_step,
    steps,
    warnings,
)
from jev_local.core.sharing import Sharing, to_be_marked
from jev_local.engine.seat import Pass, Seat
from jev_local.engine.warm import Warm, Warmer
from jev_local.errors import BackendFault, Withheld

LONG_LEAD = 32
"""Tokens that questions have in common behind the state, from which on a round trip of its own for them pays: any of
several prompts may be the first to be evaluated, and only what was there before can be asked of each."""

AT_ONCE = 16
"""Questions of a round trip. After each, those who wait for a slot go first."""

BYTES_AT_ONCE = 24 * 1024 * 1024
"""Of pictures in a round trip: each of its prompts carries all of its own."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that the model has to be asked: its place among the prompts, the labels its options go by, and the
    tokens that are lifted when they are read."""

    index: int
    question: Question
    labels: tuple[Label, ...]
    lifted: Tokens

    @property
    def passes(self) -> Steps:
        return steps(self.labels)

    @property
    def room(self) -> int:
        """Tokens of context that an answer takes behind its prompt: those of a label, the last one generated."""
        return len(self.labels[0].tokens)

    @property
    def kind(self) -> tuple[Tokens, bool]:
        """Questions of one kind can be read in one round trip."""
        return self.lifted, self.passes.two


@dataclass(frozen=True, slots=True)
class _Look:
    """One prompt to be read: for which question, and the tokens whose probabilities are wanted."""

    asked: Asked
    prompt: Tokens
    tokens: Tokens


def in_order(plan: PrefixPlan, asked: Sequence[Asked], *, truncates: bool) -> list[Asked]:
    """The order that costs least. Where a slot can be cut back anywhere, alike questions side by side have more in
    common than the prefix; where it cannot, a short one leaves the mark that the others start from. Either way the
    caller's order does not matter to the answers."""
    key = (lambda one: plan.rests[one.index]) if truncates else (lambda one: len(plan.rests[one.index]))
    return sorted(asked, key=key)


class Lane:
    """Reads its share of a request's questions in `seat`, which `warm` was brought to."""

    def __init__(self, seat: Seat, plan: PrefixPlan, sharing: Sharing, *, warmer: Warmer, warm: Warm) -> None:
        self._seat = seat
        self._plan = plan
        self._sharing = sharing
        self._prefix = plan.prompt(0)[: sharing.split]
        self._warmer = warmer
        self._warm = warm

    @property
    def _at_once(self) -> int:
        """Questions of a round trip, at most."""
        spelling = self._seat.spelling
        if spelling is None:
            return AT_ONCE
        if self._sharing.strategy == "plain":  # each of them takes as long as a group does elsewhere
            return 1
        return max(1, min(AT_ONCE, BYTES_AT_ONCE // max(spelling.heaviest, 1)))

    async def read(self, share: Sequence[Asked]) -> dict[str, Reading]:
        """Question id -> reading. Between any two round trips others may go first."""
        readings: dict[str, Reading] = {}
        for begun, group in enumerate(groups(share, self._at_once)):
            if begun and await self._seat.session.pool.give_way(self._seat.lease):
                self._warm = await self._warmer.bring(self._seat, self._prefix, self._sharing)
            with self._seat.tally.stage("decode"):
                for one, reading in zip(group, await self._read(group), strict=True):
                    thought = self._seat.session.thought
                    readings[one.question.id] = Reading(
                        reading.probabilities, reading.mass, warnings(reading, thought=thought)
                    )
        return readings

    async def _read(self, group: Sequence[Asked]) -> list[StepReading]:
        beside = MANY_RUNNERS_UP if group[0].passes.two else RUNNERS_UP
        looks = [_Look(one, self._plan.prompt(one.index), one.passes.first) for one in group]
        first = await self._steps(looks, group[0].lifted, beside)
        if not group[0].passes.two:
            return first
        return [await self._second(look, reading, beside) for look, reading in zip(looks, first, strict=True)]

    async def _second(self, look: _Look, first: StepReading, beside: int) -> StepReading:
        """The same question once more, after each of the first tokens of its labels."""
        passes = look.asked.passes
        looks = [
            _Look(look.asked, (*look.prompt, token), group)
            for token, group in zip(passes.first, passes.second, strict=True)
        ]
        lifted = tuple(sorted({token for group in passes.second for token in group}))
        try:
            return combine(first, await self._steps(looks, lifted, beside))
        except NoDistribution as error:
            raise BackendFault(f"No answer can be read: {error}.") from error

    async def _steps(self, looks: Sequence[_Look], lifted: Tokens, beside: int) -> list[StepReading]:
        """One reading per look. All `lifted` tokens get the bias: one that is not among a look's own is divided out of
        its reading again. Where labels were not returned, another look with a stronger bias; a label that even the
        last one does not lift has no probability worth the name."""
        found: dict[int, StepReading] = {}
        left = list(range(len(looks)))
        for bias in biases(len(lifted), runners_up=beside):
            try:
                completions = await self._passes([looks[i] for i in left], Pass(lifted, bias, beside))
            except Withheld:
                if bias == STRONGER_BIAS:
                    raise
                continue
            for i, completion in zip(list(left), completions, strict=True):
                try:
                    found[i] = read_step(completion.top, looks[i].tokens, biased=lifted, bias=bias)
                except NoDistribution as error:
                    if bias == STRONGER_BIAS:
                        raise BackendFault(f"No answer can be read: {error}.") from error
                    continue
                if not found[i].missing:
                    left.remove(i)
            if not left:
                break
        return [found[i] for i in range(len(looks))]

    async def _passes(self, looks: Sequence[_Look], how: Pass) -> list[Completion]:
        """One completion per look, by the strategy of the request; checked for what they reused."""
        prompts = [look.prompt for look in looks]
        if self._sharing.strategy == "plain":
            return [(await self._seat.read([prompt], how, reuse=False))[0] for prompt in prompts]
        if self._sharing.strategy == "restore":
            completions = []
            for prompt in prompts:
                await self._restore()
                completions += await self._seat.read([prompt], how, reuse=True)
            expected = [self._sharing.split] * len(looks)
        else:
            least = await self._lead(prompts[0])
            completions = await self._seat.read(prompts, how, reuse=True)
            expected = [least] * len(looks)
        if self._is_prepared() and len(looks) > 1:
            short = sum(got.cached_tokens < least for got, least in zip(completions, expected, strict=True))
            # One may have met a slot that somebody else emptied, and one of them the first that was evaluated.
            if 2 * short > len(looks):
                self._seat.distrust(self._sharing.strategy)
        return [
            await self._checked(look, completion, how, least=least)
            for look, completion, least in zip(looks, completions, expected, strict=True)
        ]

    def _is_prepared(self) -> bool:
        """Whether the prefix has to be reused. Otherwise what a slot still holds is welcome, and is not missed."""
        return not self._sharing.short or self._warm.snapshot is not None

    async def _restore(self) -> None:
        if self._warm.restored:
            self._warm = replace(self._warm, restored=False)
            return
        snapshot = self._warm.snapshot
        if snapshot is None or not await self._warmer.restore(self._seat, snapshot, self._prefix):
            # Gone meanwhile, or never made for want of space: evaluating it anew gives the same.
            snapshot = await self._warmer.renew(self._seat, self._prefix, keep=True)
            self._warm = Warm(self._warm.source, snapshot, len(self._prefix))

    async def _checked(self, look: _Look, completion: Completion, how: Pass, *, least: int) -> Completion:
        """`completion`, or what a full evaluation gives where less was reused than has to be."""
        if not self._is_prepared() or completion.cached_tokens >= least:
            return completion
        if self._sharing.insists:
            raise BackendFault(
                f"The inference server reused {completion.cached_tokens} of the {least} tokens that were prepared."
            )
        self._seat.tally.failed.add(look.asked.index)
        (again,) = await self._seat.read([look.prompt], how, reuse=False)
        return again

    async def _lead(self, prompt: Tokens) -> int:
        """Have the slot ready for prompts like `prompt` in any order; how much each of them reuses then."""
        stem, prefix = len(self._plan.stem), self._plan.prefix
        if not prefix:
            return self._warm.ready
        if self._seat.profile.truncates:
            if not self._is_prepared() or prefix - self._warm.ready < LONG_LEAD:
                return self._warm.ready
            if self._seat.reusable(prompt[:prefix]) < prefix:
                with self._seat.tally.stage("prefix"):
                    await self._seat.evaluate(prompt[:prefix], reuse=True)
            return prefix
        contents, marks = self._seat.lease.contents, self._seat.marks
        held = len(contents.tokens) if contents.ends else -1
        if prefix in marks and held != prefix:
            return prefix
        ends = to_be_marked(stem, prefix, self._plan.step, held=held, marks=marks)
        with self._seat.tally.stage("prefix"):
            for end in ends:
                await self._seat.evaluate(prompt[:end], reuse=True)
        self._seat.marked((stem, prefix) if stem in (*marks, *ends) else (prefix,))
        return prefix


def groups(share: Sequence[Asked], size: int) -> Iterator[list[Asked]]:
    """Questions that are read in one round trip: of one kind, and not so many that others wait for long."""
    kinds: dict[object, list[Asked]] = {}
    for one in share:
        kinds.setdefault(one.kind, []).append(one)
    for alike in kinds.values():
        for start in range(0, len(alike), size):
            yield alike[start : start + size]
