"""scripts/test itself, with the programs that it calls replaced by ones that write down how they were called."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a check out"
    (folder / "scripts").mkdir(parents=True)
    (folder / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "test", folder / "scripts")
    (folder / "scripts" / "bootstrap.py").write_text("import sys; print('bootstrap', *sys.argv[1:])\n")
    python = folder / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$*"\ncase "$*" in *mypy*) exit ${MYPY:-0};; esac\n')
    python.chmod(0o755)
    return folder


def run(checkout: Path, *words: str, **environment: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [str(checkout / "scripts" / "test"), *words],
        cwd="/",
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, [re.sub(r"\d+ s$", "N s", line) for line in done.stdout.splitlines()]


def test_every_step_tells_how_long_it_took(checkout: Path) -> None:
    code, lines = run(checkout, "-k", "two words")
    assert code == 0
    assert lines == [
        "bootstrap local,test",
        "scripts/test: set-up took N s",
        "-m ruff check .",
        "scripts/test: lint took N s",
        "-m mypy",
        "scripts/test: types took N s",
        "-m pytest --durations=25 -k two words",
        "scripts/test: tests took N s",
    ]


def test_the_first_failure_ends_it_with_its_exit_code(checkout: Path) -> None:
    code, lines = run(checkout, MYPY="3")
    assert code == 3
    assert lines[-1] == "scripts/test: types took N s"
