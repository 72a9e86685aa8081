"""What makes one transformer differ from another, as data: no code asks "which model is this?"."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["ALIASES", "TENSOR_ALIASES", "ModelConfig", "canonical_tensor_name", "is_count"]

# What the formats call our fields. The canonical names are those of ModelConfig and are used
# everywhere else.
ALIASES: dict[str, dict[str, str]] = {
    "llama2.c": {
        "dim": "hidden_size",
        "hidden_dim": "intermediate_size",
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "n_kv_heads": "num_kv_heads",
        "max_seq_len": "max_seq_len",
        "vocab_size": "vocab_size",
        "shared_classifier": "tie_embeddings",
    },
    "meta": {
        "dim": "hidden_size",
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "n_kv_heads": "num_kv_heads",
        "vocab_size": "vocab_size",
        "max_seq_len": "max_seq_len",
        "norm_eps": "norm_eps",
        "rope_theta": "rope_theta",
    },
    "huggingface": {
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "num_key_value_heads": "num_kv_heads",
        "head_dim": "head_dim",
        "intermediate_size": "intermediate_size",
        "vocab_size": "vocab_size",
        "max_position_embeddings": "max_seq_len",
        "rms_norm_eps": "norm_eps",
        "tie_word_embeddings": "tie_embeddings",
    },
}

# What the formats call our tensors; {} is the number of a layer.
TENSOR_ALIASES: dict[str, dict[str, str]] = {
    "meta": {
        "tok_embeddings.weight": "embed",
        "layers.{}.attention_norm.weight": "layers.{}.attn_norm",
        "layers.{}.attention.wq.weight": "layers.{}.wq",
        "layers.{}.attention.wk.weight": "layers.{}.wk",
        "layers.{}.attention.wv.weight": "layers.{}.wv",
        "layers.{}.attention.wo.weight": "layers.{}.wo",
        "layers.{}.ffn_norm.weight": "layers.{}.mlp_norm",
        "layers.{}.feed_forward.w1.weight": "layers.{}.gate",
        "layers.{}.feed_forward.w3.weight": "layers.{}.up",
        "layers.{}.feed_forward.w2.weight": "layers.{}.down",
        "norm.weight": "final_norm",
        "output.weight": "lm_head",
    },
    "huggingface": {
        "model.embed_tokens.weight": "embed",
        "model.layers.{}.input_layernorm.weight": "layers.{}.attn_norm",
        "model.layers.{}.self_attn.q_proj.weight": "layers.{}.wq",
        "model.layers.{}.self_attn.k_proj.weight": "layers.{}.wk",
        "model.layers.{}.self_attn.v_proj.weight": "layers.{}.wv",
        "model.layers.{}.self_attn.o_proj.weight": "layers.{}.wo",
        "model.layers.{}.self_attn.q_proj.bias": "layers.{}.bq",
        "model.layers.{}.self_attn.k_proj.bias": "layers.{}.bk",
        "model.layers.{}.self_attn.v_proj.bias": "layers.{}.bv",
        "model.layers.{}.self_attn.o_proj.bias": "layers.{}.bo",
        "model.layers.{}.self_attn.q_norm.weight": "layers.{}.q_norm",
        "model.layers.{}.self_attn.k_norm.weight": "layers.{}.k_norm",
        "model.layers.{}.post_attention_layernorm.weight": "layers.{}.mlp_norm",
        "model.layers.{}.mlp.gate_proj.weight": "layers.{}.gate",
        "model.layers.{}.mlp.up_proj.weight": "layers.{}.up",
        "model.layers.{}.mlp.down_proj.weight": "layers.{}.down",
        "model.norm.weight": "final_norm",
        "lm_head.weight": "lm_head",
    },
}

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
            self._require(is_count(value), name, "a whole number > 0")
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
            all(window is None or is_count(window) for window in windows)
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

    @classmethod
    def from_aliases(
        cls, dialect: str, fields: Mapping[str, Any], **canonical: Any
    ) -> "ModelConfig":
        """A config from a format's own field names (see ALIASES), completed by canonical ones."""
        names = ALIASES[dialect]
        return cls(**{names[name]: value for name, value in fields.items()}, **canonical)

    def _require(self, right: bool, name: str, needed: str) -> None:
        if not right:
            found = repr(getattr(self, name))[:120]
            raise ValueError(f"ModelConfig: {name} is {found}, needed is {needed}")


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def canonical_tensor_name(dialect: str, name: str) -> str:
    """A tensor's name in ours; one that the dialect does not know in quotes, so that it is none.

    >>> canonical_tensor_name("huggingface", "model.layers.3.self_attn.q_proj.weight")
    'layers.3.wq'
    """
    parts = name.split(".")
    at = parts.index("layers") + 1 if "layers" in parts[:2] else len(parts)
    layer = parts[at] if at < len(parts) else ""
    # "03" would be a second name of layer 3
    if layer.isascii() and layer.isdigit() and (layer == "0" or layer[0] != "0"):
        parts[at] = "{}"
    alias = TENSOR_ALIASES[dialect].get(".".join(parts))
    return repr(name) if alias is None else alias.replace("{}", layer)
