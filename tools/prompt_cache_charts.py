"""The charts of `benchmark_prompt_cache`, as SVG that stands in a page by itself."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tools.prompt_cache_results import Results
from tools.prompt_cache_rounds import AFTER, AGAIN, BEFORE, COMMON, FIRST, ORDER, OWN, SEQUENTIAL, Asked
from tools.prompt_cache_summary import Spread, Together, good, spread

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "figure.constrained_layout.use": True,
}
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#777777"  # told apart without colour vision too
COLOURS = {COMMON: BLUE, OWN: ORANGE}
NOTHING = {"Date": None, "Creator": None, "Format": None, "Type": None}
"""A picture that says neither when nor by what it was made."""


def charts(results: Results) -> dict[str, str]:
    """By the name of the part that each belongs to; those that have something to show."""
    drawn: dict[str, Callable[[Results], Figure | None]] = {
        "sequential": _sequential,
        "concurrency": _concurrency,
        "mixed": _mixed,
        "order": _order,
        "memory": _memory,
    }
    found = {}
    for name, draw in drawn.items():
        settings: Any = STYLE | {"svg.hashsalt": name}
        with rc_context(settings):
            figure = draw(results)
            if figure is not None:
                found[name] = _svg(figure, name)
    return found


def _svg(figure: Figure, name: str) -> str:
    """Without a document around it, and with ids that no other chart of the page has."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=NOTHING)
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg, count=2)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)


def _dots(axes: Axes, groups: Sequence[tuple[str, Sequence[Asked], str]]) -> bool:
    """Every request's time to the first token, and the median of each group. Whether there is any."""
    shown = False
    for place, (_, asked, colour) in enumerate(groups):
        times = [one.reply.first * 1000 for one in good(asked) if one.reply.first is not None]
        if not times:
            continue
        shown = True
        shift = [place + (index % 7 - 3) * 0.03 for index in range(len(times))]  # side by side, not on top
        axes.plot(times, shift, "o", color=colour, alpha=0.55, markersize=5)
        middle = spread(times)
        assert middle is not None
        axes.plot([middle.median] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=2)
        axes.annotate(f" {middle.median:.0f}", (middle.median, place - 0.3), ha="left", va="center", color=colour)
    axes.set_yticks(range(len(groups)), [name for name, _, _ in groups])
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("milliseconds to the first token")
    return shown


def _role(results: Results, condition: str, role: str) -> list[Asked]:
    return [one for one in results.of(condition) if one.role == role]


def _sequential(results: Results) -> Figure | None:
    figure = Figure(figsize=(8, 2.4))
    groups = [(FIRST, _role(results, SEQUENTIAL, FIRST), ORANGE), (AGAIN, _role(results, SEQUENTIAL, AGAIN), BLUE)]
    return figure if _dots(figure.subplots(), groups) else None


def _order(results: Results) -> Figure | None:
    figure = Figure(figsize=(8, 2.4))
    groups = [(AFTER, _role(results, ORDER, AFTER), BLUE), (BEFORE, _role(results, ORDER, BEFORE), ORANGE)]
    return figure if _dots(figure.subplots(), groups) else None


def _concurrency(results: Results) -> Figure | None:
    found = results.together()
    if not found:
        return None
    figure = Figure(figsize=(10, 7))
    panels = dict(zip(_PANELS, figure.subplots(2, 2).flat, strict=True))
    for name, axes in panels.items():
        for kind in COLOURS:
            _line(axes, found, _PANELS[name], kind)
            if name == WALL:
                _line(axes, found, lambda one: one.alone, kind, more="one after another", style="--")
                _line(axes, found, lambda one: one.summed, kind, more="sum of requests", style=":")
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_xlabel("clients at once")
        axes.set_xticks(sorted({one.clients for one in found}))
        axes.set_ylim(bottom=0)
    figure.legend(*panels[WALL].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


WALL = "time of a whole batch, seconds"
_PANELS: dict[str, Callable[[Together], Spread | None]] = {
    "median request, seconds": lambda one: one.median,
    WALL: lambda one: one.wall,
    "completions per second": lambda one: one.completions,
    "tokens per second, all clients": lambda one: one.tokens,
}


def _line(
    axes: Axes,
    found: Sequence[Together],
    value: Callable[[Together], Spread | None],
    kind: str,
    *,
    more: str = "",
    style: str = "-",
) -> None:
    """What `value` is of each number of clients, with the least and the most."""
    known = [(one.clients, of) for one in found if one.kind == kind and (of := value(one)) is not None]
    label = ": ".join(part for part in (kind, more) if part)
    _spreads(axes, known, label=label, color=COLOURS[kind], linestyle=style, markersize=4)


def _spreads(axes: Axes, known: Sequence[tuple[int, Spread]], *, scale: float = 1.0, **look: Any) -> None:
    if known:
        middle = [one.median * scale for _, one in known]
        below = [(one.median - one.least) * scale for _, one in known]
        above = [(one.most - one.median) * scale for _, one in known]
        axes.errorbar([place for place, _ in known], middle, yerr=[below, above], marker="o", capsize=3, **look)


def _mixed(results: Results) -> Figure | None:
    found = results.returns()
    if not found:
        return None
    figure = Figure(figsize=(10, 3.2))
    left, right = figure.subplots(1, 2)
    places = range(len(found))
    names = [str(one.others) for one in found]
    left.bar(places, [100 * one.hits / one.visits for one in found], color=BLUE, width=0.5)
    left.set_ylim(0, 105)
    left.set_title("hits on coming back to A, percent", fontsize=10, loc="left")
    for label, colour, picked in (
        ("A's first visit", ORANGE, [one.first for one in found]),
        ("back to A", BLUE, [one.back for one in found]),
    ):
        known = [(place, one) for place, one in enumerate(picked) if one is not None]
        _spreads(right, known, scale=1000, label=label, color=colour)
    right.set_ylim(bottom=0)
    right.set_title("milliseconds to the first token", fontsize=10, loc="left")
    right.legend(fontsize=8, frameon=False)
    for axes in (left, right):
        axes.set_xticks(places, names)
        axes.set_xlabel("other prefixes in between")
    return figure


def _memory(results: Results) -> Figure | None:
    if not results.samples:
        return None
    figure = Figure(figsize=(10, 2.8))
    axes = figure.subplots()
    began = results.samples[0].at
    every = max(1, len(results.samples) // 2000)
    kept = results.samples[::every]
    axes.plot([one.at - began for one in kept], [one.rss / 1024**2 for one in kept], color=GREEN, linewidth=1)
    axes.set_ylim(bottom=0)
    for name, (begin, end) in results.spans.items():
        axes.axvline(begin - began, color=GREY, linewidth=0.8, linestyle=":")
        axes.annotate(name, ((begin + end) / 2 - began, 0.02), xycoords=("data", "axes fraction"), ha="center")
    axes.set_xlabel("seconds")
    axes.set_ylabel("MiB resident")
    return figure
