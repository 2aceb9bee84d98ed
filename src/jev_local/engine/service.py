"""Service: follows one llama-server through its life and answers questions while it is up."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from jev_local.backend.port import Backend
from jev_local.core.chats import Chat
from jev_local.core.compared import Compared
from jev_local.core.explain import Explanation
from jev_local.core.pictures import NO_PICTURES, Album
from jev_local.core.questions import Question
from jev_local.core.sharing import Policy, Profile
from jev_local.engine.chat import Chatter
from jev_local.engine.decide import Decider
from jev_local.engine.decision import CacheReport, Decision, Status, Talk
from jev_local.engine.explain import Explainer
from jev_local.engine.journal import Journal
from jev_local.engine.session import Chats, Session, open_session
from jev_local.engine.snapshots import SnapshotStore
from jev_local.errors import BackendError, BackendLoading, BackendUnavailable, CannotShare

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How often a server that is up is asked whether it is still the same process."""

RETRY_SECONDS = 0.5
"""How soon one that is not up is tried again."""

RETRY_SECONDS_AT_MOST = 15.0
"""A server that answers and cannot be used is asked about everything each time, so its turns come ever later."""

PATIENCE = 600.0
"""How long a request waits for a slot, in seconds."""


class Service:
    """The real `Engine`. A server that restarts, also with another model, is noticed and made ready again.

    A session lives exactly as long as the run of the server it was opened for: a server that does not answer for a
    while and is then the same process goes on with its session, whose pool knows who holds which slot.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        workers: int,
        store: SnapshotStore,
        policy: Policy,
        patience: float = PATIENCE,
        chat_slots: int = 0,
        refuse: Callable[[CannotShare], None] = lambda _: None,
    ) -> None:
        """`refuse` is told when the first server that answers cannot do what the policy insists on."""
        self._backend = backend
        self._workers = workers
        self._store = store
        self._policy = policy
        self._patience = patience
        self._chat_slots = chat_slots
        self._refuse = refuse
        self._was_ready = False
        self._session: Session | None = None
        self._trouble: BackendError | None = BackendLoading("The inference server has not been asked yet.")
        self._refused = 0
        self._journal = Journal()
        self._look_now = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._watcher = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher
        # Here and not behind the server: it raises its signals again when it is done, and SIGTERM ends the process.
        await self._store.close()
        await self._backend.aclose()

    @asynccontextmanager
    async def chat(self, chat: Chat) -> AsyncIterator[Talk]:
        session = self._ready()
        try:
            async with Chatter(self._backend, session, self._store, self._policy, self._journal).talk(chat) as talk:
                yield talk
        except BackendError:
            self._look_now.set()
            raise

    async def decide(self, *, state: str, questions: tuple[Question, ...], album: Album = NO_PICTURES) -> Decision:
        session = self._ready()
        try:
            decider = Decider(self._backend, session, self._store, self._policy, self._journal)
            return await decider.decide(state=state, questions=questions, album=album)
        except BackendError:
            # Whatever went wrong over there, do not let the next request meet it unprepared.
            self._look_now.set()
            raise

    async def explain(self, a: Compared, b: Compared) -> Explanation:
        session = self._ready()
        try:
            return await Explainer(self._backend, session, self._store, self._policy, self._journal).explain(a, b)
        except BackendError:
            self._look_now.set()
            raise

    def _ready(self) -> Session:
        if self._trouble is not None:
            raise self._trouble.with_traceback(None)
        assert self._session is not None  # noqa: S101  # where there is no session there is trouble
        return self._session

    def status(self) -> Status:
        if self._trouble is not None or self._session is None:
            reason = None if self._trouble is None else self._trouble.message
            starting = isinstance(self._trouble, BackendLoading)
            return Status(status="starting" if starting else "unavailable", reason=reason)
        info = self._session.info
        return Status(
            status="ready",
            model=info.model,
            build=info.build,
            slots=info.slots,
            context=info.context,
            vision=info.vision,
            single_labels=self._session.labels.single_capacity,
            state_cache=self._told(self._session),
            chats=_chats(self._session.chats),
        )

    def cache(self) -> CacheReport:
        kept = self._store.report()
        profile = None if self._session is None else self._session.profile
        reason = "the inference server is not ready" if profile is None else profile.reason
        return CacheReport(
            mode=self._policy.mode,
            sharing=profile is not None and profile.sharing,
            saving=kept.saving and self._policy.keeps and profile is not None and profile.sharing,
            reason=reason or kept.reason or (None if self._policy.keeps else "nothing is kept beyond its request"),
            bytes=kept.bytes,
            budget=kept.budget,
            entries=kept.entries,
            hits=kept.hits,
            misses=kept.misses,
            evictions=kept.evictions,
        )

    async def clear_cache(self) -> int:
        return await self._store.clear()

    def _told(self, session: Session) -> dict[str, object]:
        """What `/ready` says of the state cache; `images` only where the model sees any."""
        told = {"mode": self._policy.mode, **_found(session.profile)}
        return told | {"images": _found(session.picture_profile)} if session.info.vision else told

    async def _watch(self) -> None:
        while True:
            self._look_now.clear()
            await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._look_now.wait()

    def _pause(self) -> float:
        if self._trouble is None:
            return LOOK_SECONDS
        return min(RETRY_SECONDS * 2.0 ** min(self._refused, 10), RETRY_SECONDS_AT_MOST)

    async def _look(self) -> None:
        try:
            instance = await self._backend.instance()
            if self._session is None or self._session.info.instance != instance:
                self._end_session()
                self._refused += 1
                if isinstance(self._trouble, BackendLoading):
                    self._trouble = BackendLoading("The inference server is there, and is being tried out.")
                self._session = await open_session(
                    self._backend,
                    workers=self._workers,
                    patience=self._patience,
                    policy=self._policy,
                    directory=self._store.directory,
                    chat_slots=self._chat_slots,
                )
                self._was_ready = True
                self._announce(self._session)
            self._refused, self._trouble = 0, None
        except BackendLoading as error:
            self._refused = 0
            self._meet(error)
        except CannotShare as error:
            if self._was_ready:
                self._meet(error)
            else:  # who refuses says so
                self._trouble = error
                self._refuse(error)
        except BackendError as error:
            self._meet(error)
        except Exception as error:  # the watcher has to outlive whatever a server comes up with
            place = traceback.extract_tb(error.__traceback__)[-1]
            log.error("%s at %s:%s", type(error).__name__, place.name, place.lineno)  # its text may quote anything
            self._meet(BackendUnavailable(f"The inference server could not be made ready ({type(error).__name__})."))

    def _end_session(self) -> None:
        if self._session is not None:
            error = BackendUnavailable("The inference server has restarted. Try again in a moment.")
            self._session.pool.close(error)
            self._session = None
            self._trouble = BackendLoading("The inference server has restarted and is being made ready.")

    def _meet(self, error: BackendError) -> None:
        if self._trouble is None or self._trouble.message != error.message:
            log.log(logging.INFO if isinstance(error, BackendLoading) else logging.WARNING, "%s", error.message)
        self._trouble = error

    @staticmethod
    def _announce(session: Session) -> None:
        log.info(
            "Model loaded: %s, %d slots, context %d, %d more slots for chats, %d labels of one token, "
            "prompt frame %d + %d tokens",
            session.info.model,
            session.info.slots,
            session.info.context,
            session.chats.slots,
            session.labels.single_capacity,
            len(session.frame.head),
            len(session.frame.tail),
        )


def _chats(chats: Chats) -> dict[str, object]:
    return {"slots": chats.slots, "context": chats.context, "reason": chats.reason or None}


def _found(profile: Profile) -> dict[str, object]:
    """What the probe found out, in the words of `/ready`."""
    return {
        "sharing": profile.sharing,
        "reason": profile.reason or None,
        "strategies": [
            {"name": trial.name, "exact": trial.exact, "ms": None if trial.ms is None else round(trial.ms, 1)}
            for trial in profile.trials
        ],
    }
