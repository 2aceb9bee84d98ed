"""Commands that are suggested, all of them: the real parsers take them, and the ports in them are to be had."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import get_args, get_type_hints

import pytest

from doctor_facts import (
    ANSWERED,
    API,
    BACKEND,
    BY_WHEEL,
    CHOSEN,
    DEFAULT,
    FOLDER,
    IDLE,
    INSTALLED,
    MEMORY,
    NOT_TRIED,
    STORE,
    WELL,
)
from jev_local import __main__ as launcher
from jev_local import cli_arguments
from jev_local.doctor.calls import LARGEST_PORT, Calls, Commands, port
from jev_local.doctor.facts import Api, Backend, Facts, File, Host, Speed, Step
from jev_local.doctor.steps import next_step
from jev_local.launch.arguments import add_api_options, parser
from jev_local.settings import DEFAULT_API_URL, DEFAULT_BACKEND_URL, GIB
from jev_local.wire.hosts import is_loopback

COMMANDS = Commands(
    setup="jev-local setup",
    up="jev-local up",
    backend="jev-local backend",
    serve="jev-local serve",
    ask="systemone",
    install="pip install 'xllamacpp>=1'",
)

API_URLS = (
    DEFAULT_API_URL,
    "http://127.0.0.1:9000",
    "http://127.0.0.1:8096",
    DEFAULT_BACKEND_URL,
    f"http://localhost:{LARGEST_PORT}",
    "http://[::1]:8080",
    "http://10.0.0.5:8080",
)
BACKEND_URLS = (DEFAULT_BACKEND_URL, "http://127.0.0.1:9097", "http://127.0.0.1:8081", "http://10.0.0.5:8097")
API_STATES = [state for state in get_args(get_type_hints(Api)["state"]) if state != "ready"]
BACKEND_STATES = get_args(get_type_hints(Backend)["state"])
SPEEDS = [state for state in get_args(get_type_hints(Speed)["state"]) if state != "not tried"]
SAYS = ("", "The inference server is not reachable.", "It is being tried out.", "Another API serves it.")

HUB = Host("Hugging Face", "https://hub", False, "no answer")
RELEASES = Host("llama.cpp releases", "https://releases", False, "no answer")
GONE = File("/models/text.gguf", None, is_pinned=True)
OWN = File("/my models/a.gguf", 5)

MACHINES: dict[str, Facts] = {
    "well": IDLE,
    "nothing here": replace(IDLE, chosen=replace(DEFAULT, weights=GONE, in_index=True)),
    "no network": replace(IDLE, chosen=replace(CHOSEN, weights=GONE), hosts=(HUB,)),
    "no server": replace(IDLE, chosen=BY_WHEEL, installed=replace(INSTALLED, wheel=None)),
    "no server, no hub": replace(
        IDLE, chosen=replace(DEFAULT, weights=GONE), installed=replace(INSTALLED, wheel=None), hosts=(HUB,)
    ),
    "no server, no network": replace(
        IDLE, chosen=BY_WHEEL, installed=replace(INSTALLED, wheel=None), hosts=(HUB, RELEASES)
    ),
    "broken server": replace(IDLE, chosen=replace(CHOSEN, gpus_trouble="no", server_from="LLAMA_SERVER")),
    "own model damaged": replace(
        IDLE,
        chosen=replace(CHOSEN, model=None, weights=OWN, projector=replace(OWN, path="/eye.gguf")),
        memory=replace(MEMORY, trouble="no", damaged=OWN.path),
    ),
    "own model": replace(IDLE, chosen=replace(BY_WHEEL, model=None, weights=OWN)),
    "too large": replace(IDLE, memory=replace(MEMORY, verdict="too large", context_that_fits=1024)),
    "full disk": replace(IDLE, memory=replace(MEMORY, store=replace(STORE, free=GIB // 2))),
    "not ours": replace(IDLE, installed=replace(INSTALLED, cache_folder=replace(FOLDER, writable=False))),
}


@dataclass(frozen=True)
class Called:
    """What a command line comes to; `backend` is the port where an inference server would be started or looked for."""

    command: str
    api: int | None = None
    backend: int | None = None
    behind: str | None = None
    model: str | None = None


@cache
def read(line: str) -> Called:
    """SystemExit for what a parser does not take."""
    words = shlex.split(line)
    if words[:2] == ["env", "-u"]:
        words = words[3:]
    while "=" in words[0]:
        words = words[1:]
    program, *arguments = words
    if program == "pip":
        return Called("pip")
    if program == "systemone":
        asked = cli_arguments.parser().parse_args(arguments if arguments[0] == "doctor" else ["ask", *arguments])
        return Called(asked.command)
    own, for_api = launcher._split(arguments)
    parsed = parser().parse_args(own)
    if parsed.command == "up":
        options = argparse.ArgumentParser()
        add_api_options(options)
        api = options.parse_args(["--port", str(parsed.port), *for_api])
        return Called("up", api.port, parsed.backend_port, model=parsed.model)
    assert not for_api
    if parsed.command == "serve":
        return Called("serve", parsed.port, None, parsed.backend_url)
    if parsed.command == "backend":
        return Called("backend", None, parsed.port)
    return Called(parsed.command, model=parsed.model)


def require_possible(facts: Facts, step: Step) -> None:
    assert step.command is not None
    called = read(step.command)
    api, backend = facts.api, facts.backend
    listeners = [one for one in (api, backend) if one.state != "down" and is_local(one.url)]
    others = {port(one.url) for one in listeners if one.state in ("foreign", "hung")}
    ours = {port(one.url) for one in listeners} - others
    wanted = {number for number in (called.api, called.backend) if number is not None}
    assert not wanted & others
    assert not wanted & ours or "stop" in step.says
    if called.model is not None and HUB in facts.hosts:
        assert called.model in ("starter", "smollm2")
    assert called.command != "setup" or RELEASES not in facts.hosts
    if called.command == "up":
        assert called.api != called.backend
    elif called.command == "serve":
        assert (called.behind, backend.state in ("up", "loading")) == (backend.url, True)
    elif called.command == "backend":
        assert (called.backend, backend.state) == (port(backend.url), "down")


def is_local(url: str) -> bool:
    return is_loopback(url.split("://")[1].rpartition(":")[0].strip("[]"))


def at(facts: Facts, api: Api, backend: Backend, speed: Speed = NOT_TRIED) -> Facts:
    return replace(facts, api=replace(api, is_local=is_local(api.url)), backend=backend, speed=speed)


def is_possible(api: Api, backend: Backend) -> bool:
    """One program at one address cannot be two."""
    if api.url != backend.url:
        return True
    return api.state == backend.state or (api.state == "foreign" and backend.state in ("up", "loading"))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("api_url", API_URLS)
def test_whoever_listens(machine: str, api_url: str) -> None:
    for api_state, backend_state, backend_url, says in product(API_STATES, BACKEND_STATES, BACKEND_URLS, SAYS):
        api = Api(api_url, api_state, says)
        backend = replace(BACKEND, url=backend_url, state=backend_state)
        if is_possible(api, backend):
            facts = at(MACHINES[machine], api, backend)
            require_possible(facts, next_step(facts, COMMANDS))


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("api_url", API_URLS)
def test_however_a_decision_went(speed: str, api_url: str) -> None:
    for backend_state, backend_url, says, machine in product(BACKEND_STATES, BACKEND_URLS, SAYS, MACHINES.values()):
        api = replace(API, url=api_url)
        backend = replace(BACKEND, url=backend_url, state=backend_state)
        if api_url != backend_url:
            facts = at(machine, api, backend, replace(ANSWERED, state=speed, says=says))
            step = next_step(facts, COMMANDS)
            require_possible(facts, step)
            assert (speed == "answered") == step.says.startswith(("All is well", "It works"))


def test_a_taken_port_is_found_out() -> None:
    facts = replace(IDLE, api=replace(IDLE.api, state="foreign"))
    for line in ("jev-local up", "jev-local serve", "jev-local up --port 9000 -- --port 8080"):
        with pytest.raises(AssertionError):
            require_possible(facts, Step("Start it.", line))
    with pytest.raises(SystemExit):
        require_possible(facts, Step("Start it.", "jev-local up --prot 8081"))
    with pytest.raises(AssertionError):
        require_possible(WELL, Step("Start it.", "jev-local up"))


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


def test_what_a_shell_would_read_is_quoted() -> None:
    facts = at(IDLE, replace(API, url="http://[::1]:9000"), replace(BACKEND, url="http://127.0.0.1:8097/a;b"))
    calls = Calls(COMMANDS, facts)
    assert calls.again() == "systemone doctor --url 'http://[::1]:9000' --backend-url 'http://127.0.0.1:8097/a;b'"
    assert calls.serve() == "jev-local serve --port 9000 --host ::1 --backend-url 'http://127.0.0.1:8097/a;b'"
