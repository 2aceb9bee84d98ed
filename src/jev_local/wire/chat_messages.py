"""What a relayed request is about: its messages and tools, or its prompts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jev_local.core.chats import WORD
from jev_local.errors import InvalidBody, InvalidRequest
from jev_local.wire.chat_fields import broken
from jev_local.wire.strict_json import nested_deeper

MAX_MESSAGES = 4096
MAX_PARTS = 4096
"""Of all messages together."""

MAX_CALLS = 4096
"""Tool calls of all messages together."""

MAX_TOOLS = 128
MAX_PROMPTS = 64

_PARTS = frozenset(("text", "refusal"))
_DEEPEST = 64
_TOOL_NAME = re.compile(r"[A-Za-z0-9_./:-]{1,128}")
"""OpenAI's, and what servers of tools add to it. llama-server writes names into regular expressions and grammars."""

_PICTURES = (
    "Messages of text alone are relayed: llama-server would fetch and unpack what others point to unchecked. Ask about "
    "images at /v1/systemone."
)


def check_messages(document: Mapping[str, Any]) -> None:
    """Raises InvalidBody and InvalidRequest."""
    messages = document.get("messages")
    if messages is None:
        raise broken("is required", "messages", kind="missing")
    if not isinstance(messages, list):
        raise broken("has to be an array", "messages", kind="list_type")
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise broken(
            f"has to have 1 to {MAX_MESSAGES} messages", "messages", kind="too_long" if messages else "too_short"
        )
    parts = calls = 0
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise broken("has to be an object", "messages", at, kind="dict_type")
        role = message.get("role")
        if not isinstance(role, str) or not WORD.fullmatch(role):
            raise broken("has to be a word", "messages", at, "role", kind="string_type")
        for name in ("reasoning_content", "name", "tool_call_id", "refusal"):
            if message.get(name) is not None and not isinstance(message[name], str):
                raise broken("has to be a string", "messages", at, name, kind="string_type")
        parts += _content(message.get("content"), at)
        calls += _calls(message.get("tool_calls"), at)
    if parts > MAX_PARTS or calls > MAX_CALLS:
        raise broken(f"has to have at most {MAX_PARTS} parts and {MAX_CALLS} calls", "messages", kind="too_long")


def _content(content: Any, at: int) -> int:
    if content is None or isinstance(content, str):
        return 1
    if not isinstance(content, list):
        raise broken("has to be a string, null or an array of parts", "messages", at, "content", kind="type_error")
    for index, part in enumerate(content):
        if not isinstance(part, dict):
            raise broken("has to be an object", "messages", at, "content", index, kind="dict_type")
        kind = part.get("type")
        if kind not in _PARTS:
            raise InvalidRequest(_PICTURES)
        if not isinstance(part.get(kind), str):
            raise broken("has to be a string", "messages", at, "content", index, kind, kind="string_type")
    return len(content)


def _calls(calls: Any, at: int) -> int:
    if calls is None:
        return 0
    if not isinstance(calls, list):
        raise broken("has to be an array", "messages", at, "tool_calls", kind="list_type")
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise broken("has to be a call of a function", "messages", at, "tool_calls", index, kind="type_error")
        arguments = function.get("arguments")
        # Templates parse them, and llama-server writes what it parsed without counting how deep it goes.
        if isinstance(arguments, str) and nested_deeper(arguments.encode(), _DEEPEST):
            raise broken("is nested too deep", "messages", at, "tool_calls", index, kind="nested_too_deep")
    return len(calls)


def check_tools(document: Mapping[str, Any]) -> None:
    """Raises InvalidBody and InvalidRequest. Schemas are left to `chat_schemas`."""
    tools = document.get("tools")
    if tools is None:
        return
    if not isinstance(tools, list):
        raise broken("has to be an array", "tools", kind="list_type")
    if len(tools) > MAX_TOOLS:
        raise broken(f"has to have at most {MAX_TOOLS} tools", "tools", kind="too_long")
    for at, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(function, dict):
            raise broken("has to be a tool of type function", "tools", at, kind="type_error")
        name = function.get("name")
        if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
            raise broken("has to be a name of letters, digits and _./:-", "tools", at, "function", "name")
        if not isinstance(function.get("parameters", {}), dict | None):
            raise broken("has to be an object", "tools", at, "function", "parameters", kind="dict_type")
        if not isinstance(function.get("description", ""), str | None):
            raise broken("has to be a string", "tools", at, "function", "description", kind="string_type")
    if tools and document.get("logprobs"):
        # A stream of tool calls has none to give, and every request is a stream to llama-server.
        raise InvalidRequest("`logprobs` are not relayed together with `tools`.")


def check_prompt(document: Mapping[str, Any]) -> None:
    """A prompt is a string or a list of token ids; there may be a list of them. Raises InvalidBody."""
    prompt = document.get("prompt")
    if prompt is None:
        raise broken("is required", "prompt", kind="missing")
    if isinstance(prompt, str) or _is_ids(prompt):
        return
    if not isinstance(prompt, list) or not all(isinstance(each, str) or _is_ids(each) for each in prompt):
        raise _no_prompt()
    if not 1 <= len(prompt) <= MAX_PROMPTS:
        raise broken(f"has to have 1 to {MAX_PROMPTS} prompts", "prompt", kind="too_long" if prompt else "too_short")


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(id_) is int and 0 <= id_ < 2**31 for id_ in value)


def _no_prompt() -> InvalidBody:
    return broken("has to be a string, an array of token ids, or an array of those", "prompt", kind="type_error")
