from __future__ import annotations

import pytest

from jev_local.core.plan import PrefixPlan, share
from jev_local.core.sharing import (
    CLEARLY,
    NOTHING,
    SHORT_LEAD,
    Mode,
    Policy,
    Profile,
    Sharing,
    Strategy,
    Trial,
    choose,
    to_be_marked,
    without_snapshot,
)

STEM = 300


def profile(**ms: float) -> Profile:
    """What is exact, and how long it takes; - in a name is _ here."""
    return Profile(tuple(Trial(name.replace("_", "-"), exact=True, ms=each) for name, each in ms.items()))  # type: ignore[arg-type]


IN_PLACE = profile(in_place=10, fan_out=12, restore=20, plain=99)
FAN_OUT = profile(in_place=20, fan_out=10, restore=20, plain=99)
RESTORE = profile(in_place=20, fan_out=20, restore=10, plain=99)
RESTORE_ONLY = profile(restore=20, plain=99)


def plan(questions: int, *, stem: int = STEM, lead: int = 3) -> PrefixPlan:
    """`questions` that have `lead` tokens in common beyond the state."""
    return share(tuple(range(stem)), [(*range(lead), 900 + i, 901) for i in range(questions)])


def sharing(strategy: Strategy, **changes: object) -> Sharing:
    fields: dict[str, object] = {"short": False, "split": STEM, "make": True, "use": True} | changes
    return Sharing(strategy, **fields)  # type: ignore[arg-type]


def policy(mode: Mode = "auto", **changes: object) -> Policy:
    return Policy(mode, **changes)  # type: ignore[arg-type]


CASES = [
    ("off", policy("off"), IN_PLACE, plan(12), NOTHING),
    ("nothing works", policy(), profile(plain=9), plan(12), NOTHING),
    ("nothing works and it has to", policy("shared"), profile(plain=9), plan(12), NOTHING),
    ("above the threshold", policy(), IN_PLACE, plan(2), sharing("in-place")),
    ("several slots are faster", policy(), FAN_OUT, plan(2), sharing("fan-out")),
    ("at the threshold", policy(min_tokens=303), IN_PLACE, plan(2), sharing("in-place")),
    ("below it", policy(min_tokens=304), IN_PLACE, plan(2), sharing("in-place", make=False, short=True)),
    ("below it, one slot", policy(min_tokens=304), FAN_OUT, plan(2), sharing("in-place", make=False, short=True)),
    ("below it, restoring", policy(min_tokens=304), RESTORE, plan(2), sharing("restore", make=False, short=True)),
    ("one question", policy(), FAN_OUT, plan(1), sharing("in-place", make=False, short=True)),
    (
        "one question, shared",
        policy("shared"),
        IN_PLACE,
        plan(1),
        sharing("in-place", make=False, short=True, insists=True),
    ),
    ("shared at any length", policy("shared"), IN_PLACE, plan(2, stem=1), sharing("in-place", split=1, insists=True)),
    ("short lead", policy(), RESTORE, plan(2, lead=SHORT_LEAD), sharing("restore")),
    ("long lead", policy(), RESTORE, plan(2, lead=SHORT_LEAD + 1), sharing("restore", split=STEM + SHORT_LEAD + 1)),
    ("long lead in place", policy(), IN_PLACE, plan(2, lead=50), sharing("in-place")),
    ("long lead fanned out", policy(), FAN_OUT, plan(2, lead=50), sharing("fan-out")),
    ("in place not exact", policy(), RESTORE_ONLY, plan(2), sharing("restore")),
    ("in place not exact, one", policy(), RESTORE_ONLY, plan(1), sharing("restore", make=False, short=True)),
    ("nothing kept", policy(keeps=False), IN_PLACE, plan(2), sharing("fan-out", split=STEM + 3, use=False)),
    ("nothing kept, restoring", policy(keeps=False), RESTORE, plan(2), sharing("restore", split=STEM + 3, use=False)),
    ("nothing kept, slots alone", policy(keeps=False), profile(in_place=1), plan(2), sharing("in-place", use=False)),
    (
        "nothing kept, below",
        policy(keeps=False, min_tokens=304),
        FAN_OUT,
        plan(2),
        sharing("in-place", make=False, short=True, use=False),
    ),
    ("stable", policy(stable=True), IN_PLACE, plan(2, lead=50), sharing("restore")),
    ("stable, one", policy(stable=True), IN_PLACE, plan(1, stem=1), sharing("restore", split=1)),
    ("stable, nothing kept", policy(stable=True, keeps=False), IN_PLACE, plan(2), sharing("restore", use=False)),
    ("stable, shared", policy("shared", stable=True), IN_PLACE, plan(1), sharing("restore", insists=True)),
]


