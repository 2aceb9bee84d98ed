"""Why a prompt was not reused that begins as another did: what is looked at, in one order, and the one thing to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Fate: TypeAlias = Literal["held", "evicted", "unknown"]

WhyNot: TypeAlias = Literal[
    "off",
    "not-shared",
    "unwanted",
    "no-part",
    "too-short",
    "single-question",
    "keeps-nothing",
    "too-large",
    "saving-off",
    "goes-on",
]
"""Why a state is not kept beyond its request. not-shared: the probe found no way that is exact on this server.
unwanted: the request said so. no-part: a text completion has none that is known to come again. keeps-nothing: the
budget is 0. saving-off: a save failed a while ago. goes-on: what is saved ends further on, where the later request is
another already."""

MOST = 0.9
"""The share of a part that is reused, or saved, where that is called a find. What chats begin with by their template
is none."""

CheckName: TypeAlias = Literal["text", "process", "entry", "cut-back"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. outcome: one word for programs. says: a sentence for people, without any text of
    the requests."""

    check: CheckName
    outcome: str
    says: str


@dataclass(frozen=True, slots=True)
class Known:
    """What the server knows of a part that both requests have. asked: whether it remembers a request with it.
    restarted: the model's server has started anew since then. reused: tokens that the last request which began like
    the later one did not evaluate. fate: of the saved state that the later one finds. why_not: why there is none.
    truncates: the model's state can be cut back to any length. tokens: of the part. least: what is worth keeping."""

    asked: bool
    restarted: bool
    reused: int
    fate: Fate
    why_not: WhyNot | None
    truncates: bool
    tokens: int
    least: int


_WHY: Mapping[WhyNot, str] = {
    "off": "It was never kept: reuse is switched off (--state-cache off).",
    "not-shared": "It was never kept: no way to reuse a state gives exact answers on this model's server (see /ready).",
    "unwanted": "It is neither used nor kept: a request says cache_prompt false.",
    "no-part": "It was never kept: nothing tells which part of a text completion comes again; only its slot holds it.",
    "too-short": "It was never kept: it has {tokens} tokens, and {least} are worth keeping (--cache-min-tokens).",
    "single-question": "It was never kept: a request with a single question keeps nothing.",
    "keeps-nothing": "It was never kept: --prefix-cache-bytes is 0.",
    "too-large": "It was never kept: it is larger than --prefix-cache-bytes.",
    "saving-off": "It was never kept: saving is off for a while after a save that failed (see /v1/cache).",
    "goes-on": "It was never kept by itself: what is saved goes on behind it, in another way than the second request.",
}

_REMEDY: Mapping[WhyNot, str] = {
    "off": "Start the API with --state-cache auto.",
    "not-shared": "Use a model and a server for which /ready shows a strategy that is exact.",
    "unwanted": "Leave cache_prompt out, or set it to true.",
    "no-part": "Ask with messages instead: what comes before the last user message is kept.",
    "too-short": "Nothing is lost at this length; --cache-min-tokens sets from where on states are kept.",
    "single-question": "Ask the questions about one text in one request: from two on its state is kept.",
    "keeps-nothing": "Give --prefix-cache-bytes room for at least one state.",
    "too-large": "Give --prefix-cache-bytes room for at least one state of this length.",
    "saving-off": "Make room on the disk of the slot directory; saving is tried again within a minute.",
    "goes-on": "Ask the second request once: what it begins with is kept then, for all that begin like it.",
}


def is_most(some: int, of: int) -> bool:
    """Whether `some` tokens of a part of `of` are a find."""
    return some > 0 and some >= MOST * of


def text_differs(agree: int, reusable: int) -> Check:
    return Check("text", "differs", f"What is really sent parts after {agree:,} of {reusable:,} reusable tokens.")


def model_differs() -> Check:
    return Check("text", "another-model", "They name different models.")


def checks(known: Known) -> tuple[Check, ...]:
    """What is looked at where the texts are the same, in this order: the text really sent, the server's process, the
    saved state, and whether the model's state can be cut back."""
    return (
        Check(
            "text", "same", f"As the server's template renders them, both begin with the same {known.tokens:,} tokens."
        ),
        _process(known),
        _entry(known),
        _cut_back(known),
    )


def _process(known: Known) -> Check:
    if not known.asked:
        return Check("process", "unknown", "This API remembers no request that began like this since it started.")
    if known.restarted:
        return Check("process", "restarted", "The model's server has started anew between two requests that began so.")
    return Check("process", "same", "The model's server is the one that was asked the last time.")


def _entry(known: Known) -> Check:
    if known.fate == "held":
        return Check("entry", "held", "Its state is saved and can be used.")
    if known.fate == "evicted":
        return Check("entry", "evicted", "Its state was saved and had to make room for others.")
    if known.why_not is not None:
        says = _WHY[known.why_not].format(tokens=f"{known.tokens:,}", least=f"{known.least:,}")
        return Check("entry", "never-kept", says)
    return Check("entry", "unknown", "No state of it is saved now, and why is not remembered.")


def _cut_back(known: Known) -> Check:
    if known.truncates:
        return Check("cut-back", "possible", "This model's state can be cut back to any length.")
    return Check(
        "cut-back", "impossible", "This model's state cannot be cut back: it is reused only where it ends exactly."
    )


def advice(known: Known) -> str:
    """What can be changed comes before what cannot: a saved state outlives a server's restart, a slot does not."""
    if is_most(known.reused, known.tokens):
        return f"Nothing is wrong: {known.reused:,} tokens were reused the last time."
    return _remedy(known) or _of_process(known)


def _remedy(known: Known) -> str | None:
    if known.fate == "held":
        return "Nothing to change: the next request that begins like this uses the saved state."
    if known.fate == "evicted":
        return "Give --prefix-cache-bytes more room, or ask about fewer texts in turn."
    if known.why_not is not None:
        return _REMEDY[known.why_not]
    return None


def _of_process(known: Known) -> str:
    if known.restarted:
        return "Keep one server process running: what only its slots held is gone when it ends."
    if known.asked and not known.truncates:
        return "Keep the part before what changes the same to its last token: this model's state cannot be cut back."
    if not known.asked:
        return "Ask the first request, then the second, and explain again: nothing is known of either yet."
    return "Ask once more: the state is kept by the next request of two or more questions."
