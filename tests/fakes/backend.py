"""An inference server made of arithmetic: its vocabulary is the bytes, its next token depends on what its slot holds.

Honest about slots. Each is in use by one call at a time; a second one is an error, as it would be a wait on the real
server. With attention alone (`truncates`) a slot is gone on from wherever it agrees with a prompt. Otherwise only at
its exact end or at a mark, and a mark is left where an evaluation starts, if the rest of the prompt fits a batch; what
is evaluated from an earlier place on drops the marks behind it, and a restored slot has none. The numbers depend on
the tokens, and in the 12th digit on where evaluations began, as those of the real one do in the 4th.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jev_local.backend.port import BackendInfo, Completion, Saved
from jev_local.core.chats import Chat
from jev_local.core.events import Event
from jev_local.core.pictures import Picture
from jev_local.core.plan import Tokens, common
from jev_local.core.spelling import Prompt, Spelled, picture_tokens
from jev_local.errors import BackendError, BackendFault, Declined, InvalidRequest, Misspelled, NotSupported, Withheld

BATCH = 128
MARKER = "<__media__>"
END, JOINED = 2, 3
CONTROLS = {"<|end|>": END}
ROUNDING = 1e-11


@dataclass(frozen=True, slots=True)
class Held:
    """A slot. `tokens`: what it believes to hold. `real`: what its numbers are of. `begun`: where evaluations began."""

    tokens: Tokens = ()
    real: Tokens = ()
    begun: tuple[int, ...] = ()
    marks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One call that uses a slot, with its prompts or the name of its file."""

    name: str
    slot: int
    prompts: tuple[Tokens, ...] = ()
    file: str = ""
    reuse: bool = False


