"""Pictures in a request: what they are, and where in its texts they stand.

A caller's forms (data URLs, assets with placeholders, parts of a message) all end here: texts in which a *mark* stands
wherever a picture does. Marks are drawn anew for every request after it has arrived, so that no text of a caller can
hold one by intent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Picture:
    """One checked picture. `data`: a whole PNG or JPEG file as the inference server gets it, upright, 8 bits a channel.
    `width` and `height` in pixels. `digest`: SHA-256 of `data`, 32 bytes; equal for equal pictures."""

    data: bytes = field(repr=False)
    width: int
    height: int
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.sha256(self.data).digest())


@dataclass(frozen=True, slots=True)
class Album:
    """The pictures of one request. `leading`: those of the whole request, shown before the state, in order.
    `placed`: mark -> picture, for those that stand somewhere in the state or in a question. A mark may occur any number
    of times, and the same picture may have several."""

    leading: tuple[Picture, ...] = ()
    placed: Mapping[str, Picture] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.leading or self.placed)

    def split(self, text: str) -> list[str | Picture]:
        """`text` cut at its marks: strings (none of them empty) and pictures in the order in which they are read."""
        if not self.placed:
            return [text] if text else []
        pieces = re.split("(" + "|".join(map(re.escape, self.placed)) + ")", text)
        return [self.placed.get(piece, piece) for piece in pieces if piece]


NO_PICTURES = Album()
