"""The index over real files, and what is left of it after somebody was at them."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from jev_local.engine.index import INDEX_NAME, JOURNAL_NAME, Index, IndexBlocked, IndexFailed, Row

A, B, C = (Row(f"key-{n}", f"name-{n}", 10, n * 64, 3) for n in "abc")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / INDEX_NAME


def written(path: Path, *rows: Row) -> None:
    with closing(Index(path)) as index:
        for row in rows:
            index.add(row)


def read(path: Path) -> list[Row]:
    with closing(Index(path)) as index:
        return index.rows()


def test_rows_survive_in_their_order_of_use(path: Path) -> None:
    with closing(Index(path)) as index:
        for row in (A, B, C):
            index.add(row)
        index.touch(A.name)
        index.touch("gone")
        index.remove([B.name, "never there"])
    assert read(path) == [C, A]
    assert path.stat().st_mode & 0o777 == 0o600


def test_uses_are_written_along_with_the_next_change(path: Path) -> None:
    written(path, A, B)
    with closing(Index(path)) as index:
        index.touch(B.name)
        index.touch(A.name)
        index.touch(B.name)
        index.add(C)
        assert index.rows() == [A, B, C]
        index.touch(A.name)
        index.remove([C.name])
        assert index.rows() == [B, A]


def test_an_index_that_others_could_read_is_closed(path: Path) -> None:
    written(path, A)
    path.chmod(0o644)
    assert read(path) == [A]
    assert path.stat().st_mode & 0o777 == 0o600


def damage_header(path: Path) -> None:
    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])


def damage_page(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * 200 + whole[4296:])


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 40)


def foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE prefixes (other)")
        connection.commit()


def later_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")


def wrong_type(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE prefixes SET size = 'large'")
        connection.commit()


def wrong_checksum(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE prefixes SET checksum = ''")
        connection.commit()


def other_columns(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE prefixes RENAME COLUMN size TO bytes")
        connection.commit()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "harm",
    [
        damage_header,
        damage_page,
        truncate,
        garbage,
        foreign,
        later_version,
        other_columns,
        wrong_type,
        wrong_checksum,
        pipe,
        link,
    ],
)
def test_one_that_cannot_be_read_is_replaced_by_an_empty_one(
    path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    written(path, A, B)
    harm(path)
    caplog.set_level(logging.WARNING)
    assert read(path) == []
    assert "starting with an empty one" in caplog.text
    assert str(path.parent) not in caplog.text
    caplog.clear()
    written(path, C)
    assert read(path) == [C]
    assert not caplog.text


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_one_that_is_gone_is_a_new_one(path: Path, harm: Callable[[Path], None]) -> None:
    written(path, A)
    harm(path)
    assert read(path) == []


def test_one_that_cannot_be_replaced_either_is_an_error(path: Path) -> None:
    path.mkdir()
    with pytest.raises(IndexBlocked, match="cannot be made"):
        Index(path)


def test_one_that_somebody_else_has_open_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(path, A)
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0))
        with pytest.raises(IndexFailed, match=r"cannot be opened \(database is locked\)"):
            Index(path)
    assert read(path) == [A]


def test_a_file_that_is_locked_is_an_error_and_no_end(path: Path) -> None:
    with closing(Index(path)) as index, closing(sqlite3.connect(path)) as other:
        index._connection.execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(IndexFailed, match="locked"):
            index.add(A)
        other.rollback()
        index.add(B)
        assert index.rows() == [B]


def test_a_change_that_fails_is_no_change_and_no_end(path: Path) -> None:
    with closing(Index(path)) as index:
        index.add(A)
        index.add(B)
        index.touch(A.name)
        with pytest.raises(IndexFailed, match="NOT NULL"):
            index.add(Row(None, "name", 1, "", 1))  # type: ignore[arg-type]
        assert index.rows() == [A, B]
        index.add(C)
        assert index.rows() == [B, A, C]


def test_it_belongs_to_one_thread(path: Path) -> None:
    with closing(Index(path)) as index:
        raised: list[type[Exception]] = []

        def elsewhere() -> None:
            try:
                index.add(A)
            except Exception as error:
                raised.append(type(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert raised == [IndexFailed]


FULL = """
import resource, signal, sys
from pathlib import Path
from jev_local.engine.index import Index, IndexFailed, Row
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
index = Index(Path(sys.argv[1]))
index.add(Row("key", "first", 1, "a" * 64, 1))
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, resource.RLIM_INFINITY))
added = 1
try:
    while True:
        index.add(Row("key", f"name-{added}", 1, "a" * 64, 1))
        added += 1
except IndexFailed as error:
    assert "cannot be written" in str(error), error
index.touch("first")
index.close()  # which may fail to write as well, and says so
print(added)
"""


def test_a_full_disk_is_an_error_and_loses_nothing_that_was_written(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, check=True)
    assert len(read(path)) == int(done.stdout) > 10
    assert not path.with_name(JOURNAL_NAME).exists()


OPENED_FULL = """
import resource, signal, sys
from pathlib import Path
from jev_local.engine.index import Index, IndexFailed, Row
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    print(len(Index(Path(sys.argv[1])).rows()))
except IndexFailed as error:
    print(error)
"""

INTERRUPTED = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE prefixes SET key = key || 'changed'")
for number in range(1000):
    connection.execute("INSERT INTO prefixes VALUES (?, 'key', 1, 'x', 1, 1)", (f"name-{number}",))
os._exit(0)
"""
"""Leaves half a change in the file, which the next who opens it has to take back."""


def opened_full(path: Path, limit: int) -> str:
    argv = [sys.executable, "-c", OPENED_FULL, path, str(limit)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("limit", [0, 4096])
def test_a_new_one_on_a_full_disk_is_an_error_that_passes(path: Path, limit: int) -> None:
    assert "cannot be opened" in opened_full(path, limit)
    assert read(path) == []


@pytest.mark.parametrize("limit", [0, 4096])
def test_a_good_one_is_left_alone_on_a_full_disk(path: Path, limit: int) -> None:
    written(path, A, B)
    assert opened_full(path, limit) == "2"
    subprocess.run([sys.executable, "-c", INTERRUPTED, path], check=True)
    assert path.with_name(JOURNAL_NAME).stat().st_size > 4096
    assert "cannot be opened" in opened_full(path, limit)
    assert read(path) == [A, B]


@pytest.mark.parametrize("limit", [0, 4096])
def test_one_that_is_no_good_goes_on_a_full_disk_too(path: Path, limit: int) -> None:
    written(path, A)
    garbage(path)
    assert "cannot be made" in opened_full(path, limit)
    assert read(path) == []
