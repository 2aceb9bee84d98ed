"""The plain fields of a relayed request: which may come, and how large their numbers and lists may be.

Found by trying: llama-server clips some of its numbers and takes the rest as they are. A `repeat_last_n` of 2^31 - 1
makes it fill 8 GB, and what one slot computes between two tokens, all of them wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from jev_local.core.chats import LIMITS
from jev_local.errors import InvalidBody, InvalidRequest, Issue

MAX_STOPS = 64
MAX_STOP = 1024
"""Strings that end an answer, and the characters of each. All are looked for after every token."""

MAX_SAMPLERS = 16
MAX_BIASES = 65536
MAX_PROBABILITIES = 256
MAX_TOP_LOGPROBS = 20
"""OpenAI's own."""

_INT32 = 2**31 - 1
_LARGEST = 1e6
"""No sampling parameter has a use for more, and a few are multiplied."""

Check: TypeAlias = Callable[[str, Any], None]


def check_fields(document: Mapping[str, Any]) -> None:
    """Raises InvalidBody and InvalidRequest. null stands for a field that did not come, as it does for llama-server."""
    for name, reason in _REFUSED.items():
        if document.get(name) not in (None, False, 0, "", [], {}):
            raise InvalidRequest(f"`{name}` is not relayed: {reason}.")
    for name, check in _CHECKS.items():
        if document.get(name) is not None:
            check(name, document[name])


def is_known(name: str) -> bool:
    """Whether a member's name is the contract's and not the caller's text."""
    return name in _CHECKS or name in _REFUSED or name in _ELSEWHERE


def broken(msg: str, *loc: str | int, kind: str = "value_error") -> InvalidBody:
    """The error for something wrong at `loc` in the body."""
    return InvalidBody(Issue(("body", *loc), kind, msg))


def _flag(name: str, value: Any) -> None:
    if type(value) is not bool:
        raise broken("has to be true or false", name, kind="bool_type")


def _whole(least: int, most: int) -> Check:
    def check(name: str, value: Any) -> None:
        if type(value) is not int:
            raise broken("has to be a whole number", name, kind="int_type")
        if not least <= value <= most:
            raise broken(f"has to be from {least} to {most}", name, kind="out_of_range")

    return check


def _number(name: str, value: Any) -> None:
    if type(value) not in (int, float):
        raise broken("has to be a number", name, kind="float_type")
    if abs(value) > _LARGEST:
        raise broken(f"has to be from -{_LARGEST:.0f} to {_LARGEST:.0f}", name, kind="out_of_range")


def _string(most: int) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, str):
            raise broken("has to be a string", name, kind="string_type")
        if len(value) > most:
            raise broken(f"has to have at most {most} characters", name, kind="too_long")

    return check


def _strings(count: int, most: int, *, alone: int = 0) -> Check:
    """A list of strings, or one string of up to `alone` characters."""

    def check(name: str, value: Any) -> None:
        if alone and isinstance(value, str):
            _string(alone)(name, value)
            return
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise broken("has to be an array of strings", name, kind="list_type")
        if len(value) > count or any(len(item) > most for item in value):
            raise broken(f"has to have at most {count} strings of {most} characters", name, kind="too_long")

    return check


def _object(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise broken("has to be an object", name, kind="dict_type")


def _either(*kinds: type) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, kinds):
            raise broken("is of a wrong type", name, kind="type_error")

    return check


def _stream_options(name: str, value: Any) -> None:
    _object(name, value)
    if value.get("include_usage") is not None and type(value["include_usage"]) is not bool:
        raise broken("has to be true or false", name, "include_usage", kind="bool_type")


def _one(name: str, value: Any) -> None:
    # Each further completion takes another slot, and they are not ours to give: those of decisions are among them.
    if type(value) is not int or value != 1:
        raise InvalidRequest(f"`{name}` has to be 1: one request gets one completion here.")


def _samplers(name: str, value: Any) -> None:
    """Each is built anew, with a history of its own, and llama-server takes a million of one kind."""
    _strings(MAX_SAMPLERS, 32, alone=MAX_SAMPLERS)(name, value)
    if "infill" in value or (isinstance(value, str) and "i" in value):
        # It compares every token of the vocabulary with every other one, for seconds a token.
        raise InvalidRequest("The sampler `infill` is not relayed: it keeps the inference server from other work.")


