"""What a client gets whose bytes are not HTTP: such a request never reaches the app, so the protocol answers it."""

from __future__ import annotations

import json
from uuid import uuid4

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from jev_local.wire.headers import REQUEST_ID


class Protocol(H11Protocol):
    """uvicorn's, with our error body and the id that every response carries."""

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"detail": {"error_type": "api_usage_error", "message": msg}}).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
                (REQUEST_ID.encode(), f"req_{uuid4().hex}".encode()),
            ]
            events = (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage())
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        # Where a reply has begun, nothing can be added to it: closing is all that is left.
        self.transport.close()
