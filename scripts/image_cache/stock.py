"""The same llama-server without the patch, for comparison: same tree, same flags, same compiler."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from image_cache import building, products, toolchain
from image_cache.compiling import Build
from image_cache.sources import Shelf
from jev_local.launch.errors import CannotStart
from jev_local.launch.progress import say
from patch_vision_cache import pins, the_patch


def both(folder: Path, stock: Path, *, jobs: int, source: Path | None) -> list[str]:
    """A CPU build with the patch in `folder` and one without in `stock`. Returns the files that differ.

    The unpatched one is compiled in the tree of the other, with the edits taken back: everything but libmtmd is then
    the same by construction, and the seconds it takes are those of one file. Patching and building once more has to
    give the files of the first time again, or the comparison would be with something else than what is shipped.
    """
    building.build(folder, jobs=jobs, backend="cpu", source=source)
    first = hashes(folder)
    say("The same without the patch")
    stock.mkdir(mode=0o700, parents=True, exist_ok=True)
    with building.alone(folder):
        shelf, patch = Shelf(folder, pins()), the_patch()
        number = record(folder)["source"]["build"]
        work = Build(shelf.tree, folder / "build-cpu", "cpu", toolchain.find(), number)
        try:
            patch.undo(shelf.tree)
            work.compile(jobs)
            files = products.closure(work.bin, [products.SERVER])
            products.publish(files, stock, record={"backend": "cpu", "build": {"options": work.options}})
        finally:
            patch.apply(shelf.tree)
    say("And with it again")
    building.build(folder, jobs=jobs, backend="cpu", source=source)
    if hashes(folder) != first:
        raise CannotStart("building the same twice gave two different programs")
    unpatched = hashes(stock)
    return sorted(name for name in first.keys() | unpatched.keys() if first.get(name) != unpatched.get(name))


def record(folder: Path) -> Any:
    return json.loads((folder / products.RECORD).read_text())


def hashes(folder: Path) -> dict[str, str]:
    found: dict[str, str] = record(folder)["files"]
    return found


def compiled_contexts(folder: Path, test: Path, target: Path) -> Path:
    """native/tests/two_contexts.cpp against the headers and libraries of the build."""
    source, libraries = folder / "source", folder / "bin"
    command = [toolchain.find().cxx, "-std=c++17", "-O1", "-Wall", "-Wextra", str(test), "-o", str(target)]
    command += [f"-I{source / part}" for part in ("include", "ggml/include", "tools/mtmd")]
    command += [
        str(libraries / name) for name in ("libmtmd.so.0", "libllama.so.0", "libggml.so.0", "libggml-base.so.0")
    ]
    command += [f"-Wl,-rpath,{libraries}", f"-Wl,-rpath-link,{libraries}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotStart(f"{test.name} does not compile: {done.stderr.strip()}")
    return target
