"""SnapshotStore: prefixes that llama-server has read once, saved in files and found again by what was read.

llama-server ends when it restores a file that is too short, and answers nonsense after one with a flipped byte. So no
name leaves here that was not looked at: what this process saw being saved has to be the same file still, and what was
found at start has to have its checksum.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jev_local.core.ledger import Entry, SnapshotLedger
from jev_local.engine.files import Facts, checksum, look, seal
from jev_local.engine.folder import SlotFolder
from jev_local.engine.index import IndexFailed, Row
from jev_local.engine.kept import Snapshot, StoreReport, key, keys

log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""How long nothing is saved after a save that failed: a full disk stays full for a while, and each try costs time."""


@dataclass(slots=True)
class _File:
    """`seen`: the file that is known to be right; of an earlier run's, only once its `checksum` has been compared."""

    entry: Entry
    seen: Facts | None = None
    checksum: str = ""
    hashing: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Save:
    """Have llama-server save to `name`, then `commit`. `snapshot` is there from then on until the block ends."""

    name: str
    key: str
    tokens: int
    _store: SnapshotStore
    snapshot: Snapshot | None = None
    _entry: Entry | None = None

    async def commit(self, size: int) -> Snapshot | None:
        """llama-server says that it wrote `size` bytes. None if that is not what is there, which the store notes."""
        self._entry = await self._store._commit(self, size)
        self.snapshot = None if self._entry is None else _snapshot(self._entry)
        return self.snapshot


