"""LlamaBackend: llama-server over HTTP. Its JSON and httpx's errors end here.

Checked against llama.cpp b11046 and b11549; the tests in tests/live would notice a change in what is relied upon.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from jev_local.backend.dialect import (
    BadReply,
    Passes,
    Refused,
    declined,
    integers,
    is_the_callers,
    model_name,
    parts_of,
    picture_error,
    text_pieces,
)
from jev_local.backend.port import BackendInfo, Completion, Saved
from jev_local.backend.relayed import upstream
from jev_local.backend.transport import ASK_SECONDS, Transport, sense, translated
from jev_local.backend.written import DOT, base64_of, chat_of, has_pictures, request_body
from jev_local.core.chats import CHAT_PATHS, Chat
from jev_local.core.events import Event
from jev_local.core.pictures import Picture
from jev_local.core.plan import Tokens
from jev_local.core.spelling import Prompt
from jev_local.errors import BackendUnavailable

SEED = 1

DECIDED = 1000.0
"""A bias that leaves nothing to chance."""

LARGEST_VOCABULARY = 2_000_000
"""Tokens; the largest in use have a quarter million. Keeps a server's nonsense from becoming our memory."""

SEPARATOR = -1
"""/tokenize passes integers through, and no vocabulary has a token -1."""


