"""One run of one llama-server with one model, made ready: what it is, its chat frame, its labels, its slots."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jev_local.backend.port import Backend, BackendInfo
from jev_local.backend.probe import Probe
from jev_local.backend.trials import picture_trials, text_trials
from jev_local.core.frame import Frame, FrameText, TemplateRefused, cut, frame, messages
from jev_local.core.labels import LabelBook, candidate_texts
from jev_local.core.pictures import Picture
from jev_local.core.plan import Tokens
from jev_local.core.prompts import DEFAULT_STYLE, PromptStyle
from jev_local.core.readout import BIAS, RUNNERS_UP, THOUGHT_OPENERS, is_certain
from jev_local.core.sharing import Policy, Profile, Strategy
from jev_local.core.slots import SlotTable
from jev_local.core.spelling import Piece
from jev_local.engine.pool import SlotPool
from jev_local.errors import BackendFault, CannotShare, InvalidRequest

log = logging.getLogger(__name__)

SHARE_NOTHING = Policy()

SIZES_KNOWN = 1024
"""Pictures whose number of tokens is remembered; it takes the server a look at the file to tell."""


@dataclass(frozen=True, slots=True)
class Chats:
    """The part of a server that is for chats: its last `slots` slots, and the tokens of context that all of them may
    take. reason: why there are none, or ""."""

    slots: int = 0
    context: int = 0
    reason: str = ""


@dataclass(slots=True)
class Session:
    """Everything that is asked once per server process, so that a request asks for nothing but its own tokens. All of
    it stays as it is found, but for the profiles, which lose what turns out to be wrong.

    info: its slots and its context are those of decisions. chats: the others.
    frame, words: the chat template's own part of a prompt as tokens and as it is sent with pictures. profile,
    picture_profile: what can be done with a prefix of text, and with one that has pictures in it.
    """

    info: BackendInfo
    style: PromptStyle
    frame: Frame
    words: FrameText
    labels: LabelBook
    thought: frozenset[int]
    profile: Profile
    picture_profile: Profile
    pool: SlotPool
    chats: Chats = Chats()
    _sizes: dict[bytes, int] = field(default_factory=dict)

    def profile_for(self, *, pictures: bool) -> Profile:
        return self.picture_profile if pictures else self.profile

    def distrust(self, strategy: Strategy, *, pictures: bool) -> None:
        """`strategy` did not reuse what it should have, and not in one slot by chance: the probe's short prompts did
        not show it, as with attention over a window that they fit in whole."""
        doubted = self.profile_for(pictures=pictures).doubting(strategy)
        if doubted == self.profile_for(pictures=pictures):
            return
        log.warning("Prefixes are not reused (%s) as they were in the probe; they are shared otherwise.", strategy)
        if pictures:
            self.picture_profile = doubted
        else:
            self.profile = doubted

    async def size(self, backend: Backend, picture: Picture) -> int:
        """How many tokens `picture` takes."""
        known = self._sizes.get(picture.digest)
        if known is None:
            known = self._sizes[picture.digest] = await backend.picture_size(picture)
            while len(self._sizes) > SIZES_KNOWN:
                del self._sizes[next(iter(self._sizes))]
        return known


async def open_session(
    backend: Backend,
    *,
    workers: int,
    patience: float = 600.0,
    style: PromptStyle = DEFAULT_STYLE,
    policy: Policy = SHARE_NOTHING,
    directory: Path | None = None,
    chat_slots: int = 0,
) -> Session:
    """Find out everything about the server that answers now, and read one distribution from it. `directory` is where
    the files should be seen that it saves. `chat_slots`: how many are for chats at most. Raises BackendError;
    CannotShare where the policy insists on sharing."""
    info = await backend.describe()
    text = await frame_text(backend, info, style)
    head, tail, *openers = await backend.tokenize(
        [text.head, text.tail + style.prefill, *THOUGHT_OPENERS], special=True
    )
    if text.trims:
        log.info("The chat template trims its messages; prompts begin and end with our own words, so nothing is lost.")
    labels = await label_book(backend)
    if labels.single_capacity < 2:
        raise BackendFault("The model's vocabulary does not even have single tokens for A and B.")
    whole = frame(head, tail, bos=info.bos)
    words = replace(text, tail=text.tail + style.prefill)
    if info.bos and head[: len(info.bos)] == info.bos:  # with pictures the server puts it there, and would do so twice
        words = replace(words, head=text.head.removeprefix("".join(await backend.detokenize(info.bos))))
    await require_distributions(backend, whole, labels)
    profile, picture_profile = await found_out(backend, info, policy, directory, Piece(words.head, whole.head))
    chats, own = parts(info, chat_slots, alone=policy.stable)
    return Session(
        info=own,
        style=style,
        frame=whole,
        words=words,
        labels=labels,
        thought=frozenset(tokens[0] for tokens in openers if len(tokens) == 1),
        profile=profile,
        picture_profile=picture_profile,
        pool=SlotPool(
            SlotTable(
                count=own.slots,
                limit=workers,
                context=own.context,
                long=policy.chunk,
                alone=policy.stable,
                chats=(chats.slots, chats.context),
                total=info.context if info.parts is None else None,
            ),
            patience=patience,
            erase=backend.erase,
        ),
        chats=chats,
    )


def parts(info: BackendInfo, chat_slots: int, *, alone: bool) -> tuple[Chats, BackendInfo]:
    """The part of a server for chats, and what is left for decisions, which have the lowest slots: llama-server fills
    its batches from there. A server that was not started for both has one context for all; half of it is as much as
    chats may take, so that one of them never keeps every decision waiting."""
    if alone:
        return Chats(reason="--stable answers one decision at a time, with nothing beside it"), info
    if chat_slots < 1:
        return Chats(reason="they are switched off with --chat-slots 0"), info
    slots = min(chat_slots, info.slots - 1)
    if slots < 1:
        return Chats(reason="the inference server has one slot, and decisions need it: start it with more"), info
    decisions, room = info.parts or (info.context, info.context // 2)
    own = replace(info, slots=info.slots - slots, context=min(info.context, decisions))
    return Chats(slots, min(info.context, room)), own


async def found_out(
    backend: Backend, info: BackendInfo, policy: Policy, directory: Path | None, head: Piece
) -> tuple[Profile, Profile]:
    """What this server can do with a prefix of text, and with one that has pictures behind the chat's `head`; nothing
    is tried where nothing is to be shared."""
    if policy.mode == "off" or directory is None:
        off = Profile(reason="switched off with --state-cache off")
        return off, off
    log.info("Trying out how this server reuses a prefix; a large model on a small machine takes half a minute.")
    profile = await Probe(backend, info, directory, await text_trials(backend)).profile()
    _announce("States", profile)
    if not profile.sharing and not policy.insists:
        log.warning("States are not shared: %s.", profile.reason)
    if policy.insists and not (profile.exact("restore") if policy.stable else profile.sharing):
        reason = profile.reason or "a slot restored from a file does not give the answers of a cold run"
        raise CannotShare(f"States cannot be shared: {reason}. Or start the API with --state-cache auto.")
    return profile, await _found_out_with_pictures(backend, info, policy, directory, head)


async def _found_out_with_pictures(
    backend: Backend, info: BackendInfo, policy: Policy, directory: Path, head: Piece
) -> Profile:
    """Never refuses: without sharing, images are still answered, each question on its own."""
    if not info.vision:
        return Profile(reason="the model has no projector for images")
    if not policy.pictures:
        return Profile(reason="switched off with --image-prefix off")
    try:
        profile = await Probe(backend, info, directory, await picture_trials(backend, head)).profile()
    except (BackendFault, InvalidRequest) as error:
        profile = Profile(reason="the inference server does not count the tokens of images as they are sent to it")
        log.info("  images   %s", error.message)
    if policy.stable and not profile.exact("restore"):
        profile = Profile(reason=profile.reason or "a restored slot does not give the answers of a cold run")
    _announce("States with images", profile)
    if not profile.sharing:
        log.warning("States with images are not shared: %s.", profile.reason)
    return profile


def _announce(what: str, profile: Profile) -> None:
    for trial in profile.trials:
        log.info(
            "  %-8s %s", trial.name, f"exact, {trial.ms:.0f} ms for three questions" if trial.exact else "no use here"
        )
    if profile.sharing:
        log.info("%s are shared: %s.", what, profile.fastest("in-place", "fan-out", "restore"))


async def require_distributions(backend: Backend, frame: Frame, labels: LabelBook) -> None:
    """One pass over the bare frame, so that a server that cannot be read is refused before anybody asks it."""
    asked = [label.tokens[0] for label in labels.choose(2)]
    (completion,) = await backend.complete(
        [frame.head + frame.tail], slot=0, labels=asked, bias=BIAS, runners_up=RUNNERS_UP, reuse=False
    )
    if not completion.top:
        raise BackendFault("The inference server returns no probabilities for the labels A and B.")
    if is_certain(completion.top):
        raise BackendFault(
            "The inference server returns a certain token instead of a distribution: start it without speculative "
            "decoding."
        )


async def tokenize_chats(
    backend: Backend, session: Session, *, shared: str, added: Sequence[str]
) -> tuple[Tokens, list[Tokens]]:
    """The complete chats of a request's questions, in two parts: the stem, which all begin with (the template's head
    and the `shared` text), and what each goes on with (one of `added` and the template's tail). One round trip; the
    state is tokenised once, and no text is read for control tokens."""
    state, *questions = await backend.tokenize([shared, *added], special=False)
    return session.frame.head + state, [question + session.frame.tail for question in questions]


async def frame_text(backend: Backend, info: BackendInfo, style: PromptStyle) -> FrameText:
    """The chat template's own text around the user's. Raises BackendFault for a template that cannot be used."""
    rendered = await backend.apply_template(messages(style.system, system_role=info.system_role))
    try:
        return cut(rendered)
    except TemplateRefused as error:
        raise BackendFault(f"This model cannot be asked: {error}.") from error


async def label_book(backend: Backend) -> LabelBook:
    """Spell every candidate, and keep the labels of one token that are spelled back to themselves."""
    texts = candidate_texts()
    spelling = dict(zip(texts, await backend.tokenize(texts, special=False), strict=True))
    used = sorted({token for tokens in spelling.values() for token in tokens})
    back = dict(zip(used, await backend.detokenize(used), strict=True))
    # A vocabulary that puts a space before a word spells "A" as " A": the same label, one space earlier.
    return LabelBook.build(
        {text: tokens for text, tokens in spelling.items() if "".join(back[t] for t in tokens).lstrip() == text}
    )
