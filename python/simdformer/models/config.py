"""What makes one transformer differ from another, as data: no code asks "which model is this?"."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from simdformer.arguments import is_whole, shown

__all__ = ["FieldError", "ModelConfig"]

COUNTS = (
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_seq_len",
)
SWITCHES = ("tie_embeddings", "qkv_bias", "wo_bias", "qk_norm")


class FieldError(ValueError):
    """A field of a ModelConfig that makes no sense: its name, its value, what is needed."""

    def __init__(self, name: str, value: Any, needed: str) -> None:
        super().__init__(f"ModelConfig: {name} is {shown(value)}, needed is {needed}")
        self.name, self.value, self.needed = name, value, needed


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and switches of a Llama-like transformer. ValueError names a field that makes no sense.

    hidden_size, num_layers, vocab_size, max_seq_len
    num_heads, num_kv_heads, head_dim
        num_kv_heads divides num_heads, head_dim is even; their product need not be hidden_size.
    intermediate_size
        Inner width of the MLP.
    norm_eps, rope_theta
    rope_layout
        Which elements RoPE pairs: "half" (i, i + D/2), "interleaved" (2i, 2i + 1). It belongs to
        the format of the checkpoint.
    rope_scaling
        The dict that Hugging Face configs carry, see `simdformer.rope_frequencies`.
    tie_embeddings
        Whether the embedding is also the last matrix.
    qkv_bias, wo_bias
        Whether wq, wk, wv (Qwen2) and wo have biases.
    qk_norm
        Whether each head of q and k goes through an RMSNorm (Qwen3).
    sliding_window
        How many keys a query sees, itself included (Mistral): a number, or one a layer; None: all.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_seq_len: int
    norm_eps: float
    rope_theta: float
    rope_layout: Literal["half", "interleaved"]
    tie_embeddings: bool
    rope_scaling: Mapping[str, Any] | None = field(default=None, hash=False)
    qkv_bias: bool = False
    wo_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | tuple[int | None, ...] | None = None

    def __post_init__(self) -> None:
        for name in COUNTS:
            value = getattr(self, name)
            self._require(is_whole(value), name, "a whole number > 0")
        for name in SWITCHES:
            self._require(isinstance(getattr(self, name), bool), name, "True or False")
        self._require(
            self.num_heads % self.num_kv_heads == 0,
            "num_kv_heads",
            f"a divisor of num_heads = {self.num_heads}",
        )
        self._require(
            self.head_dim % 2 == 0, "head_dim", "an even number, because RoPE turns pairs"
        )
        self._require(
            is_finite(self.norm_eps) and self.norm_eps >= 0, "norm_eps", "finite and >= 0"
        )
        self._require(
            is_finite(self.rope_theta) and self.rope_theta > 0, "rope_theta", "finite and > 0"
        )
        self._require(
            self.rope_layout in ("half", "interleaved"), "rope_layout", "'half' or 'interleaved'"
        )
        self._require(
            self.rope_scaling is None or isinstance(self.rope_scaling, Mapping),
            "rope_scaling",
            "None or a dict as in Hugging Face configs",
        )
        windows = (
            self.sliding_window
            if isinstance(self.sliding_window, tuple)
            else (self.sliding_window,)
        )
        self._require(
            all(window is None or is_whole(window) for window in windows)
            and (not isinstance(self.sliding_window, tuple) or len(windows) == self.num_layers),
            "sliding_window",
            f"None, a whole number > 0, or a tuple of {self.num_layers} such (one a layer)",
        )

    def window(self, layer: int) -> int | None:
        """The sliding window of one layer."""
        return (
            self.sliding_window[layer]
            if isinstance(self.sliding_window, tuple)
            else self.sliding_window
        )

    @property
    def summary(self) -> str:
        """Its size in a few words."""
        return f"{self.num_layers} layers of {self.num_heads} heads"

    def _require(self, right: bool, name: str, needed: str) -> None:
        if not right:
            raise FieldError(name, getattr(self, name), needed)


def is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
