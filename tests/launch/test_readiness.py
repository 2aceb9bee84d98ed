import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from jev_local.launch.readiness import Patience, ask
from programs import free_port

UNUSABLE = (503, {"status": "unavailable", "reason": "This model cannot be asked."})
STARTING = (503, {"status": "starting", "reason": "The inference server is being made ready."})


def looks_until_over(*looks: tuple[int, object]) -> int:
    patience = Patience()
    for count, look in enumerate(looks, 1):
        patience = patience.after(*look)
        if patience.is_over:
            return count
    return 0


def test_an_api_that_stays_unavailable_is_given_up_with_its_last_reason() -> None:
    assert looks_until_over(*[UNUSABLE] * 100) == Patience().limit
    patience = Patience(limit=2).after(503, {"status": "unavailable", "reason": "first"}).after(*UNUSABLE)
    assert patience.is_over
    assert patience.reason == "This model cannot be asked."


@pytest.mark.parametrize(
    "look", [STARTING, (0, None), (503, None), (503, []), (404, {"status": "unavailable"}), (500, "unavailable")]
)
def test_one_that_says_anything_else_is_waited_for(look: tuple[int, object]) -> None:
    assert looks_until_over(*[look] * 1000) == 0


def test_one_that_tries_again_in_between_is_given_up_too() -> None:
    """It is `starting` for a moment at every attempt: the first version of this would have waited for ever."""
    assert 0 < looks_until_over(*[UNUSABLE, STARTING] * 100) <= 2 * Patience().limit


def test_a_moment_of_trouble_is_forgiven() -> None:
    assert looks_until_over(*[STARTING] * 50, *[UNUSABLE] * 3, *[STARTING] * 50) == 0


def test_a_reason_that_is_no_text_is_no_fault() -> None:
    assert Patience().after(503, {"status": "unavailable", "reason": None}).reason == "no reason given"


@pytest.fixture
def server() -> Iterator[str]:
    """Answers /STATUS/BODY with both."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, status, body = self.path.split("/")
            self.send_response(int(status))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    stand_in = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=stand_in.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{stand_in.server_port}"
    stand_in.shutdown()
    stand_in.server_close()
    thread.join()


def test_status_and_body_of_what_listens_there(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # not for this machine's own servers
    assert ask(f"{server}/503/[1]") == (503, [1])
    assert ask(f"{server}/200/page") == (200, None)
    assert ask(f"http://127.0.0.1:{free_port()}/ready") == (0, None)
