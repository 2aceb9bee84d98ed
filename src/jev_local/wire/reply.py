"""From the engine's answers to the body of a 200."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from jev_local.core.answers import Answer, ChoiceAnswer, NoulAnswer, Reading, ScoreAnswer
from jev_local.core.questions import Choice, Question
from jev_local.wire.schema import AnyReply, ChoiceReply, NoulReply, ScoreReply, SystemOneReply, UsageReply


def build(
    *,
    model: str,
    questions: Sequence[Question],
    answers: Sequence[Answer],
    legends: Mapping[str, Sequence[Any]],
    input_tokens: int,
    output_tokens: int,
    details: bool,
) -> SystemOneReply:
    """The reply. `answers` stand in the order of `questions`; `legends` holds each score's levels as sent, by id.

    Probabilities keep their full precision. `details` adds the fields that begin with `x_`.
    """
    return SystemOneReply(
        model=model,
        answers={
            question.id: _answer(question, answer, legends, details)
            for question, answer in zip(questions, answers, strict=True)
        },
        usage=UsageReply(input_tokens=input_tokens, output_tokens=output_tokens),
    )


def encode(reply: SystemOneReply) -> bytes:
    """JSON in UTF-8, keys in the order of the contract, optional fields left out where they are not set."""
    return reply.model_dump_json(exclude_none=True).encode()


def _answer(question: Question, answer: Answer, legends: Mapping[str, Sequence[Any]], details: bool) -> AnyReply:
    extra = _details(answer.reading) if details else {}
    p = answer.reading.probabilities
    match answer:
        case NoulAnswer():
            return NoulReply(noul=answer.noul, **extra)
        case ChoiceAnswer():
            # The engine answers a choice with an index; the names are the question's.
            assert isinstance(question, Choice)  # noqa: S101  narrows for the type checker
            keys = [option.key for option in question.options]
            return ChoiceReply(
                choice=keys[answer.choice],
                confidence=answer.confidence,
                probabilities=dict(zip(keys, p, strict=True)),
                **extra,
            )
        case ScoreAnswer():
            return ScoreReply(
                score=answer.score,
                confidence=answer.confidence,
                legend={str(index): level for index, level in enumerate(legends[question.id])},
                probabilities={str(index): x for index, x in enumerate(p)},
                **extra,
            )
        case _:
            assert_never(answer)


def _details(reading: Reading) -> dict[str, Any]:
    return {"x_candidate_mass": reading.mass, "x_warnings": list(reading.warnings)}
