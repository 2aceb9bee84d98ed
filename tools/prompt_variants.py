"""The wordings and layouts that `tools.benchmark_prompts` compares. The product's own is among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from jev_local.core.prompts import DEFAULT_STYLE, PromptStyle

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

PREFILL = replace(LETTERS, name="prefill", close="Which one?", prefill="The best option is (")

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
    Variant(PREFILL, "letters", "the assistant's message already begins"),
    Variant(replace(PREFILL, name="prefill-paren", option="({label}) {text}"), "letters", "(A) option"),
    Variant(
        replace(PREFILL, name="prefill-nosystem", option="({label}) {text}", system=""), "letters", "no system text"
    ),
    Variant(replace(PREFILL, name="prefill-nosystem-colon", system=""), "letters", "no system text, A: option"),
    Variant(
        replace(
            PREFILL,
            name="prefill-nosystem-best",
            option="({label}) {text}",
            system="",
            close="Which option is the best answer?",
        ),
        "letters",
        "no system text, a longer closing line",
    ),
    Variant(
        replace(PREFILL, name="prefill-noask", system="", ask=""),
        "letters",
        "no system text, no word before the question",
    ),
    Variant(
        replace(PREFILL, name="prefill-option", system="", prefill="Option ("),
        "letters",
        "a short beginning of the assistant's message",
    ),
    Variant(
        replace(PREFILL, name="prefill-option-paren", system="", option="({label}) {text}", prefill="Option ("),
        "letters",
        "the same, (A) option",
    ),
    Variant(
        replace(PREFILL, name="prefill-noclose", system="", close=""), "letters", "no system text, no closing line"
    ),
    Variant(DEFAULT_STYLE, "letters", "no system text, a shorter closing line: the default"),
    Variant(
        replace(PREFILL, name="prefill-answer", option="({label}) {text}", prefill="The answer is ("),
        "letters",
        "another beginning of the assistant's message",
    ),
    Variant(
        replace(PREFILL, name="prefill-short", option="({label}) {text}", close="Answer:", prefill="("),
        "letters",
        "only the bracket",
    ),
    Variant(
        replace(
            PREFILL,
            name="prefill-choose",
            option="({label}) {text}",
            system="Read the text, then choose the option that answers the question about it.",
        ),
        "letters",
        "a system text that speaks of options instead of letters",
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
