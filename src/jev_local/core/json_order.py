"""JSON inside of texts: whether two of them hold the same there with its members in another order."""

from __future__ import annotations

import json
from typing import TypeAlias

Pair: TypeAlias = tuple[tuple[int, int], tuple[int, int]]

OBJECTS = 16
"""How many opening braces before the place are tried as the beginning of a JSON object."""

BEFORE = 20_000
LONGEST = 65_536
"""Characters before the place in which such a brace is looked for, and of a JSON object."""

_DECODER = json.JSONDecoder()


def same_in_another_order(left: str, right: str, at: int) -> Pair | None:
    """Where the innermost JSON objects lie around `at` (up to which both texts are the same) that are equal but for the
    order of their members, or None."""
    brace = at + 1
    for _ in range(OBJECTS):
        brace = left.rfind("{", max(0, at - BEFORE), brace - 1 if brace <= at else at)
        if brace < 0:
            return None
        one, other = _object(left, brace), _object(right, brace)
        if one is None or other is None or min(one[1], other[1]) <= at:
            continue
        if one[0] == other[0] and _members(one[0]) != _members(other[0]):
            return (brace, one[1]), (brace, other[1])
    return None


def _object(text: str, start: int) -> tuple[object, int] | None:
    """The object that begins at `start`, and where it ends."""
    try:
        value, length = _DECODER.raw_decode(text[start : start + LONGEST])
    except (ValueError, RecursionError):
        return None
    return value, start + length


def _members(value: object) -> object:
    """The same with the order of members made to count."""
    if isinstance(value, dict):
        return [(key, _members(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [_members(inner) for inner in value]
    return value
