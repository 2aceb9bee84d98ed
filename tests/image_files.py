"""Small image files of every kind, made as they are needed."""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO
from typing import Any

from PIL import Image


def drawn(mode: str = "RGB", size: tuple[int, int] = (40, 30), color: Any = "teal") -> Image.Image:
    """One colour, but for a white corner at the top on the left, so that turning it shows."""
    image = Image.new("RGB", size, color)
    image.paste("white", (0, 0, (size[0] + 2) // 3, (size[1] + 2) // 3))
    return image.convert(mode)


def written(image: Image.Image, format_: str = "PNG", **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, format_, **options)
    return buffer.getvalue()


def image_file(
    *, mode: str = "RGB", size: tuple[int, int] = (40, 30), color: Any = "teal", format_: str = "PNG", **options: Any
) -> bytes:
    return written(drawn(mode, size, color), format_, **options)


def base64(data: bytes) -> str:
    return b64encode(data).decode()


def data_url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64(data)}"
