"""Requests about states of a wanted size, and what the headers say of how they were answered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import httpx

from jev_local.backend.embedded import ServerOptions, server_environment
from jev_local.launch.process import Child, stop
from programs import free_port
from servers import await_ready, slot_dirs

EXAMPLE: dict[str, Any] = json.loads(resources.files("jev_local.data").joinpath("systemone.json").read_bytes())
QUESTIONS: dict[str, Any] = EXAMPLE["questions"]
KEY = {"authorization": "Bearer local-dev"}


def state(about: str, *, lines: int) -> str:
    """The example's state with `lines` of history, each about 20 tokens on SmolLM2 and 75 on bytes. `about` goes first,
    so that two of them part at once."""
    text = EXAMPLE["state"] if isinstance(EXAMPLE["state"], str) else json.dumps(EXAMPLE["state"])
    history = "\n".join(
        f"Day {i}: the customer called about parcel {i * 37} and was told to wait." for i in range(lines)
    )
    return f"{about}\n{text}\n{history}"


def post(url: str, state: str, questions: Mapping[str, Any] = QUESTIONS, **options: Any) -> httpx.Response:
    """POST /v1/systemone, with a minute's patience for a busy machine and more for a slow model."""
    body = {"state": state, "questions": dict(questions)}
    return httpx.post(f"{url}/v1/systemone", json=body, headers=KEY, trust_env=False, timeout=300, **options)


def told(reply: httpx.Response) -> dict[str, str]:
    """The diagnostic headers of a 200, without their family name: `told(reply)["strategy"]`."""
    assert reply.status_code == 200, reply.text
    family = "x-jev-local-"
    return {name[len(family) :]: value for name, value in reply.headers.items() if name.startswith(family)}


def probabilities(reply: httpx.Response) -> dict[tuple[str, str], float]:
    """(question, option) -> probability, of every answer."""
    found: dict[tuple[str, str], float] = {}
    for id_, answer in reply.json()["answers"].items():
        if "noul" in answer:
            found[id_, "yes"] = answer["noul"]
        else:
            found |= {(id_, option): p for option, p in answer["probabilities"].items()}
    return found


def furthest(one: httpx.Response, other: httpx.Response) -> float:
    """The largest difference of any probability that both replies give."""
    a, b = probabilities(one), probabilities(other)
    return max(abs(a[key] - b[key]) for key in a.keys() & b.keys())


FEW: dict[str, Any] = {
    "mood": {"type": "choice", "instructions": "Mood?", "criteria": {"angry": None, "happy": None, "tired": None}},
    "thing": {"type": "choice", "instructions": "What?", "criteria": {"lamp": None, "book": None, "coat": None}},
}
"""Short, and with answers that differ from one state to another, also on random weights."""


def cache(url: str, method: str = "GET", **headers: str) -> Any:
    """What /v1/cache says."""
    reply = httpx.request(method, f"{url}/v1/cache", headers=KEY | headers, trust_env=False, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


def same_way(one: httpx.Response, other: httpx.Response) -> bool:
    """Whether both were answered from saved states of one kind: those that are restored before every question may go
    on to where the questions part, and which way is fastest is measured at each start."""
    return (told(one)["strategy"] == "restore") == (told(other)["strategy"] == "restore")


def snapshots(folder: Path) -> set[str]:
    """Names of the saved states in `folder`, the probe's left out."""
    return {path.name for path in folder.glob("prefix-*.slot")}


@contextmanager
def watched(folder: Path) -> Iterator[set[str]]:
    """Every saved state that is seen in `folder` meanwhile."""
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.002):
            seen.update(snapshots(folder))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def refusal(backend_url: str, folder: Path, *options: str) -> str:
    """What an API says on standard error that ends with code 2 instead of serving."""
    argv = [sys.executable, "-m", "jev_local", "serve", "--backend-url", backend_url, "--port", str(free_port())]
    argv += ["--slot-cache-dir", str(slot_dirs.get(backend_url, folder / "slots")), *options]
    ended = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, cwd=folder, check=False
    )
    assert ended.returncode == 2, ended.stderr
    return ended.stderr


ALTERED = """
import json, resource, signal, sys
import xllamacpp
from jev_local.backend.child import parameters
from jev_local.backend.embedded import ServerOptions

options, altered, file_bytes = map(json.loads, sys.argv[1:])
if file_bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))  # Python ignores SIGXFSZ
params = parameters(ServerOptions(**options))
for name, value in altered.items():
    setattr(params, name, value)
server = xllamacpp.Server(params)
while True:
    signal.pause()
"""


@contextmanager
def altered_server(
    model: Path,
    folder: Path,
    *,
    port: int | None = None,
    altered: Mapping[str, Any] = {},
    file_bytes: int = 0,
    **options: int,
) -> Iterator[tuple[str, Child]]:
    """Like `conftest.llama_server`, with parameters `altered` that the product never sets, and with no file longer
    than `file_bytes`: for a program, a full disk looks like that."""
    slots = folder / "slots"
    slots.mkdir(mode=0o700, parents=True, exist_ok=True)
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    slot_dirs[url] = slots
    given = ServerOptions(model=str(model), port=port, slot_dir=str(slots), **options)  # type: ignore[arg-type]
    words = [json.dumps(value) for value in (asdict(given), dict(altered), file_bytes)]
    child = Child(
        "llama-server",
        [sys.executable, "-P", "-c", ALTERED, *words],
        log=folder / "llama-server.log",
        environment=server_environment(os.environ),
    )
    try:
        await_ready(f"{url}/health", child)
        yield url, child
    finally:
        stop([child])
