"""Looking into image files: what may go to the inference server, and what has to be written anew before.

llama-server reads images with stb_image, which knows nothing of EXIF, CMYK or transparency, unpacks whatever a file
says it has, and hands what it cannot read to a video decoder. So only a file in which nothing can surprise it passes
unchanged: an upright PNG of 8 bits a channel, RGB or grey, with known parts and exactly its pixels in them.
Anything else is written anew, upright, on white where it was transparent: a PNG with the same pixels, and what was a
JPEG as a JPEG, in the quality it had where its pixels stay, because every question carries the file and a photo as PNG
has five to ten times the bytes. Pillow is met here only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import NoReturn

from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from jev_local.core.pictures import Album, Picture
from jev_local.errors import InvalidBody, Issue
from jev_local.wire.images import Upload, Uploads
from jev_local.wire.png import is_plain_png
from jev_local.wire.seen import SeenPictures
from jev_local.wire.strict_json import Loc

IN_ALL = 4
"""A request's images may have this many times the pixels of the largest that is taken."""

MAX_RATIO = 1000
"""Of the longer side to the shorter. llama-server was seen to take 5,000, and to refuse 65,500 as no image at all."""

MAX_SCANS = 100
"""Of a progressive JPEG, which usually has about ten. Each is a pass over all pixels and can be a few bytes long."""

QUALITY = 95
"""Of a JPEG whose pixels have changed, without halving the resolution of its colours."""

_READERS: dict[str, tuple[bytes, Callable[[BytesIO], ImageFile]]] = {
    # Not Image.open, which would try formats that nobody asked for, and has a limit and a warning of its own.
    "png": (b"\x89PNG\r\n\x1a\n", PngImageFile),
    "jpeg": (b"\xff\xd8\xff", JpegImageFile),
}
_ALSO_CALLED = {"jpg": "jpeg", "pjpeg": "jpeg", "x-png": "png"}

_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_MARKER = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")
"""Of a JPEG. In coded data a byte 255 is followed by 0 or by one of the eight restart markers."""

_SCAN, _END = 0xDA, 0xD9


def develop(uploads: Uploads, *, max_pixels: int, seen: SeenPictures) -> Album:
    """The pictures of a request. `max_pixels`: width times height of one at most. Takes seconds of a processor and
    some hundred megabytes for the largest, and next to nothing for a file in `seen`. Raises InvalidBody."""
    left = IN_ALL * max_pixels
    developed: dict[Loc, Picture] = {}
    for upload in (*uploads.leading, *uploads.placed.values()):
        if upload.loc not in developed:
            picture = _known_or_developed(upload, max_pixels, left, seen)
            left -= picture.width * picture.height
            developed[upload.loc] = picture
    return Album(
        leading=tuple(developed[upload.loc] for upload in uploads.leading),
        placed={mark: developed[upload.loc] for mark, upload in uploads.placed.items()},
    )


def _known_or_developed(upload: Upload, max_pixels: int, left: int, seen: SeenPictures) -> Picture:
    real = _format(upload)
    digest = hashlib.sha256(upload.data).digest()
    picture = seen.find(digest)
    if picture is None:
        picture = _developed(upload, real, max_pixels, left)
        seen.keep(digest, picture)
    _check_pixels(upload, (picture.width, picture.height), max_pixels, left)
    return picture


def _format(upload: Upload) -> str:
    """What the file is by its first bytes, which has to be what it is said to be."""
    real = next((name for name, (magic, _) in _READERS.items() if upload.data.startswith(magic)), None)
    if real is None:
        _refuse(upload, "image_format", "is neither a PNG nor a JPEG file: convert it to one of them")
    if upload.declared is not None and _ALSO_CALLED.get(upload.declared, upload.declared) != real:
        _refuse(
            upload,
            "image_format",
            f"is a {real.upper()} file, but it is declared as something else: name its real format",
        )
    return real


