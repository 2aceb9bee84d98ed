from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev_local.core.answers import ChoiceAnswer, NoulAnswer, Reading, ScoreAnswer, answer
from jev_local.core.questions import Choice, Noul, Option, Score

WEIGHTS = st.lists(st.floats(0.001, 1), min_size=1, max_size=10)


def normal(weights: list[float]) -> tuple[float, ...]:
    return tuple(w / math.fsum(weights) for w in weights)


def test_a_noul_is_the_probability_of_yes() -> None:
    assert answer(Noul("q"), Reading((0.91, 0.09))) == NoulAnswer("q", 0.91, Reading((0.91, 0.09)))


@pytest.mark.parametrize(
    ("p", "choice", "confidence"),
    # (m - 1/n) / (1 - 1/n), worked out by hand
    [((0.85, 0.1, 0.05), 0, 0.775), ((0.2, 0.61, 0.19), 1, 0.415), ((0.5, 0.5), 0, 0.0), ((1.0,), 0, 1.0)],
)
def test_choice(p: tuple[float, ...], choice: int, confidence: float) -> None:
    options = tuple(Option(str(i)) for i in range(len(p)))
    got = answer(Choice("q", None, options), Reading(p))
    assert isinstance(got, ChoiceAnswer)
    assert (got.choice, got.confidence) == (choice, pytest.approx(confidence))


@pytest.mark.parametrize(
    ("p", "score", "confidence"),
    # D = 2/3 for three levels; D = 1/2 for two
    [
        ((0.18, 0.72, 0.1), 0.92, 0.58),
        ((0.0, 0.05, 0.95), 1.95, 0.925),
        ((0.5, 0.0, 0.5), 1.0, 0.0),
        ((0.25, 0.75), 0.75, 0.5),
        ((1.0,), 0.0, 1.0),
    ],
)
def test_score(p: tuple[float, ...], score: float, confidence: float) -> None:
    got = answer(Score("q", None, tuple("abcdefghij"[: len(p)])), Reading(p))
    assert isinstance(got, ScoreAnswer)
    assert (got.score, got.confidence) == (pytest.approx(score), pytest.approx(confidence))


@given(WEIGHTS)
def test_scores_and_confidences_stay_on_their_scales(weights: list[float]) -> None:
    reading = Reading(normal(weights))
    n = len(weights)
    scored = answer(Score("q", None, tuple(map(str, range(n)))), reading)
    chosen = answer(Choice("q", None, tuple(Option(str(i)) for i in range(n))), reading)
    assert isinstance(scored, ScoreAnswer)
    assert isinstance(chosen, ChoiceAnswer)
    assert 0 <= scored.score <= n - 1
    assert 0 <= scored.confidence <= 1
    assert 0 <= chosen.confidence <= 1
    assert reading.probabilities[chosen.choice] == max(reading.probabilities)
