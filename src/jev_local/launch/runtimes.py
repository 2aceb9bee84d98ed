"""Official builds of llama-server: which archives there are for a machine, and where they are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from jev_local.launch.pins import Pinned, UrlSource

BUILD = "b11042"
RELEASE = f"https://github.com/ggml-org/llama.cpp/releases/download/{BUILD}"

BACKENDS = ("cpu", "cuda", "rocm", "metal")
DEVICE_PREFIX = MappingProxyType({"cuda": "CUDA", "rocm": "ROCm", "metal": "MTL"})
"""What the devices of a backend are called in `--list-devices`. A processor is not listed."""

OTHERWISE = "name a llama-server of yours with LLAMA_SERVER"


@dataclass(frozen=True, slots=True)
class Runtime:
    """One build for `backend`. `archives` all go into one folder called `name`: a GPU's libraries have to lie beside
    the program."""

    name: str
    backend: str
    archives: tuple[Pinned, ...]

    @property
    def device_prefix(self) -> str | None:
        return DEVICE_PREFIX.get(self.backend)


def _archive(file: str, sha256: str) -> Pinned:
    return Pinned(
        what=f"the archive {file}",
        file=file,
        sha256=sha256,
        licence="MIT" if not file.startswith("cudart") else "NVIDIA's, for redistributable libraries",
        otherwise=OTHERWISE,
        sources=(UrlSource(f"{RELEASE}/{file}"),),
    )


_LINUX_CPU = _archive(
    f"llama-{BUILD}-bin-ubuntu-x64.tar.gz", "35bdefc2836e8403c9ab6a86b23189ca2c750e04e1a356567824d6408c130526"
)
_LINUX_ARM = _archive(
    f"llama-{BUILD}-bin-ubuntu-arm64.tar.gz", "9f56880976369358d3e10f2c060d92f405850685f327e065e23dbf36d0a13583"
)
_LINUX_CUDA = _archive(
    f"llama-{BUILD}-bin-ubuntu-cuda-12.8-x64.tar.gz", "461164beeb85b2af49bf1e5f0255624846364766f6348ebf21ca1be3063491e7"
)
_CUDA_LIBRARIES = _archive(
    f"cudart-llama-{BUILD}-bin-ubuntu-cuda-12.8-x64.tar.gz",
    "5be21a24b186ebc3cf1854990cf63421dcec2689fe3d5429ef52c8b058aa7926",
)
_LINUX_ROCM = _archive(
    f"llama-{BUILD}-bin-ubuntu-rocm-10.0-x64.tar.gz", "387861150c73609442e313aefb187278cb04ffe2890c7a025f5bacb2b9b739d9"
)
_MACOS_ARM = _archive(
    f"llama-{BUILD}-bin-macos-arm64.tar.gz", "899ac640477a6e6eb96557db7b8a94ada034ebe1a8ce77965f0c1c722f9db373"
)
_MACOS_X64 = _archive(
    f"llama-{BUILD}-bin-macos-x64.tar.gz", "bc6676cefda42a996f21fc854fa581fc75694793921b793e5ef5dd482478cea6"
)


def _runtime(machine: str, backend: str, *archives: Pinned) -> Runtime:
    return Runtime(f"{BUILD}-{machine}-{backend}", backend, archives)


RUNTIMES: Mapping[tuple[str, str], tuple[Runtime, ...]] = MappingProxyType(
    {
        ("Linux", "x86_64"): (
            _runtime("linux-x86_64", "cuda", _LINUX_CUDA, _CUDA_LIBRARIES),
            _runtime("linux-x86_64", "rocm", _LINUX_ROCM),
            _runtime("linux-x86_64", "cpu", _LINUX_CPU),
        ),
        ("Linux", "aarch64"): (_runtime("linux-aarch64", "cpu", _LINUX_ARM),),
        ("Darwin", "arm64"): (
            Runtime(f"{BUILD}-darwin-arm64", "metal", (_MACOS_ARM,)),  # one archive for both
            Runtime(f"{BUILD}-darwin-arm64", "cpu", (_MACOS_ARM,)),
        ),
        ("Darwin", "x86_64"): (_runtime("darwin-x86_64", "cpu", _MACOS_X64),),
    }
)
"""What there is for a machine, by `platform.system()` and `platform.machine()`; the best is first."""


def candidates(system: str, machine: str, backend: str) -> tuple[Runtime, ...]:
    """Those that may be tried for `backend`, in order; `auto`: all of the machine's. Empty where there are none."""
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine) if system == "Linux" else machine
    return tuple(one for one in RUNTIMES.get((system, machine), ()) if backend in ("auto", one.backend))
