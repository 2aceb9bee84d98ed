"""A chat as it is relayed: its JSON, and what has to be known of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Endpoint: TypeAlias = Literal["chat", "text"]

CHAT_PATHS: Mapping[Endpoint, str] = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
"""llama-server's, and ours."""

LIMITS = ("n_predict", "max_completion_tokens", "max_tokens")
"""The spellings of the most tokens to generate, in the order in which llama-server looks for them."""

SENTINEL = "\u2063"
"""What stands for the last user message in `varied`: not white space, which templates trim, and shown as nothing."""

WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")

_TEXTS = ("messages", "tools", "functions", "documents", "chat_template_kwargs", "response_format", "json_schema")
"""What a template may write into a prompt, keys included."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A checked request. document: its JSON, as it came. max_tokens: None where the caller set no limit. cache: whether
    a state may be reused and kept."""

    endpoint: Endpoint
    document: dict[str, Any] = field(repr=False)
    model: str | None = None
    stream: bool = False
    wants_progress: bool = False
    max_tokens: int | None = None
    cache: bool = True


def callers_texts(document: Mapping[str, Any]) -> list[str]:
    """Every text of the caller's that a chat template may write into a prompt, each once, in order: strings and keys,
    those in the JSON of a tool call's arguments too, and the parts of a message as one, which some templates make of
    them. Roles and types have been checked, and are left out."""
    return list(dict.fromkeys(text for name in _TEXTS for text in _strings(document.get(name))))


def replaced(document: dict[str, Any], safe: Mapping[str, str]) -> dict[str, Any]:
    """`document` with those texts replaced that `safe` has another one for. What does not change is shared with it."""
    changed = {name: _mapped(document[name], safe) for name in _TEXTS if document.get(name)}
    return {name: changed.get(name, value) for name, value in document.items()}


def varied(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """`document` with SENTINEL in place of the last user message's text, or None where there is no user message.
    Rendering both tells where the part before that message ends."""
    messages = list(document["messages"])
    at = next((i for i in reversed(range(len(messages))) if messages[i].get("role") == "user"), None)
    if at is None:
        return None
    parts = isinstance(messages[at].get("content"), list)
    messages[at] = {**messages[at], "content": [{"type": "text", "text": SENTINEL}] if parts else SENTINEL}
    return {**document, "messages": messages}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
        if (joined := _joined(value)) is not None:
            yield joined
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if not _is_fixed(key, inner):
                yield from _strings(inner)
            if (parsed := _arguments(key, inner)) is not None:
                yield from _strings(parsed)


def _mapped(value: Any, safe: Mapping[str, str]) -> Any:
    """`value` with every text in it replaced that `safe` has another one for; itself where nothing changed."""
    if isinstance(value, str):
        return safe.get(value, value)
    if isinstance(value, list):
        joined = _joined(value)
        if joined is not None and joined in safe:  # apart, the parts would make up again what was broken in each
            return [{"type": "text", "text": safe[joined]}]
        made = [_mapped(inner, safe) for inner in value]
        return made if any(new is not old for new, old in zip(made, value, strict=True)) else value
    if isinstance(value, dict):
        mapped = {safe.get(key, key): _mapped_member(key, inner, safe) for key, inner in value.items()}
        same = all(key in mapped and mapped[key] is inner for key, inner in value.items())
        return value if same else mapped
    return value


def _mapped_member(key: str, value: Any, safe: Mapping[str, str]) -> Any:
    if _is_fixed(key, value):
        return value
    parsed = _arguments(key, value)
    if parsed is not None and (mapped := _mapped(parsed, safe)) is not parsed:
        return json.dumps(mapped, ensure_ascii=False)
    return _mapped(value, safe)


def _joined(parts: list[Any]) -> str | None:
    """The text of a message that comes in several parts."""
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    return "".join(map(str, texts)) if len(parts) > 1 and all(isinstance(text, str) for text in texts) else None


def _arguments(key: str, value: Any) -> Any:
    """What a tool call's arguments are the JSON of: llama-server may read them, and write them in another way."""
    if key != "arguments" or not isinstance(value, str):
        return None
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict | list) else None


def _is_fixed(key: str, value: Any) -> bool:
    """Whether a member is one of the contract's own words. A tool's schema may have a `type` that is any text, and a
    template may print it."""
    return key in ("role", "type") and isinstance(value, str) and WORD.fullmatch(value) is not None
