"""Token lists -> what they have in common. Pure arithmetic over token ids; texts are never compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Tokens: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """`branches` are the complete prompts in the order of the questions; all begin with the same `prefix` tokens.

    Every branch keeps at least one token of its own: the forward pass that is read has to evaluate something.
    A single branch shares nothing, so its prefix is 0.
    """

    prefix: int
    branches: tuple[Tokens, ...]

    @property
    def longest(self) -> int:
        return max((len(branch) for branch in self.branches), default=0)


def share(branches: Sequence[Tokens]) -> PrefixPlan:
    """The longest run of tokens that all branches begin with, leaving each at least one token."""
    if len(branches) < 2:
        return PrefixPlan(0, tuple(branches))
    length = min(len(branch) for branch in branches) - 1
    first = branches[0]
    for branch in branches[1:]:
        length = common(first, branch, limit=length)
    return PrefixPlan(max(0, length), tuple(branches))


def common(a: Sequence[int], b: Sequence[int], *, limit: int | None = None) -> int:
    """How many tokens `a` and `b` agree on from the start, at most `limit`."""
    end = min(len(a), len(b)) if limit is None else min(len(a), len(b), limit)
    for i in range(end):
        if a[i] != b[i]:
            return i
    return max(0, end)
