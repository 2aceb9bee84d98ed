"""The benchmark of prompt caches as a command, on few rounds and a policy that is read in no time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from servers import ROOT

SENTENCES = (
    "Unopened accessories may be returned within 30 days with proof of purchase.",
    "Opened accessories are not returnable unless they arrived damaged.",
)
SMALL = ("--rounds", "1", "--concurrency", "2", "--max-tokens", "4")


def short_material(folder: Path) -> tuple[str, ...]:
    """Options for a policy of about 110 words and two questions, written into `folder`."""
    more = " ".join(f"Clause {number} says that item {number} is kept in room {number}." for number in range(7))
    (folder / "policy.txt").write_text(f"{' '.join(SENTENCES)} {more}")
    questions = [{"question": f"Is it {name}?", "sentence": SENTENCES[number]} for number, name in enumerate("AB")]
    (folder / "questions.json").write_text(json.dumps(questions))
    return ("--policy", str(folder / "policy.txt"), "--questions", str(folder / "questions.json"))


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "tools.benchmark_prompt_cache", *options]


def bench(*options: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*options), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def lines(output: Path, kind: str) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]
    return [line for line in read if line["kind"] == kind]
