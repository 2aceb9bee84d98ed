"""Image files of every kind and of every damage: what passes, what is written anew, and what is refused."""

from __future__ import annotations

import struct
import time
import tracemalloc
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from image_files import drawn, image_file, written
from jev_local.core.pictures import Album, Picture
from jev_local.errors import InvalidBody
from jev_local.wire.images import Upload, Uploads
from jev_local.wire.pictures import develop
from jev_local.wire.seen import SeenPictures

# Of senseless metadata Pillow warns, and does without.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")

PIXELS = 20_000_000
LOC = ("body", "images", 1)


def upload(data: bytes, declared: str | None = None) -> Upload:
    return Upload(LOC, data, declared)


def picture(data: bytes, declared: str | None = None, max_pixels: int = PIXELS) -> Picture:
    (found,) = develop(Uploads(leading=(upload(data, declared),)), max_pixels=max_pixels, seen=SeenPictures()).leading
    return found


def refusal(data: bytes, declared: str | None = None, max_pixels: int = PIXELS) -> str:
    with pytest.raises(InvalidBody) as refused:
        picture(data, declared, max_pixels)
    (issue,) = refused.value.issues
    assert issue.loc == LOC
    return issue.type


def pixels(data: bytes) -> Any:
    with Image.open(BytesIO(data)) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_of(width: int, height: int, *, extra: bytes = b"", rows: bytes = b"\0" * 10) -> bytes:
    """A PNG whose header says this size, whatever its rows are."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    ends = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + ends


def with_orientation(turn: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = turn
    return exif


PASSING = {
    "RGB": image_file(),
    "grey": image_file(mode="L"),
    "a colour profile": image_file(icc_profile=b"no profile"),
    "upright by EXIF": image_file(exif=with_orientation(1)),
    "one pixel": image_file(size=(1, 1)),
    "as wide as can be": image_file(size=(2000, 2)),
}


@pytest.mark.parametrize("data", PASSING.values(), ids=PASSING)
def test_what_stb_image_reads_alike_passes_byte_for_byte(data: bytes) -> None:
    found = picture(data)
    with Image.open(BytesIO(data)) as image:
        assert (found.data, (found.width, found.height)) == (data, image.size)


KEPT = {
    "JPEG": image_file(format_="JPEG"),
    "grey JPEG": image_file(mode="L", format_="JPEG"),
    "coarse": image_file(format_="JPEG", quality=30),
    "upright by EXIF": image_file(format_="JPEG", exif=with_orientation(1)),
    "senseless EXIF": image_file(format_="JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"),
    "senseless orientation": image_file(format_="JPEG", exif=with_orientation(77)),
    "a comment": image_file(format_="JPEG", comment=b"a secret"),
    "something behind it": image_file(format_="JPEG") + b"a film",
    "components named R, G and B": image_file(format_="JPEG", keep_rgb=True),
}


@pytest.mark.parametrize("data", KEPT.values(), ids=KEPT)
def test_a_jpeg_is_written_anew_as_it_was_without_what_is_beside_its_pixels(data: bytes) -> None:
    """llama-server's reader takes component names for colours that libjpeg does not, and hands on what it cannot read:
    it gets files of one writer alone."""
    found = picture(data, "jpeg")
    assert found.data.startswith(b"\xff\xd8\xff\xe0")
    assert b"Exif" not in found.data
    assert b"secret" not in found.data
    assert not found.data.endswith(b"a film")
    assert np.abs(pixels(found.data) - pixels(data)).mean() < 1.5
    assert len(found.data) < 1.2 * len(data) + 400
    assert picture(data, "jpeg") == found


def chunked(*kinds: bytes, pixels_: bytes | None = None) -> bytes:
    """A PNG of 4 x 3 grey pixels made of these chunks between its first and its last."""
    rows = zlib.compress(b"\0abcd" * 3) if pixels_ is None else pixels_
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 3, 8, 0, 0, 0, 0))
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            header,
            *(chunk(k, rows if k == b"IDAT" else b"a\0b") for k in kinds),
            chunk(b"IEND", b""),
        )
    )


SURPRISING = {
    "a part that nobody knows": chunked(b"ABCD", b"IDAT"),
    "Apple's own kind": chunked(b"CgBI", b"IDAT"),
    "more pixels than it has": chunked(b"IDAT", pixels_=zlib.compress(b"\0abcd" * 3 + bytes(50_000_000))),
    "something behind its pixels": chunked(b"IDAT", pixels_=zlib.compress(b"\0abcd" * 3) + b"more"),
}


@pytest.mark.parametrize("data", SURPRISING.values(), ids=SURPRISING)
def test_a_png_with_anything_surprising_in_it_is_written_anew_or_refused(data: bytes) -> None:
    try:
        found = picture(data, "png")
    except InvalidBody:
        return
    assert found.data != data
    assert len(found.data) < 200
    assert np.asarray(Image.open(BytesIO(found.data))).tolist() == [[97, 98, 99, 100]] * 3


def grey_16() -> Image.Image:
    return Image.fromarray(np.linspace(0, 65535, 1200).astype(np.uint16).reshape(30, 40))


REWRITTEN: dict[str, tuple[bytes, Any]] = {
    "RGBA": (image_file(mode="RGBA"), drawn()),
    "LA": (image_file(mode="LA"), drawn("L")),
    "palette": (image_file(mode="P"), drawn("P")),
    "palette with a transparent colour": (image_file(mode="P", transparency=0), None),
    "RGB with a transparent colour": (image_file(transparency=(0, 128, 128)), Image.new("RGB", (40, 30), "white")),
    "grey with a transparent colour": (
        written(Image.new("L", (4, 3), 9), transparency=9),
        Image.new("RGB", (4, 3), "white"),
    ),
    "nothing but transparent": (written(Image.new("RGBA", (4, 3), (9, 9, 9, 0))), Image.new("RGB", (4, 3), "white")),
    "half transparent": (
        written(Image.new("RGBA", (4, 3), (0, 0, 0, 51))),
        Image.new("RGB", (4, 3), (204, 204, 204)),
    ),
    "black and white": (image_file(mode="1"), drawn("1")),
    "16 bits": (written(grey_16()), Image.fromarray((np.asarray(grey_16()) // 256).astype(np.uint8))),
    "CMYK": (image_file(mode="CMYK", format_="JPEG", quality=100), drawn()),
    "progressive": (image_file(format_="JPEG", progressive=True, quality=100, subsampling=0), drawn()),
}


@pytest.mark.parametrize(("data", "expected"), REWRITTEN.values(), ids=REWRITTEN)
def test_everything_else_is_written_anew_with_the_same_pixels(data: bytes, expected: Image.Image | None) -> None:
    """What was a JPEG stays one, with a little more loss; everything else becomes a PNG without any."""
    found = picture(data)
    with Image.open(BytesIO(data)) as sent, Image.open(BytesIO(found.data)) as image:
        assert (image.format, image.size) == (sent.format, (found.width, found.height))
        assert image.mode in ("RGB", "L")
        assert not {"exif", "icc_profile", "transparency", "progressive"} & image.info.keys()
        assert image.format == "JPEG" or found.data[24] == 8
    if expected is not None:
        # JPEG's colours are not exact, least of all beside an edge.
        off = np.abs(pixels(found.data) - np.asarray(expected.convert("RGB")).astype(int))
        assert off.max() <= (24 if found.data.startswith(b"\xff\xd8") else 6)
        assert off.mean() < 2
    assert picture(data) == found


@pytest.mark.parametrize("turn", range(2, 9))
@pytest.mark.parametrize("format_", ["PNG", "JPEG"])
def test_a_picture_is_turned_upright(turn: int, format_: str) -> None:
    stored = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[turn]
    data = written(drawn().transpose(stored), format_, exif=with_orientation(turn))
    found = picture(data)
    assert (found.width, found.height) == (40, 30)
    assert np.abs(pixels(found.data) - np.asarray(drawn()).astype(int)).mean() < 3
    assert b"Exif" not in found.data
    assert b"eXIf" not in found.data


def test_of_a_phones_two_pictures_in_one_file_the_first_is_meant() -> None:
    data = written(drawn(), "MPO", save_all=True, append_images=[drawn(color="red")])
    with Image.open(BytesIO(data)) as image:
        assert image.format == "MPO"
    assert np.abs(pixels(picture(data, "jpeg").data) - np.asarray(drawn()).astype(int)).mean() < 3


@pytest.mark.parametrize(
    ("format_", "declared", "taken"),
    [
        ("PNG", None, True),
        ("PNG", "png", True),
        ("PNG", "x-png", True),
        ("PNG", "jpeg", False),
        ("PNG", "other", False),
        ("JPEG", None, True),
        ("JPEG", "jpg", True),
        ("JPEG", "jpeg", True),
        ("JPEG", "png", False),
        ("JPEG", "webp", False),
    ],
)
def test_a_file_has_to_be_what_it_is_declared_as(format_: str, declared: str | None, taken: bool) -> None:
    data = image_file(format_=format_)
    if taken:
        assert picture(data, declared) == picture(data)
    else:
        assert refusal(data, declared) == "image_format"


def scans(count: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again."""
    data = image_file(format_="JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * count + data[-2:]


def restless() -> bytes:
    frames = [drawn(), drawn(color="red")]
    return written(frames[0], "PNG", save_all=True, append_images=frames[1:], duration=100)


REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "image_format"),
    "text": (b"hello", "image_format"),
    **{kind: (written(drawn(), kind), "image_format") for kind in ("GIF", "WEBP", "BMP", "TIFF", "PPM", "ICO", "DDS")},
    "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image_format"),
    "PNG, its magic alone": (image_file()[:8], "image_damaged"),
    "PNG without an end": (image_file()[:-12], "image_damaged"),
    "PNG, cut off": (image_file(size=(400, 300))[:-100], "image_damaged"),
    "PNG, too few rows": (png_of(40, 30), "image_damaged"),
    "PNG, wrong checksum": (image_file()[:-20] + b"\0" + image_file()[-19:], "image_damaged"),
    "PNG without pixels": (png_of(0, 3), "image_damaged"),
    "JPEG, its magic alone": (b"\xff\xd8\xff", "image_damaged"),
    "JPEG, cut off": (image_file(format_="JPEG")[:-60], "image_damaged"),
    "JPEG, header alone": (image_file(format_="JPEG")[:200], "image_damaged"),
    "animated PNG": (restless(), "image_animated"),
    "very many scans": (scans(200), "image_too_many_scans"),
    "wider than can be": (image_file(size=(1001, 1)), "image_shape"),
    "higher than can be": (image_file(size=(1, 1001)), "image_shape"),
    "60,000 x 60,000": (png_of(60_000, 60_000), "image_too_many_pixels"),
    "as large as a PNG can say": (png_of(2**31 - 1, 2**31 - 1), "image_too_many_pixels"),
    "a text that unpacks to 100 MB": (
        png_of(40, 30, extra=chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(100_000_000)))),
        "image_damaged",
    ),
    "a hundred texts of 1 MB": (
        png_of(40, 30, extra=chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1_000_000))) * 100),
        "image_damaged",
    ),
}


