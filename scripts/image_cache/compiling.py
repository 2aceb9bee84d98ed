"""CMake and Ninja, with what they print condensed to one line that moves."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import watched
from image_cache.toolchain import Toolchain
from jev_local.launch.errors import CannotStart
from jev_local.launch.process import Child, see_through

COMMIT = "jev-image-cache"
"""Where llama-server shows its commit, so that nobody takes this for the official build."""

# RPATH and not its successor RUNPATH: that one comes after LD_LIBRARY_PATH, where GPU libraries are looked for, and
# with them, perhaps, another llama.cpp's libmtmd.
LINKER_FLAGS = "-Wl,--disable-new-dtags"

OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
    "CMAKE_INSTALL_RPATH": "$ORIGIN",
    "CMAKE_EXE_LINKER_FLAGS": LINKER_FLAGS,
    "CMAKE_SHARED_LINKER_FLAGS": LINKER_FLAGS,
    "CMAKE_MODULE_LINKER_FLAGS": LINKER_FLAGS,
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_COMMIT": COMMIT,
}

BACKENDS = {
    # A plugin is loaded at run time, and then the CPU part has to be one too, and may not be tuned to this machine.
    "rocm": {"GGML_BACKEND_DL": "ON", "GGML_NATIVE": "OFF"},
    "cpu": {"GGML_BACKEND_DL": "OFF", "GGML_NATIVE": "ON"},
}

NOT_INHERITED = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")
"""They would change the program without a trace in the record."""

STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)$", re.MULTILINE)
TAIL = 16 * 1024
IN_PIPE = 10.0  # seconds between two lines


@dataclass(frozen=True, slots=True)
class Build:
    """One tree and one backend, compiled in `folder`."""

    tree: Path
    folder: Path
    backend: str
    tools: Toolchain
    number: int | None

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def options(self) -> dict[str, str]:
        """All that is not llama.cpp's default. The number is 0 where the source does not tell: better none than a
        wrong one."""
        return {**OPTIONS, **BACKENDS[self.backend], "LLAMA_BUILD_NUMBER": str(self.number or 0)}

    def configure(self) -> None:
        """Milliseconds when nothing has changed since the last time."""
        stamp = self.folder / "jev-configured.json"
        command = [self.tools.cmake, "-G", "Ninja", "-S", str(self.tree), "-B", str(self.folder)]
        command += [f"-DCMAKE_MAKE_PROGRAM={self.tools.ninja}"]
        command += [f"-DCMAKE_C_COMPILER={self.tools.cc}", f"-DCMAKE_CXX_COMPILER={self.tools.cxx}"]
        command += [f"-D{name}={value}" for name, value in self.options.items()]
        state = json.dumps({"command": command, "versions": dict(self.tools.versions)})
        if stamp.exists() and stamp.read_text() == state:
            return
        if self.folder.exists():  # another compiler in an old cache is a source of riddles
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        self._run("CMake", command, "Configuring")
        stamp.write_text(state)

    def compile(self, jobs: int) -> None:
        """llama-server and the libraries it needs; nothing else of the tree."""
        targets = ["llama-server", *(["ggml-cpu"] if self.backend == "rocm" else [])]
        command = [self.tools.ninja, "-C", str(self.folder), "-j", str(jobs), *targets]
        self._run("Ninja", command, "Compiling")

    def _run(self, name: str, command: list[str], title: str) -> None:
        log = self.folder / f"{name.lower()}.log"
        log.unlink(missing_ok=True)
        child = Child(name, command, log=log, environment=self._environment())
        steps = Steps(title, log)
        try:
            see_through(child, poll=steps.look)
        finally:
            steps.close()
        if child.poll() != 0:
            raise CannotStart(f"{name} {child.ending()}; all it said: {log}{child.last_lines(20)}")

    def _environment(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        # The build asks Git for the commit, and would get that of the checkout around it.
        return kept | {"GIT_CEILING_DIRECTORIES": str(self.tree.parent), "NINJA_STATUS": "[%f/%t] "}


class Steps:
    """How far a log of Ninja has come: on a terminal in place, in a pipe as a line now and then."""

    def __init__(self, title: str, log: Path) -> None:
        self._title, self._log = title, log
        self._started = self._told = time.monotonic()

    def look(self) -> None:
        now = time.monotonic()
        if sys.stderr.isatty() or now - self._told >= IN_PIPE:
            self._told = now
            watched.show(f"  {self._title}, {now - self._started:.0f} s{latest_step(tail(self._log))}")

    def close(self) -> None:
        if sys.stderr.isatty():
            watched.show("")


def tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def latest_step(output: str) -> str:
    """`: 57 of 209, mtmd.cpp` for Ninja's `[57/209] Building CXX object .../mtmd.cpp.o`."""
    steps = STEP.findall(output)
    if not steps:
        return ""
    done, total, what = steps[-1]
    return f": {done} of {total}, {what.rpartition('/')[2].rpartition(' ')[2].removesuffix('.o')}"
