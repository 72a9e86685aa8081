"""A ModelConfig as the keys of a GGUF file, and as the divisors of RoPE's frequencies, which no key
holds: the way back from `gguf_config.make_config`."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.gguf_architectures import ARCHITECTURES, Architecture
from simdformer.checkpoints.gguf_config import FREQUENCIES, LONG, SHORT, make_config
from simdformer.functional import RopeFrequencies, rope_frequencies
from simdformer.models.config import COUNTS, ModelConfig
from simdformer.models.tensors import AnyTensor
from simdformer.types import Array

__all__ = ["divisors_of", "keys_of", "not_held"]

ROPE = "rope."
# What is stored in another way: the order of rows, divisors for a scaling, norms with 1 added.
STORED_OTHERWISE = ("rope_layout", "rope_scaling", "norm_offset")


# The architectures that are tried first: others hold their models too.
FIRST = ("qwen3", "qwen2", "phi3")


def not_held(
    config: ModelConfig, weights: Mapping[str, AnyTensor], *, fused: bool
) -> dict[str, list[str]]:
    """For each architecture the fields of a config that no file of it can hold, the first
    architecture that holds all of them last. `fused`: whether wq, wk and wv are one tensor, which
    tells Phi-3 from Llama."""
    lost: dict[str, list[str]] = {}
    for arch in dict.fromkeys([*FIRST, *ARCHITECTURES]):
        if arch == "phi3" and not fused:
            continue
        try:
            again = make_config(arch, keys_of(arch, config), weights, divisors_of(config))
        except CheckpointError:  # without experts, say, or with a part of each head turned
            continue
        lost[arch] = different_fields(config, again) + refused_fields(ARCHITECTURES[arch], config)
        if not lost[arch]:
            break
    return lost


def different_fields(config: ModelConfig, again: ModelConfig) -> list[str]:
    """The fields in which two models differ."""
    names = [field.name for field in fields(config) if field.name not in STORED_OTHERWISE]
    found = [name for name in names if getattr(config, name) != getattr(again, name)]
    lengths = (1, config.max_seq_len) if config.rope_boundary else (1,)
    for length in lengths:
        one, other = (np.append(*frequencies(made, length)) for made in (config, again))
        if not np.allclose(one, other, rtol=1e-6, atol=0):
            return [*found, "rope_scaling"]
    return found


def refused_fields(architecture: Architecture, config: ModelConfig) -> list[str]:
    """The fields that llama.cpp has no graph for."""
    wrong = {
        "qkv_bias": config.qkv_bias and "bq" not in architecture.biases,
        "wo_bias": config.wo_bias and "bo" not in architecture.biases,
        "tie_embeddings": architecture.tied not in (None, config.tie_embeddings),
        "head_dim": architecture.square
        and config.num_heads * config.head_dim != config.hidden_size,
    }
    return [name for name, is_wrong in wrong.items() if is_wrong]


# ---- keys ----------------------------------------------------------------------------------------


def keys_of(arch: str, config: ModelConfig) -> dict[str, Any]:
    """The config as the keys of an architecture."""
    architecture = ARCHITECTURES[arch]
    keys: dict[str, Any] = {}
    for theirs, ours in (architecture.fields | architecture.numbers).items():
        value = getattr(config, ours)
        if value is not None and (config.num_experts or "expert" not in ours):
            keys[theirs] = value if ours in COUNTS else float(value)
    keys["attention.value_length"] = config.head_dim
    keys[f"{ROPE}dimension_count"] = turned(config)
    if config.local_rope_theta is not None:
        keys[f"{ROPE}freq_base_swa"] = float(config.local_rope_theta)
    keys |= {f"{ROPE}scaling.{name}": value for name, value in scaling_keys(config).items()}
    keys |= window_keys(architecture, config)
    if config.positions == "learned":
        keys = {name: value for name, value in keys.items() if not name.startswith(ROPE)}
    return {f"{arch}.{name}": value for name, value in keys.items()}


def window_keys(architecture: Architecture, config: ModelConfig) -> dict[str, Any]:
    """The sliding window, and which layers have it where the architecture does not know it."""
    windows = [config.window(layer) for layer in range(config.num_layers)]
    sizes = set(windows) - {None}
    if len(sizes) != 1:
        return {}
    at = "attention.sliding_window"
    keys: dict[str, Any] = {at: sizes.pop()}
    slides = [window is not None for window in windows]
    period = architecture.window_period
    if period is not None and slides != [(at + 1) % period != 0 for at in range(len(slides))]:
        keys[f"{at}_pattern"] = np.array(slides)
    return keys


def scaling_keys(config: ModelConfig) -> dict[str, Any]:
    """What keys say of RoPE's scaling; the rest are divisors, in a tensor."""
    scaling = config.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    length = scaling.get("original_max_position_embeddings", config.max_seq_len)
    if kind == "linear":
        return {"type": kind, "factor": float(scaling["factor"])}
    if kind == "longrope":  # whose type is in no published file
        factor = frequencies(config).attention_factor
        return {"original_context_length": int(length), "attn_factor": float(factor)}
    if kind != "yarn":
        return {}
    sharpness = 1 + 0.1 * np.log(scaling["factor"])  # which ggml multiplies the factor with
    return {
        "type": kind,
        "factor": float(scaling["factor"]),
        "original_context_length": int(length),
        "yarn_beta_fast": float(scaling.get("beta_fast") or 32.0),
        "yarn_beta_slow": float(scaling.get("beta_slow") or 1.0),
        "attn_factor": float(frequencies(config).attention_factor / sharpness),
    }


# ---- divisors ------------------------------------------------------------------------------------


def divisors_of(config: ModelConfig) -> dict[str, Array]:
    """The tensors that frequencies of theta are divided by, where no key says it all."""
    scaling = config.rope_scaling or {}
    if config.rope_boundary:
        of_lengths = {LONG: scaling["long_factor"], SHORT: scaling["short_factor"]}
        return {name: np.array(divisors, np.float32) for name, divisors in of_lengths.items()}
    if config.rope_scaling is None or scaling_keys(config):
        return {}
    plain = rope_frequencies(turned(config), theta=config.rope_theta).inv_freq
    return {FREQUENCIES: np.asarray(plain / frequencies(config).inv_freq, np.float32)}


def frequencies(config: ModelConfig, length: int = 1) -> RopeFrequencies:
    """Those of layers that see everything."""
    return rope_frequencies(
        turned(config), theta=config.rope_theta, scaling=config.rope_scaling, length=length
    )


def turned(config: ModelConfig) -> int:
    """How many elements of a head RoPE turns."""
    return config.head_dim if config.rotary_dim is None else config.rotary_dim
