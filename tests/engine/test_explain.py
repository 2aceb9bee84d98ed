"""Requests explained with the arithmetic server, asked before by a real decider with a real store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fakes.asgi import scene
from fakes.backend import FakeBackend
from jev_local.core.chats import Chat
from jev_local.core.compared import Compared
from jev_local.core.explain import Explanation
from jev_local.core.questions import Choice, Noul, Option, Question
from jev_local.core.reasons import Fate
from jev_local.core.sharing import Policy, Profile, Strategy, Trial
from jev_local.engine.chat import Chatter
from jev_local.engine.decide import Decider
from jev_local.engine.explain import REUSED, Explainer
from jev_local.engine.journal import Journal
from jev_local.engine.kept import StoreReport
from jev_local.engine.session import Chats, Session, open_session
from jev_local.errors import ChatsOff, InvalidRequest, PromptTooLong

from jev_local.engine.snapshots import SnapshotStore  # isort: skip

POLICY = (
    "Unopened accessories may be returned within thirty days with proof of purchase. Opened accessories are not "
    "returnable unless they arrived damaged. Returns are refunded to the card that was charged, and nowhere else. "
)
TWO: tuple[Question, ...] = (Noul("a", "Is it opened?"), Noul("b", "Is it damaged?"))
ONE = TWO[:1]
AUTO = Policy("auto")


class Chatty(FakeBackend):
    """One that renders chats: their tools first, then their messages."""

    async def render(self, document: Mapping[str, Any]) -> str:
        texts = [f"<{message['role']}>{message['content']}" for message in document["messages"]]
        tools = json.dumps(document["tools"]) if document.get("tools") else ""
        return f"{tools}{''.join(texts)}<assistant>"


@dataclass
class Kept:
    """A store that is asked and never holds anything but what a test says."""

    fates: dict[str, Fate] = field(default_factory=dict)
    every: Fate = "unknown"
    saving: bool = True
    room: bool = True
    asked: list[str] = field(default_factory=list)

    def key(self, fingerprint: str, tokens: Any) -> str:
        return SnapshotStore.key(fingerprint, tokens)

    def fate(self, key: str) -> Fate:
        self.asked.append(key)
        return self.fates.get(key, self.every)

    def longest(self, fingerprint: str, tokens: Any) -> int | None:
        lengths = range(len(tokens), 0, -1)
        return next((n for n in lengths if self._holds(self.key(fingerprint, tokens[:n]))), None)

    def _holds(self, key: str) -> bool:
        return self.fates.get(key, self.every) == "held"

    def fits(self, tokens: int) -> bool:
        return self.room

    def report(self) -> StoreReport:
        return StoreReport(0, 0, 0, 0, 0, 0, self.saving, None)


@dataclass
class Desk:
    backend: Chatty
    session: Session
    journal: Journal
    store: Kept
    policy: Policy

    async def explain(self, a: Compared, b: Compared) -> Explanation:
        explainer = Explainer(self.backend, self.session, self.store, self.policy, self.journal)
        return await explainer.explain(a, b)

    def note(self, stem: tuple[int, ...], *, run: str | None = None, **told: Any) -> None:
        note: dict[str, Any] = {"source": "computed", "cached": 0, "processed": 9, "kept": True, **told}
        self.journal.note(stem, run=run or self.session.info.instance, **note)


async def desk(tmp_path: Path, policy: Policy = AUTO, **backend: Any) -> Desk:
    server = Chatty(slots=4, directory=tmp_path, **backend)
    session = await open_session(server, workers=4, policy=policy, directory=tmp_path)
    session.chats = Chats(2, 4096)
    return Desk(server, session, Journal(), Kept(), policy)


def decision(state: str, questions: tuple[Question, ...] = TWO, **more: Any) -> Compared:
    return Compared("decision", state=state, questions=questions, **more)


def chat(*messages: tuple[str, str], **more: Any) -> Compared:
    return Compared("chat", document={"messages": [{"role": r, "content": c} for r, c in messages], **more})


def stem(state: str) -> tuple[int, ...]:
    return (1, *f"<user>Text:\n{state}\n".encode())


@scene
async def test_a_date_before_the_policy_parts_everything_and_moved_it_parts_nothing(tmp_path: Path) -> None:
    found = await (await desk(tmp_path)).explain(
        decision(f"Date: 2026-11-29\n{POLICY}"), decision(f"Date: 2026-11-30\n{POLICY}", questions=TWO[::-1])
    )
    at = len(stem("Date: 2026-11-")) - 1  # up to the digit, and without the line break
    assert (found.agree, found.whole) == (at, False)
    assert (found.a.stem, found.b.stem) == (len(stem(f"Date: 2026-11-29\n{POLICY}")),) * 2
    assert found.place is not None
    assert found.place.kind == "date-time"
    assert found.place.before.endswith("<user>Text:\nDate: 2026-11-")
    assert found.place.left == f"29\n{POLICY}"[:80]
    assert found.place.right == f"30\n{POLICY}"[:80]
    (move,) = found.moves
    without = stem(f"Date: \n{POLICY}")
    assert (move.kind, move.left, move.right) == ("date-time", "2026-11-29", "2026-11-30")
    assert move.agree == len(without) + len("Question: Is it "), "and the questions begin alike"
    assert [(check.check, check.outcome) for check in found.checks] == [("text", "differs")]
    assert "behind the text that stays the same" in found.advice
    assert f"{move.agree:,} tokens" in found.advice


@scene
async def test_what_stands_in_the_way_is_moved_one_after_another(tmp_path: Path) -> None:
    found = await (await desk(tmp_path)).explain(
        decision(f"Date: 2026-11-29\nCustomer 4711\nDear Alice,\n{POLICY}"),
        decision(f"Date: 2026-12-01\nCustomer 4802\nDear Bob,\n{POLICY}"),
    )
    assert [(move.kind, move.left, move.right) for move in found.moves] == [
        ("date-time", "2026-11-29", "2026-12-01"),
        ("number", "4711", "4802"),
        ("user-name", "Alice", "Bob"),
    ]
    agrees = [found.agree, *(move.agree for move in found.moves)]
    assert agrees == sorted(set(agrees)), "each gains something"
    assert found.moves[-1].agree >= len(stem(f"Date: \nCustomer \nDear ,\n{POLICY}"))


@scene
async def test_japanese_values_are_whole_characters(tmp_path: Path) -> None:
    found = await (await desk(tmp_path)).explain(
        decision(f"本日は令和8年11月29日です。{POLICY}"), decision(f"本日は令和9年1月3日です。{POLICY}")
    )
    assert found.place is not None
    assert (found.place.kind, found.place.left_value, found.place.right_value) == (
        "date-time",
        "令和8年11月29日",
        "令和9年1月3日",
    )
    assert found.agree == len(stem("本日は令和")) - 1
    assert found.moves[0].agree > len(stem(POLICY))


@scene
async def test_what_is_only_written_differently_is_made_alike(tmp_path: Path) -> None:
    here = await desk(tmp_path)
    one, other = {"days": 30, "policy": POLICY}, {"policy": POLICY, "days": 30}
    found = await here.explain(decision(json.dumps(one)), decision(json.dumps(other)))
    assert found.place is not None
    assert found.place.kind == "key-order"
    assert found.moves[0].agree == found.a.tokens, "nothing is left that differs"
    spaces = await here.explain(decision(f"A  lamp. {POLICY}"), decision(f"A lamp. {POLICY}"))
    assert spaces.place is not None
    assert spaces.place.kind == "white-space"
    assert spaces.moves[0].agree == spaces.a.tokens


@scene
async def test_another_model_and_another_form_are_told_first(tmp_path: Path) -> None:
    here = await desk(tmp_path)
    found = await here.explain(decision("2026-11-29"), decision("2026-11-30", model="other"))
    assert found.place is not None
    assert (found.place.kind, found.moves) == ("model", ())
    same = await here.explain(decision("a"), decision("a", model="other"))
    assert (same.place, same.whole) == (None, False)
    assert [check.outcome for check in same.checks] == ["another-model"]
    assert "same model" in same.advice
    found = await here.explain(decision("Why?"), chat(("user", "Why?")))
    assert found.place is not None
    assert found.place.kind == "template"
    assert not found.whole


@scene
async def test_chats_part_before_their_last_user_message_or_not_at_all(tmp_path: Path) -> None:
    here = await desk(tmp_path)
    first = chat(("system", POLICY), ("user", "An opened one?"))
    again = await here.explain(first, chat(("system", POLICY), ("user", "A damaged one?")))
    assert again.whole
    assert again.a.stem == again.b.stem == len(f"\1<system>{POLICY}<user>")
    assert again.place is not None
    assert again.place.kind == "question"
    longer = await here.explain(
        first, chat(("system", POLICY), ("user", "An opened one?"), ("assistant", "No."), ("user", "Why?"))
    )
    assert longer.whole
    dated = await here.explain(
        chat(("system", f"2026-11-29 {POLICY}"), ("user", "Why?")),
        chat(("system", f"2026-11-30 {POLICY}"), ("user", "How?")),
    )
    assert dated.place is not None
    assert (dated.place.kind, dated.whole) == ("date-time", False)
    assert dated.moves[0].agree == len(f"\1<system> {POLICY}<user>")
    other = await here.explain(first, chat(("system", "Be kind."), ("user", "Why?")))
    assert other.place is not None
    assert (other.place.kind, other.moves) == ("template", ())
    tools = [chat(("user", "Why?"), tools=[{"name": name}]) for name in ("search", "mail")]
    found = await here.explain(*tools)
    assert found.place is not None
    assert found.place.kind == "template"


@scene
async def test_a_text_completion_may_come_again_as_a_whole(tmp_path: Path) -> None:
    here = await desk(tmp_path)
    one = Compared("text", document={"prompt": POLICY})
    found = await here.explain(one, one)
    assert (found.whole, found.place, found.agree) == (True, None, 1 + len(POLICY))
    assert [check.outcome for check in found.checks] == ["same", "unknown", "never-kept", "possible"]
    with pytest.raises(InvalidRequest, match="one string"):
        await here.explain(one, Compared("text", document={"prompt": [1, 2]}))
    here.session.chats = Chats(reason="they are switched off")
    with pytest.raises(ChatsOff, match="switched off"):
        await here.explain(one, one)


@scene
async def test_where_all_of_it_agrees_the_reasons_come_in_order(tmp_path: Path) -> None:
    here, long = await desk(tmp_path), POLICY * 2

    async def told(questions: tuple[Question, ...] = TWO) -> tuple[list[str], str]:
        found = await here.explain(decision(long, questions), decision(long, TWO))
        assert found.whole
        assert [check.check for check in found.checks] == ["text", "process", "entry", "cut-back"]
        return [check.outcome for check in found.checks], found.advice

    outcomes, advice = await told()
    assert outcomes == ["same", "unknown", "unknown", "possible"]
    assert "explain again" in advice
    assert (await told(ONE))[0][2] == "never-kept"
    here.note(stem(long), kept=False, why_not="single-question")
    outcomes, advice = await told()
    assert outcomes == ["same", "same", "never-kept", "possible"]
    assert "in one request" in advice
    here.note(stem(long))
    here.store.every = "evicted"
    outcomes, advice = await told()
    assert outcomes == ["same", "same", "evicted", "possible"]
    assert "--prefix-cache-bytes" in advice
    here.store.every = "held"
    assert (await told())[0][2] == "held"
    here.note(stem(long), source="memory", cached=len(stem(long)))
    assert f"{len(stem(long))} tokens were reused" in (await told())[1]


@scene
async def test_a_server_that_restarted_is_noticed(tmp_path: Path) -> None:
    here, long = await desk(tmp_path), POLICY * 2
    here.note(stem(long), run="run-0")
    found = await here.explain(decision(long), decision(long))
    assert found.checks[1].outcome == "restarted"
    assert "one server process" in found.advice
    here.note(stem(long))
    found = await here.explain(decision(long), decision(long))
    assert found.checks[1].outcome == "restarted", "between the first and the second"
    here.note(stem(long))
    found = await here.explain(decision(long), decision(long))
    assert found.checks[1].outcome == "same"


@pytest.mark.parametrize(
    ("policy", "store", "state", "word"),
    [
        (Policy("off"), Kept(), POLICY * 2, "--state-cache off"),
        (replace(AUTO, keeps=False), Kept(), POLICY * 2, "--prefix-cache-bytes is 0"),
        (AUTO, Kept(), "Short.", "256 are worth keeping"),
        (AUTO, Kept(room=False), POLICY * 2, "larger than --prefix-cache-bytes"),
        (AUTO, Kept(saving=False), POLICY * 2, "saving is off"),
    ],
)
def test_why_a_state_was_never_kept(policy: Policy, store: Kept, state: str, word: str, tmp_path: Path) -> None:
    @scene
    async def whole() -> None:
        here = await desk(tmp_path, policy)
        here.store = store
        found = await here.explain(decision(state), decision(state))
        assert found.checks[2].outcome == "never-kept"
        assert word in found.checks[2].says

    whole()


@scene
async def test_a_model_that_cannot_be_cut_back_is_told(tmp_path: Path) -> None:
    here = await desk(tmp_path, truncates=False)
    here.note(stem(POLICY * 2))
    found = await here.explain(decision(POLICY * 2), decision(POLICY * 2))
    assert found.checks[3].outcome == "impossible"


@scene
async def test_the_key_that_is_looked_for_is_the_one_that_was_saved_under(tmp_path: Path) -> None:
    here = await desk(tmp_path)
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    here.backend.directory = folder
    store = SnapshotStore(folder, budget=10_000_000)
    await store.open()
    try:
        decider = Decider(here.backend, here.session, store, here.policy)
        for _ in range(2):
            await decider.decide(state=POLICY * 2, questions=TWO)
        await here.explain(decision(POLICY * 2), decision(POLICY * 2))
        assert store.report().entries == 1
        assert here.store.asked
        assert all(store.has(key) for key in here.store.asked)
    finally:
        await store.close()


# What may be called a find: only what the second request finds when it is asked.

Turns = tuple[tuple[str, str], ...]
SYSTEM, LATE, BROKEN = ("system", POLICY * 2), ("user", "It came late."), ("user", "Was it broken?")
SAID, LAST = ("assistant", "Then you may return it within thirty days."), ("user", "And if it was opened?")


@dataclass
class Shop:
    """A real store, and requests that are answered one after another by sessions of the same server: what a slot held
    is forgotten between them."""

    backend: Chatty
    store: SnapshotStore
    policy: Policy
    strategy: Strategy | None = None
    journal: Journal = field(default_factory=Journal)

    async def session(self) -> Session:
        directory = self.backend.directory
        session = await open_session(self.backend, workers=4, policy=self.policy, directory=directory, chat_slots=2)
        if self.strategy is not None:
            fingerprint, truncates = session.profile.fingerprint, session.profile.truncates
            session.profile = Profile((Trial(self.strategy, True, 1.0),), truncates, fingerprint=fingerprint)
        return session

    async def ask(self, one: Compared) -> str:
        """Where its prefix came from."""
        session = await self.session()
        if one.form == "decision":
            decider = Decider(self.backend, session, self.store, self.policy, self.journal)
            return (await decider.decide(state=one.state, questions=one.questions)).trace.source
        cache = one.document.get("cache_prompt") is not False
        asked = Chat("chat", dict(one.document), max_tokens=3, cache=cache)
        async with Chatter(self.backend, session, self.store, self.policy, self.journal).talk(asked) as talk:
            async for _ in talk.events():
                pass
            return talk.trace.source

    async def explain(self, a: Compared, b: Compared) -> Explanation:
        explainer = Explainer(self.backend, await self.session(), self.store, self.policy, self.journal)
        return await explainer.explain(a, b)


@asynccontextmanager
async def shop(
    tmp_path: Path, policy: Policy = AUTO, *, budget: int = 10_000_000, strategy: Strategy | None = None, **backend: Any
) -> AsyncIterator[Shop]:
    store = SnapshotStore(tmp_path, budget=budget)
    await store.open()
    try:
        sizes: dict[str, Any] = {"slots": 4, "context": 8192, "directory": tmp_path, "parts": (8192, 8192)}
        yield Shop(Chatty(**sizes | backend), store, policy, strategy)
    finally:
        await store.close()


@dataclass(frozen=True)
class Pair:
    """Two chats, and what is told of the second one's state where the first one was asked."""

    name: str
    first: Turns
    second: Turns
    entry: str = "held"
    word: str = "Nothing to change"
    more: Mapping[str, Any] = field(default_factory=dict)


