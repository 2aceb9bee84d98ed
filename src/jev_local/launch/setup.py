"""`jev-local setup`: a real model and a llama-server that suits this machine, fetched, checked, and kept as the choice
of every later start."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jev_local.called import called
from jev_local.launch import choice, drivers, setup_plan
from jev_local.launch.choice import Chosen
from jev_local.launch.errors import CannotStart, NotFetched
from jev_local.launch.fetch import fetch
from jev_local.launch.home import Home
from jev_local.launch.install import Installed, Unfit, install
from jev_local.launch.intended import has_wheel, wheel_requirement
from jev_local.launch.models import Model, choose, require_gguf
from jev_local.launch.progress import say
from jev_local.launch.runtimes import Runtime, candidates
from jev_local.launch.signals import Interruptions

DEFAULT_MODEL = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """`model` None: what was chosen before, else `text`. `backend`: one of `runtimes.BACKENDS`, or `auto`."""

    model: str | None = None
    backend: str = "auto"
    model_only: bool = False
    dry_run: bool = False


def run(wishes: Wishes, environment: Mapping[str, str], home: Home) -> int:
    """0 when all that was wished for is there and kept. CannotStart says what is not, and nothing is kept then."""
    if wishes.model_only and wishes.backend != "auto":
        raise CannotStart(
            f"--model-only leaves the llama-server as it is: leave --backend {wishes.backend} out", code=2
        )
    before = choice.read(home)
    name = wishes.model or before.model or DEFAULT_MODEL
    model = choose(name)
    if isinstance(model, Path):
        require_gguf(model, "model")
        name = str(model)
    runtimes = () if wishes.model_only else _candidates(wishes.backend)
    say(setup_plan.told(home, name=name, model=model, runtimes=runtimes, wishes=(wishes.backend, wishes.model_only)))
    if wishes.dry_run:
        return 0
    home.make()
    try:
        with Interruptions():
            # The program first: it is smaller, and a GPU that is not there is known before a gigabyte is fetched.
            after = None if wishes.model_only else _with_runtime(wishes, runtimes, environment, home)
            if isinstance(model, Model):
                for pinned in model.files:
                    fetch(pinned, home.models, log=home.fetch_log)
            # Another set-up may have changed the rest meanwhile.
            kept = choice.change(home, lambda now: replace(after or now, model=name))
    except KeyboardInterrupt:
        say("Interrupted; run it again to go on")
        return 130
    say(setup_plan.farewell(kept, home, environment))
    return 0


def _candidates(backend: str) -> tuple[Runtime, ...]:
    system, machine = platform.system(), platform.machine()
    found = candidates(system, machine, backend)
    if found or backend == "auto":
        return found
    others = ", ".join(one.backend for one in candidates(system, machine, "auto")) or "none at all"
    raise CannotStart(
        f"there is no official llama.cpp build with {backend} for {system} on {machine}; there is: {others}", code=2
    )


def _with_runtime(wishes: Wishes, runtimes: tuple[Runtime, ...], environment: Mapping[str, str], home: Home) -> Chosen:
    """The first of them that works here. With a backend named, that one or CannotStart."""
    for runtime in runtimes:
        reason = drivers.missing(runtime.backend) if wishes.backend == "auto" else None
        if reason is None:
            try:
                installed = install(runtime, home, environment)
            except (Unfit, NotFetched) as error:
                reason = str(error)
            else:
                say(f"llama-server for {runtime.backend}: {_sees(installed)}")
                return Chosen(backend=runtime.backend, server=installed.server, library_path=installed.library_path)
        if wishes.backend != "auto":
            raise CannotStart(f"llama-server for {runtime.backend} cannot be used: {reason}")
        say(f"llama-server for {runtime.backend}: passed over, {reason}")
    if not has_wheel():
        raise CannotStart(
            f"no llama-server can be had here: install the one in the wheel (pip install {wheel_requirement()}), or "
            "name one of yours with LLAMA_SERVER"
        )
    say(
        f"No official build could be taken: {called('up')} uses the server in the xllamacpp wheel, which runs on any "
        "processor and is slower"
    )
    return Chosen()


def _sees(installed: Installed) -> str:
    return f"it runs, and lists {'; '.join(installed.sees)}" if installed.sees else "it runs"
