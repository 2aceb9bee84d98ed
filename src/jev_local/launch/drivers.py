"""Whether a GPU of some kind is worth a download: what its driver leaves in the file system.

Only asked before `--backend auto` fetches some hundred megabytes. The program that is fetched has the last word.
"""

from __future__ import annotations

import ctypes.util
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

WSL = Path("/usr/lib/wsl/lib/libcuda.so.1")


def _cuda() -> bool:
    return (
        any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/nvidia0", WSL))
        or ctypes.util.find_library("cuda") is not None
        or shutil.which("nvidia-smi") is not None
    )


def _rocm() -> bool:
    return Path("/dev/kfd").exists()


SIGNS: Mapping[str, tuple[Callable[[], bool], str]] = MappingProxyType(
    {
        "cuda": (_cuda, "there is no NVIDIA driver (no /dev/nvidiactl, no libcuda, no nvidia-smi)"),
        "rocm": (_rocm, "there is no AMD GPU driver (no /dev/kfd)"),
    }
)


def missing(backend: str) -> str | None:
    """Why a download for `backend` would be in vain here; None where it may be worth it."""
    sign = SIGNS.get(backend)
    return None if sign is None or sign[0]() else sign[1]
