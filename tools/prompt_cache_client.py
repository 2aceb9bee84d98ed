"""One chat request to any server with OpenAI's API, timed from its stream.

Only fields that OpenAI has are sent. A server that refuses `stream_options` is asked without it from then on.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal

import httpx

from tools.prompt_cache_material import Prompt

Source = Literal["usage", "timings", "progress", "not reported"]
"""Where the number of cached tokens stands: in OpenAI's usage, llama-server's timings, or the comments of a stream that
say how much of a prompt is read (mlx_lm.server counts only what it did not have)."""

SILENCE = 600.0
"""Seconds without a byte until a request is given up."""

LONGEST = 8 * 1024 * 1024
"""Characters of a stream."""

AT_ONCE = 0.001
"""Seconds in which what arrives had been waiting to be read."""

PROGRESS = re.compile(r"^: keepalive \d+/(\d+)\s*$")


@dataclass(slots=True)
class Reply:
    """Seconds count from before the request was written. first: until the first piece of an answer, a thought or a tool
    call; last: until the last one; total: until the stream was over. None is what was not told."""

    first: float | None = None
    last: float | None = None
    total: float = 0.0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cached_from: Source = "not reported"
    text: str = ""
    thought: bool = False
    finish: str | None = None
    fingerprint: str | None = None
    error: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def decode(self) -> float | None:
        """Tokens per second after the first. None for a stream that came in one piece as well."""
        if self.error or self.output_tokens is None or self.first is None or self.last is None:
            return None
        took = self.last - self.first
        return (self.output_tokens - 1) / took if took > AT_ONCE and self.output_tokens > 1 else None


class ChatClient:
    """Of the server at `url`, without /v1."""

    def __init__(self, url: str, *, model: str, key: str, max_tokens: int) -> None:
        self._model, self._max_tokens = model, max_tokens
        self._usage = True
        # A connection for each request, as if each client were another: a server may just be closing one that was kept.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(SILENCE, connect=10),
            limits=limits,
            trust_env=False,
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def ask(self, prompt: Prompt, *, max_tokens: int | None = None) -> Reply:
        """What came of it, errors of the server and of the connection included."""
        reply = await self._ask(prompt, max_tokens or self._max_tokens)
        if reply.error is not None and self._usage and reply.error.startswith(("HTTP 400", "HTTP 422")):
            self._usage = False
            again = await self._ask(prompt, max_tokens or self._max_tokens)
            if again.error is None:
                return again
            self._usage = True
        return reply

    def _body(self, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
        }
        return body | ({"stream_options": {"include_usage": True}} if self._usage else {})

    async def _ask(self, prompt: Prompt, max_tokens: int) -> Reply:
        reply, begun = Reply(), perf_counter()
        try:
            async with AsyncExitStack() as opened:
                request = self._http.stream("POST", "/v1/chat/completions", json=self._body(prompt, max_tokens))
                response = await opened.enter_async_context(request)
                reply.headers = {name: value for name, value in response.headers.items() if name.startswith("x-jev-")}
                if response.status_code != 200:
                    reply.error = f"HTTP {response.status_code}: {_told(await _some(response))}"
                elif "json" in response.headers.get("content-type", ""):
                    _whole(reply, json.loads(await _some(response, LONGEST)))
                else:
                    await _streamed(reply, response.aiter_lines(), begun)
        except httpx.HTTPError as error:
            reply.error = f"{type(error).__name__}: {error}"
        except ValueError as error:
            reply.error = f"Not understood: {error}"
        reply.total = perf_counter() - begun
        return reply


async def _some(response: httpx.Response, limit: int = 4096) -> str:
    """The beginning of a body."""
    got = b""
    async for part in response.aiter_bytes():
        got += part
        if len(got) >= limit:
            break
    return got[:limit].decode("utf-8", "replace")


def _told(body: str) -> str:
    """The message of an error, however it is wrapped."""
    try:
        told = json.loads(body)
    except ValueError:
        told = body
    for name in ("error", "message", "detail"):
        if isinstance(told, dict) and name in told:
            told = told[name]
    return " ".join(str(told).split())[:200]


async def _streamed(reply: Reply, lines: AsyncIterator[str], begun: float) -> None:
    length, over, unread = 0, False, None
    usage: object = None
    timings: object = None
    async for line in lines:
        length += len(line)
        if length > LONGEST:
            raise ValueError("a stream without end")
        if progress := PROGRESS.match(line):
            unread = int(progress[1])
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            over = True
            continue
        chunk = json.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("a chunk that is no object")
        if chunk.get("error"):
            reply.error = _told(data)
            return
        if _piece(reply, chunk, "delta"):
            reply.last = perf_counter() - begun
            reply.first = reply.first or reply.last
        usage, timings = chunk.get("usage") or usage, chunk.get("timings") or timings
    _count(reply, usage, timings, unread)
    if not over and reply.finish is None:
        reply.error = "The stream ended before the answer did."


def _whole(reply: Reply, body: Any) -> None:
    """A server that does not stream: nothing is known of the first token."""
    if not isinstance(body, dict):
        raise ValueError("a reply that is no object")
    _piece(reply, body, "message")
    _count(reply, body.get("usage"), body.get("timings"), None)


def _piece(reply: Reply, chunk: dict[str, Any], name: str) -> bool:
    """Whether there is a piece of an answer in `chunk`."""
    reply.fingerprint = chunk.get("system_fingerprint") or reply.fingerprint
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    if not isinstance(choice, dict):
        raise ValueError("a choice that is no object")
    reply.finish = choice.get("finish_reason") or reply.finish
    message = choice.get(name) or {}
    text, thought = message.get("content") or "", message.get("reasoning") or message.get("reasoning_content")
    reply.text += text if isinstance(text, str) else ""
    reply.thought = reply.thought or bool(thought)
    return bool(text or thought or message.get("tool_calls"))


def _count(reply: Reply, usage: object, timings: object, unread: int | None) -> None:
    """unread: tokens of the prompt that the server had to read, where it told."""
    reply.input_tokens = _number(usage, "prompt_tokens")
    reply.output_tokens = _number(usage, "completion_tokens")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached, read = _number(timings, "cache_n"), _number(timings, "prompt_n")
    if reply.input_tokens is None and cached is not None and read is not None:
        reply.input_tokens = cached + read
    if reply.output_tokens is None:
        reply.output_tokens = _number(timings, "predicted_n")
    known: list[tuple[Source, int | None]] = [("usage", _number(details, "cached_tokens")), ("timings", cached)]
    if unread is not None and reply.input_tokens is not None:
        known.append(("progress", max(0, reply.input_tokens - unread)))
    for source, tokens in known:
        if tokens is not None:
            reply.cached_tokens, reply.cached_from = tokens, source
            return


def _number(where: object, name: str) -> int | None:
    value = where.get(name) if isinstance(where, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
