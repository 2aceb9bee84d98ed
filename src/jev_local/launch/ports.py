"""Is a port free? Asked before anything is started.

llama-server listens with SO_REUSEPORT, so a second one on the same port starts happily and the kernel deals connections
out between the two; and the wheel's server reports a busy port and a bad model with the same words.
"""

from __future__ import annotations

import errno
import socket

from jev_local.launch.errors import CannotStart
from jev_local.settings import DEFAULT_BACKEND_URL

BACKEND_PORT = int(DEFAULT_BACKEND_URL.rpartition(":")[2])
"""Where the inference server listens unless told otherwise: where the API looks for it."""


def require_free(host: str, port: int, *, option: str) -> None:
    """CannotStart unless something can listen on host:port. `option` is what chooses another."""
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:  # the second for what cannot be a name at all
        raise CannotStart(f"there is no address {host!r} to listen on: {error}", code=2) from error
    with socket.socket(family, kind, protocol) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections that linger are no fault
        try:
            trial.bind(address)
            trial.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                text = f"port {port} on {host} is in use: stop what listens there, or choose another with {option}"
            else:
                text = f"cannot listen on {host} port {port} ({error.strerror}): choose another with {option}"
            raise CannotStart(text, code=2) from error