@pytest.mark.parametrize(("data", "kind"), REFUSED.values(), ids=REFUSED)
def test_files_that_are_refused(data: bytes, kind: str) -> None:
    assert refusal(data) == kind


def test_usual_progressive_files_have_few_scans() -> None:
    assert picture(scans(0)).width == 40
    assert picture(scans(80)).width == 40


def test_a_decompression_bomb_is_refused_by_its_header() -> None:
    tracemalloc.start()
    begun = time.monotonic()
    try:
        assert refusal(png_of(60_000, 60_000)) == "image_too_many_pixels"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert time.monotonic() - begun < 1


def test_the_limit_of_pixels_itself_is_allowed() -> None:
    data = image_file(size=(40, 30))
    assert picture(data, max_pixels=1200).data == data
    assert refusal(data, max_pixels=1199) == "image_too_many_pixels"


def test_a_request_has_four_times_as_many_pixels_at_most() -> None:
    data = image_file(size=(40, 30))
    uploads = [Upload(("body", "assets", index), data) for index in range(5)]
    four = develop(Uploads(placed=dict(zip("abcd", uploads, strict=False))), max_pixels=1200, seen=SeenPictures())
    assert len(four.placed) == 4
    with pytest.raises(InvalidBody) as refused:
        develop(
            Uploads(tuple(uploads[:1]), dict(zip("abcd", uploads[1:], strict=True))),
            max_pixels=1200,
            seen=SeenPictures(),
        )
    assert refused.value.issues[0].loc == ("body", "assets", 4)


