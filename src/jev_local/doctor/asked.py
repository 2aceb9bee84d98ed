"""One short question to whoever listens somewhere. Whatever comes back is told, and nothing is raised."""

from __future__ import annotations

import json
import ssl
import time
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from jev_local.wire.hosts import is_loopback
from jev_local.wire.strict_json import nested_deeper

ASK_SECONDS = 3.0
MOST_BYTES = 4 * 1024 * 1024
"""The longest chat template, which is part of what llama-server tells of itself, is a small fraction of it."""

DEEPEST = 64


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


def get(root: str, path: str, *, seconds: float = ASK_SECONDS) -> Heard:
    """GET `path` below `root`, a checked URL without a slash at its end. No key is sent."""
    started = time.monotonic()
    url = httpx.URL(root)
    content = bytearray()
    try:
        with (
            httpx.Client(timeout=seconds, trust_env=not is_loopback(url.host)) as client,
            client.stream("GET", f"{root}{path}", headers={"Accept": "application/json"}) as reply,
        ):
            for piece in reply.iter_bytes():
                content += piece
                if len(content) > MOST_BYTES:
                    return Heard("answered", reply.status_code)
                if time.monotonic() - started > seconds:
                    return Heard("hung")
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        return Heard("answered" if _speaks_otherwise(error) else "down")
    except httpx.TimeoutException:
        return Heard("hung")
    except httpx.HTTPError:  # it answers, and not in HTTP
        return Heard("answered")
    return Heard("answered", reply.status_code, _json(bytes(content)))


def _speaks_otherwise(error: BaseException | None) -> bool:
    """A connection was there, and ended because the other side has no TLS, or no certificate that is trusted."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _json(content: bytes) -> Any:
    try:
        return None if nested_deeper(content, DEEPEST) else json.loads(content)
    except (ValueError, RecursionError):
        return None


def text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
