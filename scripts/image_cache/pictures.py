"""Pictures for the proof, made here: noise, so that no two tiles are alike, and plain colours."""

from __future__ import annotations

import random
import struct
import zlib

Colour = tuple[int, int, int]


def noise(width: int, height: int, seed: int) -> bytes:
    """A PNG of coloured noise, the same for the same seed."""
    return _png(width, height, random.Random(seed).randbytes(width * height * 3))  # noqa: S311  # not a secret


def plain(width: int, height: int, colour: Colour) -> bytes:
    return _png(width, height, bytes(colour) * (width * height))


def _png(width: int, height: int, pixels: bytes) -> bytes:
    row = width * 3
    lines = b"".join(b"\0" + pixels[at : at + row] for at in range(0, len(pixels), row))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
