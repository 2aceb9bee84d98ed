"""`POST /v1/cache/explain`: what is read from a body, what is told, and what stays out of logs."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi import FastAPI

from fakes.asgi import AUTH, ONE_NOUL, Wire, app_for, http, scene
from fakes.engine import EXPLANATION, FakeEngine
from jev_local.core.compared import Compared
from jev_local.core.explain import Explanation
from jev_local.core.parting import Place
from jev_local.errors import ChatsOff
from jev_local.web.explain_doc import EXAMPLE_REPLY, EXAMPLE_REQUEST
from jev_local.wire.bodies import BodyLimits
from jev_local.wire.explain import read_pair

PATH = "/v1/cache/explain"
SECRET = "patient John Doe"
CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]}


@dataclass
class Explaining(FakeEngine):
    found: Explanation = EXPLANATION
    fault: BaseException | None = None
    asked: list[tuple[Compared, Compared]] = field(default_factory=list)

    async def explain(self, a: Compared, b: Compared) -> Explanation:
        self.asked.append((a, b))
        await self.open.wait()
        if self.fault is not None:
            raise self.fault
        return self.found


def app(engine: Explaining, **options: Any) -> FastAPI:
    return app_for(engine, **options)


@scene
async def test_two_requests_are_read_as_what_they_are_and_all_is_told() -> None:
    engine = Explaining()
    async with http(app(engine)) as client:
        reply = await client.post(
            PATH, json={"a": {**ONE_NOUL, "model": "jev-latest"}, "b": {**CHAT, "model": "other"}}
        )
    assert reply.status_code == 200
    assert reply.json() == {
        "agree": 21,
        "whole": False,
        "a": {"form": "decision", "tokens": 58, "reusable": 29},
        "b": {"form": "chat", "tokens": 60, "reusable": 30},
        "place": {
            "kind": "date-time", "before": "before", "a": "left", "b": "right", "a_value": "one", "b_value": "other"
        },
        "moves": [{"kind": "date-time", "a": "one", "b": "other", "agree": 47}],
        "checks": [{"check": "text", "outcome": "differs", "says": "It parts."}],
        "advice": "Put it behind.",
    }  # fmt: skip
    ((a, b),) = engine.asked
    assert (a.form, a.model, a.state, [question.id for question in a.questions]) == (
        "decision",
        None,
        ONE_NOUL["state"],
        ["wet"],
    )
    assert (b.form, b.model, b.document["messages"]) == ("chat", "other", CHAT["messages"])


@scene
async def test_a_key_is_needed_and_get_is_not_allowed() -> None:
    made = app(Explaining())
    async with http(made, key=None) as client:
        assert (await client.post(PATH, json=EXAMPLE_REQUEST)).status_code == 403
    async with http(made, key="wrong") as client:
        assert (await client.post(PATH, json=EXAMPLE_REQUEST)).status_code == 401
    async with http(made) as client:
        assert (await client.get(PATH)).status_code == 405


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ([], ["body"]),
        ({"a": ONE_NOUL}, ["body", "b"]),
        ({"a": ONE_NOUL, "b": "text"}, ["body", "b"]),
        ({"a": ONE_NOUL, "b": {"state": SECRET}}, ["body", "b"]),
        ({"a": ONE_NOUL, "b": {"state": SECRET, "questions": {"q": {"type": "odd"}}}}, ["body", "b", "questions", "q"]),
        ({"a": {"messages": SECRET}, "b": CHAT}, ["body", "a", "messages"]),
        ({"a": {"prompt": None}, "b": CHAT}, ["body", "a", "prompt"]),
    ],
)
def test_what_is_no_request_is_named_by_its_place(body: Any, loc: list[str]) -> None:
    @scene
    async def whole() -> None:
        engine = Explaining()
        async with http(app(engine)) as client:
            reply = await client.post(PATH, json=body)
        assert reply.status_code == 422
        assert reply.json()["detail"][0]["loc"] == loc
        assert SECRET not in reply.text
        assert engine.asked == []

    whole()


@scene
async def test_images_forms_and_large_bodies_are_refused() -> None:
    engine = Explaining()
    picture = {**ONE_NOUL, "images": ["data:image/png;base64,iVBORw0KGgo="]}
    async with http(app(engine, limits=BodyLimits(size=2000))) as client:
        reply = await client.post(PATH, json={"a": picture, "b": ONE_NOUL})
        assert reply.status_code == 400
        assert "Request a has images" in reply.text
        assert (await client.post(PATH, files={"request": b"{}"})).status_code == 415
        large = {"a": ONE_NOUL, "b": {**ONE_NOUL, "state": "x" * 3000, "assets": {}}}
        assert (await client.post(PATH, json=large)).status_code == 413
    assert engine.asked == []


@scene
async def test_texts_are_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    engine = Explaining(
        found=Explanation(EXPLANATION.a, EXPLANATION.b, 1, False, Place("text", SECRET, "a", "b"), (), (), "So.")
    )
    body = {"a": {**ONE_NOUL, "state": SECRET}, "b": ONE_NOUL}
    async with http(app(engine)) as client:
        assert SECRET in (await client.post(PATH, json=body)).text
        engine.fault = RuntimeError(SECRET)
        failed = await client.post(PATH, json=body)
    assert failed.status_code == 500
    assert SECRET not in failed.text + caplog.text
    assert PATH in caplog.text


@scene
async def test_few_are_explained_at_a_time_and_none_for_who_has_gone() -> None:
    engine = Explaining()
    engine.open.clear()
    made = app(engine)
    waiting = [Wire(made, path=PATH) for _ in range(2)]
    for wire in waiting:
        wire.body(EXAMPLE_REQUEST)
    while len(engine.asked) < 2:
        await asyncio.sleep(0)
    async with http(made) as client:
        assert (await client.post(PATH, json=EXAMPLE_REQUEST)).status_code == 529
        waiting[0].disconnect()
        await waiting[0].task
        assert waiting[0].status == 499
        engine.open.set()
        assert (await client.post(PATH, json=EXAMPLE_REQUEST, headers=AUTH)).status_code == 200
    await waiting[1].task
    assert waiting[1].status == 200


@scene
async def test_what_the_engine_refuses_is_told() -> None:
    async with http(app(Explaining(fault=ChatsOff("Chats are not served here.")))) as client:
        reply = await client.post(PATH, json={"a": CHAT, "b": CHAT})
    assert 400 <= reply.status_code < 500
    assert "Chats are not served here." in reply.text


def test_the_local_model_has_many_names() -> None:
    def model(name: str | None) -> str | None:
        body = json.dumps({"a": {**ONE_NOUL, "model": name}, "b": ONE_NOUL}).encode()
        return read_pair(body, model="local-1b")[0].model

    assert {model(name) for name in (None, "local-1b", "jev-latest", "jev-1.2.3")} == {None}
    assert model("gpt-9") == "gpt-9"


def test_the_order_of_members_is_left_as_it_came() -> None:
    state = {"b": 1, "a": {"d": [1.50, "ü"], "c": None}}
    a, b = read_pair(json.dumps({"a": {**ONE_NOUL, "state": state}, "b": ONE_NOUL}).encode(), model=None)
    assert a.state == '{"b":1,"a":{"d":[1.5,"ü"],"c":null}}'
    assert b.state == ONE_NOUL["state"]


def test_the_example_is_two_requests_that_part_by_a_date() -> None:
    a, b = read_pair(json.dumps(EXAMPLE_REQUEST).encode(), model=None)
    assert a.state.replace("29", "30") == b.state
    assert EXAMPLE_REPLY["place"]["kind"] == "date-time"