BRIEF = ("system", "Be brief.")
PAIRS = [
    Pair("again", (SYSTEM, LATE), (SYSTEM, LATE), word="Nothing is wrong"),
    Pair("another question", (SYSTEM, LATE), (SYSTEM, BROKEN), word="Nothing is wrong"),
    Pair("gone on", (SYSTEM, LATE), (SYSTEM, LATE, SAID, LAST)),
    Pair("another one gone on", (SYSTEM, LATE), (SYSTEM, BROKEN, SAID, LAST)),
    Pair("another end", (SYSTEM, LATE, SAID, LAST), (SYSTEM, LATE, SAID, BROKEN), word="Nothing is wrong"),
    Pair("the longer first", (SYSTEM, LATE, SAID, LAST), (SYSTEM, BROKEN), "never-kept", "second request once"),
    Pair("its own beginning", (SYSTEM, LATE, SAID, LAST), (SYSTEM, LATE), "never-kept", "second request once"),
    Pair("unwanted", (SYSTEM, LATE), (SYSTEM, BROKEN), "never-kept", "set it to true", {"cache_prompt": False}),
    Pair("short", (LATE, SAID, LAST), (LATE, SAID, BROKEN), "never-kept", "--cache-min-tokens"),
    Pair("short, the longer first", (BRIEF, *(LATE, SAID) * 9, LAST), (BRIEF, BROKEN), "never-kept", "-min-tokens"),
]


