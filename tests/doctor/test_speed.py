"""The one decision: what is asked, and what is made of the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from doctor_servers import COSTS, DECIDED, answering, silent
from jev_local.client import Client
from jev_local.doctor import speed
from jev_local.doctor.facts import Speed
from programs import free_port

HEADERS = {name.lower(): value for name, value in COSTS.items()}


def measured(status: int, document: Any) -> Speed:
    with answering({"/v1/systemone": (status, document)}) as url, Client(url, key="sesame") as client:
        return speed.measure(client)


def test_nobody_has_asked_it_before() -> None:
    bodies = [json.loads(speed.request()) for _ in range(2)]
    assert bodies[0]["questions"] == bodies[1]["questions"]
    assert len(bodies[0]["questions"]) == 1  # of one question nothing is kept
    states = [body["state"].split() for body in bodies]
    assert [len(state) for state in states] == [speed.WORDS, speed.WORDS]
    assert states[0][:20] != states[1][:20]


def test_an_answer() -> None:
    found = measured(200, DECIDED)
    assert found.seconds is not None
    assert (found.state, found.tokens, found.tokens_per_second, found.probability) == ("answered", 400, 200.0, 0.25)


@pytest.mark.parametrize(
    "answers",
    [{}, {"weather": {"type": "noul", "noul": 1.5}}, {"weather": {"type": "noul", "noul": -0.1}}, {"x": {"type": "y"}}],
)
def test_no_answer_to_the_question(answers: dict[str, Any]) -> None:
    assert measured(200, DECIDED | {"answers": answers}).state == "bad answer"


@pytest.mark.parametrize("content", [b"<html>", b"{}", b'{"model": NaN}'])
def test_no_answer_at_all(content: bytes) -> None:
    assert measured(200, content).state == "bad answer"


@pytest.mark.parametrize(
    ("status", "state"),
    [(529, "busy"), (503, "not ready"), (401, "wrong key"), (403, "wrong key"), (400, "refused"), (500, "refused")],
)
def test_refusals(status: int, state: str) -> None:
    found = measured(status, {"detail": {"error_type": "x", "message": "not today"}})
    assert (found.state, found.says) == (state, f"{status}: not today")


def test_nobody_and_nothing() -> None:
    with Client(f"http://127.0.0.1:{free_port()}") as client:
        assert speed.measure(client).state == "unreachable"
    with silent() as url, Client(url, timeout=0.2) as client:
        assert speed.measure(client).state == "too slow"


@pytest.mark.parametrize(
    ("timing", "seconds"),
    [
        ("prefix;dur=500.00, restore;dur=9.00, decode;dur=250.00, total;dur=900.00", 0.75),
        ("decode;dur=250", 0.25),
        ("total;dur=900.00", None),
        ("decode;dur=abc", None),
        ("", None),
    ],
)
def test_reading_the_state_and_the_question_counts(timing: str, seconds: float | None) -> None:
    assert speed.prefill(HEADERS | {"server-timing": timing}) == (400, seconds)


@pytest.mark.parametrize("text", ["", "-5", "many", "9" * 5000, "4_0", "４"])
def test_odd_counts_are_none(text: str) -> None:
    assert speed.prefill({"x-jev-local-processed-tokens": text}) == (None, None)


def test_no_time_is_no_speed() -> None:
    with (
        answering({"/v1/systemone": (200, DECIDED)}) as url,
        Client(url) as client,
    ):
        reply = client.ask(speed.request())
    assert speed.judged(reply).tokens_per_second == 200.0
    object.__setattr__(reply, "headers", {"server-timing": "decode;dur=0.00", "x-jev-local-processed-tokens": "5"})
    assert speed.judged(reply).tokens_per_second is None