def test_leading_and_placed_pictures_keep_their_places() -> None:
    red, blue = (Upload(("body", "images", i), image_file(color=c)) for i, c in enumerate(("red", "blue")))
    asset = Upload(("body", "assets", 0), image_file(color="green"))
    album = develop(Uploads((red, blue, red), {"m": asset}), max_pixels=PIXELS, seen=SeenPictures())
    assert [found.data for found in album.leading] == [red.data, blue.data, red.data]
    assert {mark: found.data for mark, found in album.placed.items()} == {"m": asset.data}
    assert develop(Uploads(), max_pixels=PIXELS, seen=SeenPictures()) == Album()


SOUND = [*PASSING.values(), *(data for data, _ in REWRITTEN.values()), restless()]


@given(st.sampled_from(SOUND), st.data())
def test_no_damage_is_more_than_a_refusal(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data)
    for place, value in draw.draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=5)):
        damaged[place] = value
    if draw.draw(st.booleans()):
        start = draw.draw(st.integers(0, len(data)))
        del damaged[start : start + draw.draw(st.integers(1, 200))]
    try:
        found = picture(bytes(damaged), max_pixels=10_000)
    except InvalidBody:
        return
    assert found.width * found.height <= 10_000


@given(st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"]), st.binary(max_size=200))
def test_nor_is_any_garbage(magic: bytes, rest: bytes) -> None:
    assert refusal(magic + rest).startswith("image_")


def test_a_file_is_looked_into_once_and_judged_each_time() -> None:
    seen, file = SeenPictures(), image_file(mode="P")
    first = develop(Uploads((upload(file),)), max_pixels=PIXELS, seen=seen)
    again = develop(Uploads((upload(file, "png"),)), max_pixels=PIXELS, seen=seen)
    assert again.leading[0] is first.leading[0]
    for declared, pixels in (("jpeg", PIXELS), ("png", 1199)):
        with pytest.raises(InvalidBody):
            develop(Uploads((upload(file, declared),)), max_pixels=pixels, seen=seen)


def test_the_pictures_used_last_are_remembered() -> None:
    one, two, three, large = (Picture(bytes([i]) * size, 1, 1) for i, size in enumerate((40, 40, 40, 101)))
    seen = SeenPictures(room=100)
    for name, kept in ((b"1", one), (b"2", two), (b"large", large)):
        seen.keep(name, kept)
    assert seen.find(b"1") is one
    seen.keep(b"3", three)
    assert [seen.find(name) for name in (b"1", b"2", b"3", b"large")] == [one, None, three, None]
    seen.keep(b"1", two)
    assert seen.find(b"1") is one
