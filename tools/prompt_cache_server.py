"""The server that is measured: found running, or started for it and ended in the end, and what it says of itself."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from jev_local.launch.process import Child, stop
from jev_local.launch.signals import WATCHED
from tools.prompt_cache_memory import command, family, listener

PATIENCE = 900.0
"""Seconds that a started server may take until it answers."""

GRACE = 10.0
"""Seconds to end by itself: a launcher has servers of its own to end."""

LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]", "0.0.0.0")
CACHE_LINE = re.compile(r"cache|evict|erase|n_past|LCP|LRU|Prompt processing", re.IGNORECASE)
LINES, LENGTH = 12, 160


class NoServer(Exception):
    """Nothing can be measured there; the text says why."""


def plain(url: str) -> str:
    """`url` without /v1 and slashes in the end. ValueError where it is no URL of a server."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"--url has to be like http://127.0.0.1:8080, got {url!r}")
    if parts.username or parts.query or parts.fragment:
        raise ValueError("--url has to be without a user, a query and a fragment; a key goes into --key")
    _ = parts.port  # ValueError where it is no number
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def port_of(url: str) -> int | None:
    """The port of a server on this machine."""
    parts = urlsplit(url)
    return (parts.port or (443 if parts.scheme == "https" else 80)) if parts.hostname in LOCAL else None


def process_of(url: str) -> int | None:
    """Of the server at `url`, where it runs on this machine and we may see it."""
    port = port_of(url)
    return None if port is None else listener(port)


def answers(url: str, key: str) -> bool:
    """Whether a server with a loaded model answers, as far as it can be asked: what it says of being ready counts for
    more than what it says of being alive."""
    for path in ("/ready", "/health", "/v1/models"):
        try:
            status = httpx.get(url + path, headers=bearer(key), trust_env=False, timeout=10).status_code
        except (httpx.HTTPError, httpx.InvalidURL):
            return False
        if status == 200:
            return True
        if status == 503:
            return False
    return False


def is_taken(url: str) -> bool:
    """Whether anything speaks HTTP there."""
    try:
        httpx.get(url + "/health", trust_env=False, timeout=10)
    except httpx.ConnectError:
        return False
    except httpx.HTTPError:
        return True
    return True


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


class Launched:
    """A server that was started here. load: seconds until it answered."""

    def __init__(self, child: Child, log: Path) -> None:
        self.child, self.log, self.load = child, log, 0.0


@contextmanager
def launched(words: str, url: str, log: Path, *, key: str) -> Iterator[Launched]:
    """Runs a command line, without a shell, until the block is left; then nothing of it is running any more. NoServer
    where it ends before it answers."""
    argv = shlex.split(words)
    began = time.perf_counter()
    child = Child(argv[0], argv, log=log)
    try:
        made = Launched(child, log)
        while not answers(url, key):
            if child.poll() is not None:
                raise NoServer(f"What --launch names {child.ending()} before {url} answered.{child.last_lines()}")
            if time.perf_counter() - began > PATIENCE:
                raise NoServer(f"{url} did not answer within {PATIENCE:.0f} s.{child.last_lines()}")
            time.sleep(0.05)
        made.load = time.perf_counter() - began
        yield made
    finally:
        with uninterrupted():
            _end(child)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C once more must not leave half of it running."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in WATCHED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(child: Child) -> None:
    """Everything in its session, and what had gone into one of its own but was below it."""
    below = family(child.pid) if child.poll() is None else ()
    alive = {pid: _begun(pid) for pid in below if pid != child.pid}
    stop([child], grace=GRACE)
    child.signal(signal.SIGKILL)
    for pid, begun in alive.items():
        if begun is not None and _begun(pid) == begun:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _begun(pid: int) -> str | None:
    """When `pid` began: with it, a number that was given to another process is told apart."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def cache_lines(log: Path, begin: int) -> tuple[str, ...]:
    """Of what a server has logged since `begin`, in bytes, the last lines about caches. They hold no prompts."""
    try:
        with log.open("rb") as file:
            file.seek(begin)
            lines = file.read(256 * 1024).decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(line.strip()[:LENGTH] for line in lines if CACHE_LINE.search(line))[-LINES:]


def about(url: str, key: str, pid: int | None) -> dict[str, Any]:
    """What the server says of itself; what it does not have is left out."""
    found: dict[str, Any] = {}
    with httpx.Client(base_url=url, headers=bearer(key), trust_env=False, timeout=10) as http:
        for path, pick in (("/props", _props), ("/v1/models", _models), ("/ready", _ready)):
            with contextlib.suppress(httpx.HTTPError, ValueError):
                got = http.get(path)
                if got.headers.get("server"):
                    found.setdefault("server", got.headers["server"])
                body = got.json() if got.status_code == 200 else None
                if isinstance(body, dict):
                    found |= pick(body)
    if pid is not None and (line := command(pid)):
        found["command"] = without_secrets(line, key)
    return found


def _props(body: dict[str, Any]) -> dict[str, Any]:
    names = ("build_info", "total_slots", "model_alias", "model_ftype", "endpoint_slots")
    found = {name: body[name] for name in names if name in body}
    settings = body.get("default_generation_settings")
    if isinstance(settings, dict) and "n_ctx" in settings:
        found["n_ctx"] = settings["n_ctx"]
    return found


def _models(body: dict[str, Any]) -> dict[str, Any]:
    listed = body.get("data")
    named = [one["id"] for one in listed if isinstance(one, dict) and "id" in one] if isinstance(listed, list) else []
    return {"models": named[:8]} if named else {}


def _ready(body: dict[str, Any]) -> dict[str, Any]:
    return {"ready": json.loads(json.dumps(body)[:4000])} if len(json.dumps(body)) <= 4000 else {}


def without_secrets(line: str, key: str) -> str:
    """A command line that may be shown to others."""
    hidden = re.sub(r"(--[\w-]*(?:key|token|secret)[\w-]*)([ =])\S+", r"\1\2***", line, flags=re.IGNORECASE)
    return hidden.replace(key, "***") if len(key) >= 8 and key != "local-dev" else hidden
