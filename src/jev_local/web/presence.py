"""Work for a client only as long as the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from jev_local.errors import BackendUnavailable

CLIENT_GONE = 499
"""Nobody receives it; it marks such requests in the access log (a number made common by nginx)."""

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection; nobody is left to answer."""


async def while_present(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises; ClientGone when the client leaves first.

    The body has to be read before. Whatever way this ends, `work` has ended too: when it had to be cancelled,
    its clean-up (a slot given back, a backend call closed) has run, so the place that the request held in the
    admission count is not handed on while its work still occupies the model.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(departure(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        if task.cancelled():
            # The engine stopped it, as it does on shutdown. Passed on as it is, it would look like ours.
            raise BackendUnavailable("The work was stopped before it was done.")
        return task.result()
    finally:
        task.cancel()
        watch.cancel()
        # Errors of a cancelled task end here: they have no reader. A finished one has given its own above.
        await asyncio.gather(task, watch, return_exceptions=True)


async def departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
