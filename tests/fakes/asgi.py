"""Requests to an app without a network: one by one through httpx, or message by message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import httpx
from fastapi import FastAPI

from jev_local.app import create_app
from jev_local.settings import ApiSettings
from jev_local.wire.bodies import BodyLimits

KEY = "test-key"
AUTH = {"authorization": f"Bearer {KEY}"}
ONE_NOUL: dict[str, Any] = {"state": "It rains.", "questions": {"wet": {"type": "noul", "instructions": "Is it wet?"}}}


def scene(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs an async test on a loop of its own, for a minute at most: one that waits for what never comes fails."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


def app_for(engine: Any, *, key: str = KEY, limits: BodyLimits | None = None, **settings: Any) -> FastAPI:
    return create_app(engine=engine, settings=ApiSettings(key=key, **settings), limits=limits)


@asynccontextmanager
async def http(app: FastAPI, *, key: str | None = KEY) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {key}"} if key is not None else {}
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080", headers=headers) as client:
        yield client


class Wire:
    """One request as the server sees it: tests put messages in and read what the app sent."""

    def __init__(
        self,
        app: FastAPI,
        *,
        path: str = "/v1/systemone",
        method: str = "POST",
        server: str = "127.0.0.1",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        self.received = 0
        self._taken = asyncio.Event()
        raw = [(k.lower().encode(), v.encode()) for k, v in {**AUTH, **(headers or {})}.items()]
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": raw,
            "client": ("127.0.0.1", 1),
            "server": (server, 80),
        }
        self.task = asyncio.create_task(app(self.scope, self._receive, self._send))

    def body(self, value: Any = ONE_NOUL) -> None:
        self.chunk(json.dumps(value).encode(), more=False)

    def chunk(self, data: bytes, *, more: bool = True) -> None:
        self.incoming.put_nowait({"type": "http.request", "body": data, "more_body": more})

    def disconnect(self) -> None:
        self.incoming.put_nowait({"type": "http.disconnect"})

    async def until_reading(self) -> None:
        """Until the app has taken its first message."""
        async with asyncio.timeout(5):
            await self._taken.wait()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    async def _receive(self) -> dict[str, Any]:
        message = await self.incoming.get()
        if message["type"] == "http.disconnect":
            self.disconnect()  # whoever asks again hears it again, as from uvicorn
        self.received += 1
        self._taken.set()
        return message

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
