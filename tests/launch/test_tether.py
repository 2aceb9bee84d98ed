"""Children never outlive their parent: with the kernel's help, and with a guard where the kernel has none."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jev_local.launch import process
from jev_local.launch.process import Child, stop
from jev_local.launch.tether import tethered
from programs import is_alive

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]
BOTH_WAYS = pytest.mark.parametrize("platform", ["linux", "elsewhere"])


def until(true: object, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def says_up(log: Path) -> bool:
    return log.exists() and "up" in log.read_text()


@BOTH_WAYS
def test_stop_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(process.sys, "platform", platform)
    child = Child("sleeper", SLEEP, log=tmp_path / "log")
    until(lambda: says_up(tmp_path / "log"))
    begun = time.monotonic()
    stop([child])
    assert time.monotonic() - begun < 1.0
    assert child.ending() == "ended by SIGTERM"
    stop([child])  # a second time is no fault


@BOTH_WAYS
def test_who_does_not_listen_is_killed_after_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr(process.sys, "platform", platform)
    child = Child("stubborn", STUBBORN, log=tmp_path / "log")
    until(lambda: says_up(tmp_path / "log"))
    stop([child], grace=0.3)
    assert child.ending() == "ended by SIGKILL"


PARENT = """
import sys, time
from pathlib import Path
from jev_local.launch import process
process.sys.platform = sys.argv[1]
child = process.Child("grandchild", [sys.executable, "-c", sys.argv[3]], log=Path(sys.argv[2]))
time.sleep(60)
"""
GRANDCHILD = "import os, time; print('up', os.getpid(), flush=True); time.sleep(60)"


@BOTH_WAYS
def test_kill_9_of_the_parent_ends_the_child(tmp_path: Path, platform: str) -> None:
    log = tmp_path / "log"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, platform, str(log), GRANDCHILD])
    try:
        until(lambda: says_up(log))
        pid = int(log.read_text().split()[1])
        assert is_alive(pid)
    finally:
        parent.kill()
        parent.wait()
    until(lambda: not is_alive(pid), 2.0)


def test_a_parent_that_died_before_the_kernel_was_told_is_noticed() -> None:
    argv = tethered(["echo", "started"], how="kernel")
    argv[argv.index(str(os.getpid()))] = "1"
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_signals_a_script_switched_off_are_on_again_in_the_child(tmp_path: Path) -> None:
    """`cmd &` in a shell script ignores SIGINT, and ignored signals are inherited."""
    argv = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = Child("asker", argv, log=tmp_path / "log")
        assert child.wait(10)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "log").read_text() == "True\n"


@BOTH_WAYS
def test_a_program_that_cannot_be_started_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr(process.sys, "platform", platform)
    child = Child("nobody", [str(tmp_path / "absent")], log=tmp_path / "log")
    assert child.wait(10)
    assert child.poll() == 127
    assert "No such file" in child.last_lines()
    stop([child])


def test_the_end_of_the_log_is_shown_and_the_log_does_not_grow_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOG_LIMIT", 1000)
    monkeypatch.setattr(process, "LOG_KEPT", 100)
    child = Child("talker", [sys.executable, "-c", "for n in range(500): print('line', n)"], log=tmp_path / "log")
    assert child.wait(10)
    child.trim_log()
    assert (tmp_path / "log").stat().st_size == 100
    assert child.last_lines(2) == "\n    line 498\n    line 499"
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0
    silent = Child("silent", ["true"], log=tmp_path / "log")
    assert silent.wait(10)
    assert silent.last_lines() == "", "what an earlier run wrote does not explain this one"
