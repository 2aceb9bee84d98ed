"""From an empty machine to answers, with the one command the README begins with."""

import re
import shutil
import sys
import time
from pathlib import Path

import pytest

from empty_machine import ROOT, command, copy_checkout, required
from programs import listens, two_free_ports, up


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
        assert "usage:" in required(bare, *words, cwd=place)
    for script in ("run_server.sh", "run_api_server.sh"):
        assert "usage:" in required(place / script, "--help", cwd=tmp_path)


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
