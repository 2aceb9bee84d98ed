"""Prompts with pictures: what they are sent as, beside what they come to in tokens.

llama-server takes token ids for text alone. A prompt with a picture is sent as text with the picture's file beside it,
and the server tokenises it. Here such a prompt is a run of pieces, each known as both. Everything else in this product
then handles it as tokens, in which a picture is as many numbers of its own as it takes places, and what is to be sent
is looked up at the last moment. That works wherever a piece ends, and pieces are cut where tokenisers cut by
themselves: the server's own count, which comes with every reply, says whether that held.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, cycle, islice, pairwise
from typing import TypeAlias

from jev_local.core.pictures import Picture
from jev_local.core.plan import PrefixPlan, Tokens

Content: TypeAlias = str | Picture

NO_TOKEN = -1
"""llama-server's name for a place that holds no token of the vocabulary."""

WORD_BYTES = 7
"""Of a picture's digest in each of its numbers, so that these fit into 63 bits. Four of them, 224 bits, come in turn:
no picture can be made to pass for another."""

WORDS = 4

_SEAM = re.compile(r"(?<=\S\n)(?=[^\W_])|(?<=[^\W_])(?= [^\W_])")
"""Between a single line break and a letter, and before a single space between two letters: byte-pair vocabularies join
nothing across either. (Of several breaks, some keep the last one for itself, which alone they would not.)"""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a prompt: what is sent, and the tokens that it comes to."""

    content: Content
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Spelled:
    """A prompt that is sent as text and pictures. `length`: the tokens that it should come to; None where nothing
    depends on it."""

    contents: tuple[Content, ...]
    length: int | None

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(content for content in self.contents if isinstance(content, Picture))


Prompt: TypeAlias = Tokens | Spelled


@dataclass(frozen=True, slots=True)
class Spelling:
    """The prompts of a request with pictures: all begin with the pieces of `stem`, each goes on with one of `rests`,
    whose first pieces are the same lead. `endings`: what the first tokens of two-token labels are written as behind a
    prompt. `exact`: whether lengths have to be as foretold."""

    stem: tuple[Piece, ...]
    rests: tuple[tuple[Piece, ...], ...]
    endings: Mapping[int, str] = field(default_factory=dict)
    exact: bool = True
    _rest_of: dict[Tokens, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rest_of", {joined(rest): i for i, rest in enumerate(self.rests)})

    @property
    def plan(self) -> PrefixPlan:
        """The same as tokens. What all prompts have in common ends with the stem; the next place where a prompt can be
        cut is behind the questions' lead."""
        stem = joined(self.stem)
        shared = len(stem) if len(self.rests) > 1 else 0
        return PrefixPlan(stem, tuple(map(joined, self.rests)), shared, step=len(self.rests[0][0].tokens))

    @property
    def cuts(self) -> tuple[int, ...]:
        """The lengths at which the stem can be cut."""
        return tuple(accumulate(len(piece.tokens) for piece in self.stem))

    @property
    def heaviest(self) -> int:
        """Bytes of the pictures of the prompt that has the most."""
        return _weight(self.stem) + max(map(_weight, self.rests))

    def spell(self, tokens: Tokens) -> Spelled:
        """What `tokens`, a prompt or one of the beginnings that it can be cut at, is sent as."""
        contents = [*self._contents(tokens)]
        return Spelled(tuple(_merged(contents)), len(tokens) if self.exact else None)

    def _contents(self, tokens: Tokens) -> Iterable[Content]:
        cuts = self.cuts
        stem = [piece.content for piece in self.stem]
        if len(tokens) <= cuts[-1]:
            return stem[: cuts.index(len(tokens)) + 1]
        rest = tokens[cuts[-1] :]
        lead = self.rests[0][0]
        if rest == lead.tokens:
            return [*stem, lead.content]
        ending = "" if rest in self._rest_of else self.endings[rest[-1]]
        index = self._rest_of[rest[:-1] if ending else rest]
        return [*stem, *(piece.content for piece in self.rests[index]), ending]


def _weight(pieces: Iterable[Piece]) -> int:
    return sum(len(piece.content.data) for piece in pieces if isinstance(piece.content, Picture))


def joined(pieces: Iterable[Piece]) -> Tokens:
    """The tokens of all `pieces`."""
    return tuple(chain.from_iterable(piece.tokens for piece in pieces))


def picture_tokens(picture: Picture, size: int) -> Tokens:
    """`size` numbers that stand for `picture` and for no other, none of them a token."""
    starts = range(0, WORDS * WORD_BYTES, WORD_BYTES)
    words = [NO_TOKEN - 1 - int.from_bytes(picture.digest[start : start + WORD_BYTES], "big") for start in starts]
    return tuple(islice(cycle(words), size))


def blocks(text: str, size: int) -> list[str]:
    """`text` in parts of about `size` characters, cut only where no tokeniser joins anything."""
    parts, start = [], 0
    for match in _SEAM.finditer(text):
        if match.start() - start >= size:
            parts.append(text[start : match.start()])
            start = match.start()
    return [*parts, text[start:]] if text[start:] else parts


def steps(held: int, end: int, chunk: int, *, cuts: Sequence[int] | None = None) -> list[int]:
    """The lengths to evaluate a prefix of `end` tokens to, one after another, no more than `chunk` at a time where that
    can be; `held` of it are there already. cuts: where alone it can be cut, None for anywhere. There each step sends
    all pictures up to its end again, so none is made for less than half of a chunk, before it or behind."""
    if cuts is None:
        return [*range(held + chunk, end, chunk), end]
    chosen, last = [], held
    places = [*(cut for cut in cuts if held < cut < end), end]
    for place, after in pairwise(places):
        if after - last > chunk and min(place - last, end - place) >= chunk / 2:
            chosen.append(place)
            last = place
    return [*chosen, end]


def _merged(contents: Iterable[Content]) -> list[Content]:
    """Texts side by side as one: what is sent has them joined anyway, and is compared."""
    merged: list[Content] = []
    for content in contents:
        if isinstance(content, str) and merged and isinstance(merged[-1], str):
            merged[-1] += content
        elif content:
            merged.append(content)
    return merged
