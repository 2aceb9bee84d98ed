"""What an inference server will take, and whether there is that much. Pure arithmetic.

The context of decisions and chats and the recurrent state are what llama-server itself reports, to the last digit that
it prints. What it computes with is an estimate: up to a tenth off what it reports, in batches of 128 and of 512. What a
GPU's driver takes for itself is in none of them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from jev_local.backend.embedded import LARGEST_UBATCH, ServerOptions
from jev_local.doctor.facts import Memory, Part, Room, Store, Verdict
from jev_local.doctor.shape import ModelShape, ProjectorShape
from jev_local.settings import MIB

CELLS = 256
"""llama-server rounds its context up to a multiple of this."""

CHECKPOINTS = 32
"""Copies of its recurrent state that llama-server keeps of a slot, at most."""

PROCESSES = 120 * MIB
"""llama-server without its model, some 40 MiB, and the API."""

TWICE = "up to twice that shows as used on a processor; the file's own copy is given back when memory is short"

SMALLEST_CONTEXT, CONTEXT_STEP = 1024, 1024


def parts(
    shape: ModelShape,
    options: ServerOptions,
    *,
    weights: int,
    projector: tuple[int, ProjectorShape] | None,
    has_gpu: bool,
) -> tuple[Part, ...]:
    """What is held where the model is computed. `weights` and the first of `projector` are sizes of files."""
    return (
        Part("weights", weights, note="" if has_gpu else TWICE),
        *([] if projector is None else [Part("projector", projector[0])]),
        *_context(shape, options),
        *_recurrent(shape, options),
        Part("computing", _computing(shape, options, projector, has_gpu=has_gpu), estimate=True),
        *([] if has_gpu else [Part("processes", PROCESSES, estimate=True)]),
    )


def _context(shape: ModelShape, options: ServerOptions) -> list[Part]:
    if shape.untold:
        return [Part("context", None, note=shape.untold)]
    note = "at most: some layers keep less" if shape.has_window else ""
    per_token, chats = shape.kv_bytes_per_token, options.room_for_chats
    # Rounded as a whole; decisions are the part that has no say in it.
    of_decisions = (_rounded(options.context + chats) - chats) * per_token
    found = [Part("context, decisions", of_decisions, note=note)]
    return [*found, Part("context, chats", chats * per_token, note=note)] if chats else found


def _recurrent(shape: ModelShape, options: ServerOptions) -> list[Part]:
    if not (each := shape.recurrent_bytes_per_slot):
        return []
    return [
        Part("slots", each * options.slots, note="what the convolutions of each remember"),
        Part("checkpoints", each * options.slots * CHECKPOINTS, note=f"at most: {CHECKPOINTS} a slot"),
    ]


def _computing(
    shape: ModelShape, options: ServerOptions, projector: tuple[int, ProjectorShape] | None, *, has_gpu: bool
) -> int:
    batches = options.batch_sizes(has_gpu=has_gpu)
    tokens = LARGEST_UBATCH if batches is None else batches[1]
    mask = tokens * _rounded(options.context + options.room_for_chats) * 2
    logits = 2 * shape.vocabulary * options.slots * 4
    encoder = 0 if projector is None else _activations(projector[1].patches, projector[1])
    return mask + _activations(tokens, shape) + logits + encoder


def _activations(tokens: int, shape: ModelShape | ProjectorShape) -> int:
    """Fitted to what llama-server reported for models of 128, 576 and 1536 wide."""
    return tokens * 4 * (2 * shape.feed_forward + 7 * shape.embedding)


def _rounded(tokens: int) -> int:
    return -(-tokens // CELLS) * CELLS


def total(found: tuple[Part, ...]) -> int:
    return sum(part.bytes or 0 for part in found)


def verdict(needed: int, room: Room, *, is_whole: bool, is_running: bool) -> Verdict:
    """`is_whole`: `needed` is all of it. `is_running`: that model is in memory already, so that less is available."""
    if room.total is not None and needed > room.total:
        return "too large"
    if is_running:
        return "in memory"
    if room.available is not None and needed > room.available:
        return "fits when freed"
    return "fits" if is_whole and room.total is not None else "unknown"


def judged(
    found: tuple[Part, ...], room: Room, store: Store, *, shape: ModelShape, options: ServerOptions, is_running: bool
) -> Memory:
    """The parts against the room that there is. A store in a file system in memory is one of them."""
    if store.in_memory and not room.is_gpu:
        found += (Part("saved states", store.to_come, note="their folder is in memory"),)
    needed = total(found)
    said = verdict(needed, room, is_whole=all(part.bytes is not None for part in found), is_running=is_running)
    smaller = None
    if said in ("too large", "fits when freed"):
        smaller = _context_that_fits(needed, room, shape, options)
    return Memory(parts=found, total=needed, room=room, store=store, verdict=said, context_that_fits=smaller)


def _context_that_fits(needed: int, room: Room, shape: ModelShape, options: ServerOptions) -> int | None:
    """The largest CTX_SIZE in steps of 1024 that does; None where not even the smallest would."""
    available = room.total if room.available is None else room.available
    if available is None or shape.untold:
        return None
    fixed, steps = needed - _of_context(shape, options), range(SMALLEST_CONTEXT, options.context, CONTEXT_STEP)
    room_for_it = available - fixed
    fitting = bisect_right(steps, room_for_it, key=lambda tokens: _of_context(shape, replace(options, context=tokens)))
    return steps[fitting - 1] if fitting else None


def _of_context(shape: ModelShape, options: ServerOptions) -> int:
    return _rounded(options.context + options.room_for_chats) * shape.kv_bytes_per_token
