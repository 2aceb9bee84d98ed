"""Locks between real processes. Every lock file lies in a cache folder of the test's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jev_local.engine import locks
from jev_local.engine.locks import Hold, LockRefused, Occupied, backend_lock, canonical, directory_lock

URL = "http://127.0.0.1:8097"

HOLDER = """
import sys
from pathlib import Path
from jev_local.engine.locks import backend_lock, directory_lock
folder = sys.argv[1]
holds = [backend_lock(sys.argv[2], {"XDG_CACHE_HOME": folder}), directory_lock(Path(folder))]
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds both locks."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, folder, URL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def backend(folder: Path, url: str = URL) -> Hold:
    return backend_lock(url, {"XDG_CACHE_HOME": str(folder)})


def lock_file(folder: Path) -> Path:
    (found,) = (folder / "jev-local" / "locks").iterdir()
    return found


def test_a_second_process_is_told_what_to_do(tmp_path: Path) -> None:
    with holder(tmp_path):
        with pytest.raises(Occupied) as occupied:
            backend(tmp_path, "http://localhost:8097/")
        assert occupied.value.message == (
            "Another API serves the inference server at http://localhost:8097/ already. Stop it, or give each API an "
            "inference server of its own (--backend-url)."
        )
        with pytest.raises(Occupied, match=r"--slot-cache-dir") as occupied:
            directory_lock(tmp_path)
        assert str(tmp_path) not in occupied.value.message


def test_locks_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        for hold in (backend(tmp_path), directory_lock(tmp_path)):
            hold.release()


def test_what_a_killed_process_started_does_not_inherit_them(tmp_path: Path) -> None:
    hold = directory_lock(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        hold.release()
        directory_lock(tmp_path).release()
        child.kill()


@pytest.mark.parametrize("take", [backend, directory_lock])
def test_the_same_process_does_not_get_one_twice(tmp_path: Path, take: Callable[[Path], Hold]) -> None:
    hold = take(tmp_path)
    with pytest.raises(Occupied):
        take(tmp_path)
    hold.release()
    hold.release()
    take(tmp_path).release()


def test_another_server_is_another_lock(tmp_path: Path) -> None:
    holds = [backend(tmp_path), backend(tmp_path, "http://127.0.0.1:8098"), backend(tmp_path, "http://gpu:8097")]
    for hold in holds:
        hold.release()


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8097",
        "HTTP://LocalHost:8097/",
        "http://localhost.:8097",
        "http://127.0.0.1:8097/",
        "http://127.8.9.1:8097",
        "http://[::1]:8097",
        "http://[0:0:0:0:0:0:0:1]:8097",
        "http://[::ffff:127.0.0.1]:8097",
        "http://0.0.0.0:8097",
        "http://[::]:8097",
    ],
)
def test_all_names_of_this_machine_are_one(url: str) -> None:
    assert canonical(url) == "http://localhost:8097"


def test_usual_ports_and_slashes_make_no_difference() -> None:
    assert canonical("http://GPU") == canonical("http://gpu:80/") == "http://gpu:80"
    assert canonical("https://gpu") == canonical("https://gpu:443") == "https://gpu:443"
    assert canonical("http://gpu/llama/") == canonical("http://gpu:80/llama") != canonical("http://gpu/LLAMA")
    assert canonical("http://[FD00::0:1]:1") == canonical("http://[fd00::1]:1") != canonical("http://[fd00::2]:1")


def test_the_folder_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for platform, environment, place in (
        ("linux", {"HOME": str(tmp_path / "a")}, tmp_path / "a" / ".cache"),
        ("linux", {"HOME": str(tmp_path / "b"), "XDG_CACHE_HOME": "relative"}, tmp_path / "b" / ".cache"),
        ("darwin", {"HOME": str(tmp_path / "c")}, tmp_path / "c" / "Library" / "Caches"),
        ("darwin", {"HOME": str(tmp_path / "c"), "XDG_CACHE_HOME": str(tmp_path / "d")}, tmp_path / "d"),
    ):
        monkeypatch.setattr(locks.sys, "platform", platform)
        backend_lock(URL, environment).release()
        assert (place / "jev-local" / "locks").stat().st_mode & 0o777 == 0o700
        assert lock_file(place).stat().st_mode & 0o777 == 0o600


def test_without_a_writable_cache_there_is_a_warning_and_no_lock(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    hold = backend(tmp_path / "file")
    hold.release()
    assert hold.lock is None
    assert "a second API for this server cannot be detected" in caplog.text
    assert str(tmp_path) not in caplog.text


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_not_followed(tmp_path: Path, there: bool) -> None:
    target = tmp_path / "target"
    if there:
        target.write_text("precious")
    backend(tmp_path).release()
    for name, take in ((lock_file(tmp_path), backend), (tmp_path / ".lock", directory_lock)):
        name.unlink(missing_ok=True)
        name.symlink_to(target)
        with pytest.raises(LockRefused, match="symbolic link"):
            take(tmp_path)
    assert target.exists() == there
    assert not there or target.read_text() == "precious"


def test_a_folder_that_cannot_be_locked_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(LockRefused, match="--slot-cache-dir"):
        directory_lock(tmp_path)
