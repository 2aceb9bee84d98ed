"""What the API adds to a forward pass: a question through it, next to the same /completion sent straight to the server.

    python3 -m tools.benchmark_overhead --backend-url http://127.0.0.1:8097 [--rounds 50] [--output FILE]

Starts the API on a free port by itself. Both ways alternate within one run and read prompts of the same length that
differ early, so that the server evaluates the same number of tokens for either. Times are to the last byte of the
reply. The backend has to serve nobody else meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.progress import track

from jev_local.backend.llama import LlamaBackend
from jev_local.core.plan import Tokens
from jev_local.core.prompts import question_text, shared_text
from jev_local.core.questions import Noul
from jev_local.core.readout import GENTLE_BIAS, RUNNERS_UP
from jev_local.engine.session import Session, open_session, tokenize_chats
from jev_local.launch.process import Child, stop
from jev_local.settings import DEFAULT_BACKEND_URL

QUESTION = Noul("refund", "Does the customer want money back?")
WARM_UP = 3
READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Round:
    """Milliseconds: through the API, straight to the server, and one /tokenize call as the API makes it."""

    api: float
    direct: float
    tokenize: float


def state(number: int) -> str:
    # Differs from its first character on and has the same length in every round.
    return f"{number:05d} My card was charged twice for one kettle. Please give me the money back this week."


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def measure(backend_url: str, api_url: str, rounds: int) -> list[Round]:
    backend = LlamaBackend(backend_url, timeout=600)
    try:
        session = await open_session(backend, workers=1)
        async with (
            httpx.AsyncClient(base_url=api_url, trust_env=False, timeout=600) as api,
            httpx.AsyncClient(base_url=backend_url, trust_env=False, timeout=600) as server,
        ):
            taken = []
            for number in track(range(-WARM_UP, rounds), description="rounds"):
                taken.append(await one_round(backend, session, api, server, number + WARM_UP))
            return taken[WARM_UP:]
    finally:
        await backend.aclose()


async def one_round(
    backend: LlamaBackend, session: Session, api: httpx.AsyncClient, server: httpx.AsyncClient, number: int
) -> Round:
    labels = session.labels.choose(2)
    shared = shared_text(session.style, state(2 * number))
    added = question_text(session.style, QUESTION, [label.text for label in labels])
    begun = time.perf_counter()
    stem, (rest,) = await tokenize_chats(backend, session, shared=shared, added=[added])
    tokenize = time.perf_counter() - begun
    ways = {
        "direct": lambda: server.post("/completion", json=completion(stem + rest, [x.tokens[0] for x in labels])),
        "api": lambda: api.post("/v1/systemone", json=question(state(2 * number + 1))),
    }
    order = list(ways) if number % 2 else list(reversed(ways))
    took = {}
    for way in order:
        begun = time.perf_counter()
        (await ways[way]()).raise_for_status()
        took[way] = (time.perf_counter() - begun) * 1000
    return Round(took["api"], took["direct"], tokenize * 1000)


def completion(prompt: Tokens, labels: Sequence[int]) -> dict[str, Any]:
    return {
        "prompt": list(prompt),
        "n_predict": 1,
        "n_probs": len(labels) + RUNNERS_UP,
        "post_sampling_probs": True,
        "samplers": [],
        "temperature": 1.0,
        "logit_bias": [[label, GENTLE_BIAS] for label in labels],
        "id_slot": 0,
        "cache_prompt": True,
    }


def question(text: str) -> dict[str, Any]:
    return {
        "state": text,
        "questions": {"refund": {"type": "noul", "instructions": QUESTION.instructions}},
    }


def report(rounds: Sequence[Round]) -> dict[str, Any]:
    added = [r.api - r.direct for r in rounds]
    medians = {
        "api_ms": statistics.median(r.api for r in rounds),
        "direct_ms": statistics.median(r.direct for r in rounds),
        "added_ms": statistics.median(added),
        "tokenize_ms": statistics.median(r.tokenize for r in rounds),
    }
    spread = {"added_p10_ms": percentile(added, 0.1), "added_p90_ms": percentile(added, 0.9)}
    return {"rounds": len(rounds), **medians, **spread, "samples": [[r.api, r.direct, r.tokenize] for r in rounds]}


def serve(backend_url: str) -> tuple[Child, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "jev_local", "serve", "--backend-url", backend_url, "--port", str(port)]
    argv += ["--chat-slots", "0"]
    log = Path(os.devnull)
    return Child("API", argv, log=log, environment=os.environ | {"JEV_API_KEY": ""}), f"http://127.0.0.1:{port}"


def await_ready(api: Child, url: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if api.poll() is not None:
            raise SystemExit(f"The API could not start: it {api.ending()}.")
        try:
            if httpx.get(f"{url}/ready", trust_env=False, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise SystemExit("The API did not become ready. Is a llama-server running at --backend-url? (./run_server.sh)")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.benchmark_overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend-url", default=DEFAULT_BACKEND_URL, help="a running llama-server (%(default)s)")
    parser.add_argument("--rounds", type=int, default=50, help="measured rounds, after 3 to warm up (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("results/overhead.json"), help="%(default)s")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds has to be at least 1")
    try:
        httpx.get(f"{options.backend_url}/health", trust_env=False, timeout=10).raise_for_status()
    except httpx.HTTPError:
        print(f"No llama-server is ready at {options.backend_url}. ./run_server.sh starts one.", file=sys.stderr)
        return 3
    api, url = serve(options.backend_url)
    try:
        await_ready(api, url)
        rounds = asyncio.run(measure(options.backend_url, url, options.rounds))
    finally:
        stop([api])
    got = report(rounds)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(got, indent=2) + "\n", encoding="utf-8")
    print(
        f"{got['rounds']} rounds, medians: through the API {got['api_ms']:.1f} ms, straight {got['direct_ms']:.1f} ms\n"
        f"added {got['added_ms']:.1f} ms (10th to 90th percentile {got['added_p10_ms']:.1f} to "
        f"{got['added_p90_ms']:.1f}), of which /tokenize {got['tokenize_ms']:.1f} ms\n"
        f"every sample: {options.output}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