def _developed(upload: Upload, real: str, max_pixels: int, left: int) -> Picture:
    try:
        with _READERS[real][1](BytesIO(upload.data)) as image:
            _check_header(upload, image, max_pixels, left)
            return _read(upload, image)
    except InvalidBody:
        raise
    except Exception:
        # Damaged files make Pillow raise about anything: OSError, SyntaxError, ValueError, struct.error, zlib.error,
        # IndexError, MemoryError. What it says may quote the file.
        _refuse(upload, "image_damaged", "is damaged or not whole: it cannot be decoded")


def _check_pixels(upload: Upload, size: tuple[int, int], max_pixels: int, left: int) -> None:
    width, height = size
    if width * height > max_pixels:
        _refuse(
            upload,
            "image_too_many_pixels",
            f"has {width} x {height} pixels, and at most {max_pixels} can be read: make it smaller",
        )
    if max(width, height) > MAX_RATIO * min(width, height):
        _refuse(
            upload, "image_shape", f"has {width} x {height} pixels: one side can be {MAX_RATIO} times the other at most"
        )
    if width * height > left:
        _refuse(upload, "image_too_many_pixels", f"the request's images have more than {IN_ALL * max_pixels} pixels")


def _check_header(upload: Upload, image: ImageFile, max_pixels: int, left: int) -> None:
    """Before any pixel is decoded."""
    _check_pixels(upload, image.size, max_pixels, left)
    if isinstance(image, PngImageFile) and image.is_animated:
        _refuse(upload, "image_animated", "is animated: send a single image")
    if isinstance(image, JpegImageFile) and [*_markers(upload.data)].count(_SCAN) > MAX_SCANS:
        _refuse(upload, "image_too_many_scans", "is a JPEG of very many scans: write it anew")


def _read(upload: Upload, image: ImageFile) -> Picture:
    image.load()
    if isinstance(image, PngImageFile):
        with PngImageFile(BytesIO(upload.data)) as again:
            again.verify()  # checksums, which decoding does not look at
    upright = _UPRIGHT.get(_orientation(image))
    if upright is None and isinstance(image, PngImageFile) and is_plain_png(upload.data, image.size, image.mode):
        return Picture(upload.data, *image.size)
    plain = _flat(image)
    if upright is not None:
        plain = plain.transpose(upright)
    plain.info.clear()  # a colour profile that no longer fits, above all
    written = BytesIO()
    if isinstance(plain, JpegImageFile):
        plain.save(written, "JPEG", quality="keep", subsampling="keep")
    elif isinstance(image, JpegImageFile):
        plain.save(written, "JPEG", quality=QUALITY, subsampling=0)
    else:
        plain.save(written, "PNG", compress_level=1)
    return Picture(written.getvalue(), *plain.size)


def _orientation(image: Image.Image) -> int:
    try:
        found = image.getexif().get(_ORIENTATION)
    except Exception:
        found = None  # metadata that cannot be read say nothing, and the image is none the worse
    return found if isinstance(found, int) else 1


def _markers(data: bytes) -> Iterator[int]:
    """The markers of a JPEG from its beginning to its end, without those inside of segments (a thumbnail's)."""
    at = 2
    while found := _MARKER.search(data, at):
        marker = found[1][0]
        yield marker
        if marker == _END:
            return
        at = found.end() + int.from_bytes(data[found.end() : found.end() + 2])


def _flat(image: Image.Image) -> Image.Image:
    """As 8-bit RGB or grey."""
    if image.mode.startswith("I"):  # grey of 16 bits, which `convert` would cut off at 255
        return image.convert("I").point(lambda value: value / 256).convert("L")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image if image.mode in ("RGB", "L") else image.convert("L" if image.mode == "1" else "RGB")


def _refuse(upload: Upload, kind: str, msg: str) -> NoReturn:
    raise InvalidBody(Issue(upload.loc, kind, msg)) from None
