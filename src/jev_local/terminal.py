"""How answers look: a table where there is room for one, stacked blocks where there is not, plain text in a pipe.

Every text goes through `safe_text.clean` on its way to the screen, and none is ever read as rich markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Timer
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task
from rich.table import Table
from rich.text import Text

from jev_local.received import Received
from jev_local.rows import Bar, Row, rows, state_of
from jev_local.safe_text import clean, is_utf
from jev_local.threads import start_without_interrupts
from jev_local.wire.headers import NO_WARNINGS, WARNINGS, pick

NARROW = 72
"""Below this many cells, four columns leave too little for Japanese questions and the rows are stacked."""

ROOMY = 100
"""From here on the last heading is written out."""

WIDEST = 140
SMALLEST = 24
STATE_LINES = 2
SHORTEST_BAR = 8
PERCENT = 6  # "100.0%"


def table(request: object, reply: Received, stream: TextIO, *, with_diagnostics: bool = False) -> str:
    """The answers to `request`, laid out for `stream`; writing them is the caller's."""
    console = _console(stream)
    sheet = _Sheet(console)
    # Captured, so that writing and its errors (a closed pipe) stay with the caller.
    with console.capture() as captured:
        parts = [sheet.heading(request, reply), "", sheet.body(rows(request, reply))]
        if with_diagnostics:
            parts += ["", sheet.pairs(pick(reply.headers))]
        console.print(Group(*parts), width=sheet.width)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


