"""Images in every form of the wire: where their marks end up, and what is said of a form that is not right."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_files import base64, data_url, image_file
from jev_local.core.questions import Choice, Noul, Option, Score
from jev_local.errors import BodyTooLarge, CallerError, InvalidBody, InvalidRequest
from jev_local.settings import MIB
from jev_local.wire.attached import MAX_PLACES
from jev_local.wire.images import Upload
from jev_local.wire.intake import Intake, read_request
from jev_local.wire.multipart import Part
from jev_local.wire.problems import problem

NOUL: dict[str, Any] = {"type": "noul", "instructions": "Is it wet?"}
RED, BLUE, GREEN = (image_file(color=color, size=(4, 3)) for color in ("red", "blue", "green"))
MARK = re.compile(r"\[image [0-9a-f]{32}\]")


def read(*, parts: dict[str, Part] | None = None, **fields: Any) -> Intake:
    return read_request(json.dumps({"state": "s", "questions": {"q": NOUL}, **fields}).encode(), parts=parts)


def asset(data: bytes, **fields: Any) -> dict[str, Any]:
    return {"type": "image", "format": "png", "data_base64": base64(data), **fields}


def shown(text: str | None, intake: Intake) -> str:
    """`text` with the colour of the image in place of every mark."""
    names = {RED: "{red}", BLUE: "{blue}", GREEN: "{green}"}
    return MARK.sub(lambda found: names[intake.uploads.placed[found[0]].data], text or "")


def refusal(*, parts: dict[str, Part] | None = None, **fields: Any) -> tuple[tuple[str | int, ...], str]:
    with pytest.raises(InvalidBody) as refused:
        read(parts=parts, **fields)
    (issue,) = refused.value.issues
    return issue.loc[1:], issue.type


# Top-level images


def test_images_come_before_the_state_in_their_order() -> None:
    intake = read(images=[data_url(RED), data_url(BLUE, "PNG"), data_url(RED, "jpg")])
    assert [(upload.data, upload.declared, upload.loc) for upload in intake.uploads.leading] == [
        (RED, "png", ("body", "images", 0)),
        (BLUE, "png", ("body", "images", 1)),
        (RED, "jpg", ("body", "images", 2)),
    ]
    assert (intake.state, intake.uploads.placed) == ("s", {})


@pytest.mark.parametrize(
    ("url", "data"),
    [
        (f"data:image/png;base64,{base64(RED)}", RED),
        (f"DATA:Image/PNG;Base64,{base64(RED)}", RED),
        (f"data:image/png;charset=utf-8;name=a.png;base64,{base64(RED)}", RED),
        ("data:image/png;base64," + "\r\n".join(re.findall(".{1,60}", base64(RED))) + "\n", RED),
        (f"data:application/octet-stream;base64,{base64(RED)}", RED),
        (f"data:;base64,{base64(RED)}", RED),
    ],
)
def test_data_urls_that_are_taken(url: str, data: bytes) -> None:
    assert read(images=[url]).uploads.leading[0].data == data


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("", "data_url_invalid"),
        ("data:", "data_url_invalid"),
        ("data:image/png,AAAA", "data_url_invalid"),
        (base64(RED), "data_url_invalid"),
        (" data:image/png;base64,AAAA", "data_url_invalid"),
        ("http://example.org/a.png", "image_not_fetched"),
        ("https://example.org/a.png", "image_not_fetched"),
        ("  HTTPS://example.org/a.png", "image_not_fetched"),
        ("file:///etc/passwd", "image_not_fetched"),
        ("//example.org/a.png", "image_not_fetched"),
        ("data:image/png;base64,AAA", "base64_invalid"),
        ("data:image/png;base64,AA-_", "base64_invalid"),
        ("data:image/png;base64,%2B%2F%3D", "base64_invalid"),
        ("data:image/png;base64,ＡＡＡＡ", "base64_invalid"),
    ],
)
def test_data_urls_that_are_not(url: str, kind: str) -> None:
    assert refusal(images=[data_url(RED), url]) == (("images", 1), kind)
    part = {"type": "image_url", "image_url": {"url": url}}
    assert refusal(state=[{"role": "user", "content": ["a", part]}]) == (("state", 0, "content", 1), kind)


@pytest.mark.parametrize(("size", "taken"), [(4 * MIB, True), (4 * MIB + 1, False), (4 * MIB + 3, False)])
def test_an_image_has_four_mebibytes_at_most(size: int, taken: bool) -> None:
    url = data_url(bytes(size))
    if taken:
        assert len(read(images=[url]).uploads.leading[0].data) == size
    else:
        assert refusal(images=[url]) == (("images", 0), "image_too_large")
        assert refusal(state=[{"type": "image_url", "image_url": url}]) == (("state", 0), "image_too_large")


# Assets


def test_an_asset_stands_wherever_its_placeholder_does() -> None:
    intake = read(
        state={"<r>": ["before <r> after", 1, None, True, {"x": "<b>"}]},
        questions={
            "<r>": {"type": "noul", "instructions": {"<r>": "<b>"}, "criteria": {"true": "<r><r>", "false": ["<b>"]}},
            "c": {"type": "choice", "instructions": "<r>", "criteria": {"<r>": "<g>", "<b>": None}},
            "s": {"type": "score", "criteria": ["<r>", {"<b>": "<b>"}]},
        },
        assets={"<r>": asset(RED), "<b>": asset(BLUE), "<g>": asset(GREEN)},
    )
    assert shown(intake.state, intake) == '{"<r>":["before {red} after",1,null,true,{"x":"{blue}"}]}'
    noul, choice, score = intake.questions
    assert isinstance(noul, Noul)
    assert noul.id == "<r>"
    texts = (noul.instructions, noul.when_true, noul.when_false)
    assert [shown(text, intake) for text in texts] == ['{"<r>":"{blue}"}', "{red}{red}", '["{blue}"]']
    assert isinstance(choice, Choice)
    assert shown(choice.instructions, intake) == "{red}"
    first, second = choice.options
    assert (first.key, shown(first.text, intake), second) == ("<r>", "{green}", Option("<b>"))
    assert isinstance(score, Score)
    assert [shown(level, intake) for level in score.levels] == ["{red}", '{"<b>":"{blue}"}']
    # A legend shows what was sent.
    assert intake.legends == {"s": ("<r>", {"<b>": "<b>"})}
    # One mark for each asset, however often it is shown.
    assert len(intake.uploads.placed) == 3
    assert intake.uploads.leading == ()


def test_marks_are_drawn_for_each_request_and_hold_nothing_that_json_escapes() -> None:
    marks = [mark for _ in range(50) for mark in read(state=["<r><b>"], assets=pair()).uploads.placed]
    assert len(set(marks)) == 100
    assert all(MARK.fullmatch(mark) and json.dumps(mark) == f'"{mark}"' for mark in marks)


def pair() -> dict[str, Any]:
    return {"<r>": asset(RED), "<b>": asset(BLUE)}


@pytest.mark.parametrize("turned", [False, True])
def test_of_placeholders_that_overlap_the_longest_is_meant(turned: bool) -> None:
    named = [("img", RED), ("img2", BLUE), ("g", GREEN)]
    intake = read(
        state="img img2 g im img img22 gg",
        assets={name: asset(data) for name, data in (named[::-1] if turned else named)},
    )
    assert shown(intake.state, intake) == "{red} {blue} {green} im {red} {blue}2 {green}{green}"


def test_a_placeholder_is_no_pattern_and_is_not_looked_for_in_marks() -> None:
    intake = read(state="a .* a [image image", assets={".*": asset(RED), "[image": asset(BLUE), "a": asset(GREEN)})
    assert shown(intake.state, intake) == "{green} {red} {green} {blue} im{green}ge"


def test_an_asset_without_a_place_is_refused_by_its_position() -> None:
    with pytest.raises(InvalidRequest, match=r"assets\.1 .*mentioned nowhere"):
        read(state="<r>", assets=pair())
    # Keys, names and ids are no places.
    for fields in (
        {"state": {"<r>": 1}},
        {"questions": {"<r>": NOUL}},
        {"questions": {"q": {"type": "choice", "criteria": {"<r>": None}}}},
        {"questions": {"q": {**NOUL, "note": "<r>"}}},
        {"x_note": "<r>"},
    ):
        with pytest.raises(InvalidRequest, match="mentioned nowhere"):
            read(**fields, assets={"<r>": asset(RED)})


@pytest.mark.parametrize("where", ["state", "question"])
def test_images_have_32_places_at_most(where: str) -> None:
    def ask(places: int, leading: int) -> Intake:
        text = "ab" * places
        fields: dict[str, Any] = (
            {"state": text} if where == "state" else {"questions": {"q": {**NOUL, "instructions": [text]}}}
        )
        return read(**fields, assets={"a": asset(RED)}, images=[data_url(BLUE)] * leading)

    assert MAX_PLACES == 32
    for leading in (0, 1, 4):
        ask(32 - leading, leading)
        with pytest.raises(InvalidBody, match="more than 32 places"):
            ask(33 - leading, leading)
    with pytest.raises(InvalidBody, match="more than 32 places"):
        ask(10**6, 0)


def test_assets_may_be_larger_than_images_up_to_16_mebibytes() -> None:
    whole, larger = asset(bytes(16 * MIB)), asset(bytes(16 * MIB + 1))
    assert len(next(iter(read(state="a", assets={"a": whole}).uploads.placed.values())).data) == 16 * MIB
    assert refusal(state="ab", assets={"a": asset(RED), "b": larger}) == (("assets", 1), "image_too_large")


def test_assets_have_32_mebibytes_together() -> None:
    parts = {name: Part(bytes(11 * MIB), "image/png") for name in "abc"}
    assets = {name: {"type": "image", "part": name} for name in "abc"}
    assert refusal(state="abc", assets=assets, parts=parts) == (("assets",), "images_too_large")
    parts["c"] = Part(bytes(10 * MIB))
    assert len(read(state="abc", assets=assets, parts=parts).uploads.placed) == 3


@pytest.mark.parametrize("format_", ["png", "jpg", "jpeg", None])
def test_formats_of_assets(format_: str | None) -> None:
    intake = read(state="a", assets={"a": asset(RED, format=format_)})
    assert [*intake.uploads.placed.values()] == [Upload(("body", "assets", 0), RED, format_)]


@pytest.mark.parametrize("text", ["A", "data:image/png;base64,AAAA", "AA-_", "é"])
def test_an_assets_base64_has_no_prefix(text: str) -> None:
    found = refusal(state="a", assets={"a": {"type": "image", "data_base64": text}})
    assert found == (("assets", 0), "base64_invalid")


# Parts of a form


def test_parts_are_the_assets_that_name_them() -> None:
    parts = {"asset-0": Part(RED, "image/png"), "asset-1": Part(BLUE, "application/octet-stream"), "c": Part(GREEN)}
    intake = read(
        state="<r> <b> <g>",
        parts=parts,
        assets={
            "<r>": {"type": "image", "part": "asset-0", "data_base64": "ignored"},
            "<b>": {"type": "image", "part": "asset-1"},
            "<g>": {"type": "image", "part": "c", "format": "jpg"},
        },
    )
    assert shown(intake.state, intake) == "{red} {blue} {green}"
    assert [upload.declared for upload in intake.uploads.placed.values()] == ["png", None, "jpg"]


def test_one_part_is_one_asset() -> None:
    named = {"type": "image", "part": "a"}
    parts = {"a": Part(RED)}
    assert refusal(state="<r> <b>", assets={"<r>": named, "<b>": named}, parts=parts) == (
        ("assets", 1),
        "no_such_part",
    )
    assert refusal(state="<r>", assets={"<r>": {**named, "part": "b"}}, parts=parts) == (("assets", 0), "no_such_part")
    assert refusal(state="<r>", assets={"<r>": named}) == (("assets", 0), "no_such_part")
    with pytest.raises(InvalidRequest, match="belongs to no asset"):
        read(parts=parts)


# Parts of messages


def test_a_data_url_in_a_message_gives_way_to_a_mark() -> None:
    url, other = data_url(RED), data_url(BLUE)
    messages = [
        {"role": "system", "content": "Look at <g>."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "First:"},
                {"type": "image_url", "image_url": {"url": url, "detail": "<g>"}},
                {"type": "image_url", "image_url": other},
                "plain",
            ],
        },
        {"type": "image_url", "image_url": {"url": url}},
        ["not a part", {"type": "image_url", "image_url": "https://example.org"}],
        3,
    ]
    intake = read(state=messages, assets={"<g>": asset(GREEN)})
    told = json.dumps(messages, separators=(",", ":"))
    told = told.replace(url, "{red}").replace(other, "{blue}").replace("<g>", "{green}")
    assert shown(intake.state, intake) == told
    assert [upload.loc for upload in intake.uploads.placed.values()] == [
        ("body", "assets", 0),
        ("body", "state", 1, "content", 1),
        ("body", "state", 1, "content", 2),
        ("body", "state", 2),
    ]


@pytest.mark.parametrize("image_url", [None, {}, {"url": None}, 3, [data_url(RED)], ...])
def test_an_image_url_part_without_its_image(image_url: Any) -> None:
    part = {"type": "image_url"} if image_url is ... else {"type": "image_url", "image_url": image_url}
    assert refusal(state=[part]) == (("state", 0), "image_url_missing")


@pytest.mark.parametrize(
    "state",
    [
        {"messages": [{"type": "image_url", "image_url": "https://example.org/a.png"}]},
        [{"role": "user", "content": "https://example.org/a.png"}],
        [{"content": [{"type": "image_url", "image_url": "https://example.org/a.png"}]}],
        "data:image/png;base64,AAAA",
    ],
)
def test_elsewhere_a_url_is_text(state: Any) -> None:
    intake = read(state=state)
    assert not intake.uploads
    assert intake == read(state=state)


def test_data_urls_are_four_at_most_wherever_they_stand() -> None:
    part = {"type": "image_url", "image_url": data_url(RED)}
    assert len(read(state=[part] * 2, images=[data_url(RED)] * 2).uploads.placed) == 2
    found = refusal(state=[part] * 3, images=[data_url(RED)] * 2)
    assert found == (("state", 2), "too_many_images")
    assert refusal(state=[part] * 5) == (("state", 4), "too_many_images")
    assert len(read(state=[*[part] * 4, "@" * 28], assets={"@": asset(RED)}).uploads.placed) == 5


# What is told


def test_a_size_that_only_assets_may_have() -> None:
    too_large = BodyTooLarge("too large")
    for body in (b'{"state": {"assets": 1}}', b'{"assets": null}', b'{"assets": {}}', b"[]"):
        with pytest.raises(BodyTooLarge):
            read_request(body, oversized=too_large)
    body = json.dumps({"state": "a", "questions": {"q": NOUL}, "assets": {"a": asset(RED)}}).encode()
    assert len(read_request(body, oversized=too_large).uploads.placed) == 1


SECRET = "zq7-caller-text"
urls = st.sampled_from([data_url(RED), f"data:image/{SECRET};base64,AAAA", f"https://{SECRET}", SECRET, ""])
parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["image_url", "text", SECRET])},
    optional={"image_url": urls | st.fixed_dictionaries({"url": urls}), "text": st.just(SECRET)},
)
named = st.dictionaries(
    st.sampled_from([SECRET, "zq7", "<r>", " "]),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["image", SECRET])},
        optional={"data_base64": st.sampled_from([base64(RED), SECRET]), "part": st.just(SECRET)},
    ),
    max_size=3,
)
requests = st.fixed_dictionaries(
    {"state": st.lists(parts | st.fixed_dictionaries({"role": st.just("user"), "content": st.lists(parts)}))},
    optional={"images": st.lists(urls, max_size=3), "assets": named},
)


@given(requests)
def test_no_refusal_repeats_what_the_caller_wrote(fields: dict[str, Any]) -> None:
    try:
        intake = read(**fields)
    except CallerError as error:
        told = problem(error)
        assert told.status in (400, 422)
        assert SECRET.encode() not in told.body()
        return
    assert len(MARK.findall(intake.state)) >= len(intake.uploads.placed)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda part: part,
        lambda part: {"messages": [{"role": "user", "content": [part]}]},
        lambda part: [{"content": [part]}],
        lambda part: [{"role": "user", "content": [{"type": "tool_result", "content": [part]}]}],
    ],
    ids=["alone", "in an object", "in no message", "in another part"],
)
def test_an_image_that_is_not_where_parts_are_looked_for_is_not_read_as_base64(wrapped: Any) -> None:
    for url in (data_url(RED), {"url": data_url(RED)}):
        part = {"type": "image_url", "image_url": url}
        assert refusal(state=wrapped(part)) == (("state",), "image_misplaced")
