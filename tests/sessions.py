"""Scenes on a real server with everything that the engine asks it at start-up, and how fast that server is just now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from jev_local.backend.llama import LlamaBackend
from jev_local.core.sharing import Policy
from jev_local.engine.decide import Decider
from jev_local.engine.session import Session, open_session
from jev_local.engine.snapshots import SnapshotStore

T = TypeVar("T")


def cold_decider(backend: LlamaBackend, session: Session) -> Decider:
    """One that shares nothing between questions and keeps nothing."""
    return Decider(backend, session, SnapshotStore(Path("nowhere"), budget=0), Policy())


def play(url: str, scene: Callable[[LlamaBackend, Session], Awaitable[T]]) -> T:
    """What `scene` returns. The backend is closed behind it."""

    async def whole() -> T:
        backend = LlamaBackend(url, timeout=300)
        try:
            return await scene(backend, await open_session(backend, workers=4))
        finally:
            await backend.aclose()

    return asyncio.run(whole())


FREE_SECONDS = 1.5
"""Until a slot has to be free again after its client left, on a machine that has nothing else to do."""


def seconds_a_batch(url: str, *, behind: int = 0) -> float:
    """What a batch of 128 tokens takes just now; `behind` so many others, which it has to attend to."""

    async def scene(backend: LlamaBackend, _: Session) -> float:
        (words,) = await backend.tokenize(["How long does a batch take? " * (80 + behind // 4)], special=False)
        await backend.evaluate(words[: behind + 1], slot=3, reuse=False)
        begun = time.perf_counter()
        await backend.evaluate(words[: behind + 257], slot=3, reuse=True)
        return (time.perf_counter() - begun) / 2

    return play(url, scene)


def seconds_to_free(url: str) -> float:
    """The bound for this moment. A slot is let go between two batches, so on a machine that is so busy with others that
    a batch alone takes most of the time, the bound is two batches."""
    batch = seconds_a_batch(url)
    return max(FREE_SECONDS, 2.2 * batch if batch > 1 else 0.0)
