"""Real servers, started and ended by the tests that need them. Not in conftest: pytest and an import would each have a
conftest of their own, and one would not know what the other had started."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from jev_local.backend.embedded import ServerOptions, server_environment, wheel_command
from jev_local.launch.process import Child, stop
from programs import free_port

ROOT = Path(__file__).resolve().parent.parent

slot_dirs: dict[str, Path] = {}
"""URL of a llama-server started here -> where it saves its slots, which its API has to be told."""


backends: dict[str, str] = {}
"""URL of an API started here -> the URL of its llama-server."""


@contextmanager
def llama_server(
    model: Path, folder: Path, *, port: int | None = None, mmproj: Path | None = None, **options: int
) -> Iterator[tuple[str, Child]]:
    """A llama-server of the wheel, on a free port unless one is given, loaded: its URL and its process."""
    folder.mkdir(parents=True, exist_ok=True)
    slots = folder / "slots"
    slots.mkdir(mode=0o700, exist_ok=True)
    port = port or free_port()
    slot_dirs[f"http://127.0.0.1:{port}"] = slots
    child = Child(
        "llama-server",
        wheel_command(
            ServerOptions(
                model=str(model),
                port=port,
                slot_dir=str(slots),
                mmproj=None if mmproj is None else str(mmproj),
                **options,
            )
        ),
        log=folder / "llama-server.log",
        environment=server_environment(os.environ),
    )
    try:
        await_ready(f"http://127.0.0.1:{port}/health", child)
        yield f"http://127.0.0.1:{port}", child
    finally:
        stop([child])


@contextmanager
def api_server(
    backend_url: str, folder: Path, *options: str, key: str = "", ready: str = "/ready"
) -> Iterator[tuple[str, Child]]:
    """The API as people start it, in front of `backend_url`, once `ready` answers 200: its URL and its process."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    argv = [sys.executable, "-m", "jev_local", "serve", "--backend-url", backend_url, "--port", str(port)]
    argv += ["--slot-cache-dir", str(slot_dirs.get(backend_url, folder / "slots")), *options]
    child = Child("API", argv, log=folder / "api.log", environment=os.environ | {"JEV_API_KEY": key})
    try:
        await_ready(f"http://127.0.0.1:{port}{ready}", child)
        backends[f"http://127.0.0.1:{port}"] = backend_url
        yield f"http://127.0.0.1:{port}", child
    finally:
        stop([child])


def await_ready(url: str, child: Child, *, seconds: float = 120) -> None:
    """Until `url` answers 200."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise AssertionError(f"{child.name} {child.ending()}{child.last_lines()}")
        try:
            if httpx.get(url, trust_env=False, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"{url} was not ready within {seconds} s{child.last_lines()}")
