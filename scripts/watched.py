"""Runs a command and shows that it moves. Standard library only, readable for any Python 3: bootstrap.py needs it."""

# ruff: noqa: UP006, UP031, UP035
# The newer forms do not parse, or do not run, on the Pythons that have to read this far to be told they are old.

import os
import select
import shutil
import subprocess
import sys
import time
from typing import Sequence, Tuple

ON_TERMINAL = 0.2  # seconds between two looks of one line that is rewritten
IN_PIPE = 5.0  # seconds between two lines


def run(title: str, command: Sequence[str], cwd: str, inherit: int) -> Tuple[int, str]:
    """Exit code and output of `command`, which inherits the file descriptor `inherit`. An interruption ends it."""
    started = told = time.monotonic()
    output = b""
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(inherit,))
    assert process.stdout is not None  # noqa: S101  # we asked for a pipe
    try:
        while True:
            readable, _, _ = select.select([process.stdout], [], [], 1.0)
            if readable:
                piece = os.read(process.stdout.fileno(), 65536)
                if not piece:
                    break
                output += piece
            now = time.monotonic()
            if now - told >= (ON_TERMINAL if sys.stderr.isatty() else IN_PIPE):
                told = now
                step = latest_step(output)
                show("  %s, %d s%s" % (title, now - started, ": " + step if step else ""))
    except BaseException:
        process.kill()
        raise
    finally:
        process.wait()
        process.stdout.close()
        if sys.stderr.isatty():
            show("")
    return process.returncode, output.decode("utf-8", "replace")


def show(line: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K" + line[: shutil.get_terminal_size().columns - 1])
    else:
        sys.stderr.write(line[:100] + "\n")
    sys.stderr.flush()


def latest_step(output: bytes) -> str:
    """What pip is doing: the last complete line that is not one of its warnings."""
    for line in reversed(output[-4096:].decode("utf-8", "replace").split("\n")[1:-1]):
        if line.strip() and not line.startswith(("WARNING", "Looking in", "  ")):
            return line.strip()
    return ""
