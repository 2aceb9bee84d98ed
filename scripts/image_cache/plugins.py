"""The official ROCm plugin, out of the release of the same llama.cpp: nothing here compiles GPU code."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from image_cache import archives, downloads
from jev_local.backend.devices import has_gpu, with_libraries
from jev_local.launch import unpacked
from jev_local.launch.home import home
from jev_local.launch.image_build import library_path
from jev_local.launch.progress import say
from jev_local.launch.runtimes import candidates


@dataclass(frozen=True, slots=True)
class Plugin:
    """`neighbours` are the names of all files in its archive, `sha256` the digest of that."""

    path: Path
    neighbours: tuple[str, ...]
    sha256: str


def official(pinned: Mapping[str, str], folder: Path) -> Plugin:
    """Out of what set-up has unpacked of the same archive. Else taken out of the archive once, and found again
    afterwards: some hundred megabytes are neither fetched nor unpacked twice."""
    return _of_set_up(pinned) or _of_the_release(pinned, folder)


def _of_set_up(pinned: Mapping[str, str]) -> Plugin | None:
    """None unless the record there says that it all came from this very archive."""
    for runtime in candidates("Linux", "x86_64", "rocm"):
        folder = home().runtimes / runtime.name
        path = folder / pinned["library"]
        same = [archive.sha256 for archive in runtime.archives] == [pinned["sha256"]]
        if same and unpacked.is_unpacked(folder, runtime.archives) and path.is_file():
            say(f"Using {path.name} of {folder}, which set-up fetched")
            names = sorted(one.name for one in folder.iterdir() if one.name != unpacked.RECORD)
            return Plugin(path, tuple(names), pinned["sha256"])
    return None


def _of_the_release(pinned: Mapping[str, str], folder: Path) -> Plugin:
    place = folder / f"rocm-{pinned['sha256'][:12]}"
    path, listing = place / pinned["library"], place / "archive.json"
    if not place.is_dir():
        downloaded = folder / "downloads"
        archive = downloads.fetched(
            pinned,
            downloaded,
            what="the ROCm plugin of llama.cpp",
            otherwise=f"put {pinned['url'].rpartition('/')[2]} into {downloaded} (--backend cpu builds without it)",
        )
        fresh = place.with_name(place.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        say(f"Taking {path.name} out of {archive.name}")
        names = archives.copy_member(archive, path.name, fresh / path.name)
        (fresh / path.name).chmod(0o755)
        (fresh / listing.name).write_text(json.dumps(names))
        os.replace(fresh, place)
    return Plugin(path, tuple(json.loads(listing.read_text())), pinned["sha256"])


def say_whether_seen(server: Path) -> None:
    """A plugin whose libraries are missing is passed over in silence, and the GPU with it. They are looked for as a
    start does it."""
    if not has_gpu(server, with_libraries(os.environ, library_path(os.environ))):
        say(
            "It sees no GPU here. Where there is one: name the folder of the ROCm libraries with LD_LIBRARY_PATH, and "
            f"ask {server} --list-devices again"
        )
