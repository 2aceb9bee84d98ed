"""Anything over a second shows that it moves: on a terminal in place, in a pipe as a plain line now and then."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from jev_local.launch.errors import CannotStart
from jev_local.threads import start_without_interrupts

QUIET = 1.0  # seconds before the first line in a pipe
INTERVAL = 10.0  # seconds between lines in a pipe
SLOWEST = 10_000.0  # bytes a second; below, what is left would be told in days


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What would steer a terminal: a path or a file may have it."""


def say(text: str) -> None:
    """A fact for the person at the terminal, at once, also into a pipe. BrokenPipeError where nobody reads on,
    CannotStart where it cannot be written."""
    try:
        _print(text, sys.stdout)
    except BrokenPipeError:
        raise
    except OSError as error:
        forget(sys.stdout)
        raise CannotStart(f"cannot write the output: {error.strerror}") from error


def murmur(text: str) -> None:
    """How far it is, to stderr. Where that cannot be told it is not: what goes on does not depend on it."""
    try:
        _print(text, sys.stderr)
    except OSError:
        forget(sys.stderr)


def _print(text: str, stream: TextIO | None) -> None:
    if stream is None or stream.closed:
        return
    text = CONTROL.sub("?", text)
    try:
        print(text, file=stream, flush=True)
    except UnicodeEncodeError:  # a path in a terminal that cannot show it
        print(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding), file=stream, flush=True)


def forget(stream: TextIO | None) -> None:
    """What is in its buffer goes nowhere, and all that follows: the interpreter writes it once more as it ends, and
    would fail by that."""
    with suppress(AttributeError, OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)


def on_terminal() -> bool:
    """Whether stderr is one. It can be closed, or none at all."""
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def bytes_in(folder: Path) -> int:
    """Bytes of all files in it, for watching a program that says nothing about its progress."""
    total = 0
    # os.walk passes over a folder that is gone by the time it is looked into; Path.rglob raises.
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # renamed between the two looks
                total += os.lstat(os.path.join(place, name)).st_size
    return total


class Waiting(AbstractContextManager["Waiting"]):
    """Progress of something whose length is not known. Call `tick` while it lasts."""

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._clock = what, clock
        self._started = clock()
        self._next = self._started + QUIET
        self._status = Console(stderr=True).status(what) if on_terminal() else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def tick(self) -> None:
        now = self._clock()
        if self._status is not None:
            self._status.update(f"{self._what} ({now - self._started:.0f} s)")
        elif now >= self._next:
            murmur(f"{self._what} ({now - self._started:.0f} s)")
            self._next = now + INTERVAL


class Ticking(AbstractContextManager["Ticking"]):
    """Progress in a pipe of a call that cannot tick by itself. On a terminal such a call shows its own."""

    def __init__(self, what: str) -> None:
        self._waiting = Waiting(what)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        if not on_terminal():
            start_without_interrupts(self._thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _tick(self) -> None:
        while not self._over.wait(1.0):
            self._waiting.tick()


class Meter(AbstractContextManager["Meter"]):
    """Progress in bytes, with speed, and with what is left where the total is known."""

    def __init__(self, what: str, total: int | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._total, self._clock = what, total, clock
        self._next = clock() + QUIET
        self._since: tuple[float, int] | None = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not on_terminal(),
        )
        self._task = self._progress.add_task(what, total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def at(self, done: int, total: int | None = None) -> None:
        """`done` bytes are there, of `total` if that is known only now. More than that (a wheel beside what came out
        of it) is shown as all."""
        self._total = total or self._total
        done = min(done, self._total or done)
        self._progress.update(self._task, completed=done, total=self._total)
        now = self._clock()
        if self._since is None or done < self._since[1]:  # what an earlier run left is not speed, and starting again
            self._since = now, done
        if self._progress.disable and now >= self._next:
            murmur(f"{self._what}: {self._told(now, done)}")
            self._next = now + INTERVAL
            self._since = now, done

    def _told(self, now: float, done: int) -> str:
        """`300 of 1117 MB, 12.3 MB/s, 66 s left`, the speed being that since the last line."""
        assert self._since is not None  # noqa: S101  # the caller set it
        begun, before = self._since
        told = f"{done / 1e6:.0f} MB" if self._total is None else f"{done / 1e6:.0f} of {self._total / 1e6:.0f} MB"
        if now <= begun or done <= before:
            return told
        speed = (done - before) / (now - begun)
        left = "" if self._total is None or speed < SLOWEST else f", {(self._total - done) / speed:.0f} s left"
        return f"{told}, {speed / 1e6:.1f} MB/s{left}"
