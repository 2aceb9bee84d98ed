"""One connection to an HTTP server, and what one exchange over it comes to. All of httpx, and all of its errors, end
here."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

import httpx

from jev_local.wire.hosts import is_loopback, proxy_for

Fault = Literal["unusable", "refused", "unconnected", "unfinished", "broken"]

MOST_PORT = 65535

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_CONNECTED = (".connect_tcp.complete", ".start_tls.complete")


class NoReply(Exception):
    """`fault` unusable: no question can be put with this URL or in this environment; refused: nobody takes connections
    there; unconnected, unfinished: the time was up before there was a connection, or after; broken: the connection
    broke, or what came is not HTTP, or not TLS. `why` is a piece of one line, for a person."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(why)
        self.fault, self.why = fault, why


@dataclass(frozen=True, slots=True)
class Asked:
    """`seconds` holds for each step alone; `most` bytes of content are read."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    seconds: float
    most: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Header names are lower case. `trouble` says, as a sentence with "it" for the reply, why `content` is not all that
    came; empty, it is."""

    status: int
    phrase: str
    headers: Mapping[str, str]
    content: bytes
    trouble: str = ""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class Line:
    """At most one exchange at a time, over one connection that is kept. It is carried on one thread and may be cut from
    another. A proxy of the environment is used, unless the server is on this machine: no proxy can reach that, nor
    should it see what goes there. Raises NoReply (unusable)."""

    def __init__(self, url: str) -> None:
        self._transport = _transport(url)
        self._lock = Lock()
        self._socket: socket.socket | None = None
        self._is_carrying = self._is_cut = False

    @property
    def is_connected(self) -> bool:
        """Whether it ever was."""
        return self._socket is not None

    def carry(self, asked: Asked) -> Reply:
        """Raises NoReply."""
        with self._lock:
            self._is_carrying = True
        try:
            return self._carry(asked)
        finally:
            with self._lock:
                self._is_carrying = False
                is_cut = self._is_cut
            if is_cut:
                self.close()

    def cut(self) -> None:
        """For good. Wakes the thread that reads from the connection, or writes to it."""
        with self._lock:
            self._is_cut, is_carrying = True, self._is_carrying
            _shut(self._socket)
        if not is_carrying:
            self.close()

    def close(self) -> None:
        self._transport.close()

    def _carry(self, asked: Asked) -> Reply:
        try:
            # Not through a client, which would read the target of a redirect and keep cookies.
            response = self._transport.handle_request(self._request(asked))
            try:
                content, trouble = _content(response, asked.most)
            finally:
                response.close()
        except httpx.ConnectTimeout as error:
            raise NoReply("unconnected", "no connection in time") from error
        except httpx.TimeoutException as error:
            raise NoReply("unfinished", "no complete answer in time") from error
        except httpx.ConnectError as error:
            # Somebody took the connection, and then it was TLS that failed.
            raise NoReply("broken" if self.is_connected else "refused", _cause(error)) from error
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise NoReply("broken", _cause(error)) from error
        except (ValueError, OverflowError, httpx.InvalidURL) as error:
            raise NoReply("unusable", "its host name or port, or its proxy's, cannot be right") from error
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Reply(response.status_code, response.reason_phrase, headers, content, trouble)

    def _request(self, asked: Asked) -> httpx.Request:
        return httpx.Request(
            asked.method,
            asked.url,
            content=asked.body or None,
            # What a reply unpacks to is not known before it is unpacked.
            headers={**asked.headers, "Accept-Encoding": "identity"},
            extensions={"timeout": httpx.Timeout(asked.seconds).as_dict(), "trace": self._watch},
        )

    def _watch(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(_CONNECTED):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                if self._is_cut:
                    _shut(self._socket)


def _transport(url: str) -> httpx.HTTPTransport:
    try:
        parsed = httpx.URL(url)
        is_trusting = not is_loopback(parsed.host)
        proxy = proxy_for(parsed.scheme, parsed.host, parsed.netloc.decode("ascii")) if is_trusting else None
        if parsed.port is not None and parsed.port > MOST_PORT:  # some systems take what is left of its lower bits
            raise ValueError
    except (ValueError, httpx.InvalidURL) as error:
        raise NoReply("unusable", "the URL names no server") from error
    try:
        return httpx.HTTPTransport(proxy=proxy, trust_env=is_trusting)
    except OSError as error:
        why = f"the certificates of the environment cannot be read: {error.strerror or error}; {_set(_CERTIFICATES)}"
    except ImportError:
        why = f"the proxy of the environment needs the package socksio; {_set(_PROXIES)}"
    except (ValueError, httpx.InvalidURL):
        # The error repeats the proxy's URL, and there may be a password in it.
        why = f"the proxy of the environment is none; {_set(_PROXIES)}"
    raise NoReply("unusable", why)


def _content(response: httpx.Response, most: int) -> tuple[bytes, str]:
    codings = {coding.strip().lower() for coding in response.headers.get("content-encoding", "").split(",")}
    if codings - {"", "identity"}:
        return b"", "it came compressed, which was not asked for"
    content = bytearray()
    for chunk in response.iter_raw():
        content += chunk
        if len(content) > most:
            return b"", f"it is longer than {most:,} bytes"
    return bytes(content), ""


def _cause(error: Exception) -> str:
    """httpx words: "[Errno 111] Connection refused", or nothing at all for some broken connections."""
    text = str(error).rstrip(".")
    return text.split("] ", 1)[-1] if text else type(error).__name__


def _set(names: tuple[str, ...]) -> str:
    """The remedy: which of the variables to look at."""
    found = sorted(name for name, value in os.environ.items() if value and name.upper() in names)
    return f"look at {' and '.join(found or names)}"


def _shut(connection: socket.socket | None) -> None:
    # The plain socket's method: that of a TLS socket forgets its keys first, and what is written meanwhile would go
    # out in the clear. Closing would not wake anybody.
    if connection is not None:
        with suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
