"""When a prefix is shared, and how: what the server was found to do well decides, not what its model is called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from jev_local.core.plan import PrefixPlan

Mode: TypeAlias = Literal["auto", "shared", "off"]

Strategy: TypeAlias = Literal["in-place", "fan-out", "restore", "plain"]
"""in-place: all questions one after another in one slot, whose contents they go on from.
fan-out: the same in several slots at once, each given the prefix from a snapshot.
restore: the prefix is restored before every question. plain: nothing is reused."""

CLEARLY = 0.8
"""A way that costs more memory is taken when it needs less than this share of the time: two runs of the same way
differ by a tenth on a quiet machine and by more on a busy one."""

NEAR = 12
"""Tokens. A server that cannot cut a slot back leaves a mark where an evaluation starts less than a batch from its end;
the smallest batches have 16."""

SHORT_LEAD = 8
"""Tokens that the questions have in common beyond the state, as "Question:", and that are not worth a snapshot of
their own: every question evaluates them where each goes back to the state's end."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings. pictures: prefixes with pictures are shared as well. chunk: tokens of a step in which a long prefix
    is evaluated. keeps: snapshots outlive their request. stable: the same numbers every time."""

    mode: Mode = "off"
    pictures: bool = True
    min_tokens: int = 256
    chunk: int = 512
    stable: bool = False
    keeps: bool = True

    @property
    def insists(self) -> bool:
        """Rather no service than one that does not share."""
        return self.mode == "shared" or self.stable


@dataclass(frozen=True, slots=True)
class Trial:
    """One strategy on three questions: whether it reused the prefix and gave the answers of a cold run, and how many
    milliseconds it took; None where it could not be tried."""

    name: Strategy
    exact: bool
    ms: float | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """What a server and its model can do. trials: one per strategy. truncates: a slot can be cut back to any length,
    as with attention alone. reason: why nothing is shared, or "". fingerprint: of everything that a snapshot depends
    on; equal for two runs of a server that compute the same."""

    trials: tuple[Trial, ...] = ()
    truncates: bool = False
    reason: str = ""
    fingerprint: str = ""

    @property
    def sharing(self) -> bool:
        return any(self.exact(name) for name in ("in-place", "fan-out", "restore"))

    def exact(self, name: str) -> bool:
        return any(trial.exact for trial in self.trials if trial.name == name)

    def doubting(self, name: Strategy) -> Profile:
        """What is left where `name` did not reuse what it should have: first the belief goes that slots can be cut back
        anywhere, then the strategy, with every other that goes on in place."""
        if name != "restore" and self.truncates:
            return replace(self, truncates=False)
        gone = ("restore",) if name == "restore" else ("in-place", "fan-out")
        trials = tuple(replace(trial, exact=trial.exact and trial.name not in gone) for trial in self.trials)
        left = any(trial.exact for trial in trials if trial.name != "plain")
        return replace(self, trials=trials, reason="" if left else "prefixes were not reused as they should have been")

    def fastest(self, *names: Strategy) -> Strategy | None:
        """The fastest of `names` that is exact, the earlier ones given the benefit of the doubt."""
        best: tuple[Strategy, float] | None = None
        for name in names:
            for trial in self.trials:
                usable = trial.name == name and trial.exact and trial.ms is not None
                if usable and (best is None or (trial.ms or 0.0) < CLEARLY * best[1]):
                    best = name, trial.ms or 0.0
        return None if best is None else best[0]


def described(profile: Profile, policy: Policy) -> str:
    """The server that a snapshot is of, as the store is told. What was evaluated in other steps is rounded otherwise,
    so stable answers have snapshots of their own."""
    return profile.fingerprint + (f"|steps of {policy.chunk}" if policy.stable else "")


@dataclass(frozen=True, slots=True)
class Sharing:
    """How one request is answered.

    short: the prefix is below the threshold. split: how many tokens the snapshot has, made or used. make: whether it
    is made; use: whether one at hand is used. insists: a question whose reuse failed ends the request.
    """

    strategy: Strategy
    short: bool
    split: int
    make: bool
    use: bool
    insists: bool = False


NOTHING = Sharing("plain", short=False, split=0, make=False, use=False)


def choose(policy: Policy, profile: Profile, plan: PrefixPlan, *, pictures: bool = False) -> Sharing:
    """The fastest way that is correct for the questions of `plan`. A state with `pictures` is kept however short it is
    and however little is asked about it: what a picture costs to encode, its tokens do not tell."""
    if policy.mode == "off" or not profile.sharing:
        return NOTHING
    stem, several, insists = len(plan.stem), len(plan.rests) > 1, policy.mode == "shared"
    if policy.stable:
        return Sharing("restore", short=False, split=stem, make=True, use=policy.keeps, insists=insists)
    long = pictures or policy.mode == "shared" or plan.prefix >= policy.min_tokens
    make = long and (several or (pictures and policy.keeps))
    if make and not policy.keeps:
        strategy = profile.fastest("restore", "fan-out")
        if strategy is not None:
            return Sharing(strategy, short=False, split=plan.prefix, make=True, use=False, insists=insists)
    # A single question and one below the threshold take what a slot or a snapshot happens to hold, and make nothing.
    candidates: tuple[Strategy, ...] = ("in-place", "fan-out", "restore") if make else ("in-place", "restore")
    strategy = profile.fastest(*candidates) or "plain"
    split = stem if strategy != "restore" or plan.prefix - stem <= SHORT_LEAD else plan.prefix
    return Sharing(strategy, short=not make, split=split, make=make, use=policy.keeps, insists=insists)


def without_snapshot(sharing: Sharing, policy: Policy, profile: Profile) -> Sharing:
    """What is left of `sharing` where there is no snapshot to restore. A stable answer evaluates its prefix anew for
    every question then, in the same steps as ever."""
    if sharing.strategy not in ("fan-out", "restore") or policy.stable:
        return sharing
    return replace(sharing, strategy="in-place" if profile.exact("in-place") else "plain")


def to_be_marked(stem: int, prefix: int, step: int, *, held: int, marks: tuple[int, ...]) -> tuple[int, ...]:
    """The lengths to evaluate a prompt to, one after another, so that a slot can be gone on from at `prefix` whatever
    is evaluated behind it: to the prefix's end, and one step more from there.

    held: where the slot ends. marks: where it can be gone on from already.
    """
    if held == prefix:
        return (prefix + step,)
    begun = () if held == stem or stem in marks else (stem,)
    # A long way to the prefix would be begun too far from its end to leave a mark at the stem.
    middle = (stem + 1,) if prefix - stem > NEAR else ()
    return tuple(dict.fromkeys((*begun, *middle, prefix, prefix + step)))
