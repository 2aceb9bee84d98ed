"""What the store of saved prefixes hands out and tells about itself."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jev_local.core.ledger import Origin


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A saved prefix that can be restored from `name`, as long as the block lasts that it came from."""

    name: str
    tokens: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What is kept, and whether more is being saved: `reason` says why not."""

    bytes: int
    budget: int
    entries: int
    hits: int
    misses: int
    evictions: int
    saving: bool
    reason: str | None


def key(fingerprint: str, tokens: Sequence[int]) -> str:
    """What names the state after `tokens` in a server that `fingerprint` describes."""
    ((_, name),) = keys(fingerprint, tokens, (len(tokens),))
    return name


def keys(fingerprint: str, tokens: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[int, str]]:
    """The same of the first tokens, for all of `lengths` that there are, in rising order."""
    server = fingerprint.encode()
    digest = hashlib.blake2b(len(server).to_bytes(8, "big") + server, digest_size=32)
    at = 0
    for length in lengths:
        if length > len(tokens):
            break
        digest.update(array("q", tokens[at:length]).tobytes())
        at = length
        yield length, digest.copy().hexdigest()
