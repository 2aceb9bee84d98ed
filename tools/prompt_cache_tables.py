"""What the report of `benchmark_prompt_cache` is made of, and how numbers are told in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tools.prompt_cache_client import Reply
from tools.prompt_cache_results import NOT_MEASURED, NOT_REPORTED
from tools.prompt_cache_rounds import Asked
from tools.prompt_cache_summary import Spread, good, spread

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Grid:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Part:
    """chart: the name of the one that belongs here."""

    title: str
    text: tuple[str, ...] = ()
    grid: Grid | None = None
    chart: str = ""


def ms(found: Spread | None) -> str:
    return NOT_MEASURED if found is None else found.told(scale=1000)


def mib(found: Spread | None) -> str:
    return NOT_MEASURED if found is None else found.told(scale=1 / MIB)


def tokens(found: Spread | None) -> str:
    """Never 0 for what was not told."""
    return NOT_REPORTED if found is None else found.told()


def rate(found: Spread | None, digits: int = 1) -> str:
    return NOT_REPORTED if found is None else found.told(digits)


def requests(first: str, rows: Iterable[tuple[str, list[Asked]]]) -> Grid:
    """Per kind of request, what there is to know of one."""
    columns = (first, "requests", "first token, ms", "complete, ms", "input tokens", "cached tokens", "output tokens")
    return Grid((*columns, "tokens/s after the first"), tuple(_row(name, asked) for name, asked in rows if asked))


def _row(name: str, asked: list[Asked]) -> tuple[str, ...]:
    answered = [one.reply for one in good(asked)]

    def of(value: Callable[[Reply], float | None]) -> Spread | None:
        return spread(value(reply) for reply in answered)

    return (
        name,
        str(len(answered)),
        ms(of(lambda reply: reply.first)),
        ms(of(lambda reply: reply.total)),
        tokens(of(lambda reply: reply.input_tokens)),
        tokens(of(lambda reply: reply.cached_tokens)),
        tokens(of(lambda reply: reply.output_tokens)),
        rate(of(lambda reply: reply.decode)),
    )


def ratio(above: list[Asked], below: list[Asked]) -> str:
    """Of the medians of the time to the first token."""
    high, low = (spread(one.reply.first for one in good(asked)) for asked in (above, below))
    return NOT_MEASURED if high is None or low is None or not low.median else f"{high.median / low.median:.2f}"


def markdown(title: str, parts: Iterable[Part]) -> str:
    lines = [f"# {title}", ""]
    for part in parts:
        lines += [f"## {part.title}", ""]
        for paragraph in part.text:
            lines += [paragraph, ""]
        if part.grid is not None and part.grid.rows:
            lines += [_cells(part.grid.columns), _cells("---" for _ in part.grid.columns)]
            lines += [_cells(row) for row in part.grid.rows]
            lines.append("")
    return "\n".join(lines)


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").replace("<", "&lt;").split()) for cell in cells) + " |"
