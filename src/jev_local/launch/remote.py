"""A host that has a file, and one question to it, which ends in its time whatever the host does.

What goes wrong is told apart here: httpx.HTTPError is of the host and may pass, Unreachable is for good.
"""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from jev_local.launch.errors import CannotStart
from jev_local.threads import start_without_interrupts
from jev_local.wire.hosts import proxy_for

SETTINGS = re.compile(r"(?i)((https?|all|no)_proxy|ssl_cert_(file|dir))")
"""Of the environment, that decide how any host is reached."""

PROXIES = re.compile(r"(?i)(https?|all)_proxy")


@dataclass(frozen=True, slots=True)
class Remote:
    """A file behind an address. `host` names who has it. `headers` may hold a token: they go to the host in `url`, and
    to no other that it redirects to. `refused` is what a 401 or 403 means there."""

    host: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    refused: str = ""


class Unreachable(CannotStart):
    """This source does not give the file now. Another may."""


@contextmanager
def reaching(host: str, how: str = "") -> Iterator[None]:
    """Whatever the environment makes of a question becomes Unreachable: an address that is none, a proxy of another
    kind, certificates or a token that cannot be read. Each library on the way has errors of its own for that. Their
    texts can hold a password out of an address, so none is shown."""
    try:
        yield
    except (httpx.HTTPError, CannotStart):
        raise
    except Exception as error:
        raise Unreachable(f"{host} cannot be reached{how}", details=type(error).__name__) from error


def are_set(names: re.Pattern[str], environment: Mapping[str, str] = os.environ) -> str:
    """` (HTTP_PROXY, NO_PROXY)`: which of these the environment has, by name alone."""
    found = sorted(name for name, value in environment.items() if value and names.fullmatch(name))
    return f" ({', '.join(found)})" if found else ""


def client(remote: Remote, seconds: float) -> httpx.Client:
    """One that waits so long for each piece. Unreachable where the environment allows none."""
    transport = _Transport()
    with reaching(remote.host, f" with the proxy and the certificates that are set{are_set(SETTINGS)}"):
        transport.towards(remote.url)
        return httpx.Client(timeout=seconds, transport=transport, trust_env=False)


class _Transport(httpx.BaseTransport):
    """With the proxy that the environment has for each host: a redirect may lead to another one."""

    def __init__(self) -> None:
        self._known: dict[str | None, httpx.HTTPTransport] = {}

    def towards(self, address: str | httpx.URL) -> httpx.HTTPTransport:
        try:
            url = httpx.URL(address)
        except httpx.InvalidURL:  # is told where it is asked
            url = httpx.URL("http://localhost")
        proxy = proxy_for(url.scheme, url.host, url.netloc.decode("ascii"))
        if proxy not in self._known:
            self._known[proxy] = httpx.HTTPTransport(proxy=proxy)
        return self._known[proxy]

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self.towards(request.url).handle_request(request)

    def close(self) -> None:
        for transport in self._known.values():
            transport.close()


def request(remote: Remote, asking: httpx.Client, method: str, headers: Mapping[str, str]) -> httpx.Request:
    with reaching(remote.host):
        return asking.build_request(method, remote.url, headers={**remote.headers, **headers})


def reply(
    remote: Remote,
    asking: httpx.Client,
    question: httpx.Request,
    *,
    until: float,
    enough: Callable[[httpx.Response], bool] = lambda _: False,
) -> httpx.Response:
    """The answer, after all redirects or the first that is `enough`, its body unread. Unreachable where its headers are
    not all there at that time of the monotonic clock: they may come in drops, which no timeout sees. `asking` is closed
    then."""
    for _ in range(asking.max_redirects + 1):

        def send(question: httpx.Request = question) -> httpx.Response:
            with reaching(remote.host, are_set(PROXIES)):
                return asking.send(question, stream=True)

        try:
            answer = _within(until - time.monotonic(), send, asking.close)
        except TimeoutError as error:
            raise Unreachable(f"{remote.host} does not answer in time", details=repr(error)) from error
        if answer.next_request is None or enough(answer):
            return answer
        answer.close()  # httpx would read all that a redirect has for a body, and unpack it
        question = answer.next_request
    raise httpx.TooManyRedirects("a circle of redirects, or nearly")


def _within(seconds: float, call: Callable[[], httpx.Response], give_up: Callable[[], None]) -> httpx.Response:
    outcome: queue.SimpleQueue[httpx.Response | BaseException] = queue.SimpleQueue()
    given_up = threading.Event()

    def work() -> None:
        try:
            outcome.put(call())
        except BaseException as error:
            outcome.put(error)
        if given_up.is_set():
            give_up()

    start_without_interrupts(threading.Thread(target=work, daemon=True))
    try:
        found = outcome.get(timeout=max(0.0, seconds))
    except BaseException as error:
        given_up.set()
        give_up()
        if isinstance(error, queue.Empty):
            raise TimeoutError from None
        raise
    if isinstance(found, BaseException):
        raise found
    return found


def pieces(remote: Remote, answer: httpx.Response) -> Iterator[bytes]:
    """Of its body, as they come and as they are."""
    with reaching(remote.host):
        yield from answer.iter_raw()


def number(told: str | None) -> int | None:
    """Bytes that a header tells; None for what no file has, or no number is."""
    return int(told) if told is not None and re.fullmatch(r"[0-9]{1,18}", told) else None


def require_no_refusal(remote: Remote, status: int) -> None:
    """Unreachable for a status that asking again would not change."""
    if 400 <= status < 500 and status not in (408, 429):
        why = f": {remote.refused}" if status in (401, 403) and remote.refused else ""
        raise Unreachable(f"{remote.host} answers {status}{why}")
