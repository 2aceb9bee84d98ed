from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from fakes.backend import FakeBackend
from jev_local.backend.probe import NAMES, NO_DIRECTORY, OTHER_DIRECTORY, Probe
from jev_local.backend.trials import text_trials
from jev_local.core.sharing import Profile
from jev_local.errors import BackendUnavailable


def probed(backend: FakeBackend, directory: Path) -> Profile:
    async def scene() -> Profile:
        async with asyncio.timeout(20):
            return await Probe(backend, await backend.describe(), directory, await text_trials(backend)).profile()

    return asyncio.run(scene())


def probe(place: Path, **options: Any) -> Profile:
    return probed(FakeBackend(**{"directory": place} | options), place)


def exact(profile: Profile) -> dict[str, bool]:
    return {trial.name: trial.exact for trial in profile.trials}


@pytest.mark.parametrize("truncates", [True, False])
def test_whether_a_slot_can_be_cut_back_is_found_out(tmp_path: Path, truncates: bool) -> None:
    backend = FakeBackend(directory=tmp_path, truncates=truncates)
    profile = probed(backend, tmp_path)
    assert exact(profile) == {"in-place": True, "fan-out": True, "restore": True, "plain": True}
    assert (profile.truncates, profile.sharing, profile.reason) == (truncates, True, "")
    assert all(trial.ms is not None and 0 < trial.ms < 10_000 for trial in profile.trials)
    assert list(tmp_path.iterdir()) == [], "its files are gone"
    assert backend.holds == {}, "and what it left in the slots"


def test_a_server_without_a_directory(tmp_path: Path) -> None:
    profile = probe(tmp_path, directory=None)
    assert (exact(profile), profile.sharing, profile.reason) == ({"plain": True}, False, NO_DIRECTORY)


def test_a_server_with_another_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    for exists in (False, True):
        if exists:
            ours.mkdir()
            (ours / NAMES[0]).write_bytes(b"of another time")
        profile = probed(FakeBackend(directory=theirs), ours)
        assert (exact(profile), profile.sharing, profile.reason) == ({"plain": True}, False, OTHER_DIRECTORY)
        assert str(ours) in caplog.text
    assert str(ours) not in profile.reason


def test_a_server_that_cannot_save_goes_on_in_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile = probe(tmp_path, save_fails=True)
    assert exact(profile) == {"in-place": True, "fan-out": False, "restore": False, "plain": True}
    assert "cannot save" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", [{"restore_fails": (0, 1)}, {"stale": True}], ids=["refused", "another state"])
@pytest.mark.parametrize("truncates", [True, False])
def test_what_is_restored_wrongly_is_not_used_nor_gone_on_from(
    tmp_path: Path, truncates: bool, option: dict[str, Any]
) -> None:
    profile = probe(tmp_path, truncates=truncates, **option)
    assert exact(profile) == {"in-place": False, "fan-out": False, "restore": False, "plain": True}
    assert not profile.sharing
    assert "no way of reusing" in profile.reason


def test_a_slot_that_never_holds_what_it_was_given_is_not_gone_on_from(tmp_path: Path) -> None:
    profile = probe(tmp_path, forgets=1000)
    assert exact(profile) == {"in-place": False, "fan-out": False, "restore": False, "plain": True}


def test_one_slot_cannot_fan_out(tmp_path: Path) -> None:
    assert exact(probe(tmp_path, slots=1)) == {"in-place": True, "fan-out": False, "restore": True, "plain": True}


def test_a_server_that_does_not_answer_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    backend = FakeBackend(directory=tmp_path, at=("restore",), fail=BackendUnavailable("gone"))
    with pytest.raises(BackendUnavailable, match="gone"):
        probed(backend, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_equal_servers_have_equal_fingerprints(tmp_path: Path) -> None:
    first = probe(tmp_path).fingerprint
    assert first == probe(tmp_path, run=2).fingerprint != ""


def test_servers_that_compute_otherwise_have_other_fingerprints(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    place = tmp_path / "slots"
    place.mkdir()
    model.write_bytes(b"GGUF")
    found = {
        name: probe(place, **{"path": str(model)} | options).fingerprint
        for name, options in {
            "same": {},
            "weights": {"weights": 1},
            "slots": {"slots": 3},
            "context": {"context": 8192},
            "name": {"path": str(tmp_path / "gone.gguf")},
        }.items()
    }
    os.utime(model, ns=(1, 1))
    found["touched"] = probe(place, path=str(model)).fingerprint
    model.write_bytes(b"GGUF and more")
    os.utime(model, ns=(1, 1))
    found["longer"] = probe(place, path=str(model)).fingerprint
    assert len(set(found.values())) == len(found)


def test_a_server_that_does_not_say_where_its_model_is_has_one_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "slots"
    place.mkdir()
    monkeypatch.chdir(tmp_path)
    first = probe(place, path="").fingerprint
    (tmp_path / "something").touch()
    assert probe(place, path="").fingerprint == first


def test_half_a_character_behind_a_question_of_the_probe(tmp_path: Path) -> None:
    profile = probe(tmp_path, withholds=b"Colo")
    assert exact(profile) == {"in-place": True, "fan-out": True, "restore": True, "plain": True}
