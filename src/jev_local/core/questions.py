"""The three kinds of question, as plain values. Every text here is what the model will read.

Structured text of the wire (objects, arrays) has been turned into JSON by the time it arrives here;
question ids are kept for the answer and are never shown to the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

MAX_OPTIONS = 255
MAX_LEVELS = 10


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a choice: `key` is the caller's name for it, `text` its description or None."""

    key: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Noul:
    """A yes/no question. `when_true` and `when_false` say what counts as either."""

    id: str
    instructions: str | None = None
    when_true: str | None = None
    when_false: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One of `options` (1 to 255)."""

    id: str
    instructions: str | None
    options: tuple[Option, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.options) <= MAX_OPTIONS:
            raise ValueError(f"a choice has 1 to {MAX_OPTIONS} options, got {len(self.options)}")


@dataclass(frozen=True, slots=True)
class Score:
    """A position on `levels` (1 to 10), from the lowest, index 0, to the highest."""

    id: str
    instructions: str | None
    levels: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.levels) <= MAX_LEVELS:
            raise ValueError(f"a score has 1 to {MAX_LEVELS} levels, got {len(self.levels)}")


Question: TypeAlias = Noul | Choice | Score


def width(question: Question) -> int:
    """How many answers the question admits: 2 for a noul, else options or levels."""
    match question:
        case Noul():
            return 2
        case Choice():
            return len(question.options)
        case Score():
            return len(question.levels)
