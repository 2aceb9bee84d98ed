"""The benchmark of prompt caches as a command, on real servers and on one that tells nothing."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Event, Thread

import pytest

from programs import free_port, listens, until
from prompt_cache_run import SENTENCES, SMALL, bench, command, lines, short_material
from servers import ROOT, llama_server
from tools.prompt_cache_results import NOT_REPORTED


def loads_nothing(page: str) -> bool:
    """Neither an element that fetches, nor a style that does."""
    fetched = re.findall(r"""(?:src|href|data|action)\s*=\s*["'](?!#)|@import|url\((?!#)""", page)
    return not fetched and "<script" not in page and "<link" not in page


def test_llama_server(tiny_model: Path, tmp_path: Path) -> None:
    # One thread: two that wait for each other take half a minute where others are at work on this machine.
    with llama_server(tiny_model, tmp_path / "server", context=16384, threads=1) as (url, _):
        where = ("--url", f"{url}/v1", "--model", "any", "--output", str(tmp_path))
        said = bench(*where, *SMALL, "--prefixes", "2", *short_material(tmp_path)).stdout
    requests = lines(tmp_path, "request")
    assert len(requests) == 2 + 10 + 3 + 6
    assert not [one for one in requests if "error" in one]
    assert {one["cached_from"] for one in requests} == {"usage"}
    by = {(one["condition"], one["role"]): one for one in requests}
    first, again = by["sequential", "policy not read before"], by["sequential", "policy read before"]
    assert again["cached_tokens"] > 0.8 * again["input_tokens"] > first["cached_tokens"]
    assert again["ttft_ms"] < first["ttft_ms"] < first["total_ms"]
    assert by["order", "date and customer before the policy"]["cached_tokens"] < 40
    assert by["order", "date and customer after the policy"]["cached_tokens"] > 100
    assert len(lines(tmp_path, "batch")) == 2 * 2
    [summary], [environment] = lines(tmp_path, "summary"), lines(tmp_path, "environment")
    assert [(one["others"], one["hits"], one["inferred"]) for one in summary["mixed"]] == [(1, 1, False)]
    assert 300 < summary["policy_tokens"] < 600
    assert summary["peak_rss_bytes"]["concurrency"] > 20 * 1024**2, "a Python with the server in it"
    assert environment["server"]["total_slots"] == 6
    assert environment["server"]["system_fingerprint"]
    report = (tmp_path / "report.md").read_text()
    assert report in said
    assert "not measured: the server was running already" in report
    assert "A was still there after 1 other prefix, the most that were tried." in report
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 5
    assert loads_nothing(page)
    assert "one prefix a client, none read before" in page


def test_this_api(api: str, tmp_path: Path) -> None:
    where = ("--url", api, "--model", "jev-latest", "--output", str(tmp_path))
    bench(*where, *SMALL, "--prefixes", "2", *short_material(tmp_path))
    requests = lines(tmp_path, "request")
    assert not [one for one in requests if "error" in one]
    assert {one["cached_from"] for one in requests} == {"usage"}
    by = {(one["condition"], one["role"]): one for one in requests}
    first, again = by["sequential", "policy not read before"], by["sequential", "policy read before"]
    assert again["cached_tokens"] > 0.7 * again["input_tokens"] > first["cached_tokens"]
    [summary], [environment] = lines(tmp_path, "summary"), lines(tmp_path, "environment")
    assert [(one["others"], one["hits"]) for one in summary["mixed"]] == [(1, 1)]
    assert environment["server"]["ready"]["chats"]["slots"] == 2


