"""Who listens where the inference server and the API should, and what they say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import httpx

from jev_local.backend.tags import name_of
from jev_local.doctor.asked import ASK_SECONDS, Heard, count, get, text
from jev_local.doctor.facts import Api, Backend
from jev_local.wire.hosts import is_loopback

HUNG = "it takes connections and does not answer"
NOBODY = "nobody listens there"


def backend(url: str, *, weights: Path | None, seconds: float = ASK_SECONDS) -> Backend:
    """`weights` is the chosen model's file."""
    health = get(url, "/health", seconds=seconds)
    if health.state != "answered":
        return Backend(url, health.state, HUNG if health.state == "hung" else NOBODY)
    if health.status == 503 and _says_loading(health):
        return Backend(url, "loading", "it is loading its model")
    props = get(url, "/props", seconds=seconds)
    slots, path = count(props.members.get("total_slots")), text(props.members.get("model_path"))
    if health.status != 200 or slots is None or path is None:
        return Backend(url, "foreign", f"it is no llama-server (it answers {health.status or 'something else'})")
    defaults = props.members.get("default_generation_settings")
    return Backend(
        url=url,
        state="up",
        says="it has its model",
        model=name_of(path),
        slots=slots,
        context=count(defaults.get("n_ctx")) if isinstance(defaults, dict) else None,
        build=text(props.members.get("build_info")),
        is_chosen=weights is not None and is_here(url) and Path(path).name == weights.name,
    )


def api(url: str, *, seconds: float = ASK_SECONDS) -> Api:
    """What its /ready says; no key is needed for that."""
    ready = get(url, "/ready", seconds=seconds)
    here = is_here(url)
    if ready.state != "answered":
        return Api(url, ready.state, HUNG if ready.state == "hung" else NOBODY, is_local=here)
    members = ready.members
    state = _STATES.get(text(members.get("status")) or "")
    if ready.status not in (200, 503) or state is None or "labels" not in members:
        answer = ready.status or "something else"
        return Api(url, "foreign", f"it is not this API (its /ready answers {answer})", is_local=here)
    behind = members.get("backend")
    behind = behind if isinstance(behind, dict) else {}
    return Api(
        url=url,
        state=state,
        says=text(members.get("reason")) or "",
        model=text(members.get("model")),
        slots=count(behind.get("slots")),
        context=count(behind.get("context")),
        build=text(behind.get("build")),
        is_local=here,
    )


def is_here(url: str) -> bool:
    """Whether it can only be this machine."""
    return is_loopback(httpx.URL(url).host)


_STATES: dict[str, Literal["ready", "starting", "unavailable"]] = {
    "ready": "ready",
    "starting": "starting",
    "unavailable": "unavailable",
}


def _says_loading(health: Heard) -> bool:
    error = health.members.get("error")
    return isinstance(error, dict) and "loading" in str(error.get("message", "")).lower()
