"""`systemone explain` from its arguments to its exit code, against a stand-in server on a real socket."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from jev_local import cli_explain
from jev_local.cli import main
from jev_local.client import BadReply, Client, Refused
from jev_local.core.explain import WORDS
from jev_local.explained import parse
from jev_local.web.explain_doc import EXAMPLE_REPLY

A = '{"state": "2026-11-29",\n "questions": {"q": {"type": "noul"}}}'
B = '{"messages": [{"role": "user", "content": "Why?"}]} '
WHOLE = {
    **EXAMPLE_REPLY,
    "agree": 29,
    "whole": True,
    "place": None,
    "moves": [],
    "checks": [
        {"check": "text", "outcome": "same", "says": "Both begin with the same 29 tokens."},
        {"check": "entry", "outcome": "evicted", "says": "It had to make room."},
        {"check": "cut-back", "outcome": "possible", "says": "It can be cut back."},
    ],
    "advice": "Give it room.",
}

Run = Callable[..., tuple[int, str, str]]


@dataclass
class Api:
    url: str = ""
    status: int = 200
    document: Any = field(default_factory=lambda: deepcopy(EXAMPLE_REPLY))
    bodies: list[bytes] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@pytest.fixture
def api() -> Iterator[Api]:
    script = Api()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/cache/explain"
            script.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            script.keys.append(self.headers["Authorization"])
            self.send_response(script.status)
            self.end_headers()
            self.wfile.write(json.dumps(script.document).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield script
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    for name, text in (("a.json", A), ("b.json", B)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return str(tmp_path / "a.json"), str(tmp_path / "b.json")


@pytest.fixture
def run(api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("JEV_API_KEY", raising=False)

    def run(*argv: str) -> tuple[int, str, str]:
        code = main(["explain", "--url", api.url, *argv])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_both_go_out_as_they_were_written_with_the_key(run: Run, api: Api, files: tuple[str, str]) -> None:
    code, _, err = run(*files, "--key", "secret")
    assert (code, err) == (0, "")
    assert api.bodies == [b'{"a":' + A.encode() + b',"b":' + B.encode() + b"}"]
    assert api.keys == ["Bearer secret"]


def test_where_they_part_is_told_in_lines(run: Run, files: tuple[str, str]) -> None:
    code, out, _ = run(*files)
    assert code == 0
    assert out == (
        "Agree     21 tokens, of 58 (a) and 58 (b)\n"
        "Reusable  29 (a) and 29 (b), before the questions\n"
        "Parted    by a date or time\n"
        "  behind  <|im_start|>user\\nText:\\nDate: 2026-11-\n"
        "  a       29\\nThe parcel is late.\\nQuestion: Is it late?\n"
        "  b       30\\nThe parcel is late.\\nQuestion: Is it late?\n"
        "If moved  47 tokens would agree without a date or time there (2026-11-29 / 2026-11-30)\n"
        "Checks    text  differs  What is really sent parts after 21 of 29 reusable tokens.\n"
        "Advice    If the date or time changes from request to request, put it behind the text that stays the same: "
        "47 tokens would agree then, instead of 21.\n"
    )


def test_what_was_looked_at_stands_in_columns(run: Run, api: Api, files: tuple[str, str]) -> None:
    api.document = WHOLE
    code, out, _ = run(*files)
    assert code == 0
    assert out.splitlines()[2:] == [
        "Parted    nowhere: the prompts are the same",
        "Checks    text      same      Both begin with the same 29 tokens.",
        "          entry     evicted   It had to make room.",
        "          cut-back  possible  It can be cut back.",
        "Advice    Give it room.",
    ]


@pytest.mark.parametrize(
    ("kind", "told"), [("key-order", "with the order of JSON members the same"), ("id", "without a UUID")]
)
def test_a_move_says_what_would_be_done(kind: str, told: str) -> None:
    move = {"kind": kind, "a": "x", "b": "y", "agree": 1234}
    found = parse(json.dumps({**EXAMPLE_REPLY, "moves": [move]}).encode())
    assert f"1,234 tokens would agree {told}" in cli_explain.text(found, "utf-8")


def test_json_is_what_the_server_said(run: Run, files: tuple[str, str]) -> None:
    code, out, _ = run(*files, "--format", "json")
    assert (code, json.loads(out)) == (0, EXAMPLE_REPLY)


def test_nothing_that_a_terminal_obeys_is_printed(run: Run, api: Api, files: tuple[str, str]) -> None:
    api.document["place"] |= {"before": "\x1b[31m a  b", "a": " \t\u3000x", "b": "\u202ex  "}
    api.document["advice"] = "\x1b]0;owned\x07"
    api.document["checks"][0] |= {"says": "\x1b[2J", "outcome": "\x9b"}
    _, out, _ = run(*files)
    assert "\\x1b[31m a··b" in out
    assert "·\\t\\u3000x" in out
    assert "\\u202ex··" in out
    assert not set("\x1b\x07\x9b\u202e\t") & set(out)


def test_a_space_shows_in_ascii_too() -> None:
    assert cli_explain.shown("a  b\n", "ascii") == "a__b\\n"
    assert cli_explain.shown("日", "ascii") == "?"


def test_one_of_them_may_come_from_a_pipe(run: Run, api: Api, files: tuple[str, str], monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(B.encode())))
    assert run(files[0], "-")[0] == 0
    assert api.bodies[0].endswith(B.encode() + b"}")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot read"),
        (b"{", "is not JSON"),
        (b"\xff", "is not UTF-8"),
        (b'{"state": 1}', "is no request: it has none of questions, messages, prompt"),
        (b"[1]", "is no request"),
    ],
)
def test_a_file_that_is_no_request_is_bad_usage(
    content: bytes | None, complaint: str, run: Run, api: Api, files: tuple[str, str]
) -> None:
    bad = Path(files[1]).with_name("bad.json")
    if content is not None:
        bad.write_bytes(content)
    code, out, err = run(files[0], str(bad))
    assert (code, out, api.bodies) == (2, "", [])
    assert complaint in err
    assert str(bad) in err


def test_bad_usage_is_told_without_asking(run: Run, api: Api, files: tuple[str, str]) -> None:
    assert run("-", "-")[0] == 2
    assert run(files[0])[0] == 2
    assert run(*files, "--timeout", "0")[0] == 2
    assert api.bodies == []


def test_what_the_server_refuses_and_what_it_is_not(run: Run, api: Api, files: tuple[str, str]) -> None:
    api.status, api.document = 422, {"detail": [{"loc": ["body", "b", "questions"], "msg": "is required"}]}
    code, _, err = run(*files)
    assert code == 1
    assert "b.questions: is required" in err
    api.status, api.document = 200, {"agree": 1}
    assert run(*files)[0] == 1
    assert main(["explain", *files, "--url", "http://127.0.0.1:1"]) == 3


def test_the_client_names_each_fault() -> None:
    url = "http://127.0.0.1:8080"
    with respx.mock(base_url=url) as router, Client(url) as client:
        route = router.post("/v1/cache/explain")
        route.respond(json=EXAMPLE_REPLY)
        found = client.explain(A.encode(), B.encode())
        assert (found.agree, found.a.reusable, found.moves[0].agree) == (21, 29, 47)
        assert json.loads(route.calls.last.request.content) == {"a": json.loads(A), "b": json.loads(B)}
        route.respond(404, json={"detail": "Not Found"})
        with pytest.raises(Refused, match="Not Found"):
            client.explain(b"{}", b"{}")
        route.mock(return_value=httpx.Response(200, text="<html>"))
        with pytest.raises(BadReply, match="no explanation"):
            client.explain(b"{}", b"{}")


@pytest.mark.parametrize(
    "change",
    [{"agree": "21"}, {"agree": True}, {"a": None}, {"checks": [{}]}, {"moves": 1}, {"place": {"kind": 1}}],
)
def test_a_reply_that_breaks_the_contract_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="missing or is not"):
        parse(json.dumps({**EXAMPLE_REPLY, **change}).encode())


def test_a_newer_server_may_say_more() -> None:
    place = {**EXAMPLE_REPLY["place"], "kind": "weather", "more": 1}
    found = parse(json.dumps({**EXAMPLE_REPLY, "place": place, "more": {}}).encode())
    assert "by weather" in cli_explain.text(found, "utf-8")


def test_every_kind_is_called_as_the_server_calls_it() -> None:
    assert cli_explain.KINDS == WORDS
