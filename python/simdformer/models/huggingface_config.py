"""A ModelConfig from a config.json, in either of its dialects.

The old one has `rope_theta` and `rope_scaling` (with `type` or `rope_type`), the new one
`rope_parameters` with everything about RoPE. What is assumed where nothing is said: theta 10000,
num_key_value_heads as num_attention_heads, head_dim as hidden_size / num_attention_heads.
"""

from collections.abc import Mapping
from typing import Any

from simdformer.functional import rope_frequencies
from simdformer.models.checkpoint import Tensor
from simdformer.models.config import ALIASES, ModelConfig, is_count

__all__ = ["make_config"]

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM",),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",),
    "mistral": ("MistralForCausalLM",),
    "minimind": ("MiniMindForCausalLM",),
}
REQUIRED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
)
# What the model does not do, with the values that ask for nothing; null does not either.
REFUSED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "quantization_config": (),
    "compression_config": (),
    "partial_rotary_factor": (1,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "use_moe": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
}
LAYER_TYPES = ("full_attention", "sliding_attention")
UNSCALED = "default"


def make_config(found: Mapping[str, Any], weights: Mapping[str, Tensor]) -> ModelConfig:
    """ValueError names a field that is missing, makes no sense, or asks for what is not there."""
    kind = model_type(found)
    missing = [name for name in REQUIRED if found.get(name) is None]
    if missing:
        raise ValueError(f"missing: {', '.join(missing)}")
    for name, harmless in REFUSED.items():
        value = found.get(name)
        if value is not None and value not in harmless:
            supported = f"; supported is {harmless[0]!r}" if harmless else ""
            raise ValueError(f"{name} is {shown(value)}, which is not supported{supported}")
    layers, heads, width = (
        found[name] for name in ("num_hidden_layers", "num_attention_heads", "hidden_size")
    )
    if not is_count(layers) or layers > len(weights):
        raise ValueError(
            f"num_hidden_layers is {shown(layers)}, needed is a whole number that the "
            f"{len(weights)} tensors are enough for"
        )
    fields = {name: found[name] for name in ALIASES["huggingface"] if found.get(name) is not None}
    fields.setdefault("num_key_value_heads", heads)
    if "head_dim" not in fields:
        if not is_count(heads) or not is_count(width) or width % heads:
            raise ValueError(
                f"num_attention_heads is {shown(heads)}, needed is a divisor of hidden_size = "
                f"{shown(width)}, or head_dim"
            )
        fields["head_dim"] = width // heads
    # Where nothing is said the tensors say it: an embedding that stands alone is tied.
    fields.setdefault("tie_word_embeddings", "lm_head" not in weights)
    theta, scaling = rope_of(found)
    bias = flag(found, "attention_bias")
    return ModelConfig.from_aliases(
        "huggingface",
        fields,
        rope_theta=theta,
        rope_layout="half",
        rope_scaling=scaling,
        qkv_bias=kind == "qwen2" or bias,
        wo_bias=kind != "qwen2" and bias,
        # Qwen3 always has it; MiniMind has had it for some generations, which its tensors tell.
        qk_norm=kind == "qwen3" or (kind == "minimind" and "layers.0.q_norm" in weights),
        sliding_window=windows_of(found, kind, layers),
    )


def model_type(found: Mapping[str, Any]) -> str:
    kind, architectures = found.get("model_type"), found.get("architectures")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ValueError(
            f"model_type is {shown(kind)} (architectures: {shown(architectures)}), known are "
            f"{', '.join(ARCHITECTURES)}"
        )
    if architectures is not None:
        known = ARCHITECTURES[kind]
        if not isinstance(architectures, list) or any(one not in known for one in architectures):
            raise ValueError(
                f"architectures is {shown(architectures)}, known for {kind} is {', '.join(known)}"
            )
    return kind


