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
    NO_API,
    NO_BACKEND,
    NOT_TRIED,
    WELL,
)
from jev_local.doctor.facts import Facts, File, Host, ModelFile, Speed
from jev_local.doctor.steps import next_step
from jev_local.settings import GIB

GONE = File("/models/text.gguf", None, is_pinned=True)
TOY = "SmolLM2-135M-Instruct.Q4_1"
STARTER = ModelFile("starter", "starter.gguf", "verified", GIB)
HUB = Host("Hugging Face", "https://hub", True, "answers 200")
NO_HUB = replace(HUB, reachable=False, says="no answer")


def said(speed: Speed) -> Facts:
    return replace(WELL, speed=speed)


def by_wheel(facts: Facts) -> Facts:
    return replace(facts, chosen=BY_WHEEL, backend=replace(BACKEND, build="b0-unknown"))


def not_ready(reason: str, **changes: object) -> Facts:
    return replace(WELL, api=replace(API, state="unavailable", says=reason), speed=NOT_TRIED, **changes)  # type: ignore[arg-type]


def taken(**changes: object) -> Facts:
    """A foreign program has the API's port."""
    return replace(IDLE, api=replace(NO_API, state="foreign"), **changes)  # type: ignore[arg-type]


def with_toy(**changes: object) -> Facts:
    chosen = replace(BY_WHEEL, model="smollm2", model_from="set-up", weights=File(f"/models/{TOY}.gguf", 5))
    facts = replace(WELL, chosen=chosen, api=replace(API, model=TOY), backend=replace(BACKEND, model=TOY))
    return replace(facts, **changes)  # type: ignore[arg-type]


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
        replace(by_wheel(said(SLOW)), chosen=replace(BY_WHEEL, model=None, weights=File("/my models/text.gguf", 5))),
        "faster", "SETUP --model '/my models/text.gguf'",
    ),
    "quick wheel": (by_wheel(WELL), "All is well", "ASK --state 'I was charged twice.'"),
    "slow build of one's own": (said(SLOW), "All is well", "ASK --state 'I was charged twice.'"),
    "slow wheel elsewhere": (
        replace(by_wheel(said(SLOW)), api=replace(API, is_local=False)), "All is well",
        "ASK --state 'I was charged twice.'",
    ),
    "another model than the chosen one": (
        replace(WELL, api=replace(API, model="qwen")), "All is well, with qwen, which is not the model that is chosen",
        "ASK --state 'I was charged twice.'",
    ),
    "slow wheel, another model": (
        replace(by_wheel(said(SLOW)), api=replace(API, model="qwen")), "All is well, with qwen",
        "ASK --state 'I was charged twice.'",
    ),
    "a toy": (with_toy(), "smollm2: a toy", "SETUP --model text"),
    "a toy, no network": (with_toy(hosts=(NO_HUB,)), "smollm2: a toy", "SETUP --model starter"),
    "a toy, no network, the better one here": (
        with_toy(hosts=(NO_HUB,), installed=replace(INSTALLED, models=(replace(STARTER, model="text"),))),
        "smollm2: a toy", "SETUP --model text",
    ),
    "a toy by MODEL": (
        with_toy(chosen=replace(CHOSEN, model="smollm2", model_from="MODEL", weights=File(f"/{TOY}.gguf", 5))),
        "Leave MODEL out", "SETUP --model text",
    ),
    "a toy that is not the chosen one": (with_toy(chosen=CHOSEN), "stop this one, and start that", "UP"),
    "a toy that is not the chosen one, which cannot be had": (
        with_toy(chosen=replace(CHOSEN, weights=GONE), hosts=(NO_HUB,),
                 installed=replace(INSTALLED, models=(replace(STARTER, model="smollm2"),))),
        "mend that, or take starter", "UP --model starter",
    ),
    "a toy elsewhere": (
        with_toy(api=replace(API, model=TOY, is_local=False)), "All is well", "ASK --state 'I was charged twice.'",
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
    "too slow, with an inference server that hangs": (
        replace(by_wheel(said(Speed("too slow", ""))), backend=replace(BACKEND, state="hung")),
        "gives no answer: end it, and start it again", "ASK doctor",
    ),
    "too slow with the wheel": (by_wheel(said(Speed("too slow", ""))), "slow", "SETUP --model text"),
    "refused": (said(Speed("refused", "400: too long")), "refused a plain question: 400: too long", "ASK doctor"),
    "bad answer": (said(Speed("bad answer", "No answer.")), "No answer. Look into its log, stop both", "UP"),
    "bad answer elsewhere": (
        replace(said(Speed("bad answer", "No.")), api=replace(API, is_local=False)), "No. Start it again there",
        "ASK doctor",
    ),
    "went away": (said(Speed("unreachable", "Gone.")), "Gone. Look into its log", "ASK doctor"),
    "died behind the API": (
        replace(said(Speed("not ready", "503: The inference server is not reachable. Is it running?")),
                backend=NO_BACKEND), "its inference server does not: start that", "BACKEND",
    ),
    "died behind the API, at another port": (
        replace(said(Speed("not ready", "503: not reachable")),
                backend=replace(NO_BACKEND, url="http://127.0.0.1:9097")), "start that", "BACKEND --port 9097",
    ),
    "started again behind the API": (
        replace(said(Speed("not ready", "503: not reachable")), backend=replace(BACKEND, state="loading")),
        "being loaded", "ASK doctor",
    ),
    "made ready again": (said(Speed("not ready", "503: being made ready.")), "being made ready): wait", "ASK doctor"),
    "died elsewhere": (
        replace(said(Speed("not ready", "503: not reachable")), api=replace(API, is_local=False), backend=NO_BACKEND),
        "Start it there", "ASK doctor",
    ),
    # 4. somebody else
    "another program": (
        replace(IDLE, api=replace(NO_API, state="foreign")), "Another program listens at http://127.0.0.1:8080",
        "UP --port 8081",
    ),
    "another program, and the inference server": (taken(backend=BACKEND), "Another program", "SERVE --port 8081"),
    "another program, and the inference server elsewhere": (
        taken(backend=replace(BACKEND, url="http://10.0.0.5:8097")), "Another program",
        "SERVE --port 8081 --backend-url http://10.0.0.5:8097",
    ),
    "two other programs": (
        taken(backend=replace(NO_BACKEND, state="foreign")),
        "listens at http://127.0.0.1:8080. What listens at http://127.0.0.1:8097 is no inference server",
        "UP --port 8081 --backend-port 8098",
    ),
    "two other programs side by side": (
        taken(backend=replace(NO_BACKEND, url="http://127.0.0.1:8081", state="hung")), "Stop them",
        "UP --port 8082 --backend-port 8083",
    ),
    "another program, and no model": (
        taken(chosen=replace(CHOSEN, weights=GONE), hosts=(NO_HUB,)), "take starter", "UP --model starter --port 8081",
    ),
    "the inference server in place of the API": (
        replace(taken(backend=BACKEND), api=replace(NO_API, url=BACKEND.url, state="foreign")),
        "is not the API: correct --url", "SERVE --port 8098",
    ),
    "a path too much": (
        replace(IDLE, api=replace(NO_API, url="http://127.0.0.1:9000/v1", state="foreign")), "correct --url",
        "ASK doctor --url http://127.0.0.1:9000",
    ),
    "a path too much at the default": (
        replace(IDLE, api=replace(NO_API, url="http://127.0.0.1:8080/v1", state="foreign")), "correct --url",
        "ASK doctor",
    ),
    "TLS where there is none": (
        replace(IDLE, api=replace(NO_API, url="https://127.0.0.1:9000", state="foreign")), "correct --url",
        "ASK doctor --url http://127.0.0.1:9000",
    ),
    "another program on another machine": (
        replace(IDLE, api=replace(NO_API, url="http://10.0.0.5:8080", state="foreign", is_local=False)),
        "correct --url", "ASK doctor --url http://10.0.0.5:8080",
    ),
    "it hangs": (replace(IDLE, api=replace(NO_API, state="hung")), "does not answer. Stop it", "UP --port 8081"),
    # 5. not ready
    "tried out": (
        replace(WELL, api=replace(API, state="starting", says="It is there, and is being tried out."), speed=NOT_TRIED),
        "is being tried out): wait, and look again", "ASK doctor",
    ),
    "loading": (not_ready("loading", backend=replace(BACKEND, state="loading")), "being loaded", "ASK doctor"),
    "no inference server": (not_ready("not reachable", backend=NO_BACKEND), "its inference server does not", "BACKEND"),
    "an inference server that the API does not find": (
        not_ready("not reachable"), "stop it, and start it in front of this one", "SERVE",
    ),
    "another program where its inference server would be": (
        not_ready("not reachable", backend=replace(NO_BACKEND, state="foreign")), "stop the API",
        "UP --backend-port 8098",
    ),
    "no inference server elsewhere": (
        not_ready("not reachable", backend=replace(NO_BACKEND, url="http://10.0.0.5:8097")), "start one there",
        "ASK doctor --backend-url http://10.0.0.5:8097",
    ),
    "another reason": (not_ready("Another API serves it."), "Another API serves it.", "ASK doctor"),
    "another reason, with an inference server somewhere": (
        not_ready("Another API serves it.", backend=NO_BACKEND), "Another API serves it.", "ASK doctor",
    ),
    "another reason elsewhere": (
        replace(not_ready("gone", backend=NO_BACKEND),
                api=replace(API, state="unavailable", says="gone", is_local=False)), "not ready: gone",
        "ASK doctor",
    ),
    # 6. no API
    "down elsewhere": (
        replace(IDLE, api=replace(NO_API, url="http://10.0.0.5:8080", is_local=False)), "start the server there",
        "ASK doctor --url http://10.0.0.5:8080",
    ),
    "API down": (replace(IDLE, backend=BACKEND), "no API: start that", "SERVE"),
    "API down, other ports": (
        replace(IDLE, backend=replace(BACKEND, url="http://127.0.0.1:9097"),
                api=replace(NO_API, url="http://127.0.0.1:9080")),
        "start that", "SERVE --port 9080 --backend-url http://127.0.0.1:9097",
    ),
    "API down, loading": (
        replace(IDLE, backend=replace(BACKEND, state="loading")), "starts the API after that: wait", "ASK doctor",
    ),
    "backend hangs": (
        replace(IDLE, backend=replace(NO_BACKEND, state="hung")), "does not answer. Stop it", "UP --backend-port 8098",
    ),
    "backend is another program": (
        replace(IDLE, backend=replace(NO_BACKEND, state="foreign")), "start on another port", "UP --backend-port 8098",
    ),
    "no backend elsewhere": (
        replace(IDLE, backend=replace(NO_BACKEND, url="http://10.0.0.5:8097")), "start it there",
        "ASK doctor --backend-url http://10.0.0.5:8097",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_first_thing_that_blocks(case: str) -> None:
    facts, words, command = CASES[case]
    step = next_step(facts, COMMANDS)
    assert words in step.says
    assert step.command == command


def test_a_decision_can_be_made_where_one_was() -> None:
    assert WELL.can_decide
    assert replace(WELL, trouble="broken").can_decide
    assert not IDLE.can_decide
    assert not said(Speed("busy", "")).can_decide
