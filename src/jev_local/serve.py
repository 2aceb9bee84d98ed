"""Composition root: Settings -> backend -> engine -> app -> uvicorn."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
import warnings

import uvicorn

from jev_local.app import create_app
from jev_local.backend.llama import LlamaBackend
from jev_local.core.sharing import Policy
from jev_local.engine.folder import StoreRefused
from jev_local.engine.locks import LockRefused, Occupied, backend_lock
from jev_local.engine.service import Service
from jev_local.engine.snapshots import SnapshotStore
from jev_local.errors import CannotShare
from jev_local.settings import ApiSettings
from jev_local.web.malformed import Protocol

LEAVE_SECONDS = 2
"""How long requests in flight may finish after Ctrl-C; then they are cancelled, and llama-server drops their work."""


BACKLOG = 64
"""Connections that wait to be accepted. asyncio tries as many at each turn, also when no file descriptor is left for
any, and logs every failure: uvicorn's 2,048 filled a disk."""

OPEN_FILES = 65_536


def run(settings: ApiSettings) -> int:
    """Serve until Ctrl-C or SIGTERM, which uvicorn raises again when it is done. 2 when the address cannot be had."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line a round trip otherwise
    warnings.filterwarnings("ignore", module="PIL")  # about metadata of callers' files, which nobody here can mend
    try:
        listener = _listen(settings.host, settings.port)
    except OSError as error:
        print(_unavailable(settings, error), file=sys.stderr)
        return 2
    _allow_many_connections()
    try:
        return asyncio.run(_serve(settings, listener))
    except (Occupied, LockRefused, StoreRefused) as error:
        print(error.message, file=sys.stderr)
        return 2
    finally:
        listener.close()


async def _serve(settings: ApiSettings, listener: socket.socket) -> int:
    """Hold the locks, and serve. Raises Occupied, LockRefused or StoreRefused where somebody else has them."""
    policy = cache_policy(settings)
    lock = backend_lock(settings.backend_url)
    store = SnapshotStore(settings.slot_cache_dir, budget=settings.prefix_cache_bytes)
    try:
        if policy.mode != "off":
            await store.open()
        return await _serve_from(settings, listener, store, policy)
    finally:
        await store.close()
        lock.release()


async def _serve_from(settings: ApiSettings, listener: socket.socket, store: SnapshotStore, policy: Policy) -> int:
    refusals: list[CannotShare] = []

    def refuse(error: CannotShare) -> None:
        refusals.append(error)
        server.should_exit = True

    backend = LlamaBackend(settings.backend_url, timeout=settings.backend_timeout)
    engine = Service(
        backend,
        workers=settings.workers,
        store=store,
        policy=policy,
        patience=settings.backend_timeout,
        chat_slots=settings.chat_slots,
        refuse=refuse,
    )
    app = create_app(engine=engine, settings=settings)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            access_log=False,  # the app writes its own line, without query strings
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=LEAVE_SECONDS,
            backlog=BACKLOG,
            http=Protocol,
            lifespan="on",  # a start that fails has to end the process, not to pass for an app without a start
        )
    )
    await server.serve(sockets=[listener])
    for error in refusals:
        print(error.message, file=sys.stderr)
    return 2 if refusals else 0


def cache_policy(settings: ApiSettings) -> Policy:
    """What the settings say of sharing states."""
    return Policy(
        mode=settings.state_cache,
        pictures=settings.image_prefix == "auto",
        min_tokens=settings.cache_min_tokens,
        chunk=settings.prefill_chunk,
        stable=settings.stable,
        keeps=settings.prefix_cache_bytes > 0,
    )


def _allow_many_connections() -> None:
    """Idle clients hold a file descriptor each; the usual soft limit of 1,024 is soon used up, and free to raise."""
    try:
        import resource  # noqa: PLC0415  # not everywhere
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio switches Nagle's algorithm off only where it is: without it every reply on
    # a kept connection waited 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _unavailable(settings: ApiSettings, error: OSError) -> str:
    place = f"{settings.host}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{place} is in use already. Stop what listens there, or choose another port with --port."
    return f"Cannot listen on {place}: {error.strerror}. Choose another address with --host and --port."
