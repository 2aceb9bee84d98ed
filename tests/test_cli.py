"""The program from its arguments to its exit code, against a stand-in server on a real socket."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from doctor_servers import DECIDED, READY, answering, silent, trickling
from jev_local import __version__
from jev_local.cli import main
from jev_local.inputs import example
from programs import free_port

REPLY = {
    "model": "tiny-lfm2",
    "answers": {"refund": {"type": "noul", "noul": 0.75}},
    "usage": {"input_tokens": 40, "output_tokens": 1},
}
PROGRAM = (sys.executable, "-c", "import sys; from jev_local.cli import main; sys.exit(main())")
# The first terminal that the leader of a session opens is the one whose Ctrl-C it gets.
ON_ITS_TERMINAL = (*PROGRAM[:2], "import os; os.close(os.open(os.ttyname(0), os.O_RDWR)); " + PROGRAM[2])

Run = Callable[..., tuple[int, str, str]]


@dataclass
class Api:
    """What the stand-in answers next, and what it was asked. Cleared `open_`: it keeps its callers waiting."""

    url: str = ""
    status: int = 200
    content: bytes = json.dumps(REPLY).encode()
    headers: dict[str, str] = field(default_factory=lambda: {"X-Jev-Local-State-Cache": "off-short"})
    bodies: list[bytes] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    asked: threading.Event = field(default_factory=threading.Event)
    open_: threading.Event = field(default_factory=threading.Event)

    def says(self, document: object, status: int = 200, **headers: str) -> None:
        self.content, self.status = json.dumps(document).encode(), status
        self.headers |= {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.fixture
def api() -> Iterator[Api]:
    script = Api()
    script.open_.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/systemone"
            script.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            script.keys.append(self.headers["Authorization"])
            script.asked.set()
            script.open_.wait(60)
            try:
                self.send_response(script.status)
                for name, value in script.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(script.content)
            except OSError:
                pass  # the caller has gone

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield script
        finally:
            script.open_.set()
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JEV_API_KEY", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*argv: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        for name, value in {"COLUMNS": "120", **(env or {})}.items():
            monkeypatch.setenv(name, value)
        command = ["ask"] if argv[:1] == ("ask",) else []
        code = main([*command, "--url", api.url, *argv[len(command) :]])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def stdin_of(content: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content))


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONIOENCODING": "utf-8", **changes}


# What is asked


@pytest.mark.parametrize("argv", [(), ("ask",)])
def test_without_options_it_asks_the_packaged_example(argv: tuple[str, ...], run: Run, api: Api) -> None:
    code, out, err = run(*argv)
    assert (code, err) == (0, "")
    assert api.bodies == [example().encode()]
    assert "お客様は返金を求めていますか。" in out
    assert "75.0%" in out


def test_an_input_is_sent_byte_for_byte(run: Run, api: Api, tmp_path: Path) -> None:
    # Duplicate keys, NaN, long integers: the server's to judge.
    content = b' {"state":"a", "state" : NaN,\r\n"n": ' + b"9" * 5000 + b', "questions": {"q": 1, "q": 2}} \n'
    path = tmp_path / "request.json"
    path.write_bytes(content)
    assert run("--input", str(path))[0] == 0
    assert api.bodies == [content]


def test_an_input_may_come_in_a_pipe(run: Run, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", stdin_of(b'{"state": "s"}'))
    assert run("--input", "-")[0] == 0
    assert api.bodies == [b'{"state": "s"}']


def test_a_byte_order_mark_is_not_sent(run: Run, api: Api, tmp_path: Path) -> None:
    (tmp_path / "bom.json").write_bytes(b'\xef\xbb\xbf{"state": "s"}')
    assert run("--input", str(tmp_path / "bom.json"))[0] == 0
    assert api.bodies == [b'{"state": "s"}']


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"state": "old"}', '{"state": "新しい"}'),
        ('{ "n": 1e400 ,"state":{"a":[1,"}"]} , "x": [] }', '{ "n": 1e400 ,"state":"新しい" , "x": [] }'),
        ('{"q": {"state": 1}, "q": NaN}', '{"state": "新しい", "q": {"state": 1}, "q": NaN}'),
        ('{"state": 1, "st\\u0061te": [2]}', '{"state": "新しい", "st\\u0061te": "新しい"}'),
        (" {} ", ' {"state": "新しい"} '),
    ],
)
def test_a_state_takes_the_place_of_the_inputs_and_nothing_else_moves(
    before: str, after: str, run: Run, api: Api, tmp_path: Path
) -> None:
    (tmp_path / "request.json").write_text(before)
    assert run("--input", str(tmp_path / "request.json"), "--state", "新しい")[0] == 0
    assert api.bodies == [after.encode()]


@pytest.mark.parametrize(
    ("content", "state"),
    [
        (b'{"a": [1.50]}\n', {"a": [1.5]}),
        (b"[1, 2]", [1, 2]),
        (b'"a JSON string"', '"a JSON string"'),
        (b"42\n", "42"),
        (b"two\nlines\r\n", "two\nlines"),
        (b"one end is the file's\n\n", "one end is the file's\n"),
        (b"{not JSON", "{not JSON"),
        ('\ufeff"引用"と\\'.encode(), '"引用"と\\'),
        (b"[" * 3000, "[" * 3000),
        (b"", ""),
    ],
)
def test_a_state_file_is_json_if_it_holds_an_object_or_array(
    content: bytes, state: object, run: Run, api: Api, tmp_path: Path
) -> None:
    (tmp_path / "state").write_bytes(content)
    assert run("--state", f"@{tmp_path / 'state'}")[0] == 0
    assert json.loads(api.bodies[0])["state"] == state


@pytest.mark.parametrize(("argument", "state"), [("@@home", "@home"), ('{"a": 1}', '{"a": 1}'), ("", ""), ("@-", "in")])
def test_a_state_on_the_command_line_is_text(
    argument: str, state: str, run: Run, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", stdin_of(b"in\n"))
    assert run("--state", argument)[0] == 0
    assert json.loads(api.bodies[0])["state"] == state


PNG, JPEG = b"\x89PNG\r\n\x1a\n and more", b"\xff\xd8\xff and more"


def url_of(content: bytes) -> str:
    return f"data:image/{'png' if content[:1] == PNG[:1] else 'jpeg'};base64,{b64encode(content).decode()}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"state": NaN }', '{"images": ["%s", "%s"], "state": NaN }'),
        ('{"images" : ["old"] ,"state":1}', '{"images" : ["%s", "%s"] ,"state":1}'),
        ("{}", '{"images": ["%s", "%s"]}'),
    ],
)
def test_images_are_sent_as_data_urls_in_their_order(
    before: str, after: str, run: Run, api: Api, tmp_path: Path
) -> None:
    for name, content in {"request.json": before.encode(), "a.png": PNG, "photo": JPEG}.items():
        (tmp_path / name).write_bytes(content)
    request, photo, png = (str(tmp_path / name) for name in ("request.json", "photo", "a.png"))
    assert run("--input", request, "--image", photo, "--image", png)[0] == 0
    assert api.bodies == [(after % (url_of(JPEG), url_of(PNG))).encode()]


def test_a_state_and_an_image_may_both_be_given(
    run: Run, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", stdin_of(PNG))
    assert run("--state", "new", "--image", "-")[0] == 0
    sent = json.loads(api.bodies[0])
    assert (sent["state"], sent["images"]) == ("new", [url_of(PNG)])
    assert sent["questions"] == json.loads(example())["questions"]


@pytest.mark.parametrize("more", [0, 1])
def test_an_image_has_four_mebibytes_at_most(more: int, run: Run, api: Api, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG + bytes(4 * 2**20 - len(PNG) + more))
    code, _, err = run("--image", str(tmp_path / "a.png"))
    assert (code, len(api.bodies)) == ((2, 0) if more else (0, 1))
    assert ("a.png has more than 4 MiB: scale it down" in err) == bool(more)


@pytest.mark.parametrize(
    ("env", "argv", "sent"),
    [
        ({}, (), "Bearer local-dev"),
        ({"JEV_API_KEY": "from-env"}, (), "Bearer from-env"),
        ({"JEV_API_KEY": "from-env"}, ("--key", "given"), "Bearer given"),
        ({"JEV_API_KEY": ""}, (), None),
        ({}, ("--key", ""), None),
    ],
)
def test_the_key(env: dict[str, str], argv: tuple[str, ...], sent: str | None, run: Run, api: Api) -> None:
    assert run(*argv, env=env)[0] == 0
    assert api.keys == [sent]


# What is shown and kept


def test_json_is_the_reply_and_diagnostics_stay_out_of_it(run: Run) -> None:
    code, out, err = run("--format", "json", "--diagnostics")
    assert code == 0
    assert json.loads(out) == REPLY
    assert err == "X-Jev-Local-State-Cache: off-short\n"


def test_diagnostics_come_with_the_table(run: Run) -> None:
    code, out, err = run("--diagnostics")
    assert (code, err) == (0, "")
    assert "X-Jev-Local-State-Cache  off-short" in out


def test_the_output_file_is_the_official_json(run: Run, api: Api, tmp_path: Path) -> None:
    document = {**REPLY, "x_note": "引用 \u202e"}
    api.says(document)
    path = tmp_path / "reply.json"
    path.write_text("old")
    code, out, _ = run("--output", str(path))
    assert code == 0
    assert "Question" in out  # the table is still what is printed
    assert json.loads(path.read_bytes()) == document
    assert "引用" in path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_output_files_mode_is_the_umasks(umask: int, mode: int, run: Run, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        assert run("--output", str(tmp_path / "reply.json"))[0] == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "reply.json").stat().st_mode) == mode


def test_a_link_keeps_pointing_where_it_did(run: Run, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    assert run("--output", str(tmp_path / "link"))[0] == 0
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "target").read_bytes()) == REPLY


def test_a_device_is_written_to_and_not_replaced(run: Run) -> None:
    assert run("--output", "/dev/null")[0] == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_refusal_leaves_the_output_file_alone(run: Run, api: Api, tmp_path: Path) -> None:
    api.says({"detail": "no"}, status=400)
    (tmp_path / "reply.json").write_text("old")
    assert run("--output", str(tmp_path / "reply.json"))[0] == 1
    assert (tmp_path / "reply.json").read_text() == "old"


def test_answers_that_cannot_be_kept_are_still_shown(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    (tmp_path / "reply.json").write_text("old")
    code, out, err = run("--output", str(tmp_path / "reply.json"))
    assert code == 2
    assert "75.0%" in out
    assert "No space left on device" in err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("reply.json", "old")]


# Exit code 1: the server said no


@pytest.mark.parametrize(
    ("status", "detail", "err"),
    [
        (400, "Too many choices.", "systemone: the server said no (400):\n  Too many choices.\n"),
        (
            401,
            {"error_type": "authentication_error", "message": "Invalid API key."},
            "systemone: the server said no (401):\n  Invalid API key.\n"
            "  Set the server's key with --key or JEV_API_KEY.\n",
        ),
        (
            422,
            [
                {"type": "missing", "loc": ["body", "state"], "msg": "Field required"},
                {"type": "too_long", "loc": ["body", "questions", "\x1b[2J", "criteria"], "msg": "at most 255"},
            ],
            "systemone: the server said no (422):\n  state: Field required\n"
            "  questions.\\x1b[2J.criteria: at most 255\n",
        ),
    ],
)
def test_a_refusal_is_told_on_standard_error(status: int, detail: object, err: str, run: Run, api: Api) -> None:
    api.says({"detail": detail}, status=status)
    assert run() == (1, "", err)


def test_a_refusal_with_very_many_reasons_is_cut(run: Run, api: Api) -> None:
    api.says({"detail": [{"loc": ["body", n], "msg": "bad"} for n in range(1000)]}, status=422)
    code, _, err = run()
    assert code == 1
    assert err.splitlines()[-2:] == ["  19: bad", "  ... and 980 more"]


@pytest.mark.parametrize("hint", ["2", "Fri, 20 Nov 2026 10:00:00 GMT"])
def test_a_busy_server_says_when_to_come_back(hint: str, run: Run, api: Api) -> None:
    api.says({"detail": {"error_type": "system_overloaded"}}, status=529, Retry_After=hint)
    code, _, err = run("--diagnostics")
    assert code == 1
    assert "system_overloaded" in err
    assert f"after {hint}" in err
    assert err.endswith("X-Jev-Local-State-Cache: off-short\n")


@pytest.mark.parametrize("content", [b"<html></html>", b"", b"{}"])
@pytest.mark.parametrize("options", [(), ("--format", "json")])
def test_a_200_that_is_no_answer(content: bytes, options: tuple[str, ...], run: Run, api: Api) -> None:
    api.content = content
    code, out, err = run(*options)
    assert (code, out) == (1, "")
    assert "no System One reply" in err
    assert "--url" in err


# Exit code 2: bad usage; nothing is sent


@pytest.fixture
def _unfit_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    contents = {
        "text": b"hello",
        "empty": b"",
        "latin": b"a\xe9",
        "deep": b"[" * 5000 + b"]" * 5000,
        "array": b"[]",
        "a.png": PNG,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("--input", "absent.json"), "cannot read absent.json: No such file"),
        (("--input", "."), "cannot read .: Is a directory"),
        (("--input", "nul\0"), "null"),
        (("--input", "text"), "text is not JSON: Expecting value: line 1 column 1"),
        (("--input", "empty"), "empty is not JSON"),
        (("--input", "latin"), "latin is not UTF-8 (byte 1)"),
        (("--input", "deep"), "deep is nested too deeply"),
        (("--input", "array", "--state", "s"), "--state needs an input that is a JSON object"),
        (("--input", "-", "--state", "@-"), "cannot both read standard input"),
        (("--image", "absent.png"), "cannot read absent.png: No such file"),
        (("--image", "."), "cannot read .: Is a directory"),
        (("--image", "text"), "text is not a PNG or JPEG file: convert it"),
        (("--image", "empty"), "empty is not a PNG or JPEG file"),
        (("--image", "text", "--input", "array"), "text is not a PNG or JPEG file"),
        (("--image", "a.png", "--input", "array"), "--image needs an input that is a JSON object"),
        (("--image", "a.png") * 5, "--image can be given 4 times, got 5"),
        (("--image", "-", "--input", "-"), "--input - and --image - cannot both read standard input"),
        (("--image", "-", "--image", "-"), "cannot both read standard input"),
        (("--state", "@absent"), "cannot read absent: No such file"),
        (("--state", "@latin"), "latin is not UTF-8"),
        (("--state", "\udce9"), "--state is not UTF-8"),
        (("--output", "absent/file"), "no folder absent"),
        (("--output", "."), ". is not one"),
        (("--output", ""), "wants a file"),
        (("--key", "a b"), "printable ASCII"),
        (("--url", "localhost:8080"), "http://"),
        (("--timeout", "0"), "more than 0 seconds"),
        (("--timeout", "nan"), "more than 0 seconds"),
        (("--timeout", "soon"), "invalid number of seconds value: 'soon'"),
        (("--format", "yaml"), "invalid choice: 'yaml'"),
        (("--frmat", "json"), "unrecognized arguments: --frmat"),
        (("--form", "json"), "unrecognized arguments: --form"),  # an abbreviation would break when options join
        (("stray",), "unrecognized arguments: stray"),
    ],
)
@pytest.mark.usefixtures("_unfit_files")
def test_bad_usage(argv: tuple[str, ...], why: str, run: Run, api: Api) -> None:
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert why in err
    assert api.bodies == []


def test_an_unknown_command_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["answer"]) == 2
    assert "invalid choice: 'answer'" in capsys.readouterr().err


# Exit code 3: unreachable


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert main(["--url", url]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert f"No answer from {url}" in err
    assert "./run.sh" in err
    assert "--url" in err


def test_too_slow(run: Run, api: Api) -> None:
    api.open_.clear()
    code, out, err = run("--timeout", "0.2")
    assert (code, out) == (3, "")
    assert "within 0.2 s" in err
    assert "./run.sh" in err
    assert "--timeout" in err


# As a program


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--help"], ["ask", "examples:", "--state @mail.txt", "exit codes:"]),
        (["ask", "--help"], ["--url", "--input", "--key", "local-dev", "@@TEXT", "examples:"]),
        (["--format", "json", "-h"], ["--url", "examples:"]),
        (["--version"], [__version__]),
    ],
)
def test_help_teaches(argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert [word for word in words if word not in out] == []


def test_help_does_not_print_the_key(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JEV_API_KEY", "s3cret")
    main(["ask", "--help"])
    assert "s3cret" not in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["--format", "json"], ["--help"]])
def test_a_reader_that_stops_reading_is_no_error(argv: list[str], api: Api) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [*PROGRAM, *argv] if "--help" in argv else [*PROGRAM, "--url", api.url, *argv]
    try:
        done = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, env=environment(), timeout=60, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full to be had")
def test_a_full_disk_behind_standard_output(api: Api) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PROGRAM, "--url", api.url],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == b"systemone: cannot write the answers: No space left on device\n"


@pytest.mark.parametrize("options", [[], ["--format", "json"]])
def test_standard_output_in_ascii(options: list[str], api: Api) -> None:
    done = subprocess.run(
        [*PROGRAM, "--url", api.url, *options],
        capture_output=True,
        env=environment(PYTHONIOENCODING="ascii"),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()


def on_a_terminal(api: Api, *, env: Mapping[str, str], act: Callable[[int, bytes], None]) -> tuple[int, str]:
    """Run the program on a terminal of its own; `act` sees everything written so far, and the terminal to type on."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*ON_ITS_TERMINAL, "--url", api.url],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(TERM="xterm-256color", COLUMNS="80", **env),
        start_new_session=True,
    )
    os.close(slave)
    written = b""
    try:
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # Linux says EIO once the other side is closed
                break
            if not chunk:
                break
            written += chunk
            act(master, written)
        return process.wait(30), written.decode()
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_on_a_terminal_a_long_wait_is_shown_and_the_answers_have_colours(api: Api) -> None:
    api.open_.clear()

    def answer_once_told(_: int, written: bytes) -> None:
        if b" 1 s" in written:
            api.open_.set()

    code, text = on_a_terminal(api, env={}, act=answer_once_told)
    assert code == 0
    assert f"Waiting for {api.url}" in text
    assert "\x1b[1m" in text.partition("State")[2]


