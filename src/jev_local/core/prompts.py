"""State and question -> the text of a chat's user message, cut where questions begin to differ.

    Text:                         } common to every question of a request:
    <state>                       } with the template's own beginning it is the shared prefix
    Question: <instructions>      } one of these per question
    A: <option>                   }
    B: <option>                   }
    Which?                        }

and the assistant's message already begins: "The best option is (", so that the next token is a label.

The wording is a `PromptStyle`; `DEFAULT_STYLE` was chosen by measurement (docs/decisions.md). Cuts stand right behind
a line break and before a letter: tokenisers split there by themselves, so the pieces' tokens joined are those of the
whole text. Our own words stand at both ends of the message, so a template that trims it changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jev_local.core.questions import Choice, Noul, Option, Question


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """One wording and layout.

    system: text of the system message (put before `lead` on models without a system role), "" for none.
    lead: what stands before the state. ask: what stands before the instructions.
    option: how an option is shown, with {label} and {text}. options_first: options before the instructions.
    close: last line of the message. prefill: what the assistant's message already begins with.
    yes, no: what a noul's two options are called.
    """

    name: str
    system: str = ""
    lead: str = "Text:\n"
    ask: str = "Question: "
    option: str = "{label}: {text}"
    options_first: bool = False
    close: str = "Answer:"
    prefill: str = ""
    yes: str = "yes"
    no: str = "no"


DEFAULT_STYLE = PromptStyle(name="prefill-which", close="Which?", prefill="The best option is (")

UNASKED = {"noul": "Is it true?", "choice": "Which option fits best?", "score": "Which level fits best?"}
"""The question where the caller gave none."""


def shared_text(style: PromptStyle, state: str) -> str:
    """The part of the user message that every question of a request begins with."""
    return f"{style.lead}{state}\n"


def question_lead(style: PromptStyle) -> str:
    """What every question's part begins with, up to a place where tokenisers cut; "" where options come first."""
    return "" if style.options_first else style.ask.rstrip()


def question_text(style: PromptStyle, question: Question, labels: Sequence[str]) -> str:
    """The part of the user message that one question adds. `labels` stand in the order of its options."""
    lines = [
        style.option.format(label=label, text=text)
        for label, text in zip(labels, option_texts(style, question), strict=True)
    ]
    asked = style.ask + _instructions(question)
    body = [*lines, asked] if style.options_first else [asked, *lines]
    return "\n".join([*body, style.close] if style.close else body)


def option_texts(style: PromptStyle, question: Question) -> list[str]:
    """What each option says: its key and, where there is one, its description."""
    match question:
        case Noul():
            options = [Option(style.yes, question.when_true), Option(style.no, question.when_false)]
        case Choice():
            options = list(question.options)
        case _:
            options = [Option(level) for level in question.levels]
    return [option.key if option.text is None else f"{option.key} ({option.text})" for option in options]


def _instructions(question: Question) -> str:
    if question.instructions is not None:
        return question.instructions
    kind = "noul" if isinstance(question, Noul) else "choice" if isinstance(question, Choice) else "score"
    return UNASKED[kind]
