"""Which saved prefixes are kept, which go first, how many bytes they take. Returns what to delete; deletes nothing.

Rules:
 1. The entries never take more bytes than the budget. One that could not fit beside what is in use is not kept.
 2. Who was used longest ago goes first.
 3. A pinned file is in use: its entry is nobody's victim, and the file outlives an entry that goes for another reason.

Pins belong to files and not to keys: an entry may be replaced while its file is being read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Origin: TypeAlias = Literal["memory", "disk"]
"""Saved by this process, or found when it started."""

EVICTED_KNOWN = 4096
"""Keys that are remembered of entries that had to go."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One saved prefix: `key` says what was read, `name` which file holds it. No two entries ever share a name."""

    key: str
    name: str
    size: int
    tokens: int
    origin: Origin


@dataclass(slots=True)
class SnapshotLedger:
    """The one place where bytes are counted. What is being saved, and what is in use without being kept, comes on top
    of them. Methods that end entries return those whose files have to be deleted now."""

    budget: int
    hits: int = field(init=False, default=0)
    misses: int = field(init=False, default=0)
    evictions: int = field(init=False, default=0)
    _entries: dict[str, Entry] = field(init=False, default_factory=dict)
    _pins: dict[str, int] = field(init=False, default_factory=dict)
    _leaving: dict[str, Entry] = field(init=False, default_factory=dict)
    _evicted: dict[str, None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise ValueError(f"a budget is a number of bytes, got {self.budget}")

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self._entries.values())

    @property
    def entries(self) -> int:
        return len(self._entries)

    def admit(self, entry: Entry) -> list[Entry]:
        """Keep `entry` as the one used last, in place of one with its key. Where there is no room to be made for it,
        everything stays as it is and `entry` itself is what goes: at its last `unpin` if it is pinned."""
        older = self._entries.get(entry.key)
        excess = self.bytes + entry.size - self.budget - (older.size if older is not None else 0)
        victims = []
        for other in self._entries.values():
            if excess <= 0:
                break
            if other is not older and other.name not in self._pins:
                victims.append(other)
                excess -= other.size
        if excess > 0:
            return self._leave([entry])
        self.evictions += len(victims)
        gone = victims if older is None else [*victims, older]
        for other in gone:
            del self._entries[other.key]
        self._entries[entry.key] = entry
        self._remember(victims, kept=entry)
        return self._leave(gone)

    def find(self, key: str) -> Entry | None:
        """The entry of `key`, which counts as used now."""
        entry = self._entries.pop(key, None)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries[key] = entry
        return entry

    def use(self, key: str) -> Entry | None:
        """The entry of `key` was of use, though nothing was looked for: a slot still held what it has."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._entries[key] = entry
        return entry

    def missed(self) -> None:
        """What `find` returned last cannot be used: that was a miss after all."""
        self.hits -= 1
        self.misses += 1

    def peek(self, key: str) -> Entry | None:
        """The entry of `key`, without counting or using anything."""
        return self._entries.get(key)

    def fate(self, key: str) -> Literal["held", "evicted", "unknown"]:
        """What became of the entry of `key`: evicted to make room for others, and not kept again since; unknown is also
        one that was forgotten for another reason, or evicted long ago."""
        return "held" if key in self._entries else "evicted" if key in self._evicted else "unknown"

    def forget(self, key: str) -> list[Entry]:
        entry = self._entries.pop(key, None)
        return [] if entry is None else self._leave([entry])

    def clear(self) -> list[Entry]:
        gone = list(self._entries.values())
        self._entries.clear()
        self._evicted.clear()
        return self._leave(gone)

    def pin(self, entry: Entry) -> None:
        """The file of `entry` is in use once more. May come before `admit`, so that what is not kept lives on a while
        all the same."""
        self._pins[entry.name] = self._pins.get(entry.name, 0) + 1

    def unpin(self, entry: Entry) -> list[Entry]:
        """One use less. The last one lets go of an entry that has ended in the meantime."""
        self._pins[entry.name] -= 1
        if self._pins[entry.name]:
            return []
        del self._pins[entry.name]
        gone = self._leaving.pop(entry.name, None)
        return [] if gone is None else [gone]

    def _remember(self, victims: Iterable[Entry], *, kept: Entry) -> None:
        for entry in victims:
            self._evicted.pop(entry.key, None)  # the newest stand last
            self._evicted[entry.key] = None
        self._evicted.pop(kept.key, None)
        while len(self._evicted) > EVICTED_KNOWN:
            del self._evicted[next(iter(self._evicted))]

    def _leave(self, entries: Iterable[Entry]) -> list[Entry]:
        free = []
        for entry in entries:
            if entry.name in self._pins:
                self._leaving[entry.name] = entry
            else:
                free.append(entry)
        return free
