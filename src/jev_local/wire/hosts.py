"""Hosts, as their names alone tell about them: nothing is looked up."""

from __future__ import annotations

import ipaddress


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
