"""All of it in order: what is there, what is chosen, who listens, what it takes, and one decision."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from jev_local.backend.embedded import ServerOptions
from jev_local.called import called
from jev_local.client import Client, UnusableServer
from jev_local.doctor import chosen as choosing
from jev_local.doctor import gguf, installed, machine, memory, reachable, running, speed
from jev_local.doctor.asked import ASK_SECONDS
from jev_local.doctor.calls import Commands
from jev_local.doctor.facts import Chosen, Facts, Memory, Room, Speed, Step
from jev_local.doctor.shape import model_shape, projector_shape
from jev_local.doctor.steps import next_step
from jev_local.doctor.users import without_users
from jev_local.launch.errors import CannotStart
from jev_local.launch.home import Home, home
from jev_local.launch.intended import wheel_requirement
from jev_local.settings import ApiSettings
from jev_local.terminal import waiting

SHORTEST_KEY = 4
"""Shorter texts than this are too common to be blotted out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Whom to ask, with which key, and how many seconds a decision may take."""

    url: str
    backend_url: str
    key: str
    timeout: float


def examine(wishes: Wishes, environment: Mapping[str, str], *, progress: TextIO | None = None) -> tuple[Facts, Step]:
    """UnusableServer for a URL that is none, or a key that fits in no header."""
    with Client(wishes.url, key=wishes.key, timeout=wishes.timeout) as client:
        backend_url = _checked(wishes.backend_url)
        with _waiting("Looking around", progress):
            facts = _look(client.url, backend_url, environment, seconds=min(ASK_SECONDS, wishes.timeout))
        if facts.api.state == "ready":
            with _waiting(f"Waiting for a decision from {client.url}", progress):
                found = speed.measure(client)
            facts = replace(facts, speed=_without(wishes.key, found))
    return without_users((facts, next_step(facts, _commands())))


def _look(url: str, backend_url: str, environment: Mapping[str, str], *, seconds: float) -> Facts:
    place, here, chosen, options, trouble = None, None, None, None, None
    try:
        place = home(environment)
        here = installed.look(environment, place)
        chosen, options = choosing.look(environment, place)
    except CannotStart as error:
        trouble = error.message
    except RuntimeError as error:  # a ~ where there is no home folder
        trouble = str(error)
    weights = None if chosen is None else Path(chosen.weights.path)
    backend = running.backend(backend_url, weights=weights, seconds=seconds)
    needed = _memory(chosen, options, place, environment, is_running=backend.is_chosen)
    is_damaged = needed is not None and needed.trouble is not None
    places = {} if chosen is None else reachable.wanted(chosen, environment, is_damaged=is_damaged)
    return Facts(
        installed=here,
        chosen=chosen,
        trouble=trouble,
        hosts=reachable.look(places),
        backend=backend,
        api=running.api(url, seconds=seconds),
        memory=needed,
        speed=Speed("not tried", "no API is ready"),
    )


def _memory(
    chosen: Chosen | None,
    options: ServerOptions | None,
    place: Home | None,
    environment: Mapping[str, str],
    *,
    is_running: bool,
) -> Memory | None:
    """None where there is no model file. Its `trouble` is why the file could not be understood."""
    if chosen is None or options is None or place is None or chosen.weights.bytes is None:
        return None
    store = machine.store(place.slot_path(environment), ApiSettings().prefix_cache_bytes)
    gpus = choosing.used_gpus(chosen)
    room = _room(chosen) if gpus else machine.memory()
    path, projector = chosen.weights.path, None
    try:
        shape = model_shape(gguf.read(Path(path)))
        if chosen.projector is not None and chosen.projector.bytes is not None:
            path = chosen.projector.path
            projector = chosen.projector.bytes, projector_shape(gguf.read(Path(path)))
    except gguf.BadGguf as error:
        return Memory((), 0, room, store, "unknown", trouble=str(error), damaged=path)
    found = memory.parts(shape, options, weights=chosen.weights.bytes, projector=projector, has_gpu=bool(gpus))
    return memory.judged(found, room, store, shape=shape, options=options, is_running=is_running)


def _room(chosen: Chosen) -> Room:
    """What the GPUs have together. A number of layers leaves the rest to the processor, and how large that is depends
    on the model; then the total is not told, and nothing is judged."""
    gpus = choosing.used_gpus(chosen)
    names = " and ".join(gpu.name for gpu in gpus)
    if (chosen.settings.gpu_layers or "").isdecimal():
        return Room(f"memory of {names}, for {chosen.settings.gpu_layers} layers", None, None, is_gpu=True)
    totals, frees = [gpu.total for gpu in gpus], [gpu.free for gpu in gpus]
    if None in totals or None in frees:
        return Room(f"memory of {names}", None, None, is_gpu=True)
    return Room(f"memory of {names}", sum(filter(None, totals)), sum(filter(None, frees)), is_gpu=True)


def _checked(url: str) -> str:
    try:
        with Client(url) as client:
            return client.url
    except UnusableServer as error:
        raise UnusableServer(f"--backend-url: {error.message}") from error


def _without(key: str, found: Speed) -> Speed:
    """A server may repeat what it was sent; the key goes no further."""
    return replace(found, says=found.says.replace(key, "***")) if len(key) >= SHORTEST_KEY else found


def _commands() -> Commands:
    setup, up, backend, serve = map(called, ("setup", "up", "backend", "serve"))
    # Where the scripts are, `systemone` need not be on the path.
    ask = "systemone" if up.startswith("jev-local") else "python3 systemone_client.py"
    install = f"pip install {shlex.quote(wheel_requirement())}"
    return Commands(setup=setup, up=up, backend=backend, serve=serve, ask=ask, install=install)


def _waiting(what: str, stream: TextIO | None) -> AbstractContextManager[None]:
    return nullcontext() if stream is None else waiting(what, stream)