def rope_of(found: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """theta and scaling, from whichever dialect has them."""
    parts = {name: found.get(name) or {} for name in ("rope_parameters", "rope_scaling")}
    for name, part in parts.items():
        if not isinstance(part, dict):
            raise ValueError(f"{name} is {shown(part)}, needed is an object")
        if any(isinstance(value, dict) for value in part.values()):
            raise ValueError(f"{name} differs from layer to layer, which is not supported")
    old, new = parts["rope_scaling"], parts["rope_parameters"]
    top = {name: found.get(name) for name in ("rope_theta", "original_max_position_embeddings")}
    merged: dict[str, Any] = {}
    for part in (old, new):
        agree(merged, part, "rope_scaling and rope_parameters")
        merged |= part
    if merged.get("rope_theta") is None and top["rope_theta"] is not None:
        merged["rope_theta"] = top["rope_theta"]
    agree(merged, {"rope_theta": top["rope_theta"]}, "rope_theta and rope_parameters")
    theta = merged.pop("rope_theta", None)
    theta = 10000.0 if theta is None else theta
    kind = merged.get("rope_type", merged.get("type", UNSCALED))
    if not isinstance(kind, str):
        raise ValueError(f"rope_type is {shown(kind)}, needed is text")
    context = top["original_max_position_embeddings"]
    if context is not None and kind in ("llama3", "yarn"):
        agree(merged, {"original_max_position_embeddings": context}, "the config and its RoPE")
        merged["original_max_position_embeddings"] = context
    # An unknown type, or a key that its type does not know, is refused here and not passed over.
    try:
        rope_frequencies(2, theta=theta, scaling=merged)
    except (TypeError, ArithmeticError) as error:
        raise ValueError(str(error)) from None
    return theta, None if kind == UNSCALED else merged


def agree(one: Mapping[str, Any], other: Mapping[str, Any], names: str) -> None:
    for key in one.keys() & other.keys():
        if other[key] is not None and one[key] is not None and one[key] != other[key]:
            raise ValueError(
                f"{names} disagree on {shown(key)}: {shown(one[key])} and {shown(other[key])}"
            )


def windows_of(
    found: Mapping[str, Any], kind: str, layers: int
) -> int | tuple[int | None, ...] | None:
    """The sliding window of each layer: as `layer_types` say, else by the rule of the type."""
    window, types = found.get("sliding_window"), found.get("layer_types")
    if window is not None and not is_count(window):
        raise ValueError(f"sliding_window is {shown(window)}, needed is a whole number > 0 or null")
    if kind in ("qwen2", "qwen3") and not flag(found, "use_sliding_window"):
        window = None
    if types is not None:
        right = isinstance(types, list) and len(types) == layers
        if not right or any(one not in LAYER_TYPES for one in types):
            raise ValueError(
                f"layer_types is {shown(types)}, needed is {' or '.join(LAYER_TYPES)} for each of "
                f"{layers} layers"
            )
        if "sliding_attention" in types and window is None:
            raise ValueError("layer_types asks for sliding_attention, but sliding_window is off")
        return by_layer([window if one == "sliding_attention" else None for one in types])
    if window is None:
        return None
    if kind in ("qwen2", "qwen3"):
        first = found.get("max_window_layers")
        if type(first) is not int or first < 0:
            raise ValueError(f"max_window_layers is {shown(first)}, needed is a whole number >= 0")
        return by_layer([window if layer >= first else None for layer in range(layers)])
    if kind != "mistral":
        raise ValueError(
            f"sliding_window is {window}, which {kind} does not have; needed is null or layer_types"
        )
    return int(window)


def by_layer(windows: list[int | None]) -> int | tuple[int | None, ...] | None:
    """One number where all layers agree."""
    return windows[0] if len(set(windows)) == 1 else tuple(windows)


def flag(found: Mapping[str, Any], name: str) -> bool:
    value = found.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} is {shown(value)}, needed is true or false")
    return bool(value)


def shown(value: object) -> str:
    """What a stranger wrote, in one short line."""
    return repr(value)[:60]
