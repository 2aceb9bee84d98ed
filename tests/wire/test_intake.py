"""From JSON to questions: what each field may be, and what is said where it is something else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev_local.core.questions import Choice, Noul, Option, Question, Score
from jev_local.errors import CallerError, InvalidBody, InvalidRequest, UnknownModel
from jev_local.wire.intake import MAX_ISSUES, Intake, check_model, read_request
from jev_local.wire.problems import problem
from jev_local.wire.schema import MAX_QUESTIONS

NOUL = {"type": "noul", "instructions": "Is it wet?"}
MARK = "zq7-caller-text"


def read(**fields: Any) -> Intake:
    return read_request(json.dumps({"state": "s", "questions": {"q": NOUL}, **fields}).encode())


def question(asked: Any) -> Question:
    return read(questions={"q": asked}).questions[0]


def issues(body: Any) -> list[tuple[tuple[str | int, ...], str]]:
    with pytest.raises(InvalidBody) as refused:
        read_request(json.dumps(body).encode())
    return [(issue.loc, issue.type) for issue in refused.value.issues]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("as it is\n", "as it is\n"),
        ("", ""),
        ({"町": "京都", "n": [1, None]}, '{"町":"京都","n":[1,null]}'),
        ([], "[]"),
        ({}, "{}"),
        ({"z": 1, "a": 2}, '{"z":1,"a":2}'),
    ],
)
def test_a_state_becomes_text(state: Any, text: str) -> None:
    assert read(state=state).state == text


SHAPES: list[tuple[dict[str, Any], Question]] = [
    (NOUL, Noul("q", "Is it wet?")),
    ({"type": "noul", "criteria": {"true": "rain"}}, Noul("q", None, "rain")),
    ({"type": "noul", "criteria": {"false": "sun"}}, Noul("q", None, None, "sun")),
    ({**NOUL, "criteria": {"true": ["a"], "false": {"b": 1}}}, Noul("q", "Is it wet?", '["a"]', '{"b":1}')),
    ({**NOUL, "criteria": {"true": None}}, Noul("q", "Is it wet?")),
    ({**NOUL, "criteria": {}}, Noul("q", "Is it wet?")),
    ({**NOUL, "criteria": None}, Noul("q", "Is it wet?")),
    ({**NOUL, "criteria": "it rains"}, Noul("q", "Is it wet?", "it rains")),
    ({"type": "noul", "instructions": None, "criteria": "it rains"}, Noul("q", None, "it rains")),
    ({**NOUL, "criteria": {"true": " ", "false": ""}}, Noul("q", "Is it wet?")),
    ({**NOUL, "weight": 3, "criteria": {"true": "t", "maybe": "m"}}, Noul("q", "Is it wet?", "t")),
    ({"type": "noul", "instructions": {"ask": "雨?"}}, Noul("q", '{"ask":"雨?"}')),
    ({"type": "choice", "criteria": {"a": None}}, Choice("q", None, (Option("a"),))),
    (
        {"type": "choice", "instructions": "", "criteria": {"b": "B", "a": {"x": 1}, " c": ""}},
        Choice("q", None, (Option("b", "B"), Option("a", '{"x":1}'), Option(" c"))),
    ),
    (
        {"type": "choice", "criteria": {"": "none of them", "x": None}},
        Choice("q", None, (Option("", "none of them"), Option("x"))),
    ),
    ({"type": "score", "criteria": ["only"]}, Score("q", None, ("only",))),
    (
        {"type": "score", "instructions": ["how"], "criteria": ["low", "", {"l": 2}, [3]]},
        Score("q", '["how"]', ("low", "", '{"l":2}', "[3]")),
    ),
]


@pytest.mark.parametrize(("asked", "expected"), SHAPES)
def test_shapes_of_questions(asked: dict[str, Any], expected: Question) -> None:
    assert question(asked) == expected


@pytest.mark.parametrize("count", [1, 2, 26, 255])
def test_options_up_to_255(count: int) -> None:
    asked = question({"type": "choice", "criteria": {str(i): None for i in range(count)}})
    assert isinstance(asked, Choice)
    assert len(asked.options) == count


def test_ids_and_their_order_are_kept() -> None:
    ids = ["b.c d", "a", "질문", "🦊", "0", " "]
    assert [asked.id for asked in read(questions=dict.fromkeys(ids, NOUL)).questions] == ids


def test_legends_keep_what_was_sent() -> None:
    levels = ["low", {"text": "高い", "n": None}, ["x"]]
    assert read(questions={"q": NOUL, "s": {"type": "score", "criteria": levels}}).legends == {"s": tuple(levels)}


def test_unknown_fields_are_ignored() -> None:
    assert read(seed=1, x_trace_id="t", temperature=None, stream=True) == read()


Q = ("body", "questions", "q")

INVALID: dict[str, tuple[Any, list[tuple[tuple[str | int, ...], str]]]] = {
    "an array": ([], [(("body",), "model_type")]),
    "a string": ("x", [(("body",), "model_type")]),
    "null": (None, [(("body",), "model_type")]),
    "nothing": ({}, [(("body", "state"), "missing"), (("body", "questions"), "missing")]),
    "model 3": ({"state": "s", "questions": {"q": NOUL}, "model": 3}, [(("body", "model"), "string_type")]),
    "details 'yes'": ({"state": "s", "questions": {"q": NOUL}, "x_details": 1}, [(("body", "x_details"), "bool_type")]),
    **{
        f"images {json.dumps(images)[:40]}": (
            {"state": "s", "questions": {"q": NOUL}, "images": images},
            [(("body", "images", *loc), kind)],
        )
        for images, loc, kind in (
            ({}, (), "list_type"),
            ("data:image/png;base64,AAAA", (), "list_type"),
            (0, (), "list_type"),
            (False, (), "list_type"),
            (["x"] * 5, (), "too_long"),
            (["x", None], (1,), "string_type"),
            ([{"url": "x"}], (0,), "string_type"),
        )
    },
    **{
        f"assets {json.dumps(assets)[:60]}": (
            {"state": "s", "questions": {"q": NOUL}, "assets": assets},
            [(("body", "assets", *loc), kind)],
        )
        for assets, loc, kind in (
            ({}, (), "too_short"),
            ([], (), "dict_type"),
            ("x", (), "dict_type"),
            (0, (), "dict_type"),
            ({str(i): None for i in range(33)}, (), "too_long"),
            ({"": {"type": "image", "data_base64": ""}}, (), "blank_placeholder"),
            ({" \n": {"type": "image", "data_base64": ""}}, (), "blank_placeholder"),
            ({"x" * 257: {"type": "image", "data_base64": ""}}, (), "long_placeholder"),
            ({MARK: None}, (0,), "model_type"),
            ({MARK: {"type": "image"}}, (0,), "no_file"),
            ({MARK: {"data_base64": ""}}, (0, "type"), "missing"),
            ({MARK: {"type": "video", "data_base64": ""}}, (0, "type"), "literal_error"),
            ({MARK: {"type": "image", "format": "webp", "data_base64": ""}}, (0, "format"), "literal_error"),
            ({MARK: {"type": "image", "data_base64": 1}}, (0, "data_base64"), "string_type"),
            ({MARK: {"type": "image", "part": ["a"]}}, (0, "part"), "string_type"),
        )
    },
    **{
        f"state {state!r}": ({"state": state, "questions": {"q": NOUL}}, [(("body", "state"), "text_type")])
        for state in (None, True, 3, 1.5)
    },
    **{
        f"questions {asked!r}": ({"state": "s", "questions": asked}, [(("body", "questions"), kind)])
        for asked, kind in (
            (None, "dict_type"),
            ([NOUL], "dict_type"),
            ("q", "dict_type"),
            ({}, "too_short"),
            ({"": NOUL}, "blank_id"),
        )
    },
    "too many questions": (
        {"state": "s", "questions": {str(i): None for i in range(MAX_QUESTIONS + 1)}},
        [(("body", "questions"), "too_long")],
    ),
    **{
        f"question {json.dumps(asked)[:60]}": ({"state": "s", "questions": {"q": asked}}, [((*Q, *loc), kind)])
        for asked, loc, kind in (
            (None, (), "model_attributes_type"),
            ([], (), "model_attributes_type"),
            ("noul", (), "model_attributes_type"),
            ({}, (), "union_tag_not_found"),
            ({"type": None}, (), "union_tag_invalid"),
            ({"type": "boolean"}, (), "union_tag_invalid"),
            ({"type": "Noul"}, (), "union_tag_invalid"),
            ({"type": ["noul"]}, (), "union_tag_invalid"),
            ({"type": {"noul": 1}}, (), "union_tag_invalid"),
            ({"type": 1}, (), "union_tag_invalid"),
            ({"type": "noul"}, ("noul",), "nothing_asked"),
            ({"type": "noul", "instructions": " \n"}, ("noul",), "nothing_asked"),
            ({"type": "noul", "instructions": {}, "criteria": {"true": None}}, ("noul",), "nothing_asked"),
            ({"type": "noul", "instructions": 3}, ("noul", "instructions"), "text_type"),
            ({**NOUL, "criteria": ["a"]}, ("noul", "criteria"), "model_type"),
            ({**NOUL, "criteria": False}, ("noul", "criteria"), "model_type"),
            ({**NOUL, "criteria": {"true": 1}}, ("noul", "criteria", "true"), "text_type"),
            ({"type": "choice"}, ("choice", "criteria"), "missing"),
            ({"type": "choice", "criteria": None}, ("choice", "criteria"), "dict_type"),
            ({"type": "choice", "criteria": ["a", "b"]}, ("choice", "criteria"), "dict_type"),
            ({"type": "choice", "criteria": {}}, ("choice", "criteria"), "too_short"),
            ({"type": "choice", "criteria": {"a": 1}}, ("choice", "criteria"), "text_type"),
            ({"type": "choice", "criteria": {"criteria": 1}}, ("choice", "criteria"), "text_type"),
            ({"type": "choice", "criteria": {"": None, "a": "A"}}, ("choice",), "blank_option"),
            ({"type": "choice", "criteria": {str(i): 0 for i in range(256)}}, ("choice", "criteria"), "too_long"),
            ({"type": "score"}, ("score", "criteria"), "missing"),
            ({"type": "score", "criteria": {"a": "b"}}, ("score", "criteria"), "list_type"),
            ({"type": "score", "criteria": "abc"}, ("score", "criteria"), "list_type"),
            ({"type": "score", "criteria": []}, ("score", "criteria"), "too_short"),
            ({"type": "score", "criteria": [str(i) for i in range(11)]}, ("score", "criteria"), "too_long"),
            ({"type": "score", "criteria": ["a", None]}, ("score", "criteria", 1), "text_type"),
            ({"type": "score", "criteria": [["a"], True]}, ("score", "criteria", 1), "text_type"),
        )
    },
}


@pytest.mark.parametrize(("body", "expected"), INVALID.values(), ids=INVALID)
def test_what_is_wrong_and_where(body: Any, expected: list[tuple[tuple[str | int, ...], str]]) -> None:
    assert issues(body) == expected


TWICE = f'{{"{MARK}": 1, "{MARK}": 2}}'
HALF = f'{{"{MARK}": "\\ud83d"}}'


@pytest.mark.parametrize(("fault", "kind"), [(TWICE, "duplicate_key"), (HALF, "lone_surrogate")])
@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ('{"state": %s}', ("body", "state")),
        ('{"state": {"patient John Doe": [%s]}}', ("body", "state")),
        ('{"state": [1, {"questions": {"q": %s}}]}', ("body", "state")),
        ('{"seed": {"x": %s}}', ("body",)),
        ('[{"state": %s}]', ("body",)),
        ('{"questions": [%s]}', ("body", "questions")),
        ('{"questions": {"q": {"type": "noul", "instructions": %s}}}', (*Q, "instructions")),
        ('{"questions": {"q": {"instructions": [{"criteria": {"true": %s}}]}}}', (*Q, "instructions")),
        ('{"questions": {"q": {"type": "noul", "criteria": {"true": {"a": %s}}}}}', (*Q, "criteria", "true")),
        ('{"questions": {"q": {"type": "choice", "criteria": {"John Doe": %s}}}}', (*Q, "criteria")),
        ('{"questions": {"q": {"type": "score", "criteria": ["x", {"y": %s}]}}}', (*Q, "criteria", 1)),
        ('{"questions": {"q": {"type": "noul", "John Doe": {"type": %s}}}}', Q),
    ],
)
def test_places_end_where_the_callers_own_words_begin(
    body: str, loc: tuple[str | int, ...], fault: str, kind: str
) -> None:
    with pytest.raises(InvalidBody) as refused:
        read_request((body % fault).encode())
    (issue,) = refused.value.issues
    assert (issue.loc, issue.type) == (loc, kind)


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ('{"John Doe": 1, "John Doe": 2}', ("body",)),
        ('{"state": "a", "state": "b"}', ("body", "state")),
        ('{"questions": {"q": 1, "q": 2}}', Q),
        ('{"questions": {"q": {"type": "noul", "type": "noul"}}}', (*Q, "type")),
        ('{"questions": {"q": {"criteria": {"John Doe": 1, "John Doe": 2}}}}', (*Q, "criteria")),
        ('{"questions": {"q": {"John Doe": 1, "John Doe": 2}}}', Q),
    ],
)
def test_a_name_that_stands_twice_is_told_where_it_is_the_contracts(body: str, loc: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidBody) as refused:
        read_request(body.encode())
    assert [issue.loc for issue in refused.value.issues] == [loc]


def test_counts_are_told() -> None:
    with pytest.raises(InvalidBody) as refused:
        question({"type": "choice", "criteria": {str(i): None for i in range(256)}})
    (issue,) = refused.value.issues
    assert issue.msg == "at most 255 options, got 256"
    assert issue.ctx == (("max_length", 255),)


def test_everything_wrong_is_told_at_once() -> None:
    found = issues({"state": 1, "questions": {"a": {"type": "x"}, "b": {"type": "score", "criteria": [None, None]}}})
    assert len(found) == 4


def test_a_thousand_broken_questions_with_long_names_make_a_short_story() -> None:
    broken = {"type": "choice", "criteria": {str(i): 0 for i in range(255)}}
    with pytest.raises(InvalidBody) as refused:
        read(questions={f"{i}{'x' * 10_000}": broken for i in range(100)})
    assert len(refused.value.issues) == MAX_ISSUES
    assert len(str(refused.value)) < 200
    assert len(problem(refused.value).body()) < 10_000


def test_images_that_are_null_are_no_images() -> None:
    assert read(images=None, assets=None) == read(images=[]) == read()


def test_box_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="does not locate"):
        read(questions={"q": NOUL, "b": {"type": "box", "instructions": "Where?"}})


@pytest.mark.parametrize("asked", [None, "jev-latest", "jev-preview", "jev-1.13.0", "jev-99.0.12", "My Model.Q8"])
def test_models_served_here(asked: str | None) -> None:
    check_model(asked, "My Model.Q8")


@pytest.mark.parametrize(
    "asked", ["", "jev", "jev-1", "jev-1.2", "jev-1.2.3.4", "jev-latest\n", "jev-１.2.3", "my model.q8"]
)
def test_other_models(asked: str) -> None:
    with pytest.raises(UnknownModel) as refused:
        check_model(asked, "My Model.Q8")
    assert refused.value.message == f"Unknown model: {asked}"


def test_a_name_as_long_as_a_body_is_cut() -> None:
    with pytest.raises(UnknownModel) as refused:
        check_model("x" * 10**6, "local")
    assert len(refused.value.message) < 150


def test_while_no_model_is_known_none_is_unknown() -> None:
    check_model("whatever", None)


# Anything at all in any place, most of it nearly right.
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.just(MARK),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "true", "false", ""]), inner),
    max_leaves=6,
)
questions = st.fixed_dictionaries(
    {"type": st.sampled_from(["noul", "choice", "score", "box", MARK]) | anything},
    optional={"instructions": anything, "criteria": anything},
)
bodies = st.fixed_dictionaries(
    {"state": anything, "questions": st.dictionaries(st.sampled_from(["a", "b", ""]), questions) | anything},
    optional={"x_details": anything, "assets": anything, "images": anything, "model": anything},
)


@given(bodies | anything)
def test_any_json_is_read_or_refused_without_repeating_it(body: Any) -> None:
    raw = json.dumps(body).encode()
    try:
        taken = read_request(raw)
    except CallerError as error:
        refused = error
    else:
        assert [asked.id for asked in taken.questions] == list(body["questions"])
        return
    told = problem(refused)
    assert told.status in (400, 422)
    assert MARK.encode() not in told.body()
    assert MARK not in str(refused)
    assert refused.__cause__ is None


# Values whose every key is the caller's, written with the faults that the reader finds by walking through them.
private = st.recursive(
    st.integers() | st.just(MARK),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just(MARK), inner, min_size=1),
    max_leaves=5,
)


def written(value: Any, fault: str) -> str:
    """`value` as JSON, each of its objects and arrays with `fault` in it."""
    if isinstance(value, dict):
        members = [f"{json.dumps(key)}: {written(inner, fault)}" for key, inner in value.items()]
        return "{" + ", ".join([*members, *(members[:1] if fault == "twice" else [f'"x": {HALF}'])]) + "}"
    if isinstance(value, list):
        return "[" + ", ".join([*(written(inner, fault) for inner in value), TWICE if fault == "twice" else HALF]) + "]"
    return json.dumps(value)


@given(private, private, private, st.sampled_from(["noul", "choice", "score"]), st.sampled_from(["twice", "half"]))
def test_no_key_of_the_callers_comes_back_but_a_questions_id(
    state: Any, instructions: Any, criteria: Any, kind: str, fault: str
) -> None:
    body = (
        f'{{"state": {written(state, fault)}, "questions": {{"q": {{"type": "{kind}", '
        f'"instructions": {written(instructions, fault)}, "criteria": {written(criteria, fault)}}}}}}}'
    )
    told = b""
    try:
        read_request(body.encode())
    except CallerError as error:
        told = problem(error).body()
    assert MARK.encode() not in told
