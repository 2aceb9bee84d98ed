"""Composition root: Settings -> backend -> engine -> app -> uvicorn."""

from __future__ import annotations

import errno
import logging
import socket
import sys

import uvicorn

from jev_local.app import create_app
from jev_local.backend.llama import LlamaBackend
from jev_local.engine.service import Service
from jev_local.settings import ApiSettings

LEAVE_SECONDS = 2
"""How long requests in flight may finish after Ctrl-C; then they are cancelled, and llama-server drops their work."""


def run(settings: ApiSettings) -> int:
    """Serve until Ctrl-C or SIGTERM, which uvicorn raises again when it is done. 2 when the address cannot be had."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line a round trip otherwise
    try:
        listener = _listen(settings.host, settings.port)
    except OSError as error:
        print(_unavailable(settings, error), file=sys.stderr)
        return 2
    backend = LlamaBackend(settings.backend_url, timeout=settings.backend_timeout)
    engine = Service(backend, workers=settings.workers, patience=settings.backend_timeout)
    app = create_app(engine=engine, settings=settings)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            access_log=False,  # the app writes its own line, without query strings
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=LEAVE_SECONDS,
        )
    )
    server.run(sockets=[listener])
    return 0


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio switches Nagle's algorithm off only where it is: without it every reply on
    # a kept connection waited 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def _unavailable(settings: ApiSettings, error: OSError) -> str:
    place = f"{settings.host}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{place} is in use already. Stop what listens there, or choose another port with --port."
    return f"Cannot listen on {place}: {error.strerror}. Choose another address with --host and --port."
