"""A server's life as the service sees it: not there, loading, up, restarted, gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fakes.backend import FakeBackend
from jev_local.core.questions import Noul
from jev_local.core.sharing import Policy
from jev_local.engine import service as module
from jev_local.engine.service import Service
from jev_local.engine.snapshots import SnapshotStore
from jev_local.errors import BackendFault, BackendLoading, BackendUnavailable, CannotShare

QUESTIONS = (Noul("q", "Is it?"),)
SEVERAL = (Noul("a", "Is it?"), Noul("b", "Was it?"))
OFF, AUTO, SHARED, STABLE = Policy(), Policy("auto"), Policy("shared"), Policy("auto", stable=True)
UNUSED = Path("unused")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)


def play(
    scene: Callable[[FakeBackend, Service], Awaitable[None]],
    *,
    policy: Policy = OFF,
    place: Path = UNUSED,
    refusals: list[CannotShare] | None = None,
    **options: object,
) -> None:
    async def whole() -> None:
        backend = FakeBackend(**options)  # type: ignore[arg-type]
        store = SnapshotStore(place, budget=1_000_000)
        if place is not UNUSED:
            await store.open()
        refuse = ([] if refusals is None else refusals).append
        service = Service(backend, workers=4, store=store, policy=policy, refuse=refuse)
        await service.start()
        try:
            async with asyncio.timeout(10):
                await scene(backend, service)
        finally:
            await service.stop()
            await store.close()

    asyncio.run(whole())


async def until(service: Service, status: str) -> None:
    while service.status().status != status:
        await asyncio.sleep(0.005)


def test_a_server_that_comes_up_is_made_ready() -> None:
    async def scene(backend: FakeBackend, service: Service) -> None:
        assert service.status().status == "starting"
        with pytest.raises(BackendLoading):
            await service.decide(state="s", questions=QUESTIONS)
        backend.down = None
        await until(service, "ready")
        status = service.status()
        assert (status.model, status.slots, status.context, status.single_labels) == ("fake", 2, 4096, 26)
        assert len((await service.decide(state="s", questions=QUESTIONS)).answers) == 1

    play(scene, down=BackendLoading("loading"))


def test_a_server_that_goes_away_is_unavailable_until_it_is_back() -> None:
    async def scene(backend: FakeBackend, service: Service) -> None:
        await until(service, "ready")
        backend.down = BackendUnavailable("gone")
        await until(service, "unavailable")
        assert service.status().reason == "gone"
        with pytest.raises(BackendUnavailable, match="gone"):
            await service.decide(state="s", questions=QUESTIONS)
        backend.down = None
        await until(service, "ready")

    play(scene)


def test_a_restart_is_noticed_and_everything_is_asked_again() -> None:
    async def scene(backend: FakeBackend, service: Service) -> None:
        await until(service, "ready")
        backend.run, backend.slots = 2, 5
        while service.status().slots != 5:
            await asyncio.sleep(0.005)

    play(scene)


def test_a_fault_makes_the_watcher_look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(backend: FakeBackend, service: Service) -> None:
        await until(service, "ready")
        monkeypatch.setattr(module, "LOOK_SECONDS", 3600.0)
        await asyncio.sleep(0.05)  # the long wait has begun
        backend.fail, backend.down = BackendFault("nonsense"), BackendUnavailable("gone")
        with pytest.raises(BackendFault):
            await service.decide(state="s", questions=QUESTIONS)
        await until(service, "unavailable")

    play(scene)


def test_a_server_that_was_silent_for_a_moment_keeps_its_slots() -> None:
    """One failed look must not make a second table of the same slots: the fake would see one slot entered twice."""

    async def scene(backend: FakeBackend, service: Service) -> None:
        await until(service, "ready")
        backend.gate = asyncio.Event()
        first = [asyncio.create_task(service.decide(state=f"s{i}", questions=QUESTIONS)) for i in range(4)]
        while len(backend.entered) - len(backend.left) < 2:
            await asyncio.sleep(0.005)
        backend.down = BackendUnavailable("busy")
        await until(service, "unavailable")
        backend.down = None
        await until(service, "ready")
        more = [asyncio.create_task(service.decide(state=f"t{i}", questions=QUESTIONS)) for i in range(4)]
        await asyncio.sleep(0.02)
        backend.gate.set()
        for decision in await asyncio.gather(*first, *more):
            assert len(decision.answers) == 1

    play(scene)


def test_who_waits_for_a_slot_of_a_server_that_restarted_is_told() -> None:
    async def scene(backend: FakeBackend, service: Service) -> None:
        await until(service, "ready")
        backend.gate = asyncio.Event()
        asked = [asyncio.create_task(service.decide(state=f"s{i}", questions=QUESTIONS * 1)) for i in range(4)]
        while len(backend.entered) - len(backend.left) < 2:
            await asyncio.sleep(0.005)
        backend.run = 2
        while not any(task.done() for task in asked):
            await asyncio.sleep(0.005)
        backend.gate.set()
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(result, BackendUnavailable) for result in results) == 2
        await until(service, "ready")
        assert len((await service.decide(state="s", questions=QUESTIONS)).answers) == 1

    play(scene)


def test_a_server_that_cannot_be_used_is_asked_ever_less_often(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(backend: FakeBackend, service: Service) -> None:
        await until(service, "unavailable")
        await asyncio.sleep(0.5)
        assert "cannot be asked" in str(service.status().reason)
        assert backend.looks < 20, "at a steady pace it would be ten times that"

    play(scene, template="drops")
    assert len(caplog.records) == 1, "said once"


def test_the_backend_is_closed_at_the_end() -> None:
    async def scene(backend: FakeBackend, service: Service) -> None:
        await until(service, "ready")
        await service.stop()
        assert backend.calls[-1] == "aclose"

    play(scene)


def test_the_watcher_outlives_what_it_did_not_expect(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(backend: FakeBackend, service: Service) -> None:
        await until(service, "ready")
        backend.down = ZeroDivisionError("quotes the state")  # type: ignore[assignment]
        await until(service, "unavailable")
        assert "ZeroDivisionError" in str(service.status().reason)
        backend.down = None
        await until(service, "ready")

    play(scene)
    assert all(record.exc_info is None and "quotes" not in record.getMessage() for record in caplog.records)


def test_what_a_server_can_share_is_told(tmp_path: Path) -> None:
    async def scene(_: FakeBackend, service: Service) -> None:
        assert service.cache().reason == "the inference server is not ready"
        await until(service, "ready")
        told = service.status().state_cache
        assert (told["mode"], told["sharing"], told["reason"]) == ("auto", True, None)
        strategies = told["strategies"]
        assert isinstance(strategies, list)
        assert [(each["name"], each["exact"]) for each in strategies] == [
            ("in-place", True),
            ("fan-out", True),
            ("restore", True),
            ("plain", True),
        ]
        assert all(each["ms"] >= 0 for each in strategies)

    play(scene, policy=AUTO, place=tmp_path, directory=tmp_path)


def test_what_is_kept_is_told_and_cleared(tmp_path: Path) -> None:
    async def scene(_: FakeBackend, service: Service) -> None:
        await until(service, "ready")
        await service.decide(state="x" * 600, questions=SEVERAL)
        report = service.cache()
        assert (report.mode, report.sharing, report.saving, report.reason) == ("auto", True, True, None)
        assert (report.entries, report.misses, report.budget) == (1, 1, 1_000_000)
        assert 0 < report.bytes < report.budget
        assert await service.clear_cache() == 1
        assert (service.cache().entries, service.cache().bytes) == (0, 0)

    play(scene, policy=AUTO, place=tmp_path, directory=tmp_path)


def test_nothing_is_tried_where_nothing_is_shared(tmp_path: Path) -> None:
    async def scene(backend: FakeBackend, service: Service) -> None:
        await until(service, "ready")
        assert "save" not in backend.calls
        told = service.status().state_cache
        assert (told["mode"], told["sharing"], told["strategies"]) == ("off", False, [])
        report = service.cache()
        assert (report.mode, report.sharing) == ("off", False)
        assert "--state-cache off" in str(report.reason)

    play(scene, directory=tmp_path)


def test_a_server_that_cannot_share_is_served_all_the_same_unless_it_has_to(tmp_path: Path) -> None:
    refusals: list[CannotShare] = []

    async def scene(_: FakeBackend, service: Service) -> None:
        await until(service, "ready")
        assert "SLOT_CACHE_DIR" in str(service.status().state_cache["reason"])
        assert (await service.decide(state="x" * 600, questions=SEVERAL)).trace.state_cache == "off"

    play(scene, policy=AUTO, place=tmp_path, refusals=refusals, directory=None)
    assert refusals == []


@pytest.mark.parametrize("policy", [SHARED, STABLE], ids=["shared", "stable"])
def test_the_first_server_that_cannot_share_ends_a_start_that_insists(tmp_path: Path, policy: Policy) -> None:
    refusals: list[CannotShare] = []

    async def scene(_: FakeBackend, service: Service) -> None:
        while not refusals:
            await asyncio.sleep(0.005)
        assert service.status().status == "unavailable"
        assert "--state-cache auto" in str(service.status().reason)

    play(scene, policy=policy, place=tmp_path, refusals=refusals, directory=None)
    assert "SLOT_CACHE_DIR" in refusals[0].message


def test_stable_answers_need_a_restore_that_is_exact(tmp_path: Path) -> None:
    refusals: list[CannotShare] = []

    async def scene(_: FakeBackend, __: Service) -> None:
        while not refusals:
            await asyncio.sleep(0.005)

    play(scene, policy=STABLE, place=tmp_path, refusals=refusals, directory=tmp_path, save_fails=True)
    assert "does not give the answers of a cold run" in refusals[0].message


def test_a_server_that_cannot_share_after_a_restart_is_waited_for(tmp_path: Path) -> None:
    refusals: list[CannotShare] = []

    async def scene(backend: FakeBackend, service: Service) -> None:
        await until(service, "ready")
        backend.run, backend.directory = 2, None
        await until(service, "unavailable")
        with pytest.raises(CannotShare):
            await service.decide(state="s", questions=QUESTIONS)
        backend.run, backend.directory = 3, tmp_path
        await until(service, "ready")
        assert len((await service.decide(state="s", questions=QUESTIONS)).answers) == 1

    play(scene, policy=SHARED, place=tmp_path, refusals=refusals, directory=tmp_path)
    assert refusals == []


def test_a_restarted_server_is_probed_again_and_finds_what_was_saved(tmp_path: Path) -> None:
    async def scene(backend: FakeBackend, service: Service) -> None:
        await until(service, "ready")
        sources = [(await service.decide(state="x" * 600, questions=SEVERAL)).trace.source]
        for run, weights in ((2, 0), (3, 1)):
            backend.forget_calls()
            backend.holds.clear()
            backend.run, backend.weights = run, weights
            while backend.calls.count("erase") < backend.slots:
                await asyncio.sleep(0.005)
            await until(service, "ready")
            sources.append((await service.decide(state="x" * 600, questions=SEVERAL)).trace.source)
        assert sources == ["computed", "memory", "computed"], "another model computes its own"

    play(scene, policy=AUTO, place=tmp_path, directory=tmp_path)
