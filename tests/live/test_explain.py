"""Why a state was reused or not, asked of the real API in front of real models."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from jev_local.cli import main
from jev_local.client import Client
from jev_local.explained import Explained
from programs import free_port
from servers import api_server, llama_server
from state_cache import KEY, QUESTIONS, post, state, told

SOME = dict(itertools.islice(QUESTIONS.items(), 3))
ONE = dict(itertools.islice(QUESTIONS.items(), 1))


def request(text: str, questions: Mapping[str, Any] = SOME) -> dict[str, Any]:
    return {"state": text, "questions": dict(questions)}


def explain(url: str, a: Any, b: Any) -> Explained:
    with Client(url, key="local-dev", timeout=120) as client:
        return client.explain(json.dumps(a).encode(), json.dumps(b).encode())


def outcomes(found: Explained) -> dict[str, str]:
    return {check.check: check.outcome for check in found.checks}


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(request.param)
    model: Path = request.getfixturevalue(f"{request.param}_model")
    options = {"context": 16384} if request.param == "tiny" else {}
    with llama_server(model, folder, **options) as (llama, _), api_server(llama, folder) as (api, _):
        yield api


def test_a_date_in_front_parts_two_states_and_behind_it_does_not(url: str) -> None:
    policy = state("Policy.", lines=9)
    front = [f"Date: {day}\n{policy}" for day in ("2026-11-29", "2026-11-30")]
    behind = [f"{policy}\nDate: {day}" for day in ("2026-11-29", "2026-11-30")]
    first, second = (post(url, text, SOME) for text in front)
    assert (told(first)["prefix-source"], told(second)["prefix-source"]) == ("computed", "computed")
    found = explain(url, *map(request, front))
    assert not found.whole
    assert found.agree < 60
    assert found.place is not None
    assert found.place.kind == "date-time"
    assert found.place.before.endswith("Date: 2026-11-")
    assert (found.place.a[:3], found.place.b[:3]) == ("29\n", "30\n")
    assert outcomes(found) == {"text": "differs"}
    assert "behind" in found.advice
    (move,) = found.moves
    assert (move.a, move.b) == ("2026-11-29", "2026-11-30")
    moved = explain(url, *map(request, behind))
    assert moved.agree > 250
    # The same policy in front of what changes: what is promised is what is found, but for a token where it ends.
    assert move.agree >= moved.agree - 12


def test_a_date_that_is_written_in_japanese_parts_them_as_well(url: str) -> None:
    texts = [f"本日は{day}です。\n{state('Policy.', lines=3)}" for day in ("令和8年11月29日", "令和8年12月1日")]
    found = explain(url, *map(request, texts))
    assert found.place is not None
    assert found.place.kind == "date-time"
    assert (found.moves[0].a, found.moves[0].b) == ("令和8年11月29日", "令和8年12月1日")
    assert found.moves[0].agree > found.agree


def test_the_same_state_is_told_with_what_became_of_it(url: str) -> None:
    text = state("Reused.", lines=9)
    asked = request(text)
    before = explain(url, asked, asked)
    assert (before.whole, before.place) == (True, None)
    assert outcomes(before)["process"] == "unknown"
    post(url, text, SOME)
    found = explain(url, asked, request(text, ONE))
    assert found.whole
    assert outcomes(found) | {"cut-back": ""} == {"text": "same", "process": "same", "entry": "held", "cut-back": ""}
    again = post(url, text, SOME)
    assert told(again)["prefix-source"] in ("slot", "memory")
    assert "were reused" in explain(url, asked, asked).advice


def test_a_single_question_and_a_short_state_keep_nothing_and_it_says_so(url: str) -> None:
    text = state("Alone.", lines=9)
    post(url, text, ONE)
    found = explain(url, request(text, ONE), request(text, ONE))
    assert outcomes(found)["entry"] == "never-kept"
    assert "single question" in found.checks[2].says
    assert "in one request" in found.advice
    post(url, "Short.", SOME)
    short = explain(url, request("Short."), request("Short."))
    assert outcomes(short)["entry"] == "never-kept"
    assert "worth keeping" in short.checks[2].says


SYSTEM, FIRST, SECOND = ("system", "{}"), ("user", "It came late."), ("user", "Was it broken?")
SAID, THIRD = ("assistant", "Then you may return it within thirty days."), ("user", "And if it was opened?")


@pytest.mark.parametrize(
    ("a", "b", "entry"),
    [
        ((SYSTEM, FIRST), (SYSTEM, SECOND), "held"),
        ((SYSTEM, FIRST), (SYSTEM, FIRST, SAID, THIRD), "held"),
        ((SYSTEM, FIRST, SAID, THIRD), (SYSTEM, SECOND), "never-kept"),
    ],
    ids=["another question", "gone on", "the longer first"],
)
def test_a_chats_state_is_held_where_it_is_found_when_it_is_asked(
    url: str, a: Any, b: Any, entry: str, request: pytest.FixtureRequest
) -> None:
    policy = state(f"{request.node.callspec.id}.", lines=9)
    first, second = (chat(*((role, text.format(policy)) for role, text in turns)) for turns in (a, b))
    say(url, first)
    for i in range(3):  # no slot holds it any longer
        say(url, chat(("user", f"{i} comes between."), ("assistant", f"{i}, so it is. " * 20), ("user", "Yes.")))
    found = explain(url, first, second)
    assert found.whole
    assert outcomes(found) | {"cut-back": ""} == {"text": "same", "process": "same", "entry": entry, "cut-back": ""}
    reply = told(say(url, second))
    assert reply["prefix-source"] == ("memory" if entry == "held" else "computed")
    assert (int(reply["cached-tokens"]) > 0.9 * found.a.reusable) == (entry == "held")


def chat(*messages: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in messages], "max_tokens": 2}


def say(url: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=KEY, trust_env=False, timeout=300)


def test_whether_a_state_can_be_cut_back_is_the_models(url: str, request: pytest.FixtureRequest) -> None:
    text = {"state": state("Kind.", lines=9), "questions": SOME}
    expected = "impossible" if "tiny" in request.node.callspec.id else "possible"
    assert outcomes(explain(url, text, text))["cut-back"] == expected


def test_the_command_tells_it_in_lines(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day in (29, 30):
        (tmp_path / f"{day}.json").write_text(json.dumps(request(f"Date: 2026-11-{day}\nIt is late.")))
    files = [str(tmp_path / f"{day}.json") for day in (29, 30)]
    assert main(["explain", *files, "--url", url, "--key", "local-dev"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "Parted    by a date or time" in out
    assert "(2026-11-29 / 2026-11-30)" in out


def test_an_evicted_state_is_known_as_one(tiny_model: Path, tmp_path: Path) -> None:
    texts = [state(f"State {i}.", lines=4) for i in range(3)]
    with llama_server(tiny_model, tmp_path / "llama", context=16384) as (llama, _):
        with api_server(llama, tmp_path / "large") as (url, _):
            post(url, texts[0], SOME)
            size = cache(url)["bytes"]
            httpx.delete(f"{url}/v1/cache", headers={"authorization": "Bearer local-dev"}, trust_env=False, timeout=30)
        with api_server(llama, tmp_path / "small", "--prefix-cache-bytes", str(size * 2 + size // 2)) as (url, _):
            for text in texts:
                post(url, text, SOME)
            assert cache(url)["evictions"] == 1
            gone, held = (explain(url, request(text), request(text)) for text in (texts[0], texts[2]))
    assert (outcomes(gone)["entry"], outcomes(held)["entry"]) == ("evicted", "held")
    assert "--prefix-cache-bytes" in gone.advice


def test_a_restart_of_the_models_server_is_known(tiny_model: Path, tmp_path: Path) -> None:
    port, text, log = free_port(), state("Restarted.", lines=4), tmp_path / "api" / "api.log"
    slots = ("--slot-cache-dir", str(tmp_path / "llama" / "slots"), "--prefix-cache-bytes", "0")
    with api_server(f"http://127.0.0.1:{port}", tmp_path / "api", *slots, ready="/health") as (url, _):
        with llama_server(tiny_model, tmp_path / "llama", port=port, context=16384):
            ready(url, log, runs=1)
            post(url, text, SOME)
            assert outcomes(explain(url, request(text), request(text)))["process"] == "same"
        with llama_server(tiny_model, tmp_path / "llama", port=port, context=16384):
            ready(url, log, runs=2)
            assert outcomes(explain(url, request(text), request(text)))["process"] == "restarted"
            post(url, text, SOME)
            found = explain(url, request(text), request(text))
    assert outcomes(found)["process"] == "restarted", "between the two"
    assert outcomes(found)["entry"] == "never-kept"
    assert "--prefix-cache-bytes" in found.advice


def ready(url: str, log: Path, *, runs: int, seconds: float = 60) -> None:
    """Until the API is ready for the `runs`th run of its server: it asks who that is every two seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        is_new = log.read_text(encoding="utf-8").count("Model loaded") == runs
        if is_new and httpx.get(f"{url}/ready", trust_env=False, timeout=10).status_code == 200:
            return
        time.sleep(0.02)
    raise AssertionError(f"{url} was not ready within {seconds} s")


def cache(url: str) -> Any:
    key = {"authorization": "Bearer local-dev"}
    return httpx.get(f"{url}/v1/cache", headers=key, trust_env=False, timeout=30).json()
