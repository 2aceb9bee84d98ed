"""`POST /v1/chat/completions` and `/v1/completions` in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from jev_local.core.chats import Endpoint
from jev_local.web import examples

Json = dict[str, Any]

_COMMON: Json = {
    "model": {"type": ["string", "null"], "description": "As of `/v1/systemone`."},
    "stream": {"type": ["boolean", "null"], "description": "true: server-sent events, as llama-server sends them."},
    "stream_options": {"type": ["object", "null"], "properties": {"include_usage": {"type": ["boolean", "null"]}}},
    "max_tokens": {
        "type": ["integer", "null"],
        "minimum": -1,
        "description": "Without it, as many as the share of the context has that is for one chat.",
    },
    "cache_prompt": {"type": ["boolean", "null"], "description": "false: nothing is reused, and nothing kept."},
}

_MESSAGES: Json = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {"role": {"type": "string"}, "content": {"type": ["string", "array", "null"]}},
        "required": ["role"],
    },
}

_PROMPT: Json = {"anyOf": [{"type": "string"}, {"type": "array"}]}

_USAGE: Json = {
    "type": "object",
    "properties": {
        "prompt_tokens": {"type": "integer"},
        "completion_tokens": {"type": "integer"},
        "total_tokens": {"type": "integer"},
        "prompt_tokens_details": {
            "type": "object",
            "properties": {
                "cached_tokens": {"type": "integer", "description": "Tokens of the prompt that were not read again."}
            },
        },
    },
}

_REPLY: Json = {
    "type": "object",
    "properties": {"choices": {"type": "array"}, "model": {"type": "string"}, "usage": _USAGE},
    "required": ["choices", "usage"],
}

_COUNTS: Json = {
    "usage": {
        "completion_tokens": 3,
        "prompt_tokens": 1034,
        "total_tokens": 1037,
        "prompt_tokens_details": {"cached_tokens": 1012},
    },
}

_EXAMPLES: dict[Endpoint, Json] = {
    "chat": {
        "choices": [
            {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "Yes, they can."}}
        ],
        "model": "LFM2-1.2B",
        **_COUNTS,
    },
    "text": {
        "choices": [{"text": ", there was", "index": 0, "finish_reason": "length"}],
        "model": "LFM2-1.2B",
        **_COUNTS,
    },
}

_NONE = {
    "error_type": "api_usage_error",
    "message": "Chats are not served here: they are switched off with --chat-slots 0.",
}

_WORDS = {
    "chat": ("createChatCompletion", "A chat", "messages", _MESSAGES, [{"role": "user", "content": "Hello?"}]),
    "text": ("createCompletion", "A text completion", "prompt", _PROMPT, "Once upon a time"),
}


def operation(endpoint: Endpoint, *, security: list[Json], headers: Json, refusals: Json) -> Json:
    """`headers` come with every reply; `refusals` are responses by status. Their `error` is for OpenAI's clients."""
    name, summary, field, schema, example = _WORDS[endpoint]
    request: Json = {"type": "object", "properties": {field: schema, **_COMMON}, "required": [field]}
    return {
        "operationId": name,
        "summary": summary,
        "description": "Relayed to llama-server, which knows more fields than are listed. Only text is: pictures are "
        "asked about at `/v1/systemone`. What stands before the last user message is kept, and a later chat that "
        "begins with it does not read it again.",
        "security": security,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": request, "example": {field: example, "max_tokens": 16}}},
        },
        "responses": {
            "200": {
                "description": "The answer, with the diagnostics of `/v1/systemone` in its headers.",
                "headers": headers,
                "content": {
                    "application/json": {"schema": _REPLY, "example": _EXAMPLES[endpoint]},
                    "text/event-stream": {"schema": {"type": "string"}, "example": "data: {...}\n\ndata: [DONE]\n\n"},
                },
            },
            "404": {
                "description": "No slots are kept for chats.",
                "headers": headers,
                "content": _json("ErrorReply", {"detail": _NONE}),
            },
            "422": {
                "description": "The body is not what it should be.",
                "headers": headers,
                "content": _json("InvalidBodyReply", examples.INVALID_BODY),
            },
            **refusals,
        },
    }


def _json(model: str, example: Json) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model}"}, "example": example}}
