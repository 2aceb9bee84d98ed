"""llama-server's event streams, cut into events that can be passed on as they came."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from jev_local.errors import BackendFault

Kind: TypeAlias = Literal["chunk", "progress", "error", "done", "comment"]

EVENT_LIMIT = 16 * 1024 * 1024
"""Bytes of one event."""

_END = b"\n\n"


@dataclass(frozen=True, slots=True)
class Event:
    """raw: all of the event, the blank line behind it too. kind: `progress` where it tells of nothing but progress,
    `comment` for whatever has no data, such as the pings that keep a connection open. value: its JSON, None where
    there is none; of an error it is the error itself. counted: whether it has usage or timings."""

    raw: bytes = field(repr=False)
    kind: Kind
    value: dict[str, Any] | None = field(default=None, repr=False)
    counted: bool = False


class Splitter:
    """Cuts bytes as they arrive into events. Line feeds alone end a line: JSON may carry U+2028 and U+0085 unescaped,
    and llama-server writes no carriage returns."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes. Raises BackendFault for one that is too large or makes no sense."""
        self._buffer += chunk
        events = []
        begin = 0
        # What was searched before is not searched again, but for a line feed that may be the first of a pair.
        while (end := self._buffer.find(_END, max(begin, self._searched - 1))) >= 0:
            events.append(_event(bytes(self._buffer[begin : end + len(_END)])))
            begin = self._searched = end + len(_END)
        del self._buffer[:begin]
        self._searched = len(self._buffer)
        if self._searched > EVENT_LIMIT:
            raise BackendFault("The inference server sent an event larger than any answer can be.")
        return events

    def finish(self) -> None:
        """Raises BackendFault where the stream ended within an event."""
        if self._buffer.strip():
            raise BackendFault("The inference server's answer broke off.")


def _event(raw: bytes) -> Event:
    data = [line[5:].strip() for line in raw.split(b"\n") if line.startswith(b"data:")]
    failed = [line[6:].strip() for line in raw.split(b"\n") if line.startswith(b"error:")]
    if failed:  # older builds put an error into a field of its own
        return Event(raw, "error", _error(_parsed(failed[0])))
    if not data:
        return Event(raw, "comment")
    if data == [b"[DONE]"]:
        return Event(raw, "done")
    value = _parsed(b"\n".join(data))
    if "error" in value:
        return Event(raw, "error", _error(value["error"]))
    kind: Kind = "progress" if "prompt_progress" in value and not _tells(value) else "chunk"
    return Event(raw, kind, value, counted=any(value.get(name) is not None for name in ("usage", "timings")))


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise BackendFault("The inference server sent an event that is no JSON.") from None
    if not isinstance(value, dict):
        raise BackendFault("The inference server sent an event that is no object.")
    return value


def _error(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tells(value: dict[str, Any]) -> bool:
    """Whether a chunk says more than that an answer is going to come and whose it is."""
    choices = value.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            return True
        delta = choice.get("delta")
        said = {**delta, "role": None} if isinstance(delta, dict) else {"text": choice.get("text")}
        if any(said.values()) or choice.get("finish_reason") is not None:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Reading:
    """How llama-server goes about a prompt of `total` tokens, `cached` of which its slot has."""

    total: int
    cached: int


def reading(event: Event) -> Reading | None:
    """What `event` tells of that, if it does."""
    progress = (event.value or {}).get("prompt_progress")
    if not isinstance(progress, dict):
        return None
    total, cached = progress.get("total"), progress.get("cache")
    return Reading(total, cached) if type(total) is int and type(cached) is int and 0 <= cached <= total else None


def generated(event: Event) -> int:
    """How many tokens were generated until `event`, as far as it tells; else 0."""
    timings = (event.value or {}).get("timings")
    count = timings.get("predicted_n") if isinstance(timings, dict) else None
    return count if type(count) is int and count > 0 else 0


def prompt_ms(event: Event) -> float:
    """How long llama-server took to read what it had still to read, as far as `event` tells; else 0."""
    timings = (event.value or {}).get("timings")
    ms = timings.get("prompt_ms") if isinstance(timings, dict) else None
    return float(ms) if isinstance(ms, int | float) and ms > 0 else 0.0
