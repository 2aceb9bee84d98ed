"""The client against scripted replies: what it sends, what it returns, and how each fault is called."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import respx

from jev_local.client import BadReply, Client, ClientError, Refused, TimedOut, Unreachable, UnusableServer
from jev_local.received import Received, ReceivedChoice, ReceivedNoul, ReceivedOther, ReceivedScore

URL = "http://127.0.0.1:8080"
BODY = b'{"state": "s", "questions": {"q": {"type": "noul"}}}'
CHOICE = {"type": "choice", "choice": "a", "confidence": 0.5, "probabilities": {"a": 0.75, "b": 0.25}}
SCORE = {
    "type": "score",
    "score": 1.25,
    "confidence": 0.5,
    "legend": {"1": {"mood": "angry"}, "0": "calm"},
    "probabilities": {"1": 0.75, "0": 0.25},
}


def reply(**answers: object) -> dict[str, Any]:
    return {"model": "tiny", "answers": answers, "usage": {"input_tokens": 12, "output_tokens": 1}}


@pytest.fixture
def api() -> Iterator[respx.Route]:
    with respx.mock(base_url=URL) as router:
        yield router.post("/v1/systemone")


def ask(*, url: str = URL, key: str = "", timeout: float = 5.0, body: bytes = BODY) -> Received:
    with Client(url, key=key, timeout=timeout) as client:
        return client.ask(body)


def test_sends_the_body_as_it_stands_with_the_key(api: respx.Route) -> None:
    api.respond(json=reply(q={"type": "noul", "noul": 0.5}))
    odd = b'{"state": NaN, "state" : 1}'
    ask(key="secret", body=odd)
    request = api.calls.last.request
    assert request.content == odd
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["content-type"] == "application/json"


def test_an_empty_key_is_not_sent(api: respx.Route) -> None:
    api.respond(json=reply())
    ask(key="")
    assert "authorization" not in api.calls.last.request.headers


@pytest.mark.parametrize("url", [URL, f"{URL}/"])
def test_a_trailing_slash_changes_nothing(api: respx.Route, url: str) -> None:
    api.respond(json=reply())
    ask(url=url)
    assert str(api.calls.last.request.url) == f"{URL}/v1/systemone"
    assert Client(url).url == URL


def test_a_reply_is_typed(api: respx.Route) -> None:
    answers = reply(n={"type": "noul", "noul": 1, "x_more": 1}, c=CHOICE, s=SCORE, b={"type": "box", "box": {}})
    api.respond(json=answers, headers={"X-Jev-Local-State-Cache": "off"})
    got = ask()
    assert got.document == answers
    assert (got.model, got.input_tokens, got.output_tokens) == ("tiny", 12, 1)
    assert got.answers == {
        "n": ReceivedNoul(1.0),
        "c": ReceivedChoice("a", 0.5, {"a": 0.75, "b": 0.25}),
        "s": ReceivedScore(1.25, 0.5, {0: 0.25, 1: 0.75}, {0: "calm", 1: {"mood": "angry"}}),
        "b": ReceivedOther({"type": "box", "box": {}}),
    }
    assert got.headers["x-jev-local-state-cache"] == "off"
    assert got.seconds >= 0


def test_levels_come_in_their_own_order(api: respx.Route) -> None:
    levels = {str(level): 0.1 for level in (9, 0, 1, 8, 2, 7, 3, 6, 4, 5)}
    api.respond(json=reply(s={**SCORE, "probabilities": levels}))
    answer = ask().answers["s"]
    assert isinstance(answer, ReceivedScore)
    assert list(answer.probabilities) == list(range(10))


@pytest.mark.parametrize(
    ("told", "warnings"),
    [
        (["low-mass", "b"], ("low-mass", "b")),
        ([], ()),
        (None, ()),
        ("low-mass", ()),
        ([1, "a", None], ("a",)),
        ({}, ()),
    ],
)
def test_warnings_come_with_each_answer_and_make_no_reply_unreadable(
    api: respx.Route, told: object, warnings: tuple[str, ...]
) -> None:
    noul = {"type": "noul", "noul": 0.5}
    api.respond(json=reply(**{kind["type"]: {**kind, "x_warnings": told} for kind in (noul, CHOICE, SCORE)}))
    answers = ask().answers.values()
    assert [answer.warnings for answer in answers if not isinstance(answer, ReceivedOther)] == [warnings] * 3


@pytest.mark.parametrize("usage", [{}, {"input_tokens": None}, {"input_tokens": True}])
def test_token_counts_may_be_missing(api: respx.Route, usage: dict[str, Any]) -> None:
    api.respond(json={**reply(), "usage": usage})
    assert ask().input_tokens is None


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>hello</html>", "not JSON"),
        (b"", "not JSON"),
        (b'{"model": "m"', "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        ("\ufeff{}".encode("utf-16"), "not JSON"),
        (b"[" * 5000 + b"]" * 5000, "nested more than 128 levels deep"),
        (b'{"x":' * 129 + b"1" + b"}" * 129, "nested more than 128 levels deep"),
        (b'{"noul": NaN}', "not JSON"),
        (b"[]", "the reply is not an object"),
        (b"{}", "usage is not an object"),
        ({**reply(), "answers": []}, "answers is not an object"),
        ({**reply(), "model": None}, "model is not a string"),
        (reply(q=1), "answers.q is not an object"),
        (reply(q={"noul": 0.5}), "answers.q.type is not a string"),
        (reply(q={"type": "noul", "noul": "0.5"}), "answers.q.noul is not a number"),
        (reply(q={"type": "noul", "noul": True}), "answers.q.noul is not a number"),
        (reply(q={"type": "noul", "noul": 10**400}), "answers.q.noul is not a number"),
        (reply(q={**CHOICE, "probabilities": [0.5]}), "answers.q.probabilities is not an object"),
        (reply(q={**CHOICE, "probabilities": {"a": None}}), "answers.q.probabilities.a is not a number"),
        (reply(q={**CHOICE, "confidence": None}), "answers.q.confidence is not a number"),
        (reply(q={**SCORE, "legend": None}), "answers.q.legend is not an object"),
        (reply(q={**SCORE, "probabilities": {"low": 1}}), "has a key that is not a level number"),
        (reply(q={**SCORE, "probabilities": {"9" * 5000: 1}}), "has a key that is not a level number"),
        (reply(q={**SCORE, "probabilities": {"0": 0.5, "00": 0.5}}), "has a key that is not a level number"),
    ],
)
def test_a_reply_that_breaks_the_contract(api: respx.Route, body: bytes | dict[str, Any], why: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    api.respond(content=content, content_type="text/html")
    with pytest.raises(BadReply, match=why):
        ask()


def test_a_reply_that_does_not_decompress(api: respx.Route) -> None:
    api.respond(stream=httpx.ByteStream(b"never was gzip"), headers={"content-encoding": "gzip"})
    with pytest.raises(BadReply, match="decompressed"):
        ask()


@pytest.mark.parametrize(
    ("body", "reasons"),
    [
        ({"detail": "Too many choices."}, ("Too many choices.",)),
        ({"detail": {"error_type": "api_usage_error", "message": "Unknown model: x"}}, ("Unknown model: x",)),
        ({"detail": {"error_type": "max_tokens_exceeded"}}, ("max_tokens_exceeded",)),
        (
            {
                "detail": [
                    {"type": "missing", "loc": ["body", "state"], "msg": "Field required"},
                    {"type": "too_long", "loc": ["body", "questions", "a", "criteria", 3], "msg": "at most 255"},
                    {"type": "json_invalid", "loc": ["body"], "msg": "JSON decode error"},
                    "and a string",
                ]
            },
            ("state: Field required", "questions.a.criteria.3: at most 255", "JSON decode error", "and a string"),
        ),
        ({"error": {"message": "Loading model", "type": "unavailable_error"}}, ("Loading model",)),
        ({"error": "no"}, ("no",)),
        ({"message": "no"}, ("no",)),
        ({"detail": []}, ("Bad Request",)),
        ({"detail": [json.loads("[" * 500 + '"x"' + "]" * 500), "no"]}, ("no",)),
        ({"detail": {"message": "  "}}, ("Bad Request",)),
        ({"detail": None}, ("Bad Request",)),
        (["what"], ("Bad Request",)),
    ],
)
def test_a_refusal_says_what_the_server_said(api: respx.Route, body: object, reasons: tuple[str, ...]) -> None:
    api.respond(400, json=body, headers={"X-TypeSafe-Request-Id": "req_1"})
    with pytest.raises(Refused) as caught:
        ask()
    assert (caught.value.status, caught.value.reasons) == (400, reasons)
    assert caught.value.headers["x-typesafe-request-id"] == "req_1"


@pytest.mark.parametrize(("status", "reason"), [(502, "Bad Gateway"), (307, "Temporary Redirect"), (599, "no reason")])
def test_a_page_from_something_between(api: respx.Route, status: int, reason: str) -> None:
    api.respond(status, html="<h1>Sorry</h1>", headers={"location": "http://elsewhere.invalid/"})
    with pytest.raises(Refused, match=reason):
        ask()


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (
            httpx.ConnectError("[Errno 111] Connection refused"),
            Unreachable,
            f"No answer from {URL}: Connection refused.",
        ),
        (httpx.RemoteProtocolError("Server disconnected."), Unreachable, f"No answer from {URL}: Server disconnected."),
        (httpx.ReadError(""), Unreachable, f"No answer from {URL}: ReadError."),
        (httpx.ConnectTimeout("timed out"), TimedOut, f"No complete answer from {URL} within 5 s."),
        (httpx.ReadTimeout("timed out"), TimedOut, f"No complete answer from {URL} within 5 s."),
    ],
)
def test_no_answer(api: respx.Route, fault: Exception, kind: type[ClientError], message: str) -> None:
    api.mock(side_effect=fault)
    with pytest.raises(ClientError) as caught:
        ask()
    assert type(caught.value) is kind
    assert caught.value.message == message


def test_a_server_that_trickles_is_not_waited_for_beyond_the_timeout() -> None:
    gone = threading.Event()

    def trickle(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            try:
                while not gone.wait(0.02):
                    connection.sendall(b" ")
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=trickle, args=(listener,))
        thread.start()
        try:
            with pytest.raises(TimedOut):
                ask(url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.3)
        finally:
            gone.set()
            thread.join()


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8080", "ftp://localhost", "http://", "http://a:b@localhost", "http://localhost/?q", "http://[::"],
)
def test_a_url_that_names_no_server(url: str) -> None:
    with pytest.raises(UnusableServer):
        Client(url)


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "鍵"])
def test_a_key_that_fits_in_no_header(key: str) -> None:
    with pytest.raises(UnusableServer):
        Client(URL, key=key)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A proxy that the environment names for everything, and that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{listener.getsockname()[1]}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield listener


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "localhost", "[::1]"])
def test_loopback_is_not_asked_through_a_proxy(host: str, proxy: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Unreachable):
        ask(url=f"http://{host}:{port}")
    with pytest.raises(BlockingIOError):
        proxy.accept()


def test_other_servers_are_asked_through_the_proxy_of_the_environment(proxy: socket.socket) -> None:
    with pytest.raises(TimedOut):
        ask(url="http://api.invalid", timeout=0.3)
    proxy.accept()[0].close()
