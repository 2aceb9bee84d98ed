"""What is watched changes while it is looked at; and what is told of it: bytes, speed, and the time left."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from jev_local.launch import progress
from jev_local.launch.progress import Meter, Ticking, Waiting, bytes_in, say


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


MB = 1_000_000


def lines(
    capfd: pytest.CaptureFixture[str], total: int | None, steps: Iterable[tuple[float, int, int | None]]
) -> list[str]:
    """What a pipe is told: at each time so many bytes, of so many if that is known only then."""
    times = [0.0]
    with Meter("  from here", total, clock=lambda: times[-1]) as meter:
        for now, done, late in steps:
            times.append(now)
            meter.at(done, late)
    return capfd.readouterr().err.splitlines()


def test_a_pipe_gets_a_plain_line_now_and_then(capfd: pytest.CaptureFixture[str]) -> None:
    steps = [(0.0, 0, None), (0.5, 2 * MB, None), (2.0, 10 * MB, None), (3.0, 15 * MB, None), (12.0, 65 * MB, None)]
    assert lines(capfd, 100 * MB, steps) == [
        "  from here: 10 of 100 MB, 5.0 MB/s, 18 s left",
        "  from here: 65 of 100 MB, 5.5 MB/s, 6 s left",
    ]


def test_what_an_earlier_run_left_is_not_speed(capfd: pytest.CaptureFixture[str]) -> None:
    steps = [(0.0, 300 * MB, None), (2.0, 310 * MB, None)]
    assert lines(capfd, 1117 * MB, steps) == ["  from here: 310 of 1117 MB, 5.0 MB/s, 161 s left"]


def test_starting_again_and_standing_still_have_no_speed(capfd: pytest.CaptureFixture[str]) -> None:
    steps = [(0.0, 300 * MB, None), (1.0, 10 * MB, None), (12.0, 10 * MB, None), (22.0, 20 * MB, None)]
    assert lines(capfd, 400 * MB, steps) == [
        "  from here: 10 of 400 MB",
        "  from here: 10 of 400 MB",
        "  from here: 20 of 400 MB, 1.0 MB/s, 380 s left",
    ]
    again = [(0.0, 300 * MB, None), (0.5, 10 * MB, None), (2.5, 310 * MB, None)]
    assert lines(capfd, 400 * MB, again) == ["  from here: 310 of 400 MB, 150.0 MB/s, 1 s left"]


def test_without_a_total_nothing_is_said_of_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    steps = [(0.0, 0, None), (2.0, 10 * MB, None), (12.0, 30 * MB, 50 * MB)]
    assert lines(capfd, None, steps) == [
        "  from here: 10 MB, 5.0 MB/s",
        "  from here: 30 of 50 MB, 2.0 MB/s, 10 s left",
    ]


@pytest.mark.parametrize("stream", [None, "closed"])
def test_without_a_stderr_all_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: str | None) -> None:
    monkeypatch.setattr(progress, "QUIET", 0.0)
    output = None
    if stream is not None:
        output = (tmp_path / "err").open("w")
        output.close()
    monkeypatch.setattr(sys, "stderr", output)
    with Meter("  from here", 10) as meter, Waiting("Waiting") as waiting, Ticking("For it"):
        meter.at(5)
        waiting.tick()


def test_what_cannot_be_shown_is_written_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for encoding, shown in (("ascii", b"\\xfc\\u65e5 x \\udcff\n"), ("utf-8", "ü日 x ".encode() + b"\\udcff\n")):
        with (tmp_path / "out").open("w", encoding=encoding) as output:
            monkeypatch.setattr(sys, "stdout", output)
            say("ü日 x \udcff")
        assert (tmp_path / "out").read_bytes() == shown


def test_nothing_that_is_said_steers_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    say("/models/\x1b[31m赤\u3000い\x07.gguf\tis here\nnext\x9b")
    assert capfd.readouterr().out == "/models/?[31m赤\u3000い?.gguf\tis here\nnext?\n"
