"""The one thing to do next. Pure: a function of what was found, and of what commands are called here.

The rules are asked in order, and the first that has something to say is the step: what blocks the others comes first.
What stands in the way of a start is in `starting`, an API without its inference server in `behind`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from jev_local.backend.tags import name_of
from jev_local.doctor.behind import behind
from jev_local.doctor.calls import Calls, Commands
from jev_local.doctor.facts import Facts, Step
from jev_local.doctor.model_files import TOY, better, wanted
from jev_local.doctor.starting import START, start
from jev_local.launch.models import CATALOGUE
from jev_local.settings import DEFAULT_API_URL

SLOW = 100.0
"""Tokens a second below which a server built for this machine is worth fetching, where the wheel's is in use."""

WHEEL_BUILD = "b0-unknown"
"""What the wheel's server says its build is."""

A_TOY = name_of(CATALOGUE[TOY].weights.file)
"""What the toy calls itself."""


def next_step(facts: Facts, commands: Commands) -> Step:
    if facts.trouble is not None:
        return Step(facts.trouble)
    here = _Here(facts, Calls(commands, facts))
    for rule in _RULES:
        if (step := rule(here)) is not None:
            return step
    return start(facts, here.calls)


@dataclass(frozen=True, slots=True)
class _Here:
    facts: Facts
    calls: Calls

    @property
    def is_another(self) -> bool:
        """What answered is not what set-up would be told to keep."""
        return self.facts.api.is_local and self.facts.runs_another

    @property
    def uses_wheel(self) -> bool:
        """Whether the wheel's server gave the answer, and would again."""
        facts = self.facts
        build = facts.backend.build if facts.backend.state == "up" else facts.api.build
        return build == WHEEL_BUILD and facts.api.is_local and facts.chosen is not None and facts.chosen.server is None

    @property
    def setup(self) -> str:
        return self.calls.setup(wanted(self.facts))


def _decided(here: _Here) -> Step | None:
    facts, calls = here.facts, here.calls
    if facts.speed.state != "answered":
        return None
    if facts.api.is_local and facts.runs == A_TOY:
        return _with_a_toy(here)
    rate = facts.speed.tokens_per_second
    if here.uses_wheel and not here.is_another and rate is not None and rate < SLOW:
        return Step(
            "It works. The wheel's server runs on any processor, and slowly: a build for this machine is faster.",
            here.setup,
        )
    another = f", with {facts.runs}, which is not the model that is chosen" if here.is_another else ""
    return Step(f"All is well{another}: ask it something.", calls.ask("--state", "I was charged twice."))


def _with_a_toy(here: _Here) -> Step:
    if here.is_another:
        return start(
            here.facts,
            here.calls,
            f"It works, with {TOY}: a toy, whose answers are close to chance. Another model is chosen: stop this one, "
            "and start that.",
        )
    chosen = here.facts.chosen
    leave_out = " Leave MODEL out from then on." if chosen is not None and chosen.model_from == "MODEL" else ""
    return Step(
        f"It works, with {TOY}: a toy, whose answers are close to chance. Get a real model.{leave_out}",
        here.calls.setup(better(here.facts)),
    )


def _not_let_in(here: _Here) -> Step | None:
    if here.facts.speed.state != "wrong key":
        return None
    return Step(f"Set the server's key ({here.facts.speed.says}).", f"JEV_API_KEY=... {here.calls.again()}")


def _busy(here: _Here) -> Step | None:
    if here.facts.speed.state != "busy":
        return None
    return Step("The server takes no more requests just now: wait, and look again.", here.calls.again())


def _too_slow(here: _Here) -> Step | None:
    if here.facts.speed.state != "too slow":
        return None
    if here.facts.backend.state == "hung":
        return Step(
            f"The inference server at {here.facts.backend.url} takes connections and gives no answer: end it, and "
            f"start it again ({here.calls.commands.up} does that by itself), then look again.",
            here.calls.again(),
        )
    if here.uses_wheel and not here.is_another:
        return Step("The answer took too long. The wheel's server is slow: get a build for this machine.", here.setup)
    return Step("The answer took too long: give it more time.", here.calls.again("--timeout", "600"))


