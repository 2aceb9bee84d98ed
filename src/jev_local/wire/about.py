"""What the service tells about itself, as pydantic models: its models, whether it is ready, what it has saved."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from jev_local.core.sharing import Mode, Strategy
from jev_local.wire.schema import Told


class ModelEntry(Told):
    """TypeSafe's shape."""

    name: str
    description: str
    release_date: str


class OpenAIModelEntry(Told):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelsReply(Told):
    object: Literal["list"] = "list"
    models: list[ModelEntry]
    data: list[OpenAIModelEntry]


class BackendReply(Told):
    build: str | None
    slots: int | None
    context: Annotated[int | None, Field(description="Tokens that one prompt may have.")]
    vision: bool | None


class LabelsReply(Told):
    single: Annotated[int | None, Field(description="Options that can be told apart in one step.")]


class StrategyReply(Told):
    """One way to go on from what questions begin with, as the inference server was found to do it."""

    name: Strategy
    exact: Annotated[bool, Field(description="Whether the answers were those without any reuse.")]
    ms: Annotated[float | None, Field(description="Milliseconds it took when it was tried, null where it was not.")]


class StateCacheReply(Told):
    """Reuse of what questions begin with. Without fields as long as nothing is known of the inference server."""

    mode: Annotated[Mode, Field(description="As `--state-cache` has it.")] = "auto"
    sharing: Annotated[bool, Field(description="Whether there is reuse between questions just now.")] = False
    reason: Annotated[str | None, Field(description="Why it is as it is.")] = None
    strategies: list[StrategyReply] = Field(default_factory=list, description="What was tried, and may be empty.")


class ReadyReply(Told):
    status: Literal["ready", "starting", "unavailable"]
    reason: str | None
    model: str | None
    backend: BackendReply
    labels: LabelsReply
    state_cache: StateCacheReply


class CacheReply(Told):
    """The states that are saved, in numbers. None of their text is told, nor where they are."""

    mode: Annotated[Mode, Field(description="As `--state-cache` has it.")]
    sharing: Annotated[bool, Field(description="Whether there is reuse between questions just now.")]
    saving: Annotated[bool, Field(description="false while nothing more is saved, as after a full disk.")]
    reason: Annotated[str | None, Field(description="Why nothing is shared or saved.")]
    bytes: Annotated[int, Field(description="What the saved states take.")]
    budget: Annotated[int, Field(description="What they may take: `--prefix-cache-bytes`.")]
    entries: Annotated[int, Field(description="How many there are.")]
    hits: Annotated[int, Field(description="Times that one was looked for and found since the service started.")]
    misses: Annotated[int, Field(description="Times that none was found.")]
    evictions: Annotated[int, Field(description="States deleted to make room for others.")]


class ClearedReply(Told):
    """What became of the saved states."""

    deleted: Annotated[int, Field(description="How many there were.")]
