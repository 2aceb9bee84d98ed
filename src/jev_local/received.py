"""What a System One server answered, checked once and typed.

It is not read with the models in `wire.schema`, which say what this product's server sends. This client is pointed at
other servers too, and at newer ones. So it asks for what the official SDK would break on and tolerates what that
tolerates: extra fields, missing or extra ids, answer types that came after this client, levels in any order. Fields
beginning with `x_` are nobody's contract: where they make no sense they are left out. `Received.document` keeps the
official JSON untouched.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from jev_local.wire.strict_json import nested_deeper

MAX_DEPTH = 128
"""Levels of nesting in a reply: more than a server that reads 64 in a request has reason to send, and few enough to
write out again without a deep stack."""

_LEVEL = re.compile(r"0|[1-9][0-9]{0,5}")  # one spelling for each level, so that no two keys mean the same


@dataclass(frozen=True, slots=True)
class ReceivedNoul:
    """`noul` is the probability of yes. `warnings`, here and below, are codes: present where the server tells them
    answer by answer, which it does when it is asked for details."""

    noul: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReceivedChoice:
    """`probabilities` by option name, in the order the server sent them."""

    choice: str
    confidence: float
    probabilities: Mapping[str, float]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReceivedScore:
    """`score` is the expected level. `probabilities` and `legend` by level, from the lowest; a legend text may
    be structured."""

    score: float
    confidence: float
    probabilities: Mapping[int, float]
    legend: Mapping[int, object]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReceivedOther:
    """A type this client does not know, as it came."""

    fields: Mapping[str, object]


ReceivedAnswer: TypeAlias = ReceivedNoul | ReceivedChoice | ReceivedScore | ReceivedOther


@dataclass(frozen=True, slots=True)
class Received:
    """An answered request. Header names are lower case; `seconds` ran from sending to the last byte."""

    document: Mapping[str, object]
    answers: Mapping[str, ReceivedAnswer]
    model: str
    input_tokens: int | None
    output_tokens: int | None
    headers: Mapping[str, str]
    seconds: float


def parse(content: bytes, *, headers: Mapping[str, str], seconds: float) -> Received:
    """The reply in `content`. Raises ValueError, with a sentence fit for a person, if it breaks the contract."""
    if nested_deeper(content, MAX_DEPTH):
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    try:
        # Decoded here: left to itself, json also reads UTF-16 and UTF-32, which the contract does not know.
        document = json.loads(content.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except ValueError as error:
        raise ValueError(f"not JSON ({headers.get('content-type', 'no content type')})") from error
    root = _object(document, "the reply")
    usage = _object(root.get("usage"), "usage")
    answers = _object(root.get("answers"), "answers")
    return Received(
        document=root,
        answers={id_: _answer(value, f"answers.{id_}") for id_, value in answers.items()},
        model=_string(root.get("model"), "model"),
        input_tokens=_count(usage.get("input_tokens")),
        output_tokens=_count(usage.get("output_tokens")),
        headers=headers,
        seconds=seconds,
    )


def _answer(value: object, at: str) -> ReceivedAnswer:
    fields = _object(value, at)
    warnings = _codes(fields.get("x_warnings"))
    match _string(fields.get("type"), f"{at}.type"):
        case "noul":
            return ReceivedNoul(_number(fields.get("noul"), f"{at}.noul"), warnings)
        case "choice":
            shares = _object(fields.get("probabilities"), f"{at}.probabilities")
            return ReceivedChoice(
                choice=_string(fields.get("choice"), f"{at}.choice"),
                confidence=_number(fields.get("confidence"), f"{at}.confidence"),
                probabilities={name: _number(share, f"{at}.probabilities.{name}") for name, share in shares.items()},
                warnings=warnings,
            )
        case "score":
            levels = _levels(fields.get("probabilities"), f"{at}.probabilities")
            return ReceivedScore(
                score=_number(fields.get("score"), f"{at}.score"),
                confidence=_number(fields.get("confidence"), f"{at}.confidence"),
                probabilities={level: _number(share, f"{at}.probabilities.{level}") for level, share in levels},
                legend=dict(_levels(fields.get("legend"), f"{at}.legend")),
                warnings=warnings,
            )
        case _:
            return ReceivedOther(fields)


def _levels(value: object, at: str) -> Iterable[tuple[int, object]]:
    """Level maps have string keys on the wire and no promised order; levels have both a number and an order."""
    members = _object(value, at)
    if not all(_LEVEL.fullmatch(key) for key in members):
        raise ValueError(f"{at} has a key that is not a level number")
    return sorted(((int(key), item) for key, item in members.items()), key=lambda level: level[0])


def _object(value: object, at: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{at} is not an object")
    return value


def _string(value: object, at: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{at} is not a string")
    return value


def _number(value: object, at: str) -> float:
    # bool is an int to Python and not a number to the contract. An int past the floats overflows in float().
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise ValueError(f"{at} is not a number")


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _codes(value: object) -> tuple[str, ...]:
    return tuple(code for code in value if isinstance(code, str)) if isinstance(value, list) else ()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
