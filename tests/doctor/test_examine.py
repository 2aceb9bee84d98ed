"""The whole look, at homes of every kind. Nothing may be made, fetched or started by it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from doctor_servers import DECIDED, READY, answering
from jev_local.client import UnusableServer
from jev_local.doctor import examine, layout, reachable
from jev_local.doctor.facts import Facts, Step
from jev_local.launch import fetch, runtimes
from jev_local.launch.models import CATALOGUE
from programs import free_port

Looked = tuple[Facts, Step]


class House:
    """A JEV_HOME, and a look around it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.models, self.cache = root / "models", root / "cache"
        self.environment = {"JEV_HOME": str(root), "PATH": os.environ["PATH"]}
        self.url = f"http://127.0.0.1:{free_port()}"
        self.backend_url = f"http://127.0.0.1:{free_port()}"
        self.key = "sesame"

    def put(self, path: Path, content: bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def look(self, **environment: str) -> Looked:
        wishes = examine.Wishes(url=self.url, backend_url=self.backend_url, key=self.key, timeout=5)
        before = self.everything()
        found = examine.examine(wishes, self.environment | environment)
        assert self.everything() == before
        json.dumps(layout.document(*found))
        layout.text(*found, "utf-8")
        return found

    def everything(self) -> dict[str, tuple[int, int]]:
        if not os.path.isdir(self.root):
            return {}
        return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in self.root.rglob("*")}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(reachable, "HUB", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(runtimes, "RELEASE", f"http://127.0.0.1:{free_port()}/releases")


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "home")


@pytest.fixture
def furnished(house: House, tiny_model: Path) -> House:
    house.environment["MODEL"] = str(tiny_model)
    return house


def test_an_empty_machine(house: House) -> None:
    facts, step = house.look()
    assert not house.root.exists()
    assert facts.installed is not None
    assert (facts.installed.models, facts.installed.runtimes, facts.installed.troubles) == ((), (), ())
    assert facts.chosen is not None
    assert (facts.chosen.model_from, facts.chosen.weights.bytes) == ("the default", None)
    assert facts.memory is None
    assert [(host.what, host.reachable) for host in facts.hosts] == [("Hugging Face", False)]
    assert "Hugging Face cannot be reached. The package index has it too" in step.says
    assert not facts.can_decide
    facts, step = house.look(MODEL="text")
    assert "Hugging Face cannot be reached: connect this machine" in step.says


def test_an_empty_machine_with_a_network(house: House) -> None:
    with answering({"/": (200, {})}) as hub:
        facts, step = house.look(HF_ENDPOINT=hub)
    assert facts.hosts[0].reachable
    assert step.command is not None
    assert step.command.endswith("setup.sh --model text")


def test_a_model_that_is_there(furnished: House, tiny_model: Path) -> None:
    facts, step = furnished.look(CTX_SIZE="4096", PARALLEL="3", CHAT_SLOTS="1")
    assert facts.chosen is not None
    assert facts.chosen.weights.bytes == tiny_model.stat().st_size
    assert (facts.chosen.model, facts.chosen.model_from) == (None, "MODEL")
    assert (facts.chosen.settings.context, facts.chosen.settings.parallel) == (4096, 3)
    assert facts.hosts == ()
    assert facts.memory is not None
    sizes = {part.what: part.bytes for part in facts.memory.parts}
    assert sizes["context, decisions"] == sizes["context, chats"] == 4096 * 2 * (64 + 64) * 2
    assert sizes["slots"] == 4 * 4 * 2 * 128 * 4
    assert facts.memory.verdict == "fits"
    assert facts.memory.store.folder == str(furnished.cache / "slots")
    assert step.says == "All that is needed is here: start it."