class _Sheet:
    """The width and the characters of one console."""

    def __init__(self, console: Console) -> None:
        self._encoding = console.encoding
        self.width = max(SMALLEST, min(console.width, WIDEST))
        rich_characters = is_utf(console.encoding)
        self._ellipsis = "…" if rich_characters else "..."
        self._rule = "─" if rich_characters else "-"
        self._blocks = "█▏▎▍▌▋▊▉" if rich_characters else "#"

    def heading(self, request: object, reply: Received) -> RenderableType:
        room = (self.width - len("Warnings  ")) * STATE_LINES - 1  # a wide character may leave a cell at a line's end
        pairs = [("State", self._shortened(state_of(request), room)), ("Model", reply.model), ("Took", _cost(reply))]
        # Codes with counts: something about the answers deserves a second look.
        warnings = reply.headers.get(WARNINGS.lower(), NO_WARNINGS)
        if warnings != NO_WARNINGS:
            pairs.append(("Warnings", warnings))
        return self.pairs(pairs)

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> RenderableType:
        lines = Table.grid(padding=(0, 2, 0, 0))
        lines.add_column(style="dim", no_wrap=True)
        lines.add_column(overflow="fold")
        for name, value in pairs:
            lines.add_row(self._text(name), self._text(value))
        return lines

    def body(self, answered: tuple[Row, ...]) -> RenderableType:
        return self._stacked(answered) if self.width < NARROW else self._columns(answered)

    def _columns(self, answered: tuple[Row, ...]) -> RenderableType:
        confidence = "Confidence" if self.width >= ROOMY else "Conf."
        room = self.width - len(confidence) - 3 * 2
        question, answer = room * 34 // 100, room * 17 // 100
        widths = (question, answer, room - question - answer, len(confidence))
        grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        for width in widths[:-1]:
            grid.add_column(width=width, overflow="fold")
        grid.add_column(width=widths[-1], justify="right")
        grid.add_row(*(Text(name, "bold") for name in ("Question", "Answer", "Probability", confidence)))
        for row in answered:
            grid.add_row(*(Text(self._rule * width, "dim") for width in widths))
            grid.add_row(
                Group(self._text(row.id, "bold"), self._text(row.question)),
                Group(self._text(row.answer, "bold cyan"), *self._marks(row)),
                self._bars(row, widths[2]),
                "-" if row.confidence is None else f"{row.confidence:.2f}",
            )
        return grid

    def _stacked(self, answered: tuple[Row, ...]) -> RenderableType:
        blocks: list[RenderableType] = []
        for row in answered:
            blocks += [Text(self._rule * self.width, "dim"), self._text(row.id, "bold")]
            if row.question:
                blocks.append(self._text(row.question))
            blocks += [self._text(row.answer, "bold cyan"), *self._marks(row)]
            blocks.append(Padding(self._bars(row, self.width - 2), (0, 0, 0, 2)))
            if row.confidence is not None:
                blocks.append(Text(f"  confidence {row.confidence:.2f}"))
        return Group(*blocks)

    def _marks(self, row: Row) -> list[Text]:
        """One line for each thing about an answer that deserves a second look."""
        return [self._text(f"! {code}", "yellow") for code in row.warnings]

    def _bars(self, row: Row, width: int) -> RenderableType:
        rest = f"{self._ellipsis} {row.hidden} more" if row.hidden else ""
        bars = [*row.bars, *([Bar(rest, row.hidden_share)] if rest else [])]
        labels = [clean(bar.label, self._encoding) for bar in bars]
        # Labels come first: a bar still compares probabilities at a few cells, where half a label says nothing.
        label_width = min(max(map(cell_len, labels), default=0), max(width // 3, width - PERCENT - 2 - SHORTEST_BAR))
        length = width - label_width - PERCENT - 2
        lines = Text()
        for bar, label in zip(bars, labels, strict=True):
            style = "green" if bar.chosen else "dim"
            lines.append(set_cell_size(self._shortened(label, label_width), label_width) + " ")
            lines.append(set_cell_size(self._bar(bar.share, length), length), style)
            lines.append(f" {bar.share:>{PERCENT}.1%}\n")
        lines.rstrip()
        return lines

    def _bar(self, share: float, length: int) -> str:
        steps = len(self._blocks)
        full, part = divmod(round(min(1.0, max(0.0, share)) * length * steps), steps)
        return self._blocks[0] * full + (self._blocks[part] if part else "")

    def _shortened(self, text: str, width: int) -> str:
        text = clean(text, self._encoding)
        if cell_len(text) <= width:
            return text
        return set_cell_size(text, max(0, width - cell_len(self._ellipsis))).rstrip() + self._ellipsis

    def _text(self, text: str, style: str = "") -> Text:
        return Text(clean(text, self._encoding), style, overflow="fold")


def _cost(reply: Received) -> str:
    counts = (("in", reply.input_tokens), ("out", reply.output_tokens))
    time = f"{reply.seconds:.1f} s" if reply.seconds >= 1 else f"{reply.seconds * 1000:.0f} ms"
    return ", ".join([time, *(f"{n:,} tokens {way}" for way, n in counts if n is not None)])


def headers_text(headers: Mapping[str, str]) -> str:
    """The diagnostic headers, one a line, for places where no table is."""
    return "".join(f"{name}: {clean(value)}\n" for name, value in pick(headers))


@contextmanager
def waiting(what: str, stream: TextIO, *, after: float = 1.0) -> Iterator[None]:
    """Says on a terminal that something takes long, and for how long, once `after` seconds are over."""
    console = _console(stream)
    if not console.is_interactive:
        yield
        return
    progress = Progress(
        SpinnerColumn("line"),  # the ASCII one
        _Elapsed(what),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    progress.add_task(what)
    starter = Timer(after, progress.start)
    starter.daemon = True
    start_without_interrupts(starter)
    try:
        yield
    finally:
        starter.cancel()
        starter.join()  # a start that is under way has to end before there is something to stop
        progress.stop()


def _console(stream: TextIO) -> Console:
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if console.no_color:  # rich leaves bold and dim on; without a colour system there are no escape sequences at all
        console = Console(file=stream, highlight=False, markup=False, emoji=False, color_system=None)
    return console


class _Elapsed(ProgressColumn):
    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = clean(what)

    def render(self, task: Task) -> Text:
        return Text(f"{self._what} {task.elapsed or 0:.0f} s")
