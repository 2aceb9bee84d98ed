"""Real models and real servers, shared by the whole run. Everything started here is ended here."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import hypothesis
import pytest

import tiny_lfm2
from jev_local.backend.embedded import ServerOptions, server_environment, wheel_command
from jev_local.launch.process import Child, stop
from programs import free_port

ROOT = Path(__file__).resolve().parent.parent

# An example that takes longer than the usual 200 ms says that the machine is busy, not that the code is wrong.
hypothesis.settings.register_profile("jev-local", deadline=None)
hypothesis.settings.load_profile("jev-local")


slot_dirs: dict[str, Path] = {}
"""URL of a llama-server started here -> where it saves its slots, which its API has to be told."""


backends: dict[str, str] = {}
"""URL of an API started here -> the URL of its llama-server."""


@contextmanager
def llama_server(model: Path, folder: Path, *, port: int | None = None, **options: int) -> Iterator[tuple[str, Child]]:
    """A llama-server of the wheel, on a free port unless one is given, loaded: its URL and its process."""
    folder.mkdir(parents=True, exist_ok=True)
    slots = folder / "slots"
    slots.mkdir(mode=0o700, exist_ok=True)
    port = port or free_port()
    slot_dirs[f"http://127.0.0.1:{port}"] = slots
    child = Child(
        "llama-server",
        wheel_command(ServerOptions(model=str(model), port=port, slot_dir=str(slots), **options)),
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


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hybrid model with a byte vocabulary and random weights."""
    return tiny_lfm2.write(tmp_path_factory.mktemp("models") / "tiny-lfm2.gguf")


@pytest.fixture(scope="session")
def smollm2_model() -> Path:
    """Real weights of an attention-only model; near chance as a judge."""
    from jev_local.launch.fetch import fetch
    from jev_local.launch.home import home
    from jev_local.launch.models import CATALOGUE

    return fetch(CATALOGUE["smollm2"], home().models)


@pytest.fixture(scope="session")
def starter_model() -> Path:
    """The model that people get."""
    from jev_local.launch.fetch import fetch
    from jev_local.launch.home import home
    from jev_local.launch.models import CATALOGUE

    return fetch(CATALOGUE["starter"], home().models)


@pytest.fixture(scope="session")
def tiny_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_server(tiny_model, tmp_path_factory.mktemp("tiny"), context=16384) as (url, _):
        yield url


@pytest.fixture(scope="session")
def smollm2_server(smollm2_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_server(smollm2_model, tmp_path_factory.mktemp("smollm2")) as (url, _):
        yield url


@pytest.fixture(params=["tiny", "smollm2"])
def server(request: pytest.FixtureRequest) -> str:
    """Each of the two in turn: what holds for one kind of model has to hold for the other."""
    url: str = request.getfixturevalue(f"{request.param}_server")
    return url


@pytest.fixture(scope="session")
def tiny_api(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """In front of a server of its own, as every API is."""
    folder = tmp_path_factory.mktemp("tiny-api")
    options = ("--max-in-flight", "32")
    with llama_server(tiny_model, folder, context=16384) as (llama, _), api_server(llama, folder, *options) as (url, _):
        yield url


@pytest.fixture(scope="session")
def smollm2_api(smollm2_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("smollm2-api")
    with llama_server(smollm2_model, folder) as (backend, _), api_server(backend, folder) as (url, _):
        yield url


@pytest.fixture(params=["tiny", "smollm2"])
def api(request: pytest.FixtureRequest) -> str:
    """The API in front of each of the two in turn; any key or none is accepted."""
    url: str = request.getfixturevalue(f"{request.param}_api")
    return url
