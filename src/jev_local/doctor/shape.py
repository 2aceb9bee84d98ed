"""How large a model's working memory is, from the metadata of its file. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jev_local.doctor.gguf import BadGguf, PassedOver, Value

LARGEST = 2**31
"""No number of a real model's shape is larger. One that is would only make nonsense of the sums."""

MOST_LAYERS = 4096

_RECURRENT = (
    ".ssm.",
    ".wkv.",
    ".kda.",
    ".token_shift_count",
    ".full_attention_interval",
    ".attention.recurrent_layers",
)
_LATENT = ".attention.kv_lora_rank"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """`heads_kv`: key-value heads of each layer. `conv_width`: of short convolutions, in layers without such heads; 0
    where there are none. `untold`: why a part of the memory cannot be told; empty where all of it can. `has_window`:
    some layers keep less than the whole context."""

    architecture: str
    embedding: int
    feed_forward: int
    heads_kv: tuple[int, ...]
    key_length: int
    value_length: int
    vocabulary: int
    conv_width: int = 0
    untold: str = ""
    has_window: bool = False

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers, two bytes each (f16)."""
        return sum(self.heads_kv) * (self.key_length + self.value_length) * 2

    @property
    def recurrent_bytes_per_slot(self) -> int:
        """What the short convolutions remember, four bytes each (f32)."""
        layers = sum(heads == 0 for heads in self.heads_kv) if self.conv_width else 0
        return layers * max(0, self.conv_width - 1) * self.embedding * 4


@dataclass(frozen=True, slots=True)
class ProjectorShape:
    """What a vision encoder computes with: patches of one image, and its widths. All 0: unknown."""

    patches: int = 0
    embedding: int = 0
    feed_forward: int = 0


def model_shape(metadata: Mapping[str, Value]) -> ModelShape:
    """BadGguf names what the file does not tell."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise BadGguf("it does not say which architecture it has")
    layers = _count(metadata, f"{architecture}.block_count")
    if not 0 < layers <= MOST_LAYERS:
        raise BadGguf(f"it says that it has {layers} layers")
    embedding = _count(metadata, f"{architecture}.embedding_length")
    heads = _counts(metadata, f"{architecture}.attention.head_count", layers, otherwise=1)
    head = embedding // max(1, *heads)
    window = metadata.get(f"{architecture}.attention.sliding_window")
    return ModelShape(
        architecture=architecture,
        embedding=embedding,
        feed_forward=max(_counts(metadata, f"{architecture}.feed_forward_length", layers, otherwise=0)),
        heads_kv=_heads_kv(metadata, architecture, heads),
        key_length=_count(metadata, f"{architecture}.attention.key_length", otherwise=head),
        value_length=_count(metadata, f"{architecture}.attention.value_length", otherwise=head),
        vocabulary=_vocabulary(metadata, architecture),
        conv_width=_count(metadata, f"{architecture}.shortconv.l_cache", otherwise=0),
        untold=_untold(metadata, architecture),
        has_window=isinstance(window, int) and window > 0,
    )


def projector_shape(metadata: Mapping[str, Value]) -> ProjectorShape:
    """Nothing known where the file is none of a vision encoder's."""
    patch = _count(metadata, "clip.vision.patch_size", otherwise=0)
    if not patch:
        return ProjectorShape()
    # Encoders that take images of any size are fed with up to 512 by 512 at once.
    side = max(_count(metadata, "clip.vision.image_size", otherwise=0), 512) // patch
    return ProjectorShape(
        patches=side * side,
        embedding=_count(metadata, "clip.vision.embedding_length", otherwise=0),
        feed_forward=_count(metadata, "clip.vision.feed_forward_length", otherwise=0),
    )


def _heads_kv(metadata: Mapping[str, Value], architecture: str, heads: tuple[int, ...]) -> tuple[int, ...]:
    key = f"{architecture}.attention.head_count_kv"
    return _counts(metadata, key, len(heads), otherwise=0) if key in metadata else heads


def _untold(metadata: Mapping[str, Value], architecture: str) -> str:
    if any(key.startswith(f"{architecture}{part}") for key in metadata for part in _RECURRENT):
        return f"{architecture} has a recurrent state that is not estimated here"
    if f"{architecture}{_LATENT}" in metadata:
        return f"{architecture} compresses its keys and values in a way that is not estimated here"
    return ""


def _vocabulary(metadata: Mapping[str, Value], architecture: str) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, PassedOver):
        return tokens.length
    return _count(metadata, f"{architecture}.vocab_size", otherwise=0)


def _count(metadata: Mapping[str, Value], key: str, *, otherwise: int | None = None) -> int:
    value = metadata.get(key, otherwise)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < LARGEST:
        raise BadGguf(f"it does not say what {key} is" if value is None else f"it says nonsense about {key}")
    return value


def _counts(metadata: Mapping[str, Value], key: str, layers: int, *, otherwise: int) -> tuple[int, ...]:
    """One for each layer, from an array or from a number for all of them."""
    value = metadata.get(key, otherwise)
    if not isinstance(value, tuple):
        return (_count(metadata, key, otherwise=otherwise),) * layers
    counts = tuple(one for one in value if isinstance(one, int) and not isinstance(one, bool) and 0 <= one < LARGEST)
    if len(counts) != len(value) or len(counts) < layers:
        raise BadGguf(f"it says nonsense about {key}")
    return counts[:layers]