def _failed(here: _Here) -> Step | None:
    facts, calls = here.facts, here.calls
    match facts.speed.state:
        case "refused":
            return Step(
                f"The server refused a plain question: {facts.speed.says}. Mend that, and look again.", calls.again()
            )
        case "unreachable":
            return Step(f"{facts.speed.says} Look into its log, and look again.", calls.again())
        case "bad answer" if facts.api.is_local:
            return start(
                facts, calls, f"{facts.speed.says} Look into its log, stop both servers, and start them again."
            )
        case "bad answer":
            return Step(f"{facts.speed.says} Start it again there, and look again.", calls.again())
        case _:
            return None


def _behind(here: _Here) -> Step | None:
    return behind(here.facts, here.calls)


def _wrong_url(here: _Here) -> Step | None:
    api, calls = here.facts.api, here.calls
    parts = urlsplit(api.url)
    if api.state != "foreign" or (api.is_local and parts.scheme == "http" and not parts.path):
        return None
    root = f"{'http' if api.is_local else parts.scheme}://{parts.netloc}"
    says = f"What answers at {api.url} is not the API: correct --url, which is its root, without /v1."
    return Step(says, calls.at(root))


def _elsewhere(here: _Here) -> Step | None:
    """No API on another machine, and nothing to be done about it from here."""
    api, calls = here.facts.api, here.calls
    if api.is_local:
        return None
    does = "Nobody answers at" if api.state == "down" else "No complete answer comes from"
    return Step(f"{does} {api.url}: start the server there, or correct --url.", calls.again())


def _no_api(here: _Here) -> Step | None:
    """Neither an API on this machine nor anything that a start would have to mend, but an inference server."""
    facts, calls = here.facts, here.calls
    backend = facts.backend
    if backend.state == "up":
        says = "The inference server is up, and no API: start that."
    elif backend.state == "loading":
        if not _beside(here):  # `up` starts its API when the model is there, and a second one would be in its way
            return Step(
                f"The inference server loads its model. {calls.commands.up} starts the API after that: wait, and look "
                "again.",
                calls.again(),
            )
        says = ""
    elif not calls.backend_is_local:
        return Step(
            f"No inference server answers at {backend.url}: start it there, or correct --backend-url.", calls.again()
        )
    else:
        return None
    return Step(_beside(here) or says, calls.serve())


def _in_the_way(here: _Here) -> Step | None:
    return start(here.facts, here.calls, _beside(here) or START)


def _beside(here: _Here) -> str:
    """Which ports are not to be had, and what follows; empty where both are."""
    api, backend, calls = here.facts.api, here.facts.backend, here.calls
    found, options = [], []
    if calls.api_is_in_the_way:
        options.append("--url")
        if api.state == "hung":
            found.append(f"What listens at {api.url} does not answer")
        elif api.url == DEFAULT_API_URL:
            found.append(f"Another program listens at {api.url}")
        else:
            found.append(f"What answers at {api.url} is not the API: correct --url if need be")
    if calls.backend_is_in_the_way:
        options.append("--backend-url")
        does = "does not answer" if backend.state == "hung" else "is no inference server"
        found.append(f"What listens at {backend.url} {does}")
    if not found:
        return ""
    them, ports = ("it", "another port") if len(found) == 1 else ("them", "other ports")
    names = " and ".join(options)
    return f"{'. '.join(found)}. Stop {them}, or start on {ports}, and name that with {names} from then on."


_RULES: tuple[Callable[[_Here], Step | None], ...] = (
    _decided,
    _not_let_in,
    _busy,
    _too_slow,
    _failed,
    _behind,
    _wrong_url,
    _elsewhere,
    _no_api,
    _in_the_way,
)
