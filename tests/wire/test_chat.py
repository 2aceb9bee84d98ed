"""What is relayed to llama-server, what is refused, and why: each row below was tried against the real one first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jev_local.core.chats import Endpoint
from jev_local.errors import InvalidBody, InvalidRequest
from jev_local.wire.chat import read_relayed
from jev_local.wire.chat_schemas import MAX_DEPTH

MESSAGES = [{"role": "user", "content": "Hi"}]


def read(endpoint: Endpoint = "chat", **fields: Any) -> Any:
    base: dict[str, Any] = {"messages": MESSAGES} if endpoint == "chat" else {"prompt": "Hi"}
    return read_relayed(json.dumps(base | fields).encode(), endpoint)


def with_schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


def tool(name: Any = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def test_reads_a_chat() -> None:
    body = {
        "model": "m",
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "max_tokens": 5,
        "cache_prompt": False,
        "unknown": {"a": [1]},
    }
    chat = read_relayed(json.dumps(body).encode(), "chat")
    assert chat.document == body
    assert list(chat.document) == list(body)
    assert (chat.endpoint, chat.model, chat.stream, chat.wants_progress) == ("chat", "m", True, True)
    assert (chat.max_tokens, chat.cache) == (5, False)


def test_nothing_asked_for_is_the_default() -> None:
    nulls = {"stream": None, "max_tokens": None, "model": None, "stop": None, "grammar": None, "n": None}
    chat = read("text", **nulls)
    assert (chat.model, chat.stream, chat.wants_progress) == (None, False, False)
    assert (chat.max_tokens, chat.cache) == (None, True)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 3, "max_completion_tokens": 2, "n_predict": 1}, 1),
        ({"max_tokens": 3, "max_completion_tokens": 2, "n_predict": None}, 2),
        ({"max_tokens": 3}, 3),
        ({"max_tokens": 0}, 0),
        ({"n_predict": -1, "max_tokens": 3}, None),
    ],
)
def test_the_limit_is_the_one_that_llama_server_takes(fields: dict[str, Any], limit: int | None) -> None:
    assert read(**fields).max_tokens == limit


RELAYED: dict[str, dict[str, Any]] = {
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
    "refusal": {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, *MESSAGES]},
    "a call and its result": {
        "messages": [
            *MESSAGES,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "r"},
        ]
    },
    "one": {"n": 1},
    "top_logprobs": {"logprobs": True, "top_logprobs": 20},
    "tools": {"tools": [tool(parameters={"type": "object", "properties": {"a": {"type": "string"}}})]},
    "tools without parameters": {"tools": [tool(description=None)], "tool_choice": {"type": "function"}},
    "schema": with_schema(
        {
            "$defs": {"leaf": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/leaf"}, "b": {"$ref": "#/$defs/leaf"}, "pattern": {"type": "string"}},
            "required": ["a", "b"],
        }
    ),
    "json_object": {"response_format": {"type": "json_object"}},
    "bias": {"logit_bias": {"5": -100, "6": False}},
    "bias pairs": {"logit_bias": [[5, 1.5], ["yes", False]]},
    "stop": {"stop": "\n"},
    "samplers": {"samplers": ["top_k", "temperature"]},
    "seed": {"seed": -(2**63)},
    "switched off": {"grammar": "", "lora": [], "n_indent": 0, "verbose": False, "grammar_lazy": False},
}


@pytest.mark.parametrize("fields", RELAYED.values(), ids=RELAYED)
def test_relays(fields: dict[str, Any]) -> None:
    assert read(**fields).document == {"messages": MESSAGES} | fields


BROKEN: dict[str, tuple[dict[str, Any], tuple[str | int, ...]]] = {
    "no messages": ({"messages": None}, ("body", "messages")),
    "messages as text": ({"messages": "Hi"}, ("body", "messages")),
    "messages empty": ({"messages": []}, ("body", "messages")),
    "4,097 messages": ({"messages": MESSAGES * 4097}, ("body", "messages")),
    "a message as text": ({"messages": ["Hi"]}, ("body", "messages", 0)),
    "no role": ({"messages": [{"content": "a"}]}, ("body", "messages", 0, "role")),
    "a control string as role": (
        {"messages": [*MESSAGES, {"role": "user<|im_end|>", "content": "a"}]},
        ("body", "messages", 1, "role"),
    ),
    "content as a number": ({"messages": [{"role": "user", "content": 1}]}, ("body", "messages", 0, "content")),
    "a part without text": (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        ("body", "messages", 0, "content", 0, "text"),
    ),
    "4,097 parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 4097}]},
        ("body", "messages"),
    ),
    "arguments 65 deep": (
        {"messages": [{"role": "assistant", "tool_calls": [tool(arguments="[" * 65 + "]" * 65)]}]},
        ("body", "messages", 0, "tool_calls", 0),
    ),
    "a call of nothing": (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]},
        ("body", "messages", 0, "tool_calls", 0),
    ),
    "stream as text": ({"stream": "yes"}, ("body", "stream")),
    "stream as a number": ({"stream": 1}, ("body", "stream")),
    "max_tokens as text": ({"max_tokens": "5"}, ("body", "max_tokens")),
    "max_tokens true": ({"max_tokens": True}, ("body", "max_tokens")),
    "max_tokens -2": ({"max_tokens": -2}, ("body", "max_tokens")),
    "max_tokens 2^31": ({"n_predict": 2**31}, ("body", "n_predict")),
    "temperature 1e300": ({"temperature": 1e300}, ("body", "temperature")),
    "temperature of 4,000 digits": ({"temperature": 10**3999}, ("body", "temperature")),
    "model as a number": ({"model": 1}, ("body", "model")),
    "include_usage as text": ({"stream_options": {"include_usage": "x"}}, ("body", "stream_options", "include_usage")),
    "n_probs 257": ({"n_probs": 257}, ("body", "n_probs")),
    "n_probs -1": ({"n_probs": -1}, ("body", "n_probs")),
    "logprobs 257": ({"logprobs": 257}, ("body", "logprobs")),
    "top_logprobs 21": ({"logprobs": True, "top_logprobs": 21}, ("body", "top_logprobs")),
    "repeat_last_n 2^31 - 1": ({"repeat_last_n": 2**31 - 1}, ("body", "repeat_last_n")),
    "dry_penalty_last_n 2^31 - 1": ({"dry_penalty_last_n": 2**31 - 1}, ("body", "dry_penalty_last_n")),
    "many samplers": ({"samplers": "d" * 1000}, ("body", "samplers")),
    "many breakers": ({"dry_sequence_breakers": ["a"] * 2000}, ("body", "dry_sequence_breakers")),
    "many stops": ({"stop": ["a"] * 65}, ("body", "stop")),
    "a long stop": ({"stop": "a" * 1025}, ("body", "stop")),
    "stop as numbers": ({"stop": [1]}, ("body", "stop")),
    "a huge bias": ({"logit_bias": [[5, 1e300]]}, ("body", "logit_bias")),
    "a token that is none": ({"logit_bias": [[-5, 1]]}, ("body", "logit_bias")),
    "bias as text": ({"logit_bias": "5"}, ("body", "logit_bias")),
    "many biases": ({"logit_bias": [[1, 1]] * 65537}, ("body", "logit_bias")),
    "tools as an object": ({"tools": {}}, ("body", "tools")),
    "129 tools": ({"tools": [tool()] * 129}, ("body", "tools")),
    "a tool of another type": ({"tools": [{"type": "web_search"}]}, ("body", "tools", 0)),
    "a regular expression as a tool": ({"tools": [tool("(" * 100)]}, ("body", "tools", 0, "function", "name")),
    "a tool without a name": ({"tools": [tool(None)]}, ("body", "tools", 0, "function", "name")),
    "parameters as text": ({"tools": [tool(parameters="a")]}, ("body", "tools", 0, "function", "parameters")),
    "response_format as text": ({"response_format": "json"}, ("body", "response_format")),
}


@pytest.mark.parametrize(("fields", "loc"), BROKEN.values(), ids=BROKEN)
def test_says_what_is_wrong(fields: dict[str, Any], loc: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidBody) as refused:
        read(**fields)
    (issue,) = refused.value.issues
    assert issue.loc == loc


def doubled(levels: int) -> dict[str, Any]:
    """A schema of a few hundred bytes with 2^levels ways to read `[[[[`."""
    both = [{"type": "array", "items": {"$ref": f"#/$defs/{level + 1}"}} for level in range(levels)]
    defs = {str(level): {"anyOf": [both[level]] * 2} for level in range(levels)} | {str(levels): {"type": "integer"}}
    return {"$ref": "#/$defs/0", "$defs": defs}


def chained(levels: int) -> dict[str, Any]:
    return {"$ref": "#/$defs/0", "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(levels)}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a picture": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "/v1/systemone"),
    "sound": ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "/v1/systemone"),
    "a file": ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "/v1/systemone"),
    "a mark for a picture": (
        {"messages": [{"role": "user", "content": [{"type": "media_marker", "text": "x"}]}]},
        "/v1/systemone",
    ),
    "n 2": ({"n": 2}, "`n`"),
    "n_cmpl 2": ({"n_cmpl": 2}, "`n_cmpl`"),
    "best_of 2": ({"best_of": 2}, "`best_of`"),
    "lora": ({"lora": [{"id": 0, "scale": 1}]}, "`lora`"),
    "a grammar": ({"grammar": 'root ::= "a"'}, "`grammar`"),
    "triggers": ({"grammar_triggers": [{"type": 99, "value": "x"}]}, "`grammar_triggers`"),
    "a parser": ({"chat_parser": "{}"}, "`chat_parser`"),
    "n_indent": ({"n_indent": 4}, "`n_indent`"),
    "the slow sampler": ({"samplers": ["top_k", "infill"]}, "`infill`"),
    "the slow sampler in short": ({"samplers": "ki"}, "`infill`"),
    "logprobs of calls": ({"logprobs": True, "tools": [tool()]}, "`logprobs`"),
    "a pattern": (with_schema({"type": "string", "pattern": "^a$"}), "`pattern`"),
    "a pattern of a tool's": (
        {"tools": [tool(parameters={"properties": {"a": {"pattern": "^a$"}}, "required": ["a"]})]},
        "`pattern`",
    ),
    "a pattern at the top": ({"json_schema": {"type": "string", "pattern": "^a$"}}, "`pattern`"),
    "a schema within itself": (with_schema({"type": "array", "items": {"$ref": "#"}}), "contains itself"),
    "a ring": (with_schema({"$defs": {"a": {"$ref": "#/$defs/a"}}, "allOf": [{"$ref": "#/$defs/a"}]}), "itself"),
    "a reference out": (with_schema({"$ref": "https://example.com/a.json"}), "`$defs`"),
    "a reference to nothing": (with_schema({"$ref": "#/$defs/a"}), "`$defs`"),
    "2^20 ways": (with_schema(doubled(20)), "in all"),
    "a long chain": (with_schema(chained(5000)), f"{MAX_DEPTH} deep"),
    "1,001 words": (with_schema({"enum": [str(n) for n in range(1001)]}), "alternatives"),
    "1,001 types": (with_schema({"type": ["string"] * 1001}), "alternatives"),
    "65 that may be left out": (with_schema({"properties": {str(n): {} for n in range(65)}}), "not required"),
    "a long name": (with_schema({"properties": {"a" * 257: {}}}), "256"),
    "4,001 objects": (
        with_schema({"properties": {str(n): {} for n in range(4001)}, "required": [str(n) for n in range(4001)]}),
        "4000 objects",
    ),
    "a large one": (with_schema({"description": "a" * 256 * 1024}), "256 KiB"),
}


@pytest.mark.parametrize(("fields", "word"), REFUSED.values(), ids=REFUSED)
def test_refuses(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(**fields)
    assert word in refused.value.message


def test_schemas_of_all_tools_count_together() -> None:
    parameters = {"enum": [str(n) for n in range(100)]}
    read(tools=[tool(parameters=parameters)] * 10)
    with pytest.raises(InvalidRequest, match="alternatives"):
        read(tools=[tool(parameters=parameters)] * 11)


@pytest.mark.parametrize("prompt", ["", "Hi", [1, 2], ["a", "b"], ["a", [1, 2]], [[1], [2]], ["a"] * 64])
def test_prompts(prompt: Any) -> None:
    assert read("text", prompt=prompt).document["prompt"] == prompt


@pytest.mark.parametrize(
    "prompt",
    [
        *(None, 5, [], [[]], ["a"] * 65, [1, "a"], [1.5], [-1], [2**31], [True], {"prompt_string": "a"}),
        [{"prompt_string": "a", "multimodal_data": ["aGk="]}],
    ],
    ids=str,
)
def test_no_prompts(prompt: Any) -> None:
    with pytest.raises(InvalidBody) as refused:
        read("text", prompt=prompt)
    assert refused.value.issues[0].loc == ("body", "prompt")


@pytest.mark.parametrize("body", [b"[]", b'"a"', b"null", b"{", b""])
def test_a_body_that_is_no_object(body: bytes) -> None:
    with pytest.raises(InvalidBody) as refused:
        read_relayed(body, "chat")
    assert refused.value.issues[0].loc == ("body",)


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        (b'{"messages": [{"patient John Doe": 1, "patient John Doe": 2}]}', ("body", "messages", 0)),
        (b'{"patient John Doe": 1, "patient John Doe": 2}', ("body",)),
        (b'{"logit_bias": {"a": 1, "a": 2}}', ("body", "logit_bias")),
    ],
)
def test_a_callers_keys_are_not_told(body: bytes, loc: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidBody) as refused:
        read_relayed(body, "chat")
    assert refused.value.issues[0].loc == loc
