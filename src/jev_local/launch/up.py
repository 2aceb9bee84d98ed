"""`jev-local up`: model, inference server, API and a first answer, then both servers until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from jev_local.launch.errors import CannotStart
from jev_local.launch.inference import InferenceServer
from jev_local.launch.ports import require_free
from jev_local.launch.process import Child, stop
from jev_local.launch.progress import Ticking, say
from jev_local.launch.readiness import Patience, ask
from jev_local.launch.restarts import RestartPolicy
from jev_local.launch.signals import Interruptions
from jev_local.settings import ApiSettings

LOOK_AGAIN = 0.2
ASK_AGAIN = 0.5
"""Seconds between two requests for the readiness of the API."""

DEMO_SECONDS = 600
"""A slow machine reads the twelve questions for minutes, and a first answer that fails would be a poor welcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What `up` was asked for. `api_arguments` are for `jev-local serve`, and `api` is what they come to."""

    api: ApiSettings
    api_arguments: tuple[str, ...]
    once: bool = False
    demo: bool = True


def run(server: InferenceServer, wishes: Wishes, *, demo: Callable[[str], int]) -> int:
    """The exit code: with `once` that of `demo`, which gets the API's URL; 0 after an interruption; 1 when something
    ended that should not have."""
    require_free(wishes.api.host, wishes.api.port, option="--port")
    with Interruptions() as interruptions:
        pair = Pair(server, wishes)
        try:
            pair.start()
            code = _first_answer(wishes, demo, interruptions) if wishes.demo else 0
            if wishes.once:
                return code
            say(f"Ready: {url(wishes.api)}")
            return pair.watch()
        except KeyboardInterrupt:
            tell("Stopping")
            return 0 if pair.is_up and not wishes.once else 130
        finally:
            interruptions.ignore()
            pair.stop()


def tell(text: str) -> None:
    """`say` where somebody may read it. A service goes on when its terminal is gone or the disk of its log is full."""
    with suppress(OSError, CannotStart):
        say(text)


def _first_answer(wishes: Wishes, demo: Callable[[str], int], interruptions: Interruptions) -> int:
    tell("Asking the example's questions")
    with Ticking("Still asking"):
        code = demo(url(wishes.api))
    if interruptions.came:
        raise KeyboardInterrupt
    if code != 0 and not wishes.once:
        tell(f"The example was not answered (exit code {code}); the servers go on")
    return code


def url(api: ApiSettings) -> str:
    """Where this machine reaches an API that listens there."""
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(api.host, api.host)
    return f"http://[{host}]:{api.port}" if ":" in host else f"http://{host}:{api.port}"


class Pair:
    """The two processes. llama-server is started again when it dies; the API outlives that and finds the new one."""

    def __init__(self, server: InferenceServer, wishes: Wishes) -> None:
        self._server, self._wishes = server, wishes
        self._backend: Child | None = None
        self._api: Child | None = None
        self._policy = RestartPolicy()
        self.is_up = False

    def start(self) -> None:
        """Both, one after the other, until the API can answer."""
        say(self._server.in_force())
        self._server.get_model()
        self._backend = self._server.start()
        self._server.wait_loaded(self._backend)
        self._api = Child(
            "the API", [sys.executable, "-P", "-m", "jev_local", "serve", *self._wishes.api_arguments], environment=None
        )
        self._await_ready(self._api, self._backend)
        self.is_up = True

    def _await_ready(self, api: Child, backend: Child) -> None:
        """Until the API can answer, its log on the terminal being progress enough. CannotStart when that will not
        come: one of the two has ended, or the API cannot work with this model and says why."""
        patience = Patience()
        while True:
            status, body = ask(f"{url(self._wishes.api)}/ready")
            if status == 200:
                return
            api.require_running("it was ready")
            backend.require_running("the API was ready")
            patience = patience.after(status, body)
            if patience.is_over:
                raise CannotStart(
                    f"the API does not become ready: {patience.reason.rstrip('.')}; "
                    f"choose another model with --model, or see {backend.log}"
                )
            time.sleep(ASK_AGAIN)

    def watch(self) -> int:
        """Until one of them is beyond repair."""
        loading = False
        while True:
            assert self._backend is not None and self._api is not None  # noqa: S101, PT018  # both are up by now
            if self._api.poll() is not None:
                tell(f"The API {self._api.ending()}")
                return 1
            if self._backend.poll() is not None:
                self._policy, pause = self._policy.after_death(time.monotonic())
                if pause is None:
                    tell(
                        f"llama-server {self._backend.ending()} for the {self._policy.limit + 1}th time within "
                        f"{self._policy.window:.0f} s; giving up{self._backend.last_lines()}"
                    )
                    return 1
                tell(f"llama-server {self._backend.ending()}; starting it again in {pause:g} s")
                time.sleep(pause)
                self._backend.release()
                self._backend, loading = self._server.start(), True
            elif loading and self._server.is_loaded():
                tell("llama-server is back")
                loading = False
            self._backend.trim_log()
            time.sleep(LOOK_AGAIN)

    def stop(self) -> None:
        stop([child for child in (self._api, self._backend) if child is not None])
