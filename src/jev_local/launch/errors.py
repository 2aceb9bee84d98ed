"""What keeps this product from starting, told to the person at the terminal."""

from __future__ import annotations


class CannotStart(Exception):
    """One line that names what is wrong and what to do. `code` is the exit code: 2 where the command line or a setting
    has to change, 1 otherwise. Outside the tree in `jev_local.errors`: no caller ever sees it, and it names paths."""

    def __init__(self, message: str, *, code: int = 1) -> None:
        super().__init__(message)
        self.message, self.code = message, code
