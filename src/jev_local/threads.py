"""Threads that leave signals to the main one."""

from __future__ import annotations

import signal
import sys
from threading import Thread


def start_without_interrupts(thread: Thread) -> None:
    """Start a thread that, like all that it starts, leaves Ctrl-C and kill to the others. A signal that the kernel
    gives to it would not end the read in which the main thread waits, and would take effect when that is over."""
    if sys.platform == "win32":
        thread.start()
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
