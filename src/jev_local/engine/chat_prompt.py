"""The prompt of a chat: what llama-server will make of it, found out beforehand, so that what it begins with can be
brought into a slot first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jev_local.backend.port import Backend
from jev_local.core.chats import callers_texts, replaced, varied
from jev_local.core.controls import disarmed
from jev_local.core.plan import Tokens, common
from jev_local.engine.session import Session
from jev_local.errors import ChatTooLong, InvalidRequest

ROUNDS = 4
"""Of breaking control strings. One is enough unless what is left of one control string makes up another."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """tokens: of the whole prompt, () where it is several or cannot be told. stem: how many of them come before the
    text of the last user message, which is what a later chat may begin with as well. document: the request as it is to
    be sent, in which no text of a caller is read for control tokens.
    at_most: tokens that the longest of several prompts may have.
    """

    tokens: Tokens
    stem: int
    document: Mapping[str, Any] = field(repr=False)
    at_most: int = 0


async def chat_prompt(backend: Backend, session: Session, document: Mapping[str, Any]) -> ChatPrompt:
    """The prompt of a chat completion request. Raises Declined, InvalidRequest or ChatTooLong.

    Round trips: two, each of several requests at once; two more where a text holds a control string."""
    texts = callers_texts(document)
    _require_room(session, texts, times=2)  # the parts of a message are there apart and as one
    # At once: there is rarely anything to break, and only then the rendering was for nothing.
    safe, rendered = await asyncio.gather(_safe(backend, session, texts), _rendered(backend, document))
    if safe:
        document = replaced(dict(document), safe)
        rendered = await _rendered(backend, document)
    whole, begun = rendered
    _require_room(session, [whole])
    tokens, stem = await backend.tokenize([whole, begun], special=True)
    bos = session.info.bos
    if tokens[: len(bos)] != bos:
        tokens, stem = bos + tokens, bos + stem
    # The last token of the part may be joined with what follows it.
    return ChatPrompt(tokens, min(common(tokens, stem), max(len(tokens) - 1, 0)), document)


async def text_prompt(backend: Backend, session: Session, document: Mapping[str, Any]) -> ChatPrompt:
    """The same of a text completion. Its prompt is the caller's to the last token, control tokens included, and no part
    of it is known to come again."""
    prompt = document["prompt"]
    _require_tokens(session, prompt)
    if isinstance(prompt, str):
        _require_room(session, [prompt])
        (tokens,) = await backend.tokenize([prompt], special=True)
        bos = session.info.bos
        return ChatPrompt(tokens if tokens[: len(bos)] == bos else bos + tokens, 0, document)
    if prompt and all(type(token) is int for token in prompt):
        return ChatPrompt(tuple(prompt), 0, document)
    _require_room(session, [text for text in prompt if isinstance(text, str)])
    at_most = max((len(one.encode()) if isinstance(one, str) else len(one) for one in prompt), default=0)
    return ChatPrompt((), 0, document, at_most=at_most)


def _require_tokens(session: Session, prompt: object) -> None:
    """llama-server looks at token ids only when it has begun."""
    for one in prompt if isinstance(prompt, list) else ():
        if isinstance(one, list):
            _require_tokens(session, one)
        elif type(one) is int and not 0 <= one < session.info.vocabulary:
            raise InvalidRequest(
                f"The prompt has a token id that this model lacks: it has 0 to {session.info.vocabulary - 1}."
            )


async def _rendered(backend: Backend, document: Mapping[str, Any]) -> tuple[str, str]:
    """The prompt, and what it has in common with one whose last user message says something else."""
    other = varied(document)
    if other is None:
        return await backend.render(document), ""
    whole, changed = await asyncio.gather(backend.render(document), backend.render(other))
    return whole, _common_text(whole, changed)


def _common_text(a: str, b: str) -> str:
    """What both begin with. Halves are compared as wholes: a prompt may have a million characters."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a.startswith(b[:middle]):
            low = middle
        else:
            high = middle - 1
    return a[:low]


async def _safe(backend: Backend, session: Session, texts: Sequence[str]) -> dict[str, str]:
    """The texts that would be read as more than text -> what is to be sent in place of them."""
    sent = {text: disarmed(text, [session.info.marker]) for text in texts}
    for _ in range(ROUNDS):
        asked = list(sent.values())
        if not any(asked):
            return {}
        plain, read = await asyncio.gather(
            backend.tokenize(asked, special=False), backend.tokenize(asked, special=True)
        )
        armed = [i for i, tokens in enumerate(plain) if tokens != read[i]]
        if not armed:
            return {text: safe for text, safe in sent.items() if text != safe}
        controls = await backend.detokenize(sorted({token for i in armed for token in {*read[i]} - {*plain[i]}}))
        sent = {text: disarmed(safe, controls) for text, safe in sent.items()}
    raise InvalidRequest("A text holds control strings of the model that cannot be sent as plain text.")


def _require_room(session: Session, texts: Sequence[str], *, times: int = 1) -> None:
    """Refuse before tokenising what cannot fit, however well it is tokenised: 10 MB take llama-server seconds. `times`:
    how often a text may be among `texts`."""
    at_least = -(-sum(len(text.encode()) for text in texts) // (times * session.info.token_bytes))
    if at_least > session.chats.context:
        raise ChatTooLong(needed=at_least, available=session.chats.context, at_least=True)
