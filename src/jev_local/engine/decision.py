"""What the engine gives back: answers, usage and a trace that is rendered once, to headers and logs alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from jev_local.core.answers import Answer
from jev_local.core.chats import Chat
from jev_local.core.compared import Compared
from jev_local.core.events import Event
from jev_local.core.explain import Explanation
from jev_local.core.pictures import NO_PICTURES, Album
from jev_local.core.questions import Question
from jev_local.core.sharing import Strategy

StateCache = Literal["shared", "off-short", "off", "off-images"]

PrefixSource = Literal["none", "computed", "slot", "memory", "disk"]
"""Where the shared prefix came from: nowhere (nothing is reused), evaluated now, still in a slot, or a snapshot that
this process saved (memory) or found when it started (disk)."""

STAGES = ("tokenize", "lease", "prefix", "restore", "decode", "total")
"""What a request's time goes into; `prefix` is evaluating and saving it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """input_tokens: whole prompt lengths summed over the questions, reused tokens included.
    output_tokens: tokens generated."""

    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """How the answers came about. Token counts are over all questions and repeated reads of the request.

    prefix_tokens: tokens that all asked questions begin with.
    reevaluated: questions whose reuse failed and that were evaluated again in full.
    timings_ms: stage name -> milliseconds, in the order of `STAGES`.
    """

    state_cache: StateCache = "off-short"
    prefix_tokens: int = 0
    cached_tokens: int = 0
    processed_tokens: int = 0
    source: PrefixSource = "none"
    strategy: Strategy = "plain"
    reevaluated: int = 0
    timings_ms: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """`answers` stand in the order of the questions; `model` is the name of the model that gave them."""

    model: str
    answers: tuple[Answer, ...]
    usage: Usage = Usage()
    trace: Trace = Trace()


@dataclass(frozen=True, slots=True)
class Status:
    """What `/ready` and `/v1/models` tell. Holds no paths."""

    status: Literal["ready", "starting", "unavailable"]
    reason: str | None = None
    model: str | None = None
    build: str | None = None
    slots: int | None = None
    context: int | None = None
    vision: bool | None = None
    single_labels: int | None = None
    state_cache: dict[str, object] = field(default_factory=dict)
    chats: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What `GET /v1/cache` tells about the store of prefix snapshots. Holds no state text and no paths.

    sharing: whether states are shared at all just now, else `reason`. saving: False while saving is off, as after a
    full disk; then `reason` says so.
    """

    mode: Literal["auto", "shared", "off"]
    sharing: bool
    saving: bool
    reason: str | None
    bytes: int = 0
    budget: int = 0
    entries: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0


class Talk(Protocol):
    """A chat that is being answered."""

    @property
    def trace(self) -> Trace:
        """How the prompt came to be in the slot; complete from the start."""
        ...

    @property
    def prompt_ms(self) -> float:
        """Milliseconds in which the prompt was read before llama-server was handed the request."""
        ...

    @property
    def is_counted(self) -> bool:
        """Whether the trace is of the whole prompt. Of several prompts llama-server's own counts hold."""
        ...

    def events(self) -> AsyncIterator[Event]:
        """What llama-server sends, once. Raises BackendError."""
        ...


class Engine(Protocol):
    """What the HTTP layer needs from below; `engine.service.Service` is the real one."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def decide(self, *, state: str, questions: tuple[Question, ...], album: Album = NO_PICTURES) -> Decision:
        """Answer every question, with the pictures of `album` where their marks stand. Raises CallerError, Busy or
        BackendError. Cancelling it cancels the work."""
        ...

    def chat(self, chat: Chat) -> AbstractAsyncContextManager[Talk]:
        """Answer a chat. The slot is held until the block is left, and leaving it ends the work. Raises ChatsOff,
        CallerError, Busy or BackendError."""
        ...

    async def explain(self, a: Compared, b: Compared) -> Explanation:
        """Why `b` did not reuse what `a` had read, or would not. Raises CallerError or BackendError."""
        ...

    def status(self) -> Status: ...

    def cache(self) -> CacheReport: ...

    async def clear_cache(self) -> int:
        """Delete every stored prefix snapshot; how many there were."""
        ...
