"""A process that this one starts, and that never outlives it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from jev_local.launch.errors import CannotStart
from jev_local.launch.tether import KERNEL, tethered

GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""

LOG_LIMIT = 16 * 1024 * 1024
LOG_KEPT = 256 * 1024


class Child:
    """One started process, in a session of its own: Ctrl-C reaches only us, and we decide in which order things end.

    With `log`, both its outputs are appended to that file; without, they go where ours go.
    """

    def __init__(
        self, name: str, argv: list[str], *, log: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.log = name, log
        how, guard, self._lifeline = KERNEL, None, None
        self._log_begins = 0
        if sys.platform != "linux":
            guard, self._lifeline = os.pipe()
            how = str(guard)
        with contextlib.ExitStack() as opened:
            output = None
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                opened.callback(os.close, output)
                self._log_begins = os.fstat(output).st_size
            if guard is not None:
                opened.callback(os.close, guard)
            self._process = subprocess.Popen(
                tethered(argv, how=how),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=None if environment is None else dict(environment),
                pass_fds=() if guard is None else (guard,),
                start_new_session=True,
            )

    def __repr__(self) -> str:
        return f"<Child {self.name} pid={self.pid} {'running' if self.poll() is None else self.ending()}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs."""
        return self._process.poll()

    def ending(self) -> str:
        """How it ended, in words."""
        code = self.poll()
        if code is None:
            return "still running"
        number = -code if code < 0 else code - 128
        if code < 0 or code > 128:
            with contextlib.suppress(ValueError):
                return f"ended by {signal.Signals(number).name}"
        return f"ended with exit code {code}"

    def require_running(self, before: str, *, hint: str = "") -> None:
        """CannotStart, with the end of the log, if it has ended `before` something."""
        if self.poll() is not None:
            raise CannotStart(f"{self.name} {self.ending()} before {before}{self.last_lines()}{hint}")

    def last_lines(self, count: int = 12) -> str:
        """The end of what this process wrote to its log, indented for showing under a message."""
        if self.log is None or not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(max(self._log_begins, self.log.stat().st_size - 16 * 1024))
            lines = file.read().decode("utf-8", "replace").splitlines()[-count:]
        return "".join(f"\n    {line}" for line in lines)

    def trim_log(self) -> None:
        """Keep a server that runs for months from filling the disk. It appends, so the file can be cut under it."""
        if self.log is None or not self.log.exists() or self.log.stat().st_size < LOG_LIMIT:
            return
        with self.log.open("r+b") as file:
            file.seek(-LOG_KEPT, os.SEEK_END)
            kept = file.read()
            file.seek(0)
            file.write(kept)
            file.truncate()
        self._log_begins = 0

    def signal(self, number: signal.Signals) -> None:
        """To everything in its session. A process that is gone is no fault."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def wait(self, timeout: float) -> bool:
        """Whether it ended within `timeout` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def release(self) -> None:
        """Let go of the lifeline once the process is gone. A second time does nothing."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


def stop(children: Iterable[Child], *, grace: float = GRACE) -> None:
    """End all of them: SIGTERM to each at once, SIGKILL for who is still there when the grace is over."""
    children = tuple(children)
    running = [child for child in children if child.poll() is None]
    for child in running:
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    for child in running:
        if not child.wait(max(0.0, deadline - time.monotonic())):
            child.signal(signal.SIGKILL)
            child.wait(grace)
    for child in children:
        child.release()


def see_through(child: Child, *, poll: Callable[[], None], every: float = 0.2) -> None:
    """Wait until it has ended, calling `poll` meanwhile; whatever interrupts us ends it too."""
    try:
        while not child.wait(every):
            poll()
    finally:
        stop([child])
