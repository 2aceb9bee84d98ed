"""The example that everything starts with: its shape, and that the package ships the same one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jev_local.inputs import example

EXAMPLE = Path(__file__).parents[1] / "examples" / "systemone.json"

TYPES = {
    "refund": "noul",
    "department": "choice",
    "urgency": "score",
    "cancellation_warning": "noul",
    "already_cancelled": "noul",
    "retention_after_refund": "noul",
    "tone": "choice",
    "refund_scope": "choice",
    "reply_channel": "choice",
    "frustration": "score",
    "churn_risk": "score",
    "investigation_readiness": "score",
}


@pytest.fixture(scope="module")
def request_body() -> dict[str, Any]:
    body: dict[str, Any] = json.loads(EXAMPLE.read_bytes())
    return body


def test_the_package_ships_the_same_file() -> None:
    assert example().encode() == EXAMPLE.read_bytes()


def test_it_holds_what_the_contract_asks_for_and_nothing_else(request_body: dict[str, Any]) -> None:
    assert list(request_body) == ["model", "state", "questions"]
    assert request_body["model"] == "jev-latest"
    assert isinstance(request_body["state"], str)


def test_it_asks_four_questions_of_each_type(request_body: dict[str, Any]) -> None:
    types = {id_: question["type"] for id_, question in request_body["questions"].items()}
    assert types == TYPES
    assert [list(types.values()).count(kind) for kind in ("noul", "choice", "score")] == [4, 4, 4]


def test_its_criteria_fit_their_types(request_body: dict[str, Any]) -> None:
    for question in request_body["questions"].values():
        assert question["instructions"]
        criteria = question.get("criteria")
        match question["type"]:
            case "noul":
                assert criteria is None or set(criteria) == {"true", "false"}
            case "choice":
                assert 2 <= len(criteria) <= 255
                assert all(criteria)
            case "score":
                assert 2 <= len(criteria) <= 10
                assert all(isinstance(level, str) and level for level in criteria)


def test_its_state_is_short(request_body: dict[str, Any]) -> None:
    # Every question repeats it, and the small models' vocabularies spend about two tokens on a Japanese character:
    # the common prefix of the default demo has to stay under 256 of them.
    assert len(request_body["state"]) <= 75
