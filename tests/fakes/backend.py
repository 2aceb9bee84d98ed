"""An inference server made of arithmetic: its vocabulary is the bytes, its next token depends on the prompt alone.

Honest about ordering: `complete` waits at a gate when one is set, records who entered and who left, and a slot that is
entered twice at once is an error, as it would be a wait on the real server.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jev_local.backend.port import BackendInfo, Completion
from jev_local.core.plan import Tokens, common
from jev_local.errors import BackendError


@dataclass
class FakeBackend:
    """`fail` is raised by the next `complete`; `gate`, once set to an Event, holds every `complete` until it is set."""

    slots: int = 2
    context: int = 4096
    run: int = 1
    down: BackendError | None = None
    fail: BackendError | None = None
    gate: asyncio.Event | None = None
    entered: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    contents: dict[int, Tokens] = field(default_factory=dict)
    hide: frozenset[int] = frozenset()
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    alias: str = "fake.gguf"
    token_bytes: int = 1
    template: str = "plain"
    system_role: bool = True
    certain: bool = False
    looks: int = 0

    def __repr__(self) -> str:
        return f"<FakeBackend run {self.run}, entered {self.entered}, left {self.left}>"

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
            vision=False,
        )

    async def apply_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        if self.template == "drops":
            return "<user><assistant>"
        texts = [m["content"].strip() if self.template == "trims" else m["content"] for m in messages]
        return "".join(f"<{m['role']}>{text}" for m, text in zip(messages, texts, strict=True)) + "<assistant>"

    async def tokenize(self, pieces: Sequence[str], *, special: bool) -> list[Tokens]:
        self.calls.append("tokenize")
        return [tuple(piece.encode()) for piece in pieces]

    async def detokenize(self, tokens: Sequence[int]) -> list[str]:
        return [chr(token) for token in tokens]

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
        self.calls.append("complete")
        assert self.entered.count(slot) == self.left.count(slot), f"slot {slot} is in use: {self!r}"
        self.entered.append(slot)
        self.arrived.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.fail is not None:
                error, self.fail = self.fail, None
                raise error
            return [self._pass(prompt, slot, labels, bias, runners_up) for prompt in prompts]
        finally:
            self.left.append(slot)

    def _pass(self, prompt: Tokens, slot: int, labels: Sequence[int], bias: float, runners_up: int) -> Completion:
        cached = min(common(self.contents.get(slot, ()), prompt), len(prompt) - 1)
        self.contents[slot] = prompt
        weights = {token: w * math.exp(bias if token in labels else 0.0) for token, w in weigh(prompt).items()}
        total = math.fsum(weights.values())
        ranked = sorted(weights.items(), key=lambda item: -item[1])[: len(labels) + runners_up]
        top = {token: w / total for token, w in ranked if not (token in self.hide and bias < 20)}
        if self.certain:
            top = dict.fromkeys(top, 0.0) | {next(iter(top)): 1.0}
        return Completion(top, cached, len(prompt) - cached, alias=self.alias)


def weigh(prompt: Tokens) -> dict[int, float]:
    """Unnormalised next-token weights of the 256 bytes, a fixed function of the prompt."""
    seed = hashlib.sha256(bytes(token % 256 for token in prompt)).digest()
    return {token: 1.0 + (seed[token % 32] * (token + 7)) % 251 for token in range(256)}
