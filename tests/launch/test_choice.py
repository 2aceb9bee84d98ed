"""What set-up chose, written, read, and what a start makes of it."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from jev_local.launch import choice
from jev_local.launch.choice import Chosen
from jev_local.launch.errors import CannotStart
from jev_local.launch.home import Home, home
from jev_local.launch.inference import InferenceServer
from jev_local.launch.intended import intended
from jev_local.launch.models import CATALOGUE
from programs import free_port


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return home({"JEV_HOME": str(tmp_path / "home")})


@pytest.fixture
def server(tmp_path: Path) -> Path:
    made = tmp_path / "llama-server"
    made.write_text("#!/bin/sh\necho Available devices:\n")
    made.chmod(0o755)
    return made


def test_it_is_read_as_it_was_written(place: Home, server: Path) -> None:
    assert choice.read(place) == Chosen()
    assert not place.cache.exists(), "reading makes nothing"
    for chosen in (Chosen("vision", "rocm", server, "/opt/rocm"), Chosen("text"), Chosen()):
        choice.change(place, lambda _, chosen=chosen: chosen)
        assert choice.read(place) == chosen
    assert place.cache.stat().st_mode & 0o077 == 0


def test_of_two_at_once_neither_is_lost_and_a_reader_sees_one_or_the_other(place: Home) -> None:
    def count(field: str) -> None:
        for number in range(1, 41):
            choice.change(place, lambda now, number=number: replace(now, **{field: f"{number}" * number}))

    writers = [threading.Thread(target=count, args=(field,)) for field in ("model", "backend")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        choice.read(place)
    assert choice.read(place) == Chosen(model="40" * 40, backend="40" * 40)
    assert sorted(path.name for path in place.cache.iterdir()) == ["chosen.json", "chosen.lock"]


def test_a_link_in_its_place_gives_way(place: Home, tmp_path: Path) -> None:
    place.make()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    place.choice.symlink_to(victim)
    with pytest.raises(CannotStart, match="is not what set-up writes"):
        choice.change(place, lambda _: Chosen("text"))
    place.choice.unlink()
    choice.change(place, lambda _: Chosen("text"))
    assert victim.read_text() == "mine"


def test_a_pipe_in_its_place_is_not_waited_for(place: Home) -> None:
    place.make()
    os.mkfifo(place.choice)
    with pytest.raises(CannotStart, match="is not what set-up writes"):
        choice.read(place)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 50_000,
        '{"model": 3}',
        '{"modle": "text"}',
        '{"server": ["x"]}',
        '{"model": "a\\u0000b"}',
        '{"server": "\\ud800"}',
        "\udcff",
    ],
)
def test_what_set_up_did_not_write_is_refused(place: Home, content: str) -> None:
    place.make()
    place.choice.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(CannotStart, match=r"is not what set-up writes .* remove it, and set up again"):
        choice.read(place)


@pytest.mark.parametrize(
    ("says", "name", "why"),  # what set-up kept, MODEL, --model
    [
        ((None, None, None), "starter", "the default"),
        (("text", None, None), "text", "set-up"),
        (("text", "smollm2", None), "smollm2", "MODEL"),
        (("text", "smollm2", "vision"), "vision", "--model"),
        (("text", "", ""), "text", "set-up"),
    ],
)
def test_who_has_a_say_in_the_model(
    place: Home, says: tuple[str | None, str | None, str | None], name: str, why: str
) -> None:
    chosen, variable, wish = says
    choice.change(place, lambda _: Chosen(model=chosen))
    environment = {} if variable is None else {"MODEL": variable}
    meant = intended(environment, place, wish=wish)
    assert meant.model is CATALOGUE[name]
    assert meant.model_from == why
    assert meant.weights == place.models / CATALOGUE[name].weights.file
    assert (meant.projector is not None) == (name == "vision")
    assert meant.has_pinned_projector == (name == "vision")
    assert (meant.binary, meant.binary_from) == (None, "the wheel")


def test_a_projector_of_ones_own_and_a_model_of_ones_own(place: Home, tmp_path: Path) -> None:
    meant = intended({"MMPROJ": "/p/mine.gguf"}, place, wish="vision")
    assert meant.projector == Path("/p/mine.gguf")
    assert not meant.has_pinned_projector
    meant = intended({}, place, wish="./mine.gguf")
    assert (meant.model, meant.weights, meant.projector) == (None, Path.cwd() / "mine.gguf", None)
    with pytest.raises(CannotStart, match="no model is named 'nix': the names are starter, smollm2, text, vision"):
        intended({}, place, wish="nix")


def test_the_chosen_server_is_used_unless_another_is_named(place: Home, server: Path, tmp_path: Path) -> None:
    choice.change(place, lambda _: Chosen("text", "rocm", server, "/opt/rocm"))
    meant = intended({}, place)
    assert (meant.binary, meant.binary_from) == (server, "set-up")
    assert (meant.backend, meant.library_path) == ("rocm", "/opt/rocm")
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    meant = intended({"LLAMA_SERVER": str(other)}, place)
    assert (meant.binary, meant.binary_from, meant.backend, meant.library_path) == (other, "LLAMA_SERVER", None, None)
    server.unlink()
    with pytest.raises(CannotStart, match=r"the llama-server that set-up chose is gone .*setup(\.sh)? again"):
        intended({}, place)


@pytest.mark.parametrize(("backend", "device"), [("cpu", "none"), ("cuda", None), ("metal", None)])
def test_a_server_is_planned_from_it(place: Home, server: Path, backend: str, device: str | None) -> None:
    choice.change(place, lambda _: Chosen("vision", backend, server))
    environment = {"JEV_HOME": str(place.cache.parent)}

    def plan(**more: str) -> InferenceServer:
        return InferenceServer.plan(
            environment | more,
            place,
            wish=None,
            mmproj=None,
            port=free_port(),
            port_option="--port",
            to_terminal=True,
        )

    planned = plan()
    assert planned.options.gpu_device == device
    assert Path(planned.options.model) == place.models / CATALOGUE["vision"].weights.file
    projector = CATALOGUE["vision"].projector
    assert projector is not None
    assert planned.options.mmproj == str(place.models / projector.file)
    assert f"{server}, chosen by set-up" in planned.in_force()
    assert plan(GPU_DEVICE="CUDA1").options.gpu_device == "CUDA1"
