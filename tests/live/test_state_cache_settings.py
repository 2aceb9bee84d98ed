"""What the settings of the state cache do: whose folder, how much of it, who may use it, and when the API refuses."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from jev_local.backend.probe import NAMES
from jev_local.engine.locks import directory_lock
from programs import until
from servers import api_server, llama_server
from state_cache import FEW, altered_server, cache, post, refusal, snapshots, told

OPTIONS = {"context": 16384, "threads": 1}

# Where a test expects a hit after a restart it asks for --stable: which way is fastest, and so where the saved prefix
# ends, may come out otherwise at the next start.


@dataclass(frozen=True, slots=True)
class Llama:
    url: str
    slots: Path


@pytest.fixture(scope="module")
def started(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    folder = tmp_path_factory.mktemp("llama")
    with llama_server(tiny_model, folder, **OPTIONS) as (url, _):
        yield Llama(url, folder / "slots")


@pytest.fixture
def llama(started: Llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Llama:
    """With an empty folder, and with locks that nobody else has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for path in started.slots.iterdir():
        path.unlink()
    started.slots.chmod(0o700)
    return started


def long(which: int) -> str:
    return f"{which} calls about parcel {which * 37}, and each was told to wait for it. " * 12


def sharing(url: str) -> tuple[bool, str]:
    told = httpx.get(f"{url}/ready", trust_env=False, timeout=30).json()["state_cache"]
    return told["sharing"], told["reason"] or ""


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


# Room


def test_the_folder_never_takes_more_than_its_budget_and_those_used_last_stay(llama: Llama, tmp_path: Path) -> None:
    with api_server(llama.url, tmp_path, "--stable") as (url, _):
        post(url, long(0), FEW)
        (size,) = (path.stat().st_size for path in llama.slots.glob("prefix-*.slot"))
        assert cache(url)["bytes"] == size
        assert cache(url, "DELETE") == {"deleted": 1}
        assert (snapshots(llama.slots), cache(url)["entries"]) == (set(), 0)

    budget = int(2.5 * size)
    options = ("--prefix-cache-bytes", str(budget), "--stable")

    def taken() -> int:
        return sum(path.stat().st_size for path in llama.slots.glob("prefix-*.slot"))

    with api_server(llama.url, tmp_path, *options) as (url, _):
        for which in range(1, 5):
            assert told(post(url, long(which), FEW))["prefix-source"] == "computed"
            until(lambda: taken() <= budget, "the eviction", 5)
        report = cache(url)
        assert (report["entries"], report["evictions"], report["budget"]) == (2, 2, budget)
        assert report["bytes"] == taken() <= budget
    with api_server(llama.url, tmp_path, *options) as (url, _):
        assert [told(post(url, long(which), FEW))["prefix-source"] for which in (4, 3, 2)] == [
            "disk",
            "disk",
            "computed",
        ]
        report = cache(url)
        assert (report["hits"], report["misses"], report["evictions"]) == (2, 1, 1)
        assert cache(url, "DELETE") == {"deleted": 2}
        assert (snapshots(llama.slots), cache(url)["bytes"]) == (set(), 0)
    with api_server(llama.url, tmp_path, *options) as (url, _):
        assert told(post(url, long(3), FEW))["prefix-source"] == "computed"


def test_the_cache_is_behind_the_key(llama: Llama, tmp_path: Path) -> None:
    with api_server(llama.url, tmp_path, key="right") as (url, _):
        for method in ("GET", "DELETE"):
            wrong = {"authorization": "Bearer wrong"}
            assert httpx.request(method, f"{url}/v1/cache", headers=wrong, trust_env=False).status_code == 401
            assert cache(url, method, authorization="Bearer right")


# Whose folder


def test_a_folder_that_is_not_the_servers_is_noticed(llama: Llama, tmp_path: Path) -> None:
    other = ("--slot-cache-dir", str(tmp_path / "other"))
    with api_server(llama.url, tmp_path, *other) as (url, _):
        shares, reason = sharing(url)
        assert not shares
        assert "SLOT_CACHE_DIR" in reason
        assert "--slot-cache-dir" in reason
        assert not cache(url)["sharing"]
        for reply in (post(url, long(1), FEW), post(url, long(1), FEW)):
            assert (told(reply)["state-cache"], told(reply)["cached-tokens"]) == ("off", "0")
    for insisting in (("--state-cache", "shared"), ("--stable",)):
        said = refusal(llama.url, tmp_path, *other, *insisting)
        assert "SLOT_CACHE_DIR" in said
        assert "--slot-cache-dir" in said
    assert {path.name for path in llama.slots.iterdir()} <= set(NAMES), "whose names never change"


