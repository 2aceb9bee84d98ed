"""Journal: what became of recent prompts, by a hash of what they begin with. No text is in it, and it ends with the
process."""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jev_local.core.reasons import WhyNot
from jev_local.engine.decision import PrefixSource

CAPACITY = 512
"""Beginnings that are remembered."""

PER_PROMPT = 2
"""Requests that are remembered of each: the last, and the one before it, which another run of the server may have
answered."""


@dataclass(frozen=True, slots=True)
class Note:
    """One request. at: seconds of the clock. run: of the model's server, as `BackendInfo.instance` has it. cached,
    processed: tokens. why_not: why its state was not kept, None where it was or was already."""

    at: float
    run: str
    source: PrefixSource
    cached: int
    processed: int
    kept: bool
    why_not: WhyNot | None = None


class Journal:
    """Remembers `capacity` beginnings, the ones asked about last."""

    def __init__(self, *, capacity: int = CAPACITY, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = capacity
        self._clock = clock
        self._notes: dict[bytes, tuple[Note, ...]] = {}

    def __len__(self) -> int:
        return len(self._notes)

    def note(
        self,
        stem: Sequence[int],
        *,
        run: str,
        source: PrefixSource,
        cached: int,
        processed: int,
        kept: bool,
        why_not: WhyNot | None = None,
    ) -> None:
        """A request whose prompts begin with the tokens of `stem` was answered now."""
        key = _key(stem)
        before = self._notes.pop(key, ())
        made = Note(self._clock(), run, source, cached, processed, kept, why_not)
        self._notes[key] = (*before, made)[-PER_PROMPT:]
        while len(self._notes) > self._capacity:
            del self._notes[next(iter(self._notes))]

    def last(self, stem: Sequence[int]) -> Note | None:
        """The last request that began with exactly `stem`."""
        notes = self.notes(stem)
        return notes[-1] if notes else None

    def notes(self, stem: Sequence[int]) -> tuple[Note, ...]:
        """The last requests that did, the newest behind."""
        return self._notes.get(_key(stem), ())


def _key(stem: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("q", stem).tobytes(), digest_size=16).digest()
