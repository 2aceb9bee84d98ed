"""The doctor beside real servers: its arithmetic against what llama-server reports, and a real decision."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from doctor_servers import answering
from jev_local.backend.embedded import ServerOptions
from jev_local.cli import main
from jev_local.doctor import gguf
from jev_local.doctor.memory import parts
from jev_local.doctor.shape import model_shape, projector_shape
from jev_local.launch.process import Child, stop
from jev_local.settings import MIB
from programs import free_port, until
from servers import api_server, await_ready, backends, llama_server

# The program of the wheel's server, told to write down what it allocates.
LOUD = """
import json, signal, sys
import xllamacpp
from jev_local.backend.child import parameters
from jev_local.backend.embedded import ServerOptions
params = parameters(ServerOptions(**json.loads(sys.argv[1])))
params.verbosity = 4
server = xllamacpp.Server(params)
signal.pause()
"""


@contextmanager
def loud_server(folder: Path, options: ServerOptions) -> Iterator[str]:
    """The log of a server with these options, once it has its model."""
    log = folder / "llama-server.log"
    child = Child("llama-server", [sys.executable, "-c", LOUD, json.dumps(asdict(options))], log=log)
    try:
        await_ready(f"http://127.0.0.1:{options.port}/health", child)
        yield log.read_text(errors="replace")
    finally:
        stop([child])


def options(folder: Path, model: Path, **changes: int | str) -> ServerOptions:
    return ServerOptions(model=str(model), port=free_port(), slot_dir=str(folder), **changes)  # type: ignore[arg-type]


def reported(log: str, what: str) -> float:
    """Bytes of all buffers of this kind that the log tells, in MiB there."""
    found = re.findall(rf"{what} buffer size = +([0-9.]+) MiB", log)
    assert found, f"llama-server tells no {what} buffer"
    return sum(map(float, found)) * MIB


def estimated(wanted: ServerOptions) -> dict[str, int]:
    path = Path(wanted.model)
    shape = model_shape(gguf.read(path))
    found = parts(shape, wanted, weights=path.stat().st_size, projector=None, has_gpu=False)
    return {part.what: part.bytes for part in found if part.bytes is not None}


def context_of(sizes: dict[str, int]) -> int:
    return sizes["context, decisions"] + sizes.get("context, chats", 0)


@pytest.mark.parametrize("changes", [{}, {"context": 1000, "chat_context": 5000, "batch": 512}, {"chat_slots": 0}])
def test_attention_alone(smollm2_model: Path, tmp_path: Path, changes: dict[str, int]) -> None:
    wanted = options(tmp_path, smollm2_model, **changes)
    with loud_server(tmp_path, wanted) as log:
        ours = estimated(wanted)
        assert context_of(ours) == pytest.approx(reported(log, "KV"), rel=0.02)
        told = reported(log, "compute") + reported(log, "output")
        assert ours["computing"] == pytest.approx(told, rel=0.25)
        assert "RS buffer" not in log
        assert "slots" not in ours


def test_short_convolutions(tiny_model: Path, tmp_path: Path) -> None:
    # The log has two decimals of a MiB: with few slots of a tiny model, nothing of them would be seen.
    wanted = options(tmp_path, tiny_model, parallel=120, chat_slots=8, context=16384)
    with loud_server(tmp_path, wanted) as log:
        ours = estimated(wanted)
        assert context_of(ours) == pytest.approx(reported(log, "KV"), rel=0.02)
        assert ours["slots"] == pytest.approx(reported(log, "RS"), rel=0.02)


def test_starter(starter_model: Path, tmp_path: Path) -> None:
    wanted = options(tmp_path, starter_model)
    with loud_server(tmp_path, wanted) as log:
        ours = estimated(wanted)
        assert context_of(ours) == pytest.approx(reported(log, "KV"), rel=0.02)
        told = reported(log, "compute") + reported(log, "output")
        assert ours["computing"] == pytest.approx(told, rel=0.25)


def test_a_projector_is_understood(vision_model: tuple[Path, Path]) -> None:
    eye = projector_shape(gguf.read(vision_model[1]))
    assert (eye.patches, eye.embedding, eye.feed_forward) == (1024, 128, 256)


def test_a_decision_is_made(api: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", api, "--backend-url", backends[api], "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["can_decide"], found["api"]["state"], found["backend"]["state"]) == (True, "ready", "up")
    assert found["api"]["model"] == found["backend"]["model"]
    assert (found["backend"]["slots"], found["api"]["slots"]) == (6, 4)
    speed = found["speed"]
    assert 0 <= speed["probability"] <= 1
    assert speed["tokens"] > 300
    assert speed["tokens"] / speed["seconds"] <= speed["tokens_per_second"]


def test_the_second_look_is_as_slow_as_the_first(tiny_api: str, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = []
    for _ in range(2):
        assert main(["doctor", "--url", tiny_api, "--backend-url", backends[tiny_api], "--format", "json"]) == 0
        tokens.append(json.loads(capsys.readouterr().out)["speed"]["tokens"])
    assert min(tokens) > 1500  # a byte vocabulary; what was cached would be missing here


def test_an_inference_server_alone(tiny_server: str, tiny_model: Path, tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    code = "import sys; from jev_local.cli import main; sys.exit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", code, "doctor", "--url", nobody, "--backend-url", tiny_server, "--format", "json"],
        env={**os.environ, "MODEL": str(tiny_model), "JEV_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(ran.stdout)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert found["memory"]["verdict"] == "in memory"
    assert found["next"]["says"] == "The inference server is up, and no API: start that."
    assert not (tmp_path / "home").exists()


def test_an_inference_server_is_no_api(tiny_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", tiny_server, "--backend-url", tiny_server]) == 1
    assert "is not the API: correct --url" in capsys.readouterr().out


def test_an_api_whose_inference_server_comes_and_goes(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL", str(tiny_model))
    monkeypatch.setenv("JEV_HOME", str(tmp_path / "home"))
    port = free_port()
    behind = f"http://127.0.0.1:{port}"
    start_it = "The API runs, and its inference server does not: start that."

    def look(api: str) -> dict[str, Any]:
        code = main(["doctor", "--url", api, "--backend-url", behind, "--format", "json"])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert (code == 0) == found["can_decide"]
        return found

    def says(api: str) -> str:
        return str(look(api)["next"]["says"])

    with api_server(behind, tmp_path / "api", ready="/openapi.json") as (api, _):
        until(lambda: says(api) == start_it, "finding nobody")
        command = look(api)["next"]["command"]
        assert command.endswith(f" --port {port}")
        with answering({}, port=port):
            until(lambda: "is no inference server: stop the API" in says(api), "finding another program")
        with llama_server(tiny_model, tmp_path / "backend", port=port):
            until(lambda: look(api)["can_decide"], "a decision")
        # Right after that the API has not noticed: it says that it is ready, and then that it is not.
        assert says(api) == start_it
