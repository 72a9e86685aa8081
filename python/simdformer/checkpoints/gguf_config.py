"""A ModelConfig from the metadata of a GGUF file, whose keys begin with the architecture."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from simdformer.arguments import LARGEST, is_whole, shown
from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.gguf_architectures import ARCHITECTURES, Architecture
from simdformer.checkpoints.gguf_file import StoredArray
from simdformer.checkpoints.names import check_present, check_rope, require, width_of_heads
from simdformer.models.config import ModelConfig, by_layer
from simdformer.models.tensors import AnyTensor, Tensor

__all__ = [
    "DIVISORS",
    "FREQUENCIES",
    "LONG",
    "SHORT",
    "TOKENS",
    "architecture_of",
    "make_config",
]

OPTIONAL = ("num_kv_heads", "head_dim", "rope_theta", "vocab_size")  # of the sizes
COUNTS = ("block_count", "attention.head_count", "embedding_length", "attention.key_length")
FREQUENCIES = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
DIVISORS = (FREQUENCIES, LONG, SHORT)  # of the frequencies of RoPE
# What the model does not do, with the values that ask for nothing. Where it is a number of an
# architecture it is done.
REFUSED: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_gating_func": (0, 1),  # the softmax
    "expert_weights_scale": (0.0, 1.0),
    "expert_group_count": (0, 1),
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


def architecture_of(metadata: Mapping[str, Any]) -> tuple[str, Architecture]:
    """The name of a file's architecture, and what it means."""
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in ARCHITECTURES:
        raise CheckpointError(
            f"general.architecture = {shown(arch)}, which does not run here",
            f"one of {', '.join(ARCHITECTURES)}",
        )
    return arch, ARCHITECTURES[arch]


def make_config(
    arch: str,
    metadata: Mapping[str, Any],
    weights: Mapping[str, AnyTensor],
    divisors: Mapping[str, Tensor],
) -> ModelConfig:
    """The config of a model with such tensors (our names), and those of DIVISORS that there are.
    CheckpointError names a key that is missing, makes no sense, or asks for what is not there."""
    architecture = ARCHITECTURES[arch]
    names = architecture.names(arch)
    keys = [key.removeprefix(f"{arch}.") for key in names.fields]
    found = dict(architecture.unsaid) | {
        key.removeprefix(f"{arch}."): shortest(value)
        for key, value in metadata.items()
        if key.startswith(f"{arch}.")
    }
    required = [name for name, ours in architecture.fields.items() if ours not in OPTIONAL]
    required += architecture.required
    check_present(found, required, f"{arch}.")
    for name, harmless in REFUSED.items():
        if name in found and name not in architecture.numbers and found[name] not in harmless:
            supported = f"{harmless[0]!r}" if harmless else "no such key"
            what = f"{arch}.{name} = {shown(found[name])}, which is not supported"
            raise CheckpointError(what, supported)
    for name in keys:
        if isinstance(found.get(name), StoredArray):
            raise CheckpointError(f"{arch}.{name} that differs by layer", "one for all layers")
    for name in COUNTS:
        right = name not in found or (is_whole(found[name]) and found[name] <= LARGEST)
        require(right, f"{arch}.{name}", found.get(name), "a whole number > 0 and < 2**63")
    layers, heads, width = (found[name] for name in COUNTS[:3])
    enough = f"a whole number that the {len(weights)} tensors are enough for"
    require(layers <= len(weights), f"{arch}.block_count", layers, enough)
    found.setdefault("attention.head_count_kv", heads)
    found.setdefault("rope.freq_base", 10000.0)
    if "attention.key_length" not in found:
        both = f"{arch}.embedding_length", f"{arch}.attention.head_count"
        found["attention.key_length"] = width_of_heads(width, heads, both)
    found.setdefault("vocab_size", num_tokens(metadata, weights))
    turned = rotary_dim(arch, architecture, found)
    scaling = divided(arch, found, divisors, turned or found["attention.key_length"])
    if not divisors:
        scaling = scaling_of(arch, architecture, found)
        check_rope(found["rope.freq_base"], scaling)
    return names.config(
        {f"{arch}.{name}": found[name] for name in keys if name in found},
        rope_layout=architecture.rope_layout,
        rope_scaling=scaling,
        rotary_dim=turned,
        tie_embeddings="lm_head" not in weights,
        **{"qkv_bias": "layers.0.bq" in weights, "wo_bias": "layers.0.bo" in weights}
        | architecture.always,
        sliding_window=windows_of(arch, architecture, found),
        **architecture.follows(found),
    )


def shortest(value: Any) -> Any:
    """The shortest decimal that a number in 32 bits stands for: 1e-05, not 9.99999975e-06."""
    if isinstance(value, float) and np.float32(value) == value:
        return float(str(np.float32(value)))
    return value