def test_files_of_the_catalogue(house: House) -> None:
    starter, smollm2, text = (CATALOGUE[name].weights for name in ("starter", "smollm2", "text"))
    fetch.remember(starter, house.put(house.models / starter.file, b"GGUF"))
    house.put(house.models / smollm2.file, b"GGUF..")
    house.put(house.models / f".fetching-{text.file}" / "hub" / "part", b"12345")
    house.put(house.models / f"{text.file}.wrong", b"123")
    facts, _ = house.look()
    assert facts.installed is not None
    assert [(file.model, file.state, file.bytes) for file in facts.installed.models] == [
        ("starter", "verified", 4),
        ("smollm2", "unverified", 6),
        ("text", "partial", 5),
        ("text", "wrong", 3),
    ]


def test_a_damaged_model(house: House) -> None:
    path = house.put(house.root / "model.gguf", b"GGUF\3\0\0\0")
    facts, step = house.look(MODEL=str(path))
    assert facts.memory is not None
    assert facts.memory.trouble == "it ends within its header: it is incomplete"
    assert "of no use: it ends within its header" in step.says


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"model": 5}', b'{"unknown": "x"}', b"\xff\xfe\x00", b"[" * 100_000],
)
def test_a_broken_choice(house: House, content: bytes) -> None:
    house.put(house.cache / "chosen.json", content)
    facts, step = house.look()
    assert facts.trouble == step.says
    assert facts.chosen is None
    assert facts.installed is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MODEL", "gpt-5"),
        ("MODEL", "~nobody-here/model.gguf"),
        ("CTX_SIZE", "large"),
        ("GPU_LAYERS", "some"),
        ("LLAMA_SERVER", "/nowhere/llama-server"),
        ("JEV_HOME", "~nobody-here/home"),
    ],
)
def test_settings_that_make_no_sense(furnished: House, name: str, value: str) -> None:
    facts, step = furnished.look(**{name: value})
    assert facts.trouble
    assert step.says == facts.trouble


def test_with_a_broken_choice_a_decision_is_made_and_not_enough(house: House) -> None:
    house.put(house.cache / "chosen.json", b"{")
    with answering({"/ready": (200, READY), "/v1/systemone": (200, DECIDED)}) as house.url:
        facts, _ = house.look()
    assert facts.speed.state == "answered"
    assert not facts.can_decide


