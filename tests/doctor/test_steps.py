"""The one thing to do next, as a table: what was found, what is said, and the command."""

from __future__ import annotations

from dataclasses import replace

import pytest

from doctor_facts import (
    API,
    BACKEND,
    BY_WHEEL,
    CHOSEN,
    COMMANDS,
    DEFAULT,
    IDLE,
    INSTALLED,
    MEMORY,
    NO_API,
    NO_BACKEND,
    NOT_TRIED,
    STORE,
    WELL,
)
from jev_local.doctor.facts import Chosen, Facts, File, Host, Room, Speed
from jev_local.doctor.steps import next_step, port
from jev_local.settings import GIB, MIB

GONE = File("/models/text.gguf", None)
HUB = Host("Hugging Face", "https://hub", True, "answers 200")
NO_HUB = replace(HUB, reachable=False, says="no answer")


def said(speed: Speed) -> Facts:
    return replace(WELL, speed=speed)


def by_wheel(facts: Facts) -> Facts:
    return replace(facts, chosen=BY_WHEEL, backend=replace(BACKEND, build="b0-unknown"))


def not_ready(reason: str, **changes: object) -> Facts:
    return replace(WELL, api=replace(API, state="unavailable", says=reason), speed=NOT_TRIED, **changes)  # type: ignore[arg-type]


def idle(chosen: Chosen, **changes: object) -> Facts:
    return replace(IDLE, chosen=chosen, **changes)  # type: ignore[arg-type]


SLOW = replace(WELL.speed, tokens_per_second=40.0)

