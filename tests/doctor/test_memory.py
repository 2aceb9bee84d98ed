"""The arithmetic of memory, on shapes whose sizes llama-server has told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from doctor_facts import STORE
from jev_local.backend.embedded import ServerOptions
from jev_local.doctor.facts import Part, Room, Verdict
from jev_local.doctor.gguf import BadGguf, PassedOver, Value
from jev_local.doctor.memory import judged, parts, total, verdict
from jev_local.doctor.shape import ModelShape, ProjectorShape, model_shape, projector_shape
from jev_local.settings import GIB, MIB

OPTIONS = ServerOptions(model="m.gguf", port=1, slot_dir="s")

SMOLLM2: Mapping[str, Value] = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.vocab_size": 49152,
    "tokenizer.ggml.tokens": PassedOver(49152),
}
# LFM2.5-1.2B: 16 layers, 6 of them with attention.
LFM2: Mapping[str, Value] = {
    "general.architecture": "lfm2",
    "lfm2.block_count": 16,
    "lfm2.embedding_length": 2048,
    "lfm2.feed_forward_length": 12288,
    "lfm2.attention.head_count": 32,
    "lfm2.attention.head_count_kv": (0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0),
    "lfm2.shortconv.l_cache": 3,
    "lfm2.vocab_size": 65536,
}


def sizes(found: tuple[Part, ...]) -> dict[str, int | None]:
    return {part.what: part.bytes for part in found}


def of(metadata: Mapping[str, Value], options: ServerOptions = OPTIONS) -> dict[str, int | None]:
    return sizes(parts(model_shape(metadata), options, weights=100 * MIB, projector=None, has_gpu=False))


def test_attention_alone() -> None:
    # llama-server: 16384 cells, 360.00 MiB
    found = of(SMOLLM2)
    assert found["context, decisions"] == found["context, chats"] == 180 * MIB
    assert found["weights"] == 100 * MIB
    assert "slots" not in found
    assert found["computing"] == pytest.approx(9.02 * MIB, rel=0.15)  # 7.90 to compute with, 1.12 for the output


def test_short_convolutions() -> None:
    found = of(LFM2)
    assert found["context, decisions"] == 8192 * 6 * 8 * (64 + 64) * 2
    assert found["slots"] == 6 * 10 * 2 * 2048 * 4
    assert found["checkpoints"] == 32 * 6 * 10 * 2 * 2048 * 4


def test_a_context_is_rounded_up_once() -> None:
    # 1000 + 1000 tokens are 2048 cells
    found = of(SMOLLM2, replace(OPTIONS, context=1000))
    per_token = 30 * 3 * 128 * 2
    assert found["context, chats"] == 1000 * per_token
    assert found["context, decisions"] == 1048 * per_token


def test_without_chats_there_is_no_room_for_them() -> None:
    found = of(SMOLLM2, replace(OPTIONS, chat_slots=0))
    assert "context, chats" not in found
    assert found["context, decisions"] == 180 * MIB


def test_lengths_that_are_told_count() -> None:
    told = {**SMOLLM2, "llama.attention.key_length": 128, "llama.attention.value_length": 32}
    assert model_shape(told).kv_bytes_per_token == 30 * 3 * (128 + 32) * 2


def test_a_projector_is_weights_and_work() -> None:
    eye = projector_shape(
        {
            "clip.vision.patch_size": 16,
            "clip.vision.image_size": 256,
            "clip.vision.embedding_length": 128,
            "clip.vision.feed_forward_length": 256,
        }
    )
    assert eye == ProjectorShape(patches=1024, embedding=128, feed_forward=256)
    shape = model_shape(LFM2)
    without = parts(shape, OPTIONS, weights=1, projector=None, has_gpu=False)
    with_eye = parts(shape, OPTIONS, weights=1, projector=(7 * MIB, eye), has_gpu=False)
    assert sizes(with_eye)["projector"] == 7 * MIB
    more = (sizes(with_eye)["computing"] or 0) - (sizes(without)["computing"] or 0)
    assert more == pytest.approx(4.5 * MIB, rel=0.3)  # what llama-server reports
    assert projector_shape({}) == ProjectorShape()


@pytest.mark.parametrize("key", ["llama.ssm.state_size", "llama.wkv.head_size", "llama.full_attention_interval"])
def test_other_recurrent_states_are_not_guessed(key: str) -> None:
    shape = model_shape({**SMOLLM2, key: 4})
    found = parts(shape, OPTIONS, weights=100, projector=None, has_gpu=False)
    assert sizes(found)["context"] is None
    assert next(part.note for part in found if part.what == "context").startswith("llama has a recurrent state")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"general.architecture": 3}, "architecture"),
        ({"llama.block_count": 0}, "0 layers"),
        ({"llama.block_count": 10**9}, "layers"),
        ({"llama.embedding_length": "wide"}, "nonsense about llama.embedding_length"),
        ({"llama.embedding_length": -1}, "nonsense"),
        ({"llama.attention.head_count_kv": (1, 2)}, "nonsense about llama.attention.head_count_kv"),
        ({"llama.attention.head_count_kv": (-1,) * 30}, "nonsense"),
        ({"llama.attention.key_length": 2**40}, "nonsense"),
    ],
)
def test_nonsense_is_named(change: Mapping[str, Value], reason: str) -> None:
    with pytest.raises(BadGguf, match=reason):
        model_shape({**SMOLLM2, **change})


def test_what_is_missing_is_named() -> None:
    with pytest.raises(BadGguf, match=r"what llama\.block_count is"):
        model_shape({"general.architecture": "llama"})


MACHINE = Room("memory of this machine", 8 * GIB, 4 * GIB)


@pytest.mark.parametrize(
    ("needed", "room", "whole", "said"),
    [
        (4 * GIB, MACHINE, True, "fits"),
        (4 * GIB + 1, MACHINE, True, "fits when freed"),
        (8 * GIB + 1, MACHINE, True, "too large"),
        (1, MACHINE, False, "unknown"),
        (9 * GIB, MACHINE, False, "too large"),
        (7 * GIB, replace(MACHINE, available=None), True, "fits"),
        (1, Room("memory of MTL0", None, None, is_gpu=True), True, "unknown"),
    ],
)
def test_verdicts(needed: int, room: Room, whole: bool, said: Verdict) -> None:
    assert verdict(needed, room, is_whole=whole, is_running=False) == said
    assert verdict(needed, room, is_whole=whole, is_running=True) == (
        "too large" if said == "too large" else "in memory"
    )


def judge(room: Room, *, shape: ModelShape | None = None, in_memory: bool = False) -> tuple[Verdict, int | None, int]:
    shape = shape or model_shape(SMOLLM2)
    found = parts(shape, OPTIONS, weights=100 * MIB, projector=None, has_gpu=room.is_gpu)
    store = replace(STORE, in_memory=in_memory, kept=GIB // 4)
    memory = judged(found, room, store, shape=shape, options=OPTIONS, is_running=False)
    return memory.verdict, memory.context_that_fits, memory.total


def test_a_smaller_context_is_found_where_one_fits() -> None:
    _, none, needed = judge(Room("memory", GIB, GIB))
    assert none is None
    # 45 MiB are 1024 tokens for decisions and as many for chats
    assert judge(Room("memory", needed - 1, needed - 1))[:2] == ("too large", 7168)
    assert judge(Room("memory", GIB, needed - 100 * MIB))[:2] == ("fits when freed", 5120)
    assert judge(Room("memory", needed - 315 * MIB, None))[:2] == ("too large", 1024)
    assert judge(Room("memory", needed - 316 * MIB, None))[:2] == ("too large", None)


def test_a_store_in_memory_counts() -> None:
    on_disk = judge(Room("memory", 8 * GIB, 8 * GIB))
    in_memory = judge(Room("memory", 8 * GIB, 8 * GIB), in_memory=True)
    assert in_memory[2] - on_disk[2] == GIB * 3 // 4  # what lies there already is used already
    on_gpu = Room("memory of CUDA0", 8 * GIB, 8 * GIB, is_gpu=True)
    assert judge(on_gpu, in_memory=True)[2] == judge(on_gpu)[2]


def test_unknown_parts_add_nothing() -> None:
    assert total((Part("a", 5), Part("b", None), Part("c", 7))) == 12
