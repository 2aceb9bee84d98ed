"""The service over a fake engine: what each endpoint answers, and that a bad request harms nobody after it."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from dataclasses import replace
from datetime import datetime
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from fakes.asgi import ONE_NOUL, Wire, app_for, http, scene
from fakes.engine import READY, FakeEngine
from fakes.served import served
from image_files import base64, data_url, image_file
from jev_local import errors
from jev_local.core.pictures import Album
from jev_local.core.questions import Choice, Noul, Option, Score
from jev_local.engine.decision import Status
from jev_local.wire.about import ReadyReply
from jev_local.wire.bodies import BodyLimits
from jev_local.wire.headers import DIAGNOSTICS
from jev_local.wire.images import Upload, Uploads
from jev_local.wire.pictures import develop
from jev_local.wire.schema import SystemOneReply
from jev_local.wire.seen import SeenPictures

ASK = "/v1/systemone"

THREE: dict[str, Any] = {
    "model": "jev-latest",
    "state": {"文": "二重に請求された"},
    "questions": {
        "refund": {"type": "noul", "instructions": "Refund?", "criteria": {"true": "asked for", "false": None}},
        "team": {"type": "choice", "criteria": {"billing": "money", "tech": None}},
        "anger": {"type": "score", "instructions": ["how", "angry"], "criteria": ["calm", {"very": True}]},
    },
}


def with_question(question: Any) -> dict[str, Any]:
    return {"state": "s", "questions": {"q": question}}


@scene
async def test_the_engine_gets_the_questions_and_the_caller_the_answers() -> None:
    engine = FakeEngine()
    async with http(app_for(engine)) as client:
        response = await client.post(ASK, json=THREE)
    assert engine.calls == [
        (
            '{"文":"二重に請求された"}',
            (
                Noul("refund", "Refund?", "asked for"),
                Choice("team", None, (Option("billing", "money"), Option("tech"))),
                Score("anger", '["how","angry"]', ("calm", '{"very":true}')),
            ),
        )
    ]
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    reply = response.json()
    assert list(reply) == ["model", "answers", "usage"]
    assert list(reply["answers"]) == ["refund", "team", "anger"]
    assert reply["answers"]["anger"]["legend"] == {"0": "calm", "1": {"very": True}}
    assert reply["usage"] == {"input_tokens": len(engine.calls[0][0]) + 3, "output_tokens": 3}
    assert reply["model"] == "fake-1b"
    SystemOneReply.model_validate(reply)
    assert "x_" not in response.text


@scene
async def test_diagnostics_travel_in_headers() -> None:
    engine = FakeEngine(warnings=("low-mass",))
    async with http(app_for(engine)) as client:
        response = await client.post(ASK, json=THREE)
    assert {name: response.headers.get(name) for name in DIAGNOSTICS} == {
        "X-Jev-Local-State-Cache": "shared",
        "X-Jev-Local-Prefix-Tokens": "12",
        "X-Jev-Local-Prefix-Source": "memory",
        "X-Jev-Local-Strategy": "fan-out",
        "X-Jev-Local-Cached-Tokens": "34",
        "X-Jev-Local-Processed-Tokens": "56",
        "X-Jev-Local-Reevaluated": "2",
        "X-Jev-Local-Confidence": "typesafe",
        "X-Jev-Local-Warnings": "low-mass=3",
        "Server-Timing": "restore;dur=0.25, total;dur=1.50",
    }


@scene
async def test_details_on_request_or_for_everyone() -> None:
    engine = FakeEngine(mass=0.25, warnings=("low-mass",))
    async with http(app_for(engine)) as client:
        asked = await client.post(ASK, json={**ONE_NOUL, "x_details": True})
        unasked = await client.post(ASK, json={**ONE_NOUL, "x_details": False})
    async with http(app_for(engine, details=True)) as client:
        always = await client.post(ASK, json=ONE_NOUL)
    assert list(asked.json()["answers"]["wet"]) == ["type", "noul", "x_candidate_mass", "x_warnings"]
    assert asked.json()["answers"]["wet"]["x_candidate_mass"] == 0.25
    assert asked.json() == always.json()
    assert list(unasked.json()["answers"]["wet"]) == ["type", "noul"]


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("zstd", zstandard.compress(json.dumps(THREE).encode())),
        ("gzip", gzip.compress(json.dumps(THREE).encode())),
    ],
)
@scene
async def test_packed_bodies(encoding: str, body: bytes) -> None:
    async with http(app_for(FakeEngine())) as client:
        response = await client.post(ASK, content=body, headers={"content-encoding": encoding})
        assert response.json() == (await client.post(ASK, json=THREE)).json()


LONG = "x" * 10_000_000

# status, and the shape of `detail`: a list of issues or an error type.
BAD: dict[str, tuple[bytes | dict[str, Any], dict[str, str], int, type[list[Any]] | str]] = {
    "not JSON": (b"hello", {}, 422, list),
    "nothing": (b"", {}, 422, list),
    "latin-1": ('{"state":"ü"}'.encode("latin-1"), {}, 422, list),
    "NaN": (b'{"state":[NaN],"questions":{"q":{"type":"noul","instructions":"x"}}}', {}, 422, list),
    "Infinity": (b'{"state":[-Infinity],"questions":{}}', {}, 422, list),
    "1e999": (b'{"state":[1e999],"questions":{}}', {}, 422, list),
    "a very long integer": (b'{"state":[' + b"1" * 100_000 + b"]}", {}, 422, list),
    "the same key twice": (b'{"state":"a","state":"b"}', {}, 422, list),
    "1,000 deep": (b'{"state":' + b"[" * 1000 + b"]" * 1000 + b"}", {}, 422, list),
    "100,000 deep": (b'{"state":' + b'{"a":' * 100_000, {}, 422, list),
    "a lone surrogate": (b'{"state":"\\ud83d","questions":{}}', {}, 422, list),
    "a lone surrogate as id": (b'{"state":"","questions":{"\\ud83d":{"type":"noul"}}}', {}, 422, list),
    "an array": (b"[]", {}, 422, list),
    "no state": ({"questions": {"q": {"type": "noul", "instructions": "x"}}}, {}, 422, list),
    "null state": ({**ONE_NOUL, "state": None}, {}, 422, list),
    "no questions": ({"state": "s"}, {}, 422, list),
    "empty questions": ({"state": "s", "questions": {}}, {}, 422, list),
    "an empty id": ({"state": "s", "questions": {"": {"type": "noul", "instructions": "x"}}}, {}, 422, list),
    "1,001 questions": ({"state": "s", "questions": {str(i): {} for i in range(1001)}}, {}, 422, list),
    "type boolean": (with_question({"type": "boolean", "instructions": "x"}), {}, 422, list),
    "no options": (with_question({"type": "choice", "criteria": {}}), {}, 422, list),
    "256 options": (with_question({"type": "choice", "criteria": {str(i): None for i in range(256)}}), {}, 422, list),
    "256 long options": (
        with_question({"type": "choice", "criteria": {str(i): LONG[:40_000] for i in range(256)}}),
        {},
        422,
        list,
    ),
    "11 levels": (with_question({"type": "score", "criteria": ["x"] * 11}), {}, 422, list),
    "levels as a map": (with_question({"type": "score", "criteria": {"0": "x"}}), {}, 422, list),
    "a null level": (with_question({"type": "score", "criteria": ["x", None]}), {}, 422, list),
    "a question that asks nothing": (with_question({"type": "noul", "instructions": ""}), {}, 422, list),
    "a 10 MB string in the wrong place": (with_question(LONG), {}, 422, list),
    "a 10 MB type": (with_question({"type": LONG}), {}, 422, list),
    "an unknown model": ({**ONE_NOUL, "model": "gpt-x"}, {}, 400, "api_usage_error"),
    "a 10 MB model": ({**ONE_NOUL, "model": LONG}, {}, 400, "api_usage_error"),
    "box": (with_question({"type": "box", "instructions": "where?"}), {}, 400, "api_usage_error"),
    "images": ({**ONE_NOUL, "images": ["data:image/png;base64,AA=="]}, {}, 422, list),
    "assets": ({**ONE_NOUL, "assets": {"<a>": {"type": "image"}}}, {}, 422, list),
    "text/plain": (ONE_NOUL, {"content-type": "text/plain"}, 415, "api_usage_error"),
    "a form": (b"state=1", {"content-type": "application/x-www-form-urlencoded"}, 415, "api_usage_error"),
    "multipart": (b"--x--", {"content-type": "multipart/form-data; boundary=x"}, 422, list),
    "multipart without a boundary": (b"--x--", {"content-type": "multipart/form-data"}, 415, "api_usage_error"),
    "shift_jis": (ONE_NOUL, {"content-type": "application/json; charset=shift_jis"}, 415, "api_usage_error"),
    "brotli": (ONE_NOUL, {"content-encoding": "br"}, 415, "api_usage_error"),
    "not gzip": (ONE_NOUL, {"content-encoding": "gzip"}, 422, list),
    "cut-off zstd": (zstandard.compress(b"{}" * 99)[:-2], {"content-encoding": "zstd"}, 422, list),
    "25 MB with assets somewhere": (
        b'{"state": {"assets": 1}, "x": "' + b"x" * 25_165_824 + b'"}',
        {},
        413,
        "request_too_large",
    ),
    "51 MB with assets": (b'{"assets": "' + b"x" * 50_331_648 + b'"}', {}, 413, "request_too_large"),
    "25 MB": (b'"' + b"x" * 25_165_824 + b'"', {}, 413, "request_too_large"),
    "25 MB, packed": (gzip.compress(b" " * 25_165_825, 1), {"content-encoding": "gzip"}, 413, "request_too_large"),
}


@scene
async def test_bad_requests_are_told_what_is_wrong_and_harm_nobody() -> None:
    engine = FakeEngine()
    async with http(app_for(engine, max_in_flight=1)) as client:
        for name, (body, headers, status, shape) in BAD.items():
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            response = await client.post(ASK, content=content, headers={"content-type": "application/json", **headers})
            assert response.status_code == status, (name, response.text[:300])
            assert response.headers["x-typesafe-request-id"].startswith("req_"), name
            detail = response.json()["detail"]
            if isinstance(shape, str):
                assert detail["error_type"] == shape, name
                assert detail["message"], name
            else:
                assert all(set(issue) <= {"type", "loc", "msg", "ctx"} for issue in detail), name
                assert all(issue["loc"][0] == "body" for issue in detail), name
                assert detail, name
            assert len(response.content) < 5000, name
            assert not engine.calls, name
        # One place in flight, and every request above has given it back.
        assert (await client.post(ASK, json=ONE_NOUL)).status_code == 200


def form(request: Any, **files: tuple[bytes, str]) -> tuple[bytes, dict[str, str]]:
    """A multipart body as httpx writes it, and its Content-Type."""
    parts: dict[str, Any] = {"request": (None, json.dumps(request), "application/json")}
    parts |= {name: (name, data, kind) for name, (data, kind) in files.items()}
    written = httpx.Request("POST", "http://test", files=parts)
    return written.read(), {"content-type": written.headers["content-type"]}


PNG, JPEG = image_file(), image_file(color="red", format_="JPEG")
TURNED = image_file(
    size=(30, 40), format_="JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"
)
ASKED: dict[str, Any] = {**ONE_NOUL, "state": {"photo": "<1>"}}
WITH_PART = {**ASKED, "assets": {"<1>": {"type": "image", "part": "a"}}}

FORMS: dict[str, tuple[tuple[bytes, dict[str, str]], bytes]] = {
    "images": ((json.dumps({**ONE_NOUL, "images": [data_url(PNG)]}).encode(), {}), PNG),
    "assets": (
        (json.dumps({**ASKED, "assets": {"<1>": {"type": "image", "data_base64": base64(JPEG)}}}).encode(), {}),
        JPEG,
    ),
    "a form": (form(WITH_PART, a=(PNG, "application/octet-stream")), PNG),
    "a message": (
        (json.dumps({**ONE_NOUL, "state": [{"type": "image_url", "image_url": data_url(JPEG, "jpeg")}]}).encode(), {}),
        JPEG,
    ),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("sent", "data"), FORMS.values(), ids=FORMS)
@scene
async def test_an_image_arrives_at_the_engine_in_every_form(
    sent: tuple[bytes, dict[str, str]], data: bytes, packed: bool
) -> None:
    engine = FakeEngine()
    body, headers = sent
    if packed:
        body, headers = gzip.compress(body), {**headers, "content-encoding": "gzip"}
    async with http(app_for(engine)) as client:
        response = await client.post(ASK, content=body, headers={"typesafe-danger-zone-images": "true", **headers})
    assert response.status_code == 200, response.text
    ((state, _),), (album,) = engine.calls, engine.albums
    expected = develop(Uploads((Upload(("body",), data),)), max_pixels=1200, seen=SeenPictures()).leading[0]
    assert (*album.leading, *album.placed.values()) == (expected,)
    assert state.count("[image ") == len(album.placed)
    assert all(mark in state for mark in album.placed)


@scene
async def test_images_are_turned_before_the_engine_gets_them() -> None:
    engine = FakeEngine()
    async with http(app_for(engine)) as client:
        await client.post(ASK, json={**ONE_NOUL, "images": [data_url(TURNED, "jpeg")]})
    ((picture,),) = [album.leading for album in engine.albums]
    assert (picture.width, picture.height) == (40, 30)
    assert picture.data.startswith(b"\xff\xd8")


CUT_OFF = form(WITH_PART, a=(PNG, "image/png"))
BAD_IMAGES: dict[str, tuple[tuple[bytes, dict[str, str]], int, list[Any]]] = {
    "cut off": (
        (json.dumps({**ONE_NOUL, "images": [data_url(PNG), data_url(PNG[:-9])]}).encode(), {}),
        422,
        ["images", 1],
    ),
    "another format": ((json.dumps({**ONE_NOUL, "images": [data_url(JPEG)]}).encode(), {}), 422, ["images", 0]),
    "from elsewhere": ((json.dumps({**ONE_NOUL, "images": ["http://x/a.png"]}).encode(), {}), 422, ["images", 0]),
    "five": ((json.dumps({**ONE_NOUL, "images": [data_url(PNG)] * 5}).encode(), {}), 422, ["images"]),
    "a cut off part": (form(WITH_PART, a=(PNG[:-9], "image/png")), 422, ["assets", 0]),
    "a part of another kind": (form(WITH_PART, a=(PNG, "image/jpeg")), 422, ["assets", 0]),
    "a part under another name": (form(WITH_PART, b=(PNG, "image/png")), 422, ["assets", 0]),
    "a part too many": (form(WITH_PART, a=(PNG, "image/png"), b=(PNG, "image/png")), 400, []),
    "an asset of no use": (form({**WITH_PART, "state": "s"}, a=(PNG, "image/png")), 400, []),
    "a form that is not JSON": (form("}", a=(PNG, "image/png")), 422, []),
    "a form cut off": ((CUT_OFF[0][:-20], CUT_OFF[1]), 422, []),
}


@scene
async def test_bad_images_are_told_and_no_model_is_asked() -> None:
    engine = FakeEngine()
    async with http(app_for(engine, max_in_flight=1)) as client:
        for name, ((body, headers), status, loc) in BAD_IMAGES.items():
            response = await client.post(ASK, content=body, headers=headers)
            assert response.status_code == status, (name, response.text)
            detail = response.json()["detail"]
            if status == 422:
                assert [issue["loc"] for issue in detail] == [["body", *loc]], (name, detail)
        assert not engine.calls
        assert (await client.post(ASK, json=ONE_NOUL)).status_code == 200


@scene
async def test_the_limit_of_pixels_is_a_setting() -> None:
    async with http(app_for(FakeEngine(), max_image_pixels=1200)) as client:
        body = {**ONE_NOUL, "images": [data_url(PNG)]}
        assert (await client.post(ASK, json=body)).status_code == 200
        body["images"] = [data_url(image_file(size=(41, 30)))]
        refused = await client.post(ASK, json=body)
    assert refused.status_code == 422
    assert "41 x 30" in refused.text


@scene
async def test_large_pictures_are_looked_at_two_at_a_time_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_work, most, go_on = 0, 0, threading.Event()

    def slow(uploads: Any, *, max_pixels: int, seen: SeenPictures) -> Album:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        go_on.wait(10)
        at_work -= 1
        return develop(uploads, max_pixels=max_pixels, seen=seen)

    monkeypatch.setattr("jev_local.web.systemone.develop", slow)
    async with http(app_for(FakeEngine())) as client:
        asking = [asyncio.create_task(client.post(ASK, json={**ONE_NOUL, "images": [data_url(PNG)]})) for _ in range(5)]
        while at_work < 2:
            await asyncio.sleep(0.01)
        assert (await client.post(ASK, json=ONE_NOUL)).status_code == 200
        go_on.set()
        assert [(await task).status_code for task in asking] == [200] * 5
    assert most == 2


@pytest.mark.parametrize("content_type", [None, "application/json", "application/json; charset=utf-8", "text/json"])
@scene
async def test_content_types_taken(content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    async with http(app_for(FakeEngine())) as client:
        response = await client.post(ASK, content=json.dumps(ONE_NOUL).encode(), headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize("model", [None, "jev-latest", "jev-preview", "jev-1.14.0", "fake-1b"])
@scene
async def test_models_taken(model: str | None) -> None:
    async with http(app_for(FakeEngine())) as client:
        response = await client.post(ASK, json={**ONE_NOUL, "model": model})
    assert response.json()["model"] == "fake-1b"


@pytest.mark.parametrize(
    ("error", "status", "shown"),
    [
        (errors.PromptTooLong(needed=9000, available=8192), 400, ["max_tokens_exceeded", "9000", "8192", "CTX_SIZE"]),
        (errors.BackendUnavailable("Nobody listens."), 503, ["backend_unavailable"]),
        (errors.BackendLoading("It loads."), 503, ["backend_loading"]),
        (errors.BackendTimeout("Too slow."), 504, ["backend_timeout"]),
        (errors.BackendFault("Nonsense."), 502, ["backend_error"]),
        (errors.Busy("Full.", retry_after=2.5), 529, ["system_overloaded"]),
    ],
)
@scene
async def test_errors_from_below(error: errors.JevError, status: int, shown: list[str]) -> None:
    async with http(app_for(FakeEngine(error=error))) as client:
        response = await client.post(ASK, json=ONE_NOUL)
    assert response.status_code == status
    assert [word for word in shown if word not in response.text] == []
    assert ("retry-after" in response.headers) == ("retry-after-ms" in response.headers) == (status in (503, 529))
    if status == 529:
        assert (response.headers["retry-after"], response.headers["retry-after-ms"]) == ("3", "2500")


@scene
async def test_a_body_that_trickles_in_is_cut_off() -> None:
    wire = Wire(app_for(FakeEngine(), limits=BodyLimits(seconds=0.02)))
    wire.chunk(b'{"state":')
    await asyncio.wait_for(wire.task, 5)
    assert wire.status == 408
    assert wire.headers["connection"] == "close"
    assert wire.headers["x-typesafe-request-id"].startswith("req_")


@scene
async def test_a_declared_length_over_the_limit_is_refused_before_the_body_is_asked_for() -> None:
    wire = Wire(app_for(FakeEngine()), headers={"content-length": str(2**40)})
    await asyncio.wait_for(wire.task, 5)
    assert (wire.status, wire.received) == (413, 0)


@scene
async def test_models_in_both_shapes() -> None:
    async with http(app_for(FakeEngine())) as client:
        listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [entry["name"] for entry in listed["models"]] == ["fake-1b", "jev-latest"]
    assert [entry["id"] for entry in listed["data"]] == ["fake-1b", "jev-latest"]
    for entry in listed["models"]:
        assert isinstance(entry["description"], str)
        assert datetime.fromisoformat(entry["release_date"]).utcoffset() is not None


@scene
async def test_models_while_none_is_known() -> None:
    async with http(app_for(FakeEngine(state=Status(status="starting")))) as client:
        listed = (await client.get("/v1/models")).json()
        answered = await client.post(ASK, json={**ONE_NOUL, "model": "whichever"})
    assert [entry["name"] for entry in listed["models"]] == ["jev-latest"]
    assert answered.status_code == 200


@scene
async def test_ready() -> None:
    engine = FakeEngine()
    async with http(app_for(engine), key=None) as client:
        ready = await client.get("/ready")
        engine.state = replace(READY, status="unavailable", reason="Nobody listens.", model=None)
        unavailable = await client.get("/ready")
        alive = await client.get("/health")
    assert ready.status_code == 200
    assert ready.json() == {
        "status": "ready",
        "reason": None,
        "model": "fake-1b",
        "backend": {"build": "b11042", "slots": 4, "context": 8192, "vision": False},
        "labels": {"single": 255},
        "state_cache": {
            "mode": "auto",
            "sharing": True,
            "reason": None,
            "strategies": [
                {"name": "in-place", "exact": True, "ms": 12.5},
                {"name": "restore", "exact": True, "ms": None},
            ],
        },
        "chats": {"slots": 2, "context": 4096, "reason": None},
    }
    ReadyReply.model_validate(ready.json(), strict=True)
    ReadyReply.model_validate(unavailable.json(), strict=True)
    assert unavailable.status_code == 503
    assert unavailable.json()["reason"] == "Nobody listens."
    assert int(unavailable.headers["retry-after"]) >= 1
    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})


@scene
async def test_the_cache_is_told_in_numbers_and_deleted_on_request() -> None:
    engine = FakeEngine()
    secret = "The lamp arrived broken."
    async with http(app_for(engine)) as client:
        await client.post(ASK, json={**ONE_NOUL, "state": secret})
        before = await client.get("/v1/cache")
        deleted = await client.delete("/v1/cache")
        after = await client.get("/v1/cache")
        again = await client.delete("/v1/cache")
    expected = {
        "mode": "auto",
        "sharing": True,
        "saving": False,
        "reason": "The disk is full.",
        "bytes": 4096,
        "budget": 8192,
        "entries": 3,
        "hits": 5,
        "misses": 7,
        "evictions": 11,
    }
    assert (before.status_code, before.json()) == (200, expected)
    assert list(before.json()) == list(expected)
    assert (deleted.status_code, deleted.json()) == (200, {"deleted": 3})
    assert after.json() == {**expected, "bytes": 0, "entries": 0}
    assert (again.status_code, again.json()) == (200, {"deleted": 0})
    assert engine.events[-4:] == ["cache", "clear", "cache", "clear"]
    for response in (before, deleted, after, again):
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-typesafe-request-id"].startswith("req_")
        assert secret not in response.text


@scene
async def test_nobody_without_the_key_learns_of_the_cache_or_deletes_it() -> None:
    engine = FakeEngine()
    async with http(app_for(engine), key=None) as client:
        for method in ("GET", "DELETE"):
            missing = await client.request(method, "/v1/cache")
            wrong = await client.request(method, "/v1/cache", headers={"authorization": "Bearer other"})
            assert (missing.status_code, wrong.status_code) == (403, 401)
            assert wrong.headers["www-authenticate"] == "Bearer"
            assert wrong.json() == {
                "detail": {"error_type": "authentication_error", "message": "The API key is not valid."}
            }
    assert engine.events == []


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "HEAD", "OPTIONS"])
@scene
async def test_a_405_of_the_cache_names_both_methods(method: str) -> None:
    engine = FakeEngine()
    async with http(app_for(engine)) as client:
        response = await client.request(method, "/v1/cache")
    assert response.status_code == 405
    assert set(response.headers["allow"].split(", ")) == {"GET", "DELETE"}
    assert engine.events == []


@scene
async def test_a_cache_that_cannot_be_deleted_is_an_error_like_any_other() -> None:
    class Failing(FakeEngine):
        async def clear_cache(self) -> int:
            raise errors.BackendUnavailable("Nobody listens.")

    async with http(app_for(Failing())) as client:
        response = await client.delete("/v1/cache")
    assert response.status_code == 503
    assert response.json()["detail"]["error_type"] == "backend_unavailable"


def test_head_for_load_balancers() -> None:
    with served(lambda: app_for(FakeEngine(state=Status(status="starting")))) as url:
        connection = HTTPConnection(urlsplit(url).netloc, timeout=5)
        for path, status in (("/health", 200), ("/ready", 503)):
            seen = []
            for method in ("HEAD", "GET"):  # on one connection: a body behind HEAD would be taken for the next reply
                connection.request(method, path)
                response = connection.getresponse()
                body = response.read()
                seen.append((response.status, response.headers["content-type"], response.headers["content-length"]))
                assert bool(body) == (method == "GET")
            assert seen == [(status, "application/json", str(len(body)))] * 2
        connection.close()


@pytest.mark.parametrize("path", [ASK, "/v1/models", "/docs", "/openapi.json"])
@scene
async def test_head_is_for_nothing_else(path: str) -> None:
    async with http(app_for(FakeEngine())) as client:
        assert (await client.head(path)).status_code == 405


@pytest.mark.parametrize(
    ("method", "path", "status", "detail"),
    [
        ("GET", ASK, 405, "Method Not Allowed"),
        ("PUT", ASK, 405, "Method Not Allowed"),
        ("OPTIONS", ASK, 405, "Method Not Allowed"),
        ("POST", "/v1/models", 405, "Method Not Allowed"),
        ("DELETE", "/health", 405, "Method Not Allowed"),
        ("POST", "/v1/cache", 405, "Method Not Allowed"),
        ("POST", "/v1/systemone/", 404, "Not Found"),
        ("DELETE", "/v1/cache/", 404, "Not Found"),
        ("GET", "/v1/cache/prefix", 404, "Not Found"),
        ("GET", "/v1/nothing", 404, "Not Found"),
        ("GET", "/redoc", 404, "Not Found"),
        ("GET", "/nothing", 404, "Not Found"),
    ],
)
@scene
async def test_wrong_paths_and_methods(method: str, path: str, status: int, detail: str) -> None:
    async with http(app_for(FakeEngine())) as client:
        response = await client.request(method, path)
    assert (response.status_code, response.json()) == (status, {"detail": detail})
    assert ("allow" in response.headers) == (status == 405)
    assert response.headers["x-typesafe-request-id"].startswith("req_")


@scene
async def test_browsers_of_other_sites_are_not_invited() -> None:
    async with http(app_for(FakeEngine())) as client:
        asked = await client.options(
            ASK, headers={"origin": "https://evil.test", "access-control-request-method": "POST"}
        )
        answered = await client.post(ASK, json=ONE_NOUL, headers={"origin": "https://evil.test"})
    assert not [name for response in (asked, answered) for name in response.headers if "access-control" in name]


@scene
async def test_the_engine_lives_as_long_as_the_app() -> None:
    engine = FakeEngine()
    app = app_for(engine)
    async with app.router.lifespan_context(app):
        assert engine.events == ["start"]
    assert engine.events == ["start", "stop"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
near_misses = st.fixed_dictionaries(
    {"state": json_values, "questions": st.dictionaries(st.text(), json_values, max_size=3)},
    optional={"model": json_values, "x_details": json_values},
)


@given(near_misses.map(json.dumps).map(str.encode) | json_values.map(json.dumps).map(str.encode) | st.binary())
def test_no_body_is_our_fault(body: bytes) -> None:
    async def run() -> None:
        async with http(app_for(FakeEngine())) as client:
            response = await client.post(ASK, content=body)
            assert response.status_code < 500
            response.json()

    asyncio.run(run())
