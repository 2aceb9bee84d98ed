"""JSON as the contract wants it: bytes in, plain values out, and nothing in between that could surprise.

Python's own reader is too kind for a public door. It takes NaN, lets the later of two equal keys win, turns
`1e999` into infinity, hands on half of a surrogate pair that no UTF-8 encoder accepts afterwards, and walks
nested arrays by recursion. Everything here is refused before a value leaves this module.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from jev_local.errors import InvalidBody, Issue

MAX_DEPTH = 64
"""Objects and arrays inside one another, the outermost included."""

MAX_VALUES = 500_000
"""Commas and opening brackets in a body. A body of 24 MiB may unpack from 2 KB and hold eight million empty objects,
which take a gigabyte; a text that a model can read has a hundred thousand commas at most."""

_BOM = b"\xef\xbb\xbf"
# The closing quote is optional: an unterminated string then matches to the end of the body in one step.
# Were it required, a body of nothing but `\"` would be tried again from every quote, in quadratic time.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_A_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")

Loc = tuple[str | int, ...]


def parse(body: bytes) -> Any:
    """The JSON value in `body`, a UTF-8 text; a byte order mark, which some editors on Windows write, is skipped.

    Raises InvalidBody for everything that is not strict JSON (RFC 8259), for an object with the same key twice,
    for numbers that a double cannot hold or that have more digits than Python reads (4,300), for lone surrogates
    in strings or keys, for more than 64 levels of nesting, and for more than 500,000 values. No message repeats
    anything from the body.
    """
    body = body.removeprefix(_BOM)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse("utf8_invalid", f"the body is not UTF-8 (byte {error.start})")
    if nested_deeper(body, MAX_DEPTH):
        _refuse("nested_too_deep", f"objects and arrays are nested more than {MAX_DEPTH} deep")
    if body.count(b",") + body.count(b"[") + body.count(b"{") > MAX_VALUES:
        _refuse("too_many_values", f"the body has more than {MAX_VALUES} values")
    objects = _Objects()
    try:
        value = json.loads(text, object_pairs_hook=objects, parse_constant=_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        _refuse("json_invalid", f"the body is not valid JSON (line {error.lineno}, column {error.colno})")
    except ValueError:
        # Only the reader of integers is left: it stops at 4,300 digits, because the time it takes grows squared.
        _refuse("number_too_long", "a number has too many digits")
    # UTF-8 cannot carry a surrogate, so half a pair can only have come from an escape.
    if _SURROGATE_ESCAPE.search(body):
        _check_surrogates(value)
    objects.refuse_doubled(value)
    return value


class _Objects:
    """Builds each object and remembers the last one in which a key came twice.

    The reader calls it for inner objects first. So the object it remembers is never one that was thrown
    away with an outer duplicate, and it can be found again in the value, which gives the error its place.
    """

    def __init__(self) -> None:
        self._doubled: tuple[dict[str, Any], str] | None = None

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            self._doubled = made, twice
        return made

    def refuse_doubled(self, value: Any) -> None:
        if self._doubled is not None:
            made, key = self._doubled
            loc = next(loc for loc, part in _walk(value) if part is made)
            raise InvalidBody(Issue((*loc, key), "duplicate_key", "this key occurs twice in one object"))


def _refuse(kind: str, message: str) -> NoReturn:
    raise InvalidBody(Issue(("body",), kind, message)) from None


def _constant(_: str) -> NoReturn:
    _refuse("json_invalid", "NaN and Infinity are not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        _refuse("number_too_large", "a number is too large for a double")
    return number


def nested_deeper(body: bytes, most: int) -> bool:
    """Whether a JSON text has more than `most` objects and arrays inside one another; found without recursion."""
    # Counting first keeps the common case, a small body, out of the loop below.
    if body.count(b"[") + body.count(b"{") <= most:
        return False
    depth = 0
    for bracket in _STRING.sub(b"", body).translate(None, _NOT_A_BRACKET):
        if bracket in b"[{":
            depth += 1
            if depth > most:
                return True
        else:
            depth -= 1
    return False


def _check_surrogates(value: Any) -> None:
    for loc, part in _walk(value):
        texts = [part] if isinstance(part, str) else part if isinstance(part, dict) else ()
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError:
                # The place named is that of the whole object where a key is at fault: the key cannot be written.
                raise InvalidBody(Issue(loc, "lone_surrogate", "half of a surrogate pair is not text")) from None


def _walk(value: Any) -> Iterator[tuple[Loc, Any]]:
    """Every value inside `value`, containers before what they hold, with its place."""
    waiting: list[tuple[Loc, Any]] = [(("body",), value)]
    while waiting:
        loc, part = waiting.pop()
        yield loc, part
        if isinstance(part, dict):
            waiting.extend(((*loc, key), inner) for key, inner in part.items())
        elif isinstance(part, list):
            waiting.extend(((*loc, index), inner) for index, inner in enumerate(part))
