"""What was found, as people and programs read it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from doctor_facts import API, BACKEND, BY_WHEEL, CHOSEN, IDLE, INSTALLED, MEMORY, STORE, WELL
from jev_local.doctor.facts import Facts, File, Folder, Gpu, Host, ModelFile, Part, Step
from jev_local.doctor.layout import document, size, text
from jev_local.safe_text import to_json
from jev_local.settings import GIB, MIB

STEP = Step("Do this.", "./this")


def lines(facts: Facts, encoding: str = "utf-8") -> list[str]:
    return text(facts, STEP, encoding).splitlines()


def test_sections_in_their_order() -> None:
    heads = [line for line in lines(WELL) if line and not line.startswith(" ")]
    assert heads == ["Installed", "Chosen", "Reachable", "Running", "Memory", "Speed", "Next"]
    assert lines(WELL)[-2:] == ["  step  Do this.", "  run   ./this"]


def test_values_of_a_section_stand_below_each_other() -> None:
    found = lines(WELL)
    section = found[found.index("Chosen") + 1 : found.index("Reachable") - 1]
    assert len(section) == 10
    begins = {len(line) - len(line[2:].partition("  ")[2].lstrip()) for line in section}
    assert len(begins) == 1


def test_models_and_gpus() -> None:
    files = (
        ModelFile("text", "text.gguf", "partial", 100 * MIB),
        ModelFile("text", "text.gguf.wrong", "wrong", 5),
        ModelFile("starter", "starter.gguf", "wrong size", 7),
    )
    gpus = (Gpu("CUDA0", "NVIDIA H200", 140 * GIB, 139 * GIB), Gpu("X", "another", None, None))
    facts = replace(WELL, installed=replace(INSTALLED, models=files), chosen=replace(CHOSEN, gpus=gpus))
    found = "\n".join(lines(facts))
    assert "text.gguf, 100 MiB, half fetched" in found
    assert "starter.gguf, 7 bytes, has another size than it should" in found
    assert "text.gguf.wrong, 5 bytes, set aside: it is not the file it should be" in found
    assert "GPU CUDA0   NVIDIA H200, 139.00 GiB of 140.00 GiB free" in found
    assert "GPU X       another" in found


def test_parts_say_what_is_an_estimate_and_what_is_not_known() -> None:
    parts = (Part("weights", GIB), Part("computing", 5 * MIB, estimate=True), Part("context", None, note="no idea"))
    found = "\n".join(lines(replace(WELL, memory=replace(MEMORY, parts=parts))))
    assert "computing     5.0 MiB (an estimate)" in found
    assert "context       not known (no idea)" in found
    assert "in all        at least 2.00 GiB" in found


def test_reachable_is_told_apart_from_not_tried() -> None:
    assert "  not needed: everything is here" in lines(WELL)
    assert "  not tried" in lines(replace(WELL, chosen=None))
    assert "  not tried" in lines(replace(WELL, chosen=replace(CHOSEN, weights=File("/a", None))))
    host = Host("Hugging Face", "https://hub", False, "no answer")
    assert "  Hugging Face  no (https://hub: no answer)" in lines(replace(WELL, hosts=(host,)))
    assert "  Hugging Face  no (no answer)" in lines(replace(WELL, hosts=(replace(host, url=""),)))


@pytest.mark.parametrize("facts", [WELL, IDLE, replace(WELL, installed=None, chosen=None, memory=None, trouble="no")])
def test_a_document_has_every_key(facts: Facts) -> None:
    found = json.loads(to_json(document(facts, STEP)))
    assert list(found) == [
        "can_decide",
        "installed",
        "chosen",
        "trouble",
        "hosts",
        "backend",
        "api",
        "memory",
        "speed",
        "next",
    ]
    assert found["next"] == {"says": "Do this.", "command": "./this"}
    assert found["can_decide"] is facts.can_decide


def test_what_is_missing_is_said() -> None:
    installed = replace(INSTALLED, wheel=None, cache_folder=Folder("/cache", is_there=False, writable=False, free=None))
    chosen = replace(BY_WHEEL, weights=File("/models/a.gguf", 5 * MIB, is_pinned=True, expected=7 * MIB))
    found = lines(replace(IDLE, installed=installed, chosen=chosen))
    assert "  server      none: the wheel with one is not installed" in found
    assert "  weights     /models/a.gguf, 5.0 MiB instead of 7.0 MiB" in found
    assert "  models are in    /models, 50.00 GiB free" in found
    assert "  the rest is in   /cache, not made yet, cannot be written to" in found
    assert "  server      the one in the wheel" in lines(replace(IDLE, chosen=BY_WHEEL))


def test_another_model_than_the_chosen_one_is_told() -> None:
    another = "  another model     qwen is served, and another one is chosen"
    assert another in lines(replace(WELL, api=replace(API, model="qwen")))
    assert another in lines(replace(IDLE, backend=replace(BACKEND, model="qwen")))
    for facts in (WELL, IDLE, replace(WELL, chosen=None), replace(IDLE, backend=BACKEND)):
        assert not any("another model" in line for line in lines(facts))


def test_numbers_are_numbers() -> None:
    found = json.loads(to_json(document(WELL, STEP)))
    assert found["chosen"]["settings"]["context"] == 8192
    assert found["chosen"]["weights"] == {
        "path": "/models/text.gguf",
        "bytes": 1200 * MIB,
        "is_pinned": True,
        "expected": None,
        "begun": 0,
    }
    assert found["memory"]["store"]["free"] == STORE.free
    assert found["speed"]["tokens_per_second"] == 300.0


def test_japanese_paths_and_narrow_encodings() -> None:
    facts = replace(WELL, chosen=replace(CHOSEN, weights=File("/模型/日本語.gguf", GIB)))
    assert "  weights     /模型/日本語.gguf, 1.00 GiB" in lines(facts)
    assert "  weights     /??/???.gguf, 1.00 GiB" in lines(facts, "ascii")


def test_nothing_a_terminal_would_obey() -> None:
    evil = "\x1b[2J\u202ea\nb"
    facts = replace(
        WELL, trouble=evil, api=replace(WELL.api, says=evil, model=evil), speed=replace(WELL.speed, says=evil)
    )
    shown = text(facts, Step(evil, evil), "utf-8")
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\x1b[2J\\u202ea b" in shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (200 * MIB, "200 MiB"),
        (1023 * MIB, "1023 MiB"),
        (GIB, "1.00 GiB"),
        (5000 * GIB, "5000.00 GiB"),
    ],
)
def test_sizes(count: int, shown: str) -> None:
    assert size(count) == shown