@pytest.mark.parametrize("truncates", [True, False], ids=["attention", "hybrid"])
@pytest.mark.parametrize("pair", PAIRS, ids=[pair.name for pair in PAIRS])
def test_a_chats_state_is_held_where_it_is_found_when_it_is_asked(pair: Pair, truncates: bool, tmp_path: Path) -> None:
    a, b = chat(*pair.first), chat(*pair.second, **pair.more)

    @scene
    async def whole() -> None:
        async with shop(tmp_path, truncates=truncates) as here:
            assert await here.ask(a) == "computed"
            kept = here.store.report().entries == 1
            assert await here.ask(a) == ("memory" if kept else "computed")
            found = await here.explain(a, b)
            assert found.whole
            assert (found.checks[1].outcome, found.checks[2].outcome) == ("same", pair.entry)
            assert pair.word in found.advice
            assert (await here.ask(b) == "memory") == (pair.entry == "held")
            helped = pair.entry == "held" or "second" in pair.word
            assert ((await here.explain(a, b)).checks[2].outcome == "held") == helped
            assert (await here.ask(b) == "memory") == helped, "as it was advised"

    whole()


@pytest.mark.parametrize("strategy", ["in-place", "restore"])
@pytest.mark.parametrize(
    ("first", "second"),
    [(TWO, TWO), (TWO, TWO[::-1]), (TWO, ONE), (ONE, TWO), (ONE, ONE), (TWO, (*TWO, Noul("c", "?")))],
)
def test_a_decisions_state_is_held_where_it_is_found_when_it_is_asked(
    first: tuple[Question, ...], second: tuple[Question, ...], strategy: Strategy, tmp_path: Path
) -> None:
    @scene
    async def whole() -> None:
        a, b = decision(POLICY * 2, first), decision(POLICY * 2, second)
        async with shop(tmp_path, strategy=strategy) as here:
            await here.ask(a)
            found = await here.explain(a, b)
            assert found.whole
            assert (await here.ask(b) in REUSED) == (found.checks[2].outcome == "held")
            if first == second == TWO:
                assert found.checks[2].outcome == "held"

    whole()


