"""`POST /v1/cache/explain` in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from jev_local.web import examples

Json = dict[str, Any]

_ASKED = {"late": {"type": "noul", "instructions": "Is it late?"}}

EXAMPLE_REQUEST: Json = {
    "a": {"state": "Date: 2026-11-29\nThe parcel is late.", "questions": _ASKED},
    "b": {"state": "Date: 2026-11-30\nThe parcel is late.", "questions": _ASKED},
}

EXAMPLE_REPLY: Json = {
    "agree": 21,
    "whole": False,
    "a": {"form": "decision", "tokens": 58, "reusable": 29},
    "b": {"form": "decision", "tokens": 58, "reusable": 29},
    "place": {
        "kind": "date-time",
        "before": "<|im_start|>user\nText:\nDate: 2026-11-",
        "a": "29\nThe parcel is late.\nQuestion: Is it late?",
        "b": "30\nThe parcel is late.\nQuestion: Is it late?",
        "a_value": "2026-11-29",
        "b_value": "2026-11-30",
    },
    "moves": [{"kind": "date-time", "a": "2026-11-29", "b": "2026-11-30", "agree": 47}],
    "checks": [
        {"check": "text", "outcome": "differs", "says": "What is really sent parts after 21 of 29 reusable tokens."}
    ],
    "advice": "If the date or time changes from request to request, put it behind the text that stays the same: "
    "47 tokens would agree then, instead of 21.",
}

_PAIR: Json = {
    "type": "object",
    "properties": {"a": {"type": "object"}, "b": {"type": "object"}},
    "required": ["a", "b"],
}


def operation(*, security: list[Json], headers: Json, refusals: Json) -> Json:
    """`headers` come with every reply; `refusals` are responses by status."""
    return {
        "operationId": "explainCache",
        "summary": "Why one request did not reuse what another had read",
        "description": "`a` and `b` are whole requests: of `/v1/systemone`, or of a chat or text completion. They are "
        "rendered and compared, and nothing is evaluated. Their text is in the reply, and never in a log.",
        "security": security,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _PAIR, "example": EXAMPLE_REQUEST}},
        },
        "responses": {
            "200": {
                "description": "Where they part, or what became of what they have in common.",
                "headers": headers,
                "content": _json("ExplainReply", EXAMPLE_REPLY),
            },
            "422": {
                "description": "The body is not what it should be; the place begins with `a` or `b`.",
                "headers": headers,
                "content": _json("InvalidBodyReply", examples.INVALID_BODY),
            },
            **refusals,
        },
    }


def _json(model: str, example: Json) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model}"}, "example": example}}
