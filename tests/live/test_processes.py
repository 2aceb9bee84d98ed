"""Two real processes: they start with a clear word or not at all, come back when they die, and never stay behind."""

import contextlib
import os
import re
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import tiny_lfm2
from programs import free_port, listener_pid, listens, running, status, two_free_ports, until, up

LONG_PROMPT = "The quick brown fox jumps over the lazy dog. " * 700
"""About 7,000 tokens: SmolLM2 reads for half a minute and more."""


@pytest.fixture
def ports() -> tuple[int, int]:
    """Of the API and of the inference server."""
    return two_free_ports()


@contextmanager
def long_prefill(backend: int) -> Iterator[None]:
    """A request that keeps the inference server busy for as long as it lives."""

    def ask() -> None:
        url, body = f"http://127.0.0.1:{backend}/completion", {"prompt": LONG_PROMPT, "n_predict": 1}
        with contextlib.suppress(httpx.TransportError):  # the server is about to go
            httpx.post(url, json=body, trust_env=False, timeout=120)

    thread = threading.Thread(target=ask)
    thread.start()

    def is_busy() -> bool:
        slots = httpx.get(f"http://127.0.0.1:{backend}/slots", trust_env=False, timeout=5).json()
        return any(slot["is_processing"] for slot in slots)

    until(is_busy, "the prefill")
    yield
    thread.join()


def test_ctrl_c_during_a_prefill_stops_both_in_three_seconds(
    tmp_path: Path, smollm2_model: Path, ports: tuple[int, int]
) -> None:
    with running(tmp_path, *up(ports, smollm2_model, "--no-demo")) as program:
        program.await_text("Ready: http")
        with long_prefill(ports[1]):
            begun = time.monotonic()
            program.interrupt()
            assert program.process.wait(10) == 0
            took = time.monotonic() - begun
    assert took < 3.0
    assert not listens(ports[0])
    assert not listens(ports[1])
    assert "Traceback" not in program.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_kill_and_a_closed_terminal_stop_both(
    tmp_path: Path, tiny_model: Path, ports: tuple[int, int], number: signal.Signals
) -> None:
    with running(tmp_path, *up(ports, tiny_model, "--no-demo")) as program:
        program.await_text("Ready: http")
        program.process.send_signal(number)
        assert program.process.wait(5) == 0
    assert not listens(ports[0])
    assert not listens(ports[1])


def test_kill_9_of_the_parent_ends_both_during_a_prefill(
    tmp_path: Path, smollm2_model: Path, ports: tuple[int, int]
) -> None:
    with running(tmp_path, *up(ports, smollm2_model, "--no-demo")) as program:
        program.await_text("Ready: http")
        with long_prefill(ports[1]):
            program.process.kill()
            until(lambda: not listens(ports[0]) and not listens(ports[1]), "the end of both", 2.0)


def test_kill_9_while_the_model_is_loading_leaves_nothing(
    tmp_path: Path, smollm2_model: Path, ports: tuple[int, int]
) -> None:
    with running(tmp_path, *up(ports, smollm2_model)) as program:
        program.await_text("SLOT_CACHE_DIR")
        until(lambda: listens(ports[1]), "the start of the inference server")
        program.process.kill()
        until(lambda: not listens(ports[1]), "its end", 2.0)


def test_a_killed_backend_comes_back_and_the_fourth_time_is_the_last(
    tmp_path: Path, tiny_model: Path, ports: tuple[int, int]
) -> None:
    ready = f"http://127.0.0.1:{ports[0]}/ready"
    with running(tmp_path, *up(ports, tiny_model, "--no-demo")) as program:
        program.await_text("Ready: http")
        for time_round in (1, 2, 3):
            os.kill(listener_pid(ports[1]), signal.SIGKILL)
            until(lambda n=time_round: program.text.count("llama-server is back") == n, "the restart")  # type: ignore[misc]
            until(lambda: status(ready) == 200, "readiness of the API")
        os.kill(listener_pid(ports[1]), signal.SIGKILL)
        assert program.process.wait(10) == 1
    assert program.text.count("ended by SIGKILL; starting it again in") == 3
    assert "for the 4th time within 60 s; giving up" in program.text
    assert not listens(ports[0])


