"""From answers to JSON."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev_local.core.answers import Reading, answer
from jev_local.core.questions import Choice, Noul, Option, Question, Score
from jev_local.wire.reply import build, encode
from jev_local.wire.schema import SystemOneReply

LEVELS = ("calm", {"text": "怒", "note": None}, ["x"])
QUESTIONS: tuple[Question, ...] = (
    Noul("refund?", "Refund?"),
    Choice("team", None, (Option("billing", "money"), Option("技術"), Option(""))),
    Score("anger", None, ("calm", "{}", "[]")),
)
READINGS = (
    Reading((0.1 + 0.2, 0.7 - 1e-17)),
    Reading((0.25, 0.5, 0.25), mass=0.125, warnings=("low-mass",)),
    Reading((0.18, 0.72, 0.1), warnings=("low-mass", "wants-to-think")),
)


def made(*, details: bool = False) -> str:
    built = build(
        model="fake",
        questions=QUESTIONS,
        answers=[answer(question, reading) for question, reading in zip(QUESTIONS, READINGS, strict=True)],
        legends={"anger": LEVELS},
        input_tokens=212,
        output_tokens=3,
        details=details,
    )
    return encode(built).decode()


def test_the_official_shape_in_the_official_order() -> None:
    assert made() == (
        '{"model":"fake","answers":{"refund?":{"type":"noul","noul":0.30000000000000004},'
        '"team":{"type":"choice","choice":"技術","confidence":0.25,'
        '"probabilities":{"billing":0.25,"技術":0.5,"":0.25}},'
        '"anger":{"type":"score","score":0.9199999999999999,"confidence":0.58,'
        '"legend":{"0":"calm","1":{"text":"怒","note":null},"2":["x"]},'
        '"probabilities":{"0":0.18,"1":0.72,"2":0.1}}},'
        '"usage":{"input_tokens":212,"output_tokens":3}}'
    )


def test_details_come_behind_and_begin_with_x() -> None:
    plain, detailed = json.loads(made()), json.loads(made(details=True))
    for id_, fields in plain["answers"].items():
        assert list(detailed["answers"][id_]) == [*fields, "x_candidate_mass", "x_warnings"]
        assert detailed["answers"][id_] | fields == detailed["answers"][id_]
    assert detailed["answers"]["team"]["x_candidate_mass"] == 0.125
    assert detailed["answers"]["refund?"]["x_warnings"] == []
    assert detailed["answers"]["anger"]["x_warnings"] == ["low-mass", "wants-to-think"]


def test_a_reply_fits_the_schema_that_is_documented() -> None:
    read = SystemOneReply.model_validate_json(made(details=True))
    assert encode(read).decode() == made(details=True)


def test_a_missing_answer_is_an_error_and_not_a_shorter_reply() -> None:
    with pytest.raises(ValueError, match="zip"):
        build(model="m", questions=QUESTIONS, answers=[], legends={}, input_tokens=0, output_tokens=0, details=False)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=255).filter(lambda weights: math.fsum(weights) > 0))
def test_no_digit_of_a_probability_is_lost(weights: list[float]) -> None:
    p = tuple(weight / math.fsum(weights) for weight in weights)
    question = Choice("c", None, tuple(Option(str(index)) for index in range(len(p))))
    built = build(
        model="m",
        questions=[question],
        answers=[answer(question, Reading(p))],
        legends={},
        input_tokens=0,
        output_tokens=0,
        details=False,
    )
    told = json.loads(encode(built))["answers"]["c"]
    assert tuple(told["probabilities"].values()) == p
    assert told["probabilities"][told["choice"]] == max(p)
