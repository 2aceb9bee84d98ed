"""Texts of other people, made fit for a person's terminal.

A state, a question or a server's message may hold escape sequences. Shown as they are, they could move the cursor,
change colours, rename the window or turn a line around, and make an answer look like another one. So whatever a
terminal would obey instead of showing is written out: an escape character reads `\\x1b`.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable

_OBEYED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # format characters that only shape letters and emoji


def clean(text: str, encoding: str = "utf-8") -> str:
    """`text` on one line, harmless, and writable in `encoding` (what is not in it becomes a question mark)."""
    line = _escaped(" ".join(text.split()), lambda char: ascii(char)[1:-1])
    return line if is_utf(encoding) else line.encode(encoding, "replace").decode(encoding)


def to_json(document: object, encoding: str = "utf-8") -> str:
    """`document` indented for people and the same data for programs, its obeyed characters as JSON escapes."""
    text = json.dumps(document, ensure_ascii=not is_utf(encoding), indent=2)
    # The line ends are json's own: those inside strings are escapes already.
    return "".join(_escaped(line, lambda char: json.dumps(char)[1:-1]) + "\n" for line in text.split("\n"))


def is_utf(encoding: str) -> bool:
    return encoding.lower().startswith("utf")


def _escaped(line: str, escape: Callable[[str], str]) -> str:
    # isprintable() settles nearly every line at once; what it also stops at is odd spaces and unassigned characters.
    if line.isprintable():
        return line
    return "".join(escape(char) if _is_obeyed(char) else char for char in line)


def _is_obeyed(char: str) -> bool:
    return unicodedata.category(char) in _OBEYED and char not in _JOINERS