def test_a_dead_api_ends_everything_with_a_word(tmp_path: Path, tiny_model: Path, ports: tuple[int, int]) -> None:
    with running(tmp_path, *up(ports, tiny_model, "--no-demo")) as program:
        program.await_text("Ready: http")
        os.kill(listener_pid(ports[0]), signal.SIGKILL)
        assert program.process.wait(5) == 1
    assert "The API ended by SIGKILL" in program.text
    assert not listens(ports[1])


@pytest.mark.parametrize("which", [0, 1])
def test_a_busy_port_is_one_line(tmp_path: Path, tiny_model: Path, ports: tuple[int, int], which: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports[which]))
        other.listen()
        with running(tmp_path, *up(ports, tiny_model)) as program:
            assert program.process.wait(10) == 2
    option = ("--port", "--backend-port")[which]
    assert program.text == (
        f"jev-local: port {ports[which]} on 127.0.0.1 is in use: stop what listens there, "
        f"or choose another with {option}\n"
    )


@pytest.mark.parametrize("command", ["serve", "backend"])
def test_a_busy_port_is_exit_code_2_for_each_server_alone(tmp_path: Path, tiny_model: Path, command: str) -> None:
    port = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with running(tmp_path, command, "--port", str(port), MODEL=str(tiny_model)) as program:
            assert program.process.wait(20) == 2
    assert "is in use" in program.text.splitlines()[-1]
    assert "--port" in program.text.splitlines()[-1]
    assert "Traceback" not in program.text


def test_a_file_that_only_begins_like_a_model_shows_what_the_server_said(
    tmp_path: Path, ports: tuple[int, int]
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 2000)
    with running(tmp_path, *up(ports, broken)) as program:
        assert program.process.wait(20) == 1
    assert "llama-server ended with exit code 1 before it was ready" in program.text
    assert "broken.gguf" in program.text.partition("before it was ready")[2]
    assert "Traceback" not in program.text


def test_a_half_copied_model_shows_what_the_server_said(
    tmp_path: Path, tiny_model: Path, ports: tuple[int, int]
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_model.read_bytes()[:-100_000])
    with running(tmp_path, *up(ports, cut)) as program:
        assert program.process.wait(20) == 1
    assert "before it was ready" in program.text


DROPS_THE_USER = "{{ bos_token }}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"


def test_a_model_that_cannot_be_asked_is_one_line_with_the_reason(tmp_path: Path, ports: tuple[int, int]) -> None:
    """It loads, and then the API finds out that its chat template leaves the user's text out."""
    deaf = tiny_lfm2.write(tmp_path / "deaf.gguf", template=DROPS_THE_USER)
    with running(tmp_path, *up(ports, deaf, "--once")) as program:
        assert program.process.wait(40) == 1
    (line,) = (line for line in program.text.splitlines() if line.startswith("jev-local: "))
    assert "chat template" in line
    assert "--model" in line
    assert "Ready: http" not in program.text
    assert "Traceback" not in program.text
    assert len(program.text.splitlines()) < 60, "it is not logged at every look"
    assert not listens(ports[0])
    assert not listens(ports[1])


