"""The images of a request, in whichever form they came: unpacked from base64, and marks put in their place.

What becomes of an image is settled here but for its file, which `develop` looks into. A placeholder, and the data URL
of an `image_url` part, give way to a *mark*, which is drawn when the body has arrived: no caller can know it and write
it. Only values change, never keys, and it happens before a value is turned into the text that the model reads.
"""

from __future__ import annotations

import re
import secrets
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from jev_local.errors import InvalidBody, InvalidRequest, Issue
from jev_local.settings import IMAGE_LIMIT, MAX_IMAGES, MIB
from jev_local.wire.attached import MAX_PLACES, Asset
from jev_local.wire.multipart import Part
from jev_local.wire.strict_json import Loc

ASSET_LIMIT = 16 * MIB
"""Bytes of one asset's file."""

ASSETS_LIMIT = 32 * MIB
"""Bytes of all of them."""

_DATA_URL = re.compile(r"data:(?:image/([a-z+.-]{1,20})|[^,;]{0,100})(?:;[^,;]{0,100}){0,4};base64,", re.IGNORECASE)
_WHITE_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that is said to be an image. `loc`: where it stands in the request. `declared`: the format that it is said
    to have, None where nothing is said."""

    loc: Loc
    data: bytes = field(repr=False)
    declared: str | None = None


@dataclass(frozen=True, slots=True)
class Uploads:
    """A request's images as they came. `leading`: those of the whole request, in order. `placed`: mark -> image."""

    leading: tuple[Upload, ...] = ()
    placed: Mapping[str, Upload] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.leading or self.placed)


def data_urls(images: list[str] | None) -> tuple[Upload, ...]:
    """The files of `images`. Raises InvalidBody."""
    return tuple(_data_url(url, ("body", "images", index)) for index, url in enumerate(images or ()))


def assets(named: Mapping[str, Asset] | None, parts: Mapping[str, Part] | None) -> dict[str, Upload]:
    """Placeholder -> file. `parts`: the files of a form, each of which is one asset's. Raises InvalidBody, and
    InvalidRequest for a file that nothing asks for."""
    left = dict(parts or {})
    found: dict[str, Upload] = {}
    total = 0
    for index, (placeholder, asset) in enumerate((named or {}).items()):
        # A placeholder is the caller's text, so an asset is told by its position.
        loc: Loc = ("body", "assets", index)
        if asset.part is None:
            found[placeholder] = Upload(loc, _base64(asset.data_base64 or "", ASSET_LIMIT, loc), asset.format)
        elif (part := left.pop(asset.part, None)) is None:
            _refuse(loc, "no_such_part", "its `part` is none of the parts of this body, or another asset has it")
        elif len(part.data) > ASSET_LIMIT:
            _too_large(loc, ASSET_LIMIT)
        else:
            kind, _, format_ = part.kind.partition("/")
            found[placeholder] = Upload(loc, part.data, format_ if kind == "image" else asset.format)
        total += len(found[placeholder].data)
        if total > ASSETS_LIMIT:
            _refuse(
                ("body", "assets"),
                "images_too_large",
                f"the files are larger than {ASSETS_LIMIT // MIB} MiB in all: send them smaller",
            )
    if left:
        raise InvalidRequest("A part of the multipart body belongs to no asset. Name it as `part` of one in `assets`.")
    return found


