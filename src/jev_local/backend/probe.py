"""What a server and its model can do with a prefix, found out by doing it.

Whether a slot can be gone on from, whether that needs a restore first, and what each way costs differs between models
and builds of llama.cpp, and nothing in `/props` tells. So two short states of three questions each are answered in
every way there is, and what comes out is compared with evaluating each question from nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from jev_local.backend.port import Backend, BackendInfo, Completion
from jev_local.backend.trials import Trials
from jev_local.core.plan import Tokens, common
from jev_local.core.sharing import Profile, Trial
from jev_local.errors import BackendFault, NotSupported, Withheld

ALIKE = 0.03
"""How far probabilities may lie from those of a cold run in any case: other steps of evaluation move them, in models of
coarse quantisation by 0.05 and more."""

HALF_WAY = 0.5
"""Beyond that, an answer still counts as that of its own state if it is nearer to it than half the way to the other
state's. A slot that holds another state, or more than it, goes all the way or somewhere else."""

BIAS = 30.0
"""On tokens that are whole characters for certain, in a second try where something cannot be read without."""

TOP, ASKED = 8, 64
"""Tokens that are compared, and that are asked for, so that one that ranks 9th by a hair in one run is not missing."""

NAMES = ("probe-0.slot", "probe-1.slot")
"""Of the probe's snapshots: always the same, so that they are overwritten where they cannot be deleted."""

NO_DIRECTORY = (
    "the inference server was started without a directory to save its slots in: start it with SLOT_CACHE_DIR or "
    "--slot-save-path, and the API with --slot-cache-dir naming the same directory"
)
OTHER_DIRECTORY = (
    "what the inference server saves does not appear in the API's directory: SLOT_CACHE_DIR (the server's "
    "--slot-save-path) and the API's --slot-cache-dir have to name the same directory"
)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Run:
    """Answers by one strategy: (state, question) -> distribution. `reused`: whether all of the prefix always was.
    `ms`: of the quicker state, because what else the machine does only makes it longer."""

    tops: dict[tuple[int, int], Mapping[int, float]] = field(default_factory=dict)
    reused: bool = True
    ms: float = math.inf

    @contextmanager
    def timed(self) -> Iterator[None]:
        begun = perf_counter()
        yield
        self.ms = min(self.ms, (perf_counter() - begun) * 1000)

    def is_like(self, cold: _Run, name: str) -> bool:
        """Whether these are the answers of `cold`, as far as other steps of evaluation leave them the same."""
        own = [_distance(self.tops[at], top) for at, top in cold.tops.items()]
        apart = [_distance(cold.tops[1 - state, question], top) for (state, question), top in cold.tops.items()]
        bound = max(ALIKE * len(own), HALF_WAY * sum(apart))
        log.info(
            "  %-8s %.3f in all from the cold answers, which are %.3f from the other state's",
            name,
            sum(own),
            sum(apart),
        )
        return self.reused and sum(own) <= bound


