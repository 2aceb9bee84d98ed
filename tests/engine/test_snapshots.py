"""The store over real files. What llama-server would do, `write` does: it writes a file under the name it was given."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from jev_local.backend.probe import NAMES as PROBE_NAMES
from jev_local.core.ledger import Entry
from jev_local.engine import files, folder, snapshots
from jev_local.engine.folder import NAME, StoreRefused
from jev_local.engine.index import INDEX_NAME, JOURNAL_NAME
from jev_local.engine.kept import Snapshot
from jev_local.engine.locks import LOCK_NAME, Occupied, directory_lock
from jev_local.engine.snapshots import RETRY_SECONDS, Save, SnapshotStore

MANY = 1_000_000


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "slots"


@asynccontextmanager
async def opened(place: Path, budget: int = MANY, **options: Any) -> AsyncIterator[SnapshotStore]:
    store = SnapshotStore(place, budget=budget, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def write(place: Path, save: Save, content: bytes = b"state") -> int:
    return (place / save.name).write_bytes(content)


async def put(store: SnapshotStore, place: Path, key: str, content: bytes = b"state") -> str:
    async with store.saving(key, tokens=len(content)) as save:
        assert await save.commit(write(place, save, content)) is not None
    return save.name


async def get(store: SnapshotStore, key: str) -> Snapshot | None:
    async with store.holding(key) as snapshot:
        assert snapshot is None or await store.verify(snapshot)
        return snapshot


def names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


def saved(place: Path) -> set[str]:
    return {name for name in names(place) if NAME.fullmatch(name)}


def open_up(place: Path) -> None:
    place.chmod(0o755)


def listed(place: Path) -> int:
    """How many would be found after a crash now."""
    with closing(sqlite3.connect(place / INDEX_NAME)) as connection:
        return int(connection.execute("SELECT count(*) FROM prefixes").fetchone()[0])


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def run(scene: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await scene

    asyncio.run(limited())


def test_what_was_saved_is_found_at_once_and_after_a_restart(place: Path) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            assert await get(store, "a") is None
            name = await put(store, place, "a")
            assert await get(store, "a") == Snapshot(name, 5, "memory")
            assert mode(place / name) == 0o600
        async with opened(place) as store:
            assert await get(store, "a") == Snapshot(name, 5, "disk")
            report = store.report()
            assert (report.bytes, report.entries, report.hits, report.misses) == (5, 1, 1, 0)
            assert (report.budget, report.evictions, report.saving, report.reason) == (MANY, 0, True, None)

    run(scene())


def test_a_key_is_of_the_exact_tokens_and_server() -> None:
    key = SnapshotStore.key
    assert key("model", [1, 2]) == key("model", (1, 2))
    different = [("model", [1, 2]), ("model", [2, 1]), ("model", [1, 2, 0]), ("mode", [1, 2]), ("model", [258])]
    different += [("model\x01", [2]), ("", [])]
    assert len({key(*each) for each in different}) == len(different)
    assert len(key("model", range(200_000))) == 64


def test_who_was_used_longest_ago_goes_also_after_a_restart(place: Path) -> None:
    async def scene() -> None:
        async with opened(place, 15) as store:
            a, b, c = [await put(store, place, key) for key in "abc"]
            await get(store, "a")
            d = await put(store, place, "d")
            await store.settled()
            assert saved(place) == {a, c, d}
            assert store.report().evictions == 1
            await get(store, "a")
        async with opened(place, 10) as store:
            assert saved(place) == {a, d}
            assert [await get(store, key) for key in "bc"] == [None, None]
            assert b not in saved(place)
        async with opened(place, 0) as store:
            assert saved(place) == set()

    run(scene())


@pytest.mark.parametrize("budget", [0, 4])
def test_what_is_not_kept_can_be_used_until_its_block_ends(place: Path, budget: int) -> None:
    async def scene() -> None:
        async with opened(place, budget) as store:
            for end in (None, RuntimeError, asyncio.CancelledError, TimeoutError):
                with nullcontext() if end is None else pytest.raises(end):
                    async with store.saving("a", tokens=5) as save:
                        snapshot = await save.commit(write(place, save))
                        assert snapshot is not None
                        assert snapshot == save.snapshot == Snapshot(save.name, 5, "memory")
                        assert await store.verify(snapshot)
                        assert await get(store, "a") is None
                        assert saved(place) == {save.name}
                        if end is not None:
                            raise end
                assert saved(place) == set()
                assert not await store.verify(snapshot)
            assert (store.report().bytes, store.report().entries) == (0, 0)

    run(scene())


def test_what_is_larger_than_the_budget_is_foretold_once_one_was(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def save(store: SnapshotStore, tokens: int, size: int) -> None:
        async with store.saving(f"{tokens} in {size}", tokens=tokens) as save:
            assert await save.commit(write(place, save, b"x" * size)) is not None

    async def scene() -> None:
        async with opened(place, 100) as store:
            assert store.fits(MANY)
            await save(store, 1, 90)
            assert store.fits(MANY), "the most of a short one may be there in any"
            for _ in range(2):
                await save(store, 20, 120)
            assert [store.fits(tokens) for tokens in (1, 16, 17, 20, MANY)] == [True, True, False, False, False]
            await save(store, 25, 125)
            assert [store.fits(tokens) for tokens in (20, 21)] == [True, False]
            await save(store, 25, 100)
            assert [store.fits(tokens) for tokens in (25, 26)] == [True, False]
        assert caplog.text.count("larger than --prefix-cache-bytes") == len(caplog.records) == 1
        async with opened(place, 0) as store:
            await save(store, 1, 120)
            assert store.fits(MANY)

    run(scene())


def test_a_kept_one_outlives_a_block_that_fails(place: Path) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            with pytest.raises(RuntimeError):
                async with store.saving("a", tokens=5) as save:
                    await save.commit(write(place, save))
                    raise RuntimeError
            assert await get(store, "a") is not None

    run(scene())


def test_a_block_without_a_commit_leaves_nothing(place: Path) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            async with store.saving("a", tokens=5) as save:
                write(place, save)
            assert saved(place) == set()
            with pytest.raises(RuntimeError):
                async with store.saving("a", tokens=5) as save:
                    write(place, save)
                    raise RuntimeError
            assert saved(place) == set()
            assert await get(store, "a") is None

    run(scene())


def test_a_save_that_is_given_up_may_still_write_its_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "SWEEP_SECONDS", 0.01)

    async def scene() -> None:
        async with opened(place) as store:
            kept = await put(store, place, "kept")
            async with store.saving("a", tokens=5) as late:
                pass
            write(place, late)
            async with store.saving("b", tokens=5) as current:
                write(place, current)
                while late.name in saved(place):
                    await asyncio.sleep(0)
                assert saved(place) == {kept, current.name}

    run(scene())


def test_closing_deletes_what_came_late(place: Path) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            async with store.saving("a", tokens=5) as late:
                pass
            write(place, late)
        assert saved(place) == set()

    run(scene())


def test_closing_goes_through_when_the_folder_is_gone(place: Path) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            await put(store, place, "a")
            await store.settled()
            assert await get(store, "a") is not None, "a use that is still to be written down"
            shutil.rmtree(place)

    run(scene())
    place.mkdir(mode=0o700)
    directory_lock(place).release()


def test_a_block_may_outlive_the_store(place: Path) -> None:
    async def scene() -> None:
        store = SnapshotStore(place, budget=0)
        await store.open()
        async with store.saving("a", tokens=5) as save, store.saving("b", tokens=5) as other:
            await save.commit(write(place, save))
            write(place, other)
            await store.close()
            assert saved(place) == {save.name, other.name}
        assert saved(place) == set()
        await store.close()

    run(scene())


@pytest.mark.parametrize("reported", [4, 6, 0])
def test_a_file_of_another_size_is_a_failed_save(place: Path, reported: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        now = 1000.0
        async with opened(place, clock=lambda: now) as store:
            async with store.saving("a", tokens=5) as save:
                write(place, save)
                assert await save.commit(reported) is None
                assert save.snapshot is None
                assert saved(place) == set(), "the room is needed now"
            assert await get(store, "a") is None
            assert not store.can_save
            store.save_failed("again")
            report = store.report()
            assert (report.saving, report.reason) == (False, "the inference server did not write what it said")
            now += RETRY_SECONDS
            assert store.can_save
            assert (store.report().saving, store.report().reason) == (True, None)

    run(scene())
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_nothing_but_a_file_of_ours_is_committed(place: Path, tmp_path: Path) -> None:
    async def scene() -> None:
        (tmp_path / "elsewhere").write_bytes(b"state")
        async with opened(place) as store:
            for make in (
                lambda path: path.symlink_to(tmp_path / "elsewhere"),
                os.mkfifo,
                lambda path: None,
            ):
                async with store.saving("a", tokens=5) as save:
                    make(place / save.name)
                    assert await save.commit(5) is None
                assert saved(place) == set()
        assert (tmp_path / "elsewhere").read_bytes() == b"state"

    run(scene())


def flip(path: Path) -> None:
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def flip_in_place(path: Path) -> None:
    times = path.stat()
    flip(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def truncate(path: Path) -> None:
    os.truncate(path, 3)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def copy(path: Path) -> None:
    content = path.read_bytes()
    path.rename(path.with_name("elsewhere"))
    path.write_bytes(content)


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("harm", [flip, truncate, link, copy, Path.unlink])
def test_a_file_that_changed_is_not_handed_out(
    place: Path, harm: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            name = await put(store, place, "a")
            await store.settled()
            harm(place / name)
            assert await get(store, "a") is None
            assert await get(store, "a") is None
            await store.settled()
            assert saved(place) == set()
            assert (store.report().hits, store.report().misses, store.report().bytes) == (0, 2, 0)
            assert name in caplog.text
            assert str(place) not in caplog.text

            name = await put(store, place, "a")
            async with store.holding("a") as snapshot:
                assert snapshot is not None
                assert await store.verify(snapshot)
                harm(place / name)
                assert not await store.verify(snapshot), "between two restores of one request"
            await store.settled()
            assert saved(place) == set()

    run(scene())


@pytest.mark.parametrize("harm", [flip, flip_in_place, truncate, link, Path.unlink, folder_instead])
def test_a_file_that_changed_between_two_runs_is_not_handed_out(
    place: Path, harm: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            name = await put(store, place, "a")
            other = await put(store, place, "b")
        harm(place / name)
        async with opened(place) as store:
            assert await get(store, "a") is None
            assert await get(store, "b") is not None
            await store.settled()
            assert {path for path in saved(place) if (place / path).is_file()} == {other}
        assert "dropped" in caplog.text
        async with opened(place) as store:
            assert store.report().entries == 1

    run(scene())


def test_a_file_of_an_earlier_run_is_hashed_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def counted(path: Path, size: int) -> tuple[files.Facts, str] | None:
        hashed.append(path.name)
        return files.checksum(path, size)

    monkeypatch.setattr(snapshots, "checksum", counted)

    async def scene() -> None:
        async with opened(place) as store:
            name = await put(store, place, "a")
        hashed.clear()
        async with opened(place) as store:
            found = await asyncio.gather(*(get(store, "a") for _ in range(20)))
            assert set(found) == {Snapshot(name, 5, "disk")}
            assert hashed == [name]
            os.utime(place / name, ns=(1, 1))
            assert await get(store, "a") is None, "it has to be the file that was hashed"
            assert hashed == [name]

    run(scene())


def test_what_llama_server_does_not_take_is_dropped(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            name = await put(store, place, "a")
            async with store.holding("a"):
                await store.discard("a")
                await store.discard("a")
                assert saved(place) == {name}, "in use"
                assert await get(store, "a") is None
            assert saved(place) == set()
            assert caplog.text.count(name) == 1

    run(scene())


def test_clearing_leaves_what_is_in_use_until_it_is_not(place: Path) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            await put(store, place, "a")
            name = await put(store, place, "b")
            await store.settled()
            assert listed(place) == 2
            async with store.holding("b") as snapshot:
                assert snapshot is not None
                assert await store.clear() == 2
                assert saved(place) == {name}
                assert await store.verify(snapshot)
                assert listed(place) == 0, "nor after a crash"
            assert saved(place) == set()
            assert await store.clear() == 0

    run(scene())


def test_what_goes_before_it_was_hashed_does_not_enter_the_index(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def held_up(path: Path, size: int) -> tuple[files.Facts, str] | None:
        found = files.checksum(path, size)
        assert go_on.wait(30)
        return found

    monkeypatch.setattr(snapshots, "checksum", held_up)

    async def scene() -> None:
        async with opened(place) as store:
            await put(store, place, "a")
            assert await get(store, "a") is not None, "nobody waits for a checksum"
            hashing = asyncio.create_task(store.settled())
            assert await store.clear() == 1
            go_on.set()
            await hashing
            assert listed(place) == 0

    run(scene())


def test_a_short_file_takes_no_room_after_a_restart(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            truncate(place / await put(store, place, "a"))
            await store.settled()
            truncate(place / await put(store, place, "b"))
            name = await put(store, place, "c")
            await store.settled()
            truncate(place / name)
        async with opened(place) as store:
            assert (store.report().entries, store.report().bytes, listed(place)) == (0, 0, 0)
            assert "are dropped: 1." in caplog.text

    run(scene())


def test_saving_one_key_twice_at_once_keeps_one(place: Path) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            async with store.saving("a", tokens=5) as first, store.saving("a", tokens=5) as second:
                one = await first.commit(write(place, first))
                two = await second.commit(write(place, second, b"other"))
                assert one is not None
                assert two is not None
                assert await store.verify(one)
                assert await store.verify(two)
            assert saved(place) == {second.name}
            assert await get(store, "a") == two
        async with opened(place) as store:
            assert store.report().entries == 1

    run(scene())


def test_files_without_a_row_go_and_those_of_others_stay(place: Path) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            name = await put(store, place, "a")
        orphan = f"prefix-{'0' * 32}.slot"
        others = {"prefix-1.slot", "notes.txt", f"prefix-{'0' * 32}.slot.bak", f"PREFIX-{'0' * 32}.slot"}
        for each in (orphan, *others):
            (place / each).write_bytes(b"x")
        async with opened(place):
            assert names(place) - {LOCK_NAME, INDEX_NAME} == {name} | others

    run(scene())


def test_what_a_probe_left_goes_at_start_and_not_later(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "SWEEP_SECONDS", 0.01)
    place.mkdir()
    open_up(place)
    for name in PROBE_NAMES:
        (place / name).touch()

    async def scene() -> None:
        async with opened(place) as store:
            assert mode(place) == 0o700
            assert not names(place) & set(PROBE_NAMES)
            for name in PROBE_NAMES:
                (place / name).touch()
            async with store.saving("a", tokens=5) as late:
                pass
            write(place, late)
            while late.name in saved(place):
                await asyncio.sleep(0)
        assert set(PROBE_NAMES) < names(place)

    run(scene())


@pytest.mark.parametrize(
    "harm", [Path.unlink, lambda path: path.write_bytes(b"x" * 9999), lambda path: os.truncate(path, 5000)]
)
def test_without_an_index_nothing_is_believed(place: Path, harm: Callable[[Path], object]) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            await put(store, place, "a")
        harm(place / INDEX_NAME)
        async with opened(place) as store:
            assert await get(store, "a") is None
            assert saved(place) == set()
            await put(store, place, "a")
        async with opened(place) as store:
            assert await get(store, "a") is not None

    run(scene())


def test_a_name_in_the_index_is_not_a_path(place: Path, tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            name = await put(store, place, "a")
        (tmp_path / "precious").write_bytes(b"state")
        with closing(sqlite3.connect(place / INDEX_NAME)) as connection:
            assert connection.execute("UPDATE prefixes SET name = '../precious'").rowcount == 1
            connection.commit()
        async with opened(place) as store:
            assert await get(store, "a") is None
        assert (tmp_path / "precious").exists()
        assert name not in saved(place)

    run(scene())


def test_a_folder_is_made_private(place: Path) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            assert mode(place) == 0o700
            await put(store, place, "a")
        (place / JOURNAL_NAME).touch()
        open_up(place)
        async with opened(place) as store:
            assert mode(place) == 0o700
            assert await get(store, "a") is not None

    run(scene())


def open_to_others(place: Path) -> None:
    place.mkdir()
    (place / "notes.txt").touch()
    open_up(place)


def linked(place: Path) -> None:
    place.with_name("elsewhere").mkdir(mode=0o700)
    place.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (open_to_others, "chmod 700"),
        (linked, "symbolic link"),
        (Path.touch, "not a folder"),
        (lambda place: (place / INDEX_NAME).mkdir(parents=True, mode=0o700) or place.chmod(0o700), "cannot be made"),
    ],
)
def test_a_folder_that_cannot_be_trusted_is_refused(place: Path, harm: Callable[[Path], object], said: str) -> None:
    async def scene() -> None:
        harm(place)
        with pytest.raises(StoreRefused, match=said) as refused:
            await SnapshotStore(place, budget=1).open()
        assert "--slot-cache-dir" in refused.value.message
        assert str(place) not in refused.value.message

    run(scene())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(place: Path) -> None:
    place.mkdir(mode=0o700)
    os.chown(place, 12345, -1)

    async def scene() -> None:
        with pytest.raises(StoreRefused, match="another user"):
            await SnapshotStore(place, budget=1).open()

    run(scene())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_not_used(place: Path) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            name = await put(store, place, "a")
            os.chown(place / name, 12345, -1)
            assert await get(store, "a") is None

    run(scene())


def test_a_folder_belongs_to_one_store(place: Path) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            await put(store, place, "a")
            with pytest.raises(Occupied):
                await SnapshotStore(place, budget=1).open()
            assert await get(store, "a") is not None
        async with opened(place) as store:
            assert await get(store, "a") is not None

    run(scene())


def test_a_file_that_cannot_be_deleted_is_logged(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with opened(place) as store:
            name = await put(store, place, "a")
            await store.settled()
            folder_instead(place / name)
            assert await get(store, "a") is None
            await store.settled()
            assert f"{name} cannot be deleted" in caplog.text

    run(scene())


def test_under_random_cancellation_no_pin_and_no_file_is_lost(place: Path) -> None:
    async def scene() -> None:
        dice = random.Random(5)
        async with opened(place, 100) as store:

            async def use() -> None:
                key = dice.choice("abcdefgh")
                async with store.holding(key) as snapshot:
                    if snapshot is not None:
                        await asyncio.sleep(0)
                        if await store.verify(snapshot):
                            assert (place / snapshot.name).read_bytes() == key.encode() * snapshot.tokens
                        return
                size = dice.randint(1, 120)
                async with store.saving(key, tokens=size) as save:
                    written = write(place, save, key.encode() * size)
                    await asyncio.sleep(0)
                    if dice.random() < 0.9:
                        snapshot = await save.commit(written)
                        assert snapshot is not None
                        assert await store.verify(snapshot)

            running: list[asyncio.Task[None]] = []
            for turn in range(600):
                running.append(asyncio.create_task(use()))
                if dice.random() < 0.4:
                    dice.choice(running[-9:]).cancel()
                if turn % 97 == 0:
                    await store.clear()
                await asyncio.sleep(dice.choice((0, 0, 0.001)))
            results = await asyncio.gather(*running, return_exceptions=True)
            assert all(isinstance(r, asyncio.CancelledError) or r is None for r in results), results
            await store.settled()
            ledger = store._ledger
            assert (ledger._pins, ledger._leaving) == ({}, {})
            kept: dict[str, Entry] = ledger._entries
            assert saved(place) == {entry.name for entry in kept.values()} == set(store._files) == store._folder._known
            assert store.report().hits > 50
        async with opened(place, 100) as store:
            assert store.report().entries == len(kept)
            for key in kept:
                assert await get(store, key) is not None

    run(scene())


KILLED = """
import asyncio, sys
from pathlib import Path
from jev_local.engine.snapshots import SnapshotStore
place = Path(sys.argv[1])

