"""Where documents repeat the code, in drawings, tables and quoted messages, they say what it says."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from documents import READMES, ROOT, blocks, by_path, prose, spans, spans_of, tables, text
from jev_local.errors import JevError
from jev_local.launch.models import CATALOGUE
from jev_local.launch.runtimes import RUNTIMES
from jev_local.launch.sources import SPARE
from jev_local.web.openapi import document
from jev_local.wire import headers, problems
from test_layers import MAY_IMPORT, ROOMS, edges, room


def drawing() -> str:
    (found,) = (block for block in blocks(ROOT / "docs" / "architecture.md") if block.language == "mermaid")
    return found.code


def arrows(kind: str) -> set[tuple[str, str]]:
    return set(re.findall(rf'^ *(\w+)(?:\[".*?"\])? {kind} (\w+)$', drawing(), re.MULTILINE))


SOLID, DOTTED = "-->", r"-\. .+? \.->"


def reached(room: str, found: set[tuple[str, str]]) -> set[str]:
    """Rooms below it."""
    below: set[str] = set()
    todo = {other for one, other in found if one == room}
    while todo:
        below |= todo
        todo = {other for one, other in found if one in todo} - below
    return below


def test_the_drawing_has_every_room_once() -> None:
    assert sorted(re.findall(r'\b([a-z]+)\["', drawing())) == sorted(ROOMS)


def test_an_arrow_is_an_import_and_an_import_an_arrow_or_a_way_along_arrows() -> None:
    imported = {(room(module), room(target)) for module, target in edges() if target not in ("", "backend")}
    imported = {(one, other) for one, other in imported if one != other}
    drawn = arrows(SOLID) | arrows(DOTTED)
    assert drawn <= imported
    assert all(other in MAY_IMPORT[one] for one, other in drawn)
    assert {(one, other) for one, other in imported if other not in reached(one, drawn)} == set()


def test_arrows_point_down_and_none_follows_from_others() -> None:
    solid = arrows(SOLID)
    assert all(room not in reached(room, solid) for room in ROOMS)
    for arrow in solid:
        assert arrow[1] not in reached(arrow[0], solid - {arrow}), arrow


def test_the_table_of_rooms_is_the_tests() -> None:
    (table,) = (one for one in tables(ROOT / "docs" / "architecture.md") if one.head[0] == "room")
    rows = {spans_of(row[0])[0]: (spans_of(row[1]), row[2]) for row in table.rows}
    assert {name: tuple(modules) for name, (modules, _) in rows.items()} == {
        name: tuple(module for module in modules if module) for name, modules in ROOMS.items()
    }
    for name, (_, cell) in rows.items():
        others = set(ROOMS) - {name}
        said = others - set(spans_of(cell)) if cell.startswith("everything") else set(spans_of(cell))
        assert said == MAY_IMPORT[name] - {name}, name


def test_the_modules_that_a_request_passes_are_there() -> None:
    for path in re.findall(r"`([a-z_]+/[a-z_]+\.py)`", prose(ROOT / "docs" / "architecture.md")):
        if not path.startswith("tests/"):
            assert (ROOT / "src" / "jev_local" / path).is_file(), path


def test_the_contract_has_every_error() -> None:
    (table,) = (one for one in tables(ROOT / "docs" / "contract.md") if one.head[:2] == ("status", "`error_type`"))
    said = {(int(row[0]), spans_of(row[1])[0] if spans_of(row[1]) else "") for row in table.rows}
    kinds: dict[type[JevError], problems._Row] = problems._TABLE
    known = {(row.status, row.error_type) for row in kinds.values()}
    for found in (problems.INTERNAL, problems.FOREIGN_HOST):
        assert isinstance(found.detail, dict)
        known.add((found.status, found.detail["error_type"]))
    known = {(status, "" if status == 422 else kind) for status, kind in known}
    assert said == known


def test_the_contract_has_every_header() -> None:
    (table,) = (one for one in tables(ROOT / "docs" / "contract.md") if one.head[0] == "header")
    assert [spans_of(row[0])[0] for row in table.rows] == list(headers.DIAGNOSTICS)
    assert headers.REQUEST_ID in spans(ROOT / "docs" / "contract.md")


def test_the_contract_has_every_route() -> None:
    (table,) = (one for one in tables(ROOT / "docs" / "contract.md") if one.head[0] == "route")
    said = {span for row in table.rows for span in spans_of(row[0])}
    known = {f"{method.upper()} {path}" for path, methods in document("0")["paths"].items() for method in methods}
    assert said == known | {"GET /openapi.json", "GET /docs"}


def test_set_up_has_every_model_and_its_licence() -> None:
    (table,) = (one for one in tables(ROOT / "docs" / "set-up.md") if one.head[:3] == ("name", "model", "licence"))
    said = {spans_of(row[0])[0]: row[2] for row in table.rows}
    assert said == {name: model.weights.licence for name, model in CATALOGUE.items()}
    assert [spans_of(row[0])[0] for row in table.rows if "projector" in row[1]] == [
        name for name, model in CATALOGUE.items() if model.projector
    ]


def test_set_up_tells_what_a_small_disk_needs_for_the_smallest_model() -> None:
    size = CATALOGUE["smollm2"].weights.size
    assert size is not None
    assert f"{size / 1e6:.0f} MB ({(size + SPARE) / 1e6:.0f} MB have to be free" in text(ROOT / "docs" / "set-up.md")
    assert f"a file's size and {SPARE >> 20} MiB more" in text(ROOT / "docs" / "set-up.md")


@pytest.mark.parametrize("path", by_path(READMES))
def test_a_readme_names_the_licence_of_every_model(path: Path) -> None:
    for model in CATALOGUE.values():
        assert all(pinned.licence in text(path) for pinned in model.files), model.name


@pytest.mark.parametrize("path", by_path(READMES))
def test_a_readme_quotes_the_state_cache_as_it_was_measured(path: Path) -> None:
    measured = next(one for one in tables(ROOT / "docs" / "state-cache.md") if one.head[0] == "case")
    rows = {row[0]: dict(zip(measured.head, row, strict=True)) for row in measured.rows}
    warm = median(rows["1025"]["off"]) / median(rows["warm"]["auto"])
    plain = " ".join(text(path).split())
    for factor in (float(rows["1025"]["off/auto"]), warm):
        assert re.search(rf"\b{factor:.1f} (?:times|倍)", plain)
    assert rows["1025"]["auto/floor"] in plain
    explained = f"{median(rows['1025']['off']):,.0f} / {median(rows['warm']['auto']):,.0f} ms"
    assert explained in text(ROOT / "docs" / "state-cache.md")


def median(cell: str) -> float:
    """Milliseconds; least and most follow it."""
    return float(cell.partition(" ")[0].replace(",", ""))


def test_set_up_has_every_machine_and_the_order_of_its_backends() -> None:
    (table,) = (one for one in tables(ROOT / "docs" / "set-up.md") if one.head[0] == "machine")
    called = {"Linux": "Linux", "macOS": "Darwin", "x86_64": "x86_64", "aarch64": "aarch64"}
    called |= {"Apple Silicon": "arm64", "Intel": "x86_64"}
    said = {tuple(called[word] for word in row[0].split(" on ")): tuple(spans_of(row[1])) for row in table.rows}
    assert said == {machine: tuple(one.backend for one in some) for machine, some in RUNTIMES.items()}


@cache
def said_in_code() -> tuple[str, ...]:
    """Every text in the code, with `…` where it puts something in."""
    found = []
    for place in ("src", "scripts"):
        for path in (ROOT / place).rglob("*.py"):
            for node in ast.walk(ast.parse(text(path))):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(re.sub(r"%[sdg]", "…", node.value))
    return tuple(found)


def messages() -> list[str]:
    """What is quoted as what people see."""
    shown_to_people = [
        span
        for table in tables(ROOT / "docs" / "troubleshooting.md")
        if table.head[0] == "what you see"
        for row in table.rows
        for span in spans_of(row[0])
    ]
    return [span for span in shown_to_people if " " in span or "…" in span]


@pytest.mark.parametrize("message", messages())
def test_a_quoted_message_is_one_of_ours(message: str) -> None:
    pieces = [re.escape(piece.strip()) for piece in message.split("…") if piece.strip()]
    wanted = re.compile(".*".join(pieces), re.DOTALL)
    assert any(wanted.search(one) for one in said_in_code())
