"""Who can reach the API, and whether the key keeps them out. Pure: no socket is opened."""

from __future__ import annotations

from jev_local.settings import DEFAULT_KEY, ApiSettings
from jev_local.wire.hosts import is_loopback


def warning(settings: ApiSettings) -> str | None:
    """One line when other machines can reach an API whose key is none, or the one that everybody knows."""
    if is_loopback(settings.host) or settings.key not in ("", DEFAULT_KEY):
        return None
    lock = f"the key is {DEFAULT_KEY}, which everybody knows" if settings.key else "no key is needed"
    place = settings.host or "this machine on"
    return f"WARNING: anybody who can reach {place} port {settings.port} may ask ({lock}): set JEV_API_KEY"
