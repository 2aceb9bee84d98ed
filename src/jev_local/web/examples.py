"""Examples for the OpenAPI document. Tests hold each against its schema, and the request against the reader."""

from __future__ import annotations

import json
from typing import Any

from jev_local import errors
from jev_local.wire.problems import problem

Json = dict[str, Any]

REQUEST: Json = {
    "model": "jev-latest",
    "state": {"message": "The lamp arrived with a cracked shade. Please send another one.", "orders": 3},
    "questions": {
        "damaged": {"type": "noul", "instructions": "Does the customer report damage?"},
        "wish": {
            "type": "choice",
            "instructions": "What does the customer want?",
            "criteria": {"replacement": "the same thing again", "refund": "money back", "nothing": None},
        },
        "annoyance": {
            "type": "score",
            "instructions": "How annoyed is the customer?",
            "criteria": ["calm", "irritated", "furious"],
        },
    },
}

FORM: Json = {
    "request": {
        "state": {"complaint": "Cracked on arrival.", "photo": "<image:1>"},
        "questions": {"cracked": {"type": "noul", "instructions": "Is there a crack in the lamp on the photo?"}},
        "assets": {"<image:1>": {"type": "image", "part": "asset-0"}},
    },
    "asset-0": "(the bytes of a PNG or JPEG file)",
}
"""The parts of a form: the JSON of the first, and a file."""

REPLY: Json = {
    "model": "LFM2-1.2B",
    "answers": {
        "damaged": {"type": "noul", "noul": 0.97},
        "wish": {
            "type": "choice",
            "choice": "replacement",
            "confidence": 0.85,
            "probabilities": {"replacement": 0.9, "refund": 0.08, "nothing": 0.02},
        },
        "annoyance": {
            "type": "score",
            "score": 0.5,
            "confidence": 0.25,
            "legend": {"0": "calm", "1": "irritated", "2": "furious"},
            "probabilities": {"0": 0.6, "1": 0.3, "2": 0.1},
        },
    },
    "usage": {"input_tokens": 311, "output_tokens": 3},
}

MODELS: Json = {
    "object": "list",
    "models": [
        {"name": "LFM2-1.2B", "description": "The local model.", "release_date": "2026-11-29T09:00:00+00:00"},
        {"name": "jev-latest", "description": "Alias of LFM2-1.2B.", "release_date": "2026-11-29T09:00:00+00:00"},
    ],
    "data": [
        {"id": "LFM2-1.2B", "object": "model", "created": 1795942800, "owned_by": "local"},
        {"id": "jev-latest", "object": "model", "created": 1795942800, "owned_by": "local"},
    ],
}

READY: Json = {
    "status": "ready",
    "reason": None,
    "model": "LFM2-1.2B",
    "backend": {"build": "b11042", "slots": 4, "context": 8192, "vision": False},
    "labels": {"single": 255},
    "state_cache": {
        "mode": "auto",
        "sharing": True,
        "reason": None,
        "strategies": [
            {"name": "in-place", "exact": True, "ms": 41.5},
            {"name": "restore", "exact": True, "ms": 63.0},
            {"name": "fan-out", "exact": False, "ms": None},
        ],
    },
    "chats": {"slots": 2, "context": 8192, "reason": None},
}

NOT_READY: Json = {
    "status": "starting",
    "reason": "The inference server loads its model.",
    "model": None,
    "backend": {"build": None, "slots": None, "context": None, "vision": None},
    "labels": {"single": None},
    "state_cache": {},
    "chats": {},
}

CACHE: Json = {
    "mode": "auto",
    "sharing": True,
    "saving": True,
    "reason": None,
    "bytes": 301_989_888,
    "budget": 1_073_741_824,
    "entries": 6,
    "hits": 41,
    "misses": 9,
    "evictions": 3,
}

CLEARED: Json = {"deleted": 6}

_ERRORS: dict[str, errors.JevError] = {
    "unknown-model": errors.UnknownModel("gpt-x"),
    "wrong-key": errors.WrongKey("The API key is not valid."),
    "missing-key": errors.MissingKey("An API key is required: send `Authorization: Bearer KEY` or `X-API-Key: KEY`."),
    "body-timeout": errors.BodyTimeout("The request body did not arrive within 30 seconds."),
    "body-too-large": errors.BodyTooLarge("The request body is larger than 24 MiB (counted after decompression)."),
    "media-type": errors.UnsupportedMediaType(
        "Content-Type has to be application/json, or multipart/form-data with images."
    ),
    "backend-fault": errors.BackendFault("The inference server's answer makes no sense."),
    "backend-loading": errors.BackendLoading("The inference server loads its model."),
    "backend-timeout": errors.BackendTimeout("The inference server took longer than 600 seconds."),
    "busy": errors.Busy("All 8 places are taken. Try again in a moment."),
}


def error(name: str) -> Json:
    """The body that the error of that name has on the wire."""
    return _body(_ERRORS[name])


def _body(raised: errors.JevError) -> Json:
    told: Json = json.loads(problem(raised).body())
    return told


INVALID_BODY: Json = _body(
    errors.InvalidBody(
        errors.Issue(
            ("body", "questions", "wish", "choice", "criteria"),
            "too_long",
            "at most 255 options, got 256",
            (("max_length", 255),),
        )
    )
)
