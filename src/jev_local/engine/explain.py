"""Explainer: two requests rendered as they would be asked, compared, and looked up in what the server remembers.

Nothing is evaluated: all that the inference server does for it is to render and to tokenise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from jev_local.backend.port import Backend
from jev_local.core import explain, reasons
from jev_local.core.compared import Compared, Where, where
from jev_local.core.explain import Explanation, Side
from jev_local.core.labels import NotEnoughLabels
from jev_local.core.parting import (
    MAX_MOVES,
    MOVABLE,
    Difference,
    Move,
    PromptPiece,
    Rendered,
    agreement,
    can_go,
    difference,
    edited,
    place,
)
from jev_local.core.plan import PrefixPlan, Tokens, share
from jev_local.core.prompts import question_text, shared_text
from jev_local.core.questions import Question, width
from jev_local.core.reasons import Fate, Known, WhyNot
from jev_local.core.sharing import Policy, choose, described
from jev_local.engine.chat_prompt import chat_prompt
from jev_local.engine.journal import Journal
from jev_local.engine.kept import StoreReport
from jev_local.engine.session import Session, tokenize_chats
from jev_local.errors import ChatsOff, InvalidRequest, PromptTooLong

REUSED = ("slot", "memory", "disk")
"""Where a prefix came from that was not evaluated for the request."""


class Store(Protocol):
    """What is asked of the store of saved states."""

    def key(self, fingerprint: str, tokens: Sequence[int]) -> str: ...

    def fate(self, key: str) -> Fate: ...

    def longest(self, fingerprint: str, tokens: Sequence[int]) -> int | None: ...

    def fits(self, tokens: int) -> bool: ...

    def report(self) -> StoreReport: ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request made ready. saved: the tokens whose state is kept for others. finds: it uses saved states at all.
    wanted: its caller has nothing against reuse. plan: of a decision's questions."""

    rendered: Rendered
    side: Side
    saved: Tokens = field(repr=False)
    finds: bool
    wanted: bool = True
    plan: PrefixPlan | None = field(default=None, repr=False)

    @property
    def stem(self) -> Tokens:
        return self.rendered.tokens[: self.rendered.stem]

    def can_use(self, other: _Asked) -> bool:
        """What is kept of `other`."""
        return self.finds and explain.finds(self.side.form, self.rendered.tokens, self.saved, other.saved)


