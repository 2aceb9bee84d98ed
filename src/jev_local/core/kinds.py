"""What kind of thing stands where two texts part: a date, an id, a number, a name, white space, JSON in another order.

Tokens part in the middle of things ("2026-11-29" and "2026-11-30"), so it is the whole value around the place that is
looked at, never the rest from there on. What a value looks like is a table in `core.values`; the first rule that fits
wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from jev_local.core.json_order import same_in_another_order
from jev_local.core.values import RULES, Kind

Span: TypeAlias = tuple[int, int]

REACH = 240
"""Characters to either side of the place in which a value is looked for."""

ANCHOR = 24
"""Characters that have to be the same for two texts to count as going on together."""

FAR = 4_000
"""Characters behind the place in which that is looked for."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands where two texts part, and where it begins and ends in each. alike: it would be made the same rather
    than moved elsewhere. Both spans begin at the same character."""

    kind: Kind
    left: Span
    right: Span
    alike: bool = False


_UNSEEN = "\u200b\ufeff"
_SPACES = re.compile(rf"[\s{_UNSEEN}]*")


def standing(left: str, right: str, at: int) -> Standing:
    """What stands at `at`, the first character in which `left` and `right` differ, or where the shorter one ends."""
    return _white_space(left, right, at) or _order(left, right, at) or _value(left, right, at) or _text(left, right, at)


def _white_space(left: str, right: str, at: int) -> Standing | None:
    """More, less or other white space, and then the same on both sides."""
    start = at
    while start and (left[start - 1].isspace() or left[start - 1] in _UNSEEN):
        start -= 1
    ends = [_end_of_space(text, start) for text in (left, right)]
    if left[ends[0] : ends[0] + ANCHOR] != right[ends[1] : ends[1] + ANCHOR]:
        return None
    return Standing("white-space", (start, ends[0]), (start, ends[1]), alike=True)


def _end_of_space(text: str, start: int) -> int:
    space = _SPACES.match(text, start)
    return space.end() if space else start


def _order(left: str, right: str, at: int) -> Standing | None:
    found = same_in_another_order(left, right, at)
    return None if found is None else Standing("key-order", *found, alike=True)


def _value(left: str, right: str, at: int) -> Standing | None:
    for rule in RULES:
        one, other = _covering(rule.pattern, left, at), _covering(rule.pattern, right, at)
        found = [span for span in (one, other) if span is not None]
        # A value that ends where the texts part is cut short in one and goes on in the other; in both it is the same.
        if not any(end > at for _, end in found) or (rule.both and len(found) < 2):
            continue
        start = min(begin for begin, _ in found)
        if one is None:
            one = start, _other_end(left, start, right[other[1] : other[1] + FAR] if other else "")
        if other is None:
            other = start, _other_end(right, start, left[one[1] : one[1] + FAR])
        return Standing(rule.kind, (start, one[1]), (start, other[1]))
    return None


def _covering(pattern: re.Pattern[str], text: str, at: int) -> Span | None:
    """Where a match lies that `at` is in, or right behind."""
    low = max(0, at - REACH)
    if low:  # not in the middle of a word, where a pattern would take the rest for a whole
        low = max(low, *(text.find(mark, low, at) + 1 for mark in "\n "))
    for match in pattern.finditer(text[low : at + REACH]):
        begin, end = match.span("value" if "value" in pattern.groupindex else 0)
        if low + begin <= at <= low + end and begin < end:
            return low + begin, low + end
    return None


def _other_end(text: str, start: int, following: str) -> int:
    """Where what stands in the other text's place ends: where that goes on, else with the word."""
    anchor = following.lstrip()[:ANCHOR]
    if anchor and (found := text.find(anchor, start, start + FAR)) >= 0:
        return found
    word = re.compile(r"\S*").match(text, start)
    return word.end() if word else start


def _text(left: str, right: str, at: int) -> Standing:
    """Anything else: from the word's beginning to where both go on alike, or to the ends of both."""
    start = at
    while start and at - start < REACH and _is_latin(left[start - 1]):
        start -= 1
    ends = _together(left, right, start, at)
    return Standing("text", (start, ends[0]), (start, ends[1]))


def _is_latin(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char == "_")


def _together(left: str, right: str, start: int, at: int) -> Span:
    """The nearest places behind `at` from where both texts go on alike."""
    places: dict[str, int] = {}
    for offset, piece in _pieces(right, start, at):
        places.setdefault(piece, offset)
    best: Span | None = None
    for offset, piece in _pieces(left, start, at):
        other = places.get(piece)
        if other is not None and (best is None or offset + other < sum(best)):
            best = offset, other
    return best or (len(left), len(right))


def _pieces(text: str, start: int, at: int) -> Iterator[tuple[int, str]]:
    for offset in range(start, min(len(text) - ANCHOR + 1, at + FAR)):
        yield offset, text[offset : offset + ANCHOR]
