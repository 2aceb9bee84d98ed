"""An app behind a real uvicorn on a free port of this machine, in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI


@contextmanager
def served(make: Callable[[], FastAPI]) -> Iterator[str]:
    """The URL of the app that `make` makes, inside the server's thread, where its loop will run."""
    # asyncio switches Nagle's algorithm off only for sockets that say they are TCP. With it, every reply on a
    # kept connection waits 40 ms, because headers and body leave in two writes.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    begun = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            begun.set()

    servers: list[Server] = []

    def run() -> None:
        servers.append(Server(uvicorn.Config(make(), log_config=None, access_log=False, timeout_graceful_shutdown=2)))
        servers[0].run(sockets=[listener])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(10), "uvicorn did not start"
        yield f"http://127.0.0.1:{port}"
    finally:
        servers[0].should_exit = True
        thread.join(10)
        assert not thread.is_alive()
        listener.close()
