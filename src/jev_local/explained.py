"""What a server answered to `/v1/cache/explain`, checked once and typed. As in `received`, unknown fields and words are
tolerated, so that a newer server can be asked; `document` keeps the JSON untouched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jev_local.received import MAX_DEPTH
from jev_local.wire.strict_json import nested_deeper


@dataclass(frozen=True, slots=True)
class ExplainedRequest:
    """tokens: of its prompt. reusable: how many of them come before what is meant to change."""

    form: str
    tokens: int
    reusable: int


@dataclass(frozen=True, slots=True)
class ExplainedPlace:
    """Where the texts part: what both have before it, and how each goes on."""

    kind: str
    before: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class ExplainedMove:
    """A thing in the way, and how many tokens agree without it and those before it."""

    kind: str
    a: str
    b: str
    agree: int


@dataclass(frozen=True, slots=True)
class ExplainedCheck:
    check: str
    outcome: str
    says: str


@dataclass(frozen=True, slots=True)
class Explained:
    document: Mapping[str, object]
    agree: int
    whole: bool
    a: ExplainedRequest
    b: ExplainedRequest
    place: ExplainedPlace | None
    moves: tuple[ExplainedMove, ...]
    checks: tuple[ExplainedCheck, ...]
    advice: str


def parse(content: bytes) -> Explained:
    """The reply in `content`. Raises ValueError, with a sentence fit for a person, if it is none."""
    if nested_deeper(content, MAX_DEPTH):
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    try:
        document = json.loads(content.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError("not JSON") from error
    if not isinstance(document, dict):
        raise ValueError("the reply is not an object")
    try:
        return _read(document)
    except (KeyError, TypeError) as error:
        raise ValueError("a part of it is missing or is not what it should be") from error


def _read(document: Mapping[str, Any]) -> Explained:
    place = document["place"]
    return Explained(
        document=document,
        agree=_count(document["agree"]),
        whole=document["whole"] is True,
        a=_request(document["a"]),
        b=_request(document["b"]),
        place=None if place is None else ExplainedPlace(*_texts(place, "kind", "before", "a", "b")),
        moves=tuple(map(_move, document["moves"])),
        checks=tuple(ExplainedCheck(*_texts(check, "check", "outcome", "says")) for check in document["checks"]),
        advice=_texts(document, "advice")[0],
    )


def _request(value: Mapping[str, Any]) -> ExplainedRequest:
    (form,) = _texts(value, "form")
    return ExplainedRequest(form, _count(value["tokens"]), _count(value["reusable"]))


def _move(value: Mapping[str, Any]) -> ExplainedMove:
    kind, a, b = _texts(value, "kind", "a", "b")
    return ExplainedMove(kind, a, b, _count(value["agree"]))


def _texts(value: Mapping[str, Any], *names: str) -> list[str]:
    found = [value[name] for name in names]
    if not all(isinstance(text, str) for text in found):
        raise TypeError
    return found


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value
