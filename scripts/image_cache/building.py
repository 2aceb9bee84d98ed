"""The straight line from a source to a finished llama-server; and complaints, as one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from image_cache import plugins, products, toolchain
from image_cache.compiling import Build
from image_cache.plugins import Plugin
from image_cache.sources import Shelf, Source
from jev_local.launch.errors import CannotStart
from jev_local.launch.image_build import library_path
from jev_local.launch.progress import say
from jev_local.launch.signals import Interruptions
from patch_vision_cache import Patch, Refused, pins, the_patch


def told(name: str, work: Callable[[], int]) -> int:
    """The exit code of `work`; or 130 after an interruption, or 1 or 2 after one line of the program `name` that says
    what went wrong."""
    try:
        with Interruptions():
            return work()
    except KeyboardInterrupt:
        print("Interrupted; the next run goes on from here", file=sys.stderr)
        return 130
    except CannotStart as failure:
        print(f"{name}: {failure.message}", file=sys.stderr)
        return failure.code
    except Refused as refusal:
        print(f"{name}: {refusal}", file=sys.stderr)
    except OSError as error:
        print(f"{name}: {error}", file=sys.stderr)
    return 1


def build(folder: Path, *, jobs: int, backend: str, source: Path | None) -> Path:
    """The finished llama-server in `folder`."""
    tools = toolchain.find()
    with alone(folder):
        return _build(folder, tools, jobs, backend, source and source.expanduser().absolute())


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Only one process at a time changes `folder`; the second one is told so."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(folder / "build.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise CannotStart(f"another build is at work in {folder}: wait for it, or stop it") from error
    try:
        yield
    finally:
        lock.release()


def _build(folder: Path, tools: toolchain.Toolchain, jobs: int, backend: str, named: Path | None) -> Path:
    if backend == "rocm":
        library_path(os.environ)  # a folder that is none is told before minutes of compiling, not after
    known, patch = pins(), the_patch()
    shelf = Shelf(folder, known)
    source = shelf.prepare(named, patch)
    plugin = plugins.official(known["rocm_runtime"], folder) if backend == "rocm" else None
    patch.apply(shelf.tree)
    work = Build(shelf.tree, folder / f"build-{backend}", backend, tools, source.build)
    work.configure()
    work.compile(jobs)
    # With a GPU plugin the CPU part is a plugin as well, which nothing names as needed.
    files = products.closure(work.bin, [products.SERVER, *(["libggml-cpu.so"] if plugin else [])])
    if plugin is not None:
        products.require_fitting(plugin.path, work.bin, plugin.neighbours)
        files[plugin.path.name] = plugin.path
    products.publish(files, folder, record=record(work, source, patch, plugin))
    server = folder / "bin" / products.SERVER
    say(f"{server} is ready; {folder / products.RECORD} says what it was made from")
    if plugin is not None:
        plugins.say_whether_seen(server)
    return server


def record(work: Build, source: Source, patch: Patch, plugin: Plugin | None) -> dict[str, Any]:
    """What a build was made from and with. `publish` adds what came of it."""
    return {
        "backend": work.backend,
        "source": {
            **asdict(source),
            "patched": {patch.file: patch.after, patch.header: patch.header_digest},
            "rocm_runtime": plugin and plugin.sha256,
        },
        "build": {"tools": dict(work.tools.versions), "options": work.options},
    }
