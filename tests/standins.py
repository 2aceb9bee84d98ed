"""A host with files, for downloads without a network: the release host, the hub, or anything else that speaks HTTP.

    with stand_in({"/b1/a.tar.gz": content}) as host:
        fetch(Pinned(..., sources=(UrlSource(host.url("/b1/a.tar.gz")),)), folder)
        assert [asked.range for asked in host.gets] == [""]

It breaks off, pauses, refuses and misleads as told, and remembers what it was asked. A path with /resolve/ in it is
answered as the hub answers. Alone it serves a folder: `python tests/standins.py FOLDER` prints its address, and then
a line of JSON for each request.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

BLOCK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `range`, `authorization` and `encoding` are the headers, empty where there were none."""

    method: str
    path: str
    range: str = ""
    authorization: str = ""
    encoding: str = ""


@dataclass
class StandIn:
    """What it has, how it behaves, and what it was asked. All of it can be changed while it runs."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """Path -> content."""

    cuts: list[int] = field(default_factory=list)
    """Bytes after which the next replies break off, one each."""

    statuses: list[int] = field(default_factory=list)
    """What the next GETs are answered instead, one each."""

    head_status: int = 0
    """What every HEAD is answered instead; 0: it is answered."""

    pause_after: int | None = None
    """Bytes after which the next reply waits for `go_on`; the one after it does not."""

    paused: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    serves_ranges: bool = True
    range_shift: int = 0
    """How many bytes too early a range begins."""

    length: Literal["told", "chunked", "closed"] = "told"
    """How the end of a reply is known."""

    linked_size: int | None = None
    """What the hub says of the size, where that is not true."""

    most: int | None = None
    """Bytes that one piece has at most: fewer than was asked for, and said so, which HTTP allows."""

    says: dict[str, str] = field(default_factory=dict)
    """Header -> what a reply says in it, true or not; empty: it is left out."""

    drops: bytes = b""
    """Headers, or replies before the reply, that come for ever, one at a time."""

    redirects: dict[str, str] = field(default_factory=dict)
    """Path -> the address that has it. The hub says the size all the same where it has the file itself."""

    asked: list[Asked] = field(default_factory=list)
    aloud: bool = False

    @property
    def gets(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == "GET"]

    @property
    def ranges(self) -> list[str]:
        """Of the GETs; empty for a whole file."""
        return [asked.range for asked in self.gets]

    def url(self, path: str) -> str:
        return self.address + path

    def note(self, asked: Asked) -> None:
        self.asked.append(asked)
        if self.aloud:
            print(json.dumps(asdict(asked)), flush=True)


def hub_path(repository: str, revision: str, file: str) -> str:
    """Where the hub has it; HF_ENDPOINT names the host."""
    return f"/{repository}/resolve/{revision}/{file}"


@contextmanager
def stand_in(files: Mapping[str, bytes] | None = None) -> Iterator[StandIn]:
    """One on a free port of this machine."""
    state = StandIn(files=dict(files or {}))
    server = _Server(("127.0.0.1", 0), _handler(state))
    state.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # who asked is gone, which is what many tests are about
            super().handle_error(request, client_address)


def _handler(state: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            headers = self.headers
            state.note(
                Asked(
                    self.command,
                    self.path,
                    headers.get("Range", ""),
                    headers.get("Authorization", ""),
                    headers.get("Accept-Encoding", ""),
                )
            )
            path = self.path.partition("?")[0]
            content = state.files.get(path)
            if state.drops:
                self.close_connection = True
                if not state.drops.startswith(b"HTTP/"):
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                while not state.go_on.wait(0.05):
                    self.wfile.write(state.drops)
            elif self.command == "HEAD" and state.head_status:
                self.refuse(state.head_status)
            elif self.command == "GET" and state.statuses:
                self.refuse(state.statuses.pop(0))
            elif path in state.redirects:
                self.send_response(302)
                self.send_header("Location", state.redirects[path])
                self.describe(path, content)
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif content is None:
                self.refuse(404)
            else:
                self.give(path, content)

        def send_header(self, keyword: str, value: str) -> None:
            if value := state.says.get(keyword, value):
                super().send_header(keyword, value)

        def refuse(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def describe(self, path: str, content: bytes | None) -> None:
            if "/resolve/" in path and content is not None:
                size = len(content) if state.linked_size is None else state.linked_size
                self.send_header("X-Linked-Size", str(size))
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", path.partition("/resolve/")[2].partition("/")[0])

        def give(self, path: str, content: bytes) -> None:
            asked = self.headers.get("Range", "") if state.serves_ranges else ""
            begin = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
            if asked and begin >= len(content):
                self.refuse(416)
                return
            begin = max(0, begin - state.range_shift)
            end = min(len(content), begin + (state.most or len(content))) if asked else len(content)
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
            self.describe(path, content)
            if state.length == "told":
                self.send_header("Content-Length", str(end - begin))
            elif state.length == "chunked":
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.send_header("Connection", "close")
                self.close_connection = True
            self.end_headers()
            if self.command == "GET":
                self.pour(content[begin:end])

        def pour(self, body: bytes) -> None:
            cut = state.cuts.pop(0) if state.cuts else None
            pause, state.pause_after = state.pause_after, None
            if cut is not None:
                body, self.close_connection = body[:cut], True
            if pause is not None:
                self.write(body[:pause])
                body = body[pause:]
                state.paused.set()
                state.go_on.wait()
            self.write(body)
            if state.length == "chunked" and cut is None:
                self.wfile.write(b"0\r\n\r\n")

        def write(self, body: bytes) -> None:
            for start in range(0, len(body), BLOCK):
                block = body[start : start + BLOCK]
                chunk = b"%x\r\n%b\r\n" % (len(block), block) if state.length == "chunked" else block
                self.wfile.write(chunk)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def main(folder: Path) -> None:
    """Until it is ended."""
    files = {
        f"/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    with stand_in(files) as host:
        host.aloud = True
        print(host.address, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
