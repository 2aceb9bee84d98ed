"""What the service tells about itself, as pydantic models: its models, whether it is ready, what it has saved."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from jev_local.core.compared import Form
from jev_local.core.reasons import CheckName
from jev_local.core.sharing import Mode, Strategy
from jev_local.core.values import Kind
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


class ChatsReply(Told):
    """The part of the inference server that is for chats. Without fields as long as nothing is known of it."""

    slots: Annotated[int, Field(description="How many; 0: chats are not served.")] = 0
    context: Annotated[int, Field(description="Tokens that all chats may take together.")] = 0
    reason: Annotated[str | None, Field(description="Why there are none.")] = None


class ReadyReply(Told):
    status: Literal["ready", "starting", "unavailable"]
    reason: str | None
    model: str | None
    backend: BackendReply
    labels: LabelsReply
    state_cache: StateCacheReply
    chats: ChatsReply


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


class ExplainedSide(Told):
    """One of the two requests that were compared."""

    form: Annotated[Form, Field(description="decision (it has `questions`), chat (`messages`) or text (`prompt`).")]
    tokens: Annotated[int, Field(description="Of its whole prompt; of a decision, of its first question's.")]
    reusable: Annotated[
        int, Field(description="How many of them come before the questions, or before the last user message.")
    ]


class ExplainedPlace(Told):
    """Where the two prompts part, as text."""

    kind: Annotated[
        Kind,
        Field(description="What stands there. question: the part that is meant to differ; text: none of the others."),
    ]
    before: Annotated[str, Field(description="The last 80 characters that both have in common, or fewer.")]
    a: Annotated[str, Field(description="The next 80 characters of the first request's prompt.")]
    b: Annotated[str, Field(description="Of the second one's.")]
    a_value: Annotated[str, Field(description="The whole value that stands there, its beginning in `before` included.")]
    b_value: str


class ExplainedMove(Told):
    """One thing that stands in the way, and what would be shared if it and those before it stood behind it all."""

    kind: Kind
    a: str
    b: str
    agree: Annotated[int, Field(description="Tokens that would agree: what is left of both is tokenised anew.")]


class ExplainedCheck(Told):
    check: CheckName
    outcome: Annotated[str, Field(description="One word, such as same, restarted, evicted or never-kept.")]
    says: Annotated[str, Field(description="A sentence; nothing of the requests is in it.")]


class ExplainReply(Told):
    """Why the second of two requests reused what the first one had, or did not."""

    agree: Annotated[int, Field(description="Tokens that both prompts begin with.")]
    whole: Annotated[bool, Field(description="Whether those are all that could have been reused.")]
    a: ExplainedSide
    b: ExplainedSide
    place: Annotated[ExplainedPlace | None, Field(description="null where the prompts are the same.")]
    moves: list[ExplainedMove]
    checks: Annotated[
        list[ExplainedCheck],
        Field(
            description="In this order: the text really sent; and where that is the same, the server's process, the "
            "saved state, and whether the model's state can be cut back."
        ),
    ]
    advice: str
