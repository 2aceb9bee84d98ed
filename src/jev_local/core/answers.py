"""From a distribution over a question's options to its answer, with TypeSafe's published confidence.

choice: (m - 1/n) / (1 - 1/n), m the largest probability.
score:  max(0, 1 - sum p_i |i - k| / D), k the first most probable level, D = (1/n) sum |i - (n - 1)/2|.
Both are 1 when there is one option. A noul has no confidence: its probability says it all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jev_local.core.questions import Choice, Noul, Question


@dataclass(frozen=True, slots=True)
class Reading:
    """What one question's forward pass said.

    probabilities: one per option in the question's order (noul: yes, no), non-negative, summing to 1.
    mass: the share of the model's own next-token probability that fell on the labels, 0 to 1
          (1 where nothing had to be asked).
    warnings: codes such as "low-mass", for X-Jev-Local-Warnings and x_warnings.
    """

    probabilities: tuple[float, ...]
    mass: float = 1.0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoulAnswer:
    id: str
    noul: float
    reading: Reading


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """`choice` is the index of the most probable option (the first on ties)."""

    id: str
    choice: int
    confidence: float
    reading: Reading


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """`score` is the expected level, 0 to n - 1, not rounded."""

    id: str
    score: float
    confidence: float
    reading: Reading


Answer: TypeAlias = NoulAnswer | ChoiceAnswer | ScoreAnswer


def answer(question: Question, reading: Reading) -> Answer:
    """The answer to `question`, whose options stand in the order of `reading.probabilities`."""
    p = reading.probabilities
    if isinstance(question, Noul):
        return NoulAnswer(question.id, p[0], reading)
    if isinstance(question, Choice):
        return ChoiceAnswer(question.id, first_largest(p), choice_confidence(p), reading)
    return ScoreAnswer(question.id, expectation(p), score_confidence(p), reading)


def first_largest(p: Sequence[float]) -> int:
    return max(range(len(p)), key=p.__getitem__)


def expectation(p: Sequence[float]) -> float:
    # Rounding in the sum may step a hair outside the scale; the contract's range is 0 to n - 1.
    return min(float(len(p) - 1), sum(i * x for i, x in enumerate(p)))


def choice_confidence(p: Sequence[float]) -> float:
    n = len(p)
    return 1.0 if n == 1 else _unit((max(p) - 1 / n) / (1 - 1 / n))


def score_confidence(p: Sequence[float]) -> float:
    n = len(p)
    if n == 1:
        return 1.0
    k = first_largest(p)
    spread = sum(x * abs(i - k) for i, x in enumerate(p))
    uniform = sum(abs(i - (n - 1) / 2) for i in range(n)) / n
    return _unit(1 - spread / uniform)


def _unit(x: float) -> float:
    return min(1.0, max(0.0, x))
