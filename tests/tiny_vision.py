"""A 2 MB vision projector of random weights for the model of `tiny_lfm2`: together they take the whole way of LFM2-VL,
tiles and thumbnail included, in a stock llama-server on a CPU.

Patches of 16 pixels and a projector that merges 2 x 2 of them are LFM2-VL's own: tiles of 512 pixels are written into
llama.cpp, and have 256 tokens only with these. Everything else is as small as it can be.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

import tiny_lfm2

SEED = tiny_lfm2.SEED + 1
IMAGE_SIZE, PATCH, MERGED = 256, 16, 2
WIDTH, HEADS, LAYERS, FEED_FORWARD, HIDDEN = 128, 2, 2, 256, 256

Matrix = NDArray[np.float32]


def write(directory: Path) -> tuple[Path, Path]:
    """The model and its projector as files in `directory`, each whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    return tiny_lfm2.write(directory / "tiny-lfm2.gguf"), write_projector(directory / "tiny-lfm2-vl-mmproj.gguf")


def write_projector(path: Path, *, embedding: int = tiny_lfm2.EMBEDDING) -> Path:
    """For a language model of this width."""
    draft = path.with_suffix(".part")
    writer = gguf.GGUFWriter(draft, "clip")
    _describe(writer, embedding)
    _fill(writer, embedding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return draft.rename(path)


def _describe(writer: gguf.GGUFWriter, embedding: int) -> None:
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_name("tiny random LFM2-VL projector (test fixture)")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("lfm2")
    writer.add_vision_projection_dim(embedding)
    writer.add_vision_image_size(IMAGE_SIZE)
    writer.add_vision_patch_size(PATCH)
    writer.add_vision_embedding_length(WIDTH)
    writer.add_vision_feed_forward_length(FEED_FORWARD)
    writer.add_vision_block_count(LAYERS)
    writer.add_vision_head_count(HEADS)
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_image_mean([0.5, 0.5, 0.5])
    writer.add_vision_image_std([0.5, 0.5, 0.5])
    writer.add_vision_projector_scale_factor(MERGED)
    writer.add_vision_use_gelu(True)


def _fill(writer: gguf.GGUFWriter, embedding: int) -> None:
    # The order of the calls decides the noise. numpy's shapes are the reverse of ggml's.
    rng = np.random.Generator(np.random.PCG64(SEED))

    def matrix(*shape: int, gain: float = 1.0, fan_in: int | None = None) -> Matrix:
        scale = gain / np.sqrt(shape[-1] if fan_in is None else fan_in)
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def vector(length: int, base: float) -> Matrix:
        return (base + 0.02 * rng.standard_normal(length)).astype(np.float32)

    def linear(name: str, weight: Matrix) -> None:
        writer.add_tensor(f"{name}.weight", weight)
        writer.add_tensor(f"{name}.bias", vector(weight.shape[0], 0.0))

    def norm(name: str, length: int) -> None:
        writer.add_tensor(f"{name}.weight", vector(length, 1.0))
        writer.add_tensor(f"{name}.bias", vector(length, 0.0))

    # Gains above 1 make two pictures differ by more than rounding does.
    linear("v.patch_embd", matrix(WIDTH, 3, PATCH, PATCH, fan_in=3 * PATCH * PATCH, gain=4.0))
    writer.add_tensor("v.position_embd.weight", matrix((IMAGE_SIZE // PATCH) ** 2, WIDTH, fan_in=1, gain=0.5))
    for layer in range(LAYERS):
        name = f"v.blk.{layer}."
        norm(name + "ln1", WIDTH)
        norm(name + "ln2", WIDTH)
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            linear(name + part, matrix(WIDTH, WIDTH))
        linear(name + "ffn_up", matrix(FEED_FORWARD, WIDTH))
        linear(name + "ffn_down", matrix(WIDTH, FEED_FORWARD))
    norm("v.post_ln", WIDTH)
    norm("mm.input_norm", WIDTH * MERGED**2)
    linear("mm.1", matrix(HIDDEN, WIDTH * MERGED**2))
    linear("mm.2", matrix(embedding, HIDDEN, gain=2.0))