LOADS_AND_DIES = """#!{python}
# Stands for a native llama-server that ends when it is first asked about its model.
import http.server, os, sys
if sys.argv[1:] == ["--list-devices"]:
    print("Available devices:")
    sys.exit()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/health":
            print("out of memory", flush=True)
            os._exit(3)
        self.send_response(200)
        self.end_headers()
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_a_backend_that_dies_after_loading_ends_the_start(
    tmp_path: Path, tiny_model: Path, ports: tuple[int, int]
) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text(LOADS_AND_DIES.format(python=sys.executable))
    binary.chmod(0o755)
    with running(tmp_path, *up(ports, tiny_model), LLAMA_SERVER=str(binary)) as program:
        assert program.process.wait(20) == 1
    complaint = program.text.partition("jev-local: ")[2]
    assert complaint.startswith("llama-server ended with exit code 3 before the API was ready\n")
    assert "\n    out of memory\n" in complaint, "the end of its log"
    assert not listens(ports[0])
    assert not listens(ports[1])


def test_slots_and_log_are_private_and_hold_no_state_text(
    tmp_path: Path, tiny_model: Path, ports: tuple[int, int]
) -> None:
    with running(tmp_path, *up(ports, tiny_model, "--no-demo"), JEV_API_KEY="s3cret-key") as program:
        program.await_text("Ready: http")
        reply = httpx.post(
            f"http://127.0.0.1:{ports[0]}/v1/systemone",
            headers={"Authorization": "Bearer s3cret-key"},
            json={"state": "XYZZYSTATE", "questions": {"q": {"type": "noul", "instructions": "XYZZYQUESTION"}}},
            trust_env=False,
            timeout=60,
        )
        assert reply.status_code == 200
        cache = tmp_path / "home" / "cache"
        log = cache / f"llama-server-{ports[1]}.log"
        assert stat.S_IMODE((cache / "slots").stat().st_mode) == 0o700
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        assert "listening" in log.read_text()
        everything = program.text + log.read_text()
        environment = Path(f"/proc/{listener_pid(ports[1])}/environ").read_bytes()
    for secret in ("XYZZY", "s3cret-key"):
        assert secret not in everything
    assert b"s3cret-key" not in environment
    assert "key: from JEV_API_KEY" in program.text


def test_the_server_started_is_the_one_asked_for(tmp_path: Path, tiny_model: Path) -> None:
    port = free_port()
    with running(
        tmp_path,
        "backend",
        "--port",
        str(port),
        "--model",
        str(tiny_model),
        CTX_SIZE="1024",
        PARALLEL="3",
        CHAT_SLOTS="1",
        CHAT_CTX_SIZE="512",
    ) as program:
        program.await_text(f"Ready: http://127.0.0.1:{port}")
        props = httpx.get(f"http://127.0.0.1:{port}/props", trust_env=False).json()
        slots = httpx.get(f"http://127.0.0.1:{port}/slots", trust_env=False).json()
        saved = httpx.post(
            f"http://127.0.0.1:{port}/slots/0?action=save", json={"filename": "x"}, trust_env=False, timeout=10
        )
        models = httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False).json()
        page = httpx.get(f"http://127.0.0.1:{port}/", trust_env=False, headers={"Origin": "http://evil.example"})
        program.interrupt()
        assert program.process.wait(5) == 0
    assert props["total_slots"] == 4
    assert [slot["n_ctx"] for slot in slots] == [1024] * 4, "no slot may have what both parts have"
    assert set(models["data"][0]["tags"]) == {"jev-decisions-1024", "jev-chats-512"}
    assert models["data"][0]["id"] == tiny_model.stem
    assert saved.status_code == 200
    assert (tmp_path / "home" / "cache" / "slots" / "x").exists(), "in the folder, not beside it"
    assert page.status_code == 404, "no web page"
    assert page.headers["Access-Control-Allow-Origin"] not in ("*", "http://evil.example")


def test_backend_dies_with_its_parent(tmp_path: Path, tiny_model: Path) -> None:
    port = free_port()
    with running(tmp_path, "backend", "--port", str(port), "--model", str(tiny_model)) as program:
        program.await_text("Ready: http")
        program.process.kill()
        until(lambda: not listens(port), "its end", 2.0)


NATIVE = """#!{python}
# Stands for a native llama-server: its command line, in front of the one in the wheel.
import sys
if sys.argv[1:] == ["--list-devices"]:
    print("Available devices:")
    sys.exit()
value = dict(zip(sys.argv[1:], sys.argv[2:]))
print("native server", *sys.argv[1:], flush=True)
from jev_local.backend import child
from jev_local.backend.embedded import ServerOptions
import json
options = dict(model=value["--model"], port=int(value["--port"]), slot_dir=value["--slot-save-path"])
sys.exit(child.main([json.dumps(options)]))
"""


def test_a_native_binary_is_used_and_dies_with_its_parent(
    tmp_path: Path, tiny_model: Path, ports: tuple[int, int]
) -> None:
    binary = tmp_path / "llama server"
    binary.write_text(NATIVE.format(python=sys.executable))
    binary.chmod(0o755)
    with running(tmp_path, *up(ports, tiny_model, "--no-demo"), LLAMA_SERVER=str(binary)) as program:
        program.await_text("Ready: http")
        log = (tmp_path / "home" / "cache" / f"llama-server-{ports[1]}.log").read_text()
        assert re.search(r"native server .*--batch-size 128 --ubatch-size 128", log)
        assert "a native build is faster" not in program.text
        program.process.kill()
        until(lambda: not listens(ports[1]), "its end", 2.0)
