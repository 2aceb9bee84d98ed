"""The two READMEs say the same, and what they and the contract show of a reply could have been one."""

from __future__ import annotations

import ast
import json
import shlex

import pytest

import commands
from arithmetic import check_arithmetic
from documents import COMMANDED, FLAG, NAME, READMES, ROOT, Block, Table, blocks, headings, links, shown, spans, tables
from jev_local.received import parse

DOCUMENTS = [block for path in COMMANDED for block in blocks(path) if block.language == "json"]
BLOCKS = [pytest.param(block.code, id=block.place) for block in DOCUMENTS if '"answers"' in block.code]


def test_there_is_one_in_each() -> None:
    shows = [shown(block.path) for block in DOCUMENTS if '"answers"' in block.code]
    assert sorted(shows) == sorted(shown(path) for path in (*READMES, ROOT / "docs" / "contract.md"))


@pytest.mark.parametrize("code", [pytest.param(block.code, id=block.place) for block in DOCUMENTS])
def test_every_document_is_a_reply_or_an_error(code: str) -> None:
    found = json.loads(code)
    assert "answers" in found or set(found) == {"detail"}


@pytest.mark.parametrize("block", BLOCKS)
def test_its_numbers_are_the_formulas(block: str) -> None:
    check_arithmetic(json.loads(block))


@pytest.mark.parametrize("block", BLOCKS)
def test_it_is_a_reply_that_our_client_reads(block: str) -> None:
    reply = parse(block.encode(), headers={}, seconds=0)
    assert reply.output_tokens == len(reply.answers)


def test_both_readmes_have_the_same_headings() -> None:
    english, japanese = ([level for level, _ in headings(path)] for path in READMES)
    assert english == japanese


def test_both_readmes_have_the_same_blocks() -> None:
    english, japanese = (blocks(path) for path in READMES)
    assert [block.words for block in english] == [block.words for block in japanese]
    for one, other in zip(english, japanese, strict=True):
        assert alike(one) == alike(other), f"{one.place} and {other.place}"


def alike(block: Block) -> str:
    """The code without its comments and without the words that a translation changes."""
    if block.language == "bash":
        return "\n".join(shlex.join(masked(command)) for command in commands.simple_commands(block.code))
    if block.language == "python":
        tree = ast.parse(block.code)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_prose(node.value):
                node.value = "…"
        return ast.dump(tree)
    return block.code


def masked(words: list[str]) -> list[str]:
    return ["…" if is_prose(word) else word for word in words]


def is_prose(word: str) -> bool:
    """Japanese, or what may stand in its place."""
    return not word.isascii() or " " in word.strip() or word in ("money matters", "calm", "annoyed", "furious")


def test_both_readmes_have_the_same_tables() -> None:
    english, japanese = (list(tables(path)) for path in READMES)
    assert [shape(table) for table in english] == [shape(table) for table in japanese]


def shape(table: Table) -> tuple[object, ...]:
    """Rows and columns, and of each row what is the same in any language."""
    firsts = tuple(row[0] if row[0].startswith("`") else "…" for row in table.rows)
    return tuple(map(len, (table.head, *table.rows))), firsts


def test_both_readmes_link_to_the_same_places() -> None:
    english, japanese = (links(path) for path in READMES)
    there = [target for target in english if target != "README.ja.md"]
    assert there == [target for target in japanese if target != "README.md"]


def test_both_readmes_speak_of_the_same_options_and_variables() -> None:
    english, japanese = ({name for span in spans(path) for name in FLAG.findall(span)} for path in READMES)
    assert english == japanese
    english, japanese = ({name for span in spans(path) for name in NAME.findall(span)} for path in READMES)
    assert english == japanese
