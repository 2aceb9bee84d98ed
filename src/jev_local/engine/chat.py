"""Chatter: a chat's prompt is brought into a slot, and then llama-server is handed the request.

Reading a prompt ourselves, all but its last tokens, is what makes chats good neighbours. llama-server would read a long
one to its end, whoever has gone or waits; here it is read in steps that stop for decisions, and what other chats begin
with as well goes into the store.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter

from jev_local.backend.port import Backend
from jev_local.core.chats import Chat
from jev_local.core.events import Event, Reading, generated, reading
from jev_local.core.explain import Side, why_chat_not_kept
from jev_local.core.plan import Tokens
from jev_local.core.sharing import Policy
from jev_local.core.slots import Contents, Wish
from jev_local.engine.chat_prompt import ChatPrompt, chat_prompt, text_prompt
from jev_local.engine.chat_warm import ChatWarmer, Warmed
from jev_local.engine.decision import Trace
from jev_local.engine.journal import Journal
from jev_local.engine.seat import Seat
from jev_local.engine.session import Session
from jev_local.engine.snapshots import SnapshotStore
from jev_local.engine.tally import Tally
from jev_local.errors import BackendFault, ChatsOff, ChatTooLong

log = logging.getLogger(__name__)

PART_FOR_AN_ANSWER = 8
"""A chat that sets no limit may fill its slot's share of the context. Where its prompt takes that share, this part of
the whole is left for its answer."""


LOOKS = 8
"""Events that are looked at for it."""


@dataclass(slots=True)
class ChatTalk:
    """What is going on in a slot; see `engine.decision.Talk`. `generated`: tokens, as far as it is known."""

    trace: Trace
    prompt_ms: float
    is_counted: bool
    _events: AsyncIterator[Event] = field(repr=False)
    generated: int = 0

    async def events(self) -> AsyncIterator[Event]:
        async for event in self._events:
            self.generated = max(self.generated, generated(event))
            yield event


class Chatter:
    """Answers chats with the model of one session."""

    def __init__(
        self, backend: Backend, session: Session, store: SnapshotStore, policy: Policy, journal: Journal | None = None
    ) -> None:
        self._backend = backend
        self._journal = journal
        self._session = session
        self._store = store
        self._policy = policy

    @asynccontextmanager
    async def talk(self, chat: Chat) -> AsyncIterator[ChatTalk]:
        """Prompt, lease, warm, relay. Raises ChatsOff, CallerError, Busy or BackendError.

        Round trips before the server has the request: two for the prompt, at most a restore or the steps of what is
        new and a save."""
        chats = self._session.chats
        if not chats.slots:
            raise ChatsOff(f"Chats are not served here: {chats.reason}.")
        tally = Tally()
        with tally.stage("tokenize"):
            read = chat_prompt if chat.endpoint == "chat" else text_prompt
            prompt = await read(self._backend, self._session, chat.document)
        needed, limit = self._sizes(chat, prompt)
        async with AsyncExitStack() as stack, AsyncExitStack() as leases:  # snapshots are let go after the slot
            with tally.stage("lease"):
                wish = Wish(prompt.tokens, needed, "chat")
                lease = await leases.enter_async_context(self._session.pool.lease(wish))
            begun = perf_counter()
            seat = Seat(self._backend, self._session, lease, tally)
            reuse = chat.cache and self._policy.mode != "off"
            warmer = ChatWarmer(self._store, self._policy, stack, reuse=reuse)
            warmed = await warmer.bring_chat(seat, prompt.tokens, prompt.stem)
            prompt_ms = (perf_counter() - begun) * 1000
            self._session.pool.require_open()
            relayed = self._backend.relay(
                chat, prompt.document, slot=lease.slot, reuse=reuse or warmed.ready > 0, max_tokens=limit
            )
            async with relayed as events:
                first = await _begun(events, patient=not chat.stream)
                trace = _traced(tally, prompt, warmed, first)
                if chat.endpoint == "chat":
                    kept = warmer.keeps(seat, prompt.tokens[: prompt.stem])
                    self._note(prompt, trace, kept=kept, wanted=chat.cache)
                talk = ChatTalk(trace, prompt_ms, bool(prompt.tokens), _chained(first, events))
                yield talk
            held = len(prompt.tokens) + talk.generated if prompt.tokens else needed
            lease.contents = Contents(_read(prompt, first), seat.ends, ends=False, most=held)

    def _note(self, prompt: ChatPrompt, trace: Trace, *, kept: bool, wanted: bool) -> None:
        if self._journal is not None:
            side = Side("chat", len(prompt.tokens), prompt.stem)
            self._journal.note(
                prompt.tokens[: prompt.stem],
                run=self._session.info.instance,
                source=trace.source,
                cached=trace.cached_tokens,
                processed=trace.processed_tokens,
                kept=kept,
                why_not=None if kept else why_chat_not_kept(self._policy, self._session.profile, side, wanted=wanted),
            )

    def _sizes(self, chat: Chat, prompt: ChatPrompt) -> tuple[int, int]:
        """The tokens of context that the chat may take, and how many of them for its answer. Raises ChatTooLong."""
        chats = self._session.chats
        length = len(prompt.tokens) or min(prompt.at_most, chats.context - 1)
        room = chats.context - length
        if room < 1:
            raise ChatTooLong(needed=length + 1, available=chats.context)
        share = max(chats.context // chats.slots - length, chats.context // PART_FOR_AN_ANSWER)
        limit = min(max(share if chat.max_tokens is None else chat.max_tokens, 1), room)
        return length + limit, limit


async def _begun(events: AsyncIterator[Event], *, patient: bool) -> list[Event]:
    """The first events, up to that which tells how much of the prompt was there. It is the first one, unless the
    beginning of an answer that the caller wrote comes before it; only who waits for all of the answer waits for it."""
    first: list[Event] = []
    async for event in events:
        first.append(event)
        if not patient or reading(event) is not None or len(first) == LOOKS:
            break
    if not first:
        raise BackendFault("The inference server ended its answer before it began.")
    return first


def _found(first: Sequence[Event]) -> Reading | None:
    return next((found for event in first if (found := reading(event)) is not None), None)


def _read(prompt: ChatPrompt, first: Sequence[Event]) -> Tokens:
    """What the slot is known to begin with. A server that counts other tokens has made another prompt of the request:
    that costs reuse and nothing else."""
    found = _found(first)
    if found is None or not prompt.tokens or found.total == len(prompt.tokens):
        return prompt.tokens
    log.warning("The inference server read %d tokens in a chat of %d.", found.total, len(prompt.tokens))
    return ()


def _traced(tally: Tally, prompt: ChatPrompt, warmed: Warmed, first: Sequence[Event]) -> Trace:
    """The trace, complete: what the server has still to read of the prompt, its first event tells."""
    found, reused = _found(first), warmed.reused
    if found is None:
        tally.processed = max(tally.processed, len(prompt.tokens) - reused)
    else:
        reused = min(reused, found.cached) if warmed.has_read else found.cached
        # What was read before a step was stopped is in no count.
        tally.processed = max(tally.processed + found.total - found.cached, found.total - reused)
    tally.cached, tally.prefix, tally.source, tally.state_cache = reused, prompt.stem, warmed.source, warmed.state_cache
    tally.strategy = "plain" if warmed.state_cache == "off" else "in-place"
    return tally.trace()


async def _chained(first: Sequence[Event], rest: AsyncIterator[Event]) -> AsyncIterator[Event]:
    for event in first:
        yield event
    async for event in rest:
        yield event