class Marker:
    """Puts marks into the texts of one request. `leading`: how many images stand before the state. All methods raise
    InvalidBody."""

    def __init__(self, placeholders: Mapping[str, Upload], *, leading: int) -> None:
        self.placed: dict[str, Upload] = {}
        self._marks = {placeholder: _mark() for placeholder in placeholders}
        self._uploads = placeholders
        self._places = self._data_urls = leading
        # Where one placeholder begins with another, the longer one is meant.
        longest_first = sorted(self._marks, key=len, reverse=True)
        self._placeholder = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, value: Any) -> Any:
        """`value`, of whatever type, with marks for the placeholders in its strings. Keys stay as they are."""
        match value:
            case _ if self._placeholder is None:
                return value
            case str():
                return self._placeholder.sub(self._replaced, value)
            case dict():
                return {key: self.text(inner) for key, inner in value.items()}
            case list():
                return [self.text(inner) for inner in value]
            case _:
                return value

    def state(self, value: Any) -> Any:
        """The same for a state, which may also be an array of messages with `image_url` parts, or of the parts."""
        if not isinstance(value, list):
            _refuse_parts(value)
            return self.text(value)
        return [self._message(item, ("body", "state", index)) for index, item in enumerate(value)]

    def check_all_placed(self) -> None:
        """Raises InvalidRequest where an asset has no place: it would have no effect on any answer."""
        for index, mark in enumerate(self._marks.values()):
            if mark not in self.placed:
                raise InvalidRequest(
                    f"assets.{index} (counted from 0) is mentioned nowhere. Write its placeholder into the state, into "
                    "instructions or into criteria, or leave the asset out."
                )

    def _message(self, item: Any, loc: Loc) -> Any:
        match item:
            case {"role": _, "content": list(content)}:
                parts = [self._part(part, (*loc, "content", index)) for index, part in enumerate(content)]
                return {key: parts if key == "content" else self.text(inner) for key, inner in item.items()}
            case _:
                return self._part(item, loc)

    def _part(self, part: Any, loc: Loc) -> Any:
        """A part of a message. Of an image's, only the data URL is replaced, whether it stands alone or as `url`."""
        match part:
            case {"type": "image_url", "image_url": str(url)}:
                shown: Any = self._shown(url, loc)
            case {"type": "image_url", "image_url": {"url": str(url)} as holder}:
                mark = self._shown(url, loc)
                shown = {key: mark if key == "url" else self.text(inner) for key, inner in holder.items()}
            case {"type": "image_url"}:
                _refuse(loc, "image_url_missing", "an image_url part needs its image as image_url.url, a data URL")
            case _:
                _refuse_parts(part)
                return self.text(part)
        return {key: shown if key == "image_url" else self.text(inner) for key, inner in part.items()}

    def _shown(self, url: str, loc: Loc) -> str:
        self._data_urls += 1
        if self._data_urls > MAX_IMAGES:
            _refuse(loc, "too_many_images", f"at most {MAX_IMAGES} images can come as data URLs; `assets` take more")
        mark = _mark()
        self._place(mark, _data_url(url, loc))
        return mark

    def _replaced(self, found: re.Match[str]) -> str:
        mark = self._marks[found[0]]
        self._place(mark, self._uploads[found[0]])
        return mark

    def _place(self, mark: str, upload: Upload) -> None:
        # At once and not in the end: a mark is longer than a short placeholder, of which a body can hold millions.
        self._places += 1
        if self._places > MAX_PLACES:
            _refuse(
                ("body",),
                "too_many_images",
                f"images are shown at more than {MAX_PLACES} places: ask in several requests",
            )
        self.placed[mark] = upload


def _refuse_parts(value: Any) -> None:
    """An image that the model would be shown as base64, because its part is not where parts are looked for."""
    match value:
        case {"type": "image_url", "image_url": str(url) | {"url": str(url)}} if url.startswith("data:image/"):
            _refuse(
                ("body", "state"),
                "image_misplaced",
                "image_url parts are images in a state that is an array of messages, or of parts; here use `assets`",
            )
        case dict():
            for inner in value.values():
                _refuse_parts(inner)
        case list():
            for inner in value:
                _refuse_parts(inner)


def _mark() -> str:
    return f"[image {secrets.token_hex(16)}]"


def _data_url(url: str, loc: Loc) -> Upload:
    found = _DATA_URL.match(url)
    if found is None:
        if re.match(r"\s*(?:https?|file|ftp|//)", url, re.IGNORECASE):
            _refuse(loc, "image_not_fetched", "images are never fetched: send the file itself, as a base64 data URL")
        _refuse(loc, "data_url_invalid", "has to be a data URL such as data:image/png;base64,...")
    return Upload(loc, _base64(url[found.end() :], IMAGE_LIMIT, loc), _declared(found))


def _declared(found: re.Match[str]) -> str | None:
    """The format that a data URL names; "other" for what is no image; None where it says nothing."""
    kind = found[0].removeprefix("data:").partition(";")[0]
    return (found[1] or "other").lower() if kind else None


def _base64(text: str, most: int, loc: Loc) -> bytes:
    """Line breaks, which `base64` writes by itself, are skipped. Sizes are judged before anything is unpacked."""
    try:
        packed = text.encode("ascii").translate(None, _WHITE_SPACE)
        if len(packed) > 4 * -(-most // 3):
            _too_large(loc, most)
        data = b64decode(packed, validate=True)
    except ValueError:
        _refuse(loc, "base64_invalid", "is not base64 (RFC 4648, with + and /, and = at the end)")
    if len(data) > most:
        _too_large(loc, most)
    return data


def _too_large(loc: Loc, most: int) -> NoReturn:
    _refuse(loc, "image_too_large", f"the file is larger than {most // MIB} MiB: send it smaller")


def _refuse(loc: Loc, kind: str, msg: str) -> NoReturn:
    raise InvalidBody(Issue(loc, kind, msg)) from None
