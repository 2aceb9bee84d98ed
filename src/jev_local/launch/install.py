"""One official build of llama-server: fetched, unpacked, and asked whether it can do here what it is for."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jev_local.backend.devices import CannotList, devices, with_libraries
from jev_local.launch.alone import alone
from jev_local.launch.fetch import discard, failed, fetch
from jev_local.launch.home import Home
from jev_local.launch.image_build import library_path
from jev_local.launch.runtimes import Runtime
from jev_local.launch.unpacked import SERVER, is_unpacked, unpack

ROCM_REMEDY = "name the folder of the ROCm libraries with LD_LIBRARY_PATH or ROCM_LIBRARY_DIR"

ARCHIVES = "archives"
"""Where they lie until they are unpacked, below the runtimes."""


class Unfit(Exception):
    """This build runs not, or sees no device of its kind here, with the reason."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A program that runs here, and LD_LIBRARY_PATH as it needs it. `sees`: its devices, in its own words."""

    server: Path
    library_path: str | None
    sees: tuple[str, ...] = ()


def install(runtime: Runtime, home: Home, environment: Mapping[str, str]) -> Installed:
    """Unfit where it cannot be used; NotFetched where it cannot be had; CannotStart for all that the person has to
    mend first."""
    folder = home.runtimes / runtime.name
    archives = home.runtimes / ARCHIVES
    try:
        home.make()
        home.runtimes.mkdir(mode=0o700, exist_ok=True)
        with alone(home.runtimes / ".lock", "Waiting for another set-up"):
            if not is_unpacked(folder, runtime.archives):
                files = [fetch(archive, archives, log=home.fetch_log) for archive in runtime.archives]
                unpack(files, runtime.archives, folder)
                for archive in runtime.archives:  # hundreds of megabytes, and all of it is in the folder now
                    discard(archive, archives)
    except OSError as error:
        raise failed(error, home.runtimes) from error
    return check(runtime, folder / SERVER, environment)


def check(runtime: Runtime, server: Path, environment: Mapping[str, str]) -> Installed:
    """Whether it runs, and lists a device of its backend."""
    path = _libraries(runtime, server, environment)
    remedy = ""
    if runtime.backend == "rocm":
        remedy = f" (LD_LIBRARY_PATH was {path or 'not set'}): {ROCM_REMEDY}"
    try:
        seen = devices(server, with_libraries(environment, path))
    except CannotList as error:
        raise Unfit(f"it does not run here: {error}{remedy}") from error
    prefix = runtime.device_prefix
    if prefix and not any(device.name.startswith(prefix) for device in seen):
        names = ", ".join(device.name for device in seen) or "no device"
        raise Unfit(f"it lists {names} and no {prefix}{remedy or _driver_remedy(runtime)}")
    return Installed(server, path, tuple(f"{device.name}, {device.about}" for device in seen))


def _driver_remedy(runtime: Runtime) -> str:
    if runtime.backend == "cuda":
        return ": see whether nvidia-smi shows the GPU, and a driver for CUDA 12.8 or newer"
    return f": macOS on {platform.machine()} offers it none" if runtime.backend == "metal" else ""


def _libraries(runtime: Runtime, server: Path, environment: Mapping[str, str]) -> str | None:
    if runtime.backend == "rocm":
        return library_path(environment)
    return str(server.parent) if runtime.backend == "cuda" else None
