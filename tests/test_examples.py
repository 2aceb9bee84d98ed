"""The examples: the one that everything starts with, which the package ships too, and those about a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from image_files import image_file
from jev_local.inputs import example, read, with_images
from jev_local.wire.chat import read_relayed
from jev_local.wire.intake import read_request

EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLE = EXAMPLES / "systemone.json"

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


PICTURED = {"vision": [2, 1, 1], "vision_gss": [4, 4, 4], "vision_gss_4": [0, 4, 0]}
"""Name -> nouls, choices and scores."""


def test_there_are_no_other_examples() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.json")} == {"systemone", "chat_a", "chat_b", *PICTURED}


def test_the_chats_differ_in_a_date_and_in_the_question() -> None:
    a, b = (read_relayed((EXAMPLES / f"chat_{name}.json").read_bytes(), "chat").document for name in "ab")
    one, other = a["messages"], b["messages"]
    assert one[0]["content"].replace("2026-11-29", "2026-11-30") == other[0]["content"]
    assert one[1]["content"] != other[1]["content"]
    assert {**a, "messages": []} == {**b, "messages": []}


@pytest.mark.parametrize("name", PICTURED)
def test_the_examples_about_a_picture_come_without_one_and_are_asked_with_one(name: str, tmp_path: Path) -> None:
    body = json.loads((EXAMPLES / f"{name}.json").read_bytes())
    assert list(body) == ["model", "state", "questions"]
    types = [question["type"] for question in body["questions"].values()]
    assert [types.count(kind) for kind in ("noul", "choice", "score")] == PICTURED[name]
    check_criteria(body)
    (tmp_path / "a.png").write_bytes(image_file(size=(512, 286)))
    request = with_images(read(str(EXAMPLES / f"{name}.json")), [str(tmp_path / "a.png")])
    intake = read_request(request.body)
    assert [upload.data for upload in intake.uploads.leading] == [(tmp_path / "a.png").read_bytes()]
    assert len(intake.questions) == len(types)


def test_the_four_questions_about_a_slide_are_among_the_twelve() -> None:
    four, twelve = (json.loads((EXAMPLES / f"{name}.json").read_bytes()) for name in ("vision_gss_4", "vision_gss"))
    assert four["questions"].items() <= twelve["questions"].items()
    assert four["state"] == twelve["state"]


def test_its_criteria_fit_their_types(request_body: dict[str, Any]) -> None:
    check_criteria(request_body)


def check_criteria(body: dict[str, Any]) -> None:
    for question in body["questions"].values():
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
