"""Bodies arriving in pieces: packed, oversized, cut off, late."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from fakes.asgi import scene
from jev_local.errors import (
    BodyTimeout,
    BodyTooLarge,
    CallerError,
    InvalidBody,
    UnsupportedEncoding,
    UnsupportedMediaType,
)
from jev_local.wire.bodies import Body, BodyLimits, read_body, require_json

LIMITS = BodyLimits(size=100_000, seconds=5)
TOLD = "The request body is larger than %d bytes (counted after decompression)."
TEXT = b'{"state": "' + b"a long one, " * 500 + b'"}'


async def stream(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def sliced(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def read(pieces: Iterable[bytes], limits: BodyLimits = LIMITS, **headers: str) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.run(read_body(stream(pieces), named, limits)).text


def zstd(data: bytes, **options: int) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def unsized_zstd(data: bytes) -> bytes:
    """A frame that does not say how long its content is, as streaming writers make them."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


PACKED = {
    "identity": ("identity", TEXT),
    "none": ("", TEXT),
    "gzip": ("gzip", gzip.compress(TEXT)),
    "x-gzip, shouted": ("X-GZIP", gzip.compress(TEXT)),
    "gzip, two members": ("gzip", gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:])),
    "gzip, an empty member": ("gzip", gzip.compress(b"") + gzip.compress(TEXT)),
    "zstd": ("zstd", zstd(TEXT)),
    "zstd, no size": ("zstd", unsized_zstd(TEXT)),
    "zstd, checksum, level 19": ("zstd", zstandard.ZstdCompressor(level=19, write_checksum=True).compress(TEXT)),
    "zstd, two frames": ("zstd", zstd(TEXT[:1000]) + unsized_zstd(TEXT[1000:])),
    "zstd, a skippable frame": ("zstd", b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc" + zstd(TEXT)),
}


@pytest.mark.parametrize("size", [1, 7, 256, 65536])
@pytest.mark.parametrize(("encoding", "packed"), PACKED.values(), ids=PACKED)
def test_unpacks_however_it_is_sliced(encoding: str, packed: bytes, size: int) -> None:
    assert read(sliced(packed, size), content_encoding=encoding) == TEXT


BROKEN = {
    "gzip, cut off": ("gzip", gzip.compress(TEXT)[:-1]),
    "gzip, nothing": ("gzip", b""),
    "gzip, garbage behind": ("gzip", gzip.compress(TEXT) + b"tail"),
    "gzip, second member cut off": ("gzip", gzip.compress(TEXT) + gzip.compress(TEXT)[:10]),
    "gzip, wrong checksum": ("gzip", gzip.compress(TEXT)[:-8] + b"\0" * 8),
    "gzip, really zlib": ("gzip", zlib.compress(TEXT)),
    "gzip, really plain": ("gzip", TEXT),
    "zstd, cut off": ("zstd", zstd(TEXT)[:-1]),
    "zstd, nothing": ("zstd", b""),
    "zstd, garbage behind": ("zstd", zstd(TEXT) + b"tail"),
    "zstd, short garbage behind": ("zstd", zstd(TEXT) + b"x"),
    "zstd, second frame cut off": ("zstd", zstd(TEXT) + zstd(TEXT)[:9]),
    "zstd, wrong checksum": ("zstd", zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)[:-4] + b"\0" * 4),
    "zstd, really gzip": ("zstd", gzip.compress(TEXT)),
    "zstd, really plain": ("zstd", TEXT),
}


@pytest.mark.parametrize("size", [3, 65536])
@pytest.mark.parametrize(("encoding", "packed"), BROKEN.values(), ids=BROKEN)
def test_refuses_what_cannot_be_unpacked(encoding: str, packed: bytes, size: int) -> None:
    with pytest.raises(InvalidBody) as refused:
        read(sliced(packed, size), content_encoding=encoding)
    assert refused.value.issues[0].type == f"{encoding}_invalid"


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, zstd", "identity, gzip", "*", "zstandard"])
def test_other_encodings_are_named_as_such(encoding: str) -> None:
    with pytest.raises(UnsupportedEncoding, match="zstd, gzip"):
        read([TEXT], content_encoding=encoding)


