"""Replies that somebody wrote down: do their numbers belong together?"""

from __future__ import annotations

from typing import Any

from jev_local.core.answers import ChoiceAnswer, NoulAnswer, Reading, ScoreAnswer, answer
from jev_local.core.questions import Choice, Noul, Option, Score

DIGITS = 2
"""Examples are rounded to so many: each number to what follows from the probabilities as they stand there."""


def check_arithmetic(reply: dict[str, Any]) -> None:
    """Holds every answer against what `core.answers` makes of its probabilities."""
    assert reply["answers"]
    for id_, told in reply["answers"].items():
        worked_out = expected(told)
        assert {name: told[name] for name in worked_out} == worked_out, id_


def expected(told: dict[str, Any]) -> dict[str, Any]:
    if told["type"] == "noul":
        made = answer(Noul("q", "?"), Reading((told["noul"], 1 - told["noul"])))
        assert isinstance(made, NoulAnswer)
        assert 0 <= made.noul <= 1
        return {"noul": made.noul}
    names, p = tuple(told["probabilities"]), tuple(told["probabilities"].values())
    assert round(sum(p), 9) == 1
    if told["type"] == "choice":
        made = answer(Choice("q", None, tuple(map(Option, names))), Reading(p))
        assert isinstance(made, ChoiceAnswer)
        return {"choice": names[made.choice], "confidence": round(made.confidence, DIGITS)}
    assert list(names) == list(told["legend"]) == list(map(str, range(len(p))))
    made = answer(Score("q", None, tuple(told["legend"].values())), Reading(p))
    assert isinstance(made, ScoreAnswer)
    return {"score": round(made.score, DIGITS), "confidence": round(made.confidence, DIGITS)}
