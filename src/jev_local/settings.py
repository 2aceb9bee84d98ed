"""Settings, read once at start and handed down in small frozen slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_KEY = "local-dev"
DEFAULT_API_URL = "http://127.0.0.1:8080"
DEFAULT_BACKEND_URL = "http://127.0.0.1:8097"

MIB = 1024 * 1024
BODY_LIMIT = 24 * MIB
"""Bytes of a JSON body after decompression."""

BODY_SECONDS = 30.0
"""A body that has not arrived whole by then is refused with 408."""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Everything `jev_local.serve` needs. `key` empty: any key or none is accepted."""

    backend_url: str = DEFAULT_BACKEND_URL
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 4
    max_in_flight: int = 8
    backend_timeout: float = 600.0
    details: bool = False
    key: str = DEFAULT_KEY

    def __post_init__(self) -> None:
        for name in ("workers", "max_in_flight"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} has to be at least 1, got {getattr(self, name)}")
        if self.backend_timeout <= 0:
            raise ValueError(f"backend_timeout has to be positive, got {self.backend_timeout}")


def api_key(environment: Mapping[str, str]) -> str:
    """The key in force: JEV_API_KEY, which may be empty to switch the check off, else `local-dev`."""
    return environment.get("JEV_API_KEY", DEFAULT_KEY)
