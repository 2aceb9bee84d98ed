"""The download from Hugging Face against a stand-in that breaks off, resumes, and goes away."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from jev_local.launch import hub
from jev_local.launch.errors import CannotStart
from jev_local.launch.models import HubSource

CONTENT = bytes(range(256)) * 4096 * 4
REVISION = "0123456789abcdef0123456789abcdef01234567"
TEMPLATE = "/{repo_id}/resolve/{revision}/{filename}"
SOURCE = HubSource("owner/repository", REVISION, "model.gguf")


@dataclass
class Hub:
    """What the stand-in was asked, and how it behaves."""

    address: str = ""
    break_after: int | None = None
    refusals: list[int] = field(default_factory=list)
    serves_ranges: bool = True
    ranges: list[str] = field(default_factory=list)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        def answer(self, *, with_body: bool) -> None:
            if self.path.split("?")[0] != f"/owner/repository/resolve/{REVISION}/model.gguf":
                self.send_error(404)
                return
            begin = 0
            asked = self.headers.get("Range", "")
            if with_body:
                state.ranges.append(asked)
                if state.refusals:
                    self.send_error(state.refusals.pop())
                    return
            asked = asked if state.serves_ranges else ""
            if asked.startswith("bytes="):
                begin = int(asked[6:].split("-")[0])
            body = CONTENT[begin:]
            if asked and not body:
                self.send_error(416)
                return
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {begin}-{len(CONTENT) - 1}/{len(CONTENT)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body[: state.break_after])
                self.close_connection = True

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", state.address + TEMPLATE)
    monkeypatch.setattr(hub, "PAUSE", 0.0)
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_file_arrives_and_progress_is_told(stand_in: Hub, tmp_path: Path) -> None:
    told: list[int] = []
    hub.require_reachable(SOURCE)
    path = hub.download(SOURCE, tmp_path / "staging", progress=told.append)
    assert path.read_bytes() == CONTENT
    assert told


def test_a_connection_that_breaks_is_taken_up_again(stand_in: Hub, tmp_path: Path) -> None:
    stand_in.break_after = 1024 * 1024
    assert hub.download(SOURCE, tmp_path, progress=lambda _: None).read_bytes() == CONTENT
    assert stand_in.ranges == ["", "bytes=1048576-", "bytes=2097152-", "bytes=3145728-"]


def test_the_next_run_goes_on_where_an_interrupted_one_stopped(stand_in: Hub, tmp_path: Path) -> None:
    def interrupt(there: int) -> None:
        if there > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.download(SOURCE, tmp_path, progress=interrupt)
    assert hub.download(SOURCE, tmp_path, progress=lambda _: None).read_bytes() == CONTENT
    first, second = stand_in.ranges
    assert first == ""
    assert int(second.removeprefix("bytes=").removesuffix("-")) > 1_000_000
    assert hub.download(SOURCE, tmp_path, progress=lambda _: None).read_bytes() == CONTENT, "all there: 416"


def test_a_server_without_ranges_starts_again(stand_in: Hub, tmp_path: Path) -> None:
    stand_in.serves_ranges = False
    (tmp_path / REVISION).write_bytes(CONTENT[:5000])
    assert hub.download(SOURCE, tmp_path, progress=lambda _: None).read_bytes() == CONTENT


def test_a_hub_that_gives_nothing_more_is_given_up(stand_in: Hub, tmp_path: Path) -> None:
    stand_in.break_after = 0
    with pytest.raises(CannotStart, match="broke off"):
        hub.download(SOURCE, tmp_path, progress=lambda _: None)
    assert len(stand_in.ranges) == hub.FRUITLESS


def test_a_hub_that_is_too_busy_for_a_moment_is_asked_again(stand_in: Hub, tmp_path: Path) -> None:
    stand_in.refusals = [503, 429]
    assert hub.download(SOURCE, tmp_path, progress=lambda _: None).read_bytes() == CONTENT
    stand_in.refusals = [403]
    with pytest.raises(CannotStart, match="answers 403"):
        hub.download(SOURCE, tmp_path / "again", progress=lambda _: None)


def test_a_hub_without_the_file_and_one_that_is_not_there(stand_in: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotStart, match="answers 404"):
        hub.require_reachable(HubSource("owner/other", REVISION, "model.gguf"))
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9" + TEMPLATE)
    with pytest.raises(CannotStart, match="cannot be reached"):
        hub.require_reachable(SOURCE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CannotStart, match="HF_HUB_OFFLINE"):
        hub.require_reachable(SOURCE)
