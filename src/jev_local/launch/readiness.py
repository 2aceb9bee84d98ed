"""What a server of ours says of itself, and how long it is worth waiting when that is not `ready`."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

ASK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Patience:
    """With an API that is up and says why it cannot answer. Pure: no clock, no network.

    Immutable: `after` one look returns what to go on with. The API tries again and again, and is `starting` for a
    moment each time it does, so looks that found `unavailable` are counted and none of the others takes any back.
    """

    limit: int = 10
    seen: int = 0
    reason: str = "no reason given"

    def after(self, status: int, body: Any) -> Patience:
        """`status` and `body` of /ready: 503 with what the API thinks, or whatever else listens there."""
        if status != 503 or not isinstance(body, dict) or body.get("status") != "unavailable":
            return self
        reason = body.get("reason")
        return replace(self, seen=self.seen + 1, reason=reason if isinstance(reason, str) else self.reason)

    @property
    def is_over(self) -> bool:
        return self.seen >= self.limit


def ask(url: str) -> tuple[int, Any]:
    """Status and JSON body of a GET; 0 where nobody answers, None where the body is something else."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ASK_SECONDS)
    try:
        connection.request("GET", parts.path)
        reply = connection.getresponse()
        content = reply.read()
    except (OSError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()
    try:
        return reply.status, json.loads(content)
    except ValueError:
        return reply.status, None
