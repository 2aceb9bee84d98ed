"""A reply put together from a stream is the one that llama-server gives without a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tiny_lfm2
from jev_local.backend.relayed import upstream
from jev_local.core.chats import CHAT_PATHS, Endpoint
from jev_local.core.events import Event, Splitter
from jev_local.errors import InvalidRequest
from jev_local.wire.assembled import Assembly
from jev_local.wire.chat import read_relayed
from servers import llama_server

# Tools and thoughts in words that llama-server makes a parser of.
TEMPLATE = (
    "{{ bos_token }}{% if tools %}{{ '<|im_start|>system\\nTools:\\n' }}{% for tool in tools %}{{ tool | tojson }}"
    "{{ '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}"
    "{% if m.content %}{{ m.content }}{% endif %}"
    "{% if m.tool_calls %}{% for call in m.tool_calls %}"
    '{{ \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
USER = {"role": "user", "content": "Tell me about cats 🐈 and dogs."}
PICK = {"temperature": 0, "seed": 1}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Tokyo", "Oslo"]}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}
# The tiny model's noise would never come to a call by itself, and would never leave one.
CALL = {"tools": [WEATHER], "tool_choice": "required", "logit_bias": [["}", 8], [" ", -8], ["\n", -8], ["\t", -8]]}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
}
PROMPTS = ["Once upon a time", "One two three", "The sky is"]


def chat(*after: dict[str, Any], **fields: Any) -> tuple[Endpoint, dict[str, Any]]:
    return "chat", {"messages": [USER, *after], "max_tokens": 16, **PICK, **fields}


def text(**fields: Any) -> tuple[Endpoint, dict[str, Any]]:
    return "text", {"prompt": PROMPTS[0], "max_tokens": 8, **PICK, **fields}


def begun(content: str, thoughts: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content} | ({"reasoning_content": thoughts} if thoughts else {})


CASES: dict[str, tuple[Endpoint, dict[str, Any]]] = {
    "plain": chat(),
    "cut at the limit": chat(max_tokens=3),
    "limit of zero": chat(max_tokens=0),
    "stop": chat(stop=[" a", "F"]),
    "logprobs": chat(logprobs=True, top_logprobs=3),
    "logprobs and stop": chat(logprobs=True, top_logprobs=2, stop=[" a", "F"]),
    "schema": chat(response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}, max_tokens=60),
    "any object": chat(response_format={"type": "json_object"}),
    "begun by the caller": chat(begun("Cats are")),
    "begun, and streamed with it": chat(begun("Cats are"), echo=True),
    "thoughts apart": chat(begun("Cats", thoughts="hm"), reasoning_format="deepseek"),
    "thoughts within": chat(begun("Cats", thoughts="hm"), reasoning_format="none"),
    "thoughts to go on with": chat(
        begun("", thoughts="hm"), continue_final_message="reasoning_content", add_generation_prompt=False
    ),
    "text": text(),
    "text by ids": text(prompt=[20, 40, 60]),
    "text with logprobs": text(logprobs=3),
    "text with logprobs and stop": text(logprobs=3, stop=["the", "s\x0f"], max_tokens=40),
    "text with what was drawn from": text(n_probs=3, post_sampling_probs=True, temperature=1),
    "three texts": text(prompt=PROMPTS),
    "three texts with logprobs": text(prompt=PROMPTS, n_probs=2),
}
TOOLS: dict[str, tuple[Endpoint, dict[str, Any]]] = {
    "a call": chat(
        begun('<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": '), **CALL, max_tokens=60
    ),
    "two calls": chat(begun("<tool_call>\n"), **CALL, max_tokens=120, parallel_tool_calls=True),
    "a call cut at the limit": chat(begun("<tool_call>\n"), **CALL, max_tokens=24),
    "no call": chat(tools=[WEATHER]),
    "after a thought": chat(begun("<think>\nhm\n</think>\n\n<tool_call>\n"), **CALL, max_tokens=60),
}


@pytest.fixture(scope="module")
def tools_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("tools")
    with llama_server(tiny_lfm2.write(folder / "tools.gguf", template=TEMPLATE), folder, context=16384) as (url, _):
        yield url


def direct(url: str, endpoint: Endpoint, document: dict[str, Any]) -> Any:
    own = {"id_slot": 1, "cache_prompt": False}
    reply = httpx.post(url + CHAT_PATHS[endpoint], json=document | own, trust_env=False, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


def streamed(url: str, endpoint: Endpoint, document: dict[str, Any]) -> Iterator[Event]:
    read = read_relayed(json.dumps(document).encode(), endpoint)
    content = upstream(read.document, slot=1, cache=False, max_tokens=read.max_tokens)
    headers = {"content-type": "application/json", "connection": "close"}
    splitter = Splitter()
    with httpx.stream(
        "POST", url + CHAT_PATHS[endpoint], content=content, headers=headers, trust_env=False, timeout=60
    ) as reply:
        assert reply.status_code == 200, reply.read()
        for chunk in reply.iter_raw():
            yield from splitter.feed(chunk)
    splitter.finish()


def put_together(url: str, endpoint: Endpoint, document: dict[str, Any]) -> Any:
    assembly = Assembly(endpoint)
    events = list(streamed(url, endpoint, document))
    for event in events:
        if event.kind == "chunk" and event.value is not None:
            assembly.take(event.value, len(event.raw))
    assert any("prompt_progress" in event.value for event in events if event.value)
    assert events[-1].kind == "done"
    return json.loads(assembly.document())


def comparable(document: Any) -> str:
    """Everything, in its order, but what no two replies have in common."""
    document |= {"id": "", "created": 0, "timings": list(document["timings"])}
    for choice in document["choices"]:
        for call in choice.get("message", {}).get("tool_calls", ()):
            assert call["id"]
            call["id"] = ""
    return json.dumps(document, ensure_ascii=False)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_of_the_hybrid(tools_server: str, case: tuple[Endpoint, dict[str, Any]]) -> None:
    assert comparable(put_together(tools_server, *case)) == comparable(direct(tools_server, *case))


@pytest.mark.parametrize("name", ["logprobs and stop", "begun by the caller", "three texts"])
def test_of_attention_alone(smollm2_server: str, name: str) -> None:
    endpoint, document = CASES[name]
    case = endpoint, document | {"max_tokens": 6}
    assert comparable(put_together(smollm2_server, *case)) == comparable(direct(smollm2_server, *case))


@pytest.mark.parametrize("case", TOOLS.values(), ids=TOOLS)
def test_of_calls(tools_server: str, case: tuple[Endpoint, dict[str, Any]]) -> None:
    assert comparable(put_together(tools_server, *case)) == comparable(direct(tools_server, *case))


def test_there_really_are_calls_and_thoughts_and_stops(tools_server: str) -> None:
    """Else the cases above would compare nothing but plain text."""
    one, two, thought, thinking = (
        put_together(tools_server, *case)["choices"][0]
        for case in (TOOLS["a call"], TOOLS["two calls"], CASES["thoughts apart"], CASES["thoughts to go on with"])
    )
    assert one["finish_reason"] == "tool_calls"
    (call,) = one["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] == "Oslo"
    assert len(two["message"]["tool_calls"]) > 1
    assert thought["message"]["reasoning_content"].strip() == "hm"
    assert thinking["message"]["reasoning_content"].startswith("hm")
    assert len(thinking["message"]["reasoning_content"]) > len("hm\n")
    assert put_together(tools_server, *CASES["stop"])["choices"][0]["finish_reason"] == "stop"


def test_what_is_refused_would_have_ended_the_server(tiny_model: Path, tmp_path: Path) -> None:
    """Some of it at least: that it still does is why it is refused."""
    ring = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "allOf": [{"$ref": "#/$defs/a"}]}
    endpoint, document = chat(response_format={"type": "json_schema", "json_schema": {"schema": ring}})
    with pytest.raises(InvalidRequest):
        read_relayed(json.dumps(document).encode(), endpoint)
    with llama_server(tiny_model, tmp_path) as (url, child):
        with pytest.raises(httpx.TransportError):
            httpx.post(url + CHAT_PATHS[endpoint], json=document, trust_env=False, timeout=60)
        assert child.wait(10)
