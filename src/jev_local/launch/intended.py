"""What a start would start: the model and the inference server that variables, set-up and defaults come to."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from jev_local.called import called
from jev_local.launch import choice
from jev_local.launch.errors import CannotStart
from jev_local.launch.home import Home, absolute
from jev_local.launch.models import Model, choose

DEFAULT_MODEL = "starter"


@dataclass(frozen=True, slots=True)
class Intended:
    """`model` None: a file of the user's. `projector` None: no images. `binary` None: the server in the wheel.
    `backend` and `library_path` belong to a server that set-up fetched. Nothing says that any of it is there."""

    model: Model | None
    weights: Path
    projector: Path | None
    model_from: str
    binary: Path | None
    binary_from: str
    backend: str | None = None
    library_path: str | None = None

    @property
    def has_pinned_projector(self) -> bool:
        """Whether the projector is the one that belongs to a model known by name."""
        pinned = self.model and self.model.projector
        return bool(pinned and self.projector == self.weights.parent / pinned.file)


def intended(
    environment: Mapping[str, str], home: Home, *, wish: str | None = None, mmproj: str | None = None
) -> Intended:
    """`wish` and `mmproj` are what the command line says. Makes and starts nothing; CannotStart for a name that is
    none, a program that cannot be run, or a choice that cannot be read."""
    chosen = choice.read(home)
    named, model_from = _first(
        ("--model", wish), ("MODEL", environment.get("MODEL")), ("set-up", chosen.model), ("the default", DEFAULT_MODEL)
    )
    model = choose(named)
    projector = _projector(mmproj or environment.get("MMPROJ"), model, home)
    binary, binary_from = _server(environment, chosen)
    of_set_up = binary_from == "set-up"
    return Intended(
        model=None if isinstance(model, Path) else model,
        weights=model if isinstance(model, Path) else home.models / model.weights.file,
        projector=projector,
        model_from=model_from,
        binary=binary,
        binary_from=binary_from,
        backend=chosen.backend if of_set_up else None,
        library_path=chosen.library_path if of_set_up else None,
    )


def _first(*options: tuple[str, str | None]) -> tuple[str, str]:
    """The first that says anything, and who says it."""
    return next((value, name) for name, value in options if value)


def _projector(named: str | None, model: Model | Path, home: Home) -> Path | None:
    if named:
        return absolute(named, setting="MMPROJ")
    pinned = None if isinstance(model, Path) else model.projector
    return home.models / pinned.file if pinned else None


def _server(environment: Mapping[str, str], chosen: choice.Chosen) -> tuple[Path | None, str]:
    if named := environment.get("LLAMA_SERVER"):
        found = shutil.which(absolute(named, setting="LLAMA_SERVER") if "/" in named else named)
        if found is None:
            raise CannotStart(f"LLAMA_SERVER={named} is not a program that can be run", code=2)
        return Path(found).absolute(), "LLAMA_SERVER"
    if chosen.server is None:
        return None, "the wheel"
    if shutil.which(chosen.server) is None:
        raise CannotStart(
            f"the llama-server that set-up chose is gone ({chosen.server}): run {called('setup')} again, or name "
            "another with LLAMA_SERVER"
        )
    return chosen.server, "set-up"


def has_wheel() -> bool:
    return importlib.util.find_spec("xllamacpp") is not None


def wheel_requirement() -> str:
    """The wheel with a llama-server in it, in the version that this distribution was measured with."""
    try:
        required = metadata.requires("jev-local") or []
    except metadata.PackageNotFoundError:  # run from its sources, never installed
        required = []
    wheels = (line.partition(";")[0].strip() for line in required)
    return next((wheel for wheel in wheels if wheel.startswith("xllamacpp")), "xllamacpp")