class SnapshotStore:
    """Keeps at most `budget` bytes in `directory`, which is its alone. With a budget of 0 a prefix can be saved and
    used within one block, and nothing outlives that. Two blocks for one key do not wait for each other: the one that
    commits last is kept."""

    def __init__(self, directory: Path, *, budget: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.directory = directory
        self._folder = SlotFolder(directory)
        self._ledger = SnapshotLedger(budget)
        self._clock = clock
        self._files: dict[str, _File] = {}
        self._one_by_one = asyncio.Lock()
        self._off_until = -math.inf
        self._reason: str | None = None
        self._bytes_per_token = math.inf
        self._too_large = False

    async def open(self) -> None:
        """Take the folder and what earlier runs left in it. Raises StoreRefused, LockRefused or Occupied."""
        try:
            for row in await self._folder.open():
                entry = Entry(row.key, row.name, row.size, row.tokens, "disk")
                self._files[row.name] = _File(entry, checksum=row.checksum)
                await self._drop(self._ledger.admit(entry))
        except BaseException:
            await self._folder.close()
            raise

    async def close(self) -> None:
        """Note what is still to be noted, and let go of the folder. A block that lasts longer deletes its own file."""
        await self._folder.close()

    async def settled(self) -> None:
        """Everything that goes on in the background is done."""
        await self._folder.settled()

    key = staticmethod(key)

    @asynccontextmanager
    async def saving(self, key: str, *, tokens: int) -> AsyncIterator[Save]:
        """A name to save under. What was committed can be used until the block ends, also where it is not kept for
        others; what was not is deleted."""
        save = Save(self._folder.new_name(), key, tokens, self)
        try:
            yield save
        finally:
            if save._entry is not None:
                await self._drop(self._ledger.unpin(save._entry))
            else:
                self._folder.expect_late_files()
                await asyncio.shield(self._folder.delete([save.name]))

    @asynccontextmanager
    async def holding(self, key: str) -> AsyncIterator[Snapshot | None]:
        """The saved prefix of `key`, safe to restore and safe from deletion until the block ends. None: read it."""
        entry = await self._pinned(key)
        try:
            yield None if entry is None else _snapshot(entry)
        finally:
            if entry is not None:
                await self._drop(self._ledger.unpin(entry))

    def longest(self, fingerprint: str, tokens: Sequence[int]) -> int | None:
        """How many of the first `tokens` the longest saved prefix of them has, sound or not; None if none is saved."""
        lengths = sorted({file.entry.tokens for file in self._files.values()})
        found = [length for length, key in keys(fingerprint, tokens, lengths) if self.has(key)]
        return found[-1] if found else None

    def missed(self) -> None:
        """`longest` had nothing that was of any use."""
        self._ledger.misses += 1

    def used(self, key: str) -> None:
        """What the saved prefix of `key` has was used now, though it was read from nowhere: a slot still held it."""
        if (entry := self._ledger.use(key)) is not None:
            self._folder.touch(entry.name)

    def fate(self, key: str) -> Literal["held", "evicted", "unknown"]:
        """What became of the prefix of `key`."""
        return self._ledger.fate(key)

    def has(self, key: str) -> bool:
        """Whether there is a saved prefix of `key`, sound or not."""
        return self._ledger.peek(key) is not None

    def fits(self, tokens: int) -> bool:
        """Whether it may be worth saving a prefix of `tokens`: not if it would be larger than the whole budget. Nothing
        is foretold before one was, as part of each file is the same for any length and short ones say too much."""
        return not self._too_large or tokens * self._bytes_per_token <= self._ledger.budget

    async def verify(self, snapshot: Snapshot) -> bool:
        """Whether `snapshot` can still be restored: to be asked right before each time. If not, it is forgotten."""
        # Between this look and llama-server's opening of the file there is a gap that cannot be closed from here. Only
        # this user can write to the folder, and neither we nor llama-server change a file once it was saved.
        file = self._files.get(snapshot.name)
        return file is not None and await self._is_sound(file)

    async def discard(self, key: str) -> None:
        """llama-server would not restore the saved prefix of `key`."""
        entry = self._ledger.peek(key)
        if entry is not None:
            log.warning("The saved state %s is dropped: the inference server does not take it.", entry.name)
            self._forget(entry)

    async def clear(self) -> int:
        """Forget everything; how many prefixes that were. Files in use go when they no longer are."""
        count, names = self._ledger.entries, list(self._files)
        await self._drop(self._ledger.clear(), unlist=names)
        return count

    @property
    def can_save(self) -> bool:
        return self._clock() >= self._off_until

    def save_failed(self, reason: str) -> None:
        """A prefix could not be saved: leave it for a while. `reason` is a clause, without state text and paths."""
        if self.can_save:
            log.warning("States are not saved for %g s: %s.", RETRY_SECONDS, reason)
            self._off_until, self._reason = self._clock() + RETRY_SECONDS, reason

    def report(self) -> StoreReport:
        ledger, saving = self._ledger, self.can_save
        return StoreReport(
            bytes=ledger.bytes,
            budget=ledger.budget,
            entries=ledger.entries,
            hits=ledger.hits,
            misses=ledger.misses,
            evictions=ledger.evictions,
            saving=saving,
            reason=None if saving else self._reason,
        )

    async def _commit(self, save: Save, size: int) -> Entry | None:
        """Returns it pinned. Nothing waits for the checksum: it is for the next run."""
        seen = await asyncio.to_thread(seal, self._folder.path(save.name))
        if seen is None or not 0 < seen.size == size:
            self.save_failed("the inference server did not write what it said")
            await asyncio.shield(self._folder.delete([save.name]))
            return None
        entry = Entry(save.key, save.name, size, save.tokens, "memory")
        self._weigh(entry)
        file = self._files[save.name] = _File(entry, seen)
        self._ledger.pin(entry)
        self._delete(self._ledger.admit(entry))
        if self._is_kept(entry):
            self._folder.begin(self._enter(file))
        return entry

    def _weigh(self, entry: Entry) -> None:
        self._bytes_per_token = min(self._bytes_per_token, entry.size / max(entry.tokens, 1))
        if entry.size > self._ledger.budget > 0 and not self._too_large:
            self._too_large = True
            log.warning("States of %d tokens are larger than --prefix-cache-bytes: they are not kept.", entry.tokens)

    async def _enter(self, file: _File) -> None:
        async with self._one_by_one:  # hashing several files at once only makes the disk slower for requests
            found = await asyncio.to_thread(checksum, self._folder.path(file.entry.name), file.entry.size)
        if not self._is_kept(file.entry):
            return
        if found is None or found[0] != file.seen:
            self._reject(file.entry)
            return
        row = Row(file.entry.key, file.entry.name, file.entry.size, found[1], file.entry.tokens)
        try:
            await self._folder.add(row)
        except IndexFailed as error:
            self.save_failed(str(error))
            self._forget(file.entry)

    async def _pinned(self, key: str) -> Entry | None:
        entry = self._ledger.find(key)
        if entry is None:
            return None
        self._ledger.pin(entry)
        sound = False
        try:
            sound = await self._is_sound(self._files[entry.name])
        finally:
            if not sound:
                self._ledger.missed()
                await self._drop(self._ledger.unpin(entry))
        if sound:
            self._folder.touch(entry.name)
        return entry if sound else None

    async def _is_sound(self, file: _File) -> bool:
        """Whether it is the file that was saved. If not, it is forgotten."""
        if file.seen is None:
            if file.hashing is None:
                file.hashing = self._folder.begin(self._compare(file))
            await asyncio.shield(file.hashing)
        path = self._folder.path(file.entry.name)
        sound = file.seen is not None and await asyncio.to_thread(look, path) == file.seen
        if not sound:
            self._reject(file.entry)
        return sound

    async def _compare(self, file: _File) -> None:
        found = await asyncio.to_thread(checksum, self._folder.path(file.entry.name), file.entry.size)
        if found is not None and found[1] == file.checksum:
            file.seen = found[0]

    def _is_kept(self, entry: Entry) -> bool:
        return self._ledger.peek(entry.key) is entry

    def _reject(self, entry: Entry) -> None:
        log.warning("The saved state %s is dropped: it is not the file that was saved.", entry.name)
        self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        if self._is_kept(entry):
            self._delete(self._ledger.forget(entry.key), unlist=[entry.name])

    async def _drop(self, gone: Sequence[Entry], *, unlist: Sequence[str] = ()) -> None:
        if (task := self._delete(gone, unlist=unlist)) is not None:
            await asyncio.shield(task)

    def _delete(self, gone: Sequence[Entry], *, unlist: Sequence[str] = ()) -> asyncio.Task[None] | None:
        """Deleted in any case from here on, and not in the way of a request that does not wait for it."""
        for entry in gone:
            self._files.pop(entry.name, None)
        if not gone and not unlist:
            return None
        return self._folder.delete([entry.name for entry in gone], unlist=unlist)


def _snapshot(entry: Entry) -> Snapshot:
    return Snapshot(entry.name, entry.tokens, entry.origin)
