"""A caller who goes away frees the slot, whatever else is going on."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import httpx
import pytest

from jev_local.backend.llama import LlamaBackend
from jev_local.errors import BackendTimeout, BackendUnavailable
from servers import llama_server
from sessions import seconds_to_free


async def busy(client: httpx.AsyncClient, slot: int) -> bool:
    slots = (await client.get("/slots")).json()
    return bool(slots[slot]["is_processing"])


async def begin(backend: LlamaBackend, client: httpx.AsyncClient, *, slot: int, length: int = 3000):  # type: ignore[no-untyped-def]
    (words,) = await backend.tokenize(["The customer called about order and asked. " * 400], special=False)
    task = asyncio.create_task(
        backend.complete([words[:length]], slot=slot, labels=[49, 50], bias=30.0, runners_up=8, reuse=False)
    )
    async with asyncio.timeout(30):
        while not await busy(client, slot):
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.5)
    assert not task.done(), "the prompt has to be longer than what is evaluated until now"
    return task


async def seconds_until_free(client: httpx.AsyncClient, slot: int) -> float:
    began = time.perf_counter()
    while await busy(client, slot):
        await asyncio.sleep(0.05)
        assert time.perf_counter() - began < 30
    return time.perf_counter() - began


@pytest.mark.parametrize("polling", [False, True], ids=["quiet", "beside a poller"])
def test_a_cancelled_prefill_frees_its_slot(smollm2_server: str, polling: bool) -> None:
    async def scene() -> float:
        backend = LlamaBackend(smollm2_server, timeout=300)
        async with httpx.AsyncClient(base_url=smollm2_server, trust_env=False, timeout=30) as client:

            async def poll() -> None:
                while True:
                    await client.get("/slots")
                    await asyncio.sleep(0.3)

            poller = asyncio.create_task(poll()) if polling else None
            try:
                task = await begin(backend, client, slot=2)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                return await seconds_until_free(client, 2)
            finally:
                if poller is not None:
                    poller.cancel()
                await backend.aclose()

    # Three times, because it depends on where in a batch the client leaves, and the machine may be busy with others.
    took = sorted(asyncio.run(scene()) for _ in range(3))
    print(f"slot free after {', '.join(f'{t:.2f}' for t in took)} s")
    assert took[1] < seconds_to_free(smollm2_server)


def test_a_timeout_frees_the_slot_and_is_called_one(smollm2_server: str) -> None:
    async def scene() -> float:
        backend = LlamaBackend(smollm2_server, timeout=1.0)
        async with httpx.AsyncClient(base_url=smollm2_server, trust_env=False, timeout=30) as client:
            task = await begin(backend, client, slot=1)
            with pytest.raises(BackendTimeout, match="within 1 s"):
                await task
            took = await seconds_until_free(client, 1)
        await backend.aclose()
        return took

    assert asyncio.run(scene()) < seconds_to_free(smollm2_server)


def test_a_killed_server_is_told_from_one_that_is_not_there(smollm2_model: Path, tmp_path: Path) -> None:
    async def scene(url: str, kill) -> None:  # type: ignore[no-untyped-def]
        backend = LlamaBackend(url, timeout=60)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
            task = await begin(backend, client, slot=0)
            kill()
            with pytest.raises(BackendUnavailable, match="closed the connection"):
                await task
            with pytest.raises(BackendUnavailable, match="not reachable"):
                await backend.instance()
        await backend.aclose()

    with llama_server(smollm2_model, tmp_path) as (url, child):
        asyncio.run(scene(url, lambda: (child.signal(signal.SIGKILL), child.wait(5))))