class Probe:
    """Tries every strategy on a server that does nothing else meanwhile. `directory` is where its files should be
    seen."""

    def __init__(self, backend: Backend, info: BackendInfo, directory: Path, trials: Trials) -> None:
        self._backend = backend
        self._info = info
        self._directory = directory
        self._trials = trials
        self._states = trials.states
        self._questions = range(len(trials.questions))
        self._sizes: list[int] = []
        self._lifted: Tokens = ()

    async def profile(self) -> Profile:
        """Raises BackendError only where the server does not answer at all, not for what it cannot do."""
        try:
            return await self._tried()
        except Withheld:
            self._lifted = self._trials.whole
            self._sizes.clear()
            return await self._tried()

    async def _tried(self) -> Profile:
        await self._empty()
        cold = await self._cold()
        plain = Trial("plain", exact=True, ms=cold.ms)
        try:
            in_place, truncates = await self._in_place()
            if self._sizes and not await asyncio.to_thread(self._are_seen):
                log.warning("Not seen in %s: what the inference server saves.", self._directory)
                return Profile((plain,), reason=OTHER_DIRECTORY)
            restore, fan_out = await self._restore(), await self._fan_out()
            await self._once_more(in_place)
        except NotSupported:
            return Profile((plain,), reason=NO_DIRECTORY)
        finally:
            await asyncio.to_thread(self._delete)
        await self._empty()
        # A slot that was restored has to be as good to go on from as one that was evaluated in.
        goes_on = fan_out.is_like(cold, "fan-out")
        resumes = goes_on or not self._sizes
        trials = (
            Trial("in-place", exact=in_place.is_like(cold, "in-place") and resumes, ms=in_place.ms),
            Trial("fan-out", exact=goes_on and self._info.slots > 1, ms=fan_out.ms),
            Trial("restore", exact=restore.is_like(cold, "restore"), ms=restore.ms),
            plain,
        )
        works = any(trial.exact for trial in trials if trial is not plain)
        return Profile(
            trials,
            truncates=truncates,
            reason="" if works else "no way of reusing a prefix gave the answers of a cold run on this server",
            fingerprint=await asyncio.to_thread(self._fingerprint, cold.tops[0, 1]),
        )

    async def _empty(self) -> None:
        """Nothing in any slot: where in a shared context a prompt lies moves the last digits, and the fingerprint with
        them, if an earlier API has left something."""
        with suppress(NotSupported):
            for slot in range(self._info.slots):
                await self._backend.erase(slot)

    async def _cold(self) -> _Run:
        """The later questions of both states, which have most to go wrong; the first always follows its own prefix."""
        run = _Run()
        later = self._questions[1:]
        for state in range(len(self._states)):
            with run.timed():
                for question in later:
                    run.tops[state, question] = (await self._ask(state, 0, [question], reuse=False))[0].top
        run.ms *= len(self._questions) / len(later)
        return run

    async def _in_place(self) -> tuple[_Run, bool]:
        """Also makes the snapshots, and finds out whether a slot can be cut back to where two states part."""
        run, truncates = _Run(), False
        for state in range(len(self._states)):
            begun = await self._backend.evaluate(self._trials.prompt(state), slot=0, reuse=state > 0)
            if state:
                truncates = begun.cached_tokens >= common(*self._states)
            try:
                self._sizes.append((await self._backend.save(0, NAMES[state])).size)
            except NotSupported:
                raise
            except BackendFault as error:
                log.warning("The inference server cannot save its slots now: %s", error.message)
            with run.timed():
                self._note(run, state, self._questions, await self._ask(state, 0, None, reuse=True))
        return run, truncates

    async def _restore(self) -> _Run:
        run = _Run()
        for state in range(len(self._states)):
            with run.timed():
                for question in self._questions:
                    await self._brought(run, state, self._info.slots - 1)
                    got = await self._ask(state, self._info.slots - 1, [question], reuse=True)
                    self._note(run, state, [question], got)
        return run

    async def _fan_out(self) -> _Run:
        """Two questions in one slot and one in another; with one slot only, all in that."""
        run = _Run()
        lanes = {0: [0, 2], self._info.slots - 1: [1]} if self._info.slots > 1 else {0: [0, 1, 2]}

        async def lane(state: int, slot: int, questions: list[int]) -> None:
            await self._brought(run, state, slot)
            self._note(run, state, questions, await self._ask(state, slot, questions, reuse=True))

        for state in range(len(self._states)):
            with run.timed():
                await asyncio.gather(*(lane(state, slot, questions) for slot, questions in lanes.items()))
        return run

    async def _once_more(self, in_place: _Run) -> None:
        """What was measured first met a machine that was busiest with starting. Slot 0 holds the last state again."""
        for _ in range(2):
            with in_place.timed():
                await self._ask(len(self._states) - 1, 0, None, reuse=True)

    async def _brought(self, run: _Run, state: int, slot: int) -> None:
        """The snapshot of `state` into `slot`, or the note that it could not be reused."""
        if run.reused and len(self._sizes) == len(self._states):
            try:
                run.reused = await self._backend.restore(slot, NAMES[state]) == len(self._states[state])
            except BackendFault as error:
                log.warning("A snapshot just saved cannot be restored: %s", error.message)
                run.reused = False
        else:
            run.reused = False

    async def _ask(self, state: int, slot: int, questions: list[int] | None, *, reuse: bool) -> list[Completion]:
        asked = self._questions if questions is None else questions
        prompts = [self._trials.prompt(state, question) for question in asked]
        bias = BIAS if self._lifted else 0.0
        return await self._backend.complete(
            prompts, slot=slot, labels=self._lifted, bias=bias, runners_up=ASKED, reuse=reuse
        )

    def _note(self, run: _Run, state: int, questions: Sequence[int], got: Sequence[Completion]) -> None:
        for question, completion in zip(questions, got, strict=True):
            run.tops[state, question] = completion.top
            run.reused = run.reused and completion.cached_tokens >= len(self._states[state])

    def _are_seen(self) -> bool:
        try:
            return all(
                (self._directory / name).stat().st_size == size for name, size in zip(NAMES, self._sizes, strict=False)
            )
        except OSError:
            return False

    def _delete(self) -> None:
        for name in NAMES:
            try:
                (self._directory / name).unlink(missing_ok=True)
            except OSError as error:
                log.warning("Cannot delete %s: %s", name, error.strerror)

    def _fingerprint(self, top: Mapping[int, float]) -> str:
        """Of everything that a snapshot depends on. `/props` hides some of it, as another RoPE base: the numbers of
        a cold pass tell, to the last bit."""
        try:
            stat = Path(self._info.path).stat()
            file = [stat.st_size, stat.st_mtime_ns] if self._info.path else []
        except OSError:  # on another machine, or named from another directory
            file = []
        info = self._info
        known = [info.path, file, info.meta, info.build, info.slots, info.context, self._sizes, _ranked(top)]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def _ranked(top: Mapping[int, float]) -> list[tuple[int, float]]:
    """The most probable tokens, in an order that does not depend on chance."""
    return sorted(top.items(), key=lambda item: (-item[1], item[0]))[:TOP]


def _distance(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    """The largest difference of any probability, among the most probable tokens of either."""
    tokens = {token for token, _ in (*_ranked(a), *_ranked(b))}
    return max((abs(a.get(token, 0.0) - b.get(token, 0.0)) for token in tokens), default=0.0)