@scene
async def test_a_state_that_ends_elsewhere_is_none_for_a_decision_that_looks_for_another(tmp_path: Path) -> None:
    async with shop(tmp_path, strategy="restore") as here:
        a, b = decision(POLICY * 2, TWO), decision(POLICY * 2, (*TWO, Noul("c", "?")))
        for _ in range(2):
            source = await here.ask(a)
        assert source == "memory"
        found = await here.explain(a, b)
        assert found.checks[2].outcome == "never-kept"
        assert "second request once" in found.advice
        assert await here.ask(b) == "computed"
        assert (await here.explain(a, b)).checks[2].outcome == "held"


@pytest.mark.parametrize(
    ("cached", "fate", "word"),
    [
        (23, "evicted", "--prefix-cache-bytes"),
        (23, "held", "Nothing to change"),
        (23, "unknown", "Ask once more"),
        (1.0, "evicted", "Nothing is wrong"),
        (0.5, "evicted", "--prefix-cache-bytes"),
    ],
)
def test_a_common_opening_that_was_reused_is_no_find(cached: float, fate: Fate, word: str, tmp_path: Path) -> None:
    @scene
    async def whole() -> None:
        here = await desk(tmp_path)
        a, b = chat(SYSTEM, LATE), chat(SYSTEM, BROKEN)
        begins = (1, *f"<system>{SYSTEM[1]}<user>".encode())
        reused = cached if isinstance(cached, int) else int(cached * len(begins))
        here.note(begins)
        here.note(begins, source="slot", cached=reused, processed=len(begins) - reused)
        here.store.every = fate
        assert word in (await here.explain(a, b)).advice

    whole()