@dataclass
class FakeBackend:
    """`fail` is raised by the next call that is named in `at`; `gate`, once set to an Event, holds every one of those
    until it is set.

    directory: where slots are saved, None for a server that was started without. save_fails: a disk that is full.
    restore_fails: the slots that take no file. stale: a restored slot computes with another state. forgets: so many
    of the next prompts find nothing in their slot. weights: of the model; others compute other numbers.
    fullest: the most tokens that all slots ever held at once.

    withholds: text behind which it draws half a character unless the bias is strong, and fails over that.

    vision: it takes pictures, each of as many tokens as it has bytes. joins: two characters that are one token where
    they stand side by side in a text that is sent. blind: it does not count pictures. sent: the texts that came with
    pictures, with the marker for each.

    parts: what it says it was started with. refuses: a text that its chat template takes exception to. relayed: the
    requests that it was handed as they are, and how much it was to generate.
    """

    slots: int = 2
    context: int = 4096
    run: int = 1
    down: BackendError | None = None
    fail: BackendError | None = None
    gate: asyncio.Event | None = None
    at: Collection[str] = ("complete",)
    entered: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    trail: list[Call] = field(default_factory=list)
    holds: dict[int, Held] = field(default_factory=dict)
    hide: frozenset[int] = frozenset()
    hides_after: bytes | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    alias: str = "fake.gguf"
    path: str = "/nowhere/fake.gguf"
    weights: int = 0
    token_bytes: int = 1
    template: str = "plain"
    system_role: bool = True
    certain: bool = False
    looks: int = 0
    truncates: bool = True
    directory: Path | None = None
    save_fails: bool = False
    restore_fails: Collection[int] = ()
    stale: bool = False
    forgets: int = 0
    fullest: int = 0
    withholds: bytes | None = None
    vision: bool = False
    joins: str = ""
    blind: bool = False
    sent: list[str] = field(default_factory=list)
    parts: tuple[int, int] | None = None
    refuses: str | None = None
    relayed: list[tuple[Mapping[str, Any], int | None]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<FakeBackend run {self.run}, entered {self.entered}, left {self.left}>"

    @property
    def prompts(self) -> list[Tokens]:
        """What was read, in order."""
        return [prompt for call in self.trail if call.name == "complete" for prompt in call.prompts]

    def forget_calls(self) -> None:
        for record in (self.calls, self.entered, self.left, self.trail):
            record.clear()
        self.arrived.clear()

    async def aclose(self) -> None:
        self.calls.append("aclose")

    async def instance(self) -> str:
        if self.down is not None:
            raise self.down
        self.looks += 1
        return f"run-{self.run}"

    async def describe(self) -> BackendInfo:
        return BackendInfo(
            instance=await self.instance(),
            model="fake",
            alias=self.alias,
            build="b1",
            slots=self.slots,
            context=self.context,
            vocabulary=256,
            token_bytes=self.token_bytes,
            bos=(1,),
            system_role=self.system_role,
            vision=self.vision,
            path=self.path,
            marker=MARKER if self.vision else "",
            parts=self.parts,
        )

    async def apply_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        if self.template == "drops":
            return "<user><assistant>"
        texts = [m["content"].strip() if self.template == "trims" else m["content"] for m in messages]
        return "".join(f"<{m['role']}>{text}" for m, text in zip(messages, texts, strict=True)) + "<assistant>"

    async def render(self, document: Mapping[str, Any]) -> str:
        self.calls.append("render")
        if self.refuses is not None and self.refuses in json.dumps(document):
            raise Declined("The inference server does not take this request: it is refused")
        return _chat(document["messages"])

    @asynccontextmanager
    async def relay(
        self, chat: Chat, document: Mapping[str, Any], *, slot: int, reuse: bool, max_tokens: int | None
    ) -> AsyncIterator[AsyncIterator[Event]]:
        text = _chat(document["messages"]) if chat.endpoint == "chat" else document["prompt"]
        prompt = (1, *self._read(text, special=True))
        self.relayed.append((document, max_tokens))
        async with self._busy(Call("relay", slot, (prompt,), reuse=reuse)):
            cached = self._take(slot, prompt, reuse=reuse)
            yield self._answer(slot, prompt, cached, max_tokens or 1)

    async def _answer(self, slot: int, prompt: Tokens, cached: int, count: int) -> AsyncIterator[Event]:
        yield _event("progress", {"prompt_progress": {"total": len(prompt), "cache": cached, "processed": cached}})
        for token in range(count):
            if "token" in self.at:
                self.arrived.set()
                assert self.gate is not None
                await self.gate.wait()
            held = self.holds[slot]
            self.holds[slot] = replace(held, tokens=(*held.tokens, 97 + token % 26), real=(*held.real, 97 + token % 26))
            yield _event("chunk", {"choices": [{"index": 0, "delta": {"content": chr(97 + token % 26)}}]})
        timings = {"cache_n": cached, "prompt_n": len(prompt) - cached, "prompt_ms": 1.0, "predicted_n": count}
        yield _event("chunk", {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "timings": timings})
        yield Event(b"data: [DONE]\n\n", "done")

    async def tokenize(self, pieces: Sequence[str], *, special: bool) -> list[Tokens]:
        self.calls.append("tokenize")
        return [self._read(piece, special=special) for piece in pieces]

    async def detokenize(self, tokens: Sequence[int]) -> list[str]:
        texts = {token: text for text, token in CONTROLS.items()}
        return [texts.get(token, chr(token)) for token in tokens]

    async def picture_size(self, picture: Picture) -> int:
        self.calls.append("picture_size")
        if self.blind:
            raise NotSupported("no such endpoint")
        if not self.vision or not picture.data:
            raise InvalidRequest("no picture")
        return len(picture.data)

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
        tokens = [self._tokens(prompt) for prompt in prompts]
        async with self._busy(Call("complete", slot, tuple(tokens), reuse=reuse)):
            if self.withholds is not None and bias < 20 and any(self.withholds in bytes(each) for each in tokens):
                raise Withheld("half a character")
            completions: dict[int, Completion] = {}
            # The real one puts off what waits for a slot while others are at work, and what waited first comes last.
            for i in [*range(1, len(prompts)), 0]:
                forgotten = reuse and self.forgets > 0
                self.forgets -= forgotten
                cached = self._take(slot, tokens[i], reuse=reuse and not forgotten)
                top = self._top(slot, labels, bias, runners_up)
                completions[i] = Completion(top, cached, len(tokens[i]) - cached, alias=self.alias)
            return [completions[i] for i in range(len(prompts))]

    async def evaluate(self, prompt: Prompt, *, slot: int, reuse: bool) -> Completion:
        tokens = self._tokens(prompt)
        async with self._busy(Call("evaluate", slot, (tokens,), reuse=reuse)):
            cached = self._take(slot, tokens, reuse=reuse)
            return Completion({}, cached, len(tokens) - cached, alias=self.alias)

    async def save(self, slot: int, name: str) -> Saved:
        try:
            async with self._busy(Call("save", slot, file=name)):
                return self._write(slot, name)
        except asyncio.CancelledError:
            self._write(slot, name)  # what it was asked for it finishes
            raise

    async def restore(self, slot: int, name: str) -> int:
        async with self._busy(Call("restore", slot, file=name)):
            return self._load(slot, name)

    async def erase(self, slot: int) -> None:
        async with self._busy(Call("erase", slot)):
            if self.directory is None:
                raise NotSupported("no directory")
            self.holds.pop(slot, None)

    def _read(self, text: str, *, special: bool) -> Tokens:
        """Bytes, and where `special` control tokens: also those that a caller wrote."""
        for control, token in CONTROLS.items() if special else ():
            text = text.replace(control, chr(token))
        return tuple(text.encode())

    def _tokens(self, prompt: Prompt) -> Tokens:
        if not isinstance(prompt, Spelled):
            return prompt
        self.sent.append("".join(MARKER if isinstance(part, Picture) else part for part in prompt.contents))
        assert self.sent[-1].count(MARKER) == len(prompt.pictures), "a marker that nobody put there"
        tokens: Tokens = (1,)
        for part in prompt.contents:
            if isinstance(part, Picture):
                tokens += picture_tokens(part, len(part.data))
            else:
                tokens += self._read(part.replace(self.joins, chr(JOINED)) if self.joins else part, special=True)
        if prompt.length not in (None, len(tokens)):
            raise Misspelled("The inference server read other tokens.")
        return tokens

    @asynccontextmanager
    async def _busy(self, call: Call) -> AsyncIterator[None]:
        self.calls.append(call.name)
        self.trail.append(call)
        assert self.entered.count(call.slot) == self.left.count(call.slot), f"slot {call.slot} is in use: {self!r}"
        self.entered.append(call.slot)
        try:
            await asyncio.sleep(0)
            if call.name in self.at:
                self.arrived.set()
                if self.gate is not None:
                    await self.gate.wait()
                if self.fail is not None:
                    error, self.fail = self.fail, None
                    raise error
            yield
        finally:
            self.left.append(call.slot)

    def _take(self, slot: int, prompt: Tokens, *, reuse: bool) -> int:
        """Bring `prompt` into `slot`; how much of it was there."""
        held = self.holds.get(slot, Held())
        start = self._reusable(held, prompt) if reuse else 0
        marks = {mark for mark in held.marks if mark <= start}
        if start and len(prompt) - start <= BATCH:
            marks.add(start)
        begun = (*(place for place in held.begun if place < start), start)
        self.holds[slot] = Held(prompt, held.real[:start] + prompt[start:], begun, tuple(sorted(marks)))
        self.fullest = max(self.fullest, sum(len(each.tokens) for each in self.holds.values()))
        return start

    def _reusable(self, held: Held, prompt: Tokens) -> int:
        agreed = min(common(held.tokens, prompt), len(prompt) - 1)
        if self.truncates or agreed == len(held.tokens):
            return agreed
        return max((mark for mark in held.marks if mark <= agreed), default=0)

    def _write(self, slot: int, name: str) -> Saved:
        if self.directory is None:
            raise NotSupported("no directory")
        held = self.holds.get(slot, Held())
        content = json.dumps([held.tokens, held.real, held.begun]).encode()
        (self.directory / name).write_bytes(content[: len(content) // 2] if self.save_fails else content)
        if self.save_fails:
            raise BackendFault("The inference server answered 500 (server_error).")
        return Saved(len(held.tokens), len(content))

    def _load(self, slot: int, name: str) -> int:
        if self.directory is None:
            raise NotSupported("no directory")
        self.holds.pop(slot, None)
        if slot in self.restore_fails or not (self.directory / name).exists():
            raise BackendFault("The inference server answered 400 (invalid_request_error).")
        try:
            tokens, real, begun = map(tuple, json.loads((self.directory / name).read_bytes()))
        except ValueError:
            raise AssertionError("llama-server would have ended over a damaged file") from None
        self.holds[slot] = Held(tokens, real[::-1] if self.stale else real, begun)
        return len(tokens)

    def _top(self, slot: int, labels: Sequence[int], bias: float, runners_up: int) -> dict[int, float]:
        held = self.holds[slot]
        lifted = {token: math.exp(bias) for token in labels}
        weights = {
            token: weight * lifted.get(token, 1.0) * (1 + ROUNDING * (sum(held.begun) * (token + 1) % 997) / 997)
            for token, weight in weigh(held.real, self.weights).items()
        }
        total = math.fsum(weights.values())
        ranked = sorted(weights.items(), key=lambda item: -item[1])[: len(labels) + runners_up]
        hides = bias < 20 and (self.hides_after is None or self.hides_after in bytes(held.tokens))
        top = {token: w / total for token, w in ranked if not (hides and token in self.hide)}
        if self.certain:
            top = dict.fromkeys(top, 0.0) | {next(iter(top)): 1.0}
        return top


def _chat(messages: Sequence[Mapping[str, Any]]) -> str:
    return "".join(f"<{m['role']}>{m.get('content')}" for m in messages) + "<assistant>"


def _event(kind: Literal["progress", "chunk"], value: dict[str, Any]) -> Event:
    return Event(b"data: " + json.dumps(value).encode() + b"\n\n", kind, value, counted="timings" in value)


def weigh(prompt: Tokens, weights: int = 0) -> dict[int, float]:
    """Unnormalised next-token weights of the 256 bytes, a fixed function of the prompt. One stands out."""
    seed = hashlib.sha256(bytes(token % 256 for token in prompt) + bytes(weights)).digest()
    likely = {token: 1.0 + (seed[token % 32] * (token + 7)) % 251 for token in range(256)}
    return likely | {seed[0]: 20_000.0}
