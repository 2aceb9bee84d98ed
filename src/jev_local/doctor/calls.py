"""Commands as a person types them here, with ports that no other program has. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from urllib.parse import urlsplit

from jev_local.doctor.facts import Facts
from jev_local.settings import DEFAULT_API_URL, DEFAULT_BACKEND_URL
from jev_local.wire.hosts import is_localhost, is_loopback

LARGEST_PORT = 65535
FIRST_PORT = 1024

_IN_THE_WAY = ("foreign", "hung")


@dataclass(frozen=True, slots=True)
class Commands:
    """What a person types here. `ask` is `systemone`, `install` gets the inference server in the wheel."""

    setup: str
    up: str
    backend: str
    serve: str
    ask: str
    install: str


@dataclass(frozen=True, slots=True)
class Calls:
    """Those commands, where `facts` were found. A port of a program that is in the way is left to it, and a server that
    is there keeps its port: whoever is told to start it again stops it first."""

    commands: Commands
    facts: Facts

    @property
    def api_is_in_the_way(self) -> bool:
        """Somebody else has the port of the API, or what has it gives no answer."""
        return self.facts.api.is_local and self.facts.api.state in _IN_THE_WAY

    @property
    def backend_is_in_the_way(self) -> bool:
        return self.backend_is_local and self.facts.backend.state in _IN_THE_WAY

    @property
    def backend_is_local(self) -> bool:
        return is_loopback(urlsplit(self.facts.backend.url).hostname or "")

    @property
    def can_start_backend(self) -> bool:
        """Whether one that is started here listens where it is looked for."""
        host = urlsplit(self.facts.backend.url).hostname or ""
        return is_localhost(host) or host == urlsplit(DEFAULT_BACKEND_URL).hostname

    @property
    def api_port(self) -> int:
        """Where an API can listen."""
        if not self.facts.api.is_local:
            return port(DEFAULT_API_URL)
        wanted = port(self.facts.api.url)
        return _free(wanted, {wanted, self._backend_port}) if self.api_is_in_the_way else wanted

    @property
    def backend_port(self) -> int:
        """Where an inference server can, beside that API."""
        wanted = self._backend_port
        taken = {wanted} if self.backend_is_in_the_way else set()
        return _free(wanted, {*taken, self.api_port, *([port(self.facts.api.url)] if self.api_is_in_the_way else [])})

    @property
    def _backend_port(self) -> int:
        return port(self.facts.backend.url) if self.backend_is_local else port(DEFAULT_BACKEND_URL)

    def up(self, *, model: str | None = None, variables: str = "", to_api: str = "") -> str:
        """Both servers. `variables` go before it, `to_api` are options of the API."""
        words = [f"{variables} {self.commands.up}" if variables else self.commands.up]
        if model is not None:
            words.append(f"--model {model}")
        words += self._api_port_option()
        if self.backend_port != port(DEFAULT_BACKEND_URL):
            words.append(f"--backend-port {self.backend_port}")
        for_api = " ".join([*self._host_option(), *([to_api] if to_api else [])])
        return " ".join([*words, f"-- {for_api}"] if for_api else words)

    def serve(self) -> str:
        """The API, in front of the inference server that is there."""
        behind = self.facts.backend.url
        words = [self.commands.serve, *self._api_port_option(), *self._host_option()]
        return " ".join(words if behind == DEFAULT_BACKEND_URL else [*words, f"--backend-url {shlex.quote(behind)}"])

    def backend(self) -> str:
        """The inference server alone, where the API looks for it."""
        own = self._backend_port
        return self.commands.backend if own == port(DEFAULT_BACKEND_URL) else f"{self.commands.backend} --port {own}"

    def setup(self, model: str, *, model_only: bool = False, variables: str = "") -> str:
        words = [f"{variables} {self.commands.setup}" if variables else self.commands.setup, f"--model {model}"]
        return " ".join([*words, "--model-only"] if model_only else words)

    def ask(self, *more: str) -> str:
        url = self.facts.api.url
        return self._asked([*([] if url == DEFAULT_API_URL else ["--url", url]), *more])

    def again(self, *more: str) -> str:
        """The doctor once more, for the same addresses."""
        return self.at(self.facts.api.url, *more)

    def at(self, url: str, *more: str) -> str:
        """The doctor, for an API that is somewhere else."""
        backend = self.facts.backend.url
        words = ["doctor"]
        words += [] if url == DEFAULT_API_URL else ["--url", url]
        words += [] if backend == DEFAULT_BACKEND_URL else ["--backend-url", backend]
        return self._asked([*words, *more])

    def _asked(self, words: list[str]) -> str:
        return " ".join([self.commands.ask, *map(shlex.quote, words)])

    def _api_port_option(self) -> list[str]:
        return [] if self.api_port == port(DEFAULT_API_URL) else [f"--port {self.api_port}"]

    def _host_option(self) -> list[str]:
        """For an API that was looked for at another address of this machine."""
        host = urlsplit(self.facts.api.url).hostname or ""
        if not self.facts.api.is_local or is_localhost(host) or host == urlsplit(DEFAULT_API_URL).hostname:
            return []
        return [f"--host {shlex.quote(host)}"]


def _free(wanted: int, taken: set[int]) -> int:
    while wanted in taken:
        wanted = wanted + 1 if wanted < LARGEST_PORT else FIRST_PORT
    return wanted


def port(url: str) -> int:
    """Of a URL that was checked."""
    parts = urlsplit(url)
    return parts.port or {"https": 443}.get(parts.scheme, 80)
