"""Bringing a chat's prompt into a slot, by whichever way spares most of the reading."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from jev_local.core.plan import Tokens
from jev_local.core.sharing import Policy
from jev_local.engine.decision import PrefixSource, StateCache
from jev_local.engine.seat import Seat
from jev_local.engine.snapshots import SnapshotStore
from jev_local.engine.warm import WORTH_RESTORING, Warmer

AT_LEAST = 64
"""Tokens that are read here rather than left to llama-server. Fewer are read as soon as they are asked for."""

PATIENCE = 5.0
"""Seconds that a chat stands aside for decisions. Then it takes one step beside them, however many there are."""


@dataclass(slots=True)
class Warmed:
    """source: where what was reused came from. reused: tokens of the prompt that nobody had to read for this chat.
    ready: how many are in the slot. has_read: whether anything was read for it here."""

    source: PrefixSource = "none"
    state_cache: StateCache = "off"
    reused: int = 0
    ready: int = 0
    has_read: bool = False


class ChatWarmer(Warmer):
    """`reuse`: whether what a slot or the store has may be used, and anything be kept."""

    def __init__(self, store: SnapshotStore, policy: Policy, stack: AsyncExitStack, *, reuse: bool) -> None:
        super().__init__(store, policy, stack)
        self._reuse = reuse

    async def bring_chat(self, seat: Seat, prompt: Tokens, stem: int) -> Warmed:
        """`prompt`, as far as it is worth while and without its last token, which has to be left to be read. The first
        `stem` tokens are kept for other chats."""
        warmed = Warmed()
        if not prompt:
            return warmed
        if self._reuse:
            await self._recall(seat, prompt, stem, warmed)
            await self._keep_stem(seat, prompt[:stem], warmed)
        if len(prompt) - 1 - warmed.ready >= AT_LEAST:
            with seat.tally.stage("prefix"):
                await self._read_to(seat, prompt[:-1], warmed)
        return warmed

    async def _recall(self, seat: Seat, prompt: Tokens, stem: int, warmed: Warmed) -> None:
        """What a slot holds, or the longest that is saved of what the prompt begins with, if that is clearly more."""
        held = min(seat.reusable(prompt), len(prompt) - 1)
        # What chats begin with by chance, or by their template, is no find.
        warmed.source = "slot" if held >= WORTH_RESTORING and 2 * held >= (stem or len(prompt)) else "none"
        warmed.reused = warmed.ready = held
        if not self._uses_store(seat):
            return
        found = self._store.longest(self.described(seat), prompt[:-1])
        if found is None or found - held < WORTH_RESTORING:
            if warmed.source == "none":
                self._store.missed()
            return
        snapshot = await self._find(seat, prompt[:found])
        if snapshot is not None:
            warmed.source, warmed.reused, warmed.ready = snapshot.origin, found, found
        elif seat.lease.reusable == 0:
            warmed.source, warmed.reused, warmed.ready = "none", 0, 0

    async def _keep_stem(self, seat: Seat, stem: Tokens, warmed: Warmed) -> None:
        """Read `stem` to its end and save the slot, if that is not saved and worth while."""
        warmed.state_cache = "shared" if self._uses_store(seat) else "off"
        if len(stem) < self._policy.min_tokens and self._policy.mode != "shared":
            warmed.state_cache = "off-short" if warmed.state_cache == "shared" else "off"
            return
        if not self._uses_store(seat):
            return
        if self._store.has(key := self._key(seat, stem)):
            self._store.used(key)
            return
        if not (self._store.can_save and self._store.fits(len(stem))):
            return
        # A slot that is beyond the stem would have to be read again from there.
        if warmed.ready - len(stem) > self._policy.chunk or (warmed.ready > len(stem) and not seat.profile.truncates):
            return
        with seat.tally.stage("prefix"):
            await self._read_to(seat, stem, warmed)
            await self._save(seat, stem)

    def _uses_store(self, seat: Seat) -> bool:
        return self._policy.keeps and seat.profile.sharing

    async def _read_to(self, seat: Seat, tokens: Tokens, warmed: Warmed) -> None:
        """In steps, as those of decisions, but each of them stops for a decision and goes on after it."""
        ends = seat.steps(warmed.ready, len(tokens), self._policy.chunk)
        for end in ends:
            found = await self._step(seat, tokens[:end], reuse=self._reuse or warmed.has_read)
            if found is not None and not warmed.has_read:
                warmed.reused = found  # the server knows what it generated there as well
            warmed.ready, warmed.has_read = end, True
            if warmed.source == "none":
                warmed.source = "computed"

    async def _step(self, seat: Seat, tokens: Tokens, *, reuse: bool) -> int | None:
        """How many of `tokens` the slot had; None where it was stopped meanwhile, and had what was read until then."""
        pool, stopped = seat.session.pool, False
        while await pool.calm(PATIENCE):
            reading = asyncio.create_task(seat.evaluate(tokens, reuse=reuse))
            stirred = asyncio.create_task(pool.stirred())
            try:
                await asyncio.wait((reading, stirred), return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    return None if stopped else reading.result()
            finally:
                reading.cancel()
                stirred.cancel()
                # llama-server stops behind the batch that it is at, and keeps what it has read in the slot.
                await asyncio.gather(reading, stirred, return_exceptions=True)
            stopped = True
        found = await seat.evaluate(tokens, reuse=reuse)
        return None if stopped else found
