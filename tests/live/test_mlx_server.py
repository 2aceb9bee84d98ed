"""A real mlx_lm.server on a model of random weights: what it keeps of a policy, for how long, and what it says of it.

Its limits do not work as their names suggest, so what this version does is written down here.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from jev_local.launch.process import Child, stop
from programs import free_port, listens
from prompt_cache_run import SMALL, bench, lines, short_material
from servers import await_ready

LINUX = sys.platform == "linux" and os.uname().machine in ("x86_64", "aarch64")
APPLE = sys.platform == "darwin" and os.uname().machine == "arm64"
pytestmark = pytest.mark.skipif(not (LINUX or APPLE), reason="MLX has no wheels for this machine")

QUESTION, OTHER = "I opened it and changed my mind.", "It arrived damaged."


def policy(name: str) -> str:
    """About 390 tokens that no other policy begins with."""
    return f"{name}: " + "Unopened accessories may be returned within 30 days with proof of purchase. " * 5


@pytest.fixture(scope="module")
def mlx_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tiny_mlx

    return tiny_mlx.write(tmp_path_factory.mktemp("models") / "tiny-mlx")


@contextmanager
def mlx_server(model: Path, folder: Path, *options: str) -> Iterator[str]:
    """The server as people start it; it needs nothing from the network."""
    port = free_port()
    argv = [sys.executable, "-m", "mlx_lm", "server", "--model", str(model), "--host", "127.0.0.1"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}
    argv += ["--port", str(port), *options]
    child = Child("mlx_lm.server", argv, log=folder / "mlx.log", environment=environment)
    try:
        await_ready(f"http://127.0.0.1:{port}/health", child)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop([child])


def ask(url: str, name: str, question: str = QUESTION) -> dict[str, Any]:
    """The usage of a chat about one policy."""
    body = {
        "model": "default_model",
        "messages": [{"role": "system", "content": policy(name)}, {"role": "user", "content": question}],
        "max_tokens": 4,
        "temperature": 0,
    }
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, trust_env=False, timeout=120)
    assert reply.status_code == 200, reply.text
    usage: dict[str, Any] = reply.json()["usage"]
    assert usage["completion_tokens"] == 4
    return usage


def cached(usage: dict[str, Any]) -> float:
    """The share of a prompt that was cached."""
    return float(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])


def test_a_policy_is_reused_and_nine_others_do_not_push_it_out(mlx_model: Path, tmp_path: Path) -> None:
    with mlx_server(mlx_model, tmp_path) as url:
        assert cached(ask(url, "A")) == 0
        again = ask(url, "A", OTHER)
        assert 0.9 < cached(again) < 1, "the policy, but not the question"
        for name in "BCDEFGHIJ":
            assert cached(ask(url, name)) < 0.1, "the template begins all of them"
        assert cached(ask(url, "A", "Is it sealed?")) > 0.9


def test_two_entries_hold_two_of_three_policies(mlx_model: Path, tmp_path: Path) -> None:
    with mlx_server(mlx_model, tmp_path, "--prompt-cache-size", "2") as url:
        for name in "ABC":
            ask(url, name)
        assert cached(ask(url, "C", OTHER)) > 0.9
        assert cached(ask(url, "A", OTHER)) < 0.1


def test_bytes_are_counted_when_the_next_request_comes(mlx_model: Path, tmp_path: Path) -> None:
    """With a limit that holds nothing, what was kept last is still found: a request looks first, and only then is
    everything beyond the limit let go of. What runs just now counts as well."""
    with mlx_server(mlx_model, tmp_path, "--prompt-cache-bytes", "1") as url:
        ask(url, "A")
        assert cached(ask(url, "A", OTHER)) > 0.9
        ask(url, "B")
        assert cached(ask(url, "A")) < 0.1
    log = (tmp_path / "mlx.log").read_text()
    assert log.count("Prompt Cache: 1 sequences") == 3, "over the limit between any two requests"
    assert "evict" not in log.lower(), "it never says what it let go of"


def test_bytes_that_hold_three_policies(mlx_model: Path, tmp_path: Path) -> None:
    import tiny_mlx

    with mlx_server(mlx_model, tmp_path / "size") as url:
        tokens = ask(url, "A")["prompt_tokens"]
    limit = str(int(3.5 * tiny_mlx.TOKEN_BYTES * tokens))
    with mlx_server(mlx_model, tmp_path / "bytes", "--prompt-cache-bytes", limit) as url:
        for name in "AB":
            ask(url, name)
        assert cached(ask(url, "A", OTHER)) > 0.9
        for name in "CDEF":
            ask(url, name)
        assert cached(ask(url, "A")) < 0.1


def test_the_shape_of_the_live_cache_is_no_option_of_the_server() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "mlx_lm", "server", "--help"], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    assert "--prompt-cache-size" in told
    assert "--prompt-cache-bytes" in told
    assert "--max-kv-size" not in told


def test_the_bench_from_its_start(mlx_model: Path, tmp_path: Path) -> None:
    port = free_port()
    server = [sys.executable, "-m", "mlx_lm", "server", "--model", str(mlx_model), "--port", str(port)]
    launch = shlex.join(["env", "HF_HUB_OFFLINE=1", *server, "--prompt-cache-size", "2"])
    where = ("--url", f"http://127.0.0.1:{port}", "--model", "default_model", "--launch", launch, "--starts", "2")
    said = bench(*where, "--output", str(tmp_path), *SMALL, "--prefixes", "1,3", *short_material(tmp_path)).stdout
    assert not listens(port), "it is ended"
    starts = lines(tmp_path, "start")
    assert len(starts) == 2
    assert all(one["load_ms"] > 100 and one["peak_rss_bytes"] >= one["loaded_rss_bytes"] > 0 for one in starts)
    [summary], [environment] = lines(tmp_path, "summary"), lines(tmp_path, "environment")
    assert [(one["others"], one["hits"]) for one in summary["mixed"]] == [(0, 1), (2, 0)]
    assert "A was still there after 0 other prefixes, and gone after 2." in said
    assert environment["server"]["system_fingerprint"].startswith("0.32.")
    assert "--prompt-cache-size 2" in environment["server"]["command"]
    assert summary["answers"]["sequential"]["policy sentence missing"] == 2, "its answers are noise"
    logged = [line for one in lines(tmp_path, "request") for line in one.get("log", [])]
    assert any("Prompt Cache: 2 sequences" in line for line in logged)