async def main():
    store = SnapshotStore(place, budget=200)
    await store.open()
    number = 0
    while True:
        async with store.saving(str(number % 40), tokens=7) as save:
            path = place / save.name
            await asyncio.to_thread(path.write_bytes, str(number).encode() * 5)
            await save.commit(path.stat().st_size)
        number += 1
        if number % 7 == 0:
            await store.settled()
        print(number, flush=True)

asyncio.run(main())
"""


def test_whenever_the_process_is_killed_what_is_left_is_sound(place: Path) -> None:
    found = 0
    for turn in range(6):
        with subprocess.Popen([sys.executable, "-c", KILLED, place], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(25 + 3 * turn):
                assert process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)

        async def scene() -> None:
            nonlocal found
            async with opened(place, 200) as store:
                report = store.report()
                assert report.bytes <= 200
                assert len(saved(place)) == report.entries
                for key in [entry.key for entry in store._ledger._entries.values()]:
                    assert await get(store, key) is not None
                found += report.entries

        run(scene())
    assert found > 20


FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from jev_local.engine.snapshots import SnapshotStore
place = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

async def save(store, key):
    async with store.saving(key, tokens=1) as save:
        await save.commit((place / save.name).write_bytes(b"state"))
        assert save.snapshot is not None, "it can be used until then"
    await store.settled()

async def main():
    store = SnapshotStore(place, budget=1000)
    await store.open()
    await save(store, "before")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    await save(store, "full")
    assert not store.can_save
    assert "index" in store.report().reason, store.report()
    assert store.report().entries == 1
    async with store.holding("before") as snapshot:
        assert await store.verify(snapshot)
    await store.close()

asyncio.run(main())
"""