class Explainer:
    """Explains with the model of one session."""

    def __init__(self, backend: Backend, session: Session, store: Store, policy: Policy, journal: Journal) -> None:
        self._backend = backend
        self._session = session
        self._store = store
        self._policy = policy
        self._journal = journal

    async def explain(self, a: Compared, b: Compared) -> Explanation:
        """Why `b` did not reuse what `a` began with, or would not. Raises CallerError or BackendError.

        Round trips: one to three for each request, and four for each thing that is moved out of the way.
        """
        one, other = await self._asked(a), await self._asked(b)
        agree = agreement(one.rendered, other.rendered)
        told = where(a, b)
        whole = told != "model" and explain.agrees_whole(one.side, other.side, agree)
        left, right = one.rendered.text, other.rendered.text
        found = difference(left, right, told, reusable=whole)
        seen = None if found is None else place(left, right, found)
        moves: tuple[Move, ...] = ()
        if whole:
            known = self._known(one, other)
            checks, advice = reasons.checks(known), reasons.advice(known)
        elif seen is None or told == "model":
            checks, advice = (reasons.model_differs(),), explain.ANOTHER_MODEL
        else:
            moves = await self._moves(one, other, found, told)
            checks, advice = (reasons.text_differs(agree, other.side.stem),), explain.advice_on(seen, moves, agree)
        return Explanation(one.side, other.side, agree, whole, seen, moves, checks, advice)

    async def _asked(self, one: Compared) -> _Asked:
        if one.form == "decision":
            return await self._decision(one)
        if not self._session.chats.slots:
            raise ChatsOff(f"Chats are not served here, so none is explained: {self._session.chats.reason}.")
        rendered = await (self._chat(one) if one.form == "chat" else self._completion(one))
        side = Side(one.form, len(rendered.tokens), rendered.stem)
        wanted = one.document.get("cache_prompt") is not False
        finds = wanted and self._policy.mode != "off" and self._policy.keeps and self._session.profile.sharing
        return _Asked(rendered, side, rendered.tokens[: rendered.stem], finds, wanted)

    async def _decision(self, one: Compared) -> _Asked:
        """The prompt of its first question that is asked at all, and what all of them begin with."""
        session = self._session
        asked = [question for question in one.questions if width(question) > 1]
        if not asked:
            raise InvalidRequest("No question has two options or more: nothing is asked of the model.")
        shared = shared_text(session.style, one.state)
        added = [question_text(session.style, question, self._labels(question)) for question in asked]
        self._check_bytes(len(shared.encode()) + max(len(text.encode()) for text in added), session.info.context)
        plan = share(*await tokenize_chats(self._backend, session, shared=shared, added=added))
        words = session.words
        pieces = (
            PromptPiece(words.head, control=True),
            PromptPiece(shared, control=False),
            PromptPiece(added[0], control=False),
            PromptPiece(words.tail, control=True),
        )
        rendered = Rendered(pieces, plan.prompt(0), len(plan.stem), session.info.bos)
        sharing = choose(self._policy, session.profile, plan)
        saved = plan.prompt(0)[: sharing.split or len(plan.stem)]
        side = Side("decision", len(plan.prompt(0)), len(plan.stem))
        return _Asked(rendered, side, saved, sharing.use and sharing.strategy != "plain", plan=plan)

    def _labels(self, question: Question) -> list[str]:
        try:
            return [label.text for label in self._session.labels.choose(width(question))]
        except NotEnoughLabels as error:
            raise InvalidRequest(f"A question has more options than this model can tell apart: {error}.") from error

    async def _chat(self, one: Compared) -> Rendered:
        prompt = await chat_prompt(self._backend, self._session, one.document)
        text = await self._backend.render(prompt.document)
        return Rendered((PromptPiece(text, control=True),), prompt.tokens, prompt.stem, self._session.info.bos)

    async def _completion(self, one: Compared) -> Rendered:
        """All of it may come again."""
        text = one.document["prompt"]
        if not isinstance(text, str):
            raise InvalidRequest("Only a `prompt` that is one string is compared.")
        self._check_bytes(len(text.encode()), self._session.chats.context)
        empty = Rendered((), (), 0, self._session.info.bos)
        (rendered,) = await self._tokenized([empty], [(PromptPiece(text, control=True),)])
        return replace(rendered, stem=len(rendered.tokens))

    def _check_bytes(self, size: int, available: int) -> None:
        """Refuse before tokenising what cannot fit, however well it is tokenised."""
        at_least = -(-size // self._session.info.token_bytes)
        if at_least > available:
            raise PromptTooLong(needed=at_least, available=available, at_least=True)

    async def _moves(self, a: _Asked, b: _Asked, found: Difference | None, told: Where) -> tuple[Move, ...]:
        """What stands in the way, one thing after another: each is taken out, and the rest is tokenised anew."""
        one, other = a.rendered, b.rendered
        moves: list[Move] = []
        while found is not None and len(moves) < MAX_MOVES:
            what, left, right = found.standing, one.text, other.text
            may_go = what.kind in MOVABLE or (what.kind == "text" and not moves)
            if not may_go or not can_go(what, left, right):
                break
            seen = place(left, right, found)
            one, other = await self._tokenized([one, other], edited(one, other, what))
            agree = agreement(one, other)
            moves.append(Move(what.kind, seen.left_value, seen.right_value, agree))
            sides = [Side(side.form, len(each.tokens), each.stem) for side, each in ((a.side, one), (b.side, other))]
            if explain.agrees_whole(sides[0], sides[1], agree):
                break
            found = difference(one.text, other.text, told)
        return tuple(moves)

    async def _tokenized(self, before: Sequence[Rendered], pieces: Sequence[tuple[PromptPiece, ...]]) -> list[Rendered]:
        """Those of `before` with other `pieces`. Two round trips: with and without control tokens."""
        flat = [piece for several in pieces for piece in several]
        ids: dict[PromptPiece, Tokens] = {}
        for control in (True, False):
            some = list(dict.fromkeys(piece for piece in flat if piece.control is control))
            if some:
                found = await self._backend.tokenize([piece.text for piece in some], special=control)
                ids |= dict(zip(some, found, strict=True))
        return [
            one.with_tokens(several, [ids[piece] for piece in several])
            for one, several in zip(before, pieces, strict=True)
        ]

    def _known(self, a: _Asked, b: _Asked) -> Known:
        """What is remembered of the part that both begin with, and of what `b` would find of it."""
        part = min(a.side.stem, b.side.stem)
        notes = sorted({*self._journal.notes(a.stem), *self._journal.notes(b.stem)}, key=lambda note: note.at)
        fate = self._fate(a, b, part)
        runs = [note.run for note in notes] + [self._session.info.instance]
        return Known(
            asked=bool(notes),
            restarted=bool(notes) and len(set(runs)) > 1,
            reused=self._reused(a, b),
            fate=fate,
            why_not=None if fate == "held" else self._why_not(a, b),
            truncates=self._session.profile.truncates,
            tokens=part,
            least=self._policy.min_tokens,
        )

    def _reused(self, a: _Asked, b: _Asked) -> int:
        """By the last request that began as `b` does. Decisions about one state whose saved states end at different
        places cannot be told apart in the journal."""
        last = self._journal.last(b.stem)
        if last is None or last.source not in REUSED or not b.wanted or (b.plan is not None and a.saved != b.saved):
            return 0
        return last.cached

    def _fate(self, a: _Asked, b: _Asked, part: int) -> Fate:
        """Of the saved state that `b` finds, whoever it was saved for, if it has most of the `part`."""
        if not b.finds:
            return "unknown"
        fates = [self._store.fate(self._key(one.saved)) for one in (b, a) if b.can_use(one)]
        if b.plan is None:
            longest = self._store.longest(self._described(), b.rendered.tokens[:-1])
            held = longest is not None and reasons.is_most(longest, part)
        else:
            held = "held" in fates
        return "held" if held else "evicted" if "evicted" in fates else "unknown"

    def _key(self, tokens: Tokens) -> str:
        return self._store.key(self._described(), tokens)

    def _described(self) -> str:
        """As `Warmer` names what it saves."""
        return described(self._session.profile, self._policy)

    def _why_not(self, a: _Asked, b: _Asked) -> WhyNot | None:
        """What the first request was told, else what would keep it from being saved now. Where the second one has no
        use for what the first one saves, the same of the second."""
        if not b.finds:
            return self._against(b)
        one = a if b.can_use(a) else b
        notes = self._journal.notes(one.stem)
        if one is b and self._store.fate(self._key(a.saved)) == "held":
            return self._against(b) or "goes-on"
        if any(note.kept for note in notes):
            return None
        if notes and notes[0].why_not is not None:
            return notes[0].why_not
        return self._against(one)

    def _against(self, one: _Asked) -> WhyNot | None:
        """What would keep `one` from being saved now."""
        policy, profile = self._policy, self._session.profile
        if one.plan is not None:
            found = explain.why_not_kept(policy, profile, one.plan)
        else:
            found = explain.why_chat_not_kept(policy, profile, one.side, wanted=one.wanted)
        if found is not None:
            return found
        if not self._store.fits(one.side.stem):
            return "too-large"
        return None if self._store.report().saving else "saving-off"