@pytest.mark.parametrize("folder", ["x" * 300, "file", "loop"])
def test_folders_that_cannot_be_looked_into(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    facts, _ = House(tmp_path / folder).look()
    assert facts.installed is not None
    assert facts.trouble or facts.installed.troubles


def test_a_folder_of_models_that_may_not_be_read(furnished: House) -> None:
    furnished.models.mkdir(parents=True)
    furnished.models.chmod(0)
    try:
        facts, _ = furnished.look()
    finally:
        furnished.models.chmod(stat.S_IRWXU)
    assert facts.installed is not None
    assert os.geteuid() == 0 or "models" in facts.installed.troubles[0]


def server(house: House, listing: str) -> Path:
    program = house.put(house.root / "llama-server", f"#!/bin/sh\nprintf '{listing}'\n".encode())
    program.chmod(0o700)
    return program


def test_a_server_with_gpus(furnished: House) -> None:
    listing = r"Available devices:\n  CUDA0: NVIDIA H200 (1000 MiB, 100 MiB free)\n  CUDA1: old (400 MiB, 1 MiB free)\n"
    program = server(furnished, listing)
    facts, _ = furnished.look(LLAMA_SERVER=str(program), CTX_SIZE="16384")
    assert facts.chosen is not None
    assert facts.memory is not None
    assert [(gpu.name, gpu.about) for gpu in facts.chosen.gpus] == [("CUDA0", "NVIDIA H200"), ("CUDA1", "old")]
    assert facts.memory.room.what == "memory of CUDA0 and CUDA1"
    assert (facts.memory.room.total, facts.memory.room.available) == (1400 << 20, 101 << 20)
    assert facts.memory.verdict == "fits"
    assert "processes" not in {part.what for part in facts.memory.parts}
    facts, step = furnished.look(LLAMA_SERVER=str(program), GPU_DEVICE="CUDA1", GPU_LAYERS="all")
    assert facts.memory is not None
    assert (facts.memory.room.available, facts.memory.verdict) == (1 << 20, "fits when freed")
    assert "Others use the memory of CUDA1" in step.says
    for changes in ({"GPU_LAYERS": "0"}, {"GPU_DEVICE": "none"}):
        facts, _ = furnished.look(LLAMA_SERVER=str(program), **changes)
        assert facts.memory is not None
        assert not facts.memory.room.is_gpu
    facts, _ = furnished.look(LLAMA_SERVER=str(program), GPU_LAYERS="7")
    assert facts.memory is not None
    assert facts.memory.verdict == "unknown"


def test_a_server_that_does_not_run(furnished: House) -> None:
    facts, step = furnished.look(LLAMA_SERVER=str(server(furnished, "libhip.so is missing")))
    assert facts.chosen is not None
    assert facts.chosen.gpus_trouble == "libhip.so is missing"
    assert "does not run here (libhip.so is missing)" in step.says
    assert [host.what for host in facts.hosts] == ["llama.cpp releases"]


def test_a_server_that_set_up_chose(furnished: House) -> None:
    program = server(furnished, r"Available devices:\n")
    shutil.copy(program, furnished.put(furnished.cache / "llama.cpp" / "b1-cpu" / "llama-server", b""))
    chosen: dict[str, Any] = {"model": "text", "backend": "cpu", "server": str(program), "library_path": None}
    furnished.put(furnished.cache / "chosen.json", json.dumps(chosen).encode())
    del furnished.environment["MODEL"]
    facts, _ = furnished.look()
    assert facts.installed is not None
    assert facts.installed.runtimes == ("b1-cpu",)
    assert facts.chosen is not None
    assert (facts.chosen.model, facts.chosen.model_from) == ("text", "set-up")
    assert (facts.chosen.server, facts.chosen.server_from, facts.chosen.backend) == (str(program), "set-up", "cpu")


def test_a_decision(furnished: House) -> None:
    seen: list[tuple[str, str | None, bytes]] = []
    with answering({"/ready": (200, READY), "/v1/systemone": (200, DECIDED)}, seen) as furnished.url:
        facts, step = furnished.look()
    assert facts.can_decide
    assert [(path, key) for path, key, _ in seen] == [("/ready", None), ("/v1/systemone", "Bearer sesame")]
    assert step.command is not None
    assert "--state" in step.command
    shown = layout.text(facts, step, "utf-8") + json.dumps(layout.document(facts, step))
    assert json.loads(seen[1][2])["state"][:40] not in shown
    assert "sesame" not in shown


def test_nothing_is_asked_of_a_server_that_is_not_ours(furnished: House) -> None:
    seen: list[tuple[str, str | None, bytes]] = []
    with answering({"/ready": (200, b"<html>"), "/v1/systemone": (200, DECIDED)}, seen) as furnished.url:
        facts, _ = furnished.look()
    assert [path for path, _, _ in seen] == ["/ready"]
    assert facts.speed.state == "not tried"


def test_a_key_that_a_server_repeats_goes_no_further(furnished: House) -> None:
    no = (401, {"detail": "the key sesame is wrong"})
    with answering({"/ready": (200, READY), "/v1/systemone": no}) as furnished.url:
        facts, step = furnished.look()
    assert facts.speed.says == "401: the key *** is wrong"
    assert "sesame" not in json.dumps(layout.document(facts, step))


@pytest.mark.parametrize(
    ("url", "backend_url"), [("ftp://x", "http://h"), ("http://h", "http://a:b@h"), ("", "http://h")]
)
def test_urls_that_are_none(house: House, url: str, backend_url: str) -> None:
    house.url, house.backend_url = url, backend_url
    with pytest.raises(UnusableServer):
        house.look()


def test_the_client_of_others_needs_no_launcher() -> None:
    code = "import sys, jev_local.cli; sys.exit(any(name.startswith('jev_local.launch') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
