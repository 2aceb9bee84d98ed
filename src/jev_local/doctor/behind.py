"""What to do where the API is there, and cannot answer for want of its inference server. Pure.

The doctor looks for an inference server where it is told to, and the API may look elsewhere: what the API itself says
comes first.
"""

from __future__ import annotations

from jev_local.doctor.calls import Calls
from jev_local.doctor.facts import Facts, Step
from jev_local.doctor.starting import start

GONE = "not reachable"
"""Part of what an API says whose inference server takes no connection."""


def behind(facts: Facts, calls: Calls) -> Step | None:
    """None where the API is not there, or has answered otherwise."""
    api, backend = facts.api, facts.backend
    if facts.speed.state == "not ready":
        told, passes = facts.speed.says, True
    elif api.state in ("starting", "unavailable"):
        told, passes = api.says, api.state == "starting"
    else:
        return None
    if api.is_local and backend.state == "loading":
        return Step("The model is being loaded: wait, and look again.", calls.again())
    reason = told.rstrip(". ") or "it gives no reason"
    if GONE in told or not (told or passes):
        return _gone(facts, calls, reason)
    if passes:
        return Step(f"The API is not ready ({reason}): wait, and look again.", calls.again())
    if api.is_local and calls.backend_is_in_the_way:
        return _in_the_way(facts, calls, reason)
    return Step(f"The API is not ready: {reason}. Mend that, and look again.", calls.again())


def _gone(facts: Facts, calls: Calls, reason: str) -> Step:
    """The API finds nobody. What the doctor sees there tells why."""
    api, backend = facts.api, facts.backend
    if not api.is_local:
        return Step(f"The API at {api.url} is not ready: {reason}. Start it there.", calls.again())
    if calls.backend_is_in_the_way:
        return _in_the_way(facts, calls, reason)
    if backend.state == "up":
        return Step(
            f"The API is not ready ({reason}), and an inference server answers at {backend.url}. If that lasts, the "
            "API looks for another one: stop it, and start it in front of this one.",
            calls.serve(),
        )
    if backend.state == "down" and calls.can_start_backend:
        return Step("The API runs, and its inference server does not: start that.", calls.backend())
    return Step(
        f"The API is not ready ({reason}), and no inference server answers at {backend.url}: start one there, and look "
        "again.",
        calls.again(),
    )


def _in_the_way(facts: Facts, calls: Calls, reason: str) -> Step:
    return start(
        facts,
        calls,
        f"The API is not ready ({reason}), and what listens at {facts.backend.url} is no inference server: stop the "
        "API, and start both with another port.",
    )