def test_a_disk_too_full_for_the_index_is_a_failed_save(place: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, place], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("States are not saved") == 1

    async def scene() -> None:
        async with opened(place) as store:
            assert store.report().entries == len(saved(place)) == 1
            assert await get(store, "before") is not None

    run(scene())


OPENED_FULL = """
import asyncio, logging, resource, signal, sys
from pathlib import Path
from jev_local.engine import folder
from jev_local.engine.snapshots import SnapshotStore
place, limit = Path(sys.argv[1]), int(sys.argv[2])
logging.basicConfig(format="%(message)s")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder.SWEEP_SECONDS = 0.01

async def main():
    before = set(place.glob("prefix-*")) if place.exists() else set()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    store = SnapshotStore(place, budget=1000)
    await store.open()
    assert store.can_save
    async with store.holding("before") as snapshot:
        assert snapshot is None
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    async with store.saving("late", tokens=1) as late:
        pass
    (place / late.name).write_bytes(b"state")
    while (place / late.name).exists():
        await asyncio.sleep(0)
    async with store.saving("a", tokens=1) as save:
        await save.commit((place / save.name).write_bytes(b"state"))
        assert await store.verify(save.snapshot), "it can be used until then"
    await store.settled()
    assert (store.can_save, store.report().reason) == (False, "there is no index")
    await store.close()
    assert set(place.glob("prefix-*")) == before

asyncio.run(main())
"""

