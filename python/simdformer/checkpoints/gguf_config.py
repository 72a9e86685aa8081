"""A ModelConfig from the metadata of a GGUF file, whose keys begin with the architecture."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from simdformer.arguments import is_whole, shown
from simdformer.checkpoints.checkpoint import StoredTensor
from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.gguf_file import StoredArray
from simdformer.checkpoints.names import Names, check_rope, require
from simdformer.models.config import ModelConfig

__all__ = ["DIVISORS", "TOKENS", "architecture", "make_config", "names_of"]

# Architecture -> the pairs of RoPE in its files.
ARCHITECTURES: dict[str, Literal["half", "interleaved"]] = {
    "llama": "interleaved",
    "qwen2": "half",
    "qwen3": "half",
}
FIELDS = {  # behind the name of the architecture
    "block_count": "num_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_heads",
    "attention.head_count_kv": "num_kv_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "norm_eps",
    "context_length": "max_seq_len",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
REQUIRED = (
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
    "context_length",
)
LAYER = {
    "attn_norm.weight": "attn_norm",
    "attn_q.weight": "wq",
    "attn_k.weight": "wk",
    "attn_v.weight": "wv",
    "attn_output.weight": "wo",
    "attn_q.bias": "bq",
    "attn_k.bias": "bk",
    "attn_v.bias": "bv",
    "attn_output.bias": "bo",
    "attn_q_norm.weight": "q_norm",
    "attn_k_norm.weight": "k_norm",
    "ffn_norm.weight": "mlp_norm",
    "ffn_gate.weight": "gate",
    "ffn_up.weight": "up",
    "ffn_down.weight": "down",
}
TENSORS = {
    "token_embd.weight": "embed",
    **{f"blk.{{}}.{theirs}": f"layers.{{}}.{ours}" for theirs, ours in LAYER.items()},
    "output_norm.weight": "final_norm",
    "output.weight": "lm_head",
}
DIVISORS = "rope_freqs.weight"
# What the model does not do, with the values that ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "attention.causal": (True,),
    "attention.max_alibi_bias": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "attention.scale": (0.0,),
    "use_parallel_residual": (False,),
    "rope.dimension_sections": (),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}
ATTENTION_FACTORS = ("attn_factor", "yarn_attn_factor")
TOKENS = "tokenizer.ggml.tokens"


def architecture(metadata: Mapping[str, Any]) -> str:
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in ARCHITECTURES:
        raise CheckpointError(
            f"general.architecture = {shown(arch)}, which does not run here",
            f"one of {', '.join(ARCHITECTURES)}",
        )
    return arch


def names_of(arch: str) -> Names:
    return Names(
        {f"{arch}.{theirs}": ours for theirs, ours in FIELDS.items()},
        TENSORS,
        {"head_dim": f"{arch}.embedding_length / {arch}.attention.head_count"},
    )


def make_config(
    arch: str,
    metadata: Mapping[str, Any],
    weights: Mapping[str, StoredTensor],
    divisors: StoredTensor | None,
) -> ModelConfig:
    """The config of a model with such tensors (our names), and that of DIVISORS if there is one.
    CheckpointError names a key that is missing, makes no sense, or asks for what is not there."""
    found = {
        key.removeprefix(f"{arch}."): shortest(value)
        for key, value in metadata.items()
        if key.startswith(f"{arch}.")
    }
    missing = [f"{arch}.{name}" for name in REQUIRED if name not in found]
    if missing:
        raise CheckpointError(f"no {', no '.join(missing)}", "a value for each")
    for name, harmless in REFUSED.items():
        if name in found and found[name] not in harmless:
            supported = f"{harmless[0]!r}" if harmless else "no such key"
            what = f"{arch}.{name} = {shown(found[name])}, which is not supported"
            raise CheckpointError(what, supported)
    for name, value in found.items():
        if name in FIELDS and isinstance(value, StoredArray):
            raise CheckpointError(f"{arch}.{name} that differs by layer", "one for all layers")
    fields = {name: found[name] for name in FIELDS if name in found}
    heads, width = fields["attention.head_count"], fields["embedding_length"]
    fields.setdefault("attention.head_count_kv", heads)
    fields.setdefault("rope.freq_base", 10000.0)
    if "attention.key_length" not in fields:
        divides = is_whole(heads) and is_whole(width) and width % heads == 0
        needed = f"a divisor of {arch}.embedding_length = {shown(width)}"
        require(divides, f"{arch}.attention.head_count", heads, needed)
        fields["attention.key_length"] = width // heads
    head_dim = fields["attention.key_length"]
    for name in ("attention.value_length", "rope.dimension_count"):
        needed = f"{shown(head_dim)}, the length of a head"
        require(found.get(name, head_dim) == head_dim, f"{arch}.{name}", found.get(name), needed)
    if "vocab_size" not in fields:
        fields["vocab_size"] = num_tokens(metadata, weights)
    scaling = scaling_of(arch, found)
    if divisors is not None:
        scaling = divided(arch, scaling, divisors, head_dim)
    else:
        check_rope(fields["rope.freq_base"], scaling)
    return names_of(arch).config(
        {f"{arch}.{name}": value for name, value in fields.items()},
        rope_layout=ARCHITECTURES[arch],
        rope_scaling=scaling,
        tie_embeddings="lm_head" not in weights,
        qkv_bias=arch == "qwen2" or "layers.0.bq" in weights,
        wo_bias="layers.0.bo" in weights,
        qk_norm=arch == "qwen3",
        sliding_window=windows_of(arch, found),
    )


def shortest(value: Any) -> Any:
    """Of a number in 32 bits the shortest decimal that it stands for: 1e-05, not 9.99999975e-06."""
    if isinstance(value, float) and np.float32(value) == value:
        return float(str(np.float32(value)))
    return value


def num_tokens(metadata: Mapping[str, Any], weights: Mapping[str, StoredTensor]) -> int:
    """Of the tokenizer; where there is none, of the embedding."""
    tokens, embed = metadata.get(TOKENS), weights.get("embed")
    if isinstance(tokens, StoredArray):
        return len(tokens)
    return 1 if embed is None else embed.shape[0]


def scaling_of(arch: str, found: Mapping[str, Any]) -> dict[str, Any] | None:
    """RoPE's scaling as Hugging Face's configs would say it."""
    at = "rope.scaling."
    kind = found.get(f"{at}type", "none")
    if kind == "none":
        return None
    scaling = {"rope_type": kind, "factor": found.get(f"{at}factor")}
    if kind == "yarn":
        beside = {
            "original_max_position_embeddings": found.get(f"{at}original_context_length"),
            "beta_fast": found.get(f"{at}yarn_beta_fast"),
            "beta_slow": found.get(f"{at}yarn_beta_slow"),
        }
        scaling |= {name: value for name, value in beside.items() if value is not None}
        factors = [found[f"{at}{name}"] for name in ATTENTION_FACTORS if f"{at}{name}" in found]
        if factors:
            right = all(isinstance(one, float) for one in factors)
            right = right and isinstance(scaling["factor"], float) and scaling["factor"] >= 1
            require(right, f"{arch}.{at}factor", scaling["factor"], "a number >= 1")
            sharpness = 1 + 0.1 * math.log(scaling["factor"])  # which ggml multiplies them with
            scaling["attention_factor"] = math.prod(factors) * sharpness
    return scaling


def divided(
    arch: str, scaling: dict[str, Any] | None, divisors: StoredTensor, head_dim: Any
) -> dict[str, Any]:
    """The scaling that the tensor of divisors stands for."""
    if scaling is not None:
        raise CheckpointError(
            f"{DIVISORS} beside {arch}.rope.scaling.type = {shown(scaling['rope_type'])}",
            "one of both",
        )
    right = divisors.shape[-1:] == divisors.shape and 2 * len(divisors) == head_dim
    if not right or divisors.dtype != np.float32:
        raise CheckpointError(
            f"shape {divisors.shape}, {divisors.dtype}",
            f"half of {arch}.attention.key_length = {shown(head_dim)}, float32",
            tensor=DIVISORS,
        )
    scaling = {"rope_type": "divided", "divisors": tuple(np.asarray(divisors).tolist())}
    check_rope(10000.0, scaling, head_dim)
    return scaling


def windows_of(arch: str, found: Mapping[str, Any]) -> int | None:
    window = found.get("attention.sliding_window", 0)
    needed = "a whole number, the same for all layers"
    require(is_whole(window, 0), f"{arch}.attention.sliding_window", window, needed)
    if window and "attention.sliding_window_pattern" in found:
        raise CheckpointError(
            f"{arch}.attention.sliding_window_pattern, which is not supported",
            "a window for all layers",
        )
    return int(window) or None
