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
    with pytest.raises(CannotStart, match=rf"no room to unpack a.tar.gz: {tmp_path} has 0 MB free"):
        unpack([archive], [pinned()], tmp_path / "b1")
    monkeypatch.setattr("jev_local.launch.unpacked.LARGEST", 1)
    with pytest.raises(CannotStart, match="which no build of llama-server does"):
        unpack([archive], [pinned()], tmp_path / "b1")
    assert not (tmp_path / "b1").exists()


def test_a_folder_without_its_record_counts_as_none(tmp_path: Path, archive: Path) -> None:
    unpack([archive], [pinned()], tmp_path / "b1")
    (tmp_path / "b1" / "jev-runtime.json").write_text("{")
    assert not is_unpacked(tmp_path / "b1", [pinned()])
    unpack([archive], [pinned()], tmp_path / "b1")
    (tmp_path / "b1" / "llama-server").unlink()
    assert not is_unpacked(tmp_path / "b1", [pinned()])
    assert not is_unpacked(tmp_path / "absent", [pinned()])