@pytest.mark.parametrize(
    ("missing", "held"), [(-1, True), (0, True), (9, True), (100, False), (400, False)], ids="{0}".format
)
def test_a_saved_state_of_most_of_the_part_is_held_whoever_it_was_saved_for(
    missing: int, held: bool, tmp_path: Path
) -> None:
    @scene
    async def whole() -> None:
        here = await desk(tmp_path)
        prompt = (1, *f"<system>{SYSTEM[1]}<user>{BROKEN[1]}<assistant>".encode())
        part = len(f"\1<system>{SYSTEM[1]}<user>")
        key = here.store.key(here.session.profile.fingerprint, prompt[: part - missing])
        here.store.fates[key] = "held"
        found = await here.explain(chat(SYSTEM, LATE), chat(SYSTEM, BROKEN))
        assert (found.checks[2].outcome == "held") is held
        here.store.fates = {here.store.key(here.session.profile.fingerprint, prompt): "held"}
        found = await here.explain(chat(SYSTEM, LATE), chat(SYSTEM, BROKEN))
        assert found.checks[2].outcome == "unknown", "the last token has to be read"

    whole()


@scene
async def test_what_the_first_one_reused_is_not_said_of_the_second(tmp_path: Path) -> None:
    here = await desk(tmp_path)
    longer = chat(SYSTEM, LATE, SAID, LAST)
    begins = (1, *f"<system>{SYSTEM[1]}<user>{LATE[1]}<assistant>{SAID[1]}<user>".encode())
    here.note(begins, source="slot", cached=len(begins))
    here.note(begins, source="slot", cached=len(begins))
    assert "Nothing is wrong" in (await here.explain(longer, longer)).advice
    assert "Nothing is wrong" not in (await here.explain(longer, chat(SYSTEM, BROKEN))).advice
    unwanted = chat(SYSTEM, LATE, SAID, LAST, cache_prompt=False)
    assert "set it to true" in (await here.explain(longer, unwanted)).advice


@scene
async def test_what_cannot_be_compared_is_refused_and_nothing_is_evaluated(tmp_path: Path) -> None:
    here = await desk(tmp_path)
    here.backend.forget_calls()
    with pytest.raises(PromptTooLong):
        await here.explain(decision("x" * 5000), decision("y"))
    assert here.backend.calls == [], "not even tokenised"
    lone = Choice("only", "Which?", (Option("this one"),))
    with pytest.raises(InvalidRequest, match="two options"):
        await here.explain(decision("x", (lone,)), decision("y"))
    await here.explain(decision(f"1 {POLICY}"), decision(f"2 {POLICY}"))
    assert set(here.backend.calls) == {"tokenize"}
