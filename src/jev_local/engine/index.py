"""Which file on disk holds which prefix, with its checksum: what a restart needs to know, in one SQLite file.

A prefix enters it after its file was written, and leaves it before the file is deleted. So whatever a crash leaves
between the two is a file without a row, which the next start deletes.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

INDEX_NAME = "index.sqlite3"
JOURNAL_NAME = INDEX_NAME + "-journal"

APPLICATION = 0x4A45564C
VERSION = 1
"""Written into the file. One with other marks is somebody else's, or was written by a version that meant other rows."""

CHECKSUM = re.compile(r"[0-9a-f]{64}")

SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE prefixes (
    name TEXT PRIMARY KEY, key TEXT NOT NULL, size INTEGER NOT NULL, checksum TEXT NOT NULL, tokens INTEGER NOT NULL,
    used INTEGER NOT NULL
);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
COMMIT;
"""


class IndexFailed(OSError):
    """The index cannot be read or written now: what is not in it does not survive a restart."""


class IndexBlocked(IndexFailed):
    """Something that cannot be removed is where the index should be. That does not pass."""


@dataclass(frozen=True, slots=True)
class Row:
    """One saved prefix. `checksum` is the SHA-256 of its file in hex. Names are not trusted here: see the store."""

    key: str
    name: str
    size: int
    checksum: str
    tokens: int


class Index:
    """All methods belong to one thread, which SQLite sees to. One that is no good is replaced by an empty one: nothing
    in it is worth more than the reading of a prompt. One that only cannot be opened now, as on a full disk, is left as
    it is and raises IndexFailed: it is good again when the disk is."""

    def __init__(self, path: Path) -> None:
        self._touched: dict[str, None] = {}
        try:
            self._connection = _connect(path)
            return
        except (sqlite3.Error, OSError, ValueError) as error:
            if not _is_no_good(path, error):
                raise IndexFailed(f"the index of saved states cannot be opened ({_reason(error)})") from error
            log.warning("The index of saved states cannot be used (%s): starting with an empty one.", _reason(error))
        try:
            for name in (path, path.with_name(path.name + "-journal")):
                name.unlink(missing_ok=True)
        except OSError as error:
            raise IndexBlocked(f"the index of saved states cannot be made ({_reason(error)})") from error
        try:
            self._connection = _connect(path)
        except (sqlite3.Error, OSError, ValueError) as error:
            raise IndexFailed(f"the index of saved states cannot be made ({_reason(error)})") from error

    def rows(self) -> list[Row]:
        """All of them, the one used longest ago first."""
        try:
            return _rows(self._connection)
        except (sqlite3.Error, ValueError) as error:
            raise IndexFailed(f"the index of saved states cannot be read ({_reason(error)})") from error

    def add(self, row: Row) -> None:
        with self._transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO prefixes (key, name, size, checksum, tokens, used)"
                " VALUES (?, ?, ?, ?, ?, (SELECT coalesce(max(used), 0) + 1 FROM prefixes))",
                (row.key, row.name, row.size, row.checksum, row.tokens),
            )

    def remove(self, names: Iterable[str]) -> None:
        with self._transaction() as connection:
            connection.executemany("DELETE FROM prefixes WHERE name = ?", [(name,) for name in names])

    def touch(self, name: str) -> None:
        """`name` was used now. Written along with the next change or at the end, because a hit is not worth a write:
        what a crash loses is the order in which some prefixes would be given up."""
        self._touched.pop(name, None)
        self._touched[name] = None

    def close(self) -> None:
        try:
            if self._touched:
                with self._transaction():
                    pass
        except IndexFailed as error:
            log.warning("The order of use was lost: %s.", error)
        finally:
            self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.executemany(
                    "UPDATE prefixes SET used = (SELECT max(used) + 1 FROM prefixes) WHERE name = ?",
                    [(name,) for name in self._touched],
                )
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk may have rolled it back already
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise IndexFailed(f"the index of saved states cannot be written ({_reason(error)})") from error
        self._touched.clear()


def _connect(path: Path) -> sqlite3.Connection:
    """sqlite3.Error, OSError or ValueError unless it is an index of ours, whole, or a new one."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)  # SQLite makes its journal with the same mode
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a file")
    finally:
        os.close(descriptor)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        if not found.st_size:
            connection.executescript(SCHEMA)
        marks = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        if marks != [APPLICATION, VERSION]:
            raise ValueError("it is not ours")
        if connection.execute("PRAGMA quick_check").fetchone()[0] != "ok":
            raise ValueError("it is damaged")
        try:
            _rows(connection)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            raise ValueError("it is damaged") from error  # it has other columns, and will have them next time
    except BaseException:
        connection.close()
        raise
    return connection


def _rows(connection: sqlite3.Connection) -> list[Row]:
    """SQLite keeps any type in any column, so a row is looked at before it is believed."""
    found = connection.execute("SELECT key, name, size, checksum, tokens FROM prefixes ORDER BY used, rowid")
    rows = [Row(*values) for values in found]
    for row in rows:
        texts = all(isinstance(value, str) for value in (row.key, row.name, row.checksum))
        numbers = all(isinstance(value, int) and value > 0 for value in (row.size, row.tokens))
        if not (texts and numbers and CHECKSUM.fullmatch(row.checksum)):
            raise ValueError("it is damaged")
    return rows


def _is_no_good(path: Path, error: Exception) -> bool:
    """Whether what `_connect` raised is the fault of what lies at `path`, and not of the disk or of whoever else has
    it open."""
    if isinstance(error, OSError):
        try:
            return not stat.S_ISREG(path.lstat().st_mode)
        except OSError:
            return False
    if isinstance(error, sqlite3.Error):
        return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
    return True


def _reason(error: Exception) -> str:
    """Never with a path."""
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
