"""Archives of a build, unpacked whole or not at all."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from archive_files import pack
from jev_local.launch.errors import CannotStart
from jev_local.launch.pins import Pinned
from jev_local.launch.unpacked import is_unpacked, unpack


def pinned(name: str = "a.tar.gz", sha256: str = "a" * 64) -> Pinned:
    return Pinned(what="a build", file=name, sha256=sha256, sources=())


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return pack(
        tmp_path / "a.tar.gz",
        ("llama-b1/llama-server", b"program"),
        ("llama-b1/libllama.so.0", b"library"),
        ("llama-b1/libllama.so", "libllama.so.0"),
        ("LICENSE", b"beside it, not with it"),
    )


@pytest.mark.parametrize("top", ["", "llama-b1/", "./build/bin/"])
def test_the_program_and_what_lies_beside_it_come_to_the_top(tmp_path: Path, top: str) -> None:
    archive = pack(tmp_path / "a.tar.gz", (f"{top}llama-server", b"program"), (f"{top}libx.so", b"library"))
    folder = tmp_path / "out" / "b1"
    unpack([archive], [pinned()], folder)
    assert (folder / "llama-server").read_bytes() == b"program"
    assert os.access(folder / "llama-server", os.X_OK)
    assert (folder / "libx.so").read_bytes() == b"library"
    assert is_unpacked(folder, [pinned()])
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b1"], "nothing of the work is left"


def test_links_hold_and_the_libraries_of_a_second_archive_join(tmp_path: Path, archive: Path) -> None:
    libraries = pack(
        tmp_path / "c.tar.gz", ("cudart/lib/libcudart.so.12", b"cuda"), ("cudart/lib/libcudart.so", "libcudart.so.12")
    )
    both = [pinned(), pinned("c.tar.gz", "c" * 64)]
    unpack([archive, libraries], both, tmp_path / "b1")
    assert (tmp_path / "b1" / "libllama.so").read_bytes() == b"library"
    assert (tmp_path / "b1" / "libcudart.so").read_bytes() == b"cuda"
    assert not (tmp_path / "b1" / "LICENSE").exists()
    assert is_unpacked(tmp_path / "b1", both)
    assert not is_unpacked(tmp_path / "b1", both[:1]), "another set of archives is another build"


@pytest.mark.parametrize(
    ("name", "content", "attributes"),
    [
        ("../../evil", b"x", {}),
        ("llama-b1/evil", "/etc/passwd", {}),
        ("llama-b1/evil", "../../../evil", {}),
        ("llama-b1/evil", "../llama-b1/llama-server", {}),
        ("llama-b1/evil", "sub/llama-server", {}),
        ("llama-b1/evil", b"", {"type": tarfile.LNKTYPE, "linkname": "other/llama-server"}),
        ("llama-b1/" + "d/" * 9 + "evil", b"x", {}),
        ("llama-b1/evil", b"", {"type": tarfile.FIFOTYPE}),
        ("llama-b1/evil", b"", {"type": tarfile.CHRTYPE}),
    ],
)
def test_a_hostile_archive_is_refused_and_the_former_build_stays(
    tmp_path: Path, archive: Path, name: str, content: str | bytes, attributes: dict[str, object]
) -> None:
    folder = tmp_path / "in" / "b1"
    unpack([archive], [pinned()], folder)
    hostile = pack(tmp_path / "h.tar.gz", ("llama-b1/llama-server", b"bad"), (name, content), **attributes)
    with pytest.raises(CannotStart, match="damaged, or not"):
        unpack([hostile], [pinned(sha256="b" * 64)], folder)
    assert (folder / "llama-server").read_bytes() == b"program"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "h.tar.gz", "in"]
    assert is_unpacked(folder, [pinned()])


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x1f\x8b" + b"\0" * 40])
def test_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(CannotStart, match=r"damaged, or not a \.tar\.gz"):
        unpack([tmp_path / "a.tar.gz"], [pinned()], tmp_path / "b1")


def test_a_cut_archive(tmp_path: Path) -> None:
    whole = pack(tmp_path / "w.tar.gz", ("llama-server", os.urandom(100_000)))
    (tmp_path / "a.tar.gz").write_bytes(whole.read_bytes()[:60_000])
    with pytest.raises(CannotStart, match="damaged"):
        unpack([tmp_path / "a.tar.gz"], [pinned()], tmp_path / "b1")
    assert not (tmp_path / "b1").exists()


@pytest.mark.parametrize("count", [0, 2])
def test_one_program_it_has_to_be(tmp_path: Path, count: int) -> None:
    archive = pack(tmp_path / "a.tar.gz", *((f"{number}/llama-server", b"x") for number in range(count)))
    with pytest.raises(CannotStart, match=f"holds {count} programs called llama-server"):
        unpack([archive], [pinned()], tmp_path / "b1")


def test_more_than_the_disk_has_is_refused_before_it_is_written(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=5))
    with pytest.raises(
        CannotStart,
        match=rf"no room to unpack a\.tar\.gz: after 0 MB of it 268 MB more are needed, and {tmp_path} has 0",
    ):
        unpack([archive], [pinned()], tmp_path / "b1")
    monkeypatch.setattr("jev_local.launch.unpacked.LARGEST", 1)
    with pytest.raises(CannotStart, match="which no build of llama-server does"):
        unpack([archive], [pinned()], tmp_path / "b1")
    assert not (tmp_path / "b1").exists()


def test_a_time_that_no_file_can_have_is_not_taken(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.tar.gz", ("llama-server", b"x"), mtime=-(2**70))
    unpack([archive], [pinned()], tmp_path / "b1")
    assert is_unpacked(tmp_path / "b1", [pinned()])


def test_more_files_than_any_build_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jev_local.launch.unpacked.MOST_ENTRIES", 3)
    many = pack(tmp_path / "a.tar.gz", *((f"l/{number}", b"x") for number in range(4)))
    with pytest.raises(CannotStart, match="holds more than 3 files"):
        unpack([many], [pinned()], tmp_path / "b1")


def test_what_lies_deeper_does_not_take_the_place_of_the_program(tmp_path: Path) -> None:
    archive = pack(
        tmp_path / "a.tar.gz",
        ("l/sub/libx.so", b"another"),
        ("l/libx.so", b"library"),
        ("l/sub/llama-server", "absent"),
        ("l/llama-server", b"program"),
    )
    more = pack(tmp_path / "m.tar.gz", ("x/llama-server", b"not this"), ("x/jev-runtime.json", b"{}"), ("x/liby", b"y"))
    unpack([archive, more], [pinned(), pinned("m")], tmp_path / "b1")
    found = {path.name: path.read_bytes() for path in (tmp_path / "b1").iterdir() if path.suffix != ".json"}
    assert found == {"llama-server": b"program", "libx.so": b"library", "liby": b"y"}
    assert is_unpacked(tmp_path / "b1", [pinned(), pinned("m")])


def test_a_record_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "b1.new").symlink_to(victim)
    archive = pack(tmp_path / "a.tar.gz", ("l/llama-server", b"x"), ("l/jev-runtime.json", "llama-server"))
    unpack([archive], [pinned()], tmp_path / "b1")
    assert victim.read_text() == "mine"
    assert (tmp_path / "b1" / "llama-server").read_bytes() == b"x"


@pytest.mark.parametrize("harm", ["emptied", "gone", "linked"])
def test_a_build_that_was_damaged_since_counts_as_none(tmp_path: Path, archive: Path, harm: str) -> None:
    unpack([archive], [pinned()], tmp_path / "b1")
    library = tmp_path / "b1" / "libllama.so.0"
    library.unlink()
    if harm == "emptied":
        library.touch()
    elif harm == "linked":
        library.symlink_to("llama-server")
    assert not is_unpacked(tmp_path / "b1", [pinned()])


def test_a_folder_without_its_record_counts_as_none(tmp_path: Path, archive: Path) -> None:
    unpack([archive], [pinned()], tmp_path / "b1")
    for content in ("{", "[" * 100_000, "null"):
        (tmp_path / "b1" / "jev-runtime.json").write_text(content)
    assert not is_unpacked(tmp_path / "b1", [pinned()])
    unpack([archive], [pinned()], tmp_path / "b1")
    (tmp_path / "b1" / "llama-server").unlink()
    assert not is_unpacked(tmp_path / "b1", [pinned()])
    assert not is_unpacked(tmp_path / "absent", [pinned()])
