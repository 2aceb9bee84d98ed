"""The one thing to do next. Pure: a function of what was found, and of what commands are called here.

The rules are asked in order, and the first that has something to say is the step: what blocks the others comes first.
What stands in the way of a start is in `starting`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jev_local.doctor.facts import Facts, Step
from jev_local.doctor.starting import Commands, named, start
from jev_local.settings import DEFAULT_API_URL, DEFAULT_BACKEND_URL

SLOW = 100.0
"""Tokens a second below which a server built for this machine is worth fetching, where the wheel's is in use."""

WHEEL_BUILD = "b0-unknown"
"""What the wheel's server says its build is."""


def next_step(facts: Facts, commands: Commands) -> Step:
    if facts.trouble is not None:
        return Step(facts.trouble)
    here = _Here(facts, commands)
    for rule in _RULES:
        if (step := rule(here)) is not None:
            return step
    return start(facts, commands)


@dataclass(frozen=True, slots=True)
class _Here:
    facts: Facts
    commands: Commands

    @property
    def uses_wheel(self) -> bool:
        """Whether the wheel's server gave the answer, and would again."""
        facts = self.facts
        build = facts.backend.build if facts.backend.state == "up" else facts.api.build
        return build == WHEEL_BUILD and facts.api.is_local and facts.chosen is not None and facts.chosen.server is None

    @property
    def setup(self) -> str:
        return f"{self.commands.setup} --model {named(self.facts.chosen)}"

    @property
    def serve(self) -> str:
        url, serve = self.facts.api.url, self.commands.serve
        words = [serve] if url == DEFAULT_API_URL else [serve, "--port", str(port(url))]
        behind = self.facts.backend.url
        return " ".join(words if behind == DEFAULT_BACKEND_URL else [*words, "--backend-url", behind])

    @property
    def ask(self) -> str:
        url = self.facts.api.url
        return self.commands.ask if url == DEFAULT_API_URL else f"{self.commands.ask} --url {url}"

    @property
    def again(self) -> str:
        facts = self.facts
        words = [self.commands.ask, "doctor"]
        words += [] if facts.api.url == DEFAULT_API_URL else ["--url", facts.api.url]
        words += [] if facts.backend.url == DEFAULT_BACKEND_URL else ["--backend-url", facts.backend.url]
        return " ".join(words)


def _decided(here: _Here) -> Step | None:
    if here.facts.speed.state != "answered":
        return None
    rate = here.facts.speed.tokens_per_second
    if here.uses_wheel and rate is not None and rate < SLOW:
        return Step(
            "It works. The wheel's server runs on any processor, and slowly: a build for this machine is faster.",
            here.setup,
        )
    return Step("All is well: ask it something.", f"{here.ask} --state 'I was charged twice.'")


def _not_let_in(here: _Here) -> Step | None:
    if here.facts.speed.state != "wrong key":
        return None
    return Step(f"Set the server's key ({here.facts.speed.says}).", f"JEV_API_KEY=... {here.again}")


def _busy(here: _Here) -> Step | None:
    if here.facts.speed.state != "busy":
        return None
    return Step("The server takes no more requests just now: wait, and look again.", here.again)


def _too_slow(here: _Here) -> Step | None:
    if here.facts.speed.state != "too slow":
        return None
    if here.uses_wheel:
        return Step("The answer took too long. The wheel's server is slow: get a build for this machine.", here.setup)
    return Step("The answer took too long: give it more time.", f"{here.again} --timeout 600")


def _failed(here: _Here) -> Step | None:
    match here.facts.speed.state:
        case "refused":
            return Step(f"The server refused a plain question: {here.facts.speed.says}")
        case "bad answer" | "unreachable":
            return Step(f"{here.facts.speed.says} Look into its log, and start it again.", here.commands.up)
        case _:
            return None


def _somebody_else(here: _Here) -> Step | None:
    api = here.facts.api
    if api.state == "hung":
        return Step(f"What listens at {api.url} does not answer: stop it, and start again.", here.commands.up)
    if api.state != "foreign":
        return None
    if api.url != DEFAULT_API_URL:
        return Step(f"What answers at {api.url} is not the API: correct --url, which is its root, without /v1.")
    return Step(
        f"Another program listens at {api.url}: start on another port, and name it with --url from then on.",
        f"{here.commands.up} --port {port(api.url) + 1}",
    )


def _not_ready(here: _Here) -> Step | None:
    api, backend = here.facts.api, here.facts.backend
    if api.state == "starting" or (api.state == "unavailable" and backend.state == "loading"):
        return Step("The model is being loaded: wait, and look again.", here.again)
    if api.state != "unavailable":
        return None
    if backend.state == "down" and api.is_local:
        return Step("The API runs, and its inference server does not: start that.", here.commands.backend)
    return Step(f"The API is not ready: {api.says or 'it gives no reason'}")


def _nobody_there(here: _Here) -> Step | None:
    api = here.facts.api
    return None if api.is_local else Step(f"Nobody answers at {api.url}: start the server there, or correct --url.")


def _no_api(here: _Here) -> Step | None:
    backend = here.facts.backend
    match backend.state:
        case "up":
            return Step("The inference server is up, and no API: start that.", here.serve)
        case "loading":
            return Step("The inference server loads its model. Start the API, which waits for it.", here.serve)
        case "hung":
            return Step(f"What listens at {backend.url} does not answer: stop it, and start again.", here.commands.up)
        case "foreign":
            return Step(
                f"Another program listens at {backend.url}, where the inference server would: use another port.",
                f"{here.commands.up} --backend-port {port(backend.url) + 1}",
            )
        case _:
            return None


_RULES: tuple[Callable[[_Here], Step | None], ...] = (
    _decided,
    _not_let_in,
    _busy,
    _too_slow,
    _failed,
    _somebody_else,
    _not_ready,
    _nobody_there,
    _no_api,
)


def port(url: str) -> int:
    """Of a URL that was checked."""
    scheme, _, rest = url.partition("://")
    number = rest.partition("/")[0].rpartition(":")[2]
    return int(number) if number.isdecimal() else {"https": 443}.get(scheme, 80)
