"""Prompts as llama-server's /completion takes them: token ids, or text with pictures beside it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jev_local.core.pictures import Picture
from jev_local.core.spelling import Prompt, Spelled

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
"""A picture of one pixel, where any will do."""


def has_pictures(prompts: Sequence[Prompt]) -> bool:
    return any(isinstance(prompt, Spelled) for prompt in prompts)


def request_body(prompts: Sequence[Prompt], marker: str, options: Mapping[str, Any]) -> bytes:
    """The JSON of a /completion over `prompts`. `marker` is what stands for a picture in the server's texts. Each
    picture is encoded once, and sent with every prompt that has it."""
    encoded: dict[Picture, str] = {}
    sent = [_spelled(prompt, marker, encoded) if isinstance(prompt, Spelled) else list(prompt) for prompt in prompts]
    return json.dumps({"prompt": sent, **options}, separators=(",", ":")).encode()


def chat_of(data: str) -> dict[str, Any]:
    """A chat of one message with nothing in it but the picture whose base64 text is `data`."""
    # The server looks at the file, not at what it is called here.
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    return {"messages": [{"role": "user", "content": [part]}]}


def base64_of(picture: Picture) -> str:
    return base64.b64encode(picture.data).decode()


def _spelled(prompt: Spelled, marker: str, encoded: dict[Picture, str]) -> dict[str, Any]:
    for picture in prompt.pictures:
        if picture not in encoded:
            encoded[picture] = base64_of(picture)
    return {
        "prompt_string": "".join(marker if isinstance(part, Picture) else part for part in prompt.contents),
        "multimodal_data": [encoded[picture] for picture in prompt.pictures],
    }
