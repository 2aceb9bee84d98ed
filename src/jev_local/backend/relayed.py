"""Requests that are relayed to llama-server, as it is sent them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jev_local.core.chats import LIMITS


def upstream(document: Mapping[str, Any], *, slot: int, cache: bool, max_tokens: int | None) -> bytes:
    """The JSON to send to llama-server, always for a stream with progress: it notices that a client has gone only when
    it has something to send. Usage is asked for where the caller does not stream, so that it can be put into the
    document; a caller's own `stream_options` count where it does. Everything else is as it was, in order."""
    ours: dict[str, Any] = {"id_slot": slot, "cache_prompt": cache, "stream": True, "return_progress": True}
    if not document.get("stream"):
        ours["stream_options"] = {"include_usage": True}
        if "messages" in document:
            ours["echo"] = True  # a document has the beginning of an answer that the caller wrote, a stream has not
    if max_tokens is not None:
        ours["max_tokens"] = max_tokens
    kept = {name: value for name, value in document.items() if name not in LIMITS}
    return json.dumps(kept | ours, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
