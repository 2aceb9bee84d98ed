"""Everything this product raises on purpose, by whose fault it is.

    JevError
    ├── CallerError             the request cannot be answered as it stands (4xx)
    │   ├── InvalidBody         the body is not what the contract asks for; carries a list of Issue
    │   ├── InvalidRequest      well-formed, but not answerable here (400)
    │   │   └── Declined        llama-server does not take it; quotes why
    │   ├── ChatsOff            no slots are kept for chats (404)
    │   ├── UnknownModel
    │   ├── PromptTooLong       needs more tokens than the context has
    │   │   └── ChatTooLong
    │   ├── MissingKey, WrongKey
    │   └── BodyTooLarge, UnsupportedEncoding, UnsupportedMediaType, BodyTimeout
    ├── Busy                    we have enough to do (529 or 503); carries retry_after
    └── BackendError            llama-server's fault
        ├── BackendUnavailable  nobody listens, or it went away (503)
        ├── BackendLoading      it is still reading its model (503)
        ├── BackendTimeout      no answer in time (504)
        └── BackendFault        an answer that makes no sense (502)
            ├── NotSupported    it was started without what was asked for
            ├── Misspelled      it read other tokens in a text than were foretold
            ├── Withheld        it drew half a character, and gives no probabilities beside it
            └── CannotShare     it cannot share states, and the settings insist on it

HTTP is not known here: `wire/problems.py` holds the one table from these types to status and body.
Messages are shown to callers and written to logs, so they never carry state text, keys or paths. Declined is for the
caller alone.
"""

from __future__ import annotations

from dataclasses import dataclass


class JevError(Exception):
    """Root of the tree. `message` is one line for the caller."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class CallerError(JevError):
    """The caller has to change something."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing wrong with a body: where (`loc`, starting with "body"), which kind, and a sentence."""

    loc: tuple[str | int, ...]
    type: str
    msg: str
    ctx: tuple[tuple[str, int | str], ...] = ()


class InvalidBody(CallerError):
    """The body breaks the contract; `issues` has at least one entry.

    The message leaves `loc` out: its keys are the caller's text, and each may be as long as the body.
    """

    def __init__(self, *issues: Issue) -> None:
        more = f" (and {len(issues) - 1} more)" if len(issues) > 1 else ""
        super().__init__(f"{issues[0].msg}{more}")
        self.issues = issues


class InvalidRequest(CallerError):
    """A well-formed request that this server cannot answer, for instance a `box` question."""


class Declined(InvalidRequest):
    """llama-server refused a chat and said why. Its words may quote the caller's, so they go back to the caller and
    nowhere else."""


class ChatsOff(CallerError):
    """Chats are not served here. The message says why, and how they would be."""


class UnknownModel(CallerError):
    """The request names a model that is not served here."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown model: {name}")


class PromptTooLong(CallerError):
    """A question with its state needs more tokens than a slot's context has."""

    _SAYS = (
        "State and longest question need {amount} tokens, the context has {available}. "
        "Shorten the state, or start the inference server with a larger CTX_SIZE."
    )

    def __init__(self, *, needed: int, available: int, at_least: bool = False) -> None:
        amount = f"at least {needed}" if at_least else str(needed)
        super().__init__(self._SAYS.format(amount=amount, available=available))
        self.needed, self.available = needed, available


class ChatTooLong(PromptTooLong):
    """A chat needs more tokens than all chats together may have."""

    _SAYS = (
        "The chat needs {amount} tokens, an answer of one included, and there is room for {available}. "
        "Shorten it, or start the inference server with a larger CHAT_CTX_SIZE."
    )


class MissingKey(CallerError):
    """No API key came with the request."""


class WrongKey(CallerError):
    """An API key came, and it is not ours."""


class BodyTooLarge(CallerError):
    """More bytes than the cap, counted after decompression."""


class UnsupportedEncoding(CallerError):
    """A Content-Encoding other than zstd, gzip or identity."""


class UnsupportedMediaType(CallerError):
    """A Content-Type this endpoint does not read."""


class BodyTimeout(CallerError):
    """The body took too long to arrive."""


class Busy(JevError):
    """More requests than `--max-in-flight`. `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BackendError(JevError):
    """llama-server did not do its part."""


class BackendUnavailable(BackendError):
    """Nobody listens at the backend's address, or the connection broke before a reply."""


class BackendLoading(BackendUnavailable):
    """The backend is up and still loads its model."""


class BackendTimeout(BackendError):
    """No complete answer within `--backend-timeout`."""


class BackendFault(BackendError):
    """The backend answered something that cannot be right."""


class NotSupported(BackendFault):
    """The backend was started without the option that this needs."""


class Misspelled(BackendFault):
    """A prompt with pictures came to another number of tokens than its parts did: no length in it can be relied on."""


class Withheld(BackendFault):
    """The token that was drawn, and is of no interest, is only part of a character: some builds fail over that. A
    stronger bias makes another draw likely."""


class CannotShare(BackendFault):
    """States were to be shared in any case, and this backend cannot do it. The message names the remedy."""
