"""Settings, read once at start and handed down in small frozen slices."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

DEFAULT_KEY = "local-dev"
DEFAULT_API_URL = "http://127.0.0.1:8080"
DEFAULT_BACKEND_URL = "http://127.0.0.1:8097"

DEFAULT_CHAT_SLOTS = 2
"""Slots for chats. One would keep a short chat waiting for a long one."""

MIB = 1024 * 1024
GIB = 1024 * MIB
BODY_LIMIT = 24 * MIB
"""Bytes of a JSON body after decompression."""

ASSETS_BODY_LIMIT = 48 * MIB
"""The same where there are images in `assets`."""

FORM_LIMIT = 34 * MIB
"""The same of a multipart/form-data body."""

MAX_IMAGES = 4
"""Images in one request that come as data URLs."""

IMAGE_LIMIT = 4 * MIB
"""Bytes of each of those, after base64."""

BODY_SECONDS = 30.0
"""A body that has not arrived whole by then is refused with 408."""

NUMBERS = re.compile(r"(?:0x[0-9a-f]+|\d+)(?:[.\u3002\uff0e\uff61](?:0x[0-9a-f]+|\d+))*", re.IGNORECASE)
"""A host of nothing but numbers, between any of the full stops that are one in a host name."""

_LEAST = {
    "workers": 1,
    "max_in_flight": 1,
    "chat_slots": 0,
    "cache_min_tokens": 1,
    "prefix_cache_bytes": 0,
    "prefill_chunk": 32,
    "max_image_pixels": 1,
}


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Everything `jev_local.serve` needs. `key` empty: any key or none is accepted.

    slot_cache_dir: the folder that llama-server saves its slots in. prefix_cache_bytes: what may be kept there beyond
    the requests that need it. chat_slots: of the server's slots, how many are for chats at most; 0 for none.

    ValueError begins with the name of the field that cannot be.
    """

    backend_url: str = DEFAULT_BACKEND_URL
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 4
    max_in_flight: int = 8
    backend_timeout: float = 600.0
    details: bool = False
    key: str = DEFAULT_KEY
    state_cache: Literal["auto", "shared", "off"] = "auto"
    cache_min_tokens: int = 256
    slot_cache_dir: Path = Path(".cache/slots")
    image_prefix: Literal["auto", "off"] = "auto"
    prefix_cache_bytes: int = GIB
    prefill_chunk: int = 512
    stable: bool = False
    max_image_pixels: int = 20_000_000
    chat_slots: int = DEFAULT_CHAT_SLOTS

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} has to be at least {least}, got {getattr(self, name)}")
        if self.stable and self.state_cache == "off":
            raise ValueError("stable cannot go with --state-cache off: leave one of the two out")
        if not (self.key.isascii() and self.key.isprintable() and " " not in self.key):
            # What HTTP headers cannot carry could never match, and callers would only see that their key is wrong.
            raise ValueError("key: JEV_API_KEY has to be printable ASCII without spaces")
        if not 0 < self.backend_timeout < math.inf:
            raise ValueError(f"backend_timeout has to be a positive number of seconds, got {self.backend_timeout}")
        _require_root(self.backend_url)


def _require_root(url: str) -> None:
    """ValueError unless `url` is the root of an HTTP server."""
    shape = f"backend_url has to look like {DEFAULT_BACKEND_URL}"
    if "@" in url:  # not shown: it may hold a password, and what is in force is printed
        raise ValueError(f"{shape}, without a user name and a password")
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:  # brackets that do not match, or a port beyond 65535, which is looked at last
        raise ValueError(f"{shape}, got {url!r} ({error})") from error
    if not named or parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise ValueError(f"{shape}, got {url!r}")
    if not _is_spelt_out(parts.hostname or ""):
        raise ValueError(f"{shape}, an IPv4 address as four decimal numbers without leading zeros, got {url!r}")


def _is_spelt_out(host: str) -> bool:
    """Not an address such as 127.1 or 0x7f000001, which some resolvers take and some refuse: the lock that keeps a
    second API from a server would not know it for the same server."""
    if NUMBERS.fullmatch(name := host.removesuffix(".")) is None:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def api_key(environment: Mapping[str, str]) -> str:
    """The key in force: JEV_API_KEY, which may be empty to switch the check off, else `local-dev`."""
    return environment.get("JEV_API_KEY", DEFAULT_KEY)