def _logprobs(name: str, value: Any) -> None:
    if type(value) is not bool:
        _whole(0, MAX_PROBABILITIES)(name, value)


def _logit_bias(name: str, value: Any) -> None:
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise broken("has to be an object or an array of pairs", name, kind="type_error")
    if len(pairs) > MAX_BIASES:
        raise broken(f"has to have at most {MAX_BIASES} entries", name, kind="too_long")
    for token, bias in pairs:
        if bias is not False:
            _number(name, bias)
        if isinstance(token, str):
            _string(64)(name, token)
        elif type(token) is not int or not 0 <= token <= _INT32:
            raise broken("has to name tokens by their numbers or texts", name, kind="type_error")


_CHECKS: dict[str, Check] = {
    "model": _string(4096),
    **dict.fromkeys(
        (
            "stream", "cache_prompt", "return_progress", "return_tokens", "timings_per_token", "post_sampling_probs",
            "ignore_eos", "parallel_tool_calls", "add_generation_prompt", "reasoning_control", "echo",
        ),
        _flag,
    ),
    **dict.fromkeys(
        (
            "temperature", "top_p", "min_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "typical_p",
            "dynatemp_range", "dynatemp_exponent", "repeat_penalty", "frequency_penalty", "presence_penalty",
            "dry_multiplier", "dry_base", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay",
        ),
        _number,
    ),
    **dict.fromkeys(LIMITS, _whole(-1, _INT32)),
    **dict.fromkeys(("n", "n_cmpl", "best_of"), _one),
    **dict.fromkeys(("repeat_last_n", "dry_penalty_last_n"), _whole(-1, 8192)),
    **dict.fromkeys(
        ("top_k", "n_keep", "min_keep", "dry_allowed_length", "mirostat", "t_max_predict_ms", "sse_ping_interval"),
        _whole(-1, _INT32),
    ),
    **dict.fromkeys(("reasoning_budget_tokens", "thinking_budget_tokens"), _whole(-1, _INT32)),
    "seed": _whole(-(2**63), 2**63 - 1),
    "n_probs": _whole(0, MAX_PROBABILITIES),
    "logprobs": _logprobs,
    "top_logprobs": _whole(0, MAX_TOP_LOGPROBS),
    "logit_bias": _logit_bias,
    "stop": _strings(MAX_STOPS, MAX_STOP, alone=MAX_STOP),
    "samplers": _samplers,
    # Each is looked for in every token of the vocabulary, while all slots wait.
    "dry_sequence_breakers": _strings(16, 40),
    "stream_options": _stream_options,
    "chat_template_kwargs": _object,
    "tool_choice": _either(str, dict),
    "continue_final_message": _either(bool, str),
    "reasoning_format": _string(64),
    "reasoning_effort": _string(64),
    "reasoning_budget_message": _string(4096),
}  # fmt: skip

_INTERNAL = "llama-server sets it itself"
_REFUSED: dict[str, str] = {
    # No reading of a grammar tells how long it takes: `([a-z]?){1000} "z"` keeps all slots waiting for good. 60,000
    # parentheses end the process.
    "grammar": "some short ones stop the inference server. Ask for a `response_format` of type json_schema",
    "lora": "saved states hold for the model as it was started",
    "n_cache_reuse": "it shifts states to other places, and what is saved then is not what the text says",
    "n_discard": "it shifts states to other places, and what is saved then is not what the text says",
    "n_indent": "it takes back text that was sent",
    "verbose": "it is for looking for faults in llama-server",
    "backend_sampling": "it changes how llama-server computes for everybody",
    "chat_template": "the template is the model's own",
    # Made by llama-server from the template. As a caller sends them they are regular expressions, parsers and numbers
    # of kinds that it does not check: an unknown kind of trigger ends it.
    "chat_format": _INTERNAL,
    "chat_parser": _INTERNAL,
    "grammar_lazy": _INTERNAL,
    "grammar_triggers": _INTERNAL,
    "grammar_type": _INTERNAL,
    "preserved_tokens": _INTERNAL,
    "generation_prompt": _INTERNAL,
    "parse_tool_calls": _INTERNAL,
    "message_delimiters": _INTERNAL,
    "reasoning_budget_start_tag": _INTERNAL,
    "reasoning_budget_end_tag": _INTERNAL,
    "reasoning_budget_end_tags": _INTERNAL,
}
_ELSEWHERE = frozenset(("messages", "tools", "prompt", "response_format", "json_schema"))
