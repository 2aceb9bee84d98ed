"""Where a file of Hugging Face is, and with which credentials.

The hub's own client tells that. It does not do the transfer: since version 1.0 it writes to a file with a random name
and deletes that when it is interrupted, so a gigabyte would begin again at nothing.
"""

from __future__ import annotations

import re

from jev_local.launch.pins import HubSource
from jev_local.launch.remote import Remote, Unreachable, are_set, reaching

NAME = "Hugging Face"
SETTINGS = re.compile(r"HF_\w+|HUGGING_FACE_HUB_TOKEN|XDG_CACHE_HOME")


def remote(source: HubSource) -> Remote:
    """The file at its pinned revision. Unreachable where the environment switches the hub off, has no token in the
    place of one, or sets what its client cannot be loaded with."""
    with reaching(NAME, f" with what is set for it{are_set(SETTINGS)}"):
        return _remote(source)


def _remote(source: HubSource) -> Remote:
    from huggingface_hub import constants, get_token, hf_hub_url  # noqa: PLC0415  # half a second, and seldom needed

    if constants.HF_HUB_OFFLINE:
        raise Unreachable(f"{NAME} is switched off by HF_HUB_OFFLINE")
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    if token and not (token.isascii() and token.isprintable()):  # what refuses it later would show it
        raise Unreachable(f"{NAME} is not asked with a token that cannot be one: correct HF_TOKEN")
    return Remote(
        host=NAME,
        url=hf_hub_url(source.repository, source.file, revision=source.revision),
        headers={"Authorization": f"Bearer {token}"} if token else {},
        refused=f"{source.repository} wants a log-in there, or its licence accepted on its page; then put a token into "
        "HF_TOKEN, or correct the one that is set",
    )
