"""The API in every mode before one llama-server, and the way back to a server that has read nothing.

Modes share the backend and everything that was found out about the server when it was opened, so that loading and
probing are in nobody's time, and tokenising, waiting for a slot, saving, restoring and HTTP are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, TypeVar

import httpx

from jev_local.app import create_app
from jev_local.backend.llama import LlamaBackend
from jev_local.backend.port import Backend
from jev_local.core.chats import Chat
from jev_local.core.compared import Compared
from jev_local.core.explain import Explanation
from jev_local.core.pictures import NO_PICTURES, Album
from jev_local.core.questions import Question
from jev_local.core.sharing import Mode, Policy
from jev_local.core.slots import SlotTable
from jev_local.engine.decide import Decider
from jev_local.engine.decision import CacheReport, Decision, Status, Talk
from jev_local.engine.locks import backend_lock
from jev_local.engine.pool import SlotPool
from jev_local.engine.session import Session, open_session
from jev_local.engine.snapshots import SnapshotStore
from jev_local.errors import BackendError, ChatsOff, InvalidRequest
from jev_local.serve import cache_policy
from jev_local.settings import ApiSettings
from tools.state_cache_cases import CannotMeasure

T = TypeVar("T")

MODES: tuple[Mode, ...] = ("off", "shared", "auto")

NO_LIMIT = 2**62
"""Bytes. The store is opened with so many, because a smaller budget would delete what is found in the folder, and
whatever is found there is somebody's."""

DIAGNOSTICS = ("x-jev-local-", "server-timing")


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back, and how long it took from before the request was written until its JSON was read."""

    mode: Mode
    ms: float
    status: int
    body: Any
    headers: dict[str, str]

    def number(self, name: str) -> int:
        """The count in the header X-Jev-Local-`name`, 0 where there is none."""
        return int(self.headers.get(f"x-jev-local-{name}", 0))

    @property
    def source(self) -> str:
        return self.headers.get("x-jev-local-prefix-source", "none")


class Bench:
    """One app for each mode."""

    def __init__(self, backend: Backend, session: Session, store: SnapshotStore, settings: ApiSettings) -> None:
        self.backend = backend
        self.session = session
        self.store = store
        self._settings = settings
        self._clients = {mode: self._client(mode) for mode in MODES}

    def _client(self, mode: Mode) -> httpx.AsyncClient:
        settings = replace(self._settings, state_cache=mode)
        app = create_app(engine=ModeEngine(self, cache_policy(settings)), settings=settings)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=f"http://{settings.host}:{settings.port}", timeout=None)  # noqa: S113  # the backend's own is what bounds it

    async def fresh(self) -> None:
        """Nothing saved, nothing in any slot, and nobody who thinks that there is."""
        await self.store.settled()
        await self.store.clear()
        info, settings = self.session.info, self._settings
        for slot in range(info.slots):
            await self.backend.erase(slot)
        table = SlotTable(count=info.slots, limit=settings.workers, context=info.context, long=settings.prefill_chunk)
        pool = SlotPool(table, patience=settings.backend_timeout, erase=self.backend.erase)
        self.session = replace(self.session, pool=pool)

    async def ask(self, mode: Mode, body: dict[str, Any]) -> Reply:
        begun = perf_counter()
        response = await uncaught(self._clients[mode].post("/v1/systemone", json=body))
        answer = response.json()
        ms = (perf_counter() - begun) * 1000
        headers = {name: value for name, value in response.headers.items() if name.startswith(DIAGNOSTICS)}
        return Reply(mode, ms, response.status_code, answer, headers)

    async def leave(self) -> None:
        """As it was found: slots erased, no file left."""
        for client in self._clients.values():
            await client.aclose()
        await self.store.settled()
        await self.store.clear()
        with suppress(BackendError):
            for slot in range(self.session.info.slots):
                await self.backend.erase(slot)


async def uncaught(work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. Cancelled, it ends too, and whatever it makes of that does not stand in for our own end: the
    app answers 503 to a request whose work was stopped."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise


class ModeEngine:
    """The engine of one mode. It has no life of its own: the bench opened everything."""

    def __init__(self, bench: Bench, policy: Policy) -> None:
        self._bench = bench
        self._policy = policy

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def decide(self, *, state: str, questions: tuple[Question, ...], album: Album = NO_PICTURES) -> Decision:
        bench = self._bench
        decider = Decider(bench.backend, bench.session, bench.store, self._policy)
        return await decider.decide(state=state, questions=questions, album=album)

    def chat(self, chat: Chat) -> AbstractAsyncContextManager[Talk]:
        raise ChatsOff("Chats are not measured here.")

    async def explain(self, a: Compared, b: Compared) -> Explanation:
        raise InvalidRequest("Nothing is explained here.")

    def status(self) -> Status:
        return Status(status="ready", model=self._bench.session.info.model)

    def cache(self) -> CacheReport:
        kept, profile = self._bench.store.report(), self._bench.session.profile
        return CacheReport(self._policy.mode, profile.sharing, kept.saving, kept.reason)

    async def clear_cache(self) -> int:
        return await self._bench.store.clear()


@asynccontextmanager
async def opened(settings: ApiSettings) -> AsyncIterator[Bench]:
    """The server and its folder for ourselves. Raises CannotMeasure, and what `serve` raises where it cannot start."""
    lock = backend_lock(settings.backend_url)
    store = SnapshotStore(settings.slot_cache_dir, budget=NO_LIMIT)
    backend = LlamaBackend(settings.backend_url, timeout=settings.backend_timeout)
    try:
        await store.open()
        require_empty(store)
        session = await open_session(
            backend,
            workers=settings.workers,
            patience=settings.backend_timeout,
            policy=cache_policy(settings),
            directory=settings.slot_cache_dir,
        )
        if not session.profile.sharing:
            raise CannotMeasure(f"States are not shared on this server: {session.profile.reason}.")
        bench = Bench(backend, session, store, settings)
        try:
            yield bench
        finally:
            await bench.leave()
    finally:
        await backend.aclose()
        await store.close()
        lock.release()


def require_empty(store: SnapshotStore) -> None:
    entries = store.report().entries
    if entries:
        raise CannotMeasure(
            f"The folder of saved states has {entries} already, and every run begins with none. Delete them with "
            f"DELETE /v1/cache of an API that uses this folder, or name another: with --slot-cache-dir here and with "
            f"SLOT_CACHE_DIR (--slot-save-path) for the inference server."
        )