INTERRUPTED = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
for number in range(1000):
    connection.execute("INSERT INTO prefixes VALUES (?, 'key', 1, 'x', 1, 1)", (f"name-{number}",))
os._exit(0)
"""
"""Leaves half a change in the index, which cannot be opened then without writing to it."""


@pytest.mark.parametrize("limit", [0, 4096])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_disk_too_full_to_open_the_index_is_no_reason_not_to_start(place: Path, earlier: bool, limit: int) -> None:
    async def before() -> None:
        async with opened(place) as store:
            await put(store, place, "before")

    async def after() -> None:
        async with opened(place) as store:
            assert (await get(store, "before") is not None) == earlier
            assert store.report().entries == len(saved(place)) == earlier

    if earlier:
        run(before())
        subprocess.run([sys.executable, "-c", INTERRUPTED, place / INDEX_NAME], check=True)
    argv = [sys.executable, "-c", OPENED_FULL, place, str(limit)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stderr.splitlines()
    assert first.startswith("States are not saved, and those saved earlier are not used: the index of saved states ca")
    assert second == "States are not saved for 60 s: there is no index."
    assert str(place) not in done.stderr
    run(after())


READ_FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from jev_local.engine.snapshots import SnapshotStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))

async def main():
    store = SnapshotStore(Path(sys.argv[1]), budget=1000)
    await store.open()
    async with store.holding("before") as snapshot:
        assert await store.verify(snapshot)
    await store.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("limit", [0, 4096])
def test_a_good_index_is_used_on_a_full_disk(place: Path, limit: int) -> None:
    async def before() -> None:
        async with opened(place) as store:
            await put(store, place, "before")

    async def after() -> None:
        async with opened(place) as store:
            assert await get(store, "before") is not None

    run(before())
    argv = [sys.executable, "-c", READ_FULL, place, str(limit)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run(after())
