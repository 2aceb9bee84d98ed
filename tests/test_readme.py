"""What the READMEs show of a reply could have been one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from arithmetic import check_arithmetic
from jev_local.received import parse

ROOT = Path(__file__).parents[1]
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in sorted(ROOT.glob("README*.md"))
    for number, block in enumerate(
        re.findall(r"^```json\n(.*?)^```$", path.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    )
]


def test_there_is_one() -> None:
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS)
def test_its_numbers_are_the_formulas(block: str) -> None:
    check_arithmetic(json.loads(block))


@pytest.mark.parametrize("block", BLOCKS)
def test_it_is_a_reply_that_our_client_reads(block: str) -> None:
    reply = parse(block.encode(), headers={}, seconds=0)
    assert reply.output_tokens == len(reply.answers)
