"""Public tools that speak the contract, against the running service on real models."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import api_server

BIN = Path(sys.executable).parent
QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Is a refund asked for?"},
    "team": {"type": "choice", "instructions": "Whose is it?", "criteria": {"billing": "money", "tech": None}},
    "anger": {"type": "score", "criteria": ["calm", "annoyed", "furious"]},
}


def jevcompat(url: str, report: Path, *options: str) -> dict[str, Any]:
    command = [str(BIN / "jevcompat"), "test", url, "--timeout", "300", "--json", str(report), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    print(done.stdout[-2000:])
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads(report.read_text())["summary"]
    return summary


def test_jevcompat_all_must_and_all_should(api: str, tmp_path: Path) -> None:
    summary = jevcompat(api, tmp_path / "report.json")
    assert (summary["MUST"]["passed"], summary["MUST"]["failed"]) == (32, 0)
    assert (summary["SHOULD"]["passed"], summary["SHOULD"]["failed"]) == (13, 0)


def test_jevcompat_with_a_key(tiny_server: str, tmp_path: Path) -> None:
    with api_server(tiny_server, tmp_path, key="s3cret") as (url, child):
        summary = jevcompat(url, tmp_path / "report.json", "--key", "s3cret")
        assert "s3cret" not in Path(child.log or "").read_text()
    assert (summary["MUST"]["passed"], summary["MUST"]["failed"]) == (32, 0)
    assert (summary["SHOULD"]["passed"], summary["SHOULD"]["failed"]) == (15, 0)


def test_jevbench_check(tiny_api: str) -> None:
    command = [str(BIN / "jevbench"), "check", "--url", f"{tiny_api}/v1/systemone", "--model", "jev-latest"]
    environment = os.environ | {"JEVBENCH_API_KEY": "local"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "check: OK" in done.stdout


def test_the_official_sdk(api: str) -> None:
    from typesafe_sdk import TypeSafeClient

    with TypeSafeClient(api_key="local", base_url=api, timeout=120) as client:
        reply = client.system_one(state="Charged twice. Money back!", questions=QUESTIONS)
        assert set(reply.answers) == set(QUESTIONS)
        assert reply.request_id.startswith("req_")
        assert reply.usage.output_tokens == 3
        assert client.models.list()
        # Over 1 KiB: the SDK sends a zstd body.
        long = client.system_one(state="The kettle is broken. " * 100, questions={"refund": QUESTIONS["refund"]})
        assert 0 <= long.answers["refund"].noul <= 1


def test_the_official_sdk_async_at_the_same_time(api: str) -> None:
    from typesafe_sdk import AsyncTypeSafeClient

    async def scene() -> list[Any]:
        async with AsyncTypeSafeClient(api_key="local", base_url=api, timeout=120) as client:
            states = [f"Order {i} never arrived." for i in range(6)]
            return await asyncio.gather(*(client.system_one(state=s, questions=QUESTIONS) for s in states))

    replies = asyncio.run(scene())
    assert all(set(reply.answers) == set(QUESTIONS) for reply in replies)


def test_the_official_sdks_errors(tiny_api: str) -> None:
    import typesafe_sdk
    from typesafe_sdk import TypeSafeClient

    with TypeSafeClient(api_key="local", base_url=tiny_api, timeout=120) as client:
        with pytest.raises(typesafe_sdk.TypeSafeBadRequestError, match="Unknown model"):
            client.system_one(state="x", questions=QUESTIONS, model="no-such-model")
        with pytest.raises(typesafe_sdk.TypeSafeBadRequestError, match="CTX_SIZE"):
            client.system_one(state="word " * 40_000, questions=QUESTIONS)


def test_systemone_client_without_a_model_name(api: str) -> None:
    from systemone import Choice, Client, Noul

    with Client(base_url=api, api_key="local") as client:
        reply = client.system_one(state="x", questions={"a": Noul("ok?"), "b": Choice("which?", {"x": None, "y": "2"})})
    assert reply is not None
