"""Images on a vocabulary of words and attention alone: SmolLM2, with a projector of noise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tiny_vision
from image_files import data_url, image_file
from servers import api_server, llama_server
from state_cache import KEY, furthest, told

SMOLLM2_WIDTH = 576
PICTURE = data_url(image_file(size=(64, 64)))
TWO: dict[str, Any] = {
    "a": {"type": "noul", "instructions": "Is it late?"},
    "b": {"type": "noul", "instructions": "Is it red?"},
}


@pytest.fixture(scope="module")
def url(smollm2_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("smollm2-vision")
    projector = tiny_vision.write_projector(folder / "mmproj.gguf", embedding=SMOLLM2_WIDTH)
    with llama_server(smollm2_model, folder, mmproj=projector) as (llama, _), api_server(llama, folder) as (url, _):
        yield url


def ask(url: str, state: str) -> httpx.Response:
    body = {"state": state, "questions": TWO, "images": [PICTURE]}
    return httpx.post(f"{url}/v1/systemone", json=body, headers=KEY, trust_env=False, timeout=120)


@pytest.mark.parametrize(
    "state",
    [
        "A slide.",
        "A slide.\n",
        "A slide. ",
        "A slide\n\n\n",
        "Called.\n\n  x\n" * 60,
        "f()\n\n",
        "日本語。\n",
        "\u3000",
    ],
)
def test_however_a_state_ends_it_is_shared(url: str, state: str) -> None:
    """Some vocabularies join white space with what is before it, some with what follows."""
    first, again = ask(url, state), ask(url, state)
    assert told(first)["state-cache"] == told(again)["state-cache"] == "shared", state
    assert told(again)["prefix-source"] in ("slot", "memory")
    assert told(first)["reevaluated"] == told(again)["reevaluated"] == "0"
    assert furthest(first, again) < 0.06