class Unread:
    """A body that nobody may touch."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")


def test_a_declared_length_over_the_limit_is_refused_unread() -> None:
    for kind, most in (("application/json", 48), ("multipart/form-data; boundary=x", 34)):
        headers = {"content-type": kind, "content-length": str(most * 2**20 + 1)}
        with pytest.raises(BodyTooLarge, match=f"{most} MiB"):
            asyncio.run(read_body(Unread(), headers, BodyLimits()))  # type: ignore[arg-type]


@pytest.mark.parametrize("length", ["", "x", "-1", "٣", "9" * 5000])
def test_a_senseless_length_is_not_believed(length: str) -> None:
    assert read([TEXT], content_length=length) == TEXT


def test_the_limit_itself_is_allowed_and_one_byte_more_is_not() -> None:
    for encoding, pack in (("", bytes), ("gzip", gzip.compress), ("zstd", zstd)):
        assert len(read([pack(b"x" * LIMITS.size)], content_encoding=encoding)) == LIMITS.size
        with pytest.raises(BodyTooLarge):
            read([pack(b"x" * (LIMITS.size + 1))], content_encoding=encoding)


def bomb(encoding: str) -> bytes:
    block = b"\0" * 2**20
    if encoding == "gzip":
        packer = zlib.compressobj(9, wbits=31)
        return b"".join(packer.compress(block) for _ in range(512)) + packer.flush()
    zpacker = zstandard.ZstdCompressor(level=19).compressobj()
    return b"".join(zpacker.compress(block) for _ in range(512)) + zpacker.flush()


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_half_a_gigabyte_in_a_small_body_is_never_unpacked(encoding: str) -> None:
    packed = bomb(encoding)
    assert len(packed) < 2**20
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            read([packed], BodyLimits(size=2**20), content_encoding=encoding)
        # The limit, one piece beyond it, and a copy while the buffer grows.
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_padding_that_unpacks_to_nothing_is_counted_as_well() -> None:
    skippable = b"\x50\x2a\x4d\x18\x00\x10\x00\x00" + b"\0" * 4096
    with pytest.raises(BodyTooLarge):
        read([skippable] * 30, content_encoding="zstd")
    with pytest.raises(BodyTooLarge):
        read([gzip.compress(b"")] * 6000, content_encoding="gzip")


def test_a_frame_that_asks_for_a_window_of_gigabytes_is_refused() -> None:
    # Magic number, a descriptor without single segment, and the window descriptor for 2 GiB.
    with pytest.raises(InvalidBody):
        read([b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00"], content_encoding="zstd")


@scene
async def test_a_body_that_does_not_end_is_given_up() -> None:
    async def trickle() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    with pytest.raises(BodyTimeout, match=r"within 0\.01 seconds"):
        await read_body(trickle(), {}, BodyLimits(seconds=0.01))


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "Application/JSON; charset=UTF-8",
        'application/json;charset="utf-8"',
        "application/problem+json",
        "text/json",
        "application/json; profile=x; charset=us-ascii",
    ],
)
def test_takes_json_under_all_its_names(content_type: str) -> None:
    require_json(content_type)


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json; charset=shift_jis",
        "application/json, text/plain",
        "application/+json",
        "application/a/b+json",
        "json",
    ],
)
def test_refuses_other_media_types(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        require_json(content_type)


ASSETS = BodyLimits(size=1000, with_assets=3000)


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_json_with_assets_may_be_longer(size: int) -> None:
    def body(before: int, after: int, key: bytes = b'"assets"') -> bytes:
        return b"{" + b" " * (before - 1) + key + b" " * (after - len(key))

    for encoding, pack in (("", bytes), ("gzip", gzip.compress)):
        headers = {"content-encoding": encoding}

        def taken(text: bytes, pack: Any = pack, headers: Any = headers) -> Body:
            return asyncio.run(read_body(stream(sliced(pack(text), size)), headers, ASSETS))

        assert taken(body(1, 999)).oversized is None
        read = taken(body(992, 2008))
        assert (len(read.text), str(read.oversized)) == (3000, str(BodyTooLarge(TOLD % 1000)))
        for text, most in (
            (body(992, 2009), 3000),
            (body(1, 1000, b'"images"'), 1000),
            (body(1, 1000, b'\\"assets\\"'), 1000),
        ):
            with pytest.raises(BodyTooLarge, match=str(most)):
                taken(text)
    # What comes after the ordinary limit cannot be what makes a body of that size right.
    with pytest.raises(BodyTooLarge):
        asyncio.run(read_body(stream(sliced(body(1200, 100), 100)), {}, ASSETS))


@given(st.binary(max_size=300), st.sampled_from(["gzip", "zstd"]), st.integers(1, 50))
def test_any_bytes_unpack_or_are_refused(data: bytes, encoding: str, size: int) -> None:
    with suppress(CallerError):
        read(sliced(data, size), content_encoding=encoding)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4), st.integers(1, 100))
def test_parts_packed_one_by_one_are_one_body(parts: list[bytes], size: int) -> None:
    for encoding, pack in (("gzip", gzip.compress), ("zstd", zstd)):
        packed = b"".join(map(pack, parts))
        assert read(sliced(packed, size), content_encoding=encoding) == b"".join(parts)
