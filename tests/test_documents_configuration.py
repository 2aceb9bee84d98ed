"""docs/configuration.md has every option and every variable, with the defaults that are in force."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

import commands
import parsers
import variables
from documents import (
    COMMANDED,
    NAME,
    OTHERS_READ,
    ROOT,
    Table,
    by_path,
    headings,
    prose,
    shown,
    spans,
    spans_of,
    tables,
)
from jev_local.backend.embedded import CPU_BATCH, DEFAULT_CONTEXT, DEFAULT_PARALLEL, NOT_INHERITED
from jev_local.launch.arguments import size_text
from jev_local.launch.image_build import DEFAULT_LIMIT
from jev_local.settings import DEFAULT_CHAT_SLOTS, DEFAULT_KEY

CONFIGURATION = ROOT / "docs" / "configuration.md"

NOT_READ = set(NOT_INHERITED) - {"JEV_API_KEY"}
"""Variables of llama-server that it is started without."""

NO_VARIABLES = {"MAY_IMPORT", "JEV_IMAGE_CACHE"}
"""Words of that shape that are none."""


@cache
def options() -> dict[str, list[Table]]:
    """Program -> the tables under a heading that names it."""
    found: dict[str, list[Table]] = {}
    for table in tables(CONFIGURATION):
        if table.head[0] == "option":
            named = commands.program(shlex.split(spans_of(table.heading)[0]))
            assert named is not None, table.heading
            found.setdefault(named[0], []).append(table)
    return found


def described(name: str) -> dict[str, str]:
    """Option -> what stands as its default."""
    rows = [row for table in options().get(name, []) for row in table.rows]
    listed = [(spans_of(row[0])[0].split()[0], row[1]) for row in rows]
    found = {flag: default for flag, default in listed if flag != "--"}
    assert len(found) == len([flag for flag, _ in listed if flag != "--"]), f"an option of {name} stands there twice"
    return found


def test_no_program_is_documented_that_is_not_there() -> None:
    assert set(options()) <= set(parsers.names())


def test_every_program_of_the_checkout_has_a_heading() -> None:
    named = {word.removeprefix("./") for _, heading in headings(CONFIGURATION) for word in re.split(r"[`, ]+", heading)}
    programs = [*ROOT.glob("*.sh"), *ROOT.glob("*.py"), ROOT / "scripts" / "test"]
    programs += [path for path in (ROOT / "scripts").glob("*.py") if "__main__" in path.read_text("utf-8")]
    assert {shown(path) for path in programs} - named == set()


@pytest.mark.parametrize("name", ["jev-local", "systemone"])
def test_how_to_get_the_version_is_documented(name: str) -> None:
    assert f"{name} --version" in spans(CONFIGURATION)
    assert "--version" in parsers.whole(name).format_help()


@pytest.mark.parametrize("name", parsers.names())
def test_every_option_is_documented_and_exists(name: str) -> None:
    assert set(described(name)) == set(parsers.flags(name))


@pytest.mark.parametrize("name", parsers.names())
def test_the_documented_defaults_are_in_force(name: str) -> None:
    wrong = {}
    for flag, cell in described(name).items():
        action = parsers.flags(name)[flag]
        expected = written_default(action.default)
        if expected is None:
            # Nothing is said, or words about where it comes from; never a value.
            fine = not re.fullmatch(r"`?[\w.:/-]+`?", cell) or cell in ("needed", "fetched", "all")
            fine = fine and (cell == "needed") == action.required
        else:
            fine = expected in (cell, *spans_of(cell))
        if not fine:
            wrong[flag] = cell, action.default
    assert not wrong


def written_default(default: object) -> str | None:
    match default:
        case None | bool() | []:
            return None
        case float():
            return f"{default:g}"
        case int() if default >= 1024 and default % 1024 == 0:
            return size_text(default)
        case Path() if default.is_absolute():
            return shown(default)
        case str() if default.count(",") > 10:  # a list that is only told as `all`
            return None
        case _:
            return str(default)


VARIABLES = {
    spans_of(row[0])[0]: row[1]
    for table in tables(CONFIGURATION)
    if table.head[:2] == ("variable", "default")
    for row in table.rows
}


@cache
def documented_variables() -> set[str]:
    return {
        name
        for table in tables(CONFIGURATION)
        if table.head[0] == "variable"
        for row in table.rows
        for name in spans_of(row[0])
    }


def test_every_variable_that_is_read_is_documented_and_no_other() -> None:
    assert documented_variables() - OTHERS_READ == variables.read()
    assert documented_variables() >= OTHERS_READ


def test_what_the_inference_server_is_started_without_is_told() -> None:
    (said,) = re.findall(r"^The inference server is started without (.+?)\. ", prose(CONFIGURATION), re.M | re.DOTALL)
    assert spans_of(said) == list(NOT_INHERITED)


@pytest.mark.parametrize(
    ("variable", "default"),
    [
        ("CTX_SIZE", DEFAULT_CONTEXT),
        ("PARALLEL", DEFAULT_PARALLEL),
        ("CHAT_SLOTS", DEFAULT_CHAT_SLOTS),
        ("BATCH_SIZE", f"{CPU_BATCH} without a GPU"),
        ("JEV_API_KEY", f"`{DEFAULT_KEY}`"),
        ("JEV_IMAGE_CACHE_MIB", DEFAULT_LIMIT),
    ],
)
def test_the_documented_defaults_of_variables_are_in_force(variable: str, default: object) -> None:
    assert VARIABLES[variable] == str(default)


@pytest.mark.parametrize("path", by_path(COMMANDED))
def test_no_variable_is_named_that_nothing_reads(path: Path) -> None:
    said = {name for span in spans(path) for name in NAME.findall(span)}
    assert said - documented_variables() - NOT_READ - NO_VARIABLES == set()
