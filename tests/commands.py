"""Commands in the documents: taken apart as a shell does, and led back to the programs that they start.

A shell script of the checkout is read for what it executes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from io import StringIO

from documents import ROOT

EXECUTED = re.compile(r'^exec python3 "\$here/scripts/bootstrap\.py" (\S+) -- (.+) "\$@"$', re.MULTILINE)
ASSIGNED = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
OUTSIDE = frozenset(
    (".", "cd", "curl", "export", "git", "jq", "mlx_lm.server", "pip", "python", "python3", "source", "uv")
)
"""Words that begin commands which are not this product's."""


def simple_commands(code: str) -> list[list[str]]:
    """The commands of a piece of shell, a list of words each, without comments. What stands between two of them
    (`|`, `&&`, `;`) and where they read from and write to is left out."""
    words = shlex.shlex(_Shell(code.replace("\\\n", " ")), posix=True, punctuation_chars="|&;<>\n")
    words.whitespace_split = True
    words.whitespace = " \t"
    found: list[list[str]] = [[]]
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word and set(word) <= set("<>&") and word not in ("&", "&&"):
            skip = True
        elif word and set(word) <= set("|&;\n"):
            found.append([])
        else:
            found[-1].append(word)
    return [command for command in found if command]


class _Shell(StringIO):
    """A comment ends before the end of its line."""

    def readline(self, size: int | None = -1, /) -> str:
        line = super().readline()
        if line.endswith("\n"):
            self.seek(self.tell() - 1)
        return line


def bare(command: Sequence[str]) -> list[str]:
    """Without the variables that are set for it."""
    words = list(command)
    while words and ASSIGNED.match(words[0]):
        words.pop(0)
    return words


def assigned(command: Sequence[str]) -> list[str]:
    """Names of the variables that it sets: before the program, or with `export`."""
    words = list(command)
    if words[:1] == ["export"]:
        words.pop(0)
    found = []
    while words and ASSIGNED.match(words[0]):
        found.append(words.pop(0).partition("=")[0])
    return found


def script(word: str) -> list[str]:
    """The words that a shell script of the checkout has Python start with, `-P -m` left out."""
    found = EXECUTED.search((ROOT / word).read_text("utf-8"))
    assert found, f"{word} does not become a program of ours"
    words = shlex.split(found[2])
    return [word for word in words if word not in ("-P", "-m")]


def program(command: Sequence[str]) -> tuple[str, list[str]] | None:
    """A name of ours for what is started, and its arguments. None: not this product's."""
    words = bare(command)
    found = None
    match words:
        case ["./scripts/test" | "scripts/test", *rest]:
            found = "scripts/test", rest
        case [word, *rest] if re.fullmatch(r"\./[\w/]+\.sh", word):
            module, *first = script(word)
            found = _of_module(module, [*first, *rest])
        case ["jev-local", *rest]:
            found = _of_module("jev_local", rest)
        case ["systemone", *rest]:
            found = _asked(rest)
        case ["python3" | "python", "-m", module, *rest] if module.startswith(("tools", "jev_local")):
            found = _of_module(module, rest)
        case ["python3" | "python", path, *rest] if path.endswith(".py"):
            assert (ROOT / path).is_file(), f"there is no {path}"
            found = _asked(rest) if path == "systemone_client.py" else (path, rest)
        case [word, *_]:
            assert word in OUTSIDE, f"what is `{word}`?"
    return found


def _of_module(module: str, words: list[str]) -> tuple[str, list[str]]:
    if module == "jev_local":
        assert words, "jev-local wants a command"
        return f"jev-local {words[0]}", words[1:]
    return module, words


def _asked(words: list[str]) -> tuple[str, list[str]]:
    if words and not words[0].startswith("-"):
        return f"systemone {words[0]}", words[1:]
    return "systemone ask", words
