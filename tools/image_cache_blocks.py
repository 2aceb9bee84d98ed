"""One block of the image-cache benchmark: fresh servers, one first request and some more, and what the log tells."""

from __future__ import annotations

import glob
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from jev_local.backend.embedded import ServerOptions, native_command, server_environment
from jev_local.client import Client
from jev_local.launch.errors import CannotStart
from jev_local.launch.image_build import LIMIT_VARIABLE, ImageBuild
from jev_local.launch.image_lookups import Lookups, count
from jev_local.launch.ports import require_free
from jev_local.launch.process import Child, stop
from jev_local.launch.readiness import Patience, ask
from jev_local.received import Received, ReceivedChoice
from jev_local.wire.headers import STATE_CACHE

HOST = "127.0.0.1"
FURTHER = 5
"""Requests of a block after its first."""

LIMIT = 128
"""MiB of the cache where it is on."""

REPLY_SECONDS = 600.0
LOOK_AGAIN = 0.1
ASK_AGAIN = 0.5
"""Seconds between two requests for the readiness of the API, which tries again itself after a second."""
SETTLED = 0.2
"""Seconds without a new line in the log, which the server writes from a thread of its own."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What a block is measured under. `prefix`: of --image-prefix. `limit`: MiB for the encoder cache."""

    name: str
    prefix: Literal["off", "auto"]
    limit: int


OFF = Condition("off", "off", 0)
ON = Condition("encoder cache", "off", LIMIT)
PREFIX = Condition("prefix sharing", "auto", 0)
BOTH = Condition("prefix sharing + encoder cache", "auto", LIMIT)
ORDER = (OFF, ON, ON, OFF, PREFIX, BOTH)
"""Off on both sides of on: a machine that gets slower meanwhile, or faster, is then in both."""


@dataclass(frozen=True, slots=True)
class Answer:
    choice: str
    probabilities: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: milliseconds from before it was sent until its reply was whole, and what came of it."""

    ms: float
    lookups: Lookups
    state_cache: str
    answers: Mapping[str, Answer]


@dataclass(slots=True)
class Block:
    """`asked` begins with the first request. `load`: average of the last minute when it began."""

    condition: Condition
    load: float
    asked: list[Asked] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return len(self.asked) == 1 + FURTHER


class CannotMeasure(Exception):
    """Figures would be beside the point; the message says why."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is the same in all blocks. `settings` is the environment of the inference server, but for its limit;
    `logs` the beginning of the path of every log."""

    build: ImageBuild
    settings: Mapping[str, str]
    options: ServerOptions
    port: int
    workers: int
    logs: Path

    def log(self, number: int, condition: Condition, who: str) -> Path:
        name = condition.name.replace(" + ", "-").replace(" ", "-")
        return self.logs.with_name(f"{self.logs.name}.{number}-{name}.{who}.log")

    def delete_logs(self) -> None:
        """Of a former run, which may have had more blocks."""
        for log in self.logs.parent.glob(f"{glob.escape(self.logs.name)}.[0-9]-*.log"):
            log.unlink(missing_ok=True)

    def require_free(self) -> None:
        require_free(HOST, self.port, option="--port")
        require_free(HOST, self.options.port, option="--backend-port")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two servers that are ready."""

    url: str
    log: Path


