"""`/v1/cache/explain`: two requests in one body, and what is told about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jev_local.core.compared import Compared, Form
from jev_local.core.explain import Explanation
from jev_local.core.parting import Move, Place
from jev_local.errors import InvalidBody, InvalidRequest, Issue, UnknownModel
from jev_local.wire import strict_json
from jev_local.wire.about import ExplainedCheck, ExplainedMove, ExplainedPlace, ExplainedSide, ExplainReply
from jev_local.wire.chat import read_relayed
from jev_local.wire.intake import check_model, read_request

_SIDES = ("a", "b")

_FORMS: Mapping[str, Form] = {"questions": "decision", "messages": "chat", "prompt": "text"}
"""The field that tells what a request is, in the order in which they are looked for."""


def read_pair(body: bytes, *, model: str | None) -> tuple[Compared, Compared]:
    """The two requests in `body`; `model` is the local one's name.

    Raises InvalidBody (anything wrong with either, which its place tells) and InvalidRequest.
    """
    value = strict_json.parse(body)
    if not isinstance(value, dict):
        raise InvalidBody(Issue(("body",), "model_type", "has to be an object"))
    missing = [Issue(("body", side), "missing", "is required") for side in _SIDES if side not in value]
    if missing:
        raise InvalidBody(*missing)
    a, b = (_compared(side, value[side], model) for side in _SIDES)
    return a, b


def build(found: Explanation) -> ExplainReply:
    return ExplainReply(
        agree=found.agree,
        whole=found.whole,
        a=ExplainedSide(form=found.a.form, tokens=found.a.tokens, reusable=found.a.stem),
        b=ExplainedSide(form=found.b.form, tokens=found.b.tokens, reusable=found.b.stem),
        place=None if found.place is None else _place(found.place),
        moves=[_move(move) for move in found.moves],
        checks=[ExplainedCheck(check=each.check, outcome=each.outcome, says=each.says) for each in found.checks],
        advice=found.advice,
    )


def _place(place: Place) -> ExplainedPlace:
    return ExplainedPlace(
        kind=place.kind,
        before=place.before,
        a=place.left,
        b=place.right,
        a_value=place.left_value,
        b_value=place.right_value,
    )


def _move(move: Move) -> ExplainedMove:
    return ExplainedMove(kind=move.kind, a=move.left, b=move.right, agree=move.agree)


def _compared(side: str, value: Any, model: str | None) -> Compared:
    if not isinstance(value, dict):
        raise InvalidBody(Issue(("body", side), "model_type", "has to be an object"))
    form = next((form for name, form in _FORMS.items() if name in value), None)
    if form is None:
        raise InvalidBody(Issue(("body", side), "missing", "questions, messages or prompt is required"))
    # Written again, so that each is read by what reads it when it is asked.
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    try:
        return _decision(side, body, model) if form == "decision" else _relayed(body, form, model)
    except InvalidBody as error:
        issues = (replace(issue, loc=("body", side, *issue.loc[1:])) for issue in error.issues)
        raise InvalidBody(*issues) from None


def _decision(side: str, body: bytes, model: str | None) -> Compared:
    intake = read_request(body)
    if intake.uploads:
        raise InvalidRequest(f"Request {side} has images: only texts are compared.")
    return Compared("decision", _named(intake.model, model), state=intake.state, questions=intake.questions)


def _relayed(body: bytes, form: Form, model: str | None) -> Compared:
    read = read_relayed(body, "chat" if form == "chat" else "text")
    return Compared(form, _named(read.model, model), document=read.document)


def _named(asked: str | None, local: str | None) -> str | None:
    """The model that is asked for, None for the local one under any of its names."""
    try:
        check_model(asked, local or "")
    except UnknownModel:
        return asked
    return None
