"""What can be asked without asking the model: which models there are, whether the service is alive and ready."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jev_local.engine.decision import Status
from jev_local.wire.problems import retry_headers

_RETRY_SECONDS = 2.0


def models(status: Status, started: datetime) -> dict[str, Any]:
    """TypeSafe's list and OpenAI's, at once. While the local model is not known yet, the alias stands alone.

    A model file does not say when it was released, and both shapes require a date: it is the time this
    service started, as other local servers have it.
    """
    named = [(status.model, "The local model.")] if status.model else []
    named.append(("jev-latest", f"Alias of {status.model}." if status.model else "Alias of the local model."))
    date = started.isoformat(timespec="seconds")
    return {
        "object": "list",
        "models": [{"name": name, "description": text, "release_date": date} for name, text in named],
        "data": [
            {"id": name, "object": "model", "created": int(started.timestamp()), "owned_by": "local"}
            for name, _ in named
        ],
    }


def readiness(status: Status) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status code, body and headers of `/ready`."""
    body = {
        "status": status.status,
        "reason": status.reason,
        "model": status.model,
        "backend": {
            "build": status.build,
            "slots": status.slots,
            "context": status.context,
            "vision": status.vision,
        },
        "labels": {"single": status.single_labels},
        "state_cache": status.state_cache,
        "chats": status.chats,
    }
    return (200, body, {}) if status.status == "ready" else (503, body, retry_headers(_RETRY_SECONDS))
