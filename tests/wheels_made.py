"""The packages that this checkout makes, built and installed as by somebody who has nothing but pip."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from empty_machine import required

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment that has the wheel, and the commands in it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def jev_local(self) -> Path:
        return self.folder / "bin" / "jev-local"

    @property
    def systemone(self) -> Path:
        return self.folder / "bin" / "systemone"


def build_wheel(source: Path, into: Path) -> Path:
    """The wheel of the folder or archive `source`, by the build tool that it asks for."""
    required(*PIP, "wheel", "--no-deps", "--wheel-dir", into, source, cwd=into.parent)
    (wheel,) = into.glob("*.whl")
    return wheel


def build_archive(source: Path, into: Path) -> Path:
    """The source archive of the folder `source`. pip makes none, so the build tool is asked itself."""
    wanted = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    tool = into / "tool"
    required(*PIP, "install", "--target", tool, *wanted, cwd=into.parent)
    words = (sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", into)
    required(*words, cwd=source, settings={"PYTHONPATH": str(tool)})
    (archive,) = into.glob("*.tar.gz")
    return archive


def install(wheel: Path, extra: str, folder: Path) -> Installed:
    """A new environment in `folder` with the wheel, its `extra` and what these ask for; not even pip besides."""
    required(sys.executable, "-m", "venv", "--without-pip", folder, cwd=wheel.parent)
    installed = Installed(folder)
    pip = (*PIP, "--python", installed.python)
    required(*pip, "install", f"{wheel}[{extra}]", cwd=wheel.parent)
    required(*pip, "check", cwd=wheel.parent)
    return installed
