"""The commands and links in the documents are right. Nothing is started here: what is run of them is in
tests/live/test_documents.py."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import commands
import parsers
import variables
from documents import (
    COMMANDED,
    FLAG,
    LINKED,
    OTHERS_READ,
    PAGES,
    ROOT,
    Block,
    anchors,
    blocks,
    by_path,
    by_place,
    headings,
    links,
    prose,
    spans,
    text,
)
from parsers import Unparsable

KINDS = ("run", "start", "dry", "hardware")

FOREIGN = {
    "llama-server": {"--list-devices", "--kv-unified", "--cache-ram"},
    "mlx_lm.server": {"--prompt-cache-size", "--prompt-cache-bytes", "--max-kv-size", "--kv-bits", "--model", "--host"},
    "mypy": {"--strict"},
}
"""Options of other programs that the documents speak of."""

ALL = [block for path in COMMANDED for block in blocks(path)]
CODE = [block for block in ALL if block.language in ("bash", "python")]


# Blocks and commands


@pytest.mark.parametrize("block", by_place([block for block in CODE if block.kind == "dry"]))
def test_what_is_not_run_here_is_run_by_the_file_that_it_names(block: Block) -> None:
    (name,) = block.elsewhere
    text = (ROOT / name).read_text(encoding="utf-8").replace("-", "_")
    for line in block.code.splitlines():
        words = shlex.split(line, comments=True)
        called = words[words.index("-m") + 1] if "-m" in words else words[0]
        program = called.rpartition("/")[2].rpartition(".")[2] if "-m" in words else Path(called).stem
        assert program in (".", "test", "pip") or program.replace("-", "_") in text, f"{name} runs no {program}"


@pytest.mark.parametrize("block", by_place(ALL))
def test_a_block_says_how_it_is_covered(block: Block) -> None:
    if block.language in ("bash", "python"):
        assert block.kind in KINDS, f"write one of {', '.join(KINDS)} behind `{block.language}`"
        assert len(block.elsewhere) == (block.kind == "dry"), "`dry` names the file that really runs it, and only `dry`"
        return
    assert block.language in ("", "json", "text", "mermaid"), "a language that nobody checks"
    assert block.kind == ""
    for line in block.code.splitlines():
        first = line.removeprefix("$ ").split(" ")[0]
        assert first not in ("systemone", "jev-local", "python3", "curl"), "a command in a block that is not bash"
        assert not first.startswith("./"), "a command in a block that is not bash"


@pytest.mark.parametrize("path", by_path(COMMANDED))
def test_no_block_is_overlooked(path: Path) -> None:
    """One that is indented, not closed, or fenced otherwise would be."""
    assert not re.findall(r"^[ >]*(?:```|~~~).*", prose(path), re.MULTILINE)


@pytest.mark.parametrize("block", by_place([block for block in CODE if block.language == "python"]))
def test_a_block_of_python_parses(block: Block) -> None:
    ast.parse(block.code)


@pytest.mark.parametrize("block", by_place([block for block in CODE if block.language == "bash"]))
def test_the_programs_take_what_a_block_gives_them(block: Block) -> None:
    subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)
    for command in commands.simple_commands(block.code):
        check(command)


def check(command: list[str]) -> None:
    known = variables.read() | OTHERS_READ
    for name in commands.assigned(command):
        assert name in known, f"nothing reads {name}"
    if commands.bare(command) and (found := commands.program(command)) is not None:
        name, words = found
        try:
            parsers.check(name, words)
        except Unparsable as complaint:
            raise AssertionError(f"{' '.join(command)}: {complaint}") from None
        except KeyError:
            raise AssertionError(f"there is no {name}") from None


@pytest.mark.parametrize("path", by_path(COMMANDED))
def test_an_extra_that_is_installed_exists(path: Path) -> None:
    known = tomllib.loads(text(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    for extras in re.findall(r"(?:jev-local|\.)\[([a-z,]+)\]'", text(path)):
        assert set(extras.split(",")) <= set(known)


@pytest.mark.parametrize("path", by_path(LINKED))
def test_nobody_is_told_to_take_this_from_a_package_index(path: Path) -> None:
    """It is on none: a checkout or a built wheel is what pip gets."""
    assert not re.findall(r"pip install [^`\n]*\bjev[-_]local\b(?![\w.-]*\.whl)", text(path))


def spoken(path: Path) -> Iterator[str]:
    """Commands within sentences."""
    for span in spans(path):
        words = span.split()
        while words and commands.ASSIGNED.match(words[0]):
            words.pop(0)
        if words and re.fullmatch(r"\./[\w/.-]+|python3|jev-local|systemone|scripts/test", words[0]):
            yield span


@pytest.mark.parametrize("path", by_path(COMMANDED))
def test_commands_in_sentences_exist(path: Path) -> None:
    for span in spoken(path):
        command = shlex.split(span.replace("[", "").replace("]", ""))
        if commands.bare(command) in (["systemone"], ["jev-local"], ["jev-local", "--version"], ["python3"]):
            continue
        found = None if re.search(r"\.(?!sh\b|py\b)\w+$", commands.bare(command)[0]) else commands.program(command)
        if found is None:
            continue
        name, words = found
        assert name == "scripts/test" or words == ["…"] or is_known(name), f"`{span}`: there is no {name}"
        own = set(FLAG.findall(" ".join(words)))
        assert own <= {*parsers.flags(name), *api_flags(name), "--help", "--version"}, f"`{span}`"


def is_known(name: str) -> bool:
    return name in parsers.names() or name == "scripts/bootstrap.py"


def api_flags(name: str) -> set[str]:
    passes_on = name in ("jev-local up", "jev_local.launch.image_cache")
    return set(parsers.flags("jev-local serve")) if passes_on else set()


@pytest.mark.parametrize("path", by_path(COMMANDED))
def test_no_option_is_named_that_no_program_has(path: Path) -> None:
    known = {flag for name in parsers.names() for flag in parsers.flags(name)} | {"--help", "--version"}
    for flags in FOREIGN.values():
        known |= flags
    said = FLAG.findall(" ".join(spans(path)))
    assert set(said) - known == set()


def test_the_options_of_others_are_still_spoken_of() -> None:
    said = {flag for path in COMMANDED for flag in FLAG.findall(text(path))}
    assert {flag for flags in FOREIGN.values() for flag in flags} <= said


# Links


@pytest.mark.parametrize("path", by_path(LINKED))
def test_relative_links_lead_somewhere(path: Path) -> None:
    for target in links(path):
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), target
            continue
        file, _, anchor = target.partition("#")
        reached = (path.parent / file).resolve() if file else path
        assert reached.exists(), f"{target} leads nowhere"
        assert ROOT in reached.parents, f"{target} leads out of the checkout"
        if anchor:
            assert anchor in anchors(reached), f"{target}: there are {sorted(anchors(reached))}"


def test_the_index_has_every_document() -> None:
    index = ROOT / "docs" / "README.md"
    assert {(index.parent / target).resolve() for target in links(index)} == set(LINKED) - {index}


def test_no_document_of_the_checkout_is_overlooked() -> None:
    known = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
    if known.returncode:
        pytest.skip("not a checkout of git")
    assert {ROOT / name for name in known.stdout.splitlines()} - set(LINKED) == set()


@pytest.mark.parametrize("path", by_path([*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]))
def test_a_page_begins_with_what_it_is_for(path: Path) -> None:
    lines = text(path).splitlines()
    assert lines[0].startswith("# ")
    assert lines[1] == ""
    assert lines[2].startswith("This page ")
    assert [level for level, _ in headings(path)].count(1) == 1
