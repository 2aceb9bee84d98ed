"""SlotFolder: the folder that llama-server saves to, its index and its lock, without blocking the loop.

What llama-server is asked for it finishes, also when nobody waits for it any more. So a file may appear after it was
given up, and is looked for until then.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from jev_local.backend.probe import NAMES as PROBE_NAMES
from jev_local.engine.files import NotPrivate, look, private_folder, remove
from jev_local.engine.index import INDEX_NAME, JOURNAL_NAME, Index, IndexBlocked, IndexFailed, Row
from jev_local.engine.locks import LOCK_NAME, Hold, directory_lock
from jev_local.errors import JevError

log = logging.getLogger(__name__)

NAME = re.compile(r"prefix-[0-9a-f]{32}\.slot")
"""Files with other names are not ours to touch."""

LATE_SECONDS = 600.0
"""How long after a save was given up its file may still appear: no request to llama-server lasts longer."""

SWEEP_SECONDS = 5.0
"""How often such a file is looked for."""


class StoreRefused(JevError):
    """The folder cannot be used for saved states."""


class SlotFolder:
    """Names are given out and taken back on the loop, in whose order the index hears of them, in a thread of its own.
    Files are touched in any worker thread. After `close` there is no index, and deleting still works.

    Where the index cannot be opened for now, there is none either: nothing is saved for later then, and the files that
    are there stay as they are, because nobody knows which of them are good."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: set[str] = set()
        self._knows = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: ThreadPoolExecutor | None = None
        self._index: Index | None = None
        self._lock: Hold | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._sweep_until = -math.inf

    async def open(self) -> list[Row]:
        """Take the folder, and delete what its index does not name. Returns the rows whose files are there, the one
        used longest ago first. Raises StoreRefused, LockRefused or Occupied."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="index")
        rows, strays, unread = await asyncio.get_running_loop().run_in_executor(self._thread, self._take)
        self._known = {row.name for row in rows} | unread
        self._knows = True
        if strays:
            log.warning("Saved states that are not there as they were saved are dropped: %d.", len(strays))
            await self.delete([name for name in strays if NAME.fullmatch(name)], unlist=strays)
        if swept := await self._sweep():
            log.info("Files of saved states that are not in the index are deleted: %d.", swept)
        self.expect_late_files()  # an API that was killed may have asked for one just before
        return rows

    async def close(self) -> None:
        """Finish what was begun, and let go of the folder."""
        self._sweep_until = -math.inf
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.settled()
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._knows:  # else it was not opened, and every file would look unknown
                with suppress(OSError):  # the folder may be gone, and the lock has to go all the same
                    await self._sweep()
            await asyncio.get_running_loop().run_in_executor(thread, self._leave)
            thread.shutdown(wait=False)

    def begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Have `work` done in the background, whatever becomes of who asked for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def settled(self) -> None:
        """Everything that was begun is done."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def path(self, name: str) -> Path:
        return self._path / name

    def new_name(self) -> str:
        """For a file that may be there from now on until it is deleted."""
        name = f"prefix-{secrets.token_hex(16)}.slot"
        self._known.add(name)
        return name

    async def add(self, row: Row) -> None:
        """Let `row` survive a restart. Raises IndexFailed."""
        if self._thread is not None and self._index is None:
            raise IndexFailed("there is no index")
        await self._in_index(lambda index: index.add(row))

    def touch(self, name: str) -> None:
        """`name` was used now."""
        if self._thread is not None and self._index is not None:
            self._thread.submit(self._index.touch, name)

    def delete(self, names: Iterable[str], *, unlist: Iterable[str] = ()) -> asyncio.Task[None]:
        """Delete the files `names`, and let none of them nor of `unlist` survive a restart."""
        gone = list(names)
        self._known.difference_update(gone)
        return self.begin(self._delete(gone, {*gone, *unlist}))

    def expect_late_files(self) -> None:
        """A save was given up, and its file may come yet."""
        self._sweep_until = time.monotonic() + LATE_SECONDS
        if self._thread is not None and (self._sweeper is None or self._sweeper.done()):
            self._sweeper = asyncio.create_task(self._sweep_for_a_while())

    def _take(self) -> tuple[list[Row], list[str], set[str]]:
        """Rows whose files are there, names of those whose are not, and the files of which no index tells."""
        try:
            private_folder(self._path, is_ours=_is_ours)
            self._lock = directory_lock(self._path)
            remove(self._path, PROBE_NAMES)  # of an API that was killed; who holds the lock has not probed yet
            try:
                self._index = Index(self._path / INDEX_NAME)
                rows = self._index.rows()
            except IndexBlocked:
                raise
            except IndexFailed as error:
                if self._index is not None:
                    self._index.close()
                self._index = None
                log.warning("States are not saved, and those saved earlier are not used: %s.", error)
                return [], [], {entry.name for entry in self._path.iterdir() if NAME.fullmatch(entry.name)}
        except NotPrivate as error:
            raise StoreRefused(f"The folder of saved states {error} (--slot-cache-dir).") from error
        except OSError as error:
            reason = error.strerror or error
            raise StoreRefused(
                f"The folder of saved states cannot be used: {reason}. Name another (--slot-cache-dir)."
            ) from error
        there, strays = [], []
        for row in rows:
            if self._is_there(row):
                there.append(row)
            else:
                strays.append(row.name)
        return there, strays, set()

    def _is_there(self, row: Row) -> bool:
        if NAME.fullmatch(row.name) is None:
            return False
        found = look(self._path / row.name)
        return found is not None and found.size == row.size

    def _leave(self) -> None:
        index, lock, self._index, self._lock = self._index, self._lock, None, None
        try:
            if index is not None:
                index.close()
        finally:
            if lock is not None:
                lock.release()

    async def _in_index(self, work: Callable[[Index], None]) -> None:
        if self._thread is not None and self._index is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, work, self._index)

    async def _delete(self, files: list[str], rows: set[str]) -> None:
        try:
            await self._in_index(lambda index: index.remove(rows))
        except IndexFailed as error:
            log.warning("Deleted all the same: %s.", error)
        await asyncio.to_thread(remove, self._path, files)

    async def _sweep(self) -> int:
        """Delete every file of ours that nobody knows; how many there were."""
        found = await asyncio.to_thread(lambda: [entry.name for entry in self._path.iterdir()])
        # Whatever was found had been named before it was written, so what is unknown now will not be known later.
        lost = [name for name in found if NAME.fullmatch(name) and name not in self._known]
        await asyncio.to_thread(remove, self._path, lost)
        return len(lost)

    async def _sweep_for_a_while(self) -> None:
        while time.monotonic() < self._sweep_until:
            await asyncio.sleep(SWEEP_SECONDS)
            with suppress(OSError):  # the folder is gone, and what is in it
                await self._sweep()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s while keeping saved states", type(error).__name__)  # its text may name a path


def _is_ours(name: str) -> bool:
    return name in (INDEX_NAME, JOURNAL_NAME, LOCK_NAME, *PROBE_NAMES) or NAME.fullmatch(name) is not None
