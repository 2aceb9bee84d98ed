import os
import stat
from pathlib import Path

import pytest

import jev_local
from jev_local.launch.errors import CannotStart
from jev_local.launch.home import Home, home
from jev_local.launch.ports import BACKEND_PORT


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_checkout_keeps_everything_in_itself() -> None:
    root = Path(__file__).resolve().parents[2]
    assert home({}) == Home(cache=root / ".cache", models=root / "models")


def test_an_installed_package_uses_a_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages" / "jev_local"
    monkeypatch.setattr(jev_local, "__file__", str(site / "__init__.py"))
    monkeypatch.setenv("HOME", str(tmp_path))
    root = tmp_path / ".cache" / "jev-local"
    assert home({}) == Home(cache=root / "cache", models=root / "models")


def test_jev_home_wins_and_the_cache_is_private(tmp_path: Path) -> None:
    place = home({"JEV_HOME": str(tmp_path / "here")})
    place.make()
    assert mode(place.cache) == 0o700
    assert mode(place.slot_dir({})) == 0o700
    assert place.slot_dir({}).parent == place.cache
    assert place.models == tmp_path / "here" / "models"


def test_a_folder_that_cannot_be_made_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match="JEV_HOME"):
        home({"JEV_HOME": str(tmp_path / "file")}).make()


def test_an_own_slot_folder_is_made_private_but_one_in_use_by_others_is_refused(tmp_path: Path) -> None:
    place = home({"JEV_HOME": str(tmp_path)})
    fresh = tmp_path / "fresh"
    assert place.slot_dir({"SLOT_CACHE_DIR": str(fresh)}) == fresh
    assert mode(fresh) == 0o700
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    place.slot_dir({"SLOT_CACHE_DIR": str(shared)})
    assert mode(shared) == 0o700, "empty: nobody can miss it"
    shared.chmod(0o777)
    (shared / "theirs").touch()
    with pytest.raises(CannotStart, match="chmod 700"):
        place.slot_dir({"SLOT_CACHE_DIR": str(shared)})
    assert mode(shared) == 0o777, "left as it was"


def test_where_slots_go_can_be_asked_without_making_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = home({"JEV_HOME": str(tmp_path / "here")})
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert place.slot_path({}) == place.slot_path({"SLOT_CACHE_DIR": ""}) == tmp_path / "here" / "cache" / "slots"
    for named in (str(tmp_path / "mine"), "~/mine", "mine"):
        assert place.slot_path({"SLOT_CACHE_DIR": named}) == tmp_path / "mine"
    assert list(tmp_path.iterdir()) == []
    assert place.slot_dir({"SLOT_CACHE_DIR": "mine"}) == tmp_path / "mine"
    assert mode(tmp_path / "mine") == 0o700


def test_a_home_that_nobody_has_is_one_line(tmp_path: Path) -> None:
    for ask, name in (
        (lambda: home({"JEV_HOME": str(tmp_path)}).slot_path({"SLOT_CACHE_DIR": "~no-such-user/x"}), "SLOT_CACHE_DIR"),
        (lambda: home({"JEV_HOME": "~no-such-user/x"}), "JEV_HOME"),
    ):
        with pytest.raises(CannotStart, match=f"{name} ~no-such-user/x") as refused:
            ask()
        assert refused.value.code == 2


def test_each_backend_port_has_its_log(tmp_path: Path) -> None:
    place = home({"JEV_HOME": str(tmp_path)})
    assert place.log(BACKEND_PORT).name == "llama-server.log"
    assert place.log(9000) != place.log(9001)


def test_without_a_home_folder_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jev_local.launch.home.checkout", lambda: None)
    monkeypatch.setattr(Path, "expanduser", lambda _: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(CannotStart, match=r"JEV_HOME ~/\.cache/jev-local: this user has no home folder"):
        home({})


@pytest.mark.parametrize(("umask", "mode"), [(0o000, 0o755), (0o022, 0o755), (0o077, 0o700)])
def test_nobody_else_may_write_whatever_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        made = home({"JEV_HOME": str(tmp_path / "new" / "home")})
        made.make()
    finally:
        os.umask(before)
    for folder in (tmp_path / "new", tmp_path / "new" / "home", made.models):
        assert stat.S_IMODE(folder.stat().st_mode) == mode, folder
    assert stat.S_IMODE(made.cache.stat().st_mode) == 0o700
