"""llama-server's replies, turned into values. Knows its JSON and its event stream; does no I/O of its own."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from typing import Any

from jev_local.backend.port import Completion
from jev_local.backend.tags import CHAT_TAG, DECISION_TAG, LARGEST_COUNT, name_of
from jev_local.core.plan import Tokens
from jev_local.core.spelling import Prompt, Spelled
from jev_local.errors import (
    BackendFault,
    BackendLoading,
    Declined,
    InvalidRequest,
    JevError,
    Misspelled,
    NotSupported,
    PromptTooLong,
    Withheld,
)

HALF_A_CHARACTER = "The model produced output that does not match the expected"
"""What builds around b11046 say where the one token of a completion is not UTF-8 by itself."""

EVENT_LIMIT = 16 * 1024 * 1024
"""Bytes of one event; the largest honest one is some 40 KB (255 labels and 64 runners-up)."""


LONGEST_WORDS = 500
"""Characters of the server's own words that are passed on."""


class Refused(BackendFault):
    """The server answered with an error; `kind` is its own word for what sort. `words` may quote the caller."""

    def __init__(self, status: int, kind: str, words: str = "") -> None:
        super().__init__(f"The inference server answered {status} ({kind or 'no type'}).")
        self.kind = kind
        self.words = words


class BadReply(Exception):
    """The reply breaks the server's own habits; the message says which, and quotes nothing."""


def integers(value: object) -> Tokens:
    """A list of token ids."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise BadReply("no list of token ids")
    return tuple(value)


def model_name(props: Mapping[str, Any]) -> str:
    """The name of the model's file without directory, suffix and shard number."""
    return name_of(str(props.get("model_path") or props.get("model_alias") or "model"))


def text_pieces(content: str, mark: str, tokens: Sequence[int], separator: int) -> list[str]:
    """Cut `content` at every `mark` that was put behind each of `tokens`. The separator's own text is the mark."""
    rest = content.split(mark)
    if len(rest) != len(tokens) + 1 + tokens.count(separator):
        raise BadReply("the texts of tokens cannot be told apart")
    texts: list[str] = []
    at = 0
    for token in tokens:
        if token == separator:
            texts.append(mark)
            at += 2
        else:
            texts.append(rest[at])
            at += 1
    return texts


def error_of(status: int, body: bytes) -> Exception:
    """The error that a reply other than 200 stands for. The server's own words are not passed on: they may quote."""
    loading = BackendLoading("The inference server is still loading its model.")
    if status == 503:
        return loading
    try:
        error = json.loads(body)["error"]
        # Its types are short words; anything else in that place may be a quotation.
        kind = error.get("type", "") if re.fullmatch(r"[a-z_]{1,40}", error.get("type", "")) else ""
        if str(error.get("message", "")).startswith(HALF_A_CHARACTER):
            return Withheld("The inference server gives no probabilities beside half a character.")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return BackendFault(f"The inference server answered {status} without a reason.")
    if kind == "exceed_context_size_error":
        try:
            return PromptTooLong(needed=int(error["n_prompt_tokens"]), available=int(error["n_ctx"]))
        except (KeyError, TypeError, ValueError, ArithmeticError):
            return BackendFault("The inference server refused a prompt as too long and did not say by how much.")
    others: dict[str, Exception] = {
        "unavailable_error": loading,
        "not_supported_error": NotSupported("The inference server was started without what was asked of it."),
    }
    return others.get(kind, Refused(status, kind, str(error.get("message", ""))))


def error_in(event: Mapping[str, Any]) -> Exception:
    """The error that an event of a stream stands for."""
    code = event["error"].get("code") if isinstance(event.get("error"), dict) else None
    return error_of(code if type(code) is int else 500, json.dumps(event).encode())


def declined(error: Refused) -> Declined:
    """What `error` means where the server was asked to do no more than read a caller's request."""
    words = " ".join(error.words.split())
    if len(words) > LONGEST_WORDS:
        words = words[:LONGEST_WORDS] + "…"
    return Declined(f"The inference server does not take this request: {words or 'it does not say why'}")


