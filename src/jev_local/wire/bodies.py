"""A request's body: what may come, how much of it, and how long it may take.

FastAPI's own body reading has none of these limits and does not unpack compressed bodies, so it is not used.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from jev_local.errors import BodyTimeout, BodyTooLarge, UnsupportedMediaType
from jev_local.settings import BODY_LIMIT, BODY_SECONDS, MIB
from jev_local.wire.compression import decoder


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """size: bytes after decompression. seconds: from the first read to the last byte."""

    size: int = BODY_LIMIT
    seconds: float = BODY_SECONDS


async def read_body(chunks: AsyncIterator[bytes], headers: Mapping[str, str], limits: BodyLimits) -> bytes:
    """The whole body, unpacked. `headers` has lower-case names.

    Raises UnsupportedMediaType, UnsupportedEncoding, BodyTooLarge (at once where Content-Length tells, else as
    soon as the limit is passed, before or while unpacking), BodyTimeout, and InvalidBody where it cannot be unpacked.
    """
    require_json(headers.get("content-type", ""))
    unpack = decoder(headers.get("content-encoding", ""))
    if _declared(headers) > limits.size:
        raise _too_large(limits)
    arrived = 0
    body = bytearray()
    try:
        async with asyncio.timeout(limits.seconds):
            async for chunk in chunks:
                # Packed bytes count as well: frames can be padded with parts that unpack to nothing.
                arrived += len(chunk)
                if arrived > limits.size:
                    raise _too_large(limits)
                for piece in unpack.feed(chunk):
                    body += piece
                    if len(body) > limits.size:
                        raise _too_large(limits)
    except TimeoutError:
        raise BodyTimeout(f"The request body did not arrive within {limits.seconds:g} seconds.") from None
    unpack.finish()
    return bytes(body)


def require_json(content_type: str) -> None:
    """Raises UnsupportedMediaType unless the header is missing or names JSON in UTF-8."""
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    if kind == "multipart/form-data":
        raise UnsupportedMediaType(
            "Images are not supported by this server yet: Content-Type has to be application/json."
        )
    if kind not in ("", "application/json", "text/json") and not re.fullmatch(r"application/[^/]+\+json", kind):
        raise UnsupportedMediaType("Content-Type has to be application/json.")
    for name, _, value in (parameter.partition("=") for parameter in parameters):
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8", "us-ascii"):
            raise UnsupportedMediaType("The body has to be UTF-8.")


def _declared(headers: Mapping[str, str]) -> int:
    length = headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0


def _too_large(limits: BodyLimits) -> BodyTooLarge:
    size = f"{limits.size // MIB} MiB" if limits.size >= MIB else f"{limits.size} bytes"
    return BodyTooLarge(f"The request body is larger than {size} (counted after decompression).")
