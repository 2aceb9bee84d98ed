"""Where the sources of the image-cache build come from: a stand-in for GitHub, archives of every kind, trees."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from image_cache import archives, downloads, sources
from image_cache.sources import Shelf
from jev_local.launch import transfer
from jev_local.launch.errors import CannotStart
from patch_vision_cache import Patch, Refused, sha256
from standins import StandIn, stand_in

CONTENT = bytes(range(256)) * 4096
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PATCH = Patch(
    "tools/main.cpp", sha256(b"int main;\n"), "0" * 64, (), "tools/cache.h", b"", {"tools/m.h": sha256(b"m\n")}
)
TREE = {name: f"{name}\n".encode() for name in sources.NEEDED} | {"tools/main.cpp": b"int main;\n", "tools/m.h": b"m\n"}
FOLDERS = {"cmake", "common", "ggml", "include", "licenses", "scripts", "src", "tools", "vendor"}
TREE = {(f"{name}/file" if name in FOLDERS else name): content for name, content in TREE.items()}


PATH = "/archive/b1.tar.gz"


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """It has one archive, which is packed on demand: no ranges, and no length."""
    monkeypatch.setattr(transfer, "PAUSE", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with stand_in({PATH: CONTENT}) as state:
        state.serves_ranges, state.length = False, "chunked"
        yield state


def fetch(github: StandIn, folder: Path) -> Path:
    pin = {"url": github.url(PATH), "sha256": DIGEST}
    return downloads.fetched(pin, folder, what="the sources", otherwise="name a tree with --source")


def test_a_download_is_checked_and_made_once(github: StandIn, tmp_path: Path) -> None:
    assert fetch(github, tmp_path).read_bytes() == CONTENT
    assert fetch(github, tmp_path).name == "b1.tar.gz"
    assert github.ranges == [""]


def test_a_cut_connection_begins_again(github: StandIn, tmp_path: Path) -> None:
    github.cuts = [1000, 5000]
    assert fetch(github, tmp_path).read_bytes() == CONTENT
    assert github.ranges == ["", "bytes=1000-", "bytes=5000-"]


def test_the_wrong_content_is_set_aside(github: StandIn, tmp_path: Path) -> None:
    github.files[PATH] = b"something else"
    with pytest.raises(CannotStart, match="instead of") as failure:
        fetch(github, tmp_path)
    assert hashlib.sha256(b"something else").hexdigest() in failure.value.message
    assert (tmp_path / "b1.tar.gz.wrong").read_bytes() == b"something else"
    github.files[PATH] = CONTENT
    assert fetch(github, tmp_path).read_bytes() == CONTENT


def test_a_file_put_there_by_hand_counts_if_it_is_the_right_one(github: StandIn, tmp_path: Path) -> None:
    (tmp_path / "b1.tar.gz").write_bytes(CONTENT)
    assert fetch(github, tmp_path).read_bytes() == CONTENT
    assert github.asked == []
    (tmp_path / "b1.tar.gz").write_bytes(b"damaged")
    with pytest.raises(CannotStart, match="set aside"):
        fetch(github, tmp_path)
    assert fetch(github, tmp_path).read_bytes() == CONTENT
    assert github.ranges == [""]


@pytest.mark.parametrize(("statuses", "asked"), [([404], 1), ([503] * 3, 3)])
def test_a_refusal_says_what_else_can_be_done(github: StandIn, tmp_path: Path, statuses: list[int], asked: int) -> None:
    github.statuses = list(statuses)
    with pytest.raises(CannotStart, match=rf"the sources .*answers {statuses[0]}.* or name a tree with --source"):
        fetch(github, tmp_path)
    assert len(github.gets) == asked


def test_no_network_says_what_else_can_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAUSE", 0.0)
    pin = {"url": "http://127.0.0.1:1/b1.tar.gz", "sha256": DIGEST}
    with pytest.raises(CannotStart, match=r"127\.0\.0\.1 cannot be reached.* or name a tree with --source"):
        downloads.fetched(pin, tmp_path, what="the sources", otherwise="name a tree with --source")


def entry(name: str, content: bytes = b"", **others: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for attribute, value in others.items():
        setattr(info, attribute, value)
    return info, content


def pack(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return path


def packed_tree(path: Path, *more: tuple[tarfile.TarInfo, bytes], top: str = "llama.cpp-b1/") -> Path:
    files = [entry(top + name, content, mtime=1_000_000, mode=0o644) for name, content in TREE.items()]
    return pack(path, *files, *more)


def unpack(archive: Path, target: Path) -> None:
    archives.unpack_tree(archive, target, landmark=PATCH.file, wanted=sources.NEEDED)


@pytest.mark.parametrize("top", ["", "llama.cpp-b1/", "./a/package-1/llama.cpp/"])
def test_unpacks_what_is_needed_of_the_tree_wherever_it_is(tmp_path: Path, top: str) -> None:
    archive = packed_tree(tmp_path / "a.tar.gz", entry(f"{top}models/huge.gguf", b"not needed"), top=top)
    unpack(archive, tmp_path / "tree")
    found = {
        path.relative_to(tmp_path / "tree").as_posix(): path.read_bytes()
        for path in (tmp_path / "tree").rglob("*")
        if path.is_file()
    }
    assert found == TREE
    assert (tmp_path / "tree" / "LICENSE").stat().st_mtime == 1_000_000


@pytest.mark.parametrize(
    ("hostile", "says"),
    [
        (entry("../../outside", b"x"), "outside the folder"),
        (entry("llama.cpp-b1/../../outside", b"x"), "outside the folder"),
        (entry("/outside", b"x"), "outside the folder"),
        (entry("llama.cpp-b1/src/link", type=tarfile.SYMTYPE, linkname="/etc"), "is a link"),
        (entry("llama.cpp-b1/src/link", type=tarfile.SYMTYPE, linkname="../../.."), "is a link"),
        (entry("llama.cpp-b1/src/link", type=tarfile.LNKTYPE, linkname="llama.cpp-b1/LICENSE"), "is a link"),
        (entry("llama.cpp-b1/src/pipe", type=tarfile.FIFOTYPE), "a device or a pipe"),
        (entry("other/tools/main.cpp", b"x"), "holds 2 llama.cpp source trees"),
    ],
)
def test_a_hostile_archive_is_refused(tmp_path: Path, hostile: tuple[tarfile.TarInfo, bytes], says: str) -> None:
    inner = tmp_path / "in" / "here"
    inner.mkdir(parents=True)
    archive = packed_tree(tmp_path / "a.tar.gz", hostile)
    with pytest.raises(CannotStart, match=says):
        unpack(archive, inner / "tree")
    assert not list(tmp_path.rglob("outside"))
    assert not Path("/outside").exists()


@pytest.mark.parametrize("content", [b"", b"no archive", CONTENT])
def test_a_damaged_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(CannotStart, match=r"is damaged, or not a \.tar\.gz|holds 0 llama.cpp source trees"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "tree")


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    archive = packed_tree(tmp_path / "a.tar.gz", entry("llama.cpp-b1/src/more", CONTENT))
    archive.write_bytes(archive.read_bytes()[:-2000])
    with pytest.raises(CannotStart, match="is damaged"):
        unpack(archive, tmp_path / "tree")


def test_one_file_is_taken_out_also_behind_a_link(tmp_path: Path) -> None:
    link = entry("b1/libx.so", type=tarfile.SYMTYPE, linkname="libx.so.1")
    archive = pack(tmp_path / "a.tar.gz", entry("b1/libx.so.1", b"ELF"), link)
    assert archives.copy_member(archive, "libx.so", tmp_path / "out") == ["libx.so.1", "libx.so"]
    assert (tmp_path / "out").read_bytes() == b"ELF"
    with pytest.raises(CannotStart, match=r"holds 0 files called liby\.so"):
        archives.copy_member(archive, "liby.so", tmp_path / "out")
    outward = pack(tmp_path / "b.tar.gz", entry("libx.so", type=tarfile.SYMTYPE, linkname="/etc/passwd"))
    with pytest.raises(CannotStart, match="is not a file"):
        archives.copy_member(outward, "libx.so", tmp_path / "out")


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A tree of a user's, with a build of theirs in it."""
    tree = tmp_path / "llama.cpp"
    for name, content in {**TREE, "build/bin/theirs": b"x", "src/build/theirs": b"x"}.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
    return tree


