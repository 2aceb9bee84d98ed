"""The benchmark of shared states, before a server made of arithmetic: who goes when, what is counted, what is left."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fakes.backend import FakeBackend
from jev_local.backend.port import Completion
from jev_local.core.plan import PrefixPlan, Tokens
from jev_local.core.sharing import Policy
from jev_local.engine.session import open_session
from jev_local.engine.snapshots import SnapshotStore
from jev_local.settings import ApiSettings
from tools.benchmark_state_cache import steps
from tools.state_cache_bench import MODES, NO_LIMIT, Bench, Reply, require_empty
from tools.state_cache_cases import CannotMeasure, Case, case_names, example, make, plan_of, revisited, with_history
from tools.state_cache_floor import Floor, floor, prompts
from tools.state_cache_report import Results, show, to_json
from tools.state_cache_rounds import Measured, Revisited, Round, cold, difference, revisit, rotated, warm
from tools.state_cache_summary import Target, allowed, ratios, summary, targets

PLAN = PrefixPlan(stem=(1, 2, 3), rests=((4, 5), (4, 6, 7)), prefix=4)


def play(tmp_path: Path, scene: Callable[[FakeBackend, Bench], Awaitable[None]], **options: Any) -> FakeBackend:
    """The server afterwards."""

    async def whole() -> FakeBackend:
        backend = FakeBackend(directory=tmp_path, context=16384, slots=4, **options)
        settings = ApiSettings(slot_cache_dir=tmp_path, key="")
        store = SnapshotStore(tmp_path, budget=NO_LIMIT)
        await store.open()
        try:
            require_empty(store)
            session = await open_session(backend, workers=4, policy=Policy("auto"), directory=tmp_path)
            bench = Bench(backend, session, store, settings)
            try:
                await scene(backend, bench)
            finally:
                await bench.leave()
        finally:
            await store.close()
        return backend

    return asyncio.run(whole())


def reply(mode: Any, ms: float, *, status: int = 200, body: Any = None, **headers: str) -> Reply:
    return Reply(mode, ms, status, body or {}, {f"x-jev-local-{name}": value for name, value in headers.items()})


def round_of(off: float, auto: float, lowest: float, *, suffix: float = 1.0) -> Round:
    replies = {"off": reply("off", off), "shared": reply("shared", auto), "auto": reply("auto", auto)}
    return Round(("off", "shared", "auto", "floor"), replies, Floor(lowest - suffix, suffix, 4, 3))


def test_every_way_goes_first_once() -> None:
    ways = ("a", "b", "c", "d")
    assert [rotated(ways, i)[0] for i in range(5)] == ["a", "b", "c", "d", "a"]
    assert all(sorted(rotated(ways, i)) == list(ways) for i in range(5))


def test_the_names_of_cases() -> None:
    assert case_names("short, 365,365,warm") == ["short", "365", "warm"]
    for wrong in ("", "long", "0", "-3", "٣"):
        with pytest.raises(ValueError, match="case"):
            case_names(wrong)


def test_the_floor_reads_the_prefix_and_then_everything_behind_it() -> None:
    assert prompts(PLAN) == ((1, 2, 3, 4), (1, 2, 3, 4, 5, 6, 7))
    case = Case("365", {}, PLAN)
    assert (case.prefix_tokens, case.suffix_tokens, case.questions) == (4, 3, 2)
    assert allowed(case) == 4 + 3 + 2 * 2
    assert allowed(Case("warm", {}, PLAN)) == 3 + 2 * 2, "it was read before"


def test_history_is_about_one_customer_and_never_the_same_line_twice() -> None:
    state = with_history(example(2), 40, customer=3)["state"]
    lines = state.split("\n")
    assert len(set(lines)) == len(lines) == 42
    assert lines[-1] == example(2)["state"]
    assert with_history(example(2), 40, customer=4)["state"].split("\n")[0] != lines[0]
    assert with_history(example(2), 0) == example(2)


def test_a_case_has_as_little_history_as_it_needs(tmp_path: Path) -> None:
    async def scene(backend: FakeBackend, bench: Bench) -> None:
        case = await make(backend, bench.session, "1025", questions=3, tokens=1025)
        assert case.prefix_tokens >= 1025
        lines = case.body["state"].split("\n")
        less = {**case.body, "state": "\n".join([*lines[:-2], lines[-1]])}
        assert (await plan_of(backend, bench.session, less)).prefix < 1025
        got = await bench.ask("auto", case.body)
        assert got.number("prefix-tokens") == case.prefix_tokens, "the engine sees the same prompts"

    play(tmp_path, scene)


def test_a_case_that_does_not_fit_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    async def scene(backend: FakeBackend, bench: Bench) -> None:
        with pytest.raises(CannotMeasure, match="CTX_SIZE"):
            await make(backend, bench.session, "99999", questions=2, tokens=99999)

    play(tmp_path, scene)


@pytest.mark.parametrize("truncates", [True, False])
def test_rounds_start_from_nothing_and_leave_nothing(tmp_path: Path, truncates: bool) -> None:
    done: list[str] = []

    async def scene(backend: FakeBackend, bench: Bench) -> None:
        measured = Measured(await make(backend, bench.session, "365", questions=4, tokens=365))
        await cold(bench, measured, 2, done.append)
        for round_ in measured.rounds:
            assert [got.status for got in round_.replies.values()] == [200] * 3
            assert round_.replies["auto"].source == round_.replies["shared"].source == "computed"
            assert round_.floor.prefix_tokens == measured.case.prefix_tokens
            assert round_.floor.suffix_tokens == measured.case.suffix_tokens
        told = summary(measured)
        assert told["evaluated_tokens"] <= told["allowed_tokens"]
        assert max(told["differences"].values()) < 1e-6
        results = Results(measured=[measured])
        json.dumps(to_json(results))
        assert [target.case for target in results.targets()] == ["365", "all"]

    backend = play(tmp_path, scene, truncates=truncates)
    assert len(done) == steps("365", 2)
    assert not any(held.tokens for held in backend.holds.values()), "every slot is erased"
    assert not list(tmp_path.glob("*.slot"))


def test_warm_finds_the_state_in_its_slot(tmp_path: Path) -> None:
    done: list[str] = []

    async def scene(backend: FakeBackend, bench: Bench) -> None:
        measured = Measured(await make(backend, bench.session, "warm", questions=4, tokens=1025))
        await warm(bench, measured, 2, done.append)
        assert [round_.replies["auto"].source for round_ in measured.rounds] == ["slot", "slot"]
        assert summary(measured)["evaluated_tokens"] <= allowed(measured.case)

    play(tmp_path, scene)
    assert len(done) == steps("warm", 2)


def test_revisited_states_come_back_from_files(tmp_path: Path) -> None:
    done: list[str] = []

    async def scene(backend: FakeBackend, bench: Bench) -> None:
        seen = Revisited(await revisited(backend, bench.session, questions=12))
        assert len({case.body["state"] for case in seen.cases}) == 12
        await revisit(bench, seen, done.append)
        sources = [[v.reply.source for v in seen.visits if v.visit == number] for number in (1, 2)]
        assert sources[0] == ["computed"] * 12
        assert "memory" in sources[1]
        assert "computed" not in sources[1]
        console = Console(file=io.StringIO(), record=True, width=150)
        show(Results(revisited=seen), console)
        assert "computed 12" in console.export_text()
        assert "お客様番号" not in json.dumps(to_json(Results(revisited=seen)), ensure_ascii=False), "no state is kept"

    play(tmp_path, scene)
    assert len(done) == steps("revisit", 1)


def test_an_interruption_ends_the_run_and_is_no_reply(tmp_path: Path) -> None:
    async def scene(backend: FakeBackend, bench: Bench) -> None:
        backend.arrived.clear()
        backend.gate = asyncio.Event()
        asking = asyncio.create_task(bench.ask("off", example(2)))
        await backend.arrived.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    backend = play(tmp_path, scene)
    assert len(backend.entered) == len(backend.left), "nobody works for it any more"


class Forgetful(FakeBackend):
    """Another client gets into the slot between any two calls."""

    async def evaluate(self, prompt: Tokens, *, slot: int, reuse: bool) -> Completion:
        self.holds.clear()
        return await super().evaluate(prompt, slot=slot, reuse=reuse)


def test_a_server_that_does_not_go_on_has_no_floor(tmp_path: Path) -> None:
    async def scene(backend: FakeBackend, bench: Bench) -> None:
        case = await make(backend, bench.session, "short", questions=2)
        backend.__class__ = Forgetful
        with pytest.raises(CannotMeasure, match="serve anybody else"):
            await floor(backend, case.plan)

    play(tmp_path, scene)


def test_a_folder_with_saved_states_is_refused_and_kept(tmp_path: Path) -> None:
    async def scene() -> None:
        store = SnapshotStore(tmp_path, budget=NO_LIMIT)
        await store.open()
        async with store.saving("key", tokens=3) as save:
            (tmp_path / save.name).write_bytes(b"abc")
            assert await save.commit(3)
        await store.close()
        again = SnapshotStore(tmp_path, budget=NO_LIMIT)
        await again.open()
        try:
            with pytest.raises(CannotMeasure, match="DELETE /v1/cache"):
                require_empty(again)
        finally:
            await again.close()

    asyncio.run(scene())
    assert [path.read_bytes() for path in tmp_path.glob("*.slot")] == [b"abc"]


def test_ratios_are_taken_within_a_round() -> None:
    # The second round ran at half the speed; each side's own median would compare across that.
    found = ratios([round_of(100, 20, 10), round_of(200, 40, 20), round_of(100, 30, 10)])
    assert found["off/auto"] == 5
    assert found["off/floor"] == 10
    assert found["quotient"] == 0.5
    assert found["auto/floor"] == 2
    assert found["auto/floor_suffix"] == 30


def test_targets_are_judged_both_ways() -> None:
    assert Target("a", "b", 0.87, 0.87, at_least=True).met
    assert not Target("a", "b", 0.86, 0.87, at_least=True).met
    assert Target("a", "b", 1.15, 1.15).met
    assert not Target("a", "b", 1.16, 1.15).met
    measured = Measured(Case("1025", {}, PLAN), [round_of(100, 20, 18)])
    assert {target.what: target.met for target in targets(measured)} == {
        "off/auto as a share of off/floor": True,
        "auto / floor": True,
        "tokens evaluated in auto": True,
    }
    assert targets(Measured(Case("1025", {}, PLAN))) == [], "nothing to judge by"


def test_what_was_not_answered_counts_against_it() -> None:
    broken = Round((), {mode: reply(mode, 1.0, status=502) for mode in MODES}, Floor(1, 1, 1, 1))
    results = Results(measured=[Measured(Case("short", {}, PLAN), [broken])])
    last = results.targets()[-1]
    assert (last.value, last.met) == (3, False)
    assert summary(results.measured[0])["differences"]["off-auto"] == 1


def test_a_probability_that_is_missing_is_as_different_as_can_be() -> None:
    assert difference({("a", "x"): 0.25}, {("a", "x"): 0.5}) == 0.25
    assert difference({("a", "x"): 0.25}, {}) == 1
    assert difference({}, {}) == 1
