"""One short question to whoever listens somewhere. Whatever comes back is told, and nothing is raised."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from jev_local.exchange import ask_once
from jev_local.line import NoReply
from jev_local.wire.strict_json import nested_deeper

ASK_SECONDS = 3.0
MOST_BYTES = 4 * 1024 * 1024
"""The longest chat template, which is part of what llama-server tells of itself, is a small fraction of it."""

DEEPEST = 64
MOST = 10**12
"""No slots, tokens or bytes that are told here are more than that."""


@dataclass(frozen=True, slots=True)
class Heard:
    """`state` down: nobody takes connections there; hung: somebody does and gives no complete answer in time.
    `document` is the JSON of the answer, None where it is none."""

    state: Literal["answered", "hung", "down"]
    status: int = 0
    document: Any = None

    @property
    def members(self) -> dict[str, Any]:
        """Of a JSON object; none where it is something else."""
        return self.document if isinstance(self.document, dict) else {}


_STATES: dict[str, Literal["answered", "hung"]] = {"unfinished": "hung", "broken": "answered"}
"""broken: it answers, and not in HTTP, or not in the TLS that was asked for."""


def get(root: str, path: str, *, seconds: float = ASK_SECONDS) -> Heard:
    """GET `path` below `root`, a checked URL without a slash at its end. No key is sent."""
    headers = {"Accept": "application/json"}
    try:
        reply = ask_once("GET", f"{root}{path}", seconds=seconds, most=MOST_BYTES, headers=headers)
    except NoReply as error:
        return Heard(_STATES.get(error.fault, "down"))
    return Heard("answered", reply.status, None if reply.trouble else _json(reply.content))


def _json(content: bytes) -> Any:
    try:
        return None if nested_deeper(content, DEEPEST) else json.loads(content)
    except (ValueError, RecursionError):
        return None


def text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST else None
