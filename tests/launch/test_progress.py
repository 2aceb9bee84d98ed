"""What is watched changes while it is looked at."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from jev_local.launch.progress import bytes_in


def test_the_bytes_of_all_files_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"1" * 10)
    (tmp_path / "a" / "b" / "two").write_bytes(b"2" * 300)
    assert bytes_in(tmp_path) == 310
    assert bytes_in(tmp_path / "not there") == 0


def test_folders_that_come_and_go_meanwhile_are_no_error(tmp_path: Path) -> None:
    """pip unpacks into folders of its own and removes them; looking into one of those ended a download."""
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            for i in range(20):
                (tmp_path / f"unpack-{i}" / "deep").mkdir(parents=True)
            for i in range(20):
                shutil.rmtree(tmp_path / f"unpack-{i}")

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        assert {bytes_in(tmp_path) for _ in range(1000)} == {0}
    finally:
        done.set()
        other.join()