def test_a_server_that_saves_nothing_is_noticed(llama: Llama, tiny_model: Path, tmp_path: Path) -> None:
    with altered_server(tiny_model, tmp_path, altered={"slot_save_path": ""}, **OPTIONS) as (backend, _):
        with api_server(backend, tmp_path) as (url, _):
            shares, reason = sharing(url)
            assert not shares
            assert "SLOT_CACHE_DIR" in reason
            assert "--slot-cache-dir" in reason
            for reply in (post(url, long(1), FEW), post(url, long(1), FEW)):
                assert (told(reply)["state-cache"], told(reply)["cached-tokens"]) == ("off", "0")
        for insisting in (("--state-cache", "shared"), ("--stable",)):
            assert "SLOT_CACHE_DIR" in refusal(backend, tmp_path, *insisting)


def test_a_folder_in_memory_will_do(llama: Llama, tiny_model: Path, tmp_path: Path) -> None:
    memory = Path("/dev/shm")  # noqa: S108  # of our own in there
    if not memory.is_dir():
        pytest.skip("no /dev/shm here")
    folder = Path(tempfile.mkdtemp(dir=memory, prefix="jev-local-test-"))
    try:
        with llama_server(tiny_model, folder, **OPTIONS) as (backend, _):
            for wanted in ("computed", "disk"):
                with api_server(backend, tmp_path, "--stable") as (url, _):
                    assert told(post(url, long(1), FEW))["prefix-source"] == wanted
            assert len(snapshots(folder / "slots")) == 1
    finally:
        shutil.rmtree(folder)


def test_the_folder_and_what_is_in_it_are_closed_to_others(llama: Llama, tmp_path: Path) -> None:
    llama.slots.chmod(0o755)
    with api_server(llama.url, tmp_path) as (url, _):
        post(url, long(1), FEW)
        assert mode(llama.slots) == 0o700
        files = [path for path in llama.slots.iterdir() if not path.name.endswith("-journal")]
        assert len(files) == 3, "a state, the index, the lock"
        assert {mode(path) for path in files} == {0o600}


def test_a_folder_that_others_could_get_at_is_refused(llama: Llama, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(llama.slots, target_is_directory=True)
    assert "symbolic link" in refusal(llama.url, tmp_path, "--slot-cache-dir", str(link))
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    (shared / "thesis.txt").write_text("mine")
    assert "open to other users" in refusal(llama.url, tmp_path, "--slot-cache-dir", str(shared))
    assert mode(shared) == 0o755
    assert [path.name for path in shared.iterdir()] == ["thesis.txt"]


# One API at a time


def test_a_second_api_in_front_of_a_server_is_refused_until_the_first_is_gone(llama: Llama, tmp_path: Path) -> None:
    elsewhere = ("--slot-cache-dir", str(tmp_path / "elsewhere"))
    with api_server(llama.url, tmp_path) as (_, first):
        for url in (llama.url, llama.url.replace("127.0.0.1", "localhost"), llama.url + "/"):
            for options in ((), elsewhere, ("--state-cache", "off")):
                if url == llama.url or options == elsewhere:
                    said = refusal(url, tmp_path, *options)
                    assert "Another API serves the inference server" in said
                    assert "--backend-url" in said
        first.signal(signal.SIGKILL)
        first.wait(5)
        with api_server(llama.url, tmp_path) as (url, _):
            assert told(post(url, long(1), FEW))["state-cache"] == "shared"


def test_a_second_api_at_a_folder_is_refused_until_the_first_is_gone(
    llama: Llama, tiny_model: Path, tmp_path: Path
) -> None:
    with llama_server(tiny_model, tmp_path / "second", **OPTIONS) as (backend, _):
        same = ("--slot-cache-dir", str(llama.slots))
        with api_server(llama.url, tmp_path) as (_, first):
            said = refusal(backend, tmp_path, *same)
            assert "Another API keeps its saved states in this folder" in said
            assert "--slot-cache-dir" in said
            first.signal(signal.SIGKILL)
            first.wait(5)
            with api_server(backend, tmp_path, *same) as (url, _):
                assert not sharing(url)[0], "the folder of another server"


# Off


def test_off_reuses_nothing_and_touches_no_folder(llama: Llama, tmp_path: Path) -> None:
    with api_server(llama.url, tmp_path) as (url, _):
        shared = post(url, long(1), FEW)
    cleared = {path.name for path in llama.slots.iterdir()}
    with api_server(llama.url, tmp_path, "--state-cache", "off") as (url, _):
        lock = directory_lock(llama.slots)
        lock.release()
        off = [post(url, long(which), FEW) for which in (1, 1, 2)]
        report = cache(url)
    for reply in off:
        assert (told(reply)["state-cache"], told(reply)["strategy"]) == ("off", "plain")
        assert (told(reply)["prefix-source"], told(reply)["cached-tokens"]) == ("none", "0")
        assert int(told(reply)["processed-tokens"]) >= reply.json()["usage"]["input_tokens"]
    assert int(told(shared)["cached-tokens"]) > 0
    assert (report["mode"], report["sharing"], report["entries"]) == ("off", False, 0)
    assert {path.name for path in llama.slots.iterdir()} == cleared
    with api_server(llama.url, tmp_path, "--state-cache", "off", "--slot-cache-dir", str(tmp_path / "never")) as (
        url,
        _,
    ):
        post(url, long(1), FEW)
    assert not (tmp_path / "never").exists()
