"""Forms arriving in pieces: their parts, however they are sliced, and everything that a form can be instead."""

from __future__ import annotations

import asyncio
import gzip
import logging
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev_local.errors import BodyTooLarge, CallerError, InvalidBody, UnsupportedMediaType
from jev_local.wire.bodies import Body, BodyLimits, read_body
from jev_local.wire.multipart import MAX_PARTS, Part

REQUEST = b'{"state": "\r\n--x\r"}'
FILE = bytes(range(256)) * 20 + b"\r\n--xx\r\n--\r\n-" + b"--x--\r\n"
KIND = "multipart/form-data; boundary=xyz"
LIMITS = BodyLimits(size=1000, form=100_000)


def part(name: str, data: bytes, kind: str | None = None, *, file: bool = True) -> bytes:
    more = f'; filename="{name}"' if file else ""
    head = f'Content-Disposition: form-data; name="{name}"{more}\r\n'
    if kind is not None:
        head += f"Content-Type: {kind}\r\n"
    return head.encode() + b"\r\n" + data


def form(*parts: bytes, boundary: bytes = b"xyz") -> bytes:
    return b"".join(b"--" + boundary + b"\r\n" + each + b"\r\n" for each in parts) + b"--" + boundary + b"--\r\n"


ASKING = part("request", REQUEST, "application/json", file=False)


def read(
    body: bytes, content_type: str = KIND, *, size: int = 65536, limits: BodyLimits = LIMITS, **headers: str
) -> Body:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    named = {"content-type": content_type, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return asyncio.run(read_body(pieces(), named, limits))


@pytest.mark.parametrize("size", [1, 7, 65536])
@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_a_form_is_taken_apart_however_it_is_sliced(size: int, encoding: str) -> None:
    body = form(ASKING, part("a", FILE, "Image/PNG"), part("b", b""), part("写真", b"\r\n", "image/jpeg; q=1"))
    packed = gzip.compress(body) if encoding else body
    read_ = read(packed, size=size, content_encoding=encoding)
    assert read_.text == REQUEST
    assert read_.parts == {"a": Part(FILE, "Image/PNG"), "b": Part(b""), "写真": Part(b"\r\n", "image/jpeg; q=1")}
    assert [each.kind for each in (read_.parts or {}).values()] == ["image/png", "", "image/jpeg"]


@pytest.mark.parametrize(
    "content_type", [KIND, 'Multipart/Form-Data;charset=utf-8; boundary="xyz"', "multipart/form-data; BOUNDARY=xyz"]
)
@pytest.mark.parametrize("kind", [None, "application/json", "application/json; charset=utf-8"])
def test_spellings(content_type: str, kind: str | None) -> None:
    assert read(form(part("request", REQUEST, kind)), content_type) == Body(REQUEST, {})


def test_the_request_need_not_come_first_and_what_is_around_the_parts_is_skipped() -> None:
    body = b"\r\n" + form(part("a", FILE), ASKING) + b"\r\nan epilogue"
    assert read(body) == Body(REQUEST, {"a": Part(FILE)})


BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "JSON": REQUEST,
    "no parts": form(),
    "no request": form(part("a", FILE)),
    "two requests": form(ASKING, ASKING),
    "two of a name": form(ASKING, part("a", FILE), part("a", FILE)),
    "a part without a name": form(ASKING, b"Content-Type: image/png\r\n\r\nx"),
    "a part without headers": form(ASKING, b"\r\nx"),
    "no end": form(ASKING, part("a", FILE))[:-8],
    "cut off": form(ASKING, part("a", FILE))[:-1000],
    "another boundary": form(ASKING, boundary=b"zyx"),
    "too many parts": form(ASKING, *(part(str(i), b"") for i in range(MAX_PARTS))),
    "a header without end": b"--xyz\r\n" + b"a" * 50_000,
    "a header that is none": b"--xyz\r\n\0\0: x\r\n\r\n--xyz--",
}


@pytest.mark.parametrize("size", [1, 65536])
@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_what_is_no_form_is_refused(body: bytes, size: int) -> None:
    with pytest.raises(InvalidBody) as refused:
        read(body, size=size)
    assert refused.value.issues[0].type == "multipart_invalid"


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary=", KIND + "x" * 300])
def test_a_form_needs_a_boundary(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaType, match="boundary"):
        read(form(ASKING), content_type)


@pytest.mark.parametrize("kind", ["text/plain", "application/json; charset=shift_jis"])
def test_the_request_has_to_be_json(kind: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        read(form(part("request", REQUEST, kind)))


def test_as_many_parts_as_a_request_has_places_for_images() -> None:
    assert len(read(form(ASKING, *(part(str(i), b"") for i in range(MAX_PARTS - 1)))).parts or ()) == 32


def test_sizes() -> None:
    rest = len(form(ASKING, part("a", b"")))
    assert len((read(form(ASKING, part("a", bytes(LIMITS.form - rest)))).parts or {})["a"].data) == LIMITS.form - rest
    with pytest.raises(BodyTooLarge):
        read(form(ASKING, part("a", bytes(LIMITS.form - rest + 1))))
    with pytest.raises(BodyTooLarge):
        read(form(part("request", b" " * 1001)))
    assert len(read(form(part("request", b" " * 1000))).text) == 1000


def test_half_a_gigabyte_in_a_small_form_is_never_unpacked() -> None:
    packed = gzip.compress(form(ASKING, part("a", bytes(512 * 2**20))), 1)
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            read(packed, limits=BodyLimits(form=2**20), content_encoding="gzip")
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_damaged_bytes_do_not_end_up_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for body in BROKEN.values():
        with pytest.raises(InvalidBody):
            read(body)
    read(form(ASKING) + b"an epilogue")
    assert [record for record in caplog.records if record.name != "asyncio"] == []


tokens = st.sampled_from(
    [
        b"--xyz",
        b"--xyz--",
        b"\r\n",
        b"\r",
        b"\n",
        b"--",
        b": ",
        b"Content-Disposition",
        b'form-data; name="request"',
        REQUEST,
    ]
)


@given(st.lists(tokens | st.binary(max_size=20)), st.integers(1, 50))
def test_any_bytes_are_a_form_or_are_refused(parts: Iterable[bytes], size: int) -> None:
    with suppress(CallerError):
        read(b"".join(parts), size=size)


@given(st.dictionaries(st.sampled_from("abc"), st.binary(max_size=300)), st.integers(1, 100))
def test_any_files_come_out_as_they_went_in(files: dict[str, Any], size: int) -> None:
    boundary = b"a-boundary-that-is-in-none-of-them"
    body = form(ASKING, *(part(name, data) for name, data in files.items()), boundary=boundary)
    read_ = read(body, f"multipart/form-data; boundary={boundary.decode()}", size=size)
    assert read_ == Body(REQUEST, {name: Part(data) for name, data in files.items()})
