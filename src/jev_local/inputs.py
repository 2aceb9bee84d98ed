"""The request that `systemone ask` sends: read from a file, standard input or the package, its state or its images
replaced if asked.

A body goes out as it was written. Parsing it would hide what the server should judge (duplicate keys, NaN, the
order of keys), so the old state is cut out of the text, and every other character left alone.
"""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jev_local.settings import IMAGE_LIMIT, MAX_IMAGES, MIB

STDIN = "-"

_IMAGES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg"}


class InputError(Exception):
    """The input cannot be sent; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Request:
    """`text` is what is sent; `document` is the same, parsed, for showing next to the answers."""

    text: str
    document: object

    @property
    def body(self) -> bytes:
        return self.text.encode()


def read(source: str | None) -> Request:
    """The request in the file `source`, on standard input for "-", or the packaged example for None."""
    if source is None:
        return parse(example(), "the packaged example")
    return parse(_text(source), "standard input" if source == STDIN else source)


def example() -> str:
    """The 12-question example that comes with the package."""
    return resources.files("jev_local").joinpath("data", "systemone.json").read_text(encoding="utf-8")


def parse(text: str, name: str) -> Request:
    try:
        return Request(text, _DECODER.decode(text))
    except json.JSONDecodeError as error:
        raise InputError(f"{name} is not JSON: {error}") from error
    except RecursionError as error:
        raise InputError(f"{name} is nested too deeply") from error


def with_state(request: Request, state: str) -> Request:
    """The request with `state`, a JSON text, where its state was, or in front where it had none."""
    return _with(request, "state", state, option="--state")


def with_images(request: Request, files: Sequence[str]) -> Request:
    """The request with these PNG or JPEG files as its images, instead of those that it had."""
    if len(files) > MAX_IMAGES:
        raise InputError(f"--image can be given {MAX_IMAGES} times, got {len(files)}")
    urls = ", ".join(f'"{_data_url(file)}"' for file in files)
    return _with(request, "images", f"[{urls}]", option="--image")


def _with(request: Request, key: str, value: str, *, option: str) -> Request:
    if not isinstance(request.document, dict):
        raise InputError(f"{option} needs an input that is a JSON object")
    text = request.text
    spans = [(start, end) for found, start, end in _members(text) if found == key]
    if not spans:
        at = text.index("{") + 1
        text = f'{text[:at]}"{key}": {value}{", " if request.document else ""}{text[at:]}'
    for start, end in reversed(spans):
        text = text[:start] + value + text[end:]
    return parse(text, "the input")


def _data_url(file: str) -> str:
    """The server looks closer. Here is found out what would only come back as a refusal of many megabytes."""
    content = _content(file, most=IMAGE_LIMIT + 1)
    kind = next((kind for magic, kind in _IMAGES.items() if content.startswith(magic)), None)
    if kind is None:
        raise InputError(f"{file} is not a PNG or JPEG file: convert it to one of them")
    if len(content) > IMAGE_LIMIT:
        raise InputError(f"{file} has more than {IMAGE_LIMIT // MIB} MiB: scale it down, or save it as a JPEG")
    return f"data:image/{kind};base64,{b64encode(content).decode()}"


def state(argument: str) -> str:
    """The JSON text for a `--state` argument.

    TEXT is a string, and `@@TEXT` one that begins with an @. `@FILE` (`@-` for standard input) is taken as it stands
    when it holds a JSON object or array; anything else is text, less the line end that closes the file.
    """
    if argument.startswith("@@") or not argument.startswith("@"):
        return _quoted(argument.removeprefix("@"), "--state")
    text = _text(argument[1:])
    try:
        if isinstance(_DECODER.decode(text), dict | list):
            return text.strip()
    except (json.JSONDecodeError, RecursionError):
        pass
    return _quoted(text.removesuffix("\n").removesuffix("\r"), argument[1:])


def _quoted(text: str, name: str) -> str:
    # Bytes of the command line that are not UTF-8 arrive as lone surrogates, which no server could read.
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise InputError(f"{name} is not UTF-8")
    return json.dumps(text, ensure_ascii=False)


def _text(source: str) -> str:
    """All of a file, without the byte order mark that some editors leave."""
    try:
        return _content(source).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not UTF-8 (byte {error.start})") from error


def _content(file: str, *, most: int = -1) -> bytes:
    """The first `most` bytes of a file or of standard input, all where it is negative."""
    try:
        if file == STDIN:
            return sys.stdin.buffer.read(most)
        with Path(file).open("rb") as opened:
            return opened.read(most)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"cannot read {file!r}: {error}") from error


def _integer(digits: str) -> int | float:
    # Python refuses to read very long integers; what they mean is for the server to judge.
    return int(digits) if len(digits) < 1000 else float(digits)


_DECODER = json.JSONDecoder(parse_int=_integer)
_SPACE = re.compile(r"[ \t\r\n]*")


def _members(text: str) -> Iterator[tuple[str, int, int]]:
    """(key, start of value, end of value) for each member of the JSON object that `text` is known to be."""
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, at = _DECODER.raw_decode(text, start)
        yield key, start, at
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at
