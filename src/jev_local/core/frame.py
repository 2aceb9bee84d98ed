"""The model's chat template, reduced to what stands before and behind the user's text.

The template is rendered once, with a stand-in for the user's text, and cut at it. A template that changes what it is
given is noticed: the stand-in carries white space at its edges and comes back altered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jev_local.core.plan import Tokens

STAND_IN = "@@jev-local-user-text@@"

EDGE = "\t\t"
"""White space that no template puts around a message by itself, so that what is missing of it was trimmed."""


class TemplateRefused(ValueError):
    """The chat template cannot be used: it drops or rewrites the user's text."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Token ids of the template's own text: `head` from BOS to the user's text, `tail` from there to the answer."""

    head: Tokens
    tail: Tokens


@dataclass(frozen=True, slots=True)
class FrameText:
    """The same as text. trims: the template strips white space off the edges of a message."""

    head: str
    tail: str
    trims: bool


def messages(system: str, *, system_role: bool) -> list[Mapping[str, str]]:
    """The chat to render: the system text in a message of its own, or before the user's text where the model
    knows no system message."""
    edges = f"{EDGE}{STAND_IN}{EDGE}"
    if not system:
        return [{"role": "user", "content": edges}]
    if system_role:
        return [{"role": "system", "content": system}, {"role": "user", "content": edges}]
    return [{"role": "user", "content": f"{system}\n{edges}"}]


def cut(rendered: str) -> FrameText:
    """Head and tail of a rendered chat. Raises TemplateRefused unless the stand-in occurs exactly once."""
    if rendered.count(STAND_IN) != 1:
        raise TemplateRefused("the model's chat template does not carry the user's text over unchanged")
    head, tail = rendered.split(STAND_IN)
    trims = not (head.endswith(EDGE) and tail.startswith(EDGE))
    return FrameText(head.removesuffix(EDGE), tail.removeprefix(EDGE), trims)


def frame(head: Tokens, tail: Tokens, *, bos: Tokens) -> Frame:
    """One BOS, never two: some templates print it themselves."""
    begun = head[: len(bos)] == bos
    return Frame(head if begun else bos + head, tail)
