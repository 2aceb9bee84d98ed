"""What the probe asks: two short states and three questions about each, of text alone or with a picture in the state.

Both kinds are told apart from the first token that differs, and nothing but that is in them that could be: a server
that took one state for the other would answer as if asked about the other.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from jev_local.backend.port import Backend
from jev_local.core.pictures import Picture
from jev_local.core.plan import Tokens
from jev_local.core.spelling import Piece, Prompt, Spelling, joined, picture_tokens

COMMON_TOKENS, STATE_TOKENS, QUESTION_TOKENS = 16, 32, 4

LETTERS = "ABC"

BEGINNING = "Notes of the day, taken down at the counter in the order in which people came, and read out at six.\n"
STATES = (
    "The parcel is late, the red lamp in it is broken, and the customer has written three times about it. She wants "
    "her money back by Friday and no other lamp, however well it may be packed this time, nor a voucher for one.",
    "That parcel came early, nobody complained, and the blue chair was paid for in cash on the same day. He asked "
    "whether a second one could be had in green, how long it takes to get here, and who would carry it upstairs.",
)
QUESTIONS = ("Was it late? Answer:", "Colour of the thing:", "(A) angry (B) calm. It is (")

CAPTION = "\nThat is what it looked like today.\n"
SHORT_QUESTIONS = ("Late?", "Colour:", "It is (")
"""A few bytes each, so that they are a few tokens of any vocabulary."""

SIDE, CELL = 64, 16
"""Pixels of a sample picture and of a square in it."""


@dataclass(frozen=True, slots=True)
class Trials:
    """`states` and `questions` as tokens. `whole`: tokens that are whole characters. `spellings`: of each state with
    every question, where they have pictures."""

    states: tuple[Tokens, Tokens]
    questions: tuple[Tokens, ...]
    whole: Tokens
    spellings: tuple[Spelling, Spelling] | None = None

    def prompt(self, state: int, question: int | None = None) -> Prompt:
        """A state, or a question behind it, as it is sent."""
        tokens = self.states[state] + (() if question is None else self.questions[question])
        return tokens if self.spellings is None else self.spellings[state].spell(tokens)


async def text_trials(backend: Backend) -> Trials:
    """Of exactly as many tokens in every vocabulary."""
    beginning, letters, *texts = await backend.tokenize([BEGINNING, LETTERS, *STATES, *QUESTIONS], special=False)
    first, second, *questions = texts
    return Trials(
        (beginning[:COMMON_TOKENS] + first[:STATE_TOKENS], beginning[:COMMON_TOKENS] + second[:STATE_TOKENS]),
        tuple(question[:QUESTION_TOKENS] for question in questions),
        letters,
    )


async def picture_trials(backend: Backend, head: Piece) -> Trials:
    """Behind the chat's own `head`: the states have different pictures and the same caption. Raises BackendError, and
    InvalidRequest where the server reads no pictures."""
    texts = (LETTERS, CAPTION, *SHORT_QUESTIONS)
    letters, caption, *questions = map(Piece, texts, await backend.tokenize(texts, special=True))
    first, second = [
        Spelling(
            (head, Piece(picture, picture_tokens(picture, await backend.picture_size(picture))), caption),
            tuple((question,) for question in questions),
        )
        for picture in (sample(0), sample(1))
    ]
    return Trials(
        (joined(first.stem), joined(second.stem)),
        tuple(question.tokens for question in questions),
        letters.tokens,
        (first, second),
    )


def sample(number: int) -> Picture:
    """A small picture of coloured squares, another one for every `number`."""
    rows = b"".join(
        b"\0"
        + b"".join(
            bytes((97 * (x // CELL + 5 * (y // CELL)) * factor + 41 * number) % 256 for factor in (1, 3 + number, 7))
            for x in range(SIDE)
        )
        for y in range(SIDE)
    )
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    file = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return Picture(file, SIDE, SIDE)