class LlamaBackend:
    """One llama-server. `timeout` bounds a `complete` call as a whole, in seconds."""

    def __init__(self, url: str, *, timeout: float) -> None:
        self._timeout = timeout
        self._transport = Transport(url)
        self._ask = self._transport.ask
        self._end: Tokens = ()
        self._around: tuple[str, int] | None = None
        self._seen_marker = ""

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def instance(self) -> str:
        props = await self._ask("GET", "/props")
        with sense("/props"):
            self._seen_marker = str(props.get("media_marker") or "")
            return _instance(props)

    async def describe(self) -> BackendInfo:
        props = await self._ask("GET", "/props")
        models = await self._ask("GET", "/v1/models")
        with sense("/props or /v1/models"):
            vocabulary = int(models["data"][0]["meta"]["n_vocab"])
            if not 0 < vocabulary <= LARGEST_VOCABULARY:
                raise BadReply("no vocabulary, or one larger than any")
            plain = await self._ask("POST", "/tokenize", {"content": "x", "add_special": False})
            begun = await self._ask("POST", "/tokenize", {"content": "x", "add_special": True})
            self._end = await self._control(str(props["eos_token"]))
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
                marker=str(props.get("media_marker") or ""),
                parts=parts_of(models["data"][0].get("tags")),
            )

    async def apply_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        reply = await self._ask(
            "POST",
            "/apply-template",
            {"messages": list(messages), "chat_template_kwargs": {"enable_thinking": False}},
        )
        with sense("/apply-template"):
            return str(reply["prompt"])

    async def render(self, document: Mapping[str, Any]) -> str:
        try:
            reply = await self._ask("POST", "/apply-template", document)
        except Refused as error:
            raise declined(error) from error
        with sense("/apply-template"):
            return str(reply["prompt"])

    @asynccontextmanager
    async def relay(
        self, chat: Chat, document: Mapping[str, Any], *, slot: int, reuse: bool, max_tokens: int | None
    ) -> AsyncIterator[AsyncIterator[Event]]:
        content = upstream(document, slot=slot, cache=reuse, max_tokens=max_tokens)
        async with AsyncExitStack() as stack:
            try:
                relayed = self._transport.relayed(CHAT_PATHS[chat.endpoint], content, silence=self._timeout)
                found = await stack.enter_async_context(relayed)
            except Refused as error:
                raise declined(error) if is_the_callers(error) else error from error
            yield found

    async def tokenize(self, pieces: Sequence[str], *, special: bool) -> list[Tokens]:
        content: list[str | int] = []
        for piece in pieces:
            content += [piece, SEPARATOR]
        reply = await self._ask(
            "POST", "/tokenize", {"content": content, "add_special": False, "parse_special": special}
        )
        with sense("/tokenize"):
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
        with sense("/detokenize"):
            return await self._texts(tokens, props)

    async def picture_size(self, picture: Picture) -> int:
        """Counted by the server in a chat of nothing else, less what it counts in the chat around it."""
        try:
            counted = await self._ask("POST", "/v1/chat/completions/input_tokens", chat_of(base64_of(picture)))
        except Refused as error:
            raise picture_error(error, "server_error") from error
        with sense("/v1/chat/completions/input_tokens"):
            return _count(_count(counted["input_tokens"]) - await self._around_a_picture())

    async def _around_a_picture(self) -> int:
        """Tokens of a chat with nothing in it but a picture, without those of the picture; asked once for every run of
        the server, as its marker is."""
        marker = await self._marker()
        if self._around is None or self._around[0] != marker:
            chat = await self._ask("POST", "/apply-template", chat_of(DOT))
            with sense("/apply-template"):
                if marker not in str(chat["prompt"]):
                    await self._require_same_marker(marker)
                before, after = str(chat["prompt"]).split(marker)
                content = {"content": before, "add_special": True, "parse_special": True}
                begun = integers((await self._ask("POST", "/tokenize", content))["tokens"])
                self._around = marker, len(begun) + len(await self._control(after))
        return self._around[1]

    async def complete(
        self,
        prompts: Sequence[Prompt],
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

    async def evaluate(self, prompt: Prompt, *, slot: int, reuse: bool) -> Completion:
        # The end of a text is always whole, where another token may be half a character that the server fails over.
        reading = {"logit_bias": [[token, DECIDED] for token in self._end]} if self._end else {}
        (completion,) = await self._passes([prompt], slot=slot, reuse=reuse, reading=reading)
        return completion

    async def save(self, slot: int, name: str) -> Saved:
        reply = await self._slot(slot, "save", {"filename": name})
        with sense("/slots"):
            return Saved(tokens=_count(reply["n_saved"]), size=_count(reply["n_written"]))

    async def restore(self, slot: int, name: str) -> int:
        reply = await self._slot(slot, "restore", {"filename": name})
        with sense("/slots"):
            return _count(reply["n_restored"])

    async def erase(self, slot: int) -> None:
        await self._slot(slot, "erase", {})

    async def _passes(
        self, prompts: Sequence[Prompt], *, slot: int, reuse: bool, reading: Mapping[str, Any]
    ) -> list[Completion]:
        body = {
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
        async with translated("/completion", self._timeout):
            content = await self._content(prompts, body)
            try:
                async with self._transport.stream("/completion", content) as events:
                    async for event in events:
                        passes.take(event)
            except Refused as error:
                if not has_pictures(prompts):
                    raise
                raise await self._blamed(error) from error
            return passes.completions()

    async def _content(self, prompts: Sequence[Prompt], body: dict[str, Any]) -> bytes:
        if not has_pictures(prompts):
            return request_body(prompts, "", body)
        # Megabytes of base64: not on the loop.
        return await asyncio.to_thread(request_body, prompts, await self._marker(), body)

    async def _marker(self) -> str:
        """What stands for a picture, asked once for every run of the server that is looked at."""
        if not self._seen_marker:
            await self.instance()
        return self._seen_marker

    async def _blamed(self, error: Refused) -> Exception:
        """`error` of a request with pictures. A server that has restarted knows another marker, and takes ours for
        text."""
        try:
            await self._require_same_marker(self._seen_marker)
        except BackendUnavailable as restarted:
            return restarted
        return picture_error(error, "invalid_request_error")

    async def _require_same_marker(self, marker: str) -> None:
        await self.instance()
        if self._seen_marker != marker:
            raise BackendUnavailable("The inference server has restarted. Try again in a moment.")

    async def _longest_token(self, vocabulary: int, props: Mapping[str, Any]) -> int:
        texts = await self._texts(range(vocabulary), props)
        return max(len(text.encode("utf-8", "replace")) for text in texts)

    async def _texts(self, tokens: Sequence[int], props: Mapping[str, Any]) -> list[str]:
        # A control token between any two: its text occurs in no other token, so the reply can be cut at it.
        mark = str(props["eos_token"])
        (separator,) = await self._control(mark)
        interleaved = [id_ for token in tokens for id_ in (token, separator)]
        reply = await self._ask("POST", "/detokenize", {"tokens": interleaved})
        return text_pieces(str(reply["content"]), mark, tokens, separator)

    async def _control(self, text: str) -> Tokens:
        reply = await self._ask("POST", "/tokenize", {"content": text, "add_special": False, "parse_special": True})
        return integers(reply["tokens"])

    async def _slot(self, slot: int, action: str, body: Mapping[str, Any]) -> Any:
        # These wait for batches of other slots, so they have the patience of a forward pass, if that is the lesser.
        path = f"/slots/{slot}?action={action}"
        return await self._ask("POST", path, body, seconds=min(ASK_SECONDS, self._timeout), waits=True)


def _instance(props: Mapping[str, Any]) -> str:
    # The media marker is drawn at random by every server process; the path tells models apart where it is missing.
    return f"{props.get('media_marker', '')}|{props.get('model_path', '')}"


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise BadReply("a count that is none")
    return value
