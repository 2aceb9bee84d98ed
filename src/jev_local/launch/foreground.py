"""`jev-local backend`: the inference server alone, its output on the terminal, until it is interrupted."""

from __future__ import annotations

from jev_local.launch.inference import InferenceServer
from jev_local.launch.process import Child, stop
from jev_local.launch.progress import say
from jev_local.launch.signals import Interruptions

LOOK_AGAIN = 0.5


def run(server: InferenceServer) -> int:
    """0 after an interruption, 1 when the server ended by itself."""
    children: list[Child] = []
    with Interruptions() as interruptions:
        try:
            say(server.in_force())
            server.get_model()
            children.append(server.start())
            server.wait_loaded(children[0])
            say(f"Ready: {server.url}")
            while not children[0].wait(LOOK_AGAIN):
                pass
            say(f"{children[0].name} {children[0].ending()}")
            return 1
        except KeyboardInterrupt:
            return 0 if children else 130
        finally:
            interruptions.ignore()
            stop(children)
