"""Who waits for a slot, who holds one, who is next. Returns grants; performs nothing.

Rules, in order:
 1. First come, first served: nobody overtakes the head of the queue.
 2. No more leases at once than `limit`.
 3. The prompts being read at once never need more tokens than the context has, because slots may share it and one
    overflow would end its neighbours. A lone lease is always granted: its prompt was checked against the context.
 4. Of the free slots, the one that holds the longest common prefix; else one that holds nothing that matters,
    else the one that was left longest ago.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from jev_local.core.plan import Tokens, common


@dataclass(frozen=True, slots=True)
class Grant:
    """`ticket` may now use `slot`."""

    ticket: int
    slot: int


@dataclass(slots=True)
class _Slot:
    holds: Tokens = ()
    left_at: int = 0
    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class _Waiting:
    ticket: int
    prompt: Tokens
    need: int


@dataclass(slots=True)
class SlotTable:
    """The state of `count` slots that share `context` tokens. Every method that can free or fill a slot returns
    the grants that follow from it."""

    count: int
    limit: int
    context: int
    _slots: list[_Slot] = field(init=False)
    _queue: deque[_Waiting] = field(init=False, default_factory=deque)
    _needs: dict[int, int] = field(init=False, default_factory=dict)
    _clock: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if min(self.count, self.limit, self.context) < 1:
            raise ValueError(f"a slot table needs slots, a limit and a context, got {self!r}")
        self._slots = [_Slot() for _ in range(self.count)]

    def request(self, ticket: int, prompt: Tokens, *, need: int) -> list[Grant]:
        """Queue `ticket`, which will read prompts beginning like `prompt`, the longest of `need` tokens."""
        self._queue.append(_Waiting(ticket, prompt, need))
        return self._grant()

    def release(self, ticket: int, *, holds: Tokens) -> list[Grant]:
        """`ticket` is done and leaves `holds` in its slot: () where the contents are unknown."""
        slot = next(s for s in self._slots if s.ticket == ticket)
        self._clock += 1
        slot.ticket, slot.holds, slot.left_at = None, holds, self._clock
        del self._needs[ticket]
        return self._grant()

    def withdraw(self, ticket: int) -> list[Grant]:
        """`ticket` no longer waits. Others may follow at once: it could have been the head of the queue."""
        self._queue = deque(w for w in self._queue if w.ticket != ticket)
        return self._grant()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def held(self) -> int:
        return len(self._needs)

    def _grant(self) -> list[Grant]:
        grants = []
        while self._queue and self.held < min(self.limit, self.count):
            head = self._queue[0]
            if self._needs and sum(self._needs.values()) + head.need > self.context:
                break
            self._queue.popleft()
            index = self._best_free(head.prompt)
            self._slots[index].ticket = head.ticket
            self._needs[head.ticket] = head.need
            grants.append(Grant(head.ticket, index))
        return grants

    def _best_free(self, prompt: Tokens) -> int:
        free = [i for i, slot in enumerate(self._slots) if slot.ticket is None]
        return max(free, key=lambda i: (common(self._slots[i].holds, prompt), -self._slots[i].left_at, -i))
