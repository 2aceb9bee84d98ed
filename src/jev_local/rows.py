"""What the answer table says, before anyone decides how it looks: one Row for each question.

Texts in here are still as the caller and the server wrote them; `terminal` makes them fit to be shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from jev_local.received import Received, ReceivedAnswer, ReceivedChoice, ReceivedNoul, ReceivedOther, ReceivedScore

MOST_BARS = 6
"""A choice with more options shows all but the most probable ones as one line, to stay readable at 255."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One probability. `chosen` marks the option that is the answer."""

    label: str
    share: float
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One question and its answer. `hidden` options are not among the bars; together they have `hidden_share`."""

    id: str
    question: str
    answer: str
    bars: tuple[Bar, ...] = ()
    confidence: float | None = None
    hidden: int = 0
    hidden_share: float = 0.0
    warnings: tuple[str, ...] = ()


def rows(request: object, reply: Received) -> tuple[Row, ...]:
    """One row per question in the order of the request, then any answers that nobody asked for."""
    questions = _mapping(_mapping(request).get("questions"))
    asked = tuple(_row(id_, _mapping(question), reply.answers.get(id_)) for id_, question in questions.items())
    extra = tuple(_row(id_, {}, answer) for id_, answer in reply.answers.items() if id_ not in questions)
    return asked + extra


def state_of(request: object) -> str:
    return as_text(_mapping(request).get("state"))


def as_text(value: object) -> str:
    """Text of the contract as people read it: a string as it is, null as nothing, structured text as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply to be shown)"


def _row(id_: str, question: Mapping[str, object], answer: ReceivedAnswer | None) -> Row:
    text = as_text(question.get("instructions"))
    match answer:
        case ReceivedNoul(noul=yes):
            # A noul may come without instructions; then what counts as yes is the question.
            text = text or as_text(_mapping(question.get("criteria")).get("true"))
            bar = Bar("yes", yes, yes >= 0.5)
            return Row(id_, text, "yes" if bar.chosen else "no", (bar,), warnings=answer.warnings)
        case ReceivedChoice():
            return _choice(id_, text, _mapping(question.get("criteria")), answer)
        case ReceivedScore():
            return _score(id_, text, answer)
        case None:
            return Row(id_, text, "(no answer)")
        case ReceivedOther():
            return Row(id_, text, as_text(answer.fields))


def _choice(id_: str, text: str, criteria: Mapping[str, object], answer: ReceivedChoice) -> Row:
    # The server's order means nothing, so options of equal probability stand as the request has them.
    order = {name: index for index, name in enumerate(criteria)}
    ranked = sorted(answer.probabilities.items(), key=lambda option: (-option[1], order.get(option[0], len(order))))
    # Hiding a single option would take the line that shows it.
    shown = ranked if len(ranked) <= MOST_BARS else ranked[: MOST_BARS - 1]
    return Row(
        id=id_,
        question=text,
        answer=answer.choice,
        bars=tuple(Bar(name, share, name == answer.choice) for name, share in shown),
        confidence=answer.confidence,
        hidden=len(ranked) - len(shown),
        hidden_share=sum(share for _, share in ranked[len(shown) :]),
        warnings=answer.warnings,
    )


def _score(id_: str, text: str, answer: ReceivedScore) -> Row:
    nearest = int(answer.score + 0.5)
    meaning = as_text(answer.legend.get(nearest))
    top = max(answer.probabilities, default=0)
    return Row(
        id=id_,
        question=text,
        answer=f"{answer.score:.2f} of {top}" + (f": {meaning}" if meaning else ""),
        bars=tuple(
            Bar(f"{level} {as_text(answer.legend.get(level))}", share, level == nearest)
            for level, share in answer.probabilities.items()
        ),
        confidence=answer.confidence,
        warnings=answer.warnings,
    )


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
