"""The mixed load's pure parts: what is sent, what is let pass, and how memory is compared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jev_local.errors import JevError
from jev_local.wire.intake import read_request
from tools.mixed_load import Seen, report
from tools.mixed_load_requests import BAD, MARK, WEIGHTS, Errand, Mix, answer_fault, fault
from tools.resident import Sample, from_listing, from_status, growth, warm_up

QUESTIONS: dict[str, Any] = {
    "a": {"type": "noul"},
    "b": {"type": "choice", "criteria": {"x": None, "y": None}},
    "c": {"type": "score", "criteria": ["low", "high"]},
}
REPLY: dict[str, Any] = {
    "model": "tiny",
    "answers": {
        "a": {"noul": 0.5},
        "b": {"choice": "x", "confidence": 0.2, "probabilities": {"x": 0.6, "y": 0.4}},
        "c": {"score": 0.3, "confidence": 0.2, "probabilities": {"0": 0.7, "1": 0.3}, "legend": {"0": "low"}},
    },
    "usage": {"input_tokens": 9, "output_tokens": 3},
}


def test_the_mix_has_everything_in_it_and_is_the_same_for_a_seed() -> None:
    mix, again = Mix(1, longest=2000), Mix(1, longest=2000)
    errands = [mix.draw() for _ in range(1000)]
    assert errands == [again.draw() for _ in range(1000)]
    assert {errand.kind for errand in errands} == set(WEIGHTS)
    asked = [read_request(errand.content) for errand in errands if errand.questions]
    assert {len(one.questions) for one in asked} == set(range(1, 13))
    assert all(one.state.startswith(MARK) and len(one.state.encode()) <= 2000 for one in asked)
    states = [one.state for one in asked]
    assert len(asked) / 4 < len(set(states)) < len(states), "some come again, some do not"
    assert max(map(len, states)) > 10 * min(map(len, states))


@pytest.mark.parametrize("body", BAD)
def test_bad_bodies_are_bad(body: bytes) -> None:
    with pytest.raises(JevError):
        read_request(body)


def test_replies_that_are_let_pass() -> None:
    good = json.dumps(REPLY).encode()
    assert fault(Errand("question", questions=QUESTIONS), 200, good) == ""
    assert fault(Errand("bad"), 422, b"") == ""
    assert fault(Errand("look"), 200, b"{}") == ""


def test_replies_that_are_not() -> None:
    good = json.dumps(REPLY).encode()
    for errand, status, body in (
        (Errand("question", questions=QUESTIONS), 529, good),
        (Errand("question", questions=QUESTIONS), 422, good),
        (Errand("question", questions=QUESTIONS), 200, b"{"),
        (Errand("question", questions=QUESTIONS), 200, b"[]"),
        (Errand("bad"), 200, good),
        (Errand("bad"), 500, b""),
        (Errand("clear"), 404, b"{}"),
    ):
        assert fault(errand, status, body)


@pytest.mark.parametrize(
    ("id_", "answer"),
    [
        ("a", {"noul": 1.5}),
        ("a", {}),
        ("b", {"choice": "z", "confidence": 0.2, "probabilities": {"x": 0.6, "y": 0.4}}),
        ("b", {"choice": "x", "confidence": 0.2, "probabilities": {"x": 0.6, "y": 0.3}}),
        ("b", {"choice": "x", "confidence": 0.2, "probabilities": {"x": 1.0}}),
        ("c", {"score": 1.2, "confidence": 0.2, "probabilities": {"0": 0.7, "1": 0.3}}),
        ("c", {"score": 0.2, "confidence": None, "probabilities": {"0": 0.7, "1": 0.3}}),
    ],
)
def test_answers_of_the_wrong_shape(id_: str, answer: dict[str, Any]) -> None:
    assert answer_fault(QUESTIONS, {**REPLY, "answers": {**REPLY["answers"], id_: answer}})


def test_memory_is_read_from_what_the_system_says() -> None:
    assert from_status("Name:\tpython\nVmHWM:\t   9 kB\nVmRSS:\t    2048 kB\n") == 2048 * 1024
    assert from_status("Name:\tgone\n") == 0
    assert from_listing("  1  0  500\n 20  1  300\n 21 20 4000\n 22 21 7\n", 20) == 4300 * 1024


def test_growth_is_the_last_minute_against_the_first_after_the_warm_up() -> None:
    rises = [Sample(second, second * 10) for second in range(0, 601, 5)]
    assert growth(rises, since=60) == 5700 - 900 + 25  # medians of 60 to 120 and of 545 to 600
    peak = [Sample(second, 1000 if second != 300 else 10**9) for second in range(0, 601, 5)]
    assert growth(peak, since=60) == 0
    assert growth([Sample(0, 1), Sample(100, 5), Sample(110, 9)], since=60) == 4, "halves that do not overlap"
    assert growth([Sample(70, 1)], since=60) is None
    assert growth([], since=60) is None
    assert (warm_up(600), warm_up(40)) == (60, 10)


def test_a_report_says_what_was_missed() -> None:
    seen = Seen(seconds=600, samples=[Sample(s, 10**8) for s in range(0, 601, 5)], disk=100, file=5)
    assert all(report(seen, budget=90, workers=1)["met"].values()), "what is in use comes on top"
    seen.disk, seen.states_in_log = 101, 1
    seen.samples.append(Sample(605, 10**8))
    seen.faults["question: status 502"] += 1
    met = report(seen, budget=90, workers=1)["met"]
    assert [what for what, is_met in met.items() if is_met] == ["grows by less than 20 MB"]
