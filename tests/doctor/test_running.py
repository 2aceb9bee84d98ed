"""Who listens there: the two that should, and everybody else."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from doctor_servers import PROPS, READY, answering, silent, trickling
from jev_local.doctor import reachable
from jev_local.doctor.asked import MOST_BYTES, get
from jev_local.doctor.facts import Api, Backend
from jev_local.doctor.running import HUNG, NOBODY, api, backend
from programs import free_port

OK = (200, {"status": "ok"})
PAGE = (200, b"<!doctype html><title>Router</title>")


def test_nobody() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert backend(url, weights=None) == Backend(url, "down", NOBODY)
    assert api(url) == Api(url, "down", NOBODY)


def test_somebody_who_does_not_answer() -> None:
    with silent() as url:
        assert backend(url, weights=None, seconds=0.2) == Backend(url, "hung", HUNG)
        assert api(url, seconds=0.2) == Api(url, "hung", HUNG)


def test_an_answer_that_trickles_is_none() -> None:
    started = time.monotonic()
    with trickling(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" ") as url:
        assert get(url, "/ready", seconds=0.3).state == "hung"
    assert time.monotonic() - started < 5


def test_an_endless_answer_is_not_kept() -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {100 * MOST_BYTES}\r\n\r\n".encode()
    with trickling(head, b" " * 1_000_000) as url:
        heard = get(url, "/ready", seconds=10)
    assert (heard.state, heard.status, heard.document) == ("answered", 200, None)


def test_a_llama_server() -> None:
    with answering({"/health": OK, "/props": (200, PROPS)}) as url:
        found = backend(url, weights=Path("/models/tiny.gguf"))
        assert (found.state, found.model, found.slots, found.context) == ("up", "tiny", 6, 4096)
        assert (found.build, found.is_chosen) == ("b11042-abc", True)
        assert not backend(url, weights=Path("/models/other.gguf")).is_chosen
        assert not backend(url, weights=None).is_chosen


def test_a_llama_server_that_loads() -> None:
    loading = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    with answering({"/health": (503, loading)}) as url:
        assert backend(url, weights=None).state == "loading"


@pytest.mark.parametrize(
    "props",
    [PAGE, (404, {}), (200, []), (200, {"total_slots": "six", "model_path": "x"}), (200, b"[" * 100_000)],
)
def test_no_llama_server(props: tuple[int, Any]) -> None:
    with answering({"/health": OK, "/props": props}) as url:
        assert backend(url, weights=None).state == "foreign"


def test_what_is_not_http_is_another_program() -> None:
    with trickling(b"SSH-2.0-OpenSSH_9.9\r\n", b"\r\n") as url:
        assert api(url, seconds=2).state == "foreign"


def test_what_has_no_tls_is_another_program() -> None:
    with answering({"/ready": (200, READY)}) as url:
        assert api(url.replace("http:", "https:")).state == "foreign"
    assert api(f"https://127.0.0.1:{free_port()}").state == "down"


def test_an_api() -> None:
    with answering({"/ready": (200, READY)}) as url:
        assert api(url) == Api(url, "ready", "", model="tiny", slots=4, context=8192, build="b11042")


def test_an_api_below_a_path() -> None:
    with answering({"/jev/ready": (200, READY)}) as url:
        assert api(f"{url}/jev").state == "ready"
        assert api(url).state == "foreign"


def test_an_api_that_is_not_ready_says_why() -> None:
    with answering({"/ready": (503, READY | {"status": "unavailable", "reason": "not reachable"})}) as url:
        found = api(url)
    assert (found.state, found.says) == ("unavailable", "not reachable")


@pytest.mark.parametrize(
    "ready",
    [
        PAGE,
        (404, {"detail": "Not Found"}),
        (401, {"detail": "no"}),
        (200, {"status": "ok"}),
        (200, {"status": ["ready"], "labels": {}}),
        (200, {"status": {}, "labels": {}}),
        (200, "ready"),
        (500, READY),
        (200, b"\xff\xfe"),
    ],
)
def test_an_api_that_is_not_ours(ready: tuple[int, Any]) -> None:
    with answering({"/ready": ready}) as url:
        found = api(url)
    assert (found.state, found.model) == ("foreign", None)


def test_odd_members_of_ours_are_left_out() -> None:
    odd = READY | {"model": 5, "backend": {"slots": -1, "context": True, "build": ""}}
    with answering({"/ready": (200, odd)}) as url:
        assert api(url) == Api(url, "ready", "")


def test_no_key_goes_out() -> None:
    seen: list[tuple[str, str | None, bytes]] = []
    with answering({"/ready": (200, READY), "/health": OK, "/props": (200, PROPS)}, seen) as url:
        api(url)
        backend(url, weights=None)
    assert {key for _, key, _ in seen} == {None}
    assert [path for path, _, _ in seen] == ["/ready", "/health", "/props"]


def test_places_are_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    gone = f"http://127.0.0.1:{free_port()}"
    with answering({"/": (200, {})}) as there, silent() as a, silent() as b:
        started = time.monotonic()
        found = reachable.look({"there": there, "gone": gone, "a": a, "b": b}, seconds=0.5)
        assert time.monotonic() - started < 0.95
    assert [(host.what, host.reachable) for host in found] == [
        ("there", True),
        ("gone", False),
        ("a", False),
        ("b", False),
    ]
    assert found[0].says == "answers 200"
    assert found[1].says == "Connection refused"
    assert found[2].says == "no complete answer within 0.5 s"


@pytest.mark.parametrize("proxy", ["ftp://u:secret@proxy", "socks5://u:secret@127.0.0.1:1"])
def test_a_proxy_that_is_of_no_use_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    (found,) = reachable.look({"hub": "https://hub.invalid"}, seconds=2)
    assert not found.reachable
    assert found.says
    assert "secret" not in repr(found)


def test_what_is_heard_is_plain_json() -> None:
    with answering({"/x": (200, json.dumps({"a": 1}).encode())}) as url:
        assert get(url, "/x").members == {"a": 1}
        assert get(url, "/y").status == 404
