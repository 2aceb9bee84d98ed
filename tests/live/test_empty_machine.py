"""From an empty machine to answers, with the one command the README begins with."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from programs import listens, two_free_ports, up

ROOT = Path(__file__).resolve().parents[2]

LEFT_OUT = (".git", ".venv", ".cache", "models", "results", "__pycache__", ".*_cache")


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


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run to its end, in the environment of somebody who has set nothing."""
    ours = ("VIRTUAL_ENV", "PYTHONPATH", "JEV_HOME", "JEV_API_KEY", "MODEL", "LLAMA_SERVER", "SLOT_CACHE_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=500, check=False)


@pytest.fixture
def ports() -> tuple[int, int]:
    """Of the API and of the inference server."""
    return two_free_ports()


def test_an_empty_machine_gets_answers_from_one_command(
    tmp_path: Path, tiny_model: Path, ports: tuple[int, int]
) -> None:
    """A fresh checkout at a path with spaces, started from elsewhere; again, in seconds; then the other commands."""
    place = tmp_path / "fresh check out"
    copy_checkout(place)
    run = (str(place / "run.sh"), *up(ports, tiny_model)[1:])
    first = command(*run, "--once", cwd=tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "Setting up" in first.stderr
    for question in ("refund", "department", "investigation_readiness"):
        assert question in first.stdout, "the table"
    assert (place / ".cache" / "slots").is_dir()
    assert not listens(ports[0])
    assert not listens(ports[1])

    begun = time.monotonic()
    second = command(*run, "--once", "--no-demo", cwd=tmp_path)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "Setting up" not in second.stderr
    assert time.monotonic() - begun < 15, "nothing to install, nothing to fetch"

    bare = shutil.which("python3") or sys.executable
    for words in (("systemone_client.py", "--help"), ("-m", "tools.benchmark_prompts", "--help")):
        done = command(bare, *words, cwd=place)
        assert done.returncode == 0, done.stderr
        assert "usage:" in done.stdout
    for script in ("run_server.sh", "run_api_server.sh"):
        assert command(str(place / script), "--help", cwd=tmp_path).returncode == 0


def test_the_model_people_get_answers_the_example(starter_model: Path, tmp_path: Path, ports: tuple[int, int]) -> None:
    """`./run.sh --once` as it stands, ports aside: the starter model out of this checkout's own folders."""
    words = ("--once", "--port", str(ports[0]), "--backend-port", str(ports[1]))
    done = command(str(ROOT / "run.sh"), *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert starter_model.name in done.stdout
    assert "a native build is faster" in done.stdout
    assert re.search(r"refund +yes", done.stdout), "a customer who asks for money back"
    assert not listens(ports[0])
    assert not listens(ports[1])
