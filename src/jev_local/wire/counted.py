"""llama-server's numbers about a prompt, corrected where most of it was evaluated before the request that it saw."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# Within a string of JSON a quote has a backslash before it, and these have none before their second one. Without one
# before the first too, they are a key and nothing a caller wrote.
_USAGE = re.compile(rb'("usage"\s*:\s*)(\{(?:[^{}"]|"\w+"|\{[^{}]*\})*\})')
_TIMINGS = re.compile(rb'("timings"\s*:\s*)(\{[^{}]*\})')
_DETAILS = re.compile(rb'("prompt_tokens_details"\s*:\s*)(\{[^{}]*\})')
_NUMBER = rb"-?\d[-+.\deE]*|null"


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of a whole prompt that were reused and that were evaluated, and the milliseconds which that took."""

    cached: int
    processed: int
    prompt_ms: float


def corrected(raw: bytes, counts: Counts) -> bytes:
    """`raw`, one event or one JSON document of llama-server's, with `counts` in `usage.prompt_tokens_details` and in
    `timings`. Everything else stays byte for byte; so does all of `raw` where it has neither."""
    tokens, ms = counts.processed, counts.prompt_ms
    timings = {
        "cache_n": counts.cached,
        "prompt_n": tokens,
        "prompt_ms": ms,
        "prompt_per_token_ms": ms / tokens if tokens else 0.0,
        "prompt_per_second": tokens * 1000 / ms if ms else 0.0,
    }
    cached = {"cached_tokens": counts.cached}
    raw = _USAGE.sub(_within(lambda usage: _with_details(usage, cached)), raw)
    return _TIMINGS.sub(_within(lambda body: _with(body, timings)), raw)


def _within(change: Callable[[bytes], bytes]) -> Callable[[re.Match[bytes]], bytes]:
    def changed(found: re.Match[bytes]) -> bytes:
        is_key = found.string[found.start() - 1 : found.start()] != b"\\"
        return found[1] + change(found[2]) if is_key else found[0]

    return changed


def _with_details(usage: bytes, cached: Mapping[str, float]) -> bytes:
    if _DETAILS.search(usage):
        return _DETAILS.sub(_within(lambda details: _with(details, cached, add=True)), usage)
    details = json.dumps(cached, separators=(",", ":")).encode()
    return usage[:-1] + b"," * (usage != b"{}") + b'"prompt_tokens_details":' + details + b"}"


def _with(body: bytes, numbers: Mapping[str, float], *, add: bool = False) -> bytes:
    """A flat object with other numbers. Those that it does not have are added only where that is asked for."""
    for name, number in numbers.items():
        written = json.dumps(number).encode()
        body, found = re.subn(rb'("%s"\s*:\s*)(?:%s)' % (name.encode(), _NUMBER), rb"\g<1>" + written, body)
        if add and not found:
            body = body[:-1] + b"," * (body != b"{}") + b'"%s":%s}' % (name.encode(), written)
    return body
