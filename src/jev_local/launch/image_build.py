"""The experimental llama-server with the image-encoder cache: where it is, whether it is whole, what it runs with."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jev_local.backend.devices import CannotList, devices, folders
from jev_local.launch import choice
from jev_local.launch.errors import CannotStart
from jev_local.launch.home import absolute, home

BUILD_VARIABLE = "JEV_IMAGE_CACHE_BUILD"
LIMIT_VARIABLE = "JEV_IMAGE_CACHE_MIB"
DEFAULT_LIMIT, LARGEST_LIMIT = 128, 4096
"""MiB of pictures and what the encoder made of them. 0: nothing is kept, and nothing looked up."""

CONTEXT = "32768"
"""Tokens for four slots: a large picture alone takes some 2,800 of them in every question."""

DEFAULT_DEVICE, NO_DEVICE = "ROCm0", "none"
VENDOR = Path(".lmstudio", "extensions", "backends", "vendor", "linux-llama-rocm-vendor-v4")
"""Below the user's home: the ROCm libraries that LM Studio brings along."""

RECORD = "jev-build.json"
SERVER = Path("bin", "llama-server")


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """A finished build. `record` is what its builder wrote down; `backend` is `rocm` or `cpu`."""

    folder: Path
    backend: str
    record: Mapping[str, Any]

    @property
    def server(self) -> Path:
        return self.folder / SERVER

    @property
    def version(self) -> str:
        """What the server said of itself when it was built, if that was written down."""
        told = self.record.get("build")
        version = told.get("version") if isinstance(told, dict) else None
        return version if isinstance(version, str) else "version unknown"


def find_build(environment: Mapping[str, str], *, cpu: bool, cpu_option: str) -> ImageBuild:
    """The build that JEV_IMAGE_CACHE_BUILD names or scripts/build_image_cache.py left, every file as it was recorded.
    With `cpu`, which the user asks for with `cpu_option`, any will do. CannotStart tells how to make one."""
    named = environment.get(BUILD_VARIABLE)
    # The builder writes into the checkout, whatever JEV_HOME says.
    folder = absolute(named, setting=BUILD_VARIABLE) if named else home({}).cache / "vision-build-gcc"
    build = _recorded(folder, make=build_command(cpu=cpu))
    if build.backend == "cpu" and not cpu:
        raise CannotStart(
            f"the build in {folder} is for CPUs alone: add {cpu_option}, or build for a GPU with "
            f"{build_command(cpu=False)}",
            code=2,
        )
    return build


def build_command(*, cpu: bool) -> str:
    return "python3 scripts/build_image_cache.py --jobs 8" + (" --backend cpu" if cpu else "")


def _recorded(folder: Path, *, make: str) -> ImageBuild:
    try:
        record = json.loads((folder / RECORD).read_bytes())
        files = record["files"]
        whole = str(SERVER) in files and all(_sha256(folder / name) == digest for name, digest in files.items())
        build = ImageBuild(folder, str(record["backend"]), record)
    except FileNotFoundError as error:
        if Path(error.filename) == folder / RECORD:
            raise CannotStart(f"there is no build with the image cache in {folder}: make it with {make}") from error
        whole = False
    except (KeyError, TypeError, ValueError, AttributeError):
        whole = False
    except OSError as error:
        raise CannotStart(f"cannot read {error.filename}: {error.strerror}") from error
    if not whole:
        raise CannotStart(f"the build in {folder} is not what {RECORD} there says: build again with {make}")
    return build


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def limit(environment: Mapping[str, str]) -> int:
    """JEV_IMAGE_CACHE_MIB, 128 where it is not set. The server checks it too, when its model has been loaded."""
    text = environment.get(LIMIT_VARIABLE)
    if text is None:
        return DEFAULT_LIMIT
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) > LARGEST_LIMIT:
        raise CannotStart(
            f"{LIMIT_VARIABLE} has to be a whole number from 0 (no cache) to {LARGEST_LIMIT}, got {text!r}", code=2
        )
    return int(text)


def library_path(environment: Mapping[str, str]) -> str | None:
    """LD_LIBRARY_PATH for a GPU: ROCM_LIBRARY_DIR, else LM Studio's folder where there is one, before what it was; else
    what set-up kept. None where there is nothing to say: the system's libraries may do."""
    before = folders(environment.get("LD_LIBRARY_PATH"))
    named, user = environment.get("ROCM_LIBRARY_DIR"), environment.get("HOME")
    if named:
        folder = absolute(named, setting="ROCM_LIBRARY_DIR")
        if not folder.is_dir():
            raise CannotStart(f"ROCM_LIBRARY_DIR {folder} is not a folder", code=2)
    elif user and (Path(user) / VENDOR).is_dir():
        folder = Path(user) / VENDOR
    else:
        return os.pathsep.join(before) or _kept(environment)
    return os.pathsep.join([str(folder), *before])


def _kept(environment: Mapping[str, str]) -> str | None:
    chosen = choice.read(home(environment))
    return chosen.library_path if chosen.backend == "rocm" else None


def server_settings(
    environment: Mapping[str, str], build: ImageBuild, *, device: str | None, context: str
) -> dict[str, str]:
    """What an inference server of this build is started with, as the variables that `jev-local` knows: an environment
    made of `environment`. `device` None: the processor."""
    made = dict(environment) | {
        "LLAMA_SERVER": str(build.server),
        "GPU_DEVICE": device or NO_DEVICE,
        "CTX_SIZE": context,
        "CHAT_SLOTS": environment.get("CHAT_SLOTS") or "0",  # it is decisions that have images
        LIMIT_VARIABLE: str(limit(environment)),
    }
    path = library_path(environment) if device else None
    return made if path is None else made | {"LD_LIBRARY_PATH": path}


def require_device(build: ImageBuild, settings: Mapping[str, str], *, cpu_option: str) -> None:
    """CannotStart unless the server sees its GPU_DEVICE. It passes over a GPU plugin whose libraries are missing in
    silence, and then only says that the name is not known."""
    wanted = settings["GPU_DEVICE"]
    if wanted == NO_DEVICE:
        return
    try:
        seen = [device.name for device in devices(build.server, settings)]
    except CannotList as error:
        raise CannotStart(f"{build.server} does not run: {error}") from error
    if set(wanted.split(",")) <= set(seen):
        return
    raise CannotStart(
        f"llama-server sees no {wanted} here, but {', '.join(seen) or 'no GPU'}: choose another with GPU_DEVICE, name "
        f"the folder of the ROCm libraries with ROCM_LIBRARY_DIR, or do without a GPU with {cpu_option}",
        code=2,
    )
