"""A request's body: what may come, how much of it, and how long it may take.

FastAPI's own body reading has none of these limits and does not unpack compressed bodies, so it is not used.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from jev_local.errors import BodyTimeout, BodyTooLarge, UnsupportedMediaType
from jev_local.settings import ASSETS_BODY_LIMIT, BODY_LIMIT, BODY_SECONDS, FORM_LIMIT, MIB
from jev_local.wire.compression import decoder
from jev_local.wire.multipart import REQUEST, Form, Part

_FORM = "multipart/form-data"
_ASSETS = b'"assets"'


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """size, with_assets, form: bytes after decompression, of ordinary JSON, of JSON with images in `assets`, and of
    multipart/form-data. seconds: from the first read to the last byte."""

    size: int = BODY_LIMIT
    with_assets: int = ASSETS_BODY_LIMIT
    form: int = FORM_LIMIT
    seconds: float = BODY_SECONDS


@dataclass(frozen=True, slots=True)
class Body:
    """text: the request as JSON. parts: the files beside it in a form, by name; None where the body is JSON alone.
    oversized: what to raise unless the request turns out to have `assets`, for which its size is allowed."""

    text: bytes = field(repr=False)
    parts: Mapping[str, Part] | None = None
    oversized: BodyTooLarge | None = None


async def read_body(chunks: AsyncIterator[bytes], headers: Mapping[str, str], limits: BodyLimits) -> Body:
    """The whole body, unpacked. `headers` has lower-case names.

    Raises UnsupportedMediaType, UnsupportedEncoding, BodyTooLarge (at once where Content-Length tells, else as
    soon as the limit is passed, while unpacking), BodyTimeout, and InvalidBody where it cannot be unpacked.
    """
    content_type = headers.get("content-type", "")
    reader = _FormReader(content_type, limits) if _kind(content_type) == _FORM else _JsonReader(content_type, limits)
    unpack = decoder(headers.get("content-encoding", ""))
    if _declared(headers) > reader.most:
        raise _too_large(reader.most)
    arrived = 0
    try:
        async with asyncio.timeout(limits.seconds):
            async for chunk in chunks:
                for piece in unpack.feed(chunk):
                    reader.feed(piece)
                # Packed bytes count as well: frames can be padded with parts that unpack to nothing.
                arrived += len(chunk)
                reader.require(arrived)
    except TimeoutError:
        raise BodyTimeout(f"The request body did not arrive within {limits.seconds:g} seconds.") from None
    unpack.finish()
    return reader.finish()


class _JsonReader:
    """Past the ordinary limit it goes on reading only where `assets` have begun: outside of them there is no reason
    for a body of that size. Whether those are the request's own turns out when it is parsed."""

    def __init__(self, content_type: str, limits: BodyLimits) -> None:
        require_json(content_type)
        self.most = limits.with_assets
        self._limits = limits
        self._allowed = limits.size
        self._body = bytearray()

    def feed(self, piece: bytes) -> None:
        self._body += piece
        self.require(len(self._body))

    def require(self, size: int) -> None:
        if size > self._allowed and _ASSETS in self._body:
            self._allowed = self.most
        if size > self._allowed:
            raise _too_large(self._allowed)

    def finish(self) -> Body:
        size = self._limits.size
        return Body(bytes(self._body), oversized=_too_large(size) if len(self._body) > size else None)


class _FormReader:
    def __init__(self, content_type: str, limits: BodyLimits) -> None:
        self.most = limits.form
        self._limits = limits
        self._form = Form(content_type)
        self._size = 0

    def feed(self, piece: bytes) -> None:
        self._size += len(piece)
        self.require(self._size)
        self._form.feed(piece)

    def require(self, size: int) -> None:
        if size > self.most:
            raise _too_large(self.most)

    def finish(self) -> Body:
        parts = self._form.finish()
        request = parts.pop(REQUEST)
        require_json(request.content_type)
        if len(request.data) > self._limits.size:
            raise _too_large(self._limits.size)
        return Body(request.data, parts)


def require_json(content_type: str) -> None:
    """Raises UnsupportedMediaType unless the header is missing or names JSON in UTF-8."""
    kind = _kind(content_type)
    if kind not in ("", "application/json", "text/json") and not re.fullmatch(r"application/[^/]+\+json", kind):
        raise UnsupportedMediaType("Content-Type has to be application/json, or multipart/form-data with images.")
    for name, _, value in (parameter.partition("=") for parameter in content_type.lower().split(";")[1:]):
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8", "us-ascii"):
            raise UnsupportedMediaType("The body has to be UTF-8.")


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _declared(headers: Mapping[str, str]) -> int:
    length = headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0


def _too_large(most: int) -> BodyTooLarge:
    size = f"{most // MIB} MiB" if most >= MIB else f"{most} bytes"
    return BodyTooLarge(f"The request body is larger than {size} (counted after decompression).")
