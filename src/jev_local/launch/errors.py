"""What keeps this product from starting, told to the person at the terminal."""

from __future__ import annotations


class CannotStart(Exception):
    """One line that names what is wrong and what to do, with the end of a child's log under it where that is what
    tells. `code` is the exit code: 2 where the command line or a setting has to change, 1 otherwise. `details` is what
    belongs into a log. Outside the tree in `jev_local.errors`: no caller ever sees it, and it names paths."""

    def __init__(self, message: str, *, code: int = 1, details: str = "") -> None:
        super().__init__(message)
        self.message, self.code, self.details = message, code, details


class NotFetched(CannotStart):
    """None of the places that have a file could be reached. Another file may still be had."""
