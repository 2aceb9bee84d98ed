"""The client against scripted replies: what it sends, what it returns, and how each fault is called."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import respx

from doctor_servers import answering, silent, trickling
from jev_local.client import MOST_VALUES, BadReply, Client, ClientError, Refused, TimedOut, Unreachable, UnusableServer
from jev_local.exchange import ask_once
from jev_local.line import NoReply
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


# One deadline, one cap

NOBODY = "http://api.invalid"
WHOLE = json.dumps(reply(q={"type": "noul", "noul": 0.5})).encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(WHOLE), WHOLE)


def times_out(url: str, *, body: bytes = BODY) -> bool:
    """Whether half a second is all it takes, give or take what a busy machine adds."""
    started = time.monotonic()
    with pytest.raises(TimedOut, match=r"within 0.5 s"):
        ask(url=url, timeout=0.5, body=body)
    return 0.4 < time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"a"),
        (b"HTTP/1.1 200 OK\r\n", b"X-More: a\r\n"),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1", b"0"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
    ],
)
def test_no_server_keeps_a_caller_beyond_the_timeout(first: bytes, drop: bytes) -> None:
    with trickling(first, drop) as url:
        assert times_out(url)


@pytest.mark.parametrize("body", [BODY, bytes(32 * 2**20)])
def test_a_server_that_says_nothing_is_not_waited_for(body: bytes) -> None:
    with silent() as url:
        assert times_out(url, body=body)
        assert times_out(url.replace("http:", "https:"), body=body)


def test_a_name_that_is_looked_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    found = threading.Event()

    def look_up(*_: object, **__: object) -> list[Any]:
        found.wait(60)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        assert times_out(NOBODY)
    finally:
        found.set()


def test_what_was_given_up_is_not_asked_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()
    real = socket.getaddrinfo

    def look_up(*_: object, **__: object) -> list[Any]:
        given_up.wait(60)
        return list(real("127.0.0.1", port, type=socket.SOCK_STREAM))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        port = listener.getsockname()[1]
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        try:
            assert times_out(NOBODY)
        finally:
            given_up.set()
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(30)
            assert connection.recv(65536) == b""


@contextmanager
def answering_from_the_second_on() -> Iterator[tuple[str, list[bytes], threading.Event]]:
    """Keeps quiet about the first connection and answers all on the second: what each was sent, and whether the
    caller has hung up the first."""
    sent: list[bytes] = []
    gone = threading.Event()

    def serve(listener: socket.socket) -> None:
        first, _ = listener.accept()
        with first:
            while first.recv(65536):
                pass
            gone.set()
        second, _ = listener.accept()
        with second:
            while request := second.recv(65536):
                sent.append(request)
                if request.endswith(BODY):
                    second.sendall(ANSWER)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", sent, gone
        thread.join()


def test_a_client_hangs_up_at_the_timeout_and_asks_on_over_one_connection() -> None:
    with answering_from_the_second_on() as (url, sent, gone):
        with Client(url, timeout=0.3) as client:
            with pytest.raises(TimedOut):
                client.ask(BODY)
            assert gone.wait(10)
            client._timeout = 30
            for _ in range(3):
                assert client.ask(BODY).answers == {"q": ReceivedNoul(0.5)}
        heads = b"".join(sent).lower()
    assert heads.count(b"post /v1/systemone") == heads.count(b"accept-encoding: identity\r\n") == 3


def test_several_may_ask_at_once_and_one_that_is_late_disturbs_nobody(api: respx.Route) -> None:
    last = threading.Event()

    def respond(request: httpx.Request) -> httpx.Response:
        if request.content != BODY:
            last.wait(30)
        return httpx.Response(200, json=reply())

    api.mock(side_effect=respond)
    with Client(URL, timeout=0.3) as client:
        late = threading.Thread(target=_is_late, args=(client,))
        late.start()
        while late.is_alive():
            assert client.ask(BODY).answers == {}
        last.set()


def _is_late(client: Client) -> None:
    with pytest.raises(TimedOut):
        client.ask(b"{}")


@pytest.mark.parametrize("more", [0, 1])
def test_a_reply_has_a_most_of_bytes(more: int, api: respx.Route, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jev_local.client.MOST_BYTES", len(WHOLE))
    api.respond(content=WHOLE + b" " * more)
    if not more:
        assert ask().answers == {"q": ReceivedNoul(0.5)}
        return
    with pytest.raises(BadReply, match=f"is no System One reply: it is longer than {len(WHOLE)} bytes"):
        ask()


@pytest.mark.parametrize("status", [200, 500])
def test_a_reply_without_an_end_is_not_read_to_the_end(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jev_local.client.MOST_BYTES", 100_000)
    first = b"HTTP/1.1 %d Hm\r\n\r\n" % status
    with trickling(first, b" " * 60_000) as url, pytest.raises(BadReply if status == 200 else Refused):
        ask(url=url, timeout=60)


@pytest.mark.parametrize("coding", ["gzip", "gzip, gzip", "GZIP", "br", "identity, deflate", "never heard of"])
def test_what_came_compressed_is_not_unpacked(coding: str) -> None:
    bomb = gzip.compress(gzip.compress(bytes(10_000_000)))
    head = f"HTTP/1.1 %d Hm\r\nContent-Encoding: {coding}\r\nContent-Length: {len(bomb)}\r\n\r\n"
    why = "no System One reply: it came compressed, which was not asked for"
    with trickling((head % 200).encode() + bomb, b"") as url, pytest.raises(BadReply, match=why):
        ask(url=url)
    with trickling((head % 502).encode() + bomb, b"") as url, pytest.raises(Refused, match="502: Hm"):
        ask(url=url)


def test_identity_is_no_compression() -> None:
    with trickling(ANSWER.replace(b"Content-Length", b"Content-Encoding: identity\r\nContent-Length"), b"") as url:
        assert ask(url=url).answers == {"q": ReceivedNoul(0.5)}


def test_many_empty_values_are_not_read(api: respx.Route) -> None:
    api.respond(content=b"[" + b"{}," * (MOST_VALUES // 2) + b"{}]")
    with pytest.raises(BadReply, match="more than 2,000,000 values"):
        ask()
    api.respond(400, content=b"[" * MOST_VALUES + b",")
    with pytest.raises(Refused, match="Bad Request"):
        ask()


@pytest.mark.parametrize("location", ["http://a..b/", "http://[", "//:x", f"http://{'a' * 70}/", "\x7f"])
def test_a_redirect_is_refused_wherever_it_leads(location: str, api: respx.Route) -> None:
    api.respond(307, headers={"location": location})
    with pytest.raises(Refused, match="Temporary Redirect"):
        ask()


# Oddities of names and of the environment


@pytest.mark.parametrize(
    "url",
    [
        "http://a..b",
        f"http://{'a' * 64}.example",
        "http://.example",
        "http://xn--",
        "http://\udce9",
        "http://[::1",
        "http://a:65536",
        "http://a:0",
        "http://a:٣x",
    ],
)
def test_a_host_or_port_that_no_machine_can_have(url: str) -> None:
    with pytest.raises(UnusableServer):
        Client(url)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir"):
        for spelled in (name, name.upper()):
            monkeypatch.delenv(spelled, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("HTTP_PROXY", "foo://user:secret@x", "look at HTTP_PROXY"),
        ("all_proxy", "http://user:secret@x:port", "look at all_proxy"),
        ("HTTP_PROXY", "socks5://user:secret@127.0.0.1:1", "look at HTTP_PROXY"),
        ("SSL_CERT_FILE", "/nope/secret", "No such file or directory; look at SSL_CERT_FILE"),
        ("SSL_CERT_FILE", "/dev/null", "look at SSL_CERT_FILE"),
    ],
)
def test_an_environment_that_cannot_be_used_is_said_to_be_one(
    name: str, value: str, remedy: str, plain: pytest.MonkeyPatch
) -> None:
    plain.setenv(name, value)
    with pytest.raises(UnusableServer, match=remedy) as caught:
        Client(NOBODY)
    assert "secret" not in caught.value.message
    assert Client(URL).url == URL  # what the environment has is for other machines


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_proxy_with_a_name_that_cannot_be_looked_up(host: str, plain: pytest.MonkeyPatch) -> None:
    plain.setenv("HTTP_PROXY", f"http://{host}:1")
    with pytest.raises(UnusableServer, match="or its proxy's"):
        ask(url=NOBODY)


@pytest.mark.parametrize(
    ("exceptions", "is_used"),
    [
        ("localhost,fe80::/10", True),
        ("fd00::/8,[::1]", True),
        ("[", True),
        (",, ,", True),
        ("fe80::/10,api.invalid", False),
        (".invalid", False),
        ("invalid", False),
        ("api.invalid:80", True),
        ("api.invalid:8080", False),
        ("pi.invalid", True),
        ("a, *", False),
    ],
)
def test_whom_the_environment_excepts_from_its_proxy(
    exceptions: str, is_used: bool, proxy: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", exceptions)
    monkeypatch.setattr(socket, "getaddrinfo", _only_addresses(socket.getaddrinfo))
    with pytest.raises(TimedOut if is_used else Unreachable):
        ask(url=f"{NOBODY}:8080", timeout=0.3)
    if is_used:
        proxy.accept()[0].close()
    else:
        with pytest.raises(BlockingIOError):
            proxy.accept()


def _only_addresses(real: Any) -> Any:
    def look_up(host: str, *more: Any, **named: Any) -> Any:
        if host != "127.0.0.1":
            raise socket.gaierror(-2, "Name or service not known")
        return real(host, *more, **named)

    return look_up


# A single question, for those who only look


def test_a_single_question() -> None:
    with answering({"/ready?a=1": (200, {"a": 1}), "/long": (200, b"x" * 101)}) as url:
        whole = ask_once("GET", f"{url}/ready?a=1", seconds=30, most=100)
        long = ask_once("GET", f"{url}/long", seconds=30, most=100)
        head = ask_once("HEAD", f"{url}/long", seconds=30, most=100)
    assert (whole.status, whole.content, whole.trouble) == (200, b'{"a": 1}', "")
    assert (long.status, long.content, long.trouble) == (200, b"", "it is longer than 100 bytes")
    assert (head.status, head.content, head.headers["content-length"]) == (200, b"", "101")


def fault(url: str) -> str:
    with pytest.raises(NoReply) as caught:
        ask_once("GET", url, seconds=0.3, most=100)
    assert caught.value.why
    return caught.value.fault


def test_why_a_single_question_got_no_reply(plain: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert fault(f"http://127.0.0.1:{port}/ready") == "refused"
    assert fault(f"http://127.0.0.1:{port + 70000}") == "unusable"
    assert fault("http://a..b/") == "unusable"
    assert fault("http://[::1/") == "unusable"
    with silent() as url:
        assert fault(url) == "unfinished"
    with trickling(b"", b"no HTTP\r\n\r\n") as url:
        assert fault(url) == "broken"
    with trickling(b"no TLS\r\n", b"") as url:
        assert fault(url.replace("http:", "https:")) == "broken"
    plain.setenv("HTTP_PROXY", "foo://x")
    assert fault(NOBODY) == "unusable"


def test_no_connection_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found.wait(60) and [])
    try:
        assert fault(NOBODY) == "unconnected"
    finally:
        found.set()