@pytest.fixture
def shelf(tmp_path: Path, github: StandIn) -> Shelf:
    archive = packed_tree(tmp_path / "official.tar.gz")
    github.files[PATH] = archive.read_bytes()
    pins = {
        "source": {"build": 11042, "url": github.url(PATH), "sha256": downloads.sha256(archive)},
        "ggml_trees": {"11046": sha256(f"ggml/file\0{sha256(b'ggml' + chr(10).encode())}\n".encode())},
    }
    folder = tmp_path / "build"
    folder.mkdir()
    return Shelf(folder, pins)


def test_the_official_archive_is_fetched_and_known(shelf: Shelf) -> None:
    source = shelf.prepare(None, PATCH)
    assert (source.build, source.sha256) == (11042, shelf.pins["source"]["sha256"])
    assert (shelf.tree / "tools" / "main.cpp").read_bytes() == b"int main;\n"


def test_the_same_archive_by_name_is_known_too(shelf: Shelf, tmp_path: Path, github: StandIn) -> None:
    assert shelf.prepare(tmp_path / "official.tar.gz", PATCH).build == 11042
    assert github.asked == []


def test_a_tree_is_copied_and_not_touched(shelf: Shelf, named: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in named.rglob("*") if path.is_file()}
    source = shelf.prepare(named, PATCH)
    assert source.build == 11046
    (shelf.tree / "tools" / "main.cpp").write_text("patched")
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before
    copied = {path.relative_to(shelf.tree).as_posix() for path in shelf.tree.rglob("*") if path.is_file()}
    assert copied == set(TREE)


