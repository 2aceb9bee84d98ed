"""Hosts, as their names alone tell about them: nothing is looked up."""

from __future__ import annotations

import ipaddress
from urllib.request import getproxies, proxy_bypass


def is_address(host: str) -> bool:
    """An IP address, written without brackets."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_localhost(host: str) -> bool:
    """The name that means this machine everywhere (RFC 6761), or one below it."""
    name = host.lower().removesuffix(".")
    return name == "localhost" or name.endswith(".localhost")


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback if is_address(host) else is_localhost(host)


def without_port(authority: str) -> str:
    """What a Host header names: `[::1]:8080` -> `::1`, `localhost:8080` -> `localhost`."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def proxy_for(scheme: str, host: str, authority: str) -> str | None:
    """The proxy that the environment has for a URL with these parts; None where there is none, or NO_PROXY speaks
    against it. httpx would read all of NO_PROXY as URLs, and stop at `fe80::/10`."""
    proxies = getproxies()
    found = proxies.get(scheme) or proxies.get("all")
    everything = "*" in (name.strip() for name in proxies.get("no", "").split(","))
    if not found or everything or proxy_bypass(host) or proxy_bypass(authority):
        return None
    return found if "://" in found else f"http://{found}"
