"""Out of a build tree, the few files that make a program; and a record of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from image_cache.downloads import sha256
from jev_local.launch.errors import CannotStart

SERVER = "llama-server"
RECORD = "jev-build.json"
NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
SONAME = re.compile(r"\(SONAME\).*\[(.+)\]")
SECONDS = 30


def dynamic(path: Path) -> str:
    """The dynamic section of an ELF file, as readelf prints it."""
    command = [os.environ.get("READELF") or "readelf", "--wide", "--dynamic", str(path)]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if asked.returncode != 0:
        raise CannotStart(f"{path} cannot be read as a program or library: {asked.stderr.strip()}")
    return asked.stdout


def closure(folder: Path, starts: Iterable[str]) -> dict[str, Path]:
    """By the name that it is loaded under, every file of `folder` that the `starts` need, they themselves included.
    Libraries of the system stay where they are."""
    found: dict[str, Path] = {}
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = (folder / name).resolve()
        waiting += [needed for needed in NEEDED.findall(dynamic(folder / name)) if (folder / needed).exists()]
    return found


def require_fitting(plugin: Path, built: Path, versions: Iterable[str]) -> None:
    """CannotStart unless the official plugin loads the ggml that was built: the same names, and, where the archive
    of the plugin tells its own ggml's version, that version. `versions` are the names of the files in there."""
    for needed in NEEDED.findall(dynamic(plugin)):
        if not needed.startswith("libggml"):
            continue
        library = built / needed
        if not library.exists() or needed not in SONAME.findall(dynamic(library)):
            raise CannotStart(f"{plugin.name} needs {needed}, which this source does not build: use b11042 itself")
        theirs = {name for name in versions if re.fullmatch(re.escape(needed) + r"\.\d+\.\d+", name)}
        if theirs and library.resolve().name not in theirs:
            raise CannotStart(
                f"{plugin.name} goes with {', '.join(sorted(theirs))}, and this source builds "
                f"{library.resolve().name}: use b11042 itself"
            )


def publish(files: Mapping[str, Path], folder: Path, *, record: Mapping[str, Any]) -> None:
    """`bin` with these files, and the record beside it. An interruption leaves the former build, or, for the blink of
    two renames, no record: which counts as no build."""
    fresh, target, former = folder / "bin.new", folder / "bin", folder / "bin.old"
    for leftover in (fresh, former):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir()
    for name, path in files.items():
        shutil.copy2(path, fresh / name)
    version = first_words(fresh / SERVER)
    hashes = {f"bin/{name}": sha256(fresh / name) for name in sorted(files)}
    (folder / RECORD).unlink(missing_ok=True)
    if target.exists():
        os.replace(target, former)  # a server that runs from it keeps its files
    os.replace(fresh, target)
    shutil.rmtree(former, ignore_errors=True)
    said = {**record, "build": {**record["build"], "version": version, "finished": now()}, "files": hashes}
    draft = folder / (RECORD + ".new")
    draft.write_text(json.dumps(said, indent=2) + "\n")
    os.replace(draft, folder / RECORD)


def first_words(server: Path) -> str:
    """What the server says of its version: a program that cannot even do that is not published."""
    try:
        asked = subprocess.run([str(server), "--version"], capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotStart(f"the new {SERVER} does not run: {error}") from error
    said = (asked.stdout + asked.stderr).strip()
    if asked.returncode != 0:
        raise CannotStart(f"the new {SERVER} does not run (exit code {asked.returncode}): {said[-2000:]}")
    found = re.search(r"version: .*", said)
    return found[0] if found else said[:200]


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
