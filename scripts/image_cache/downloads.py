"""An archive with a known digest, from its release into a folder.

A file that somebody put there by hand counts as well, if it is the right one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jev_local.launch.fetch import fetch
from jev_local.launch.pins import Pinned, UrlSource

HASH_BYTES = 4 * 1024 * 1024


def fetched(pin: Mapping[str, Any], folder: Path, *, what: str, otherwise: str) -> Path:
    """The file behind `pin["url"]`, with the SHA-256 `pin["sha256"]`, in `folder`. `what` names it, and `otherwise`
    says what else can be done where it cannot be had. CannotStart says why it is not there."""
    url = pin["url"]
    pinned = Pinned(
        what=what,
        file=url.rpartition("/")[2],
        sha256=pin["sha256"],
        sources=(UrlSource(url),),
        otherwise=otherwise,
    )
    return fetch(pinned, folder, larger_disk="move this checkout to a larger disk")


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(HASH_BYTES):
            digest.update(piece)
    return digest.hexdigest()