@contextmanager
def servers(setup: Setup, condition: Condition, number: int) -> Iterator[Pair]:
    """Both, with nothing read and nothing saved, and ended whatever happens."""
    setup.require_free()
    logs = [setup.log(number, condition, who) for who in ("server", "api")]
    with tempfile.TemporaryDirectory(prefix="jev-slots-") as slots:
        children: list[Child] = []
        try:
            options = replace(setup.options, slot_dir=slots)
            on_gpu = options.gpu_device != "none"
            environment = server_environment(setup.settings) | {LIMIT_VARIABLE: str(condition.limit)}
            argv = native_command(setup.build.server, options, has_gpu=on_gpu)
            backend = Child("llama-server", argv, log=logs[0], environment=environment)
            children.append(backend)
            backend_url = f"http://{HOST}:{options.port}"
            while ask(f"{backend_url}/health")[0] != 200:
                backend.require_running("it was ready")
                time.sleep(LOOK_AGAIN)
            argv = [sys.executable, "-P", "-m", "jev_local", "serve", "--port", str(setup.port), "--host", HOST]
            argv += ["--backend-url", backend_url, "--slot-cache-dir", slots, "--workers", str(setup.workers)]
            argv += ["--image-prefix", condition.prefix, "--chat-slots", "0"]
            api = Child("the API", argv, log=logs[1], environment=os.environ | {"JEV_API_KEY": ""})
            children.append(api)
            url = f"http://{HOST}:{setup.port}"
            _await_ready(url, api, backend)
            yield Pair(url, logs[0])
        finally:
            stop(reversed(children))


def _await_ready(url: str, api: Child, backend: Child) -> None:
    patience = Patience()
    while True:
        status, body = ask(f"{url}/ready")
        if status == 200:
            return
        api.require_running("it was ready")
        backend.require_running("the API was ready")
        patience = patience.after(status, body)
        if patience.is_over:
            raise CannotStart(f"the API does not become ready: {patience.reason}")
        time.sleep(ASK_AGAIN)


def measure(
    setup: Setup, block: Block, number: int, body: bytes, *, step: Callable[[], None], settled: float = SETTLED
) -> None:
    """Fill `block` as the replies come; `step` is called when the servers are ready, and after each."""
    with servers(setup, block.condition, number) as pair, Client(pair.url, timeout=REPLY_SECONDS) as client:
        step()
        while not block.is_whole:
            begins = settled_size(pair.log, settled)
            received = client.ask(body)
            ends = settled_size(pair.log, settled)
            block.asked.append(asked(received, lookups_between(pair.log, begins, ends)))
            require_lookups(block)
            step()


def require_lookups(block: Block) -> None:
    """CannotMeasure where the cache should have been asked and was not: zeros in a table would look like a result."""
    if block.condition.limit and not block.asked[0].lookups:
        raise CannotMeasure(
            "THE CACHE WAS NEVER ASKED: there is no JEV_IMAGE_CACHE line in the server's log although it was on. This "
            "is not the patched build, or the projector is not LFM2's."
        )
    if not block.condition.limit and block.asked[-1].lookups:
        raise CannotMeasure(f"The cache was asked although its limit was 0: {block.asked[-1].lookups}.")


def settled_size(log: Path, settled: float) -> int:
    """Bytes of the log, once nothing has come for `settled` seconds."""
    size, since = -1, time.monotonic()
    while time.monotonic() - since < settled:
        if (now := log.stat().st_size) != size:
            size, since = now, time.monotonic()
        time.sleep(settled / 10)
    return size


def lookups_between(log: Path, begins: int, ends: int) -> Lookups:
    with log.open("rb") as file:
        file.seek(begins)
        return count(file.read(ends - begins).decode("utf-8", "replace"))


def asked(received: Received, lookups: Lookups) -> Asked:
    answers = {}
    for name, answer in received.answers.items():
        if not isinstance(answer, ReceivedChoice):
            raise CannotMeasure(f"The answer to {name!r} is no choice.")
        answers[name] = Answer(answer.choice, dict(answer.probabilities))
    return Asked(received.seconds * 1000, lookups, received.headers.get(STATE_CACHE.lower(), "none"), answers)


def to_json(block: Block) -> dict[str, object]:
    return {
        "condition": asdict(block.condition),
        "load_average": round(block.load, 2),
        "requests": [
            {
                "ms": round(one.ms, 2),
                "misses": one.lookups.misses,
                "hits": one.lookups.hits,
                "state_cache": one.state_cache,
                "answers": {name: asdict(answer) for name, answer in one.answers.items()},
            }
            for one in block.asked
        ],
    }
