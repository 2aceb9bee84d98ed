"""Texts of a caller that llama-server would read as something else than text."""

from __future__ import annotations

from collections.abc import Iterable

WORD_JOINER = "\u2060"
"""Shows as nothing and joins what stands beside it, so that a reader sees what was written."""


def disarmed(text: str, controls: Iterable[str]) -> str:
    """`text` with every one of `controls` in it broken behind its first character. The longest are looked for first, so
    that one that is part of another leaves no half behind."""
    for control in sorted(controls, key=len, reverse=True):
        if len(control) > 1:
            text = text.replace(control, control[0] + WORD_JOINER + control[1:])
    return text
