"""The prompts of a request with pictures, spelled out: tokenised as llama-server is going to tokenise them.

It recognises control tokens anywhere in a text that comes with pictures. So what a caller wrote is tokenised both ways,
and where that differs, the control strings in it are broken before it is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from jev_local.backend.port import Backend
from jev_local.core.controls import disarmed
from jev_local.core.pictures import Album, Picture
from jev_local.core.spelling import Content, Piece, Spelling, blocks, joined, picture_tokens
from jev_local.engine.session import Session
from jev_local.errors import InvalidRequest

CHARACTERS_A_TOKEN = 3
"""Of plain text, roughly. A shared text is cut into parts of about a step's tokens."""

ROUNDS = 4
"""Of breaking control strings. One is enough unless what is left of one control string makes up another."""


@dataclass(frozen=True, slots=True)
class Texts:
    """A request's prompts in words, with marks for pictures: `shared` stands before each of `added`, which all begin
    with `lead`."""

    shared: str
    lead: str
    added: tuple[str, ...]


async def spelling(backend: Backend, session: Session, texts: Texts, album: Album, *, chunk: int) -> Spelling:
    """The prompts of `texts`, to be evaluated in steps of about `chunk` tokens. Raises InvalidRequest for what cannot
    be sent."""
    shared = album.split(texts.shared)
    added = [album.split(text.removeprefix(texts.lead)) for text in texts.added]
    sent = {text: disarmed(text, [session.info.marker]) for text in _strings(shared, *added)}
    for _ in range(ROUNDS):
        leading = [part for picture in album.leading for part in (picture, "\n")]
        stem = [part for content in (*leading, *_replaced(shared, sent)) for part in _in_steps(content, chunk)]
        rests = [_closed(_replaced(rest, sent), session.words.tail) for rest in added]
        seams = _seams(stem, texts.lead)
        callers = list(sent.values())
        parts = _strings(stem, *rests, (text for seam in seams for text in seam), ("".join(seams[0]),))
        # At once: there is rarely anything to break, and only then the second was for nothing.
        plain, read = await asyncio.gather(
            backend.tokenize(callers, special=False), backend.tokenize([*callers, *parts], special=True)
        )
        armed = [i for i, tokens in enumerate(plain) if tokens != read[i]]
        if not armed:
            pieces: dict[Content, Piece] = {
                text: Piece(text, tokens) for text, tokens in zip(parts, read[len(callers) :], strict=True)
            }
            for picture in dict.fromkeys(part for part in chain(stem, *rests) if isinstance(part, Picture)):
                pieces[picture] = Piece(picture, picture_tokens(picture, await session.size(backend, picture)))
            last, lead = _seam(seams, pieces)
            begun = (session.words.head, *stem[:-1], *([last] if last else []))
            pieces[session.words.head] = Piece(session.words.head, session.frame.head)
            return Spelling(
                tuple(pieces[part] for part in begun),
                tuple((pieces[lead], *(pieces[part] for part in rest)) for rest in rests),
            )
        controls = await backend.detokenize(sorted({token for i in armed for token in {*read[i]} - {*plain[i]}}))
        sent = {text: disarmed(safe, controls) for text, safe in sent.items()}
    raise InvalidRequest("A text holds control strings of the model that cannot be sent as plain text with images.")


def _seams(stem: Sequence[Content], lead: str) -> tuple[tuple[str, str], ...]:
    """The places where the last text of `stem` may end and the questions' lead begin: between the two, or before the
    white space that the text ends with. Vocabularies differ in which of them they join something across."""
    last = str(stem[-1])
    bare = last.rstrip()
    return (last, lead), (bare, last.removeprefix(bare) + lead)


def _seam(seams: Sequence[tuple[str, str]], pieces: Mapping[Content, Piece]) -> tuple[str, str]:
    """The first of `seams` at which this vocabulary joins nothing, else the first."""
    whole = pieces["".join(seams[0])].tokens
    for seam in seams:
        if whole == joined(pieces[text] for text in seam if text):
            return seam
    return seams[0]


async def with_endings(backend: Backend, spelled: Spelling, tokens: Sequence[int], asked: Iterable[int]) -> Spelling:
    """`spelled`, with `tokens` to be put behind the prompts of the questions `asked`. Raises InvalidRequest where a
    vocabulary would join one of them with what stands before it: it cannot be asked for by its number here."""
    texts = dict(zip(tokens, await backend.detokenize(tokens), strict=True))
    closing = {spelled.rests[index][-1] for index in asked}
    tried = [(piece, token) for piece in closing for token in texts]
    read = await backend.tokenize([f"{piece.content}{texts[token]}" for piece, token in tried], special=True)
    if any(found != (*piece.tokens, token) for found, (piece, token) in zip(read, tried, strict=True)):
        raise InvalidRequest(
            "A question about an image has more options than this model has labels of one token. Ask it with fewer, or "
            "without images."
        )
    return Spelling(spelled.stem, spelled.rests, texts)


def _strings(*parts: Iterable[Content]) -> list[str]:
    """The texts among `parts`, each once."""
    return [content for content in dict.fromkeys(chain.from_iterable(parts)) if isinstance(content, str)]


def _replaced(contents: Iterable[Content], safe: Mapping[str, str]) -> list[Content]:
    return [safe[content] if isinstance(content, str) else content for content in contents]


def _in_steps(content: Content, chunk: int) -> Sequence[Content]:
    return blocks(content, chunk * CHARACTERS_A_TOKEN) if isinstance(content, str) else (content,)


def _closed(contents: list[Content], tail: str) -> list[Content]:
    """With the template's own tail, which is tokenised with what stands before it: it may begin with plain text."""
    if contents and isinstance(contents[-1], str):
        return [*contents[:-1], contents[-1] + tail]
    return [*contents, tail]
