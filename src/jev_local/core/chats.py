"""A chat as it is relayed: its JSON, and what has to be known of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Endpoint: TypeAlias = Literal["chat", "text"]

CHAT_PATHS: Mapping[Endpoint, str] = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
"""llama-server's, and ours."""

SENTINEL = "\u2063"
"""What stands for the last user message in `varied`: not white space, which templates trim, and shown as nothing."""

WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")

_TEXTS = ("messages", "tools", "chat_template_kwargs")
"""What a template writes into a prompt."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A checked request. document: its JSON, as it came. max_tokens: None where the caller set no limit. cache: whether
    a state may be reused and kept."""

    endpoint: Endpoint
    document: dict[str, Any] = field(repr=False)
    model: str | None = None
    stream: bool = False
    wants_usage: bool = False
    wants_progress: bool = False
    max_tokens: int | None = None
    cache: bool = True


def callers_texts(document: Mapping[str, Any]) -> list[str]:
    """Every text of the caller's that a chat template may write into a prompt: all strings in `messages`, `tools` and
    `chat_template_kwargs`, each once, in order. Roles and types have been checked, and keys are left out."""
    return list(dict.fromkeys(text for name in _TEXTS for text in _strings(document.get(name))))


def replaced(document: dict[str, Any], safe: Mapping[str, str]) -> dict[str, Any]:
    """`document` with those texts replaced that `safe` has another one for. What does not change is shared with it."""
    changed = {
        name: _mapped(document[name], lambda text: safe.get(text, text)) for name in _TEXTS if document.get(name)
    }
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
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not _is_fixed(key, inner):
                yield from _strings(inner)


def _mapped(value: Any, text: Callable[[str], str]) -> Any:
    """`value` with every text in it put through `text`; itself where nothing changed."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list):
        made = [_mapped(inner, text) for inner in value]
        return made if any(new is not old for new, old in zip(made, value, strict=True)) else value
    if isinstance(value, dict):
        mapped = {key: inner if _is_fixed(key, inner) else _mapped(inner, text) for key, inner in value.items()}
        return mapped if any(mapped[key] is not value[key] for key in value) else value
    return value


def _is_fixed(key: str, value: Any) -> bool:
    """Whether a member is one of the contract's own words. A tool's schema may have a `type` that is any text, and a
    template may print it."""
    return key in ("role", "type") and isinstance(value, str) and WORD.fullmatch(value) is not None