def is_the_callers(error: Refused) -> bool:
    """Whether a chat was refused for what is in it. The server calls a field of the wrong type an error of its own."""
    return error.kind == "invalid_request_error" or error.words.startswith("[json.exception")


def parts_of(tags: object) -> tuple[int, int] | None:
    """The tokens of context for decisions and for chats, from a server's `tags`; None where others started it."""
    found = {}
    for tag in tags if isinstance(tags, list) else ():
        for name in (DECISION_TAG, CHAT_TAG):
            count = str(tag).removeprefix(name)
            if count != tag and count.isascii() and count.isdecimal() and 0 < int(count) <= LARGEST_COUNT:
                found[name] = int(count)
    return (found[DECISION_TAG], found[CHAT_TAG]) if len(found) == 2 else None


def picture_error(error: Refused, kind: str) -> JevError:
    """What `error` means where pictures were sent. `kind` is what the endpoint says of a file that it cannot read, and
    of nothing else that we would send it."""
    if error.kind != kind:
        return error
    return InvalidRequest(
        "The inference server could not read an image of this request. Send it as a plain 8-bit PNG or JPEG."
    )


async def events(chunks: AsyncIterable[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream.

    Split at line feeds alone: JSON may carry U+2028 and U+0085 unescaped, which `str.splitlines` would cut at.
    """
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        if len(buffer) > EVENT_LIMIT:
            raise BadReply("an event larger than any answer can be")
        *lines, rest = bytes(buffer).split(b"\n")
        buffer = bytearray(rest)
        for line in lines:
            field, _, data = line.strip().partition(b":")
            if field == b"data" and data.strip() != b"[DONE]":
                event = json.loads(data)
                if not isinstance(event, dict):
                    raise BadReply("an event that is not an object")
                yield event
            elif field == b"error":
                yield {"error": json.loads(data)}


class Passes:
    """Collects the events of one /completion call over several prompts into one Completion each."""

    def __init__(self, prompts: Sequence[Prompt], *, slot: int) -> None:
        self._prompts = prompts
        self._slot = slot
        self._top: dict[int, dict[int, float]] = {}
        self._final: dict[int, dict[str, Any]] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Raises BackendError or PromptTooLong for an error event, BadReply for nonsense."""
        if "error" in event:
            raise error_in(event)
        index = event.get("index", 0)
        if type(index) is not int or not 0 <= index < len(self._prompts):
            raise BadReply("an answer to a prompt that was not sent")
        if event.get("completion_probabilities"):
            self._top[index] = _distribution(event["completion_probabilities"])
        if "timings" in event and event.get("stop", True):
            self._final[index] = event

    def completions(self) -> list[Completion]:
        """One per prompt, in order."""
        return [self._completion(index, prompt) for index, prompt in enumerate(self._prompts)]

    def _completion(self, index: int, prompt: Prompt) -> Completion:
        final = self._final.get(index)
        if final is None:
            raise BadReply("the stream ended before the answer")
        if final.get("id_slot") != self._slot:
            # A slot id that does not exist is ignored by the server, and another slot is taken.
            raise BadReply("another slot answered than was asked")
        timings = final["timings"]
        cached, processed = timings.get("cache_n"), timings.get("prompt_n")
        if type(cached) is not int or type(processed) is not int:
            raise BadReply("the evaluated and the reused tokens do not add up to anything")
        if isinstance(prompt, Spelled):
            if prompt.length not in (None, cached + processed):
                raise Misspelled("The inference server read other tokens in a text with images than without.")
        elif cached + processed != len(prompt):
            raise BadReply("the evaluated and the reused tokens do not add up to the prompt")
        return Completion(self._top.get(index, {}), cached, processed, alias=str(final.get("model", "")))


def _distribution(probabilities: object) -> dict[int, float]:
    try:
        step: Any
        (step,) = probabilities  # type: ignore[misc]  # anything that does not unpack is caught below
        top = {entry["id"]: entry["prob"] for entry in step["top_probs"]}
    except (KeyError, TypeError, ValueError) as error:
        raise BadReply("no list of probabilities for exactly one token") from error
    for token, p in top.items():
        if type(token) is not int or type(p) not in (int, float) or not 0 <= p <= 1.001:
            raise BadReply("a probability that is not a number from 0 to 1")
    return top