def test_ctrl_c_ends_it_quietly(api: Api) -> None:
    api.open_.clear()
    typed: list[float] = []

    def interrupt(terminal: int, written: bytes) -> None:
        if b"Waiting" in written and not typed:
            os.write(terminal, b"\x03")
            typed.append(time.monotonic())

    code, text = on_a_terminal(api, env={}, act=interrupt)
    assert code == 130
    assert time.monotonic() - typed[0] < 20  # it did not wait for the answers first
    # What is left without the spinner's own text and cursor movements is what the terminal echoes.
    assert re.sub(r"\S+ Waiting for \S+ \d+ s|\x1b\[[?0-9]*[A-Za-z]|\s", "", text) in ("", "^C")


def test_no_color_is_honoured_on_a_terminal(api: Api) -> None:
    code, text = on_a_terminal(api, env={"NO_COLOR": "1"}, act=lambda *_: None)
    assert code == 0
    assert "75.0%" in text
    assert "\x1b" not in text


def test_sigint_in_a_pipe_is_130_and_says_nothing(api: Api) -> None:
    api.open_.clear()
    with subprocess.Popen(
        [*PROGRAM, "--url", api.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert api.asked.wait(30)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")


# The doctor: what it looks at has tests of its own


@pytest.fixture
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments for a machine with nothing on it, whose API is a stand-in."""
    monkeypatch.setenv("JEV_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    for name in ("MODEL", "MMPROJ", "LLAMA_SERVER", "CTX_SIZE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return ["doctor", "--backend-url", f"http://127.0.0.1:{free_port()}", "--url"]


def test_the_doctor_ends_with_0_only_when_a_decision_was_made(
    ward: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with answering({"/ready": (200, READY), "/v1/systemone": (200, DECIDED)}) as url:
        assert main([*ward, url]) == 0
    out, err = capsys.readouterr()
    assert "  reading      200 tokens/s (400 tokens)" in out
    assert err == ""
    with answering({"/ready": (200, READY), "/v1/systemone": (529, {"detail": "full"})}) as url:
        assert main([*ward, url]) == 1
    assert "wait, and look again" in capsys.readouterr().out
    assert main([*ward, f"http://127.0.0.1:{free_port()}"]) == 1


def test_the_doctor_gives_it_up_in_time(ward: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with silent() as url:
        started = time.monotonic()
        assert main([*ward, url, "--timeout", "0.3"]) == 1
    assert time.monotonic() - started < 20
    assert f"API               {url}: hung" in capsys.readouterr().out


def test_the_doctor_writes_one_document(ward: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with answering({"/ready": (200, READY), "/v1/systemone": (200, DECIDED)}) as url:
        assert main([*ward, url, "--format", "json", "--key", "sesame"]) == 0
    out = capsys.readouterr().out
    document = json.loads(out)
    assert (document["can_decide"], document["api"]["state"], document["speed"]["tokens"]) == (True, "ready", 400)
    assert "sesame" not in out


@pytest.mark.parametrize(
    "argv",
    [
        ["doctor", "--url", "ftp://x"],
        ["doctor", "--backend-url", "http://user:secret@x"],
        ["doctor", "--key", "schlüssel"],
        ["doctor", "--timeout", "0"],
        ["doctor", "--format", "text"],
        ["doctor", "more"],
    ],
)
def test_the_doctor_refuses_what_makes_no_sense(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert "secret" not in capsys.readouterr().err


def test_the_doctor_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == 0
    out = capsys.readouterr().out
    for words in (
        "exit codes:",
        "--backend-url URL",
        "systemone doctor --format json",
        "Nothing is fetched, started",
        ".venv",
    ):
        assert words in out


# Streams that are closed or full, and servers that never end


def in_a_shell(*argv: str, streams: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "-", *PROGRAM, *argv],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=environment(),
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("argv", [["ask"], ["explain", "a.json", "b.json"], ["doctor"], ["--version"]])
def test_a_closed_standard_output_is_told_before_anything_is_asked(argv: list[str], api: Api) -> None:
    done = in_a_shell(*argv, *(["--url", api.url] if argv != ["--version"] else []), streams=">&-")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"systemone: cannot write the answers: standard output is closed\n")
    assert api.bodies == []
    assert in_a_shell(*argv, streams=">&- 2>&-").returncode == 2


@pytest.mark.parametrize("streams", ["<&-", "2>&-", "<&- 2>&-"])
def test_what_else_is_closed_is_not_missed(streams: str, api: Api) -> None:
    done = in_a_shell("ask", "--url", api.url, "--format", "json", "--diagnostics", streams=streams)
    assert (done.returncode, json.loads(done.stdout)) == (0, REPLY)
    assert done.stderr == (b"" if "2" in streams else b"X-Jev-Local-State-Cache: off-short\n")
    done = in_a_shell("ask", "--url", api.url, "--input", "-", streams=streams)
    assert (done.returncode, done.stdout) == (2, b"")  # an empty standard input


FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full to be had")


@pytest.mark.parametrize("streams", ["2>&-", pytest.param("2>/dev/full", marks=FULL)])
def test_a_complaint_that_cannot_be_written_leaves_the_exit_code(streams: str, api: Api) -> None:
    api.says({"detail": "no"}, status=400)
    done = in_a_shell("ask", "--url", api.url, "--diagnostics", streams=streams)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_a_reader_of_complaints_that_stops_reading_makes_no_success(api: Api) -> None:
    api.says({"detail": "no"}, status=400)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([*PROGRAM, "--url", api.url], stderr=writer, env=environment(), timeout=60, check=False)
    finally:
        os.close(writer)
    assert done.returncode == 1


@FULL
@pytest.mark.parametrize("form", ["table", "json"])
def test_a_full_disk_behind_a_doctor(form: str, ward: list[str]) -> None:
    with silent() as url:
        done = in_a_shell(*ward, url, "--timeout", "0.3", "--format", form, streams=">/dev/full")
    assert (done.returncode, done.stderr) == (2, b"systemone: cannot write the answers: No space left on device\n")


@pytest.mark.parametrize("command", [["ask"], ["explain", "-", "request.json"]])
def test_headers_without_an_end_end_with_the_timeout(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", stdin_of(example().encode()))
    (tmp_path / "request.json").write_text(example())
    started = time.monotonic()
    with trickling(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n") as url:
        assert main([*command, "--url", url, "--timeout", "0.3"]) == 3
    assert time.monotonic() - started < 10
    assert "within 0.3 s" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["ask"], ["explain", "-", "request.json"], ["doctor"]])
@pytest.mark.parametrize(
    "variable", [("SSL_CERT_FILE", "/nope"), ("HTTP_PROXY", "foo://x"), ("http_proxy", "http://a:b")]
)
def test_an_environment_that_cannot_be_used_is_bad_usage(
    command: list[str],
    variable: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for other in ("http_proxy", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY", "SSL_CERT_DIR"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(*variable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", stdin_of(example().encode()))
    (tmp_path / "request.json").write_text(example())
    assert main([*command, "--url", "http://api.invalid"]) == 2
    out, err = capsys.readouterr()
    assert (out, "http://api.invalid cannot be asked" in err, f"look at {variable[0]}\n" in err) == ("", True, True)
