"""LlamaBackend: llama-server over HTTP. Its JSON and httpx's errors end here.

Checked against llama.cpp b11046 and b11549; the tests in tests/live would notice a change in what is relied upon.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from jev_local.backend.dialect import BadReply, Passes, error_of, events, integers, model_name, text_pieces
from jev_local.backend.port import BackendInfo, Completion, Saved
from jev_local.core.plan import Tokens
from jev_local.errors import BackendFault, BackendTimeout, BackendUnavailable

CONNECT_SECONDS = 5.0
ASK_SECONDS = 60.0
"""For everything but a forward pass: even a 10 MB text is tokenised within it."""

SEED = 1

LARGEST_VOCABULARY = 2_000_000
"""Tokens; the largest in use have a quarter million. Keeps a server's nonsense from becoming our memory."""

SEPARATOR = -1
"""/tokenize passes integers through, and no vocabulary has a token -1."""


class LlamaBackend:
    """One llama-server. `timeout` bounds a `complete` call as a whole, in seconds."""

    def __init__(self, url: str, *, timeout: float) -> None:
        self._timeout = timeout
        # trust_env off: a proxy from the environment must never see states on their way to loopback.
        self._client = httpx.AsyncClient(
            base_url=url, trust_env=False, timeout=httpx.Timeout(ASK_SECONDS, connect=CONNECT_SECONDS)
        )
        # llama-server's streamed replies leave a connection unusable for the next request, so each gets its own.
        self._streams = httpx.AsyncClient(
            base_url=url,
            trust_env=False,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_keepalive_connections=0),
            headers={"Connection": "close"},
        )

    async def aclose(self) -> None:
        await self._client.aclose()
        await self._streams.aclose()

    async def instance(self) -> str:
        props = await self._ask("GET", "/props")
        with _sense("/props"):
            return _instance(props)

    async def describe(self) -> BackendInfo:
        props = await self._ask("GET", "/props")
        models = await self._ask("GET", "/v1/models")
        with _sense("/props or /v1/models"):
            vocabulary = int(models["data"][0]["meta"]["n_vocab"])
            if not 0 < vocabulary <= LARGEST_VOCABULARY:
                raise BadReply("no vocabulary, or one larger than any")
            plain = await self._ask("POST", "/tokenize", {"content": "x", "add_special": False})
            begun = await self._ask("POST", "/tokenize", {"content": "x", "add_special": True})
            body, whole = integers(plain["tokens"]), integers(begun["tokens"])
            return BackendInfo(
                instance=_instance(props),
                model=model_name(props),
                alias=str(models["data"][0]["id"]),
                build=str(props.get("build_info", "unknown")),
                slots=int(props["total_slots"]),
                context=int(props["default_generation_settings"]["n_ctx"]),
                vocabulary=vocabulary,
                token_bytes=await self._longest_token(vocabulary, props),
                bos=whole[: whole.index(body[0])] if body and body[0] in whole else (),
                system_role=bool(props.get("chat_template_caps", {}).get("supports_system_role", True)),
                vision=bool(props.get("modalities", {}).get("vision", False)),
                path=str(props.get("model_path", "")),
                meta=json.dumps(models["data"][0]["meta"], sort_keys=True),
            )

    async def apply_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        reply = await self._ask(
            "POST",
            "/apply-template",
            {"messages": list(messages), "chat_template_kwargs": {"enable_thinking": False}},
        )
        with _sense("/apply-template"):
            return str(reply["prompt"])

    async def tokenize(self, pieces: Sequence[str], *, special: bool) -> list[Tokens]:
        content: list[str | int] = []
        for piece in pieces:
            content += [piece, SEPARATOR]
        reply = await self._ask(
            "POST", "/tokenize", {"content": content, "add_special": False, "parse_special": special}
        )
        with _sense("/tokenize"):
            lists: list[Tokens] = []
            start = 0
            tokens = integers(reply["tokens"])
            for end, token in enumerate(tokens):
                if token == SEPARATOR:
                    lists.append(tokens[start:end])
                    start = end + 1
            if len(lists) != len(pieces):
                raise BadReply(f"{len(lists)} token lists for {len(pieces)} pieces of text")
            return lists

    async def detokenize(self, tokens: Sequence[int]) -> list[str]:
        props = await self._ask("GET", "/props")
        with _sense("/detokenize"):
            return await self._texts(tokens, props)

    async def complete(
        self,
        prompts: Sequence[Tokens],
        *,
        slot: int,
        labels: Sequence[int],
        bias: float,
        runners_up: int,
        reuse: bool,
    ) -> list[Completion]:
        reading = {
            "n_probs": len(labels) + runners_up,
            "post_sampling_probs": True,
            # The token drawn is thrown away, but where it is only part of a character nothing is returned: with a
            # fixed seed the same pass always has the same fate.
            "seed": SEED,
            "logit_bias": [[token, bias] for token in labels],
        }
        return await self._passes(prompts, slot=slot, reuse=reuse, reading=reading)

    async def evaluate(self, prompt: Tokens, *, slot: int, reuse: bool) -> Completion:
        (completion,) = await self._passes([prompt], slot=slot, reuse=reuse, reading={})
        return completion

    async def save(self, slot: int, name: str) -> Saved:
        reply = await self._slot(slot, "save", {"filename": name})
        with _sense("/slots"):
            return Saved(tokens=_count(reply["n_saved"]), size=_count(reply["n_written"]))

    async def restore(self, slot: int, name: str) -> int:
        reply = await self._slot(slot, "restore", {"filename": name})
        with _sense("/slots"):
            return _count(reply["n_restored"])

    async def erase(self, slot: int) -> None:
        await self._slot(slot, "erase", {})

    async def _passes(
        self, prompts: Sequence[Tokens], *, slot: int, reuse: bool, reading: Mapping[str, Any]
    ) -> list[Completion]:
        body = {
            "prompt": [list(prompt) for prompt in prompts],
            "n_predict": 1,
            "samplers": [],
            "temperature": 1.0,
            "id_slot": slot,
            "cache_prompt": reuse,
            # The server looks whether its client is still there when it has something to send: with a line after
            # every batch a cancelled prefill ends within one batch, beside any other traffic.
            "stream": True,
            "return_progress": True,
            "response_fields": ["timings", "model", "id_slot", "index", "stop", "truncated", "tokens_evaluated"],
            **reading,
        }
        passes = Passes(prompts, slot=slot)
        async with self._translated("/completion", self._timeout):
            async with self._streams.stream("POST", "/completion", json=body) as response:
                if response.status_code != 200:
                    raise error_of(response.status_code, await response.aread())
                async for event in events(response.aiter_bytes()):
                    passes.take(event)
            return passes.completions()

    async def _longest_token(self, vocabulary: int, props: Mapping[str, Any]) -> int:
        texts = await self._texts(range(vocabulary), props)
        return max(len(text.encode("utf-8", "replace")) for text in texts)

    async def _texts(self, tokens: Sequence[int], props: Mapping[str, Any]) -> list[str]:
        # A control token between any two: its text occurs in no other token, so the reply can be cut at it.
        mark = str(props["eos_token"])
        reply = await self._ask("POST", "/tokenize", {"content": mark, "add_special": False, "parse_special": True})
        (separator,) = integers(reply["tokens"])
        interleaved = [id_ for token in tokens for id_ in (token, separator)]
        reply = await self._ask("POST", "/detokenize", {"tokens": interleaved})
        return text_pieces(str(reply["content"]), mark, tokens, separator)

    async def _slot(self, slot: int, action: str, body: Mapping[str, Any]) -> Any:
        # These wait for batches of other slots, so they have the patience of a forward pass, if that is the lesser.
        path = f"/slots/{slot}?action={action}"
        return await self._ask("POST", path, body, seconds=min(ASK_SECONDS, self._timeout))

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, seconds: float = ASK_SECONDS
    ) -> Any:
        """One small exchange. A kept connection that the server had closed meanwhile is tried once more: nothing
        was read from it, and none of these calls changes anything."""
        async with self._translated(path.partition("?")[0], seconds):
            try:
                response = await self._client.request(method, path, json=body)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                response = await self._client.request(method, path, json=body)
            if response.status_code != 200:
                raise error_of(response.status_code, response.content)
            return response.json()

    @asynccontextmanager
    async def _translated(self, path: str, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except (TimeoutError, httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout) as error:
            raise BackendTimeout(f"The inference server did not finish {path} within {seconds:g} s.") from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise BackendUnavailable("The inference server is not reachable. Is it running?") from error
        except httpx.TransportError as error:
            raise BackendUnavailable(f"The inference server closed the connection during {path}.") from error
        except NONSENSE as error:
            raise _nonsense(path, error) from error


def _instance(props: Mapping[str, Any]) -> str:
    # The media marker is drawn at random by every server process; the path tells models apart where it is missing.
    return f"{props.get('media_marker', '')}|{props.get('model_path', '')}"


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise BadReply("a count that is none")
    return value


NONSENSE = (
    BadReply,
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    httpx.DecodingError,
)
"""What reading a reply raises that is not built as llama-server builds it."""


def _nonsense(path: str, error: Exception) -> BackendFault:
    if isinstance(error, BadReply):
        reason = str(error)
    elif isinstance(error, (json.JSONDecodeError, UnicodeDecodeError, RecursionError, httpx.DecodingError)):
        reason = "not valid JSON"
    else:
        reason = "a field is missing or has the wrong type"
    return BackendFault(f"The inference server's reply to {path} makes no sense: {reason}.")


@contextmanager
def _sense(path: str) -> Iterator[None]:
    """Within it, a missing or mistyped field of a reply is the server's fault."""
    try:
        yield
    except NONSENSE as error:
        raise _nonsense(path, error) from error
