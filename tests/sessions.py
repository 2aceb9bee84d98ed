"""A scene on a real server with everything that the engine asks it at start-up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from jev_local.backend.llama import LlamaBackend
from jev_local.engine.session import Session, open_session

T = TypeVar("T")


def play(url: str, scene: Callable[[LlamaBackend, Session], Awaitable[T]]) -> T:
    """What `scene` returns. The backend is closed behind it."""

    async def whole() -> T:
        backend = LlamaBackend(url, timeout=300)
        try:
            return await scene(backend, await open_session(backend, workers=4))
        finally:
            await backend.aclose()

    return asyncio.run(whole())
