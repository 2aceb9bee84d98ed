"""Public tools that speak the contract, against the running service on real models."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jevcompat_run import check_conformant
from servers import api_server

BIN = Path(sys.executable).parent
QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Is a refund asked for?"},
    "team": {"type": "choice", "instructions": "Whose is it?", "criteria": {"billing": "money", "tech": None}},
    "anger": {"type": "score", "criteria": ["calm", "annoyed", "furious"]},
}


def test_jevcompat_all_must_and_all_should(api: str, tmp_path: Path) -> None:
    check_conformant(api, tmp_path)


def test_jevcompat_with_a_key(tiny_server: str, tmp_path: Path) -> None:
    """On one model: a key is looked at before anybody thinks of one."""
    with api_server(tiny_server, tmp_path, key="s3cret") as (url, child):
        check_conformant(url, tmp_path, key="s3cret")
        assert "s3cret" not in Path(child.log or "").read_text()


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
        # One a question, and on a hybrid those of the prompts that leave a mark to go back to.
        assert 3 <= reply.usage.output_tokens <= 7
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
