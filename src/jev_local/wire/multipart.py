"""A multipart/form-data body, taken apart as it arrives: one part with the request, and files beside it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import NoReturn

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from jev_local.errors import InvalidBody, Issue, UnsupportedMediaType

REQUEST = "request"
"""Name of the part that holds the JSON."""

MAX_PARTS = 33
"""The request, and as many files as a request can have places for them."""

# The parser writes bytes of damaged bodies to its log, and those are the caller's.
_SILENT = logging.Logger("jev_local.silent", level=logging.CRITICAL + 1)


@dataclass(frozen=True, slots=True)
class Part:
    """One part's content. `content_type`: the header's value, "" where there was none."""

    data: bytes = field(repr=False)
    content_type: str = ""

    @property
    def kind(self) -> str:
        """The media type alone, in lower case."""
        return self.content_type.partition(";")[0].strip().lower()


class Form:
    """Collects the parts of one body. Whoever feeds it sees to its size. All methods raise InvalidBody."""

    def __init__(self, content_type: str) -> None:
        """Raises UnsupportedMediaType where the header names no boundary."""
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not boundary:
            raise UnsupportedMediaType("Content-Type multipart/form-data has to name its boundary.")
        self._found: dict[str, Part] = {}
        self._headers: dict[bytes, bytes] = {}
        self._name, self._value, self._data = bytearray(), bytearray(), bytearray()
        self._ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                    "on_header_end": self._header,
                    "on_part_data": lambda data, start, end: self._data.extend(data[start:end]),
                    "on_part_end": self._close,
                    "on_end": self._end,
                },
            )
        except FormParserError:
            raise UnsupportedMediaType("The boundary in Content-Type is too long.") from None
        self._parser.logger = _SILENT

    def feed(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError:
            _refuse("the multipart body is damaged, or its boundary is another than in Content-Type")

    def finish(self) -> dict[str, Part]:
        """The parts by name, `request` among them."""
        if not self._ended:
            _refuse("the multipart body ends in the middle")
        if REQUEST not in self._found:
            _refuse(f"the multipart body has no part named `{REQUEST}`, which holds the JSON")
        return self._found

    def _begin(self) -> None:
        if len(self._found) == MAX_PARTS:
            _refuse(f"the multipart body has more than {MAX_PARTS} parts")
        self._headers = {}
        self._data = bytearray()

    def _header(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name, self._value = bytearray(), bytearray()

    def _close(self) -> None:
        disposition = parse_options_header(self._headers.get(b"content-disposition", b""))[1]
        name = disposition.get(b"name", b"").decode("utf-8", "replace")
        if not name or name in self._found:
            _refuse("every part of the multipart body needs a name of its own")
        content_type = self._headers.get(b"content-type", b"").decode("latin-1")
        self._found[name] = Part(bytes(self._data), content_type)
        self._data = bytearray()

    def _end(self) -> None:
        self._ended = True


def _refuse(msg: str) -> NoReturn:
    raise InvalidBody(Issue(("body",), "multipart_invalid", msg)) from None
