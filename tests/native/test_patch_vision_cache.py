"""The patch on small trees with pins of their own, and on a real one where JEV_LLAMA_CPP names it.

JEV_LLAMA_CPP=~/llama.cpp-b11042 .venv/bin/python -m pytest tests/native/test_patch_vision_cache.py
"""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import patch_vision_cache
from patch_vision_cache import Edit, Patch, Refused, sha256, the_patch

SCRIPT = Path(patch_vision_cache.__file__)
BEFORE = "first\nanchor\nmiddle\n    second anchor\nlast\n"
AFTER = "first\nanchor\nmore\nmiddle\n    another thing\nlast\n"
HELPER = "what the edit relies on\n"

PATCH = Patch(
    file="tools/main.cpp",
    before=sha256(BEFORE.encode()),
    after=sha256(AFTER.encode()),
    edits=(Edit("anchor\nmiddle\n", "anchor\nmore\nmiddle\n"), Edit("    second anchor\n", "    another thing\n")),
    header="tools/cache.h",
    header_bytes=b"// a header\n",
    relied_on={"tools/helper.h": sha256(HELPER.encode())},
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "main.cpp").write_text(BEFORE)
    (tmp_path / "tools" / "helper.h").write_text(HELPER)
    return tmp_path


def contents(tree: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and its time: what was not written has both as before."""
    return {
        path.relative_to(tree).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in tree.rglob("*")
        if path.is_file()
    }


def test_patches_once_and_leaves_it_at_that(tree: Path) -> None:
    assert PATCH.apply(tree)
    assert (tree / "tools/main.cpp").read_text() == AFTER
    assert (tree / "tools/cache.h").read_bytes() == b"// a header\n"
    once = contents(tree)
    assert not PATCH.apply(tree)
    assert contents(tree) == once
    assert set(once) == {"tools/main.cpp", "tools/cache.h", "tools/helper.h"}


def test_can_be_taken_out_again(tree: Path) -> None:
    before = {name: content for name, (content, _) in contents(tree).items()}
    PATCH.apply(tree)
    assert PATCH.undo(tree)
    assert {name: content for name, (content, _) in contents(tree).items()} == before
    assert not PATCH.undo(tree)


def test_keeps_the_permissions(tree: Path) -> None:
    (tree / "tools/main.cpp").chmod(0o640)
    PATCH.apply(tree)
    assert (tree / "tools/main.cpp").stat().st_mode & 0o777 == 0o640


def test_goes_on_after_an_interruption_between_the_two_writes(tree: Path) -> None:
    (tree / "tools/cache.h").write_bytes(PATCH.header_bytes)
    assert PATCH.apply(tree)
    assert (tree / "tools/main.cpp").read_text() == AFTER


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tools/main.cpp", BEFORE + " ", "tools/main.cpp has the SHA-256"),
        ("tools/main.cpp", AFTER + " ", "tools/main.cpp has the SHA-256"),
        ("tools/main.cpp", BEFORE.replace("\n", "\r\n"), "tools/main.cpp has Windows line ends"),
        ("tools/main.cpp", AFTER, "has the patch and tools/cache.h is missing"),
        ("tools/helper.h", HELPER + "changed\n", "tools/helper.h has the SHA-256"),
        ("tools/helper.h", HELPER.replace("\n", "\r\n"), "tools/helper.h has Windows line ends"),
        ("tools/cache.h", "// of somebody else\n", "tools/cache.h is there already"),
    ],
)
def test_refuses_any_other_tree_and_writes_nothing(tree: Path, name: str, content: str, says: str) -> None:
    (tree / name).write_bytes(content.encode())
    before = contents(tree)
    with pytest.raises(Refused, match=says):
        PATCH.apply(tree)
    assert contents(tree) == before


@pytest.mark.parametrize("name", ["tools/main.cpp", "tools/helper.h"])
def test_refuses_a_tree_with_a_file_missing(tree: Path, name: str) -> None:
    (tree / name).unlink()
    with pytest.raises(Refused, match=f"has no {name}"):
        PATCH.apply(tree)


def test_refuses_a_patched_tree_with_another_header(tree: Path) -> None:
    PATCH.apply(tree)
    (tree / "tools/cache.h").write_text("// edited\n")
    with pytest.raises(Refused, match="another one"):
        PATCH.apply(tree)


@pytest.mark.parametrize("text", [BEFORE.replace("middle", "elsewhere"), BEFORE + "anchor\nmiddle\n"])
def test_refuses_an_anchor_that_is_not_there_exactly_once(tree: Path, text: str) -> None:
    (tree / "tools/main.cpp").write_text(text)
    unpinned = replace(PATCH, before=sha256(text.encode()))
    before = contents(tree)
    with pytest.raises(Refused, match=r"has [02] places that look like 'anchor', not one"):
        unpinned.apply(tree)
    assert contents(tree) == before


def test_refuses_a_result_that_is_not_the_pinned_one(tree: Path) -> None:
    before = contents(tree)
    with pytest.raises(Refused, match="after the edits has the SHA-256"):
        replace(PATCH, after="0" * 64).apply(tree)
    assert contents(tree) == before


def test_the_header_comes_first(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a tree interrupted in between would include what is not there."""
    written: list[str] = []
    monkeypatch.setattr(os, "replace", lambda _, target: written.append(Path(target).name))
    PATCH.apply(tree)
    assert written == ["cache.h", "main.cpp"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_the_program_tells_what_it_wants(tmp_path: Path) -> None:
    helped = run("--help")
    assert helped.returncode == 0
    assert "b11042" in helped.stdout
    assert "--undo" in helped.stdout
    refused = run(str(tmp_path))
    assert refused.returncode == 1
    assert "is it an unpacked llama.cpp tree?" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_every_file_that_is_relied_on_is_pinned_by_a_whole_digest() -> None:
    patch = the_patch()
    for digest in (patch.before, patch.after, *patch.relied_on.values()):
        assert len(bytes.fromhex(digest)) == 32
    assert patch.file not in patch.relied_on


@pytest.fixture
def real_tree(tmp_path: Path) -> Path:
    named = os.environ.get("JEV_LLAMA_CPP")
    if not named:
        pytest.skip("JEV_LLAMA_CPP names no unpacked llama.cpp tree of b11042")
    patch = the_patch()
    for name in (patch.file, *patch.relied_on):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(Path(named, name), tmp_path / name)
    return tmp_path


def test_the_real_tree_takes_the_patch_and_gives_it_back(real_tree: Path) -> None:
    original = contents(real_tree)
    first = run(str(real_tree))
    assert (first.returncode, first.stderr) == (0, "")
    assert "now has the image-embedding cache" in first.stdout
    patched = contents(real_tree)
    assert set(patched) - set(original) == {the_patch().header}
    again = run(str(real_tree))
    assert again.returncode == 0
    assert "already has" in again.stdout
    assert contents(real_tree) == patched
    assert run(str(real_tree), "--undo").returncode == 0
    assert {name: content for name, (content, _) in contents(real_tree).items()} == {
        name: content for name, (content, _) in original.items()
    }


@pytest.mark.parametrize("name", [the_patch().file, *the_patch().relied_on])
def test_one_stray_byte_in_the_real_tree_is_refused(real_tree: Path, name: str) -> None:
    with (real_tree / name).open("ab") as file:
        file.write(b" ")
    refused = run(str(real_tree))
    assert refused.returncode == 1
    assert name in refused.stderr
