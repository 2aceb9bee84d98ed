"""Two requests side by side, before anything is rendered: where they differ in what they are, not in their texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal, TypeAlias

from jev_local.core.questions import Question

Form: TypeAlias = Literal["decision", "chat", "text"]

Where: TypeAlias = Literal["model", "roles", "instructions", "elsewhere"]
"""What is known of the first difference from the requests themselves: they name different models; they are of two
forms, or have other tools or other roles; it is in a system message, in a tool's definition or in what the template was
told; none of these."""

_TOLD_TO_THE_TEMPLATE = ("tools", "chat_template_kwargs")

_INSTRUCTING = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Compared:
    """One of the two. model: None where any model is meant. state, questions: of a decision. document: the JSON of a
    chat or of a text completion."""

    form: Form
    model: str | None = None
    state: str = field(default="", repr=False)
    questions: tuple[Question, ...] = field(default=(), repr=False)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)


def where(a: Compared, b: Compared) -> Where:
    """What `a` and `b` themselves tell of where they differ first."""
    if a.model != b.model:
        return "model"
    if a.form != b.form:
        return "roles"
    return "elsewhere" if a.form != "chat" else _of_chats(a.document, b.document)


def _of_chats(a: Mapping[str, Any], b: Mapping[str, Any]) -> Where:
    if _tools(a) != _tools(b):
        return "roles"
    if any(a.get(name) != b.get(name) for name in _TOLD_TO_THE_TEMPLATE):
        return "instructions"
    for one, other in zip_longest(_messages(a), _messages(b)):
        if one == other:
            continue
        if one is None or other is None:  # one goes on where the other ends
            return "elsewhere"
        if one.get("role") != other.get("role"):
            return "roles"
        return "instructions" if one.get("role") in _INSTRUCTING else "elsewhere"
    return "elsewhere"


def _tools(chat: Mapping[str, Any]) -> list[object]:
    """The names of its tools."""
    tools = [tool for tool in chat.get("tools") or () if isinstance(tool, Mapping)]
    functions = [tool.get("function") for tool in tools]
    return [
        function.get("name") if isinstance(function, Mapping) else tool.get("name")
        for tool, function in zip(tools, functions, strict=True)
    ]


def _messages(chat: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [message for message in chat.get("messages", ()) if isinstance(message, Mapping)]
