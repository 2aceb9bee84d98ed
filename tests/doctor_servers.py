"""Programs that a doctor may meet on a port: stand-ins on real sockets, for what a real server does not do."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

READY: dict[str, Any] = {
    "status": "ready",
    "reason": None,
    "model": "tiny",
    "backend": {"build": "b11042", "slots": 4, "context": 8192, "vision": False},
    "labels": {"single": 26},
}
PROPS: dict[str, Any] = {
    "total_slots": 6,
    "model_path": "/models/tiny.gguf",
    "default_generation_settings": {"n_ctx": 4096},
    "build_info": "b11042-abc",
}
DECIDED: dict[str, Any] = {
    "model": "tiny",
    "answers": {"weather": {"type": "noul", "noul": 0.25}},
    "usage": {"input_tokens": 400, "output_tokens": 1},
}
COSTS = {
    "X-Jev-Local-Processed-Tokens": "400",
    "Server-Timing": "tokenize;dur=5.00, prefix;dur=0.00, decode;dur=2000.00",
}

Answers = Mapping[str, tuple[int, Any]]


@contextmanager
def answering(
    answers: Answers, seen: list[tuple[str, str | None, bytes]] | None = None, *, port: int = 0
) -> Iterator[str]:
    """A server that answers each path with its status and document (bytes as they are), others with 404; `seen` gets
    path, key and body of what it was asked. `port` 0: one that is free."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if seen is not None:
                seen.append((self.path, self.headers["Authorization"], body))
            status, document = answers.get(self.path, (404, {"detail": "Not Found"}))
            content = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            for name, value in COSTS.items() if self.command == "POST" else ():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET
        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def silent() -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def trickling(first: bytes, drop: bytes) -> Iterator[str]:
    """Says `first`, and then `drop` again and again."""
    ended = threading.Event()

    def serve(listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(first)
                while not ended.wait(0.02):
                    connection.sendall(drop)
        except OSError:
            pass  # the caller has gone, or nobody came

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()
