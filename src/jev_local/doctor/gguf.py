"""The metadata of a GGUF file: its header alone, in a few reads. No weights, and no vocabulary.

The `gguf` package does more: it needs numpy, maps the whole file and reads every token of the vocabulary.
Numbers, short texts and short arrays are kept, everything longer is passed over. A length is checked against what is
left of the file before anything is done with it.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_KEYS = 10_000
LONGEST_KEY = 65_535
LONGEST_TEXT = 1024
LONGEST_ARRAY = 4096
MOST_TEXTS = 4_000_000
"""Texts passed over in all of a header: the largest vocabularies have half a million tokens and as many merges."""

DEEPEST = 3

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


class BadGguf(Exception):
    """The file cannot be read, or is no GGUF file, with the reason in one line."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """An array or a text that was too long to be of interest here."""

    length: int


Value = bool | int | float | str | tuple[object, ...] | PassedOver


def read(path: Path) -> Mapping[str, Value]:
    """Key -> value. Raises BadGguf."""
    try:
        # Opened without waiting: a named pipe would keep us for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=1 << 18) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise BadGguf("it is not a file")
            return _Header(file, found.st_size).read()
    except OSError as error:
        raise BadGguf(f"it cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, struct.error) as error:
        raise BadGguf("its header is damaged") from error


class _Header:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left, self._texts = file, size, 0

    def read(self) -> dict[str, Value]:
        if self._take(4) != MAGIC:
            raise BadGguf("it is not a GGUF file")
        version = int(self._number("I"))
        if version not in VERSIONS:
            raise BadGguf(f"its GGUF version {version} is not known here")
        self._number("Q")  # tensors
        keys = int(self._number("Q"))
        if keys > MOST_KEYS:
            raise BadGguf(f"its header says that it has {keys} keys")
        found = {}
        for _ in range(keys):
            key = self._take(self._length("Q", most=LONGEST_KEY)).decode()
            found[key] = self._value(int(self._number("I")))
        return found

    def _value(self, kind: int, depth: int = 0) -> Value:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _TEXT:
            length = self._length("Q")
            return self._take(length).decode("utf-8", "replace") if length <= LONGEST_TEXT else self._pass_over(length)
        if kind != _ARRAY or depth == DEEPEST:
            raise BadGguf(f"its header has a value of the unknown kind {kind}")
        return self._array(depth)

    def _array(self, depth: int) -> Value:
        kind, length = int(self._number("I")), int(self._number("Q"))
        if kind in _NUMBERS:
            size = struct.calcsize(f"<{_NUMBERS[kind]}") * length
            if length > LONGEST_ARRAY:
                self._pass_over(size)
                return PassedOver(length)
            return struct.unpack(f"<{length}{_NUMBERS[kind]}", self._take(size))
        self._texts += length
        if self._texts > MOST_TEXTS or length > self._left:
            raise BadGguf(f"its header has an array of {length} values")
        for _ in range(length):
            if kind == _TEXT:
                self._pass_over(self._length("Q"))
            else:
                self._value(kind, depth + 1)
        return PassedOver(length)

    def _number(self, kind: str) -> int | float:
        number: int | float
        (number,) = struct.unpack(f"<{kind}", self._take(struct.calcsize(f"<{kind}")))
        return number

    def _length(self, kind: str, *, most: int | None = None) -> int:
        length = int(self._number(kind))
        if length > self._left or (most is not None and length > most):
            raise BadGguf(f"its header has a text of {length} bytes")
        return length

    def _take(self, count: int) -> bytes:
        content = self._file.read(count) if count <= self._left else b""
        if len(content) != count:
            raise BadGguf("it ends within its header: it is incomplete")
        self._left -= count
        return content

    def _pass_over(self, count: int) -> PassedOver:
        if count > self._left:
            raise BadGguf("it ends within its header: it is incomplete")
        self._file.seek(count, os.SEEK_CUR)
        self._left -= count
        return PassedOver(count)
