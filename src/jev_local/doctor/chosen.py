"""What the next start would start, and the files and GPUs that it would find."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jev_local.backend.devices import CannotList, devices, with_libraries
from jev_local.backend.embedded import ServerOptions, server_environment
from jev_local.doctor.facts import Chosen, File, Gpu, Settings
from jev_local.doctor.installed import begun, size_of
from jev_local.launch.errors import CannotStart
from jev_local.launch.home import Home
from jev_local.launch.intended import Intended, intended
from jev_local.launch.pins import Pinned, WheelSource
from jev_local.launch.ports import BACKEND_PORT

_SHARD = re.compile(r"-\d{5}-of-(\d{5})\.gguf$", re.IGNORECASE)


def look(environment: Mapping[str, str], home: Home) -> tuple[Chosen, ServerOptions]:
    """CannotStart where variables and set-up say nothing that could be started."""
    meant = intended(environment, home)
    try:
        options = ServerOptions.from_environment(
            environment,
            model=meant.weights,
            mmproj=meant.projector,
            port=BACKEND_PORT,
            slot_dir=home.slot_path(environment),
        )
    except ValueError as error:
        raise CannotStart(str(error), code=2) from error
    if meant.backend == "cpu" and options.gpu_device is None:
        options = replace(options, gpu_device="none")
    seen, trouble = _gpus(meant, environment)
    return (
        Chosen(
            model=meant.model.name if meant.model else None,
            model_from=meant.model_from,
            weights=_file(meant.weights, meant.model.weights if meant.model else None),
            projector=None
            if meant.projector is None
            else _file(meant.projector, meant.model.projector if meant.model and meant.has_pinned_projector else None),
            server=None if meant.binary is None else str(meant.binary),
            server_from=meant.binary_from,
            backend=meant.backend,
            gpus=seen,
            gpus_trouble=trouble,
            settings=_settings(options, has_gpu=bool(seen)),
            in_index=meant.model is not None and all(map(_is_in_index, meant.model.files)),
        ),
        options,
    )


def _file(path: Path, pinned: Pinned | None) -> File:
    if pinned is None:
        return File(str(path), _weights(path))
    return File(str(path), size_of(path), is_pinned=True, expected=pinned.size, begun=begun(pinned, path.parent))


def _is_in_index(pinned: Pinned) -> bool:
    return any(isinstance(source, WheelSource) for source in pinned.sources)


def used_gpus(chosen: Chosen) -> tuple[Gpu, ...]:
    """Those that the next server would compute on; none where it keeps to the processor."""
    settings = chosen.settings
    if settings.gpu_layers == "0" or settings.gpu_device == "none":
        return ()
    if settings.gpu_device is None:
        return chosen.gpus
    named = settings.gpu_device.split(",")
    return tuple(gpu for gpu in chosen.gpus if gpu.name in named)


def _gpus(meant: Intended, environment: Mapping[str, str]) -> tuple[tuple[Gpu, ...], str | None]:
    if meant.binary is None:
        return (), None
    try:
        seen = devices(meant.binary, with_libraries(server_environment(environment), meant.library_path))
    except CannotList as error:
        return (), str(error)
    mib = 1024 * 1024
    return tuple(
        Gpu(
            one.name,
            one.about,
            None if one.total is None else one.total * mib,
            None if one.free is None else one.free * mib,
        )
        for one in seen
    ), None


def _weights(path: Path) -> int | None:
    """All shards of a model that comes in several files; None unless each is there."""
    if (shard := _SHARD.search(path.name)) is None:
        return size_of(path)
    count = int(shard[1])
    name = path.name[: shard.start()]
    sizes = [size_of(path.with_name(f"{name}-{one:05}-of-{count:05}.gguf")) for one in range(1, count + 1)]
    return sum(size for size in sizes if size is not None) if sizes and None not in sizes else None


def _settings(options: ServerOptions, *, has_gpu: bool) -> Settings:
    batches = options.batch_sizes(has_gpu=has_gpu)
    return Settings(
        context=options.context,
        parallel=options.parallel,
        chat_slots=options.chat_slots,
        chat_context=options.room_for_chats,
        batch=None if batches is None else batches[0],
        threads=options.threads,
        gpu_layers=options.gpu_layers,
        gpu_device=options.gpu_device,
        slot_dir=options.slot_dir,
    )
