"""Decider: one request, one straight line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from jev_local.backend.port import Backend
from jev_local.called import called
from jev_local.core.answers import Reading, answer
from jev_local.core.explain import why_not_kept
from jev_local.core.labels import NotEnoughLabels
from jev_local.core.pictures import NO_PICTURES, Album
from jev_local.core.plan import PrefixPlan, Tokens, share
from jev_local.core.prompts import question_lead, question_text, shared_text
from jev_local.core.questions import Question, width
from jev_local.core.sharing import NOTHING, Policy, Profile, Sharing, choose, without_snapshot
from jev_local.core.slots import Wish
from jev_local.core.spelling import Spelling
from jev_local.engine.decision import Decision
from jev_local.engine.journal import Journal
from jev_local.engine.lane import Asked, Lane, in_order
from jev_local.engine.scene import Texts, spelling, with_endings
from jev_local.engine.seat import Seat
from jev_local.engine.session import Session, tokenize_chats
from jev_local.engine.snapshots import SnapshotStore
from jev_local.engine.tally import Tally
from jev_local.engine.warm import Warm, Warmer
from jev_local.errors import InvalidRequest, Misspelled, PromptTooLong

log = logging.getLogger(__name__)

T = TypeVar("T")

QUESTION_BYTES = 4 * 1024 * 1024
"""Of all questions' texts in a request. Each alone is bounded by the context, but a thousand of them would keep
llama-server tokenising for a minute."""

CERTAIN = Reading((1.0,))
"""One option needs no inference."""


@dataclass(frozen=True, slots=True)
class _Request:
    """What the questions that have to be asked come to. spelling: of prompts with pictures."""

    asked: tuple[Asked, ...]
    plan: PrefixPlan
    sharing: Sharing
    wish: Wish
    spelling: Spelling | None

    @property
    def prefix(self) -> Tokens:
        """What a snapshot has."""
        return self.plan.prompt(0)[: self.sharing.split]

    def unshared(self) -> _Request:
        """The same with every question on its own, where nothing depends on how a text is tokenised."""
        spelled = None if self.spelling is None else replace(self.spelling, exact=False)
        return replace(self, sharing=NOTHING, spelling=spelled)


class Decider:
    """Answers questions about one state with the model of one session."""

    def __init__(
        self, backend: Backend, session: Session, store: SnapshotStore, policy: Policy, journal: Journal | None = None
    ) -> None:
        self._backend = backend
        self._journal = journal
        self._session = session
        self._store = store
        self._policy = policy

    async def decide(self, *, state: str, questions: tuple[Question, ...], album: Album = NO_PICTURES) -> Decision:
        """Readings of all questions. `album`: the pictures that are marked in their texts.

        Round trips: one /tokenize (with pictures three, and the count of a new one), at most a restore or the steps of
        a long prefix and a save, then one /completion for up to 16 questions at once, or one for each where they cannot
        go on in place; questions whose labels have two tokens take one more each.
        """
        if album and not self._session.info.vision:
            raise InvalidRequest(
                "This model does not see images. Start the inference server with one that does: "
                f"`{called('setup')} --model vision` fetches it, --model PATH --mmproj PATH name files of yours."
            )
        tally = Tally()
        asked = [question for question in questions if width(question) > 1]
        readings: dict[str, Reading] = {}
        if asked:
            with tally.stage("tokenize"):
                request = await self._request(state, asked, album)
            try:
                readings = await self._answered(request, tally)
            except Misspelled as error:
                # The answer does not depend on it, only what it costs.
                log.warning("%s Nothing is shared in this request.", error.message)
                readings = await self._answered(request.unshared(), tally)
        return Decision(
            model=self._session.info.model,
            answers=tuple(answer(q, readings.get(q.id, CERTAIN)) for q in questions),
            usage=tally.usage(),
            trace=tally.trace(),
        )

    async def _answered(self, request: _Request, tally: Tally) -> dict[str, Reading]:
        """Lease, warm, read."""
        async with AsyncExitStack() as stack, AsyncExitStack() as leases:  # snapshots are let go after the slots
            warmer = Warmer(self._store, self._policy, stack)
            with tally.stage("lease"):
                lease = await leases.enter_async_context(self._session.pool.lease(request.wish))
            seat = Seat(self._backend, self._session, lease, tally, spelling=request.spelling)
            warm = await warmer.bring(seat, request.prefix, request.sharing)
            if warm.snapshot is None:
                sharing = without_snapshot(request.sharing, self._policy, seat.profile)
                request = replace(request, sharing=sharing)
            seats = [seat]
            if request.sharing.strategy == "fan-out" and warm.snapshot is not None:
                more = await self._more_seats(request, tally, leases, each=2)
                ready = await together(warmer.restore(seat, warm.snapshot, request.prefix) for seat in more)
                seats += [seat for seat, is_ready in zip(more, ready, strict=True) if is_ready]
            elif request.sharing.strategy == "plain" and request.spelling is not None:
                seats += await self._more_seats(request, tally, leases, each=1)
            _tell(tally, request, warm, lanes=len(seats))
            found = await together(
                Lane(seat, request.plan, request.sharing, warmer=warmer, warm=warm).read(share)
                for seat, share in zip(seats, self._shares(request, len(seats)), strict=True)
            )
            self._note(request, tally, kept=warmer.keeps(seat, request.prefix), profile=seat.profile)
        return {id_: reading for readings in found for id_, reading in readings.items()}

    def _note(self, request: _Request, tally: Tally, *, kept: bool, profile: Profile) -> None:
        if self._journal is not None:
            self._journal.note(
                request.plan.stem,
                run=self._session.info.instance,
                source=tally.source,
                cached=tally.cached,
                processed=tally.processed,
                kept=kept,
                why_not=None if kept else why_not_kept(self._policy, profile, request.plan),
            )

    async def _more_seats(self, request: _Request, tally: Tally, leases: AsyncExitStack, *, each: int) -> list[Seat]:
        """Slots that nobody waits for, as many as have `each` questions to read at least."""
        seats: list[Seat] = []
        while len(seats) < len(request.asked) // each - 1:
            lease = await leases.enter_async_context(self._session.pool.lease_now(request.wish))
            if lease is None:
                break
            seats.append(Seat(self._backend, self._session, lease, tally, spelling=request.spelling))
        return seats

    def _shares(self, request: _Request, lanes: int) -> list[list[Asked]]:
        """The questions of each slot. Alike ones stay together where that saves evaluating; else the short ones are
        dealt out first, one to each."""
        truncates = self._session.profile_for(pictures=request.spelling is not None).truncates
        ordered = in_order(request.plan, request.asked, truncates=truncates)
        if not truncates:
            return [ordered[lane::lanes] for lane in range(lanes)]
        size, more = divmod(len(ordered), lanes)
        ends = [lane * size + min(lane, more) for lane in range(lanes + 1)]
        return [ordered[start:end] for start, end in pairwise(ends)]

    async def _request(self, state: str, questions: Sequence[Question], album: Album) -> _Request:
        """Every question's complete chat, what they have in common, and the certainty that each of them fits."""
        style = self._session.style
        asked = tuple(self._asked(index, question) for index, question in enumerate(questions))
        shared = shared_text(style, state)
        added = [question_text(style, one.question, [label.text for label in one.labels]) for one in asked]
        self._check_bytes(shared, added)
        if album:
            texts = Texts(shared, question_lead(style), tuple(added))
            spelled = await self._spelled(texts, asked, album)
            plan = spelled.plan
        else:
            spelled = None
            plan = share(*await tokenize_chats(self._backend, self._session, shared=shared, added=added))
        needed, available = plan.longest + max(one.room for one in asked), self._session.info.context
        if needed > available:
            raise PromptTooLong(needed=needed, available=available)
        sharing = choose(self._policy, self._session.profile_for(pictures=bool(album)), plan, pictures=bool(album))
        request = _Request(asked, plan, sharing, Wish(plan.stem, needed), spelled)
        return request.unshared() if album and sharing.strategy == "plain" else request

    async def _spelled(self, texts: Texts, asked: Sequence[Asked], album: Album) -> Spelling:
        spelled = await spelling(self._backend, self._session, texts, album, chunk=self._policy.chunk)
        two = [one for one in asked if one.passes.two]
        if not two:
            return spelled
        firsts = sorted({token for one in two for token in one.passes.first})
        return await with_endings(self._backend, spelled, firsts, [one.index for one in two])

    def _asked(self, index: int, question: Question) -> Asked:
        try:
            labels = self._session.labels.choose(width(question))
        except NotEnoughLabels as error:
            raise InvalidRequest(f"A question has more options than this model can tell apart: {error}.") from error
        return Asked(index, question, labels, self._session.labels.lifted(labels))

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


def _tell(tally: Tally, request: _Request, warm: Warm, *, lanes: int) -> None:
    """What the trace says of how the questions are read."""
    sharing = request.sharing
    plan, tally.prefix, tally.source = request.plan, request.plan.prefix, warm.source
    tally.asked = len(plan.stem) * len(plan.rests) + sum(map(len, plan.rests))
    tally.strategy = "in-place" if sharing.strategy == "fan-out" and lanes == 1 else sharing.strategy
    if sharing.strategy != "plain" and (sharing.make or warm.snapshot is not None):
        tally.state_cache = "shared"
    elif request.spelling is not None:
        tally.state_cache = "off-images"
    else:
        tally.state_cache = "off-short" if sharing.short else "off"


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What each of `work` gives, all at the same time. The first error ends the others and is the one that is raised:
    who waits for an answer knows errors, not groups of them."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
