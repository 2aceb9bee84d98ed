"""Facts of a machine on which all is well, for tests that change one thing of them."""

from __future__ import annotations

from dataclasses import replace

from jev_local.doctor.calls import Commands
from jev_local.doctor.facts import (
    Api,
    Backend,
    Chosen,
    Facts,
    File,
    Folder,
    Installed,
    Memory,
    Room,
    Settings,
    Speed,
    Store,
)
from jev_local.settings import DEFAULT_API_URL, DEFAULT_BACKEND_URL, GIB, MIB

COMMANDS = Commands(setup="SETUP", up="UP", backend="BACKEND", serve="SERVE", ask="ASK", install="INSTALL")

FOLDER = Folder("/home", is_there=True, writable=True, free=50 * GIB)

INSTALLED = Installed(
    package="1.2.3",
    python="3.11.7",
    wheel="2026.10.11549",
    runtimes=(),
    llama_server=None,
    models_folder=replace(FOLDER, path="/models"),
    cache_folder=replace(FOLDER, path="/cache"),
    models=(),
)

SETTINGS = Settings(
    context=8192,
    parallel=4,
    chat_slots=2,
    chat_context=8192,
    batch=128,
    threads=None,
    gpu_layers=None,
    gpu_device=None,
    slot_dir="/slots",
)

CHOSEN = Chosen(
    model="text",
    model_from="set-up",
    weights=File("/models/text.gguf", 1200 * MIB, is_pinned=True),
    projector=None,
    server="/runtimes/llama-server",
    server_from="set-up",
    backend="cpu",
    gpus=(),
    gpus_trouble=None,
    settings=SETTINGS,
)

BY_WHEEL = replace(CHOSEN, server=None, server_from="the wheel", backend=None)
DEFAULT = replace(BY_WHEEL, model="starter", model_from="the default")

STORE = Store(folder="/slots", bytes=GIB, kept=0, free=50 * GIB, in_memory=False)
MEMORY = Memory(
    parts=(), total=2 * GIB, room=Room("memory of this machine", 16 * GIB, 8 * GIB), store=STORE, verdict="fits"
)

NO_BACKEND = Backend(DEFAULT_BACKEND_URL, "down", "nobody listens there")
BACKEND = Backend(DEFAULT_BACKEND_URL, "up", "", model="text", slots=6, context=8192, build="b11042", is_chosen=True)
NO_API = Api(DEFAULT_API_URL, "down", "nobody listens there")
API = Api(DEFAULT_API_URL, "ready", "", model="text", slots=4, context=8192, build="b11042")
ANSWERED = Speed("answered", "", seconds=2.0, tokens=400, tokens_per_second=300.0, probability=0.25)
NOT_TRIED = Speed("not tried", "no API is ready")

WELL = Facts(
    installed=INSTALLED,
    chosen=CHOSEN,
    trouble=None,
    hosts=(),
    backend=BACKEND,
    api=API,
    memory=MEMORY,
    speed=ANSWERED,
)
IDLE = replace(WELL, backend=NO_BACKEND, api=NO_API, speed=NOT_TRIED)
