"""The readout against the probabilities that the server gives for its whole vocabulary."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httpx
import pytest

from jev_local.backend.llama import LlamaBackend
from jev_local.core.answers import Reading
from jev_local.core.labels import Label
from jev_local.core.plan import Tokens
from jev_local.core.questions import Choice, Option
from jev_local.core.readout import BIAS
from jev_local.engine.session import Session, open_session
from sessions import cold_decider, play

STATE = "The kettle arrived with a broken lid. 返金してほしい。"


def choice(count: int) -> Choice:
    return Choice("q", "Which part is it about?", tuple(Option(f"part {i}") for i in range(count)))


class Recorder(LlamaBackend):
    """Remembers the prompts and evaluates each whole, in the slot and in the steps in which the reference does it:
    other steps and other neighbours in memory round differently, and that is not what is measured here."""

    def __init__(self, url: str) -> None:
        super().__init__(url, timeout=300)
        self.prompts: list[Tokens] = []

    async def complete(self, prompts: Any, **options: Any) -> Any:
        self.prompts += prompts
        return await super().complete(prompts, **{**options, "reuse": False, "slot": 0})


async def whole_vocabulary(url: str, prompt: Tokens, size: int) -> dict[int, float]:
    """token id -> logprob, of every token, as the server computes it without any bias."""
    body = {"prompt": list(prompt), "n_predict": 1, "n_probs": size, "temperature": 0.0, "cache_prompt": False}
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=300) as client:
        reply = (await client.post("/completion", json=body | {"id_slot": 0})).json()
    logs = {entry["id"]: entry["logprob"] for entry in reply["completion_probabilities"][0]["top_logprobs"]}
    # The server sums in 32 bits, and its probabilities come to 1.000005: that would outweigh what is measured.
    assert len(logs) == size
    excess = math.log(math.fsum(map(math.exp, logs.values())))
    return {token: log - excess for token, log in logs.items()}


async def reference(url: str, prompt: Tokens, labels: tuple[Label, ...], size: int) -> list[float]:
    first = await whole_vocabulary(url, prompt, size)
    logs = []
    second: dict[int, dict[int, float]] = {}
    for label in labels:
        head, *rest = label.tokens
        log = first[head]
        if rest:
            if head not in second:
                second[head] = await whole_vocabulary(url, (*prompt, head), size)
            log += second[head][rest[0]]
        logs.append(log)
    top = max(logs)
    weights = [math.exp(log - top) for log in logs]
    return [w / math.fsum(weights) for w in weights]


@pytest.mark.parametrize("count", [2, 26, 255])
def test_the_largest_error_is_below_a_millionth(server: str, count: int) -> None:
    async def scene() -> float:
        backend = Recorder(server)
        try:
            session = await open_session(backend, workers=4)
            backend.prompts.clear()
            got = await cold_decider(backend, session).decide(state=STATE, questions=(choice(count),))
            wanted = await reference(server, backend.prompts[0], session.labels.choose(count), session.info.vocabulary)
        finally:
            await backend.aclose()
        reading: Reading = got.answers[0].reading
        return max(abs(a - b) for a, b in zip(reading.probabilities, wanted, strict=True))

    error = asyncio.run(scene())
    print(f"largest error with {count} options: {error:.1e}")
    assert error < 1e-6


def test_the_mass_is_the_labels_share_of_the_whole_vocabulary(smollm2_server: str) -> None:
    async def scene() -> tuple[float, float]:
        backend = Recorder(smollm2_server)
        try:
            session = await open_session(backend, workers=4)
            backend.prompts.clear()
            got = await cold_decider(backend, session).decide(state=STATE, questions=(choice(3),))
            first = await whole_vocabulary(smollm2_server, backend.prompts[0], session.info.vocabulary)
            true = math.fsum(math.exp(first[label.tokens[0]]) for label in session.labels.choose(3))
        finally:
            await backend.aclose()
        return got.answers[0].reading.mass, true

    mass, true = asyncio.run(scene())
    assert true <= mass + 1e-6, "what was not returned can only lower the share"
    assert mass == pytest.approx(true, abs=0.05)


def test_byte_labels_take_two_steps_and_whole_ones_one(tiny_server: str, smollm2_server: str) -> None:
    async def scene(backend: LlamaBackend, session: Session) -> tuple[int, int, int]:
        return session.labels.single_capacity, session.labels.capacity, len(session.labels.choose(255)[0].tokens)

    assert play(tiny_server, scene) == (30, 255, 2)
    assert play(smollm2_server, scene) == (255, 255, 1)


def test_a_label_far_below_the_rest_is_still_found(smollm2_server: str) -> None:
    """With a small bias and few runners-up a label can fall off the list; the engine's own bias never lets it."""

    async def scene(backend: LlamaBackend, session: Session) -> None:
        (prompt,) = await backend.tokenize(["The capital of France is"], special=False)
        rare = [label.tokens[0] for label in session.labels.choose(255)]
        (weak,) = await backend.complete([prompt], slot=1, labels=rare, bias=0.0, runners_up=1, reuse=False)
        (strong,) = await backend.complete([prompt], slot=1, labels=rare, bias=BIAS, runners_up=1, reuse=False)
        assert not set(rare) <= set(weak.top)
        assert set(rare) <= set(strong.top)

    play(smollm2_server, scene)


def test_a_token_that_is_only_part_of_a_character_leaves_no_distribution(tiny_server: str) -> None:
    """What the server does then, and that it does the same each time: the engine looks again with more bias."""

    async def scene(backend: LlamaBackend, session: Session) -> None:
        (text, first_of_three) = await backend.tokenize(["Is it", "\u3042"], special=False)
        assert len(first_of_three) == 3
        got = await backend.complete(
            [text] * 2, slot=0, labels=first_of_three[:1], bias=80.0, runners_up=4, reuse=False
        )
        assert [completion.top for completion in got] == [{}, {}]
        label = session.labels.choose(2)[0].tokens
        drawn = [
            await backend.complete([text], slot=0, labels=label, bias=0.0, runners_up=64, reuse=False)
            for _ in range(20)
        ]
        assert len({tuple(one.top.items()) for (one,) in drawn}) == 1

    play(tiny_server, scene)