def test_what_has_not_changed_is_not_copied_again(shelf: Shelf, named: Path) -> None:
    shelf.prepare(named, PATCH)
    (shelf.tree / "mark").touch()
    shelf.prepare(named, PATCH)
    assert (shelf.tree / "mark").exists()


def test_a_copy_that_somebody_changed_is_replaced(shelf: Shelf, named: Path) -> None:
    shelf.prepare(named, PATCH)
    (shelf.tree / "tools" / "main.cpp").write_text("int tried;\n")
    shelf.prepare(named, PATCH)
    assert (shelf.tree / "tools" / "main.cpp").read_bytes() == b"int main;\n"


def test_a_changed_source_is_copied_and_compiled_afresh(shelf: Shelf, named: Path) -> None:
    first = shelf.prepare(named, PATCH)
    (shelf.folder / "build-cpu").mkdir()
    (named / "src" / "file").write_text("newer\n")
    second = shelf.prepare(named, PATCH)
    assert (shelf.tree / "src" / "file").read_text() == "newer\n"
    assert first.sha256 != second.sha256
    assert not (shelf.folder / "build-cpu").exists()


def test_an_unknown_ggml_has_no_number(shelf: Shelf, named: Path) -> None:
    (named / "ggml" / "file").write_text("another\n")
    assert shelf.prepare(named, PATCH).build is None


def test_a_tree_with_another_image_code_is_refused_and_the_former_stays(shelf: Shelf, named: Path) -> None:
    shelf.prepare(named, PATCH)
    (named / "tools" / "m.h").write_text("another\n")
    with pytest.raises(Refused, match=r"m\.h has the SHA-256"):
        shelf.prepare(named, PATCH)
    assert (shelf.tree / "tools" / "m.h").read_bytes() == b"m\n"


def test_what_is_no_source_is_refused(shelf: Shelf, named: Path, tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="no such file or folder"):
        shelf.prepare(tmp_path / "nowhere", PATCH)
    with pytest.raises(CannotStart, match="lies in the folder of the build itself"):
        shelf.prepare(shelf.folder, PATCH)
    (named / "LICENSE").unlink()
    with pytest.raises(CannotStart, match=r"not an unpacked llama\.cpp tree: it has no LICENSE"):
        shelf.prepare(named, PATCH)
