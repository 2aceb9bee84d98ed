"""The inference server of this machine: found, given its model, started, waited for."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from jev_local.backend.devices import has_gpu, with_libraries
from jev_local.backend.embedded import (
    CPU_BATCH,
    ServerOptions,
    native_command,
    server_environment,
    wheel_command,
)
from jev_local.called import called
from jev_local.launch.errors import CannotStart
from jev_local.launch.fetch import fetch
from jev_local.launch.home import Home
from jev_local.launch.intended import Intended, has_wheel, intended, wheel_requirement
from jev_local.launch.models import CATALOGUE, require_gguf
from jev_local.launch.ports import require_free
from jev_local.launch.process import Child
from jev_local.launch.progress import Waiting
from jev_local.launch.readiness import ask

OLDEST_BUILD = "b11042"
LOOK_AGAIN = 0.2


@dataclass(frozen=True, slots=True)
class InferenceServer:
    """How to start one, as often as need be: what was `intended`, as the `options` that it comes to."""

    options: ServerOptions
    intended: Intended
    port_option: str
    log: Path | None
    fetch_log: Path

    @classmethod
    def plan(
        cls,
        environment: Mapping[str, str],
        home: Home,
        *,
        wish: str | None,
        mmproj: str | None,
        port: int,
        port_option: str,
        to_terminal: bool,
        chat_slots: int | None = None,
    ) -> InferenceServer:
        """From arguments and environment, everything checked that can be checked without the model. `chat_slots`: as
        many as the API has, where it is started too."""
        home.make()
        meant = intended(environment, home, wish=wish, mmproj=mmproj)
        if meant.binary is None and not has_wheel():
            raise CannotStart(
                "there is no inference server: install the one that comes with this "
                f"(pip install {wheel_requirement()}), or set LLAMA_SERVER to a llama-server binary"
            )
        try:
            options = ServerOptions.from_environment(
                environment,
                model=meant.weights if meant.model else require_gguf(meant.weights, "model"),
                mmproj=meant.projector if meant.has_pinned_projector else _projector(meant.projector),
                port=port,
                slot_dir=home.slot_dir(environment),
            )
        except ValueError as error:
            raise CannotStart(str(error), code=2) from error
        if chat_slots is not None:
            options = replace(options, chat_slots=chat_slots)
        if meant.binary is None and options.gpu_device is not None:
            raise CannotStart("GPU_DEVICE needs a native build: set LLAMA_SERVER to a llama-server binary", code=2)
        if meant.backend == "cpu" and options.gpu_device is None:
            options = replace(options, gpu_device="none")  # an archive for macOS has a GPU backend too
        require_free(options.host, port, option=port_option)
        return cls(
            options=options,
            intended=meant,
            port_option=port_option,
            log=None if to_terminal else home.log(port),
            fetch_log=home.fetch_log,
        )

    @property
    def url(self) -> str:
        return f"http://{self.options.host}:{self.options.port}"

    def in_force(self) -> str:
        """Settings as they are, for the person at the terminal."""
        options, meant = self.options, self.intended
        server = str(meant.binary) if meant.binary else f"xllamacpp {metadata.version('xllamacpp')} (wheel)"
        chosen = ", chosen by set-up" if meant.binary_from == "set-up" else ""
        lines = [
            f"Inference server {self.url}",
            f"  LLAMA_SERVER    {server}{chosen}",
            f"  MODEL           {f'{meant.model.name}, ' if meant.model else ''}{options.model}",
            f"  MMPROJ          {options.mmproj or 'none'}",
            f"  CTX_SIZE        {options.context}",
            f"  PARALLEL        {options.parallel}",
            f"  CHAT_SLOTS      {options.chat_slots}",
            f"  CHAT_CTX_SIZE   {options.room_for_chats}, on top of CTX_SIZE",
            f"  BATCH_SIZE      {options.batch or f'{CPU_BATCH}, or as the server thinks best with layers on a GPU'}",
            f"  THREADS         {options.threads or 'as the server thinks best'}",
            f"  GPU_LAYERS      {options.gpu_layers or 'as the server thinks best'}",
            f"  GPU_DEVICE      {options.gpu_device or 'as the server thinks best'}",
            f"  SLOT_CACHE_DIR  {options.slot_dir}",
        ]
        if self.log is not None:
            lines.append(f"  log             {self.log}")
        if meant.binary is None:
            lines.append(
                "The server in the wheel runs on any processor; a native build is faster: set LLAMA_SERVER, or "
                f"{called('setup')} fetches one."
            )
        file = Path(options.model).name
        lines += [model.notice for model in CATALOGUE.values() if model.weights.file == file and model.notice]
        return "\n".join(lines)

    def get_model(self) -> None:
        """Fetch the model if it is one of ours and not here yet."""
        meant = self.intended
        if meant.model is not None:
            for pinned in meant.model.files if meant.has_pinned_projector else (meant.model.weights,):
                fetch(pinned, meant.weights.parent, log=self.fetch_log)

    def start(self) -> Child:
        """A process that begins to load the model."""
        require_free(self.options.host, self.options.port, option=self.port_option)
        binary = self.intended.binary
        environment = with_libraries(server_environment(os.environ), self.intended.library_path)
        if binary is None:
            argv = wheel_command(self.options)
        else:
            argv = native_command(binary, self.options, has_gpu=has_gpu(binary, environment))
        return Child("llama-server", argv, log=self.log, environment=environment)

    def is_loaded(self) -> bool:
        status, _ = ask(f"{self.url}/health")
        return status == 200

    def wait_loaded(self, child: Child) -> None:
        """Until it has its model, or CannotStart when it dies first. Its log on the terminal is progress enough."""
        what = None if self.log is None else f"Loading {Path(self.options.model).name}"
        hint = f"\nIf {Path(self.options.model).name} is damaged or incomplete, fetch it again."
        if self.intended.binary_from == "set-up":
            hint += f" If it is the GPU that is missed, {called('setup')} looks again for what works here."
        elif self.intended.binary is not None:
            hint += f" LLAMA_SERVER has to be llama.cpp {OLDEST_BUILD} or newer."
        with nullcontext() if what is None else Waiting(what) as waiting:
            while not self.is_loaded():
                child.require_running("it was ready", hint=hint)
                if waiting is not None:
                    waiting.tick()
                time.sleep(LOOK_AGAIN)


def _projector(named: Path | None) -> Path | None:
    return None if named is None else require_gguf(named, "projector")
