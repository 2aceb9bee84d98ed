"""The documents of the checkout, taken apart: blocks of code, spans, headings, links, tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
READMES = (ROOT / "README.md", ROOT / "README.ja.md")
COMMANDED = [path for path in (*READMES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *PAGES) if path.exists()]
"""Documents whose commands are held to be right."""
FOLDERS = ("docs", "examples", "native", "scripts", "src", "tests", "tools")
LINKED = sorted(
    {
        *ROOT.glob("*.md"),
        ROOT / "sample_pics" / "README.md",  # what else lies there is somebody's own
        *(path for folder in FOLDERS for path in (ROOT / folder).glob("**/*.md")),
    }
)
"""Documents whose links are: every one of the checkout."""

FENCE = re.compile(r"^(`{3,})([^\n`]*)\n(.*?)^\1`*[ ]*$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+(?:\([^()\s]*\)[^()\s]*)*)\)")
HEADING = re.compile(r"^(#{1,6}) +(.+?) *#*$", re.MULTILINE)
ROW = re.compile(r"^\|(.*)\|[ ]*$", re.MULTILINE)
CELL = re.compile(r"(?<!\\)\|")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
NAME = re.compile(r"(?<![\w$.…-])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?![\w…])")
"""An option, and a variable of two words or more."""

PROXIES = frozenset(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"))
OTHERS_READ = frozenset(("PIP_INDEX_URL", "HF_TOKEN", "HF_HUB_OFFLINE")) | PROXIES
"""Variables that libraries read and people have to know of."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `words` are its info string: the language, how it is covered, and by which file where that is not
    where the documents' own blocks are run."""

    path: Path
    line: int
    words: tuple[str, ...]
    code: str

    @property
    def language(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def kind(self) -> str:
        return self.words[1] if len(self.words) > 1 else ""

    @property
    def elsewhere(self) -> tuple[str, ...]:
        return self.words[2:]

    @property
    def place(self) -> str:
        return f"{shown(self.path)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Table:
    """`heading` is the text of the heading that it stands under. `rows` come without the head and the dashes."""

    heading: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(path: Path) -> list[Block]:
    whole = text(path)
    return [
        Block(path, whole.count("\n", 0, found.start()) + 1, tuple(found[2].split()), found[3])
        for found in FENCE.finditer(whole)
    ]


def prose(path: Path) -> str:
    """The document without its blocks, line for line."""
    return FENCE.sub(lambda found: "\n" * found[0].count("\n"), text(path))


def spans(path: Path) -> list[str]:
    """What stands between backticks, white space as one blank. In tables a bar is written with a backslash."""
    return [" ".join(found[2].split()).replace("\\|", "|") for found in SPAN.finditer(prose(path))]


def spans_of(cell: str) -> list[str]:
    return [found[2].strip().replace("\\|", "|") for found in SPAN.finditer(cell)]


def headings(path: Path) -> list[tuple[int, str]]:
    """Level and text."""
    return [(len(found[1]), found[2]) for found in HEADING.finditer(prose(path))]


def anchors(path: Path) -> set[str]:
    """What `#...` may name in it: headings as GitHub spells them."""
    found: dict[str, int] = {}
    made = set()
    for _, heading in headings(path):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        made.add(f"{slug}-{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return made


def links(path: Path) -> list[str]:
    return LINK.findall(SPAN.sub("", prose(path)))


def tables(path: Path) -> Iterator[Table]:
    heading, rows = "", []
    for line in [*prose(path).splitlines(), ""]:
        if row := ROW.match(line):
            rows.append(tuple(cell.strip() for cell in CELL.split(row[1])))
            continue
        if rows:
            yield Table(heading, rows[0], tuple(rows[2:]))
            rows = []
        if found := HEADING.match(line):
            heading = found[2]


def by_place(found: Iterable[Block]) -> list[object]:
    """Parameters of a test."""
    return [pytest.param(block, id=block.place) for block in found]


def by_path(paths: Iterable[Path]) -> list[object]:
    return [pytest.param(path, id=shown(path)) for path in paths]
