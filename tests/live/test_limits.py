"""The edge of the context, to the token, on a server whose context is small."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from jev_local.backend.llama import LlamaBackend
from jev_local.core.questions import Choice, Noul, Option
from jev_local.engine.decide import Decider
from jev_local.engine.session import open_session
from jev_local.errors import PromptTooLong
from servers import llama_server
from sessions import cold_decider

CONTEXT = 512
QUESTION = Noul("q", "ok?")


@pytest.fixture(scope="module")
def small(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_server(tiny_model, tmp_path_factory.mktemp("small"), context=CONTEXT) as (url, _):
        yield url


def play(url: str, scene: Callable[[Decider, int], Awaitable[None]]) -> None:
    """`scene` gets a decider and how many letters more than one fill the context to the last token."""

    async def whole() -> None:
        backend = LlamaBackend(url, timeout=60)
        try:
            decider = cold_decider(backend, await open_session(backend, workers=4))
            one = await decider.decide(state="x", questions=(QUESTION,))
            await scene(decider, CONTEXT - 1 - one.usage.input_tokens)
        finally:
            await backend.aclose()

    asyncio.run(whole())


def test_the_last_token_fits_and_the_next_does_not(small: str) -> None:
    async def scene(decider: Decider, spare: int) -> None:
        full = await decider.decide(state="x" * (1 + spare), questions=(QUESTION,))
        assert full.usage.input_tokens == CONTEXT - 1
        with pytest.raises(PromptTooLong) as refused:
            await decider.decide(state="x" * (2 + spare), questions=(QUESTION,))
        assert (refused.value.needed, refused.value.available) == (CONTEXT + 1, CONTEXT)

    play(small, scene)


def test_the_second_step_of_two_token_labels_needs_a_place_too(small: str) -> None:
    async def scene(decider: Decider, _: int) -> None:
        many = Choice("q", "w", tuple(Option(chr(0x21 + i)) for i in range(31)))
        asked = (await decider.decide(state="x", questions=(many,))).usage.input_tokens
        spare = CONTEXT - 1 - asked
        assert spare > 0, "31 options have to fit this context"
        await decider.decide(state="x" * spare, questions=(many,))
        with pytest.raises(PromptTooLong):
            await decider.decide(state="x" * (1 + spare), questions=(many,))

    play(small, scene)


@pytest.mark.parametrize(("share", "clients"), [(1.0, 6), (0.5, 9), (0.3, 12)])
def test_prompts_that_fill_the_shared_context_together_all_get_answers(small: str, share: float, clients: int) -> None:
    async def scene(decider: Decider, spare: int) -> None:
        length = 1 + int(spare * share)
        got = await asyncio.gather(
            *(decider.decide(state=chr(ord("a") + i) * length, questions=(QUESTION,)) for i in range(clients))
        )
        assert len({decision.usage.input_tokens for decision in got}) == 1

    play(small, scene)
