"""The command line of `benchmark_prompt_cache`."""

from __future__ import annotations

import argparse
import os
import shlex
from importlib.util import find_spec
from pathlib import Path

from tools.prompt_cache_material import POLICY, QUESTIONS, BadMaterial, Material, load
from tools.prompt_cache_server import plain

EXAMPLES = """
examples:
  a llama-server that runs already
    python3 -m tools.benchmark_prompt_cache --url http://127.0.0.1:8097 --model any

  this API, started and ended by the bench (without a shell: `env` sets variables)
    python3 -m tools.benchmark_prompt_cache --url http://127.0.0.1:8080 --model jev-latest \\
        --launch "env CTX_SIZE=16384 ./run.sh --no-demo"

  mlx_lm.server on Apple Silicon; the model has to be named as the server knows it
    python3 -m tools.benchmark_prompt_cache --url http://127.0.0.1:8080 --model mlx-community/Qwen3-4B-4bit \\
        --launch "mlx_lm.server --model mlx-community/Qwen3-4B-4bit --host 127.0.0.1 --port 8080"

  a quick look
    python3 -m tools.benchmark_prompt_cache --url URL --model NAME --rounds 1 --concurrency 1,2 --prefixes 1,4

exit codes: 0 measured; 1 nothing could be measured; 2 not possible as asked for, and why; 130 interrupted, and what
was measured until then is written
"""


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python3 -m tools.benchmark_prompt_cache",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--url", required=True, help="of the server, with or without /v1")
    add("--model", required=True, metavar="NAME", help="as the server knows it; llama-server takes any")
    add("--key", default=os.environ.get("JEV_API_KEY") or "local-dev", help="JEV_API_KEY, else local-dev")
    add("--launch", metavar="COMMAND", help="start the server with this, and end it and all its children afterwards")
    add("--starts", type=int, default=3, metavar="N", help="of a server that is launched (%(default)s)")
    add("--policy", type=Path, default=POLICY, metavar="FILE", help="a text (tools/data/policy.txt)")
    add(
        "--questions",
        type=Path,
        default=QUESTIONS,
        metavar="FILE",
        help="a JSON list of objects with `question`, the policy's `sentence` for it, and lists of phrases: `reason`, "
        "one of which a reason has, and `against`, which it has not (tools/data/questions.json)",
    )
    add("--concurrency", default="1,2,4,8", metavar="LIST", help="numbers of clients at once (%(default)s)")
    add("--prefixes", default="1,4,16", metavar="LIST", help="how many policies take turns (%(default)s)")
    add("--max-tokens", type=int, default=128, metavar="N", help="of an answer (%(default)s)")
    add("--rounds", type=int, default=5, metavar="N", help="of every condition (%(default)s)")
    add("--output", type=Path, default=Path("results/prompt_cache"), metavar="DIR", help="%(default)s")
    return made


def numbers(text: str) -> tuple[int, ...]:
    """ValueError where `text` is no list of numbers from 1 to 256."""
    found = []
    for word in text.split(","):
        if not (word.strip().isascii() and word.strip().isdecimal()) or not 1 <= int(word) <= 256:
            raise ValueError(f"numbers from 1 to 256 with commas between them, got {text!r}")
        found.append(int(word))
    return tuple(dict.fromkeys(found))


def checked(command: argparse.ArgumentParser, parsed: argparse.Namespace) -> Material:
    """What is asked. Ends the program where an option cannot be meant."""
    for name in ("starts", "rounds", "max_tokens"):
        if getattr(parsed, name) < 1:
            command.error(f"--{name.replace('_', '-')} has to be at least 1")
    for name in ("concurrency", "prefixes"):
        try:
            setattr(parsed, name, numbers(getattr(parsed, name)))
        except ValueError as error:
            command.error(f"--{name}: {error}")
    try:
        parsed.url = plain(parsed.url)
        if parsed.launch is not None and not shlex.split(parsed.launch):
            command.error("--launch has to name a command")
        material = load(parsed.policy, parsed.questions)
        if find_spec("matplotlib") is None:
            command.error("the charts need matplotlib: `python3 scripts/bootstrap.py local,bench` installs it in .venv")
        parsed.output.mkdir(parents=True, exist_ok=True)
        return material
    except (ValueError, BadMaterial) as error:
        command.error(str(error))
    except OSError as error:
        command.error(f"--output: {error}")
