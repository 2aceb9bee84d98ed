"""A Llama of random weights in Hugging Face format, half a megabyte, so that a real mlx_lm.server runs on any CPU.

The weights are noise from a fixed seed, and the answers mean nothing. Only tokens that are one ASCII character are ever
the best, and never the end: whoever asks gets text, and as many tokens as were asked for. The vocabulary is the 256
bytes, a few merges and the two tokens of the chat template.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tiny_lfm2 import MERGES

SEED = 20261130
HIDDEN, LAYERS, HEADS, FEED_FORWARD, CONTEXT = 64, 2, 2, 128, 16384
TOKEN_BYTES = LAYERS * 2 * HIDDEN * 4
"""That one token takes in a cache: keys and values of every layer, in float32."""

BEGIN, END = "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Matrix = NDArray[np.float32]


def write(directory: Path) -> Path:
    """Write the model into `directory`, which is made. Returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    tokens = [BEGIN, END, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    _tokenizer(tokens).save(str(directory / "tokenizer.json"))
    save_file(_weights(tokens), directory / "model.safetensors", metadata={"format": "mlx"})
    configuration = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": FEED_FORWARD,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "rms_norm_eps": 1e-5,
        "vocab_size": len(tokens),
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "max_position_embeddings": CONTEXT,
        "eos_token_id": tokens.index(END),
    }
    spelling = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": CONTEXT,
    }
    for name, content in (("config.json", configuration), ("tokenizer_config.json", spelling)):
        (directory / name).write_text(json.dumps(content), encoding="utf-8")
    return directory


def _tokenizer(tokens: list[str]) -> Tokenizer:
    merges = [(first, second) for first, second in (merge.split(" ") for merge in MERGES)]
    vocabulary = {token: id_ for id_, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([BEGIN, END])
    return made


def _weights(tokens: list[str]) -> dict[str, Matrix]:
    # The order of the calls decides the noise.
    rng = np.random.Generator(np.random.PCG64(SEED))

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Matrix:
        return (rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    ones = np.ones(HIDDEN, dtype=np.float32)
    output = matrix(len(tokens), HIDDEN, gain=4.0)
    output[[not (len(token) == 1 and token.isascii()) for token in tokens]] = 0.0  # never the best
    weights = {"model.embed_tokens.weight": matrix(len(tokens), HIDDEN), "model.norm.weight": ones}
    weights["lm_head.weight"] = output
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        weights |= {name + "input_layernorm.weight": ones, name + "post_attention_layernorm.weight": ones}
        weights |= {f"{name}self_attn.{part}_proj.weight": matrix(HIDDEN, HIDDEN) for part in "qkvo"}
        weights |= {f"{name}mlp.{part}_proj.weight": matrix(FEED_FORWARD, HIDDEN) for part in ("gate", "up")}
        weights[name + "mlp.down_proj.weight"] = matrix(HIDDEN, FEED_FORWARD)
    return weights
