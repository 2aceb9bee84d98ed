"""Cancelling a task at each place where it waits, one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from itertools import count
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


@coroutine
def cancelled_at(turn: int, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """`work`, whose task is cancelled as it waits for the `turn`-th time."""
    step: Callable[[], Any] = partial(work.send, None)
    for turns in count(1):
        try:
            waited_for = step()
        except StopIteration as end:
            result: T = end.value
            return result
        if turns == turn:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            yield waited_for
            step = partial(work.send, None)
        except BaseException as error:
            step = partial(work.throw, error)
    raise AssertionError


async def ends_cancelled(turn: int, work: Coroutine[Any, Any, object]) -> bool:
    """Whether `work` waits `turn` times at all. If so, it has ended by its cancellation and by nothing else."""

    async def whole() -> None:
        await cancelled_at(turn, work)

    (result,) = await asyncio.gather(asyncio.create_task(whole()), return_exceptions=True)
    if result is None:
        return False
    assert isinstance(result, asyncio.CancelledError), result
    return True
