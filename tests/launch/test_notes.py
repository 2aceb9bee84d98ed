"""Small files of ours: read whole or not at all, and never written through what lies in their place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jev_local.launch.notes import LARGEST, read_note, write_note


def test_a_note_is_read_as_it_was_written_and_is_ours_alone(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    before = os.umask(0)
    try:
        write_note(path, {"a": [1, "ü", None]})
    finally:
        os.umask(before)
    assert read_note(path) == {"a": [1, "ü", None]}
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["note.json"]


CONTENTS = {
    "no JSON": b"{",
    "deep": b"[" * (LARGEST - 1),
    "long": b" " * LARGEST + b"1",
    "a number of 5,000 digits": b"9" * 5000,
    "bytes": b"\xff\xfe\xfd",
    "nothing": b"",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
def test_what_is_no_small_note_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "note").write_bytes(content)
    with pytest.raises(ValueError):  # noqa: PT011  # in the words of who found it
        read_note(tmp_path / "note")


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "link to nothing", "hard link"])
def test_what_lies_in_its_place_is_neither_read_nor_written_through(tmp_path: Path, kind: str) -> None:
    path, precious = tmp_path / "note", tmp_path / "precious"
    precious.write_text("1")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "hard link":
        path.hardlink_to(precious)
    else:
        path.symlink_to(precious if kind == "link" else tmp_path / "absent")
    if kind != "hard link":
        with pytest.raises(ValueError, match="not a regular file"):
            read_note(path)
    if kind == "folder":
        with pytest.raises(IsADirectoryError):
            write_note(path, 2)
    else:
        write_note(path, 2)
        assert read_note(path) == 2
    assert precious.read_text() == "1"
    assert sorted(os.listdir(tmp_path)) == ["note", "precious"], "nothing of the work is left"


def test_an_absent_note_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_note(tmp_path / "note")
