"""What the documents tell people to run, run as it stands: against a service with a tiny model, its address put in, or
with free ports put in where it is servers that are started."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import commands
from documents import COMMANDED, ROOT, Block, blocks
from image_files import image_file
from programs import listens, status, two_free_ports, until
from servers import api_server, llama_server

API, BACKEND = "http://127.0.0.1:8080", "http://127.0.0.1:8097"
SLIDE = "sample_pics/slide.png"
SET_BY_PEOPLE = ("JEV_API_KEY", "JEV_HOME", "LLAMA_SERVER", "MODEL", "MMPROJ", "SLOT_CACHE_DIR", "TYPESAFE_BASE_URL")


def of_kind(kind: str) -> list[object]:
    """Blocks that say the same, comments apart, are one."""
    found: dict[str, Block] = {}
    for path in COMMANDED:
        for block in blocks(path):
            if block.kind == kind:
                found.setdefault(re.sub(r"\s+#.*", "", block.code), block)
    return [pytest.param(block, id=block.place) for block in found.values()]


@dataclass(frozen=True, slots=True)
class Served:
    api: str
    backend: str
    slide: Path

    def put_into(self, code: str) -> str:
        code = code.replace(API, self.api).replace(BACKEND, self.backend).replace(SLIDE, str(self.slide))
        address = f"--url {self.api}"
        for word, more in (("explain ", address), ("doctor", f"{address} --backend-url {self.backend}")):
            code = code.replace(f"systemone_client.py {word}", f"systemone_client.py {word} {more} ")
        return re.sub(r"systemone_client\.py --", f"systemone_client.py {address} --", code)


@pytest.fixture(scope="module")
def served(vision_model: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("documents")
    slide = folder / "slide.png"
    slide.write_bytes(image_file(size=(512, 286)))
    model, mmproj = vision_model
    with (
        llama_server(model, folder, mmproj=mmproj, context=16384) as (backend, _),
        api_server(backend, folder, key="local-dev") as (api, _),
    ):
        yield Served(api, backend, slide)


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in SET_BY_PEOPLE} | more


@pytest.mark.parametrize("block", of_kind("run"))
def test_a_block_runs(served: Served, block: Block) -> None:
    code = re.sub(r"^python3 ", f"{sys.executable} ", served.put_into(block.code), flags=re.MULTILINE)
    command = ["bash", "-euc", code] if block.language == "bash" else [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, env=environment()
    )
    assert done.returncode == 0, f"{block.place}: {done.stderr}{done.stdout}"
    if "curl" in code:
        assert '"detail"' not in done.stdout, "an error"
    if "curl -sS -D -" in code:
        assert "HTTP/1.1 200" in done.stdout
        assert "x-jev-local-processed-tokens" in done.stdout.lower()


@pytest.mark.parametrize("block", of_kind("start"))
def test_the_servers_of_a_block_start_and_end(block: Block, tiny_model: Path, tmp_path: Path) -> None:
    """In the order of the block, as if each had a terminal of its own."""
    api, backend = two_free_ports()
    begun = [commands.program(command) for command in commands.simple_commands(block.code)]
    with ExitStack() as stack:
        started = []
        for found in begun:
            assert found is not None, "only servers are started"
            words = with_ports(*found, api=api, backend=backend)
            started.append(stack.enter_context(terminal(words, tmp_path, tiny_model)))
        until(lambda: died(started) or status(f"http://127.0.0.1:{api}/ready") == 200, "readiness")
        if any(name == "jev-local up" for name, _ in filter(None, begun)):
            until(lambda: died(started) or "Ready: http" in started[0].output(), "the example's answer")
        for one in reversed(started):
            one.interrupt()
            assert one.process.wait(10) == 0, one.output()
    assert not listens(api)
    assert not listens(backend)


def with_ports(name: str, words: list[str], *, api: int, backend: int) -> list[str]:
    """The command line with free ports behind its own options, so that these are in force."""
    ports = {
        "jev-local up": ["--port", str(api), "--backend-port", str(backend)],
        "jev-local backend": ["--port", str(backend)],
        "jev-local serve": ["--port", str(api), "--backend-url", f"http://127.0.0.1:{backend}"],
    }
    at = words.index("--") if "--" in words else len(words)
    return [*name.split()[1:], *words[:at], *ports[name], *words[at:]]


@dataclass(frozen=True, slots=True)
class Terminal:
    process: subprocess.Popen[bytes]
    output: Callable[[], str]

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)


@contextmanager
def terminal(words: list[str], folder: Path, model: Path) -> Iterator[Terminal]:
    path = folder / f"{words[0]}.txt"
    with path.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "jev_local", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment(JEV_HOME=str(folder / "home"), MODEL=str(model), CTX_SIZE="16384"),
            start_new_session=True,
        )
    try:
        yield Terminal(process, path.read_text)
    finally:
        process.kill()
        process.wait()


def died(started: list[Terminal]) -> bool:
    for one in started:
        assert one.process.poll() is None, one.output()
    return False


def asked() -> list[object]:
    """Each program of the blocks that are not run, once; set-up with everything that is given to it."""
    found: dict[str, list[str]] = {}
    for path in COMMANDED:
        for block in blocks(path):
            if block.language != "bash" or block.kind not in ("dry", "hardware"):
                continue
            for command in commands.simple_commands(block.code):
                named = commands.program(command) if commands.bare(command) else None
                if named is None or named[0] == "scripts/test":
                    continue
                name, words = named
                if name == "jev-local setup":
                    found[shlex.join([name, *words])] = [*name.split(), *words, "--dry-run"]
                else:
                    found[name] = [*name.split(), "--help"]
    return [pytest.param(words, id=shown) for shown, words in found.items()]


@pytest.mark.parametrize("words", asked())
def test_a_program_answers(words: list[str], tmp_path: Path) -> None:
    """`--help`; and set-up says what it would do, and does nothing."""
    home = tmp_path / "home"
    done = subprocess.run(
        interpreted(words), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        env=environment(JEV_HOME=str(home)),
    )  # fmt: skip
    rocm_elsewhere = "there is no official llama.cpp build" in done.stderr
    assert done.returncode == 0 or rocm_elsewhere, done.stderr
    assert "usage:" in done.stdout if words[-1] == "--help" else not home.exists()


def interpreted(words: list[str]) -> list[str]:
    first, *rest = words
    match first:
        case "jev-local":
            return [sys.executable, "-P", "-m", "jev_local", *rest]
        case "systemone":
            return [sys.executable, "systemone_client.py", *rest]
        case _ if first.endswith(".py"):
            return [sys.executable, first, *rest]
        case _:
            return [sys.executable, "-m", first, *rest]
