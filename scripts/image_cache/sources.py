"""The llama.cpp tree that is built: a copy of our own, of a source that was checked.

Whatever the source is, it is never written to. A source that has not changed since the last build is not copied again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from image_cache import archives, downloads
from jev_local.launch.errors import CannotStart
from jev_local.launch.progress import say
from patch_vision_cache import Patch, Refused

NEEDED = (
    "CMakeLists.txt",
    "LICENSE",
    "cmake",
    "common",
    "ggml",
    "include",
    "licenses",
    "scripts",
    "src",
    "tools",
    "vendor",
)
"""Of the top of the tree: what llama-server is built from. The rest is three quarters of the bytes."""

NOT_SOURCE = (".git", "build", "node_modules", "dist", "__pycache__")
"""What builds leave in a tree that somebody works in."""

OTHERWISE = (
    "name an unpacked llama.cpp tree or a .tar.gz of one (b11042; b11040 and b11046 have the same image code) with "
    "--source PATH"
)


@dataclass(frozen=True, slots=True)
class Source:
    """What a tree was made from. `sha256` is the digest of the archive, or of all the files of the tree that are
    used; `build` is llama.cpp's number where that can be told."""

    origin: str
    sha256: str
    build: int | None


@dataclass(frozen=True, slots=True)
class Shelf:
    """The part of the build folder that holds sources. `tree` is what gets built."""

    folder: Path
    pins: Any

    @property
    def tree(self) -> Path:
        return self.folder / "source"

    @property
    def stamp(self) -> Path:
        """Written last: an interrupted copy has none."""
        return self.folder / "source.json"

    def prepare(self, named: Path | None, patch: Patch) -> Source:
        """The tree has the files of `named`, or of the official archive, with or without the patch."""
        source = self._find(named)
        ours = {"source": asdict(source), "patch": [patch.after, patch.header_digest]}
        if self._stamped() == ours and self._is_whole(patch):
            return source
        fresh = self.folder / "source.new"
        shutil.rmtree(fresh, ignore_errors=True)
        say(f"Copying what is needed of {source.origin}")
        if named is not None and named.is_dir():
            _copy(named, fresh)
        else:
            archive = named or self._official()
            archives.unpack_tree(archive, fresh, landmark=patch.file, wanted=NEEDED)
        patch.is_applied(fresh)  # or it is refused here
        if self._stamped().get("source") != ours["source"]:
            # Other files may be older than what was compiled from the former ones, which is all that ninja looks at.
            for built in self.folder.glob("build-*"):
                shutil.rmtree(built)
        self.stamp.unlink(missing_ok=True)
        shutil.rmtree(self.tree, ignore_errors=True)
        os.replace(fresh, self.tree)
        self.stamp.write_text(json.dumps(ours))
        return source

    def _find(self, named: Path | None) -> Source:
        official = self.pins["source"]
        if named is None:
            archive = self._official()
            return Source(origin=archive.name, sha256=official["sha256"], build=official["build"])
        if named.is_dir():
            if self.folder.resolve() in (named.resolve(), *named.resolve().parents):
                raise CannotStart(f"--source {named} lies in the folder of the build itself: name another", code=2)
            _require_tree(named)
            known = {digest: int(build) for build, digest in self.pins["ggml_trees"].items()}
            return Source(origin=named.name, sha256=tree_digest(named), build=known.get(tree_digest(named, ("ggml",))))
        if not named.is_file():
            raise CannotStart(f"--source {named}: there is no such file or folder", code=2)
        digest = downloads.sha256(named)
        return Source(named.name, digest, official["build"] if digest == official["sha256"] else None)

    def _official(self) -> Path:
        return downloads.fetched(
            self.pins["source"], self.folder / "downloads", what="the sources of llama.cpp", otherwise=OTHERWISE
        )

    def _is_whole(self, patch: Patch) -> bool:
        """Somebody may have tried something in our copy. Then there will be a new one."""
        try:
            patch.is_applied(self.tree)
        except Refused:
            return False
        return True

    def _stamped(self) -> Any:
        try:
            return json.loads(self.stamp.read_text()) if self.tree.is_dir() else {}
        except (OSError, ValueError):
            return {}


def tree_digest(tree: Path, tops: tuple[str, ...] = NEEDED) -> str:
    """SHA-256 over the names and contents of all files in these parts of the tree."""
    whole = hashlib.sha256()
    for top in tops:
        for path in _files(tree / top):
            whole.update(f"{path.relative_to(tree).as_posix()}\0{downloads.sha256(path)}\n".encode())
    return whole.hexdigest()


def _files(top: Path) -> list[Path]:
    if top.is_file():
        return [top]
    found = []
    for folder, names, files in os.walk(top):
        names[:] = [name for name in names if name not in NOT_SOURCE]
        found += [Path(folder, name) for name in files]
    return sorted(found)


def _copy(tree: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for top in NEEDED:
        if (tree / top).is_dir():
            shutil.copytree(tree / top, target / top, ignore=shutil.ignore_patterns(*NOT_SOURCE))
        else:
            shutil.copy2(tree / top, target / top)


def _require_tree(named: Path) -> None:
    missing = [top for top in NEEDED if not (named / top).exists()]
    if missing:
        raise CannotStart(f"--source {named} is not an unpacked llama.cpp tree: it has no {', '.join(missing)}", code=2)
