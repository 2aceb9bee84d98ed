"""Real models and real servers, shared by the whole run. Everything started here is ended here."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

import tiny_lfm2
import tiny_vision
from servers import api_server, llama_server

# What a shell starts in the background ignores Ctrl-C, and children inherit that: tests of Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An example that takes longer than the usual 200 ms says that the machine is busy, not that the code is wrong.
hypothesis.settings.register_profile("jev-local", deadline=None)
hypothesis.settings.load_profile("jev-local")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hybrid model with a byte vocabulary and random weights."""
    return tiny_lfm2.write(tmp_path_factory.mktemp("models") / "tiny-lfm2.gguf")


@pytest.fixture(scope="session")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same model with a projector: it sees, and makes nothing of it."""
    return tiny_vision.write(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="session")
def smollm2_model() -> Path:
    """Real weights of an attention-only model; near chance as a judge."""
    from jev_local.launch.fetch import fetch
    from jev_local.launch.home import home
    from jev_local.launch.models import CATALOGUE

    return fetch(CATALOGUE["smollm2"].weights, home().models)


@pytest.fixture(scope="session")
def starter_model() -> Path:
    """The model that people get."""
    from jev_local.launch.fetch import fetch
    from jev_local.launch.home import home
    from jev_local.launch.models import CATALOGUE

    return fetch(CATALOGUE["starter"].weights, home().models)


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
