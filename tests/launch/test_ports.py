import socket

import pytest

from jev_local.launch.errors import CannotStart
from jev_local.launch.ports import require_free


def test_a_port_somebody_listens_on_is_busy_even_when_it_could_be_shared() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as llama-server does
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CannotStart, match=rf"port {port} on 127\.0\.0\.1 is in use.*--backend-port") as caught:
            require_free("127.0.0.1", port, option="--backend-port")
        assert caught.value.code == 2
    require_free("127.0.0.1", port, option="--port")


def test_an_address_of_another_machine_and_a_name_nobody_has() -> None:
    with pytest.raises(CannotStart, match=r"cannot listen on 192\.0\.2\.1"):
        require_free("192.0.2.1", 8080, option="--port")
    with pytest.raises(CannotStart, match="no address 'no host'"):
        require_free("no host", 8080, option="--port")
    with pytest.raises(CannotStart, match="no address"):
        require_free("x" * 70, 8080, option="--port")
