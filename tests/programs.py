"""The product's programs as processes of their own, for tests that kill, interrupt and read them."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def two_free_ports() -> tuple[int, int]:
    """Of the API and of the inference server. Two calls of `free_port` can come to the same one."""
    with socket.socket() as api, socket.socket() as backend:
        for probe in (api, backend):
            probe.bind(("127.0.0.1", 0))
        return int(api.getsockname()[1]), int(backend.getsockname()[1])


def until(happens: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Alive and not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def status(url: str) -> int:
    try:
        return httpx.get(url, trust_env=False, timeout=5).status_code
    except httpx.TransportError:
        return 0


def listener_pid(port: int) -> int:
    """The process that listens on `port`, from the kernel's tables."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[1].split(":")[1], 16) == port:
            inodes.add(f"socket:[{fields[9]}]")
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(entry) in inodes:
                return int(entry.parts[2])
        except OSError:
            continue
    raise AssertionError(f"nobody listens on {port}")


class Program:
    """`jev-local ...` in a process group of its own, with all its output in one file."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        self.output = folder / "output.txt"
        inherited = {
            name: value for name, value in os.environ.items() if name not in ("MODEL", "LLAMA_SERVER", "JEV_API_KEY")
        }
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jev_local", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**inherited, "JEV_HOME": str(folder / "home"), **environment},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.output.read_text()

    def await_text(self, words: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)

    def interrupt(self) -> None:
        """Ctrl-C: the terminal sends it to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)


@contextmanager
def running(folder: Path, *words: str, **environment: str) -> Iterator[Program]:
    program = Program(folder, *words, **environment)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.wait()


def up(ports: tuple[int, int], model: Path, *more: str) -> list[str]:
    return ["up", "--port", str(ports[0]), "--backend-port", str(ports[1]), "--model", str(model), *more]
