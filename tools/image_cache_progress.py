"""How far a long measurement is, and how long it will take: a bar on a terminal, lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Steps(AbstractContextManager["Steps"]):
    """`total` steps of about the same length, in parts that have names."""

    def __init__(self, total: int, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._done = total, 0
        self._console, self._clock, self._begun = console, clock, clock()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def at(self, part: str) -> None:
        """A part begins."""
        self._progress.update(self._task, description=part)
        if self._progress.disable:
            self._console.print(f"{part}{self._left()}", markup=False, soft_wrap=True)

    def step(self) -> None:
        self._done += 1
        self._progress.update(self._task, completed=self._done)

    def _left(self) -> str:
        if not self._done:
            return ""
        seconds = (self._clock() - self._begun) / self._done * (self._total - self._done)
        return f" (about {seconds:.0f} s left)"
