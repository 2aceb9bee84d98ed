"""The llama-server this product starts: which options, and the command line that carries them.

There are two ways to get one: a native binary named by LLAMA_SERVER, or the server inside the xllamacpp wheel, which
runs in a Python process of its own (`backend/child.py`). Both get the same options from one `ServerOptions`.

Nothing is started here: `launch` does that, so that this module can be tested by reading what it returns.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from jev_local.backend.tags import CHAT_TAG, DECISION_TAG, LARGEST_COUNT, name_of
from jev_local.settings import DEFAULT_CHAT_SLOTS

CPU_BATCH = 128
"""Tokens evaluated between two looks at the connection. With the server's own 2048 a caller who went away held a slot
for 13 seconds on a CPU, and 128 costs nothing there. A GPU needs the large batch and is quick enough with it."""

DEFAULT_CONTEXT = 8192
DEFAULT_PARALLEL = 4

LARGEST_UBATCH = 512
"""llama-server's own physical batch: more of it costs memory on a GPU and gains nothing."""

CORS_ORIGIN = "http://127.0.0.1"
"""An origin no page has by accident. The default `*` lets any web page the user visits read from the server."""

NOT_INHERITED = ("JEV_API_KEY", "LLAMA_API_KEY", "LLAMA_ARG_API_KEY_FILE", "LLAMA_SERVER_SLOTS_DEBUG")
"""Variables the server is started without: the first is no business of it, the next two would lock us out, and the last
would show callers' texts to whoever asks for /slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """One llama-server. `context` tokens and `parallel` slots are for decisions; `chat_context` (None: as many) and
    `chat_slots` come on top of them, so that neither takes room from the other. `batch` None: small on a CPU, the
    server's own on a GPU. `gpu_layers`: a number, `auto`, `all`, or None for what the server thinks best."""

    model: str
    port: int
    slot_dir: str
    mmproj: str | None = None
    host: str = "127.0.0.1"
    context: int = DEFAULT_CONTEXT
    parallel: int = DEFAULT_PARALLEL
    chat_slots: int = DEFAULT_CHAT_SLOTS
    chat_context: int | None = None
    batch: int | None = None
    threads: int | None = None
    gpu_layers: str | None = None
    gpu_device: str | None = None

    def __post_init__(self) -> None:
        if self.gpu_layers not in (None, "auto", "all") and not str(self.gpu_layers).isdecimal():
            raise ValueError(f"GPU_LAYERS has to be a number, `auto` or `all`, got {self.gpu_layers!r}")

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], *, model: Path, mmproj: Path | None, port: int, slot_dir: Path
    ) -> ServerOptions:
        """What CTX_SIZE, PARALLEL, CHAT_SLOTS, CHAT_CTX_SIZE, BATCH_SIZE, THREADS, GPU_LAYERS and GPU_DEVICE say.
        ValueError names a bad one."""
        chat_slots = _count(environment, "CHAT_SLOTS", least=0)
        return cls(
            model=str(model),
            mmproj=None if mmproj is None else str(mmproj),
            port=port,
            slot_dir=str(slot_dir),
            context=_count(environment, "CTX_SIZE") or DEFAULT_CONTEXT,
            parallel=_count(environment, "PARALLEL") or DEFAULT_PARALLEL,
            chat_slots=DEFAULT_CHAT_SLOTS if chat_slots is None else chat_slots,
            chat_context=_count(environment, "CHAT_CTX_SIZE"),
            batch=_count(environment, "BATCH_SIZE"),
            threads=_count(environment, "THREADS"),
            gpu_layers=environment.get("GPU_LAYERS") or None,
            gpu_device=environment.get("GPU_DEVICE") or None,
        )

    @property
    def alias(self) -> str:
        # A comma would be between two of them.
        return name_of(self.model).replace(",", "_")

    @property
    def slots(self) -> int:
        return self.parallel + self.chat_slots

    @property
    def room_for_chats(self) -> int:
        """Tokens of context for all chats together."""
        return (self.chat_context or self.context) if self.chat_slots else 0

    @property
    def slot_context(self) -> int:
        """Tokens that one slot may hold at most: without a limit it would take the others' part as well."""
        return max(self.context, self.room_for_chats)

    @property
    def tags(self) -> tuple[str, ...]:
        """What the server is to tell the API of the parts: it shows the limit of a slot, and hides their sum."""
        return (f"{DECISION_TAG}{self.context}", f"{CHAT_TAG}{self.room_for_chats}") if self.chat_slots else ()

    def batch_sizes(self, *, has_gpu: bool) -> tuple[int, int] | None:
        """Logical and physical batch, or None for the server's own."""
        if self.batch is not None:
            return self.batch, min(self.batch, LARGEST_UBATCH)
        on_gpu = has_gpu and self.gpu_layers != "0" and self.gpu_device != "none"
        return None if on_gpu else (CPU_BATCH, CPU_BATCH)


def _count(environment: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    text = environment.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or not least <= int(text) <= LARGEST_COUNT:
        raise ValueError(f"{name} has to be a whole number from {least} to {LARGEST_COUNT}, got {text!r}")
    return int(text)


def native_command(binary: Path, options: ServerOptions, *, has_gpu: bool) -> list[str]:
    """argv for a llama-server binary, in flags that b11042 and later builds know."""
    argv = [str(binary), "--model", options.model, "--alias", options.alias]
    argv += ["--host", options.host, "--port", str(options.port)]
    argv += ["--ctx-size", str(options.context + options.room_for_chats), "--parallel", str(options.slots)]
    argv += ["--kv-unified"]
    if options.chat_slots:
        argv += ["--kv-unified-per-slot", str(options.slot_context), "--tags", ",".join(options.tags)]
    argv += ["--flash-attn", "on"]  # else the device decides, and with it what a saved state looks like
    argv += ["--slot-save-path", options.slot_dir, "--slots", "--jinja"]
    argv += ["--cache-ram", "0", "--no-cache-idle-slots"]  # by default it copies states about, 8 GiB of them
    argv += ["--no-ui", "--cors-origins", CORS_ORIGIN]
    batches = options.batch_sizes(has_gpu=has_gpu)
    if batches is not None:
        argv += ["--batch-size", str(batches[0]), "--ubatch-size", str(batches[1])]
    for flag, value in (
        ("--mmproj", options.mmproj),
        ("--threads", options.threads),
        ("--gpu-layers", options.gpu_layers),
        ("--device", options.gpu_device),
    ):
        if value is not None:
            argv += [flag, str(value)]
    return argv


def wheel_command(options: ServerOptions) -> list[str]:
    """argv for the server in the xllamacpp wheel."""
    return [sys.executable, "-P", "-m", "jev_local.backend.child", json.dumps(asdict(options))]


def server_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment a server is started with."""
    return {name: value for name, value in environment.items() if name not in NOT_INHERITED}
