"""A llama-server whose cache lines are counted, and what it answers to a picture and a question."""

from __future__ import annotations

import base64
import os
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from jev_local.launch.errors import CannotStart
from jev_local.launch.process import Child, stop
from jev_local.launch.readiness import ask as look

MARKER = "<__media__>"
QUESTIONS = ("Is it a slide?", "Is it dark?", "Is it a photograph?", "Is there text?")
LINE = re.compile(rb"JEV_IMAGE_CACHE (hit|miss).* in (\d+) of (\d+) bytes")
SETTLED = 0.3
"""Seconds without a new line in the log, which a thread of its own writes."""

READY_SECONDS = 60.0

Answer = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Counts:
    """Lines in the log: encodings that were made, and those that were not needed."""

    misses: int
    hits: int

    def __sub__(self, other: Counts) -> Counts:
        return Counts(self.misses - other.misses, self.hits - other.hits)


@dataclass(frozen=True, slots=True)
class Models:
    text: Path
    projector: Path


def launch(binary: Path, models: Models, log: Path, limit: str | None) -> tuple[Child, str]:
    """The process and its URL; JEV_IMAGE_CACHE_MIB is `limit`, or not set."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [str(binary), "--model", str(models.text), "--mmproj", str(models.projector)]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--ctx-size", "32768", "--parallel", "4", "--no-ui"]
    environment = {name: value for name, value in os.environ.items() if name != "JEV_IMAGE_CACHE_MIB"}
    environment |= {"LLAMA_MEDIA_MARKER": MARKER, **({} if limit is None else {"JEV_IMAGE_CACHE_MIB": limit})}
    log.unlink(missing_ok=True)
    return Child("llama-server", argv, log=log, environment=environment), f"http://127.0.0.1:{port}"


@contextmanager
def running(binary: Path, models: Models, log: Path, limit: str | None = None) -> Iterator[Server]:
    """Loaded, and ended whatever happens."""
    child, url = launch(binary, models, log, limit)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while look(f"{url}/health")[0] != 200:
            child.require_running("it was ready")
            if time.monotonic() > deadline:
                raise CannotStart(f"{binary} was not ready within {READY_SECONDS:.0f} s{child.last_lines()}")
            time.sleep(0.05)
        yield Server(url, log)
    finally:
        stop([child])


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    log: Path

    def counts(self) -> Counts:
        """So far, once the log has settled. CannotStart if the books of the cache were ever over its limit."""
        content = b""
        while (now := self.log.read_bytes()) != content:
            content = now
            time.sleep(SETTLED)
        lines = LINE.findall(content)
        if any(int(used) > int(limit) for _, used, limit in lines):
            raise CannotStart(f"the cache held more than its limit: {self.log}")
        hits = sum(kind == b"hit" for kind, _, _ in lines)
        return Counts(misses=len(lines) - hits, hits=hits)

    def answers(self, picture: bytes) -> list[Answer]:
        """To the questions, one after the other."""
        return [self._ask(picture, question) for question in QUESTIONS]

    def answers_at_once(self, picture: bytes) -> list[Answer]:
        """To the questions, from as many clients."""
        with ThreadPoolExecutor(len(QUESTIONS)) as clients:
            return list(clients.map(lambda question: self._ask(picture, question), QUESTIONS))

    def _ask(self, picture: bytes, question: str) -> Answer:
        """The likeliest next tokens and their log probabilities, as exact as JSON carries them, which is to the bit.

        Without the prompt cache: with it some pictures are not looked up at all, and answers move a little."""
        prompt = {
            "prompt_string": f"{MARKER}\n{question}",
            "multimodal_data": [base64.b64encode(picture).decode()],
        }
        body = {"prompt": prompt, "n_predict": 1, "n_probs": 20, "temperature": 0, "cache_prompt": False}
        reply = httpx.post(f"{self.url}/completion", json=body, timeout=120, trust_env=False)
        reply.raise_for_status()
        first: Any = reply.json()["completion_probabilities"][0]
        return [(entry["id"], entry["logprob"]) for entry in first["top_logprobs"]]
