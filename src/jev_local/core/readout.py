"""Label probabilities from one next-token distribution, exact, and how much of the model's mass they had.

The backend is asked to add the same bias to the logit of every label. That lifts the labels to the top of the
returned list and leaves the ratios between them as they are, so softmax over the labels alone is exact. The next
entries are the strongest tokens that are not labels; with the bias divided out again they tell the labels' share
of the model's own probability (candidate mass), up to the tail that was not returned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jev_local.core.labels import Label

GENTLE_BIAS = 12.0
"""What a few labels get first: e^12 = 160,000 lifts any label that a model answering in labels considers at all. The
sum of logit and bias is rounded to 32 bits, so the smaller the bias, the smaller the error."""

BIAS = 30.0
"""What many labels get first, because rare ones among them are far down: e^30 = 1e13. Up to 64 in sum with a logit, the
rounding moves the probability of one of two labels by 9.5e-7 at most, and those of many labels by less."""

STRONGER_BIAS = 80.0
"""For a last look when a label was still missing: about the most that 32-bit probabilities can carry."""

FEW = 26

MOST = 1.001
"""A probability of 1 as servers round it; more than that is none."""

RUNNERS_UP = 64
"""How many tokens that are not labels are asked for, for the candidate mass."""

MANY_RUNNERS_UP = 1000
"""The same where the mass enters the answer: all of a vocabulary without single-token labels, or all that weighs."""

LOW_MASS = 0.5
"""Below this share the labels were not what the model wanted to say: the answer carries the warning "low-mass"."""

THOUGHT_OPENERS = ("<think>", "<thinking>", "<thought>", "[THINK]", "<|channel|>", "<seed:think>")
"""What models that reason in the open begin with, where their template's own switch did not keep them from it."""


def biases(count: int, *, runners_up: int) -> tuple[float, ...]:
    """The biases to try on `count` labels, in order, until none of them is missing from what comes back."""
    if runners_up >= MANY_RUNNERS_UP:
        return (0.0, BIAS, STRONGER_BIAS)  # with so many beside them the labels are in the list as they are
    return (GENTLE_BIAS, BIAS, STRONGER_BIAS) if count <= FEW else (BIAS, STRONGER_BIAS)


class NoDistribution(ValueError):
    """What came back is not a probability distribution over tokens."""


@dataclass(frozen=True, slots=True)
class StepReading:
    """probabilities: per asked token, in order, summing to 1. mass: their share of the model's own probability.
    missing: asked tokens that were not in the list (their probability is given as 0).
    rival: the most probable token that was not asked for, where there is one that is more probable than all of the
    asked ones together."""

    probabilities: tuple[float, ...]
    mass: float
    missing: tuple[int, ...] = ()
    rival: int | None = None


def read_step(
    top: Mapping[int, float], tokens: Sequence[int], *, bias: float, biased: Collection[int] | None = None
) -> StepReading:
    """Read the distribution over `tokens` (distinct ids, at least one).

    top: token id -> probability after `bias` was added to the logit of every id in `biased` (default: `tokens`).
    Raises NoDistribution for NaN, negative or empty input, and where no label has any probability.
    """
    if not top or any(not 0 <= p <= MOST for p in top.values()):
        raise NoDistribution("the backend returned no usable probabilities")
    lifted = [top.get(token, 0.0) for token in tokens]
    total = math.fsum(lifted)
    if total <= 0:
        raise NoDistribution("none of the labels is among the probabilities that the backend returned")
    asked, raised = set(tokens), set(tokens if biased is None else biased)
    lowered = math.exp(-bias)
    rest = {token: p * (lowered if token in raised else 1.0) for token, p in top.items() if token not in asked}
    others, own = math.fsum(rest.values()), total * lowered
    strongest = max(rest, key=rest.__getitem__, default=None)
    return StepReading(
        probabilities=tuple(p / total for p in lifted),
        mass=own / (own + others) if own + others > 0 else 0.0,
        missing=tuple(token for token in tokens if token not in top),
        rival=strongest if strongest is not None and rest[strongest] > own else None,
    )


@dataclass(frozen=True, slots=True)
class Steps:
    """The passes that a set of labels needs.

    first: the distinct first tokens, in label order.
    second: per first token its second tokens, in label order; all empty for one-token labels.
    """

    first: tuple[int, ...]
    second: tuple[tuple[int, ...], ...]

    @property
    def two(self) -> bool:
        return any(self.second)


def steps(labels: Iterable[Label]) -> Steps:
    """Group labels by first token. Labels of one length only, as LabelBook.choose gives them."""
    groups: dict[int, list[int]] = {}
    for label in labels:
        groups.setdefault(label.tokens[0], []).extend(label.tokens[1:])
    return Steps(tuple(groups), tuple(tuple(group) for group in groups.values()))


def combine(first: StepReading, second: Sequence[StepReading]) -> StepReading:
    """P(first) x P(second | first) over two-token labels, grouped by first token as `steps` groups them.

    Both factors are the model's own: a first token after which it would rather say something else than a label
    (a small mass in its second step) makes all its labels less probable. Then the labels are brought to sum to 1.
    """
    joint = [
        p * group.mass * q for p, group in zip(first.probabilities, second, strict=True) for q in group.probabilities
    ]
    total = math.fsum(joint)
    if total <= 0:
        raise NoDistribution("no label has any probability in its second step")
    return StepReading(tuple(p / total for p in joint), first.mass * total, rival=first.rival)


def warnings(reading: StepReading, *, thought: Collection[int]) -> tuple[str, ...]:
    """Codes for an answer. `thought` has the tokens that open a chain of thought: a model that would rather begin
    one gives its labels probabilities that it has not thought about."""
    codes = []
    if reading.mass < LOW_MASS:
        codes.append("low-mass")
    if reading.rival in thought:
        codes.append("wants-to-think")
    return tuple(codes)


def is_certain(top: Mapping[int, float]) -> bool:
    """Whether one token has all the probability there is, to the last bit. With a bias of 30 no model that reads its
    prompt is that sure; it is what speculative decoding leaves of a distribution."""
    return sum(1 for p in top.values() if p > 0) < 2