@pytest.mark.parametrize(("rules", "found", "asked", "wanted"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_the_choice(rules: Policy, found: Profile, asked: PrefixPlan, wanted: Sharing) -> None:
    assert choose(rules, found, asked) == wanted


@pytest.mark.parametrize("strategy", ["in-place", "plain"])
def test_what_needs_no_snapshot_goes_on_without(strategy: Strategy) -> None:
    assert without_snapshot(sharing(strategy), policy(), RESTORE_ONLY) == sharing(strategy)


@pytest.mark.parametrize("strategy", ["fan-out", "restore"])
def test_without_a_snapshot_the_slot_is_gone_on_from_or_nothing_is_reused(strategy: Strategy) -> None:
    assert without_snapshot(sharing(strategy), policy(), IN_PLACE) == sharing("in-place")
    assert without_snapshot(sharing(strategy), policy(), RESTORE_ONLY) == sharing("plain")
    stable = policy(stable=True)
    assert without_snapshot(sharing(strategy), stable, IN_PLACE) == sharing(strategy), "the same steps as ever"


def test_the_fastest_has_to_be_clearly_so() -> None:
    names: tuple[Strategy, ...] = ("in-place", "fan-out")
    assert profile(in_place=10, fan_out=10 * CLEARLY).fastest(*names) == "in-place"
    assert profile(in_place=10, fan_out=10 * CLEARLY - 0.01).fastest(*names) == "fan-out"
    assert profile(in_place=10, fan_out=1).fastest("in-place") == "in-place"
    assert profile(restore=1).fastest(*names) is None


def test_what_is_not_exact_or_was_not_tried_is_not_used() -> None:
    found = Profile((Trial("in-place", exact=False, ms=1), Trial("fan-out", exact=True), Trial("restore", True, 50)))
    assert found.fastest("in-place", "fan-out", "restore") == "restore"
    assert (found.exact("in-place"), found.exact("restore"), found.exact("plain")) == (False, True, False)
    assert found.sharing
    assert not Profile((Trial("plain", exact=True, ms=1),)).sharing


@pytest.mark.parametrize(
    ("rules", "insists"),
    [(policy(), False), (policy("shared"), True), (policy(stable=True), True), (policy("off"), False)],
)
def test_who_insists(rules: Policy, insists: bool) -> None:
    assert rules.insists == insists


def test_doubt_takes_one_belief_at_a_time() -> None:
    whole = Profile(
        (
            Trial("in-place", True, 1.0),
            Trial("fan-out", True, 2.0),
            Trial("restore", True, 3.0),
            Trial("plain", True, 9.0),
        ),
        truncates=True,
    )
    marks = whole.doubting("in-place")
    assert (marks.truncates, marks.exact("in-place"), marks.sharing) == (False, True, True)
    restoring = marks.doubting("fan-out")
    assert [restoring.exact(name) for name in ("in-place", "fan-out", "restore")] == [False, False, True]
    nothing = restoring.doubting("restore")
    assert (nothing.sharing, nothing.exact("plain")) == (False, True)
    assert "not reused" in nothing.reason
    assert whole.doubting("restore").exact("in-place")


@pytest.mark.parametrize(
    ("prefix", "held", "marks", "ends"),
    [
        (309, 300, (), (309, 310)),
        (309, -1, (300,), (309, 310)),
        (309, -1, (), (300, 309, 310)),
        (309, 309, (309,), (310,)),
        (400, 300, (), (301, 400, 401)),
        (400, -1, (), (300, 301, 400, 401)),
        (300, 300, (), (301,)),
        (300, -1, (), (300, 301)),
    ],
    ids=["ends at the stem", "marked at the stem", "holds something else", "ends at the prefix", "a long lead",
         "a long lead behind something else", "no lead", "no lead behind something else"],
)  # fmt: skip
def test_a_mark_takes_an_evaluation_that_starts_there(
    prefix: int, held: int, marks: tuple[int, ...], ends: tuple[int, ...]
) -> None:
    assert to_be_marked(STEM, prefix, 1, held=held, marks=marks) == ends
