"""`python -m jev_local.launch.tether PARENT HOW COMMAND...`: run COMMAND so that it ends when PARENT does.

A process that loses its parent goes on living: after kill -9 of `jev-local up`, a llama-server would keep its port and
gigabytes of memory. The kernel can end it, or something has to watch.

- HOW `kernel` (Linux): the kernel is told to send SIGKILL when the parent dies, then COMMAND takes this process over.
  The setting survives exec. It belongs to the *thread* that started us: start children from the main thread.
- HOW a number (elsewhere): the reading end of a pipe whose other end only the parent holds. This process stays as a
  guard beside COMMAND, and when the pipe breaks it kills it.

Either way COMMAND starts with the default SIGINT and SIGTERM, whatever the shell or Python had set up: a background job
in a script would otherwise ignore SIGINT.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys

KERNEL = "kernel"
PR_SET_PDEATHSIG = 1
LOOK_AGAIN = 0.2  # seconds


def tethered(argv: list[str], *, how: str) -> list[str]:
    """The command line that runs `argv` tethered to the calling process."""
    return [sys.executable, "-P", "-m", "jev_local.launch.tether", str(os.getpid()), how, *argv]


def main(argv: list[str]) -> int:
    parent, how, *command = argv
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if how == KERNEL:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(parent):
            return 1  # it died before the kernel was told: nobody is left to serve
        try:
            os.execvp(command[0], command)  # noqa: S606  # no shell is wanted
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
            return 127
    return _guard(int(how), command)


def _guard(pipe: int, command: list[str]) -> int:
    # Signals go to the whole group and COMMAND may take its time; the guard has to be the last to leave.
    # A handler and not SIG_IGN, because exec resets handlers while an ignored signal stays ignored in COMMAND.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    try:
        child = subprocess.Popen(command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    while child.poll() is None:
        broken, _, _ = select.select([pipe], [], [], LOOK_AGAIN)
        if broken:
            child.kill()
            child.wait()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
