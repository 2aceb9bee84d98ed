"""Token lists -> what they have in common. Pure arithmetic over token ids; texts are never compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Tokens: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """The complete prompts of a request, in the order of its questions, kept as what they are made of: all begin with
    `stem` (the template's head and the state), each goes on with one of `rests`. Joined they would take a state's size
    for every question.

    prefix: how many tokens all prompts agree on; at least one token of each is beyond it, because the forward pass that
    is read has to evaluate something. A single prompt shares nothing, so its prefix is 0.
    step: tokens from there to the next place where a prompt can be cut.
    """

    stem: Tokens
    rests: tuple[Tokens, ...]
    prefix: int
    step: int = 1

    def prompt(self, index: int) -> Tokens:
        """The complete prompt of one question."""
        return self.stem + self.rests[index]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return len(self.stem) + max(map(len, self.rests))


def share(stem: Tokens, rests: Sequence[Tokens]) -> PrefixPlan:
    """The longest run of tokens that all prompts begin with, leaving each at least one token. `rests` are not empty."""
    if len(rests) < 2:
        return PrefixPlan(stem, tuple(rests), 0)
    length = min(map(len, rests)) - 1
    for rest in rests[1:]:
        length = common(rests[0], rest, limit=length)
    return PrefixPlan(stem, tuple(rests), len(stem) + length)


def common(a: Sequence[int], b: Sequence[int], *, limit: int | None = None) -> int:
    """How many tokens `a` and `b` agree on from the start, at most `limit`."""
    end = min(len(a), len(b)) if limit is None else min(len(a), len(b), limit)
    for i in range(end):
        if a[i] != b[i]:
            return i
    return max(0, end)
