"""Saved states that were damaged, servers that were killed, disks that are full: answers stay right all the same."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from jev_local.launch.process import Child
from programs import free_port, until
from servers import api_server, llama_server
from state_cache import FEW, KEY, altered_server, cache, furthest, post, same_way, snapshots, told, watched

TINY = {"context": 16384, "threads": 1}
"""One thread, because two that wait for each other are slow beside whatever else the machine does."""
MARK = "Zanzibar"
"""In every state, and never in a log."""

SAVE_ALL = ("--cache-min-tokens", "32")
WORDS = (
    ("lamp", "lost", "upset"),
    ("book", "dull", "happy"),
    ("coat", "cold", "moody"),
    ("desk", "good", "proud"),
    ("bike", "slow", "silly"),
    ("fork", "full", "funny"),
    ("bowl", "blue", "sorry"),
)


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def short(which: int) -> str:
    """A state that is read quickly, as long as its neighbours and about something else."""
    thing, quality, mood = WORDS[which]
    return f"{mood} about a {thing}: the {thing} from {MARK} is {quality}, so {quality} that all here are {mood} now."


def long(which: int, *, tokens: int) -> str:
    """Of some `tokens` bytes, which are tokens to the tiny model."""
    line = f"{which} calls from {MARK} about parcel {which * 37}, and each was told to wait for it. "
    return (line * (tokens // len(line) + 1))[:tokens]


@dataclass(frozen=True, slots=True)
class Kind:
    """A llama-server with one kind of model. rounding: how far its answers may be from a fresh computation's."""

    url: str
    child: Child
    slots: Path
    rounding: float


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kind]:
    model: Path = request.getfixturevalue(f"{request.param}_model")
    options = TINY if request.param == "tiny" else {"threads": 1}
    folder = tmp_path_factory.mktemp(request.param)
    with llama_server(model, folder, **options) as (url, child):
        yield Kind(url, child, folder / "slots", 0.002 if request.param == "tiny" else 0.02)


def source(reply: httpx.Response) -> str:
    return told(reply)["prefix-source"]


def log_of(folder: Path) -> str:
    return (folder / "api.log").read_text()


def eventually(url: str, state: str, questions: Any = FEW) -> httpx.Response:
    """The first answer other than 502 and 503."""
    deadline = time.monotonic() + 60
    while (reply := post(url, state, questions)).status_code in (502, 503):
        assert time.monotonic() < deadline, reply.text
        time.sleep(0.1)
    return reply


def indexed(slots: Path) -> set[str]:
    with closing(sqlite3.connect(f"file:{slots / 'index.sqlite3'}?mode=ro", uri=True)) as index:
        return {name for (name,) in index.execute("SELECT name FROM prefixes")}


def empty(slots: Path) -> None:
    """No API is at it."""
    for path in slots.iterdir():
        path.unlink()


# Damaged files