CASES: dict[str, tuple[Facts, str, str | None]] = {
    # 1. nonsense first, even where a server answers
    "broken choice": (
        replace(WELL, chosen=None, trouble="chosen.json is broken: remove it"),
        "chosen.json is broken: remove it", None,
    ),
    # 2. a decision was made
    "all well": (WELL, "All is well", "ASK --state 'I was charged twice.'"),
    "elsewhere": (
        replace(WELL, api=replace(API, url="http://10.0.0.5:8080", is_local=False)),
        "All is well", "ASK --url http://10.0.0.5:8080 --state 'I was charged twice.'",
    ),
    "slow wheel": (by_wheel(said(SLOW)), "a build for this machine is faster", "SETUP --model text"),
    "slow wheel, default model": (
        replace(by_wheel(said(SLOW)), chosen=DEFAULT), "a build for this machine is faster", "SETUP --model text",
    ),
    "slow wheel, own file": (
        replace(by_wheel(said(SLOW)), chosen=replace(BY_WHEEL, model=None, weights=File("/my models/a.gguf", 5))),
        "faster", "SETUP --model '/my models/a.gguf'",
    ),
    "quick wheel": (by_wheel(WELL), "All is well", "ASK --state 'I was charged twice.'"),
    "slow build of one's own": (said(SLOW), "All is well", "ASK --state 'I was charged twice.'"),
    "slow wheel elsewhere": (
        replace(by_wheel(said(SLOW)), api=replace(API, is_local=False)), "All is well",
        "ASK --state 'I was charged twice.'",
    ),
    "speed not told": (by_wheel(said(replace(SLOW, tokens_per_second=None))), "All is well",
                       "ASK --state 'I was charged twice.'"),
    # 3. it refused, or took too long
    "wrong key": (said(Speed("wrong key", "401: no")), "Set the server's key (401: no)", "JEV_API_KEY=... ASK doctor"),
    "busy": (said(Speed("busy", "529: full")), "wait, and look again", "ASK doctor"),
    "busy, other addresses": (
        replace(said(Speed("busy", "")), api=replace(API, url="http://h:1"), backend=replace(BACKEND, url="http://h:2")),
        "wait", "ASK doctor --url http://h:1 --backend-url http://h:2",
    ),
    "too slow": (said(Speed("too slow", "")), "give it more time", "ASK doctor --timeout 600"),
    "too slow with the wheel": (by_wheel(said(Speed("too slow", ""))), "slow", "SETUP --model text"),
    "refused": (said(Speed("refused", "400: too long")), "refused a plain question: 400: too long", None),
    "bad answer": (said(Speed("bad answer", "No answer.")), "No answer. Look into its log", "UP"),
    "went away": (said(Speed("unreachable", "Gone.")), "Gone. Look into its log", "UP"),
    # 4. somebody else
    "another program": (
        replace(IDLE, api=replace(NO_API, state="foreign")), "Another program listens at http://127.0.0.1:8080",
        "UP --port 8081",
    ),
    "another program elsewhere": (
        replace(IDLE, api=replace(NO_API, url="http://127.0.0.1:9000/v1", state="foreign")), "correct --url", None,
    ),
    "it hangs": (replace(IDLE, api=replace(NO_API, state="hung")), "does not answer: stop it", "UP"),
    # 5. not ready
    "starting": (replace(WELL, api=replace(API, state="starting"), speed=NOT_TRIED), "being loaded", "ASK doctor"),
    "loading": (not_ready("loading", backend=replace(BACKEND, state="loading")), "being loaded", "ASK doctor"),
    "no inference server": (not_ready("not reachable", backend=NO_BACKEND), "its inference server does not", "BACKEND"),
    "another reason": (not_ready("Another API serves it."), "Another API serves it.", None),
    "another reason elsewhere": (
        replace(not_ready("gone", backend=NO_BACKEND),
                api=replace(API, state="unavailable", says="gone", is_local=False)), "not ready: gone", None,
    ),
    # 6. no API
    "down elsewhere": (
        replace(IDLE, api=replace(NO_API, url="http://10.0.0.5:8080", is_local=False)), "start the server there", None,
    ),
    "API down": (replace(IDLE, backend=BACKEND), "no API: start that", "SERVE"),
    "API down, other ports": (
        replace(IDLE, backend=replace(BACKEND, url="http://127.0.0.1:9097"),
                api=replace(NO_API, url="http://127.0.0.1:9080")),
        "start that", "SERVE --port 9080 --backend-url http://127.0.0.1:9097",
    ),
    "API down, loading": (replace(IDLE, backend=replace(BACKEND, state="loading")), "which waits for it", "SERVE"),
    "backend hangs": (replace(IDLE, backend=replace(NO_BACKEND, state="hung")), "does not answer: stop it", "UP"),
    "backend is another program": (
        replace(IDLE, backend=replace(NO_BACKEND, state="foreign")), "use another port", "UP --backend-port 8098",
    ),
    # 7. nothing runs
    "nothing runs": (IDLE, "All that is needed is here", "UP"),
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
        idle(replace(CHOSEN, model="vision", projector=File("/models/mmproj.gguf", None)), hosts=(HUB,)),
        "/models/mmproj.gguf is not here yet", "SETUP --model vision --model-only",
    ),
    "no network": (
        idle(replace(CHOSEN, weights=GONE), hosts=(NO_HUB,)), "Hugging Face cannot be reached",
        "UP --model /path/to/model.gguf",
    ),
    "no network, and another source": (
        idle(replace(DEFAULT, weights=GONE, in_index=True), hosts=(NO_HUB,)), "The package index has it too", "UP",
    ),
    "own file is not there": (
        idle(replace(CHOSEN, model=None, model_from="MODEL", weights=GONE)), "There is no file /models/text.gguf",
        "UP --model /path/to/model.gguf",
    ),
    "damaged": (
        idle(CHOSEN, memory=replace(MEMORY, trouble="it is incomplete")), "of no use: it is incomplete",
        "SETUP --model text --model-only",
    ),
    "too large": (
        idle(CHOSEN, memory=replace(MEMORY, verdict="too large", context_that_fits=3072)),
        "It does not fit into the memory of this machine: take a smaller context", "CTX_SIZE=3072 UP",
    ),
    "far too large": (
        idle(CHOSEN, memory=replace(MEMORY, verdict="too large")), "take a smaller model", "UP --model smollm2",
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


def test_a_decision_can_be_made_only_where_one_was_and_nothing_is_broken() -> None:
    assert WELL.can_decide
    assert not IDLE.can_decide
    assert not replace(WELL, trouble="broken").can_decide
    assert not said(Speed("busy", "")).can_decide


@pytest.mark.parametrize(
    ("url", "number"),
    [
        ("http://127.0.0.1:8080", 8080),
        ("http://h/v1", 80),
        ("https://h", 443),
        ("http://[::1]:81/x", 81),
        ("http://[::1]", 80),
    ],
)
def test_ports_of_urls(url: str, number: int) -> None:
    assert port(url) == number
