"""Bringing a prefix into a slot: it is there already, or restored from a snapshot, or evaluated, and then saved."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass

from jev_local.core.plan import Tokens
from jev_local.core.sharing import Policy, Sharing, described
from jev_local.engine.decision import PrefixSource
from jev_local.engine.kept import Snapshot
from jev_local.engine.seat import Seat
from jev_local.engine.snapshots import SnapshotStore
from jev_local.errors import BackendFault

log = logging.getLogger(__name__)

WORTH_RESTORING = 16
"""Tokens. Fewer are evaluated as soon as a file is looked at and loaded."""


@dataclass(frozen=True, slots=True)
class Warm:
    """source: where the prefix came from. snapshot: what it can be restored from again, if anything.
    ready: how many tokens of it the slot holds now; the rest is evaluated with the first question. restored: the slot
    is as a restore leaves it, so that the first question needs no other."""

    source: PrefixSource
    snapshot: Snapshot | None
    ready: int
    restored: bool = False


class Warmer:
    """Everything that is done before the first question of a request. Snapshots stay usable until `stack` is closed."""

    def __init__(self, store: SnapshotStore, policy: Policy, stack: AsyncExitStack) -> None:
        self._store = store
        self._policy = policy
        self._stack = stack

    async def bring(self, seat: Seat, prefix: Tokens, sharing: Sharing) -> Warm:
        """`prefix` is what the snapshot has or will have; its slot may hold more already."""
        if sharing.strategy == "plain":
            return Warm("none", None, 0)
        needs_file = sharing.strategy in ("fan-out", "restore")
        if self._held(seat, prefix) >= len(prefix) and not needs_file:
            seat.marks = (len(prefix),)
            await self._catch_up(seat, prefix, sharing)
            return Warm("slot", None, len(prefix))
        if sharing.use and (needs_file or len(prefix) - self._held(seat, prefix) >= WORTH_RESTORING):
            found = await self._find(seat, prefix)
            if found is not None:
                return Warm(found.origin, found, len(prefix), restored=True)
        if not sharing.make and len(prefix) - self._held(seat, prefix) <= self._policy.chunk:
            seat.marks = ()  # those of a slot that was given back are not this one's
            return Warm("computed", None, self._held(seat, prefix))
        return Warm("computed", await self.renew(seat, prefix, keep=sharing.make), len(prefix))

    async def renew(self, seat: Seat, prefix: Tokens, *, keep: bool) -> Snapshot | None:
        """Evaluate `prefix` in the slot, and save it where it is to be kept and can be."""
        with seat.tally.stage("prefix"):
            await self._evaluate(seat, prefix, self._held(seat, prefix))
            return await self._save(seat, prefix) if keep else None

    async def restore(self, seat: Seat, snapshot: Snapshot, prefix: Tokens) -> bool:
        """Whether `snapshot` is in the slot now. What became of its file meanwhile, and what the server says against
        it, ends here: then it is forgotten."""
        if not await self._store.verify(snapshot):
            return False
        try:
            if await seat.restore(snapshot.name, prefix):
                return True
            reason = "it does not hold what was saved"
        except BackendFault as error:
            reason = error.message
        log.warning("Snapshot %s cannot be restored (%s); it is evaluated anew.", snapshot.name, reason)
        await self._store.discard(self._key(seat, prefix))
        return False

    def keeps(self, seat: Seat, prefix: Tokens) -> bool:
        """Whether `prefix` is saved for others now."""
        return self._store.has(self._key(seat, prefix))

    async def _catch_up(self, seat: Seat, prefix: Tokens, sharing: Sharing) -> None:
        """Save what only a slot holds until now, as after a single question, which saves nothing. A slot that can be
        cut back evaluates one token for it; in another the whole prefix would have to be evaluated again."""
        missing = sharing.make and not self._store.has(self._key(seat, prefix))
        possible = self._store.can_save and self._store.fits(len(prefix)) and seat.profile.truncates
        if missing and possible:
            await self.renew(seat, prefix, keep=True)

    async def _find(self, seat: Seat, prefix: Tokens) -> Snapshot | None:
        snapshot = await self._stack.enter_async_context(self._store.holding(self._key(seat, prefix)))
        if snapshot is None:
            return None
        await seat.require_same_server()
        return snapshot if await self.restore(seat, snapshot, prefix) else None

    async def _evaluate(self, seat: Seat, prefix: Tokens, held: int) -> None:
        """In steps, between which llama-server serves others."""
        for step, end in enumerate(seat.steps(held, len(prefix), self._policy.chunk)):
            await seat.evaluate(prefix[:end], reuse=held > 0 or step > 0)
        seat.marks = (len(prefix),)

    async def _save(self, seat: Seat, prefix: Tokens) -> Snapshot | None:
        """The snapshot, or None where it could not be made: answers do not need it."""
        if not self._store.can_save or not self._store.fits(len(prefix)):
            return None
        save = await self._stack.enter_async_context(self._store.saving(self._key(seat, prefix), tokens=len(prefix)))
        try:
            saved = await seat.save(save.name)
        except BackendFault as error:
            self._store.save_failed(error.message)
            return None
        if saved.tokens != len(prefix):
            self._store.save_failed("the slot held something else than was evaluated in it")
            return None
        await seat.require_same_server()  # what another one saved must not be found under this one's fingerprint
        return await save.commit(saved.size)

    def _held(self, seat: Seat, prefix: Tokens) -> int:
        """What of the prefix need not be evaluated. A stable answer begins with nothing, so that its prefix is always
        evaluated in the same steps."""
        return 0 if self._policy.stable else seat.reusable(prefix)

    def _key(self, seat: Seat, prefix: Tokens) -> str:
        return self._store.key(self.described(seat), prefix)

    def described(self, seat: Seat) -> str:
        return described(seat.profile, self._policy)