def num_tokens(metadata: Mapping[str, Any], weights: Mapping[str, AnyTensor]) -> int:
    """The tokens of the tokenizer; where there is none, the rows of the embedding."""
    tokens, embed = metadata.get(TOKENS), weights.get("embed")
    if isinstance(tokens, StoredArray):
        return len(tokens)
    return 1 if embed is None else embed.shape[0]


def scaling_of(
    arch: str, architecture: Architecture, found: Mapping[str, Any]
) -> dict[str, Any] | None:
    """RoPE's scaling as Hugging Face's configs would say it."""
    at = "rope.scaling."
    kind = found.get(f"{at}type", "none")
    if kind == "none":
        return None
    scaling = {"rope_type": kind, "factor": found.get(f"{at}factor")} | architecture.rope_scaling
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
    arch: str, found: Mapping[str, Any], divisors: Mapping[str, Tensor], size: Any
) -> dict[str, Any] | None:
    """The scaling that the tensors of divisors stand for, of `size` elements of a head."""
    if not divisors:
        return None
    longrope = FREQUENCIES not in divisors
    for name in (LONG, SHORT) if longrope else (FREQUENCIES,):
        if name not in divisors:
            raise CheckpointError(f"no tensor {name}", f"both {LONG} and {SHORT}")
    kind = found.get("rope.scaling.type", "none")
    if kind not in ("none", "longrope" if longrope else "none") or len(divisors) > 1 + longrope:
        *_, last = divisors
        raise CheckpointError(
            f"{last} beside {arch}.rope.scaling.type = {shown(kind)}", "one of both"
        )
    values = {name: values_of(arch, name, tensor, size) for name, tensor in divisors.items()}
    if not longrope:
        scaling: dict[str, Any] = {"rope_type": "divided", "divisors": values[FREQUENCIES]}
    else:
        names = "rope.scaling.original_context_length", "context_length"
        short, longest = lengths = [found.get(name, 0) for name in names]
        for name, length in zip(names, lengths, strict=True):
            right = is_whole(length) and length <= LARGEST
            require(right, f"{arch}.{name}", length, "a whole number > 0 and < 2**63")
        scaling = {
            "rope_type": "longrope",
            "short_factor": values[SHORT],
            "long_factor": values[LONG],
            "original_max_position_embeddings": short,
            "factor": max(longest / short, 1.0),
        }
        if "rope.scaling.attn_factor" in found:
            scaling["attention_factor"] = found["rope.scaling.attn_factor"]
    check_rope(10000.0, scaling, size)
    return scaling


def values_of(arch: str, name: str, divisors: Tensor, size: Any) -> tuple[float, ...]:
    right = len(divisors.shape) == 1 and 2 * divisors.shape[0] == size
    if not right or divisors.dtype != np.float32:
        raise CheckpointError(
            f"shape {divisors.shape}, {divisors.dtype}",
            f"half of {arch}.attention.key_length = {shown(size)}, float32",
            tensor=name,
        )
    return tuple(np.asarray(divisors).tolist())


def rotary_dim(arch: str, architecture: Architecture, found: Mapping[str, Any]) -> int | None:
    """How much of a head RoPE turns; None: all of it."""
    head_dim = found["attention.key_length"]
    names = ["attention.value_length"]
    if not architecture.partial_rotary:
        names.append("rope.dimension_count")
    for name in names:
        needed = f"{shown(head_dim)}, the length of a head"
        require(found.get(name, head_dim) == head_dim, f"{arch}.{name}", found.get(name), needed)
    turned = found.get("rope.dimension_count", head_dim)
    return None if turned == head_dim else turned


def windows_of(
    arch: str, architecture: Architecture, found: Mapping[str, Any]
) -> int | tuple[int | None, ...] | None:
    """The sliding window of each layer: as a pattern says, else by the rule of the architecture."""
    at, layers = "attention.sliding_window", found["block_count"]
    window, pattern = found.get(at, 0), found.get(f"{at}_pattern", architecture.window_period)
    require(is_whole(window, 0), f"{arch}.{at}", window, "a whole number, the same for all layers")
    if not window:
        return None
    if pattern is None:
        return int(window)
    if architecture.window_period is None:
        raise CheckpointError(
            f"{arch}.{at}_pattern, which is not supported", "a window for all layers"
        )
    if isinstance(pattern, StoredArray):
        pattern = pattern.numbers()
    if isinstance(pattern, np.ndarray):
        slides = pattern.tolist()
        right = len(slides) == layers and all(one in (0, 1) for one in slides)
        require(right, f"{arch}.{at}_pattern", slides, f"true or false for each of {layers} layers")
    else:
        require(is_whole(pattern), f"{arch}.{at}_pattern", pattern, "a whole number > 0")
        slides = [(layer + 1) % pattern != 0 for layer in range(layers)]
    return by_layer([int(window) if one else None for one in slides])