class Silent(BaseHTTPRequestHandler):
    """Streams an answer, and tells nothing of tokens. `stream_options` are refused."""

    def do_GET(self) -> None:
        self._reply(200, b"{}", "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if set(body) - {"model", "messages", "max_tokens", "temperature", "stream"}:
            self._reply(400, b'{"error": {"message": "stream_options: unknown"}}', "application/json")
            return
        pieces = [f"{SENTENCES[1]} ", "It arrived ", "damaged, so yes."]
        chunks = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
        told = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        self._reply(200, f"{told}data: [DONE]\n\n".encode(), "text/event-stream")

    def _reply(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


class Stuck(Silent):
    """Refuses the first chat, answers nine, and no other one."""

    arrived, gate = Event(), Event()
    chats = count()

    def do_POST(self) -> None:
        if next(self.chats) >= 10:
            self.arrived.set()
            self.gate.wait()
            return
        super().do_POST()


@contextmanager
def silent_server(kind: type[Silent] = Silent) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_a_server_does_not_report_is_never_zero(tmp_path: Path) -> None:
    with silent_server() as url:
        said = bench("--url", url, "--model", "any", "--output", str(tmp_path), *SMALL, "--prefixes", "1,3").stdout
    requests = lines(tmp_path, "request")
    for name in ("input_tokens", "output_tokens", "cached_tokens", "cached_from"):
        assert {one[name] for one in requests} == {NOT_REPORTED}
    assert not [one for one in requests if "error" in one]
    assert lines(tmp_path, "summary")[0]["policy_tokens"] == NOT_REPORTED
    for text in (said, (tmp_path / "report.html").read_text()):
        assert "cached tokens are taken from" in text
        assert "This server reports no cached tokens: a hit is inferred" in text
    rows = [row.split(" | ") for row in said.splitlines() if row.startswith("| policy read before")]
    assert [row[4:] for row in rows] == [[NOT_REPORTED, NOT_REPORTED, NOT_REPORTED, f"{NOT_REPORTED} |"]]
    answers = lines(tmp_path, "summary")[0]["answers"]["sequential"]
    assert answers == {"correct": 1, "policy sentence missing": 6, "no reason": 1}, "changed their mind is no reason"


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    with silent_server(Stuck) as url:
        words = command("--url", url, "--model", "any", "--output", str(tmp_path), *SMALL)
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert Stuck.arrived.wait(60)
                process.send_signal(signal.SIGINT)
                said, complained = process.communicate(timeout=30)
            finally:
                Stuck.gate.set()
                process.kill()
    assert process.returncode == 130
    assert complained.splitlines()[-1] == "Interrupted: only what was measured until then."
    assert "Warning" not in complained
    assert "**Interrupted: only what was measured until then.**" in said
    assert "<strong>Interrupted" in (tmp_path / "report.html").read_text()
    assert len(lines(tmp_path, "request")) == 7, "two had counted the policy"


def alive(word: str) -> list[str]:
    """Processes that have `word` on their command line, and are not those who look for it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if line.startswith("sleep") and word in line:
            found.append(line)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only there every process below another one is found")
def test_whatever_was_launched_is_ended(tmp_path: Path) -> None:
    """A server that answers, but no chats, with a child in its session and one in a session of its own."""
    port, long = free_port(), str(70_000_000 + free_port())
    (tmp_path / "health").write_text("ok")
    serve = (
        f"{shlex.quote(sys.executable)} -m http.server {port} --bind 127.0.0.1 --directory {shlex.quote(str(tmp_path))}"
    )
    launch = shlex.join(["sh", "-c", f"sleep {long} & setsid sleep {long} & {serve}; true"])
    where = (
        "--url",
        f"http://127.0.0.1:{port}",
        "--model",
        "any",
        "--launch",
        launch,
        "--output",
        str(tmp_path / "out"),
    )
    said = bench(*where, code=1).stderr
    assert "does not answer a chat: HTTP 501" in said
    assert alive(long) == []
    assert not listens(port)
    assert not (tmp_path / "out" / "results.jsonl").exists(), "there is nothing to tell"


@pytest.mark.skipif(sys.platform != "linux", reason="only there every process below another one is found")
def test_ctrl_c_ends_a_server_that_does_not_answer_yet(tmp_path: Path) -> None:
    port, long = free_port(), str(80_000_000 + free_port())
    launch = ("--url", f"http://127.0.0.1:{port}", "--model", "any", "--launch", f"sleep {long}")
    process = subprocess.Popen(
        command(*launch, "--output", str(tmp_path)), cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        until(lambda: alive(long), "the launch")
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
        assert process.returncode == 130
        assert time.monotonic() - begun < 10
    finally:
        process.kill()
        process.wait()
    assert "Interrupted" in said
    assert "Traceback" not in said
    assert alive(long) == []


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    where = ("--url", f"http://127.0.0.1:{free_port()}", "--model", "any", "--output", str(tmp_path))
    said = bench(*where, "--launch", "sh -c 'echo no weights; exit 3'", code=1).stderr
    assert "ended with exit code 3" in said
    assert "no weights" in said


def test_without_a_server_one_line_says_what_to_do(tmp_path: Path) -> None:
    where = ("--url", f"http://127.0.0.1:{free_port()}", "--model", "any", "--output", str(tmp_path))
    said = bench(*where, code=1).stderr
    assert said.splitlines()[-1] == f"No server is ready at {where[1]}. `--launch` starts one."
