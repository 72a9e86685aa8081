"""A ModelConfig from a config.json, in either of its dialects.

The old one has `rope_theta` and `rope_scaling` (with `type` or `rope_type`), the new one
`rope_parameters` with everything about RoPE. What is assumed where nothing is said: theta 10000,
num_key_value_heads as num_attention_heads, head_dim as hidden_size / num_attention_heads.
"""

from collections.abc import Collection, Mapping
from typing import Any

from simdformer.arguments import is_whole, shown
from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.names import Names, check_rope, require, wrong
from simdformer.models.config import ModelConfig

__all__ = ["NAMES", "make_config"]

NAMES = Names(
    fields={
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
    tensors={
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
)
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


def make_config(found: Mapping[str, Any], tensors: Collection[str]) -> ModelConfig:
    """The config of a model with such tensors (our names). CheckpointError names a field that is
    missing, makes no sense, or asks for what is not there."""
    kind = model_type(found)
    missing = [name for name in REQUIRED if found.get(name) is None]
    if missing:
        raise CheckpointError(f"no {', no '.join(missing)}", "a value for each")
    for name, harmless in REFUSED.items():
        value = found.get(name)
        if value is not None and value not in harmless:
            supported = f"{harmless[0]!r}" if harmless else "no such entry"
            raise CheckpointError(f"{name} = {shown(value)}, which is not supported", supported)
    layers, heads, width = (
        found[name] for name in ("num_hidden_layers", "num_attention_heads", "hidden_size")
    )
    enough = f"a whole number that the {len(tensors)} tensors are enough for"
    require(is_whole(layers) and layers <= len(tensors), "num_hidden_layers", layers, enough)
    fields = {name: found[name] for name in NAMES.fields if found.get(name) is not None}
    fields.setdefault("num_key_value_heads", heads)
    if "head_dim" not in fields:
        divides = is_whole(heads) and is_whole(width) and width % heads == 0
        needed = f"a divisor of hidden_size = {shown(width)}, or head_dim"
        require(divides, "num_attention_heads", heads, needed)
        fields["head_dim"] = width // heads
    # Where nothing is said the tensors say it: an embedding that stands alone is tied.
    fields.setdefault("tie_word_embeddings", "lm_head" not in tensors)
    theta, scaling = rope_of(found)
    bias = flag(found, "attention_bias")
    return NAMES.config(
        fields,
        rope_theta=theta,
        rope_layout="half",
        rope_scaling=scaling,
        qkv_bias=kind == "qwen2" or bias,
        wo_bias=kind != "qwen2" and bias,
        # Qwen3 always has it; MiniMind has had it for some generations, which its tensors tell.
        qk_norm=kind == "qwen3" or (kind == "minimind" and "layers.0.q_norm" in tensors),
        sliding_window=windows_of(found, kind, layers),
    )


def model_type(found: Mapping[str, Any]) -> str:
    kind, architectures = found.get("model_type"), found.get("architectures")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise CheckpointError(
            f"model_type = {shown(kind)} (architectures: {shown(architectures)})",
            f"one of {', '.join(ARCHITECTURES)}",
        )
    if architectures is not None:
        known = ARCHITECTURES[kind]
        right = isinstance(architectures, list) and all(one in known for one in architectures)
        require(right, "architectures", architectures, f"{', '.join(known)} for {kind}")
    return kind


def rope_of(found: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """theta and scaling, from whichever dialect has them."""
    parts = {name: found.get(name) or {} for name in ("rope_parameters", "rope_scaling")}
    for name, part in parts.items():
        require(isinstance(part, dict), name, part, "an object")
        if any(isinstance(value, dict) for value in part.values()):
            raise CheckpointError(f"{name} that differs from layer to layer", "one for all layers")
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
    require(isinstance(kind, str), "rope_type", kind, "text")
    context = top["original_max_position_embeddings"]
    if context is not None and kind in ("llama3", "yarn"):
        agree(merged, {"original_max_position_embeddings": context}, "the config and its RoPE")
        merged["original_max_position_embeddings"] = context
    # An unknown type, or a key that its type does not know, is refused here and not passed over.
    check_rope(theta, merged)
    return theta, None if kind == UNSCALED else merged


def agree(one: Mapping[str, Any], other: Mapping[str, Any], names: str) -> None:
    for key in one.keys() & other.keys():
        if other[key] is not None and one[key] is not None and one[key] != other[key]:
            raise CheckpointError(
                f"{names} that disagree on {shown(key)}: {shown(one[key])} and {shown(other[key])}",
                "the same in both",
            )


def windows_of(
    found: Mapping[str, Any], kind: str, layers: int
) -> int | tuple[int | None, ...] | None:
    """The sliding window of each layer: as `layer_types` say, else by the rule of the type."""
    window, types = found.get("sliding_window"), found.get("layer_types")
    right = window is None or is_whole(window)
    require(right, "sliding_window", window, "a whole number > 0 or null")
    if kind in ("qwen2", "qwen3") and not flag(found, "use_sliding_window"):
        window = None
    if types is not None:
        right = isinstance(types, list) and len(types) == layers
        right = right and all(one in LAYER_TYPES for one in types)
        needed = f"{' or '.join(LAYER_TYPES)} for each of {layers} layers"
        require(right, "layer_types", types, needed)
        if "sliding_attention" in types and window is None:
            raise CheckpointError(
                "sliding_attention in layer_types, but sliding_window is off", "both or neither"
            )
        return by_layer([window if one == "sliding_attention" else None for one in types])
    if window is None:
        return None
    if kind in ("qwen2", "qwen3"):
        first: Any = found.get("max_window_layers")
        require(is_whole(first, 0), "max_window_layers", first, "a whole number >= 0")
        return by_layer([window if layer >= first else None for layer in range(layers)])
    if kind != "mistral":
        raise wrong("sliding_window", window, f"null or layer_types: {kind} has none")
    return int(window)


def by_layer(windows: list[int | None]) -> int | tuple[int | None, ...] | None:
    """One number where all layers agree."""
    return windows[0] if len(set(windows)) == 1 else tuple(windows)


def flag(found: Mapping[str, Any], name: str) -> bool:
    value = found.get(name)
    require(value is None or isinstance(value, bool), name, value, "true or false")
    return bool(value)
