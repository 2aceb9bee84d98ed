"""What a server of ours tells the API about itself. It shows how much of the context one slot may take, and hides how
much there is, so the launcher writes that into the tags of its model."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

DECISION_TAG, CHAT_TAG = "jev-decisions-", "jev-chats-"
"""Before the number of tokens that all slots for decisions share, and those for chats."""

LARGEST_COUNT = 2**31 - 1
"""llama-server keeps its numbers in 32 bits."""


def name_of(path: str) -> str:
    """The name of a model's file without directory, suffix and shard number. It is what answers call their model, and
    where the file lies is nobody's business."""
    name = PurePosixPath(path.replace("\\", "/")).name
    return re.sub(r"(-\d{5}-of-\d{5})?(\.gguf)?$", "", name, flags=re.IGNORECASE) or "model"
