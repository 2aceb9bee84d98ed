"""Where two prompts part, as text, and what they would be without what stands there. Tokens are somebody else's to
make: the ids of every piece are asked for, never guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from jev_local.core.compared import Where
from jev_local.core.kinds import FAR, Span, Standing, standing
from jev_local.core.plan import Tokens, common
from jev_local.core.values import Kind

CONTEXT = 80
"""Characters that are told before and behind the place where texts part."""

MAX_MOVES = 8
"""Things that are moved out of the way one after another, such as a date, then a customer's number."""

MOVABLE: frozenset[Kind] = frozenset(("date-time", "id", "number", "user-name", "white-space", "key-order"))
"""Values that change from one request to the next, and ways to write the same. Instructions are neither."""


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """A part of a prompt that is tokenised by itself. control: control tokens are recognised in it."""

    text: str = field(repr=False)
    control: bool


@dataclass(frozen=True, slots=True)
class Rendered:
    """A request as the model reads it: `pieces` of text, and the `tokens` that they come to. stem: how many of those
    come before what is meant to change: the questions, or the last user message. begin: ids before the pieces'."""

    pieces: tuple[PromptPiece, ...]
    tokens: Tokens = field(repr=False)
    stem: int
    begin: Tokens = ()

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def with_tokens(self, pieces: tuple[PromptPiece, ...], ids: Sequence[Tokens]) -> Rendered:
        """The same prompt of other `pieces`, all changes being in the stem: what comes behind has as many tokens."""
        first, *rest = ids or [()]
        begin = () if first[: len(self.begin)] == self.begin else self.begin
        tokens = begin + first + tuple(id_ for piece in rest for id_ in piece)
        return Rendered(pieces, tokens, max(0, self.stem + len(tokens) - len(self.tokens)), self.begin)


@dataclass(frozen=True, slots=True)
class Place:
    """Where two texts part. before: the end of what they have in common. left, right: how each goes on.
    left_value, right_value: what of that is the thing of `kind`, its beginning in `before` included."""

    kind: Kind
    before: str
    left: str
    right: str
    left_value: str = ""
    right_value: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """What stood in the way, and how many tokens agree once it does not, after those before it."""

    kind: Kind
    left: str
    right: str
    agree: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The first one of two texts: where, and what stands there."""

    at: int
    standing: Standing


def difference(left: str, right: str, where: Where = "elsewhere", *, reusable: bool = False) -> Difference | None:
    """The first difference, or None where both are the same. reusable: it comes behind all that can be reused."""
    if left == right:
        return None
    at = shared_length(left, right)
    found = standing(left, right, at)
    if reusable:
        found = _called(found, "question")
    elif where == "model":
        found = _called(found, "model")
    elif where == "roles" or (where == "instructions" and found.kind == "text"):
        found = _called(found, "template")
    return Difference(at, found)


def place(left: str, right: str, found: Difference) -> Place:
    """What is told of `found`."""
    at, what = found.at, found.standing
    return Place(
        what.kind,
        left[max(0, at - CONTEXT) : at],
        left[at : at + CONTEXT],
        right[at : at + CONTEXT],
        _shortened(left, what.left),
        _shortened(right, what.right),
    )


def edited(one: Rendered, other: Rendered, what: Standing) -> tuple[tuple[PromptPiece, ...], tuple[PromptPiece, ...]]:
    """The pieces of both without what stands there; where it is only written in another way, the second one's as the
    first one has it."""
    if what.alike:
        begin, end = what.left
        return one.pieces, replaced(other.pieces, what.right, one.text[begin:end])
    return replaced(one.pieces, what.left, ""), replaced(other.pieces, what.right, "")


def can_go(what: Standing, left: str, right: str) -> bool:
    """Whether it is a part of both texts, with something behind it that they have in common."""
    return max(what.left[1] - what.left[0], what.right[1] - what.right[0]) <= FAR and not (
        what.left[1] >= len(left) or what.right[1] >= len(right)
    )


def replaced(pieces: Sequence[PromptPiece], span: Span, text: str) -> tuple[PromptPiece, ...]:
    """`pieces` with `text` in place of the characters of `span`, counted over all of them."""
    begin, end = span
    ends = list(accumulate(len(piece.text) for piece in pieces))
    made: list[PromptPiece] = []
    put = False
    for piece, stop in zip(pieces, ends, strict=True):
        start = stop - len(piece.text)
        low, high = min(max(begin - start, 0), len(piece.text)), min(max(end - start, 0), len(piece.text))
        here = not put and begin <= stop and (begin < stop or stop == ends[-1])
        put = put or here
        made.append(PromptPiece(piece.text[:low] + (text if here else "") + piece.text[high:], piece.control))
    return tuple(made)


def shared_length(left: str, right: str) -> int:
    """How many characters both begin with. Halves the range, as comparing slices is fast and a loop is not."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def agreement(one: Rendered, other: Rendered) -> int:
    """How many tokens both begin with."""
    return common(one.tokens, other.tokens)


def _called(found: Standing, kind: Kind) -> Standing:
    return Standing(kind, found.left, found.right)


def _shortened(text: str, span: Span) -> str:
    begin, end = span
    return text[begin : min(end, begin + CONTEXT)]
