"""Who waits for a slot, who holds one, who is next. Returns grants; performs nothing.

Decisions and chats have slots, a queue and a part of the context each, and these rules hold within each part; a chat
that reads for minutes keeps no decision waiting, and takes no prefix from any.

Rules, in order:
 1. First come, first served: nobody overtakes the head of the queue.
 2. No more leases at once than `limit`.
 3. The prompts being read at once never need more tokens than the context has, because slots may share it and one
    overflow would end its neighbours. A lone lease is always granted: its prompt was checked against the context.
 4. What idle slots still hold takes part of the context too. Where it is in the way, the slots that were left longest
    ago are to be erased before the grant is used.
 5. Of the free slots, the one that holds the longest reusable part of the prompt, if that is half of its stem at least.
 6. Else a prompt that takes long to evaluate goes to the upper half of the slots and a short one to the lower, because
    llama-server fills its batches from the lowest slot up and a short prompt above a long one would wait for all of
    it. Within a half, the slot that was left longest ago; among slots never used, from the outside in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from jev_local.core.plan import Tokens, common

Use: TypeAlias = Literal["decision", "chat"]
USES: tuple[Use, ...] = ("decision", "chat")
"""Who is served first when something comes free for both."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a slot is known to begin with. `marks`: the lengths at which the server can go on from it, where it cannot
    cut it back anywhere as it can with attention alone; None where it can. `ends`: it holds `tokens` and no more;
    otherwise `most` tokens at most."""

    tokens: Tokens = ()
    marks: tuple[int, ...] | None = None
    ends: bool = True
    most: int = 0

    @property
    def occupied(self) -> int:
        """Tokens of the context that it may take."""
        return max(self.most, len(self.tokens))

    def reusable(self, prompt: Tokens) -> int:
        """How many of the first tokens of `prompt` need no evaluation in this slot."""
        agreed = common(self.tokens, prompt)
        if self.marks is None or (self.ends and agreed == len(self.tokens)):
            return agreed
        return max((mark for mark in self.marks if mark <= agreed), default=0)


UNKNOWN = Contents()


@dataclass(frozen=True, slots=True)
class Wish:
    """What a ticket wants: to read prompts that all begin with `stem`, the longest of `need` tokens, what is generated
    behind it included."""

    stem: Tokens
    need: int
    use: Use = "decision"


@dataclass(frozen=True, slots=True)
class Part:
    """The slots from `first` on, `count` of them, for one use: at most `limit` leases at once, whose prompts need at
    most `context` tokens together."""

    first: int
    count: int
    limit: int
    context: int

    @property
    def slots(self) -> range:
        return range(self.first, self.first + self.count)


@dataclass(frozen=True, slots=True)
class Grant:
    """`ticket` may use `slot`, which holds the first `reusable` tokens of its stem, once `erase` are erased."""

    ticket: int
    slot: int
    reusable: int
    erase: tuple[int, ...] = ()


@dataclass(slots=True)
class _Slot:
    """`occupied`: tokens of the context that it may take, also where it cannot be told which."""

    contents: Contents = UNKNOWN
    occupied: int = 0
    left_at: int = 0
    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class _Leased:
    slot: int
    need: int
    use: Use


@dataclass(slots=True)
class SlotTable:
    """The state of the slots of one server. Every method that can free or fill a slot returns the grants that follow
    from it. `count`, `limit`, `context`: of the part for decisions, which has the lowest ids. `chats`: of the slots
    above them, how many, and the tokens that all of them may take. `total`: tokens that all slots share, where that is
    less than both parts have. `long`: from so many tokens to evaluate on, a prompt counts as long. `alone`: a slot is
    used while all others are empty, because where in a shared context a prompt lies moves the last digits."""

    count: int
    limit: int
    context: int
    long: int = 512
    alone: bool = False
    chats: tuple[int, int] = (0, 0)
    total: int | None = None
    _parts: dict[Use, Part] = field(init=False)
    _slots: list[_Slot] = field(init=False)
    _queues: dict[Use, deque[tuple[int, Wish]]] = field(init=False)
    _leases: dict[int, _Leased] = field(init=False, default_factory=dict)
    _clock: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if min(self.count, self.limit, self.context) < 1:
            sizes = f"{self.count}, {self.limit} and {self.context}"
            raise ValueError(f"a slot table needs slots, a limit and a context, got {sizes}")
        chats, room = self.chats
        self._parts = {
            "decision": Part(0, self.count, self.limit, self.context),
            "chat": Part(self.count, chats, chats, room),
        }
        self._queues = {use: deque() for use in USES}
        self._slots = [_Slot() for _ in range(self.count + chats)]

    def request(self, ticket: int, wish: Wish) -> list[Grant]:
        """Queue `ticket`."""
        self._queues[wish.use].append((ticket, wish))
        return self._grant()

    def request_now(self, ticket: int, wish: Wish) -> Grant | None:
        """A further slot for somebody who has one, or None: nobody who waits may be kept waiting by it."""
        return None if self._queues[wish.use] or not self._can_grant(wish) else self._give(ticket, wish)

    def release(self, ticket: int, *, contents: Contents) -> list[Grant]:
        """`ticket` is done and leaves `contents` in its slot: UNKNOWN where it cannot tell, and it may not have touched
        it then. Slots that it had still to erase are free too; nobody knows whether they are empty."""
        self._clock += 1
        lease = self._leases.pop(ticket)
        slot = self._slots[lease.slot]
        slot.contents, slot.left_at = contents, self._clock
        slot.occupied = max(slot.occupied, lease.need) if contents == UNKNOWN else contents.occupied
        for held in self._slots:
            if held.ticket == ticket:
                held.ticket = None
        return self._grant()

    def erased(self, ticket: int, slots: tuple[int, ...]) -> list[Grant]:
        """What `ticket` was granted with is erased, and may be granted to others."""
        for index in slots:
            self._slots[index] = _Slot()
        return self._grant()

    def withdraw(self, ticket: int) -> list[Grant]:
        """`ticket` no longer waits. Others may follow at once: it could have been the head of the queue."""
        for use, queue in self._queues.items():
            self._queues[use] = deque(waiting for waiting in queue if waiting[0] != ticket)
        return self._grant()

    @property
    def waiting(self) -> int:
        return sum(map(self.waiting_for, USES))

    @property
    def held(self) -> int:
        return len(self._leases)

    def waiting_for(self, use: Use) -> int:
        return len(self._queues[use])

    def held_for(self, use: Use) -> int:
        return sum(lease.use == use for lease in self._leases.values())

    def _grant(self) -> list[Grant]:
        grants = []
        for queue in self._queues.values():
            while queue and self._can_grant(queue[0][1]):
                grants.append(self._give(*queue.popleft()))
            if queue and self._has_part(queue[0][1]):
                break  # what is missing is in what all share: who comes later must not take it first
        return grants

    def _can_grant(self, wish: Wish) -> bool:
        everything = range(len(self._slots))
        return self._has_part(wish) and (self.total is None or self._fits(wish, everything, self.total))

    def _has_part(self, wish: Wish) -> bool:
        """Whether it could be granted as far as its own part goes."""
        part = self._parts[wish.use]
        if self.held_for(wish.use) >= (1 if self.alone else part.limit) or not self._free(part.slots):
            return False
        return self._fits(wish, part.slots, part.context)

    def _fits(self, wish: Wish, slots: range, context: int) -> bool:
        alone = not any(lease.slot in slots for lease in self._leases.values())
        return alone or self._needed(slots) + self._still_to_erase(slots) + wish.need <= context

    def _needed(self, slots: range) -> int:
        return sum(lease.need for lease in self._leases.values() if lease.slot in slots)

    def _still_to_erase(self, slots: range) -> int:
        in_use = {lease.slot for lease in self._leases.values()}
        return sum(self._slots[i].occupied for i in slots if self._slots[i].ticket is not None and i not in in_use)

    def _give(self, ticket: int, wish: Wish) -> Grant:
        part = self._parts[wish.use]
        index, reusable = self._best_free(wish, part)
        self._leases[ticket] = _Leased(index, wish.need, wish.use)
        self._slots[index].ticket = ticket
        erase = self._in_the_way(part)
        for other in erase:
            self._slots[other].contents, self._slots[other].ticket = UNKNOWN, ticket
        return Grant(ticket, index, reusable, erase)

    def _in_the_way(self, part: Part) -> tuple[int, ...]:
        idle = self._longest_left(self._free(part.slots))
        chosen = idle if self.alone else self._until_room(idle, part.context - self._needed(part.slots))
        if self.total is not None:
            others = [i for use in reversed(USES) for i in self._longest_left(self._free(self._parts[use].slots))]
            left = [i for i in others if i not in chosen]
            chosen += self._until_room(left, self.total - self._needed(range(len(self._slots))))
        return tuple(i for i in chosen if self._slots[i].occupied)

    def _until_room(self, idle: list[int], room: int) -> list[int]:
        """The first of `idle`, as many as have to go for the rest to fit into `room` tokens."""
        excess = sum(self._slots[i].occupied for i in idle) - room
        chosen = []
        for index in idle:
            if excess <= 0:
                break
            chosen.append(index)
            excess -= self._slots[index].occupied
        return chosen

    def _longest_left(self, slots: Iterable[int]) -> list[int]:
        return sorted(slots, key=lambda i: self._slots[i].left_at)

    def _free(self, slots: range) -> list[int]:
        return [i for i in slots if self._slots[i].ticket is None]

    def _best_free(self, wish: Wish, part: Part) -> tuple[int, int]:
        stem, free = wish.stem, self._free(part.slots)
        found, best = max((self._slots[i].contents.reusable(stem), -i) for i in free)
        if found and 2 * found >= len(stem):
            return -best, found
        is_long = len(stem) - found >= self.long
        middle = part.first + part.count // 2
        # Chats are read in steps, so that none waits for another's end, and there are few slots for them.
        half = [i for i in free if wish.use == "chat" or (i >= middle) == is_long] or free
        index = min(half, key=lambda i: (self._slots[i].left_at, -i if is_long else i))
        return index, self._slots[index].contents.reusable(stem)
