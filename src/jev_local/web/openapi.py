"""The OpenAPI document. It is written by hand, because bodies are read by hand: FastAPI never sees them.

The schemas come from the models in `wire.schema`, statuses and error types from the contract.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from jev_local.core.chats import CHAT_PATHS, Endpoint
from jev_local.engine.decision import STAGES
from jev_local.web import chat_doc, examples, explain_doc
from jev_local.wire import headers
from jev_local.wire.about import CacheReply, ClearedReply, ExplainReply, ModelsReply, ReadyReply
from jev_local.wire.problems import FOREIGN_HOST, INTERNAL
from jev_local.wire.schema import ErrorReply, InvalidBodyReply, SystemOneReply, SystemOneRequest

Json = dict[str, Any]

_REPLIES = (
    SystemOneReply,
    ModelsReply,
    ReadyReply,
    CacheReply,
    ClearedReply,
    ExplainReply,
    ErrorReply,
    InvalidBodyReply,
)

_FOREIGN = "the server listens on a loopback address and the Host header has a name that is not this machine's."

_REFUSALS: dict[int, tuple[str, str]] = {
    400: (
        "Unknown model, too many tokens for the context, images for a model that sees none, an asset that is mentioned "
        "nowhere, or a question of type `box`.",
        "unknown-model",
    ),
    401: ("The key is wrong.", "wrong-key"),
    403: ("No key was sent, or " + _FOREIGN, "missing-key"),
    408: ("The body did not arrive within 30 seconds.", "body-timeout"),
    413: (
        "The body is larger than 24 MiB, counted after decompression. JSON with `assets` may have 48 MiB, if they "
        "begin within the first 24, and multipart/form-data 34 MiB.",
        "body-too-large",
    ),
    415: ("Content-Type is neither JSON nor multipart/form-data, or Content-Encoding not zstd or gzip.", "media-type"),
    500: ("A fault of this service.", "internal"),
    502: (
        "The inference server answered nonsense, or cannot share states although `--state-cache shared` wants it to.",
        "backend-fault",
    ),
    503: ("The inference server is not there, or still loads its model.", "backend-loading"),
    504: ("The inference server took too long.", "backend-timeout"),
    529: ("Too many requests in flight.", "busy"),
}
_RETRIED = (503, 529)


def document(version: str) -> Json:
    """The whole document, for `/openapi.json` and the page that is made from it."""
    _, schemas = models_json_schema(
        [(SystemOneRequest, "validation"), *((model, "serialization") for model in _REPLIES)],
        ref_template="#/components/schemas/{model}",
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jev-local",
            "version": version,
            "description": "Typed questions about one state, answered with probabilities by a model on this machine. "
            "The wire format is TypeSafe's System One; the model is not TypeSafe's Jev, and its probabilities are "
            "its own opinion, not calibrated.",
        },
        "paths": {
            "/v1/systemone": {"post": _ask()},
            CHAT_PATHS["chat"]: {"post": _chat("chat")},
            CHAT_PATHS["text"]: {"post": _chat("text")},
            "/v1/models": {"get": _list_models()},
            "/v1/cache": {"get": _cache(), "delete": _clear_cache()},
            "/v1/cache/explain": {"post": _explain()},
            "/health": {"get": _health()},
            "/ready": {"get": _ready()},
        },
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _ask() -> Json:
    return {
        "operationId": "ask",
        "summary": "Answer questions about one state",
        "description": "Bodies may be packed with zstd or gzip. Unknown fields are ignored; questions of type `box` "
        "are refused. Images are PNG or JPEG files and come as data URLs in `images` or as `image_url` parts of a "
        "state that is an array of messages, 4 of those at most with 4 MiB each; or as `assets`, in JSON or as parts "
        "of multipart/form-data. They are shown at 32 places at most. Each file is decoded before a model is asked: it "
        "has to be whole, what it was declared as, not animated, and of 20 million pixels at most (or what "
        "`--max-image-pixels` says; four times as many in a request). It is turned upright as EXIF says, and put on "
        "white where it is transparent. "
        "Nothing is ever fetched from a URL.",
        "security": _KEYS,
        "requestBody": {
            "required": True,
            "content": _json("SystemOneRequest", examples.REQUEST) | {"multipart/form-data": _FORM},
        },
        "responses": {
            "200": {
                "description": "One answer for each question.",
                "headers": _headers() | {name: _header(text) for name, text in _DIAGNOSTICS.items()},
                "content": _json("SystemOneReply", examples.REPLY),
            },
            "422": {
                "description": "The body is not what it should be. Only question ids of it are repeated, in `loc`; "
                "an image is told by its position, an asset by its place among the assets, counted from 0.",
                "headers": _headers(),
                "content": _json("InvalidBodyReply", examples.INVALID_BODY),
            },
            **{str(status): _refusal(status) for status in _REFUSALS},
        },
    }


def _list_models() -> Json:
    return {
        "operationId": "listModels",
        "summary": "The local model, in TypeSafe's and in OpenAI's shape at once",
        "security": _KEYS,
        "responses": {
            "200": {"description": "Models.", "headers": _headers(), "content": _json("ModelsReply", examples.MODELS)},
            **{str(status): _refusal(status) for status in (401, 403, 500)},
        },
    }


def _cache() -> Json:
    return {
        "operationId": "cache",
        "summary": "What is saved of the states that were asked about, in numbers",
        "description": "States are saved as the model's own numbers, so that it need not read them again. No text of "
        "them is told.",
        "security": _KEYS,
        "responses": {
            "200": {"description": "Now.", "headers": _headers(), "content": _json("CacheReply", examples.CACHE)},
            **{str(status): _refusal(status) for status in (401, 403, 500)},
        },
    }


def _clear_cache() -> Json:
    return {
        "operationId": "clearCache",
        "summary": "Delete every saved state",
        "description": "Requests in flight are answered all the same, and later ones save states again.",
        "security": _KEYS,
        "responses": {
            "200": {
                "description": "They are deleted.",
                "headers": _headers(),
                "content": _json("ClearedReply", examples.CLEARED),
            },
            **{str(status): _refusal(status) for status in (401, 403, 500)},
        },
    }


def _explain() -> Json:
    refusals = {str(status): _refusal(status) for status in _REFUSALS}
    return explain_doc.operation(security=_KEYS, headers=_headers(), refusals=refusals)


def _chat(endpoint: Endpoint) -> Json:
    refusals = {str(status): _refusal(status) for status in _REFUSALS}
    return chat_doc.operation(endpoint, security=_KEYS, headers=_headers(), refusals=refusals)


def _health() -> Json:
    schema = {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]}
    return {
        "operationId": "health",
        "summary": "The process is alive",
        "description": _HEAD,
        "responses": {
            "200": {
                "description": "Alive, whatever the inference server does.",
                "headers": _headers(),
                "content": {"application/json": {"schema": schema, "example": {"status": "ok"}}},
            },
            "403": _foreign(),
            "500": _refusal(500),
        },
    }


def _ready() -> Json:
    content = _json("ReadyReply", examples.READY)
    return {
        "operationId": "ready",
        "summary": "Questions can be answered now",
        "description": _HEAD,
        "responses": {
            "200": {"description": "Ready.", "headers": _headers(), "content": content},
            "503": {
                "description": "Starting or unavailable; `reason` says why.",
                "headers": _headers(retried=True),
                "content": _json("ReadyReply", examples.NOT_READY),
            },
            "403": _foreign(),
            "500": _refusal(500),
        },
    }


_FORM: Json = {
    "schema": {
        "type": "object",
        "properties": {
            "request": {
                "allOf": [{"$ref": "#/components/schemas/SystemOneRequest"}],
                "description": "The JSON. Its assets name the other parts as `part`, each of them one.",
            }
        },
        "required": ["request"],
        "additionalProperties": {"type": "string", "contentMediaType": "application/octet-stream"},
    },
    "encoding": {"request": {"contentType": "application/json"}},
    "example": examples.FORM,
}

_HEAD = "HEAD answers the same without a body."

_KEYS: list[Json] = [{"bearer": []}, {"apiKey": []}]

_DIAGNOSTICS = {
    headers.STATE_CACHE: "How the shared part of the prompts was handled.",
    headers.PREFIX_TOKENS: "Tokens that all questions begin with.",
    headers.PREFIX_SOURCE: "Where they came from: none (nothing is reused), computed, slot, memory (saved by this "
    "process) or disk (saved by an earlier one).",
    headers.STRATEGY: "How the questions went on from them: in-place, fan-out, restore or plain.",
    headers.CACHED_TOKENS: "Tokens reused, over all questions.",
    headers.PROCESSED_TOKENS: "Tokens that were really evaluated.",
    headers.REEVALUATED: "Questions whose reuse failed and that were evaluated again in full.",
    headers.CONFIDENCE: "Whose formulas `confidence` follows.",
    headers.WARNINGS: "Codes with counts, such as low-mass=3,wants-to-think=1, or none; see `x_warnings`.",
    headers.TIMING: f"Milliseconds of each stage there was: {', '.join(STAGES)}.",
}


def _headers(*, retried: bool = False) -> Json:
    told = {headers.REQUEST_ID: _header("req_ and 32 hexadecimal digits; the log calls the request the same.")}
    if retried:
        told["retry-after"] = _header("Seconds to wait.")
        told["retry-after-ms"] = _header("The same in milliseconds.")
    return told


def _header(text: str) -> Json:
    return {"description": text, "required": True, "schema": {"type": "string"}}


def _refusal(status: int) -> Json:
    description, name = _REFUSALS[status]
    example = {"detail": INTERNAL.detail} if status == INTERNAL.status else examples.error(name)
    return {
        "description": description,
        "headers": _headers(retried=status in _RETRIED),
        "content": _json("ErrorReply", example),
    }


def _foreign() -> Json:
    return {
        "description": _FOREIGN[:1].upper() + _FOREIGN[1:],
        "headers": _headers(),
        "content": _json("ErrorReply", {"detail": FOREIGN_HOST.detail}),
    }


def _json(model: str, example: Json) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model}"}, "example": example}}
