"""What is told of two requests: how much of them agrees, what stands where they part, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jev_local.core.compared import Form
from jev_local.core.parting import Move, Place
from jev_local.core.plan import PrefixPlan, Tokens
from jev_local.core.reasons import Check, WhyNot
from jev_local.core.sharing import Policy, Profile, choose
from jev_local.core.values import Kind

WORDS: Mapping[Kind, str] = {
    "date-time": "a date or time",
    "id": "a UUID or another id",
    "number": "a number",
    "user-name": "a user name",
    "white-space": "white space",
    "key-order": "the order of JSON members",
    "template": "another template, system text or tools",
    "model": "another model",
    "text": "text",
    "question": "the part that is meant to change",
}


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two requests. tokens: of its whole prompt. stem: how many of them come before what is meant to change
    (the questions, of which the first one's prompt is compared; or the last user message)."""

    form: Form
    tokens: int
    stem: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole answer. whole: they agree over all that could have been reused, and ask the same model. place: where
    the texts part, None where they do not. moves: what is in the way one after another, and what would agree without
    it."""

    a: Side
    b: Side
    agree: int
    whole: bool
    place: Place | None
    moves: tuple[Move, ...]
    checks: tuple[Check, ...]
    advice: str


def agrees_whole(a: Side, b: Side, agree: int) -> bool:
    """A saved state of a decision is found by all of its tokens. A chat may go on where a shorter one ended."""
    decisions = a.form == b.form == "decision"
    return a.form == b.form and agree >= (max(a.stem, b.stem) if decisions else min(a.stem, b.stem))


def finds(form: Form, prompt: Tokens, looked_for: Tokens, saved: Tokens) -> bool:
    """Whether a request of `prompt` uses the state after `saved`. A decision looks for one state and no other; a chat
    for the longest of what its prompt begins with, but for the last token, which has to be read."""
    if form == "decision":
        return saved == looked_for
    return len(saved) < len(prompt) and prompt[: len(saved)] == saved


def why_not_kept(policy: Policy, profile: Profile, plan: PrefixPlan) -> WhyNot | None:
    """Why the state of these questions is not saved for later ones, None where nothing speaks against it."""
    if policy.mode == "off":
        return "off"
    if not profile.sharing:
        return "not-shared"
    if not policy.keeps:
        return "keeps-nothing"
    if choose(policy, profile, plan).make:
        return None
    return "single-question" if len(plan.rests) < 2 else "too-short"


def why_chat_not_kept(policy: Policy, profile: Profile, side: Side, *, wanted: bool = True) -> WhyNot | None:
    """The same of a chat or a text completion. wanted: its caller has nothing against reuse."""
    if policy.mode == "off":
        return "off"
    if not profile.sharing:
        return "not-shared"
    if not policy.keeps:
        return "keeps-nothing"
    if not wanted:
        return "unwanted"
    if side.form == "text":
        return "no-part"
    return "too-short" if policy.mode != "shared" and side.stem < policy.min_tokens else None


VALUES: frozenset[Kind] = frozenset(("date-time", "id", "number", "user-name"))
"""What may change from request to request and says nothing of how to answer."""

ANOTHER_MODEL = "Ask the same model: nothing that one has read is of use to another."


def advice_on(place: Place, moves: tuple[Move, ...], agree: int) -> str:
    """What to do about what stands where texts part. Never to move or drop instructions: a value that changes can stand
    behind them."""
    gain = moves[-1].agree if moves else 0
    more = f": {gain:,} tokens would agree then, instead of {agree:,}" if gain > agree else ""
    match place.kind:
        case "date-time" | "id" | "number" | "user-name":
            return _behind([place.kind, *(move.kind for move in moves)], more)
        case "white-space":
            return f"Write the white space the same way every time{more}."
        case "key-order":
            return f"Write the JSON members in the same order every time{more}."
        case "template":
            return "Keep both as they are if they are meant to differ: each is read once and kept on its own."
        case "model":
            return ANOTHER_MODEL
        case _:
            return f"Put the text that stays the same first, and what changes behind it{more}."


def _behind(kinds: Sequence[Kind], more: str) -> str:
    names = dict.fromkeys(WORDS[kind].removeprefix("a ") for kind in kinds if kind in VALUES)
    several = "them" if len(names) > 1 else "it"
    verb = "change" if len(names) > 1 else "changes"
    told = f"If the {' and the '.join(names)} {verb} from request to request, put {several} behind the text that stays "
    # A number may be a date that is not known as one, or the thirty days of a policy.
    rule = " A number that belongs to a rule is to stay where it is." if "number" in kinds else ""
    return f"{told}the same{more}.{rule}"
