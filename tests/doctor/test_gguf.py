"""The reader of GGUF headers: right about real files, and never more than one line about broken ones."""

from __future__ import annotations

import contextlib
import os
import struct
import tracemalloc
from pathlib import Path

import gguf as reference
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiny_lfm2
from jev_local.doctor.gguf import LONGEST_ARRAY, LONGEST_TEXT, MOST_KEYS, MOST_TEXTS, BadGguf, PassedOver, read
from jev_local.doctor.shape import model_shape


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(*members: bytes, keys: int | None = None, version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, 0, len(members) if keys is None else keys) + b"".join(members)


def array(kind: int, length: int, content: bytes) -> bytes:
    return text("a") + struct.pack("<IIQ", 9, kind, length) + content


def found(tmp_path: Path, content: bytes) -> dict[str, object]:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return dict(read(path))


def test_it_reads_what_the_reference_reads(tiny_model: Path) -> None:
    fields = {
        name: field.contents()
        for name, field in reference.GGUFReader(tiny_model).fields.items()
        if not name.startswith("GGUF.")
    }
    ours = read(tiny_model)
    assert list(ours) == list(fields)
    for name, value in ours.items():
        theirs = fields[name]
        if isinstance(value, PassedOver):
            assert value.length == len(theirs)
        else:
            assert value == (tuple(theirs) if isinstance(theirs, list) else theirs)
    assert ours["lfm2.attention.head_count_kv"] == tiny_lfm2.KV_HEADS


def test_every_kind_of_number(tmp_path: Path) -> None:
    kinds = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
    members = [text(f"k{kind}") + struct.pack("<I", kind) + struct.pack(code, 1) for kind, code in kinds.items()]
    assert found(tmp_path, header(*members)) == {f"k{kind}": 1 for kind in kinds}


def test_what_is_long_is_passed_over(tmp_path: Path) -> None:
    numbers = array(4, LONGEST_ARRAY + 1, bytes(4 * (LONGEST_ARRAY + 1)))
    long = text("long") + struct.pack("<I", 8) + text("x" * (LONGEST_TEXT + 1))
    short = text("short") + struct.pack("<I", 8) + text("日本語")
    nested = text("nested") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 8, 2) + text("a") + text("b")
    assert found(tmp_path, header(numbers, long, short, nested)) == {
        "a": PassedOver(LONGEST_ARRAY + 1),
        "long": PassedOver(LONGEST_TEXT + 1),
        "short": "日本語",
        "nested": PassedOver(1),
    }


def test_a_large_vocabulary_takes_no_memory(tmp_path: Path) -> None:
    content = header(array(8, 200_000, text("token") * 200_000))
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        assert read(path) == {"a": PassedOver(200_000)}
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1_500_000


BROKEN = {
    "empty": b"",
    "another file": b"PK\3\4 and more",
    "only the magic": b"GGUF",
    "an unknown version": header(version=99),
    "the other byte order": struct.pack(">4sIQQ", b"GGUF", 3, 0, 0),
    "too many keys": header(keys=MOST_KEYS + 1),
    "more keys than there are": header(keys=3),
    "a key as long as anything": header(struct.pack("<Q", 2**63)),
    "a key that is no UTF-8": header(struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<II", 4, 1)),
    "a text longer than the file": header(text("k") + struct.pack("<IQ", 8, 2**40)),
    "an array longer than the file": header(text("k") + struct.pack("<IIQ", 9, 4, 2**62)),
    "an array of texts longer than the file": header(text("k") + struct.pack("<IIQ", 9, 8, 2**62)),
    "more texts than any model has": header(array(8, MOST_TEXTS + 1, bytes(8))),
    "arrays in arrays in arrays": header(text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50),
    "an unknown kind": header(text("k") + struct.pack("<II", 77, 0)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_gets_one_line(case: str, tmp_path: Path) -> None:
    with pytest.raises(BadGguf) as error:
        found(tmp_path, BROKEN[case])
    assert str(error.value)
    assert "\n" not in str(error.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(at=st.integers(0, 3000), value=st.integers(0, 255), cut=st.integers(0, 5000))
def test_damage_anywhere_raises_nothing_else(at: int, value: int, cut: int, tiny_model: Path, tmp_path: Path) -> None:
    with tiny_model.open("rb") as file:
        content = bytearray(file.read(8000))
    content[at] = value
    (tmp_path / "damaged.gguf").write_bytes(content[: len(content) - cut])
    with contextlib.suppress(BadGguf):
        model_shape(read(tmp_path / "damaged.gguf"))


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        with pytest.raises(BadGguf):
            read(path)
