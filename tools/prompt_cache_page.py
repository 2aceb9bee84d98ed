"""The report of `benchmark_prompt_cache` as one page that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

from tools.prompt_cache_tables import Grid, Part

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #e5e5e5; text-align: right; vertical-align: top; }
th:first-child, td:first-child, table.list td { text-align: left; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; font-family: system-ui, sans-serif; }
""".strip()


def page(title: str, parts: list[Part], charts: Mapping[str, str]) -> str:
    body = "\n".join(_part(part, charts.get(part.chart, "")) for part in parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{STYLE}\n</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    )


def _part(part: Part, chart: str) -> str:
    told = "\n".join(f"<p>{_marked(paragraph)}</p>" for paragraph in part.text)
    grid = _table(part.grid) if part.grid is not None and part.grid.rows else ""
    figure = f'<figure role="img" aria-label="{escape(part.title)}">{chart}</figure>' if chart else ""
    return f"<section>\n<h2>{escape(part.title)}</h2>\n{told}\n{figure}\n{grid}\n</section>"


def _marked(text: str) -> str:
    """The two marks of Markdown that the texts use."""
    strong = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(text))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", strong)


def _table(grid: Grid) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in grid.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in grid.rows)
    kind = ' class="list"' if len(grid.columns) == 2 else ""
    return f'<div class="wide"><table{kind}>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>'
