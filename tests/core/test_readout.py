from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev_local.core.labels import Label
from jev_local.core.readout import (
    BIAS,
    GENTLE_BIAS,
    STRONGER_BIAS,
    NoDistribution,
    StepReading,
    combine,
    is_certain,
    read_step,
    steps,
    warnings,
)

LOGITS = st.lists(st.floats(-40, 40), min_size=2, max_size=40)


def biased(logits: list[float], labels: list[int], bias: float) -> dict[int, float]:
    """What the backend returns: softmax over the vocabulary after the bias."""
    lifted = [x + (bias if i in labels else 0.0) for i, x in enumerate(logits)]
    top = max(lifted)
    weights = [math.exp(x - top) for x in lifted]
    total = math.fsum(weights)
    return {i: w / total for i, w in enumerate(weights)}


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [w / math.fsum(weights) for w in weights]


@given(LOGITS, st.integers(2, 40), st.sampled_from([0.0, GENTLE_BIAS, BIAS, STRONGER_BIAS]))
def test_the_reading_is_softmax_over_the_labels_and_their_share_of_the_whole(
    logits: list[float], n: int, bias: float
) -> None:
    labels = list(range(min(n, len(logits))))
    reading = read_step(biased(logits, labels, bias), labels, bias=bias)
    for got, wanted in zip(reading.probabilities, softmax([logits[i] for i in labels]), strict=True):
        assert got == pytest.approx(wanted, abs=1e-9)
    assert math.fsum(reading.probabilities) == pytest.approx(1, abs=1e-12)
    assert reading.mass == pytest.approx(math.fsum(softmax(logits)[i] for i in labels), abs=1e-9)
    assert reading.missing == ()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=20))
def test_any_finite_logits_give_a_distribution(logits: list[float]) -> None:
    labels = list(range(len(logits)))
    reading = read_step(biased(logits, labels, BIAS), labels, bias=BIAS)
    assert math.fsum(reading.probabilities) == pytest.approx(1, abs=1e-12)
    assert all(0 <= p <= 1 for p in reading.probabilities)
    assert max(range(len(logits)), key=reading.probabilities.__getitem__) in [
        i for i in labels if logits[i] == pytest.approx(max(logits), rel=1e-9, abs=1e-9)
    ]
    assert 0 <= reading.mass <= 1


@given(LOGITS, st.randoms())
def test_the_order_of_the_options_does_not_matter(logits: list[float], random) -> None:  # type: ignore[no-untyped-def]
    labels = list(range(len(logits) // 2 + 1))
    top = biased(logits, labels, BIAS)
    straight = dict(zip(labels, read_step(top, labels, bias=BIAS).probabilities, strict=True))
    random.shuffle(labels)
    assert dict(zip(labels, read_step(top, labels, bias=BIAS).probabilities, strict=True)) == pytest.approx(straight)


@given(LOGITS)
def test_tokens_that_got_the_bias_for_another_prompt_are_divided_out(logits: list[float]) -> None:
    everything = list(range(len(logits)))
    mine = everything[:1]
    reading = read_step(biased(logits, everything, BIAS), mine, bias=BIAS, biased=everything)
    assert reading.mass == pytest.approx(softmax(logits)[0], abs=1e-9)


@given(
    st.lists(st.lists(st.floats(-15, 15), min_size=5, max_size=5), min_size=3, max_size=3),
    st.lists(st.floats(-15, 15), min_size=5, max_size=5),
)
def test_two_steps_give_the_products_of_the_models_own_probabilities(
    second: list[list[float]], first: list[float]
) -> None:
    tokens = [0, 1, 2]  # of a vocabulary of five: the model may also say 3 or 4 at either step
    one = read_step(biased(first, tokens, BIAS), tokens, bias=BIAS)
    two = [read_step(biased(logits, tokens, BIAS), tokens, bias=BIAS) for logits in second]
    joint = [softmax(first)[i] * softmax(second[i])[j] for i in tokens for j in tokens]
    reading = combine(one, two)
    assert reading.mass == pytest.approx(math.fsum(joint), rel=1e-6, abs=1e-12)
    assert list(reading.probabilities) == pytest.approx([p / math.fsum(joint) for p in joint], abs=1e-9)


@pytest.mark.parametrize(
    ("top", "reason"),
    [
        ({}, "no usable"),
        ({1: math.nan, 2: 0.5}, "no usable"),
        ({1: -0.1, 2: 0.5}, "no usable"),
        ({1: math.inf, 2: 0.5}, "no usable"),
        ({1: 1e308, 2: 1e308}, "no usable"),
        ({1: 10**400, 2: 0.5}, "no usable"),
        ({7: 0.5, 8: 0.5}, "none of the labels"),
        ({1: 0.0, 2: 0.0, 8: 1.0}, "none of the labels"),
    ],
)
def test_what_is_no_distribution_is_refused(top: dict[int, float], reason: str) -> None:
    with pytest.raises(NoDistribution, match=reason):
        read_step(top, [1, 2], bias=BIAS)


def test_a_missing_label_is_named() -> None:
    assert read_step({1: 0.9, 5: 0.1}, [1, 2], bias=BIAS).missing == (2,)


def test_steps_group_by_first_token_in_label_order() -> None:
    pairs = [Label("AA", (1, 1)), Label("AB", (1, 2)), Label("BA", (2, 1))]
    assert (steps(pairs).first, steps(pairs).second, steps(pairs).two) == ((1, 2), ((1, 2), (1,)), True)
    assert not steps([Label("A", (1,)), Label("B", (2,))]).two


def test_combining_keeps_label_order() -> None:
    got = combine(StepReading((0.25, 0.75), 0.8), [StepReading((1.0,), 0.5), StepReading((0.5, 0.5), 1.0)])
    assert got.probabilities == pytest.approx((1 / 7, 3 / 7, 3 / 7))
    assert got.mass == pytest.approx(0.8 * (0.25 * 0.5 + 0.75))


def test_a_model_that_would_rather_think_is_told_from_one_that_says_something_else() -> None:
    logits = [1.0, 1.0, 5.0, 0.0]
    reading = read_step(biased(logits, [0, 1], BIAS), [0, 1], bias=BIAS)
    assert reading.rival == 2
    assert warnings(reading, thought={2}) == ("low-mass", "wants-to-think")
    assert warnings(reading, thought={3}) == ("low-mass",)


def test_a_rival_weaker_than_the_labels_together_is_none() -> None:
    reading = read_step(biased([1.0, 1.0, 1.5], [0, 1], BIAS), [0, 1], bias=BIAS)
    assert (reading.rival, warnings(reading, thought={2})) == (None, ())


def test_speculative_decoding_shows_in_a_certain_token() -> None:
    assert is_certain({1: 1.0})
    assert is_certain({1: 1.0, 2: 0.0})
    assert not is_certain({1: 1.0, 2: 5e-14})


def test_the_smallest_probabilities_are_read_without_a_fault() -> None:
    assert read_step({1: 5e-324, 2: 0.0}, [1, 2], bias=BIAS).probabilities == (1.0, 0.0)
    with pytest.raises(NoDistribution, match="second step"):
        combine(StepReading((1.0,), 1.0), [StepReading((1.0,), 0.0)])
