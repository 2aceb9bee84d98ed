"""A chat on its way from llama-server to its caller, at the pace of either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from jev_local.core.chats import Chat
from jev_local.core.events import Event
from jev_local.engine.decision import Engine, Talk
from jev_local.errors import BackendFault
from jev_local.web.presence import departure

UNREAD_LIMIT = 64 * 1024 * 1024
"""Bytes that llama-server has sent and the caller has not taken yet."""


UNREAD_SECONDS = 120.0
"""How long a caller may take nothing of what is there for it. It has one of the places for chats as long."""


class Relay:
    """Has `chat` answered in a task of its own, which takes what llama-server sends as it comes: a caller who reads
    slowly, or not at all, keeps no slot."""

    def __init__(self, engine: Engine, chat: Chat) -> None:
        self._unread: asyncio.Queue[Event | None] = asyncio.Queue()
        self._bytes = 0
        self._begun: asyncio.Future[Talk] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(engine, chat))

    async def begun(self) -> Talk:
        """The chat, as soon as its prompt is in a slot. Raises what it failed with before."""
        await asyncio.wait((self._task, self._begun), return_when=asyncio.FIRST_COMPLETED)
        if not self._begun.done():
            self._begun.cancel()
            self._task.result()
        return self._begun.result()

    async def events(self) -> AsyncIterator[Event]:
        """Raises what it failed with, behind what came before that."""
        while (event := await self._unread.get()) is not None:
            self._bytes -= len(event.raw)
            yield event
        await self._task

    async def end(self) -> None:
        """Nobody reads any more: when this returns, the slot is given back."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, engine: Engine, chat: Chat) -> None:
        try:
            async with engine.chat(chat) as talk:
                self._begun.set_result(talk)
                async for event in talk.events():
                    self._bytes += len(event.raw)
                    if self._bytes > UNREAD_LIMIT:
                        raise BackendFault("The answer grew too large while nobody took it.")
                    self._unread.put_nowait(event)
        finally:
            self._unread.put_nowait(None)


class EventStream(Response):
    """Sends `pieces` as they come, as long as the caller is there. `held` is closed and `relay` ended when that is
    over."""

    media_type = "text/event-stream"

    def __init__(self, pieces: AsyncIterator[bytes], *, relay: Relay, held: ExitStack, headers: dict[str, str]) -> None:
        # Proxies gather what they pass on unless they are told not to.
        super().__init__(None, 200, headers | {"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._pieces, self._relay, self._held = pieces, relay, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(departure(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                with suppress(OSError, TimeoutError):  # the caller is gone, or takes nothing
                    sending.result()
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._relay.end()
            self._held.close()

    async def _send(self, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        async for piece in self._pieces:
            async with asyncio.timeout(UNREAD_SECONDS):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
