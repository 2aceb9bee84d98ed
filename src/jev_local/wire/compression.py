"""Compressed bodies, unpacked piece by piece so that whoever reads can stop.

A few kilobytes of either format can stand for gigabytes. Decoders therefore never return everything at once:
`feed` is a generator of pieces of bounded size, and a caller who has had enough simply stops asking.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

import zstandard

from jev_local.errors import InvalidBody, Issue, UnsupportedEncoding

ACCEPTED = ("zstd", "gzip", "identity")

_PIECE = 1 << 20
# A zstd block is at most 128 KiB and can be four bytes long on the wire, so this much input is 8 MiB at the worst.
_ZSTD_STEP = 256
# Memory a frame may ask for; a frame of the largest body we read, packed at the highest level, fits.
_ZSTD_WINDOW = 1 << 25


class Decoder(Protocol):
    """One body's decoder. `feed` raises InvalidBody for bytes that are not what the header promised."""

    def feed(self, data: bytes) -> Iterator[bytes]: ...

    def finish(self) -> None:
        """Raises InvalidBody when the data ended in the middle."""
        ...


def decoder(content_encoding: str) -> Decoder:
    """The decoder for a Content-Encoding header ("" when there is none). Raises UnsupportedEncoding."""
    match content_encoding.strip().lower():
        case "" | "identity":
            return _Identity()
        case "gzip" | "x-gzip":
            return _Gzip()
        case "zstd":
            return _Zstd()
        case _:
            # Lists such as "gzip, zstd" end here too: no client is known that packs twice.
            raise UnsupportedEncoding(f"Content-Encoding has to be one of {', '.join(ACCEPTED)}.")


class _Identity:
    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    def finish(self) -> None:
        pass


class _Gzip:
    """RFC 1952: one member or several, with nothing behind the last."""

    def __init__(self) -> None:
        self._member: Any = zlib.decompressobj(wbits=31)

    def feed(self, data: bytes) -> Iterator[bytes]:
        more = False  # zlib may hold output back although it has taken all input
        while data or more:
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=31)
            try:
                piece = self._member.decompress(data, _PIECE)
            except zlib.error:
                _refuse("gzip", "is damaged or not gzip")
            if piece:
                yield piece
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            more = len(piece) == _PIECE and not self._member.eof

    def finish(self) -> None:
        if not self._member.eof:
            _refuse("gzip", "ends in the middle")


class _Zstd:
    """RFC 8878: one frame or several, with nothing behind the last."""

    def __init__(self) -> None:
        self._context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._frame: Any = self._context.decompressobj()

    def feed(self, data: bytes) -> Iterator[bytes]:
        rest = memoryview(data)
        while rest:
            if self._frame.eof:
                self._frame = self._context.decompressobj()
            step, rest = rest[:_ZSTD_STEP], rest[_ZSTD_STEP:]
            try:
                piece = self._frame.decompress(step)
            except zstandard.ZstdError:
                _refuse("zstd", "is damaged or not zstd")
            if piece:
                yield piece
            if self._frame.eof and (unused := len(self._frame.unused_data)):
                rest = memoryview(data)[len(data) - len(rest) - unused :]

    def finish(self) -> None:
        if not self._frame.eof:
            _refuse("zstd", "ends in the middle")


def _refuse(encoding: str, what: str) -> NoReturn:
    raise InvalidBody(Issue(("body",), f"{encoding}_invalid", f"the {encoding} body {what}")) from None