def shortened(file: Path, _: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def emptied(file: Path, _: Path) -> None:
    os.truncate(file, 0)


def flipped(file: Path, _: Path) -> None:
    found = file.stat()
    with file.open("r+b") as opened:
        opened.seek(found.st_size // 2)
        (byte,) = opened.read(1)
        opened.seek(found.st_size // 2)
        opened.write(bytes([byte ^ 0x40]))
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def linked(file: Path, _: Path) -> None:
    copy = file.parent.parent / f"copy-of-{file.name}"
    shutil.copy2(file, copy)
    file.unlink()
    file.symlink_to(copy)


def deleted(file: Path, _: Path) -> None:
    file.unlink()


def exchanged(file: Path, other: Path) -> None:
    found = file.stat()
    file.write_bytes(other.read_bytes())
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


DAMAGES: tuple[Callable[[Path, Path], None], ...] = (shortened, emptied, flipped, linked, deleted, exchanged)
SOUND = len(DAMAGES)
"""The state after those that are damaged; its file is left alone."""


def saved(url: str, slots: Path, which: int) -> tuple[httpx.Response, Path]:
    """The answers about a state that was not known, and the file that it was saved in."""
    before = snapshots(slots)
    reply = post(url, short(which), FEW)
    assert source(reply) == "computed", which
    (name,) = snapshots(slots) - before
    return reply, slots / name


def evaluated_only_questions(reply: httpx.Response) -> bool:
    """Whether the prefix was not evaluated: a few tokens in front of each question may be."""
    prefix, processed = (int(told(reply)[name]) for name in ("prefix-tokens", "processed-tokens"))
    suffixes = int(reply.json()["usage"]["input_tokens"]) - len(FEW) * prefix
    return processed <= suffixes + 14 * len(FEW) < prefix + suffixes


@pytest.mark.parametrize(
    ("kind", "mode"), [("tiny", "auto"), ("tiny", "shared"), ("smollm2", "auto")], indirect=["kind"]
)
def test_no_damaged_file_is_restored_after_a_restart_or_while_the_api_runs(
    kind: Kind, mode: str, tmp_path: Path
) -> None:
    empty(kind.slots)
    options = ("--state-cache", mode, *SAVE_ALL)
    every = range(SOUND + 1)

    def damage(files: list[Path]) -> None:
        for harm, file in zip(DAMAGES, files, strict=True):
            harm(file, kept)

    with api_server(kind.url, tmp_path / "first", *options) as (url, _):
        first, (*files, kept) = map(list, zip(*(saved(url, kind.slots, which) for which in every), strict=True))
    for one, other in pairwise(first):
        assert furthest(one, other) > kind.rounding, "a mix-up has to show"

    damage(files)
    with api_server(kind.url, tmp_path / "second", *options) as (url, _):
        sound = post(url, short(SOUND), FEW)
        is_found = same_way(first[SOUND], sound)
        assert source(sound) == ("disk" if is_found else "computed")
        assert evaluated_only_questions(sound) == is_found
        after, files = map(list, zip(*(saved(url, kind.slots, which) for which in range(SOUND)), strict=True))
        text = log_of(tmp_path / "second")
        assert "not there as they were saved are dropped: 4" in text
        assert text.count("is dropped: it is not the file that was saved") == 2

        damage(files)
        # There are more states than slots, so that by its turn no slot holds any of them.
        again = [post(url, short(which), FEW) for which in every]
        assert [source(reply) for reply in again] == ["computed"] * SOUND + ["disk" if is_found else "memory"]
        text = log_of(tmp_path / "second")
        for file in files:
            assert f"{file.name} is dropped" in text
        assert kind.child.poll() is None
    for one, other, last in zip(first, [*after, sound], again, strict=True):
        assert furthest(one, other) <= kind.rounding
        assert furthest(one, last) <= kind.rounding
    assert MARK not in log_of(tmp_path / "first") + text
    assert not any(path.is_symlink() for path in kind.slots.iterdir())
    assert indexed(kind.slots) == snapshots(kind.slots)


def unlinked(index: Path) -> None:
    index.unlink()


def garbled(index: Path) -> None:
    index.write_bytes(b"no database " * 1000)


def halved(index: Path) -> None:
    os.truncate(index, index.stat().st_size // 2)


@pytest.mark.parametrize("kind", ["tiny"], indirect=True)
@pytest.mark.parametrize("harm", [unlinked, garbled, halved])
def test_a_damaged_index_costs_the_saved_states_and_nothing_else(
    kind: Kind, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    empty(kind.slots)
    index = kind.slots / "index.sqlite3"
    with api_server(kind.url, tmp_path / "first", *SAVE_ALL) as (url, _):
        first, file = saved(url, kind.slots, 0)
    harm(index)
    with api_server(kind.url, tmp_path / "second", *SAVE_ALL) as (url, _):
        assert not file.exists()
        second, file = saved(url, kind.slots, 0)
        until(lambda: indexed(kind.slots) == {file.name}, "the entry")
        assert "index" in log_of(tmp_path / "second")

        harm(index)
        between = [post(url, short(which), FEW) for which in range(1, 3)]
        third = post(url, short(0), FEW)
        assert {reply.status_code for reply in between} == {200}
        assert kind.child.poll() is None
    with api_server(kind.url, tmp_path / "third", *SAVE_ALL) as (url, _):
        last = post(url, short(0), FEW)
    assert max(furthest(first, other) for other in (second, third, last)) <= kind.rounding
    assert MARK not in log_of(tmp_path / "second") + log_of(tmp_path / "third")
    assert indexed(kind.slots) == snapshots(kind.slots)


# Processes that end


def test_an_api_killed_over_and_over_leaves_right_answers_and_no_stray_file(tiny_model: Path, tmp_path: Path) -> None:
    texts = [long(which, tokens=800) for which in range(6)]
    with llama_server(tiny_model, tmp_path / "llama", **TINY) as (backend, child):
        slots = tmp_path / "llama" / "slots"
        with api_server(backend, tmp_path / "right", "--state-cache", "off") as (url, _):
            right = [post(url, text, FEW) for text in texts]

        def check(url: str, which: int) -> None:
            reply = eventually(url, texts[which])
            assert furthest(reply, right[which]) <= 0.002

        def keep_asking(url: str, over: threading.Event) -> None:
            with closing(httpx.Client(base_url=url, headers=KEY, trust_env=False, timeout=60)) as client:
                for which in range(1000):
                    with suppress(httpx.TransportError):
                        client.post("/v1/systemone", json={"state": texts[which % 6], "questions": FEW})
                    if over.is_set():
                        return

        for moment in (0.0, 0.1, 0.35):
            with api_server(backend, tmp_path / "killed", "--prefix-cache-bytes", "1M") as (url, api):
                assert snapshots(slots) == indexed(slots)
                over = threading.Event()
                with ThreadPoolExecutor(3) as clients:
                    asked = [clients.submit(keep_asking, url, over) for _ in range(3)]
                    before = snapshots(slots)
                    until(lambda before=before: snapshots(slots) - before, "a save")  # type: ignore[misc]
                    time.sleep(moment)
                    api.signal(signal.SIGKILL)
                    api.wait(5)
                    over.set()
                for one in asked:
                    one.result()
        with api_server(backend, tmp_path / "last", "--prefix-cache-bytes", "1M") as (url, _):
            assert snapshots(slots) == indexed(slots)
            for which in range(6):
                check(url, which)
        assert snapshots(slots) == indexed(slots)
        assert child.poll() is None


RUNS: tuple[tuple[dict[str, Any], dict[str, int]], ...] = (
    ({}, TINY),
    ({}, TINY | {"context": 12288}),
    ({}, TINY | {"parallel": 3}),
    ({"rope_freq_base": 5000.0}, TINY),
    ({}, TINY),
)
"""What is altered, and the options, of one run of the server after another."""

SAME_STATE = long(1, tokens=700)


@pytest.fixture(scope="module")
def fresh(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[httpx.Response]:
    """The answer of each run, by servers that nobody has asked anything before."""
    answers = []
    for altered, options in RUNS[:-1]:
        folder = tmp_path_factory.mktemp("fresh")
        server = altered_server(tiny_model, folder, altered=altered, **options)
        with server as (backend, _), api_server(backend, folder, *SAVE_ALL) as (url, _):
            answers.append(post(url, SAME_STATE, FEW))
    assert furthest(answers[0], answers[3]) > 0.02, "the RoPE base has to show"
    return [*answers, answers[0]]


@pytest.mark.parametrize("same_api", [True, False], ids=["the same API", "an API restarted too"])
def test_a_server_with_other_settings_gets_no_snapshot_of_before(
    tiny_model: Path, fresh: list[httpx.Response], tmp_path: Path, same_api: bool
) -> None:
    """/props does not tell the RoPE base, and it changes every number."""
    port, folder = free_port(), tmp_path / "llama"
    url = f"http://127.0.0.1:{port}"
    got: list[httpx.Response] = []

    def ask(api: str) -> None:
        until(lambda: log_of(tmp_path).count("Model loaded") == len(got) + 1, "the notice of the new server")
        got.append(eventually(api, SAME_STATE))

    if same_api:
        with api_server(url, tmp_path, "--slot-cache-dir", str(folder / "slots"), ready="/health") as (api, _):
            for altered, options in RUNS:
                with altered_server(tiny_model, folder, port=port, altered=altered, **options):
                    ask(api)
    else:
        for altered, options in RUNS:
            server = altered_server(tiny_model, folder, port=port, altered=altered, **options)
            with server, api_server(url, tmp_path) as (api, _):
                ask(api)
    kept = "memory" if same_api else "disk"
    assert [source(reply) for reply in got[:-1]] == ["computed"] * 4
    assert source(got[-1]) == (kept if same_way(got[0], got[-1]) else "computed")
    assert max(furthest(one, other) for one, other in zip(got, fresh, strict=True)) <= 0.002


def test_a_server_that_came_up_between_two_looks_gets_no_snapshot(
    tiny_model: Path, fresh: list[httpx.Response], tmp_path: Path
) -> None:
    """The API looks every two seconds; the other settings show in no reply."""
    port, folder = free_port(), tmp_path / "llama"
    where = ("--slot-cache-dir", str(folder / "slots"))
    with api_server(f"http://127.0.0.1:{port}", tmp_path, *where, ready="/health") as (api, _):
        with altered_server(tiny_model, folder, port=port, **TINY):
            eventually(api, SAME_STATE)
            for i in range(2, 7):  # so that no slot holds it any more
                post(api, long(i, tokens=700), FEW)
        with altered_server(tiny_model, folder, port=port, altered={"rope_freq_base": 5000.0}, **TINY):
            got = post(api, SAME_STATE, FEW)
            if got.status_code == 503:
                got = eventually(api, SAME_STATE)
            assert furthest(got, fresh[3]) <= 0.002


def test_a_server_killed_in_the_middle_of_a_long_state_takes_its_snapshots_up_again(
    tiny_model: Path, tmp_path: Path
) -> None:
    port, folder = free_port(), tmp_path / "llama"
    slots = folder / "slots"
    known, lengthy = long(1, tokens=1000), long(2, tokens=8000)
    server = llama_server(tiny_model, folder, port=port, **TINY)
    with ThreadPoolExecutor(1) as elsewhere, server as (backend, child), api_server(backend, tmp_path) as (api, _):
        first = post(api, known, FEW)
        asked = elsewhere.submit(post, api, lengthy, FEW)
        until(lambda: is_busy(backend), "the prefill")
        child.signal(signal.SIGKILL)
        assert asked.result().status_code in (502, 503)
        child.wait(5)
        with llama_server(tiny_model, folder, port=port, **TINY):
            again = eventually(api, known)
            whole = eventually(api, lengthy)
        assert (source(first), source(whole)) == ("computed", "computed")
        assert source(again) == ("memory" if same_way(first, again) else "computed")
        assert furthest(first, again) <= 0.002
    assert indexed(slots) == snapshots(slots)


def is_busy(backend: str) -> bool:
    slots = httpx.get(f"{backend}/slots", trust_env=False, timeout=30).json()
    return any(slot["is_processing"] for slot in slots)


# No room


@pytest.mark.parametrize("file_bytes", [8_000, 200_000], ids=["from the start", "for a long state"])
def test_a_full_disk_costs_the_saving_and_no_answer(tiny_model: Path, tmp_path: Path, file_bytes: int) -> None:
    slots = tmp_path / "slots"
    states = [long(which, tokens=1500) for which in range(3)]
    with altered_server(tiny_model, tmp_path, altered={}, file_bytes=file_bytes, **TINY) as (backend, child):
        with api_server(backend, tmp_path / "right", "--state-cache", "off") as (url, _):
            right = [post(url, state, FEW) for state in states]
        with api_server(backend, tmp_path / "api") as (url, _):
            got = [post(url, state, FEW) for state in states]
            report = cache(url)
            assert snapshots(slots) == set()
        assert child.poll() is None
    for one, other in zip(right, got, strict=True):
        assert (told(other)["state-cache"], source(other), told(other)["strategy"]) == (
            "shared",
            "computed",
            "in-place",
        )
        assert int(told(other)["cached-tokens"]) >= (len(FEW) - 1) * int(told(other)["prefix-tokens"])
        assert furthest(one, other) <= 0.002
    assert (report["sharing"], report["saving"], report["entries"]) == (True, False, 0)
    assert report["reason"]
    text = log_of(tmp_path / "api")
    assert text.count("States are not saved") == 1
    assert MARK not in text
    assert [path.name for path in slots.iterdir() if path.suffix == ".slot"] == []


# A budget of nothing

MANY = {f"{name} {i}": question | {"instructions": f"{i}?"} for i in range(10) for name, question in FEW.items()}
"""They keep a request going for a while."""

SOME = dict(islice(MANY.items(), 4))
"""Enough for a second slot to be worth it."""


class Unread:
    """A request whose answer nobody reads."""

    def __init__(self, url: str, state: str, questions: Any) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", int(url.rsplit(":", 1)[1]), timeout=60)
        body = json.dumps({"state": state, "questions": questions})
        self._connection.request("POST", "/v1/systemone", body, {"content-type": "application/json"})

    def leave(self) -> None:
        self._connection.close()


def test_without_a_budget_a_file_lasts_as_long_as_its_request(tiny_model: Path, tmp_path: Path) -> None:
    slots, state = tmp_path / "slots", long(1, tokens=2000)
    with llama_server(tiny_model, tmp_path, **TINY) as (backend, _):
        with api_server(backend, tmp_path / "right", "--state-cache", "off") as (url, _):
            right = post(url, state, SOME)
        with api_server(backend, tmp_path / "api", "--prefix-cache-bytes", "0") as (url, _):
            names: set[str] = set()
            for _ in range(2):
                with watched(slots) as seen:
                    reply = post(url, state, SOME)
                    until(lambda: not snapshots(slots), "the deletion", 5)
                assert source(reply) == "computed"
                assert told(reply)["strategy"] in ("restore", "fan-out")
                assert furthest(reply, right) <= 0.002
                assert len(seen) == 1
                assert not names & seen
                names |= seen

            gone = Unread(url, state, MANY)
            until(lambda: snapshots(slots), "a file")
            gone.leave()
            until(lambda: not snapshots(slots), "the deletion")

            gone = Unread(url, long(2, tokens=8000), MANY)
            until(lambda: is_busy(backend), "the prefill")
            gone.leave()
            until(lambda: not is_busy(backend), "the end of it")
            assert source(post(url, state, SOME)) == "computed"
            until(lambda: not snapshots(slots), "the deletion")
            assert (cache(url)["bytes"], cache(url)["entries"]) == (0, 0)
        assert indexed(slots) == set()


def test_without_a_budget_no_file_outlives_a_server_that_hangs_or_dies(tiny_model: Path, tmp_path: Path) -> None:
    slots, port = tmp_path / "slots", free_port()
    options = ("--prefix-cache-bytes", "0", "--backend-timeout", "6", "--slot-cache-dir", str(slots))

    lengthy = {name: question | {"instructions": name * 1500} for name, question in FEW.items()}

    def caught(url: str, number: int, child: Child, sent: signal.Signals) -> httpx.Response:
        """The answer to a request that `sent` met while its file was there and its questions were read."""
        backend = f"http://127.0.0.1:{port}"
        with ThreadPoolExecutor(1) as elsewhere:
            asked = elsewhere.submit(post, url, long(number, tokens=2000), lengthy)
            until(lambda: snapshots(slots) or asked.done(), "a file")
            until(lambda: is_busy(backend) or asked.done(), "the reading")
            child.signal(sent)
            return asked.result()

    with api_server(f"http://127.0.0.1:{port}", tmp_path / "api", *options, ready="/health") as (url, _):
        with llama_server(tiny_model, tmp_path, port=port, **TINY) as (_, child):
            until(lambda: httpx.get(f"{url}/ready", trust_env=False).status_code == 200, "the start")
            assert caught(url, 1, child, signal.SIGSTOP).status_code == 504
            until(lambda: not snapshots(slots), "the deletion")
            child.signal(signal.SIGCONT)
            assert eventually(url, long(2, tokens=2000)).status_code == 200

            assert caught(url, 3, child, signal.SIGKILL).status_code in (502, 503)
            until(lambda: not snapshots(slots), "the deletion")
            child.wait(5)
        with llama_server(tiny_model, tmp_path, port=port, **TINY):
            assert source(eventually(url, long(3, tokens=2000))) == "computed"
            until(lambda: not snapshots(slots), "the deletion")
