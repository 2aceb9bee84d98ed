"""One model file from Hugging Face, resumed where an earlier run stopped.

The hub's own client gives the address and the credentials. It does not do the transfer: since version 1.0 it writes to
a file with a random name and deletes that when it is interrupted, so a gigabyte would begin again at nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx

from jev_local.launch.errors import CannotStart
from jev_local.launch.models import HubSource

PROBE_SECONDS = 3.0
STALL_SECONDS = 20.0
FRUITLESS = 3
"""Attempts in a row without a single new byte before we give up."""

PAUSE = 1.0
"""Seconds after the first of them, twice as many after the second: a wireless network needs a moment to come back."""


def require_reachable(source: HubSource) -> None:
    """CannotStart unless the hub answers for this file, within seconds."""
    from huggingface_hub import constants  # noqa: PLC0415  # half a second, and needed once in a lifetime

    if constants.HF_HUB_OFFLINE:
        raise CannotStart("Hugging Face is switched off by HF_HUB_OFFLINE")
    try:
        status = httpx.head(_url(source), headers=_headers(), timeout=PROBE_SECONDS).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CannotStart("Hugging Face cannot be reached", details=repr(error)) from error
    if status >= 400:
        raise CannotStart(f"Hugging Face answers {status}")


def download(source: HubSource, folder: Path, *, progress: Callable[[int], None]) -> Path:
    """The file in `folder`. `progress` is told the bytes that are there. CannotStart when the hub gives up."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / source.revision  # another pinned revision starts afresh
    part.touch()
    fruitless = 0
    while True:
        before = part.stat().st_size
        try:
            _go_on(source, part, progress)
        except httpx.HTTPError as error:
            fruitless = 0 if part.stat().st_size > before else fruitless + 1
            if fruitless >= FRUITLESS:
                raise CannotStart("the download from Hugging Face broke off", details=repr(error)) from error
            time.sleep(PAUSE * fruitless)
        else:
            return part


def _go_on(source: HubSource, part: Path, progress: Callable[[int], None]) -> None:
    there = part.stat().st_size
    headers = {**_headers(), "Accept-Encoding": "identity", **({"Range": f"bytes={there}-"} if there else {})}
    with (
        httpx.stream("GET", _url(source), headers=headers, follow_redirects=True, timeout=STALL_SECONDS) as reply,
        part.open("ab") as file,
    ):
        if reply.status_code == 416 and there:  # nothing after the last byte: it is all there, or the digest will tell
            return
        if reply.status_code == 429 or reply.status_code >= 500:  # it may be over in a moment
            reply.raise_for_status()
        if reply.status_code not in (200, 206):
            raise CannotStart(f"Hugging Face answers {reply.status_code}")
        if reply.status_code == 200:  # ranges are not served: from the start
            file.truncate(0)
        for piece in reply.iter_raw():
            file.write(piece)
            progress(file.tell())


def _url(source: HubSource) -> str:
    from huggingface_hub import hf_hub_url  # noqa: PLC0415  # see `require_reachable`

    return hf_hub_url(source.repository, source.file, revision=source.revision)


def _headers() -> dict[str, str]:
    from huggingface_hub import get_token  # noqa: PLC0415  # see `require_reachable`

    token = get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}
