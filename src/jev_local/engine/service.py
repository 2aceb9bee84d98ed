"""Service: follows one llama-server through its life and answers questions while it is up."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from jev_local.backend.port import Backend
from jev_local.core.questions import Question
from jev_local.engine.decide import Decider
from jev_local.engine.decision import Decision, Status
from jev_local.engine.session import Session, open_session
from jev_local.errors import BackendError, BackendLoading, BackendUnavailable

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How often a server that is up is asked whether it is still the same process."""

RETRY_SECONDS = 0.5
"""How often one that is not up is tried."""


class Service:
    """The real `Engine`. A server that restarts, also with another model, is noticed and made ready again."""

    def __init__(self, backend: Backend, *, workers: int) -> None:
        self._backend = backend
        self._workers = workers
        self._session: Session | None = None
        self._trouble: BackendError = BackendLoading("The inference server has not been asked yet.")
        self._look_now = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._watcher = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher

    async def decide(self, *, state: str, questions: tuple[Question, ...]) -> Decision:
        session = self._session
        if session is None:
            raise self._trouble
        try:
            return await Decider(self._backend, session).decide(state=state, questions=questions)
        except BackendError:
            # Whatever went wrong over there, do not let the next request meet it unprepared.
            self._look_now.set()
            raise

    def status(self) -> Status:
        if self._session is None:
            starting = isinstance(self._trouble, BackendLoading)
            return Status(status="starting" if starting else "unavailable", reason=self._trouble.message)
        info = self._session.info
        return Status(
            status="ready",
            model=info.model,
            build=info.build,
            slots=info.slots,
            context=info.context,
            vision=info.vision,
            single_labels=self._session.labels.single_capacity,
            state_cache={
                "mode": "in-slot",
                "sharing": True,
                "reason": "the questions of a request follow each other in one slot; nothing is kept beside the slots",
            },
        )

    async def _watch(self) -> None:
        while True:
            await self._look()
            self._look_now.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS if self._session is None else LOOK_SECONDS):
                    await self._look_now.wait()

    async def _look(self) -> None:
        try:
            instance = await self._backend.instance()
            if self._session is not None and self._session.info.instance == instance:
                return
            self._lose(BackendLoading("The inference server is being made ready."))
            self._session = await open_session(self._backend, workers=self._workers)
        except BackendError as error:
            self._lose(error)
        except Exception as error:  # the watcher has to outlive whatever a server comes up with
            log.exception("Looking at the inference server failed")
            self._lose(BackendUnavailable(f"The inference server could not be made ready ({type(error).__name__})."))
        else:
            info = self._session.info
            log.info(
                "Ready: model %s, %d slots, context %d, %d labels of one token, prompt frame %d + %d tokens",
                info.model,
                info.slots,
                info.context,
                self._session.labels.single_capacity,
                len(self._session.frame.head),
                len(self._session.frame.tail),
            )

    def _lose(self, error: BackendError) -> None:
        if self._session is not None or str(error) != str(self._trouble):
            log.log(logging.INFO if isinstance(error, BackendLoading) else logging.WARNING, "%s", error.message)
        self._session, self._trouble = None, error
