"""What the engine may ask of an inference server. `backend.llama.LlamaBackend` is the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from jev_local.core.chats import Chat
from jev_local.core.events import Event
from jev_local.core.pictures import Picture
from jev_local.core.plan import Tokens
from jev_local.core.spelling import Prompt


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """One server process with one model, as found out at start-up.

    instance: differs between two runs of the server, so that a restart is noticed.
    model: name from the model's file, without directory and suffix. alias: what the server calls it.
    build: of llama.cpp, as it says.
    slots: how many. context: tokens a slot may hold. vocabulary: number of tokens.
    token_bytes: bytes of the longest token's text, so `context * token_bytes` bounds any text that can fit.
    bos: the ids that go before every prompt, () where the model wants none.
    system_role: False where the chat template knows no system message.
    path: of the model's file, as the server was given it. meta: what the server tells of the model's insides, as text
    that is the same for the same model. Neither is shown to anybody.
    marker: what stands for a picture in a text that is sent with pictures; no text of a caller may hold it.
    parts: tokens of context that the server was started with for decisions and on top of them for chats, where it says
    so. Otherwise all slots may share one context.
    """

    instance: str
    model: str
    alias: str
    build: str
    slots: int
    context: int
    vocabulary: int
    token_bytes: int
    bos: Tokens
    system_role: bool
    vision: bool
    path: str = ""
    meta: str = ""
    marker: str = ""
    parts: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One forward pass.

    top: token id -> probability of being next, after the bias on the labels; the largest ones only. Empty where the
    token that was drawn is only part of a character: llama-server holds everything back then, and the more bias the
    labels have, the less likely that is.
    The prompt had cached_tokens (found in the slot) + processed_tokens (evaluated now).
    generated_tokens: 1, which is thrown away. alias: what the server that did it calls its model.
    """

    top: Mapping[int, float]
    cached_tokens: int
    processed_tokens: int
    alias: str
    generated_tokens: int = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """A slot written to a file: how many tokens it held, and the bytes of the file as the server counted them."""

    tokens: int
    size: int


class Backend(Protocol):
    """All methods raise BackendError; cancelling any of them ends the work on the server too."""

    async def aclose(self) -> None:
        """Close the connections. Nothing is asked of it afterwards."""
        ...

    async def instance(self) -> str:
        """Which run of the server answers now (see BackendInfo.instance)."""
        ...

    async def describe(self) -> BackendInfo: ...

    async def apply_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The model's own chat template over `messages`, ready for the assistant's turn, thinking off."""
        ...

    async def render(self, document: Mapping[str, Any]) -> str:
        """The prompt that the server makes of the chat completion request `document`, with its tools and whatever else
        its template reads. Raises Declined for one that it does not take."""
        ...

    def relay(
        self, chat: Chat, document: Mapping[str, Any], *, slot: int, reuse: bool, max_tokens: int | None
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Has `document` answered in `slot`: the server's events as they come, the first being there already when the
        block begins. `max_tokens` to generate at most, None for what `document` says. Raises Declined, PromptTooLong or
        BackendError, also while the events are read."""
        ...

    async def tokenize(self, pieces: Sequence[str], *, special: bool) -> list[Tokens]:
        """Token ids of every piece, in one round trip. `special`: control tokens in the text are recognised;
        for anything that came from a caller it has to be False."""
        ...

    async def detokenize(self, tokens: Sequence[int]) -> list[str]:
        """The text of every single token, in one round trip."""
        ...

    async def picture_size(self, picture: Picture) -> int:
        """How many tokens of the context `picture` takes in a prompt, those that the server puts around it included.
        Nothing is encoded. Raises InvalidRequest for a file that the server does not read."""
        ...

    async def complete(
        self,
        prompts: Sequence[Prompt],
        *,
        slot: int,
        labels: Sequence[int],
        bias: float,
        runners_up: int,
        reuse: bool,
    ) -> list[Completion]:
        """One forward pass per prompt, one after another in `slot`, in one round trip.

        `bias` is added to the logits of `labels`; the `runners_up` next best tokens are returned too. With `reuse`,
        what a prompt has in common with the slot's contents is not evaluated again.

        Raises Misspelled where a spelled prompt does not come to the tokens that it should, InvalidRequest for a
        picture that the server does not take.
        """
        ...

    async def evaluate(self, prompt: Prompt, *, slot: int, reuse: bool) -> Completion:
        """Bring `prompt` into `slot`, where it ends exactly; nothing is read (`top` is empty)."""
        ...

    async def save(self, slot: int, name: str) -> Saved:
        """Write what `slot` holds to the file `name` in the server's own directory.

        Raises NotSupported where it has none, BackendFault where the file could not be written: a part of it may
        lie there then.
        """
        ...

    async def restore(self, slot: int, name: str) -> int:
        """Put the file `name` into `slot`; how many tokens it holds now. BackendFault leaves the slot empty.

        The server believes whatever is in the file, and a truncated one ends it: verify the file first.
        """
        ...

    async def erase(self, slot: int) -> None:
        """Empty `slot`, which gives its share of the context to others."""
        ...
