"""Where things live: in the checkout, or in JEV_HOME for an installed package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jev_local.called import checkout
from jev_local.launch.errors import CannotStart
from jev_local.launch.ports import BACKEND_PORT


@dataclass(frozen=True, slots=True)
class Home:
    """`cache` is ours alone (0700): logs, and what llama-server saves of its slots, which is what callers sent.
    `models` holds model files."""

    cache: Path
    models: Path

    def make(self) -> None:
        """Create both folders. CannotStart says which one could not be made."""
        try:
            make_folder(self.cache)
            self.cache.chmod(0o700)
            make_folder(self.models)
        except OSError as error:
            raise CannotStart(
                f"cannot make {error.filename}: {error.strerror}; set JEV_HOME to a folder you own"
            ) from error

    def log(self, port: int) -> Path:
        """The log of the inference server on `port`."""
        return self.cache / ("llama-server.log" if port == BACKEND_PORT else f"llama-server-{port}.log")

    @property
    def choice(self) -> Path:
        """What set-up chose."""
        return self.cache / "chosen.json"

    @property
    def runtimes(self) -> Path:
        """Builds of llama-server that set-up fetched, a folder each."""
        return self.cache / "llama.cpp"

    @property
    def fetch_log(self) -> Path:
        """Why the last model that could not be fetched could not."""
        return self.cache / "fetch.log"

    def slot_path(self, environment: Mapping[str, str] = os.environ) -> Path:
        """SLOT_CACHE_DIR or ours, whether it is there or not: the API has to know it too, and makes nothing."""
        named = environment.get("SLOT_CACHE_DIR")
        return absolute(named, setting="SLOT_CACHE_DIR") if named else self.cache / "slots"

    def slot_dir(self, environment: Mapping[str, str] = os.environ) -> Path:
        """The same folder, made and private. llama-server follows symbolic links in it and restores whatever is
        there, so nobody else may be able to write to it."""
        named, folder = environment.get("SLOT_CACHE_DIR"), self.slot_path(environment)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_mode & 0o077:
                # Ours, or new: close it. A folder with something in it may be shared on purpose, or be /tmp.
                if named and any(folder.iterdir()):
                    raise CannotStart(
                        f"SLOT_CACHE_DIR {folder} is open to other users: chmod 700 it, or name another", code=2
                    )
                folder.chmod(0o700)
        except OSError as error:
            raise CannotStart(f"cannot use SLOT_CACHE_DIR {folder}: {error.strerror}", code=2) from error
        return folder


def home(environment: Mapping[str, str] = os.environ) -> Home:
    """JEV_HOME where it is set, else the checkout this code runs from, else ~/.cache/jev-local."""
    named = environment.get("JEV_HOME")
    found = checkout()
    if not named and found is not None:
        return Home(cache=found / ".cache", models=found / "models")
    root = absolute(named or "~/.cache/jev-local", setting="JEV_HOME")
    return Home(cache=root / "cache", models=root / "models")


def absolute(named: str, *, setting: str) -> Path:
    """The path that `named`, the value of `setting`, means here. CannotStart for a ~ that leads nowhere."""
    try:
        return Path(named).expanduser().absolute()
    except RuntimeError as error:
        raise CannotStart(f"{setting} {named}: this user has no home folder; write the path out", code=2) from error


def make_folder(folder: Path) -> None:
    """With all above it, which others may read and nobody else may write to, whatever the umask. OSError."""
    for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        missing.mkdir(mode=0o755, exist_ok=True)
