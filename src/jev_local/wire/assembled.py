"""A reply that came as a stream, put together to the document that llama-server gives without one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jev_local.core.chats import Endpoint
from jev_local.errors import BackendFault, InvalidRequest

REPLY_LIMIT = 64 * 1024 * 1024
"""Bytes of the events of one reply."""

MAX_CHOICES = 64
MAX_CALLS = 4096

_ORDER = ("choices", "created", "model", "system_fingerprint", "object", "usage", "id", "timings")


class Assembly:
    """Takes the events of one stream, in order."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._size = 0
        self._choices: dict[int, _Choice] = {}
        self._last: dict[int | None, Mapping[str, Any]] = {}

    def take(self, chunk: Mapping[str, Any], size: int) -> None:
        """`chunk`: the value of an event that is no error. `size`: its bytes. Raises BackendFault for nonsense, and
        InvalidRequest where the reply is larger than REPLY_LIMIT."""
        self._size += size
        if self._size > REPLY_LIMIT:
            raise InvalidRequest(
                "The answer is too large to be sent in one piece. Ask for a stream, or for less of it."
            )
        try:
            for told in chunk["choices"]:
                index = told["index"]
                if type(index) is not int or not 0 <= index < MAX_CHOICES:
                    raise ValueError
                self._choices.setdefault(index, _Choice()).take(told)
                if chunk.get("usage"):
                    self._last[index] = chunk
            if not chunk["choices"] and chunk.get("usage"):
                self._last[None] = chunk
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BackendFault("The inference server sent an event that is no part of an answer.") from None

    def document(self) -> bytes:
        """The whole reply as JSON. Raises BackendFault where the stream ended before it did."""
        # Of several texts llama-server tells the first one's numbers.
        last = self._last.get(None if self._endpoint == "chat" else 0)
        choices = sorted(self._choices.items())
        if last is None or not choices or any(choice.finish_reason is None for _, choice in choices):
            raise BackendFault("The inference server's answer broke off.")
        made: dict[str, Any] = {name: last[name] for name in _ORDER if name in last}
        made["choices"] = [getattr(choice, self._endpoint)(index) for index, choice in choices]
        if self._endpoint == "chat":
            made["object"] = "chat.completion"
        return _written(made).encode()


@dataclass(slots=True)
class _Choice:
    text_parts: list[str] = field(default_factory=list)
    reasoning_parts: list[str] = field(default_factory=list)
    role: str = "assistant"
    calls: dict[int, _Call] = field(default_factory=dict)
    steps: list[_Step] = field(default_factory=list)
    finish_reason: str | None = None

    def take(self, told: Mapping[str, Any]) -> None:
        delta = told.get("delta") or {}
        self.role = delta.get("role") or self.role
        _add(self.text_parts, delta.get("content"))
        _add(self.text_parts, told.get("text"))
        _add(self.reasoning_parts, delta.get("reasoning_content"))
        for call in delta.get("tool_calls") or ():
            index = call["index"]
            if type(index) is not int or not 0 <= index < MAX_CALLS:
                raise ValueError
            self.calls.setdefault(index, _Call()).take(call)
        for step in (told.get("logprobs") or {}).get("content") or ():
            self.steps.append(_Step.of(step))
        self.finish_reason = told.get("finish_reason") or self.finish_reason

    def chat(self, index: int) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self.role, "content": "".join(self.text_parts)}
        if self.reasoning_parts:
            message["reasoning_content"] = "".join(self.reasoning_parts)
        if self.calls:
            message["tool_calls"] = [call.written() for _, call in sorted(self.calls.items())]
        made = {"finish_reason": self.finish_reason, "index": index, "message": message}
        return made | ({"logprobs": {"content": self._steps()}} if self.steps else {})

    def text(self, index: int) -> dict[str, Any]:
        logprobs = {"content": self._steps()} if self.steps else None
        return {
            "text": "".join(self.text_parts),
            "index": index,
            "logprobs": logprobs,
            "finish_reason": self.finish_reason,
        }

    def _steps(self) -> list[_Json]:
        """Without those of a stop string, which a stream tells and a document does not: all that reach beyond the text,
        which ends within the last one or in what was withheld before that."""
        kept = list(self.steps)
        if self.finish_reason == "stop" and kept and kept[-1].own != kept[-1].told:
            rest = len(kept.pop().told)
            withheld = []
            while kept and kept[-1].own and not kept[-1].told:
                withheld.append(kept.pop())
            while withheld and len(withheld[-1].own) <= rest:
                rest -= len(withheld[-1].own)
                kept.append(withheld.pop())
        return [step.json for step in kept]


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def take(self, told: Mapping[str, Any]) -> None:
        function = told.get("function") or {}
        self.id = told.get("id") or self.id
        self.name = function.get("name") or self.name
        _add(self.arguments, function.get("arguments"))

    def written(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"type": "function", "function": function} | ({"id": self.id} if self.id else {})


@dataclass(frozen=True, slots=True)
class _Step:
    """The probabilities beside one token. told, own: bytes of the text that came with it, and of its own. What might be
    the beginning of a stop string is withheld until that is known. The end of a text has no text of its own."""

    json: _Json
    told: bytes
    own: bytes

    @classmethod
    def of(cls, step: Mapping[str, Any]) -> _Step:
        listed = step.get("top_logprobs") or step.get("top_probs") or ()
        own = next((entry["bytes"] for entry in listed if entry["id"] == step["id"]), step["bytes"])
        # As text again at once: as values they take ten times the room.
        return cls(_Json(_written(step)), bytes(step["bytes"]), bytes(own))


@dataclass(frozen=True, slots=True)
class _Json:
    """A value that has been written already."""

    text: str


def _add(parts: list[str], text: Any) -> None:
    if not isinstance(text, str | None):
        raise TypeError
    if text:
        parts.append(text)


def _written(value: Any) -> str:
    if isinstance(value, _Json):
        return value.text
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_written(key)}:{_written(inner)}' for key, inner in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
