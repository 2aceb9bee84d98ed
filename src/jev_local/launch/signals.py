"""Ctrl-C, kill and a closed terminal, as one kind of interruption."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any, Self

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruptions(AbstractContextManager["Interruptions"]):
    """While open, each of the watched signals raises KeyboardInterrupt in the main thread and sets `came`, for the case
    that somebody in between catches the exception.

    SIGINT is taken even where it was ignored (a background job of a script); SIGHUP is not, that is what nohup is for.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in WATCHED:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ignore(self) -> None:
        """From here on nothing interrupts: what is left to do is short, and leaving it half done is worse."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        raise KeyboardInterrupt
