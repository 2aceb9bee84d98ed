"""The wordings and layouts that `tools.benchmark_prompts` compares.."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from jev_local.core.prompts import PromptStyle

LabelKind = Literal["letters", "numbers", "words"]


@dataclass(frozen=True, slots=True)
class Variant:
    """A style and what its options are answered with: letters, numbers, or the first token of their own text."""

    style: PromptStyle
    labels: LabelKind
    note: str

    @property
    def name(self) -> str:
        return self.style.name


LETTERS = PromptStyle(
    name="letters",
    system="Read the text, then answer the question about it with the letter of the best option.",
)

VARIANTS: tuple[Variant, ...] = (
    Variant(LETTERS, "letters", "system text, A: option, closing line"),
    Variant(
        replace(LETTERS, name="letters-nosystem", system="", lead=f"{LETTERS.system}\nText:\n"),
        "letters",
        "the same text in the user's message instead of a system message",
    ),
    Variant(
        replace(LETTERS, name="letters-bare", system="", close="Answer with a letter:"),
        "letters",
        "no system text at all, the closing line says it",
    ),
    Variant(
        replace(LETTERS, name="letters-options-first", options_first=True), "letters", "options before the question"
    ),
    Variant(
        replace(LETTERS, name="letters-prefill", close="Which one?", prefill="The best option is ("),
        "letters",
        "the assistant's message already begins",
    ),
    Variant(
        replace(LETTERS, name="letters-terse", ask="", close="", lead=""),
        "letters",
        "no words between the caller's texts",
    ),
    Variant(
        replace(
            LETTERS,
            name="numbers",
            system="Read the text, then answer the question about it with the number of the best option.",
        ),
        "numbers",
        "1: option",
    ),
    Variant(
        replace(
            LETTERS,
            name="words",
            system="Read the text, then answer the question about it with one of the options, word for word.",
            option="- {text}",
        ),
        "words",
        "the option's own first token; letters where those are not distinct",
    ),
)
