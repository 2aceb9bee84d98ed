"""Homes for the doctor, and no network beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor_house import House
from jev_local.doctor import reachable
from jev_local.launch import runtimes
from programs import free_port


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(reachable, "ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(runtimes, "RELEASE", f"http://127.0.0.1:{free_port()}/releases")


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "home")


@pytest.fixture
def furnished(house: House, tiny_model: Path) -> House:
    house.environment["MODEL"] = str(tiny_model)
    return house
