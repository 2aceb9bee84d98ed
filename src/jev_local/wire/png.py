"""Whether a PNG is as plain as it can be: known parts, and in them exactly the pixels that it says it has."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

SIGNATURE_BYTES = 8

CHANNELS = {"L": 1, "RGB": 3}

SAYING_NOTHING = frozenset(
    (b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT", b"pHYs", b"tIME", b"tEXt", b"zTXt", b"iTXt", b"eXIf")
)
"""Chunks that no decoder needs for the pixels, and that stb_image passes over."""

FILTERS = 5


def is_plain_png(file: bytes, size: tuple[int, int], mode: str) -> bool:
    """`file` has been decoded to `size` pixels of Pillow's `mode` already. Its data unpacked once more here, because a
    decoder stops where the picture is whole, and what follows can be gigabytes for one that does not."""
    channels = CHANNELS.get(mode)
    kinds = [kind for kind, _ in _chunks(file)]
    first, last = (kinds[0], kinds[-1]) if kinds else (b"", b"")
    if channels is None or first != b"IHDR" or last != b"IEND" or not _in_order(kinds[1:-1]):
        return False
    header = next(_chunks(file))[1]
    depth, _, compression, filtering, interlaced = header[8:13]
    if (depth, compression, filtering, interlaced) != (8, 0, 0, 0):
        return False
    stride = 1 + size[0] * channels
    rows = _unpacked((data for kind, data in _chunks(file) if kind == b"IDAT"), stride * size[1])
    return len(rows) == stride * size[1] and max(rows[::stride]) < FILTERS


def _chunks(file: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Kind and data of every chunk; what is behind the last whole one is a chunk of no kind."""
    view, at = memoryview(file), SIGNATURE_BYTES
    while at < len(file):
        length = int.from_bytes(view[at : at + 4], "big")
        kind, end = bytes(view[at + 4 : at + 8]), at + 8 + length
        yield (kind, view[at + 8 : end]) if end + 4 <= len(file) else (b"", view[at:])
        at = end + 4


def _in_order(kinds: list[bytes]) -> bool:
    """Between the first chunk and the last: data in one run, and nothing but what says nothing around it."""
    runs = "".join("d" if kind == b"IDAT" else "." if kind in SAYING_NOTHING else "x" for kind in kinds)
    return runs.strip(".").strip("d") == "" and "d" in runs


def _unpacked(data: Iterator[memoryview], size: int) -> bytes:
    """At most one byte more than `size`."""
    unpacker, rows = zlib.decompressobj(), bytearray()
    try:
        for part in data:
            rows += unpacker.decompress(part, size + 1 - len(rows))
            if len(rows) > size or unpacker.unconsumed_tail or unpacker.unused_data:
                return b""
    except zlib.error:
        return b""
    return bytes(rows) if unpacker.eof else b""
