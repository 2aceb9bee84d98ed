"""A 4 MB LFM2 model of random weights, so that a real llama-server runs the hybrid architecture in seconds.

The weights are noise from a fixed seed: the file is the same on every machine, and its answers mean nothing. Short
convolutions and attention alternate as in the real LFM2, whose recurrent state cannot be cut back. The vocabulary is
the 256 bytes, a few merges and the control tokens that LFM2 looks up by name, so nearly every label has two tokens.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

SEED = 20261129
HEAD_DIM, HEADS, HEADS_KV, FEED_FORWARD, CONV_WIDTH = 64, 2, 1, 256, 3
EMBEDDING = HEADS * HEAD_DIM
KV_HEADS = (0, 0, HEADS_KV, 0, HEADS_KV, 0)
"""One entry a layer. A layer is a short convolution exactly where it has no key-value heads."""

CONTROL = (
    ["<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    + ["<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"]
    + [f"<|img_row_{row}_col_{column}|>" for row in range(1, 11) for column in range(1, 11)]
)
MERGES = ["Ġ t", "Ġ a", "i n", "h e", "Ġt he", "Ġ A", "Ġ B", "Ġ C", "Ġ D", "r e", "o n"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% else %}{{ '<image>' }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

Matrix = NDArray[np.float32]


def write(path: Path, *, template: str = CHAT_TEMPLATE) -> Path:
    """Write the model to `path`, whole or not at all."""
    draft = path.with_suffix(".part")
    writer = gguf.GGUFWriter(draft, "lfm2")
    tokens = _describe(writer, template)
    _fill(writer, tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return draft.rename(path)


def _describe(writer: gguf.GGUFWriter, template: str) -> list[str]:
    alphabet = _byte_alphabet()
    text = [alphabet[byte] for byte in range(256)] + [merge.replace(" ", "") for merge in MERGES]
    tokens = CONTROL + text
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name("tiny random LFM2 (test fixture)")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(len(KV_HEADS))
    writer.add_context_length(32768)
    writer.add_embedding_length(EMBEDDING)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(list(KV_HEADS))
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_shortconv_l_cache(CONV_WIDTH)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("lfm2")
    writer.add_token_list(tokens)
    writer.add_token_types([int(gguf.TokenType.CONTROL)] * len(CONTROL) + [int(gguf.TokenType.NORMAL)] * len(text))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(tokens.index("<|startoftext|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("<|pad|>"))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(template)
    return tokens


def _fill(writer: gguf.GGUFWriter, tokens: list[str]) -> None:
    # The order of the calls decides the noise. numpy's shapes are the reverse of ggml's.
    rng = np.random.Generator(np.random.PCG64(SEED))

    def matrix(*shape: int, gain: float = 1.0, fan_in: int | None = None) -> Matrix:
        scale = gain / np.sqrt(shape[-1] if fan_in is None else fan_in)
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def vector(length: int, base: float) -> Matrix:
        return (base + 0.02 * rng.standard_normal(length)).astype(np.float32)

    writer.add_tensor("token_embd.weight", matrix(len(tokens), EMBEDDING, fan_in=1))
    output = matrix(len(tokens), EMBEDDING, gain=2.5)
    # Logit 0, never the best: llama-server holds back the probabilities of a token that is only part of a character.
    output[[i for i, token in enumerate(tokens) if i < len(CONTROL) or not _whole(token)]] = 0.0
    writer.add_tensor("output.weight", output)
    writer.add_tensor("token_embd_norm.weight", vector(EMBEDDING, 1.0))
    for layer, kv_heads in enumerate(KV_HEADS):
        name = f"blk.{layer}."
        writer.add_tensor(name + "attn_norm.weight", vector(EMBEDDING, 1.0))
        writer.add_tensor(name + "ffn_norm.weight", vector(EMBEDDING, 1.0))
        writer.add_tensor(name + "ffn_gate.weight", matrix(FEED_FORWARD, EMBEDDING))
        writer.add_tensor(name + "ffn_up.weight", matrix(FEED_FORWARD, EMBEDDING))
        writer.add_tensor(name + "ffn_down.weight", matrix(EMBEDDING, FEED_FORWARD))
        if kv_heads:
            writer.add_tensor(name + "attn_q_norm.weight", vector(HEAD_DIM, 1.5))
            writer.add_tensor(name + "attn_k_norm.weight", vector(HEAD_DIM, 1.5))
            writer.add_tensor(name + "attn_q.weight", matrix(EMBEDDING, EMBEDDING))
            writer.add_tensor(name + "attn_k.weight", matrix(kv_heads * HEAD_DIM, EMBEDDING))
            writer.add_tensor(name + "attn_v.weight", matrix(kv_heads * HEAD_DIM, EMBEDDING, gain=2.0))
            writer.add_tensor(name + "attn_output.weight", matrix(EMBEDDING, EMBEDDING, gain=2.0))
        else:
            writer.add_tensor(name + "shortconv.conv.weight", matrix(EMBEDDING, CONV_WIDTH))
            writer.add_tensor(name + "shortconv.in_proj.weight", matrix(3 * EMBEDDING, EMBEDDING))
            writer.add_tensor(name + "shortconv.out_proj.weight", matrix(EMBEDDING, EMBEDDING))


def _byte_alphabet() -> dict[int, str]:
    """byte -> the printable character that byte-level BPE writes for it."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def _whole(token: str) -> bool:
    """Whether a text token is valid UTF-8 by itself."""
    back = {character: byte for byte, character in _byte_alphabet().items()}
    try:
        bytes(back[character] for character in token).decode()
    except UnicodeDecodeError:
        return False
    return True
