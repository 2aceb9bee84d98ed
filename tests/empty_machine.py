"""What somebody has who begins: a clone, an environment with nothing in it, and no setting of ours."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LEFT_OUT = (".git", ".venv", ".cache", "models", "results", "__pycache__", ".*_cache", ".hypothesis")

SETTINGS = (
    *("MODEL", "MMPROJ", "CTX_SIZE", "PARALLEL", "CHAT_CTX_SIZE", "CHAT_SLOTS", "BATCH_SIZE", "THREADS"),
    *("GPU_LAYERS", "GPU_DEVICE", "SLOT_CACHE_DIR", "ROCM_LIBRARY_DIR", "XDG_CACHE_HOME"),
)
PREFIXES = ("JEV_", "LLAMA_", "VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "PYTHONSAFEPATH")


def copy_checkout(place: Path) -> None:
    """What a clone would hold, with the changes that are not committed: a file that git does not know is not in it, so
    it is missed here and not by the first user. Without git, everything that set-up and runs do not make."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(*LEFT_OUT))
        return
    # The folder may belong to another user, as it does in a container.
    listing = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    tracked = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.split("\0"):
        if (ROOT / name).is_file():  # not the empty one at the end, and not one that is deleted here
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)


def environment(**more: str) -> dict[str, str]:
    """This process's, less everything that would change what is tested; `more` on top."""
    inherited = {
        name: value for name, value in os.environ.items() if name not in SETTINGS and not name.startswith(PREFIXES)
    }
    return inherited | more


def command(
    *words: str | Path, cwd: Path, settings: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run to its end, in the environment of somebody who has set nothing but `settings`."""
    return subprocess.run(
        words,
        cwd=cwd,
        env=environment(**(settings or {})),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def required(*words: str | Path, cwd: Path, settings: Mapping[str, str] | None = None) -> str:
    """The same, which has to end with exit code 0: what it printed."""
    done = command(*words, cwd=cwd, settings=settings)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}"
    return done.stdout
