"""A ModelConfig from a config.json, in either of its dialects.

The old one has `rope_theta` and `rope_scaling` (with `type` or `rope_type`), the new one
`rope_parameters` with everything about RoPE. What is assumed where nothing is said: theta 10000,
num_key_value_heads as num_attention_heads, head_dim as hidden_size / num_attention_heads.
"""

from collections.abc import Collection, Mapping
from typing import Any

from simdformer.arguments import LARGEST, is_whole, shown
from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.huggingface_architectures import ARCHITECTURES, ModelType
from simdformer.checkpoints.names import check_present, check_rope, require, width_of_heads, wrong
from simdformer.models.config import ModelConfig, by_layer

__all__ = ["architecture_of", "make_config", "supported"]

# A config has to say these, under its own names, unless an architecture computes them.
REQUIRED = (
    "hidden_size",
    "num_layers",
    "num_heads",
    "intermediate_size",
    "vocab_size",
    "max_seq_len",
    "norm_eps",
)
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
# What the model does not do, with the values that ask for nothing; null does not either. Where it
# is a number of an architecture it is done.
REFUSED: dict[str, tuple[Any, ...]] = {
    "mlp_bias": (False,),
    "compression_config": (),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "use_moe": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "use_bidirectional_attention": (False,),
}
MOST_LAYERS = 10_000  # of a config that no tensors stand behind
LAYER_TYPES = ("full_attention", "sliding_attention")
UNSCALED, LONGROPE = "default", "longrope"
NO_ROPE = {"rope_theta": 10000.0}  # a config has one even where nothing is turned


def make_config(
    found: Mapping[str, Any], architecture: ModelType, tensors: Collection[str] | None
) -> ModelConfig:
    """The config of a model with such tensors (our names; None: there are none at hand).
    CheckpointError names a field that is missing, makes no sense, or asks for what is not there."""
    found = architecture.unsaid | one_name_each(found, architecture)
    names = architecture.names
    theirs = {ours: name for name, ours in names.fields.items()}
    required = [theirs[name] for name in REQUIRED if name in theirs]
    required += [architecture.activation, *architecture.required]
    check_present(found, required)
    for name, harmless in (REFUSED | architecture.refused).items():
        if name not in architecture.numbers and name not in architecture.knows:
            supported(found, name, *harmless)
    supported(found, architecture.activation, *ACTIVATIONS)
    said = {ours: found[name] for ours, name in theirs.items() if found.get(name) is not None}
    layers, heads, width = (said[name] for name in ("num_layers", "num_heads", "hidden_size"))
    most, enough = MOST_LAYERS, f"a whole number up to {MOST_LAYERS}"
    if tensors is not None:
        most = len(tensors)
        enough = f"a whole number that the {most} tensors are enough for"
    require(is_whole(layers) and layers <= most, theirs["num_layers"], layers, enough)
    said.setdefault("num_kv_heads", heads)
    if "head_dim" not in said:
        both = theirs["hidden_size"], theirs["num_heads"]
        instead = ", or head_dim" if "head_dim" in theirs else ""
        said["head_dim"] = width_of_heads(width, heads, both, instead)
    # Where nothing is said the tensors say it: an embedding that stands alone is tied.
    said.setdefault("tie_embeddings", tensors is not None and "lm_head" not in tensors)
    bias = flag(found, "attention_bias")
    ropes = ropes_of(found, architecture, said["head_dim"]) if architecture.rope else NO_ROPE
    return names.config(
        {},
        **said,
        rope_layout="half",
        sliding_window=windows_of(found, architecture, layers),
        **ropes,
        **{"activation": ACTIVATIONS[found[architecture.activation]]}
        | {"qkv_bias": bias, "wo_bias": bias}
        | architecture.always
        | architecture.follows(found, tensors or ()),
    )


def one_name_each(found: Mapping[str, Any], architecture: ModelType) -> dict[str, Any]:
    """The config without second names."""
    found = dict(found)
    for alias, name in architecture.aliases.items():
        value = found.pop(alias, None)
        agree(found, {name: value}, f"{alias} and {name}")
        if value is not None:
            found[name] = value
    return found


def architecture_of(found: Mapping[str, Any]) -> ModelType:
    """What the model_type of a config means."""
    kind, classes = found.get("model_type"), found.get("architectures")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise CheckpointError(
            f"model_type = {shown(kind)} (architectures: {shown(classes)})",
            f"one of {', '.join(ARCHITECTURES)}",
        )
    architecture = ARCHITECTURES[kind]
    if classes is not None:
        right = isinstance(classes, list) and all(one == architecture.model for one in classes)
        require(right, "architectures", classes, f"{architecture.model} for {kind}")
    return architecture


def supported(found: Mapping[str, Any], name: str, *harmless: Any) -> None:
    """CheckpointError for a field that asks for what the model does not do."""
    value = found.get(name)
    if value is not None and value not in harmless:
        needed = " or ".join(map(repr, harmless)) or "no such entry"
        raise CheckpointError(f"{name} = {shown(value)}, which is not supported", needed)


# ---- RoPE ----------------------------------------------------------------------------------------


def ropes_of(found: Mapping[str, Any], architecture: ModelType, head_dim: int) -> dict[str, Any]:
    """What ModelConfig has to know of RoPE."""
    local = None
    if architecture.local_theta is not None:
        found, local = with_one_rope(found, architecture.local_theta)
    theta, scaling, partial = rope_of(found, architecture)
    kind = scaling.get("rope_type", scaling.get("type", UNSCALED))
    if not architecture.partial_rotary:
        supported({"partial_rotary_factor": partial}, "partial_rotary_factor", 1)
    if architecture.longrope:
        supported({"rope_type": kind}, "rope_type", UNSCALED, LONGROPE)
    right = partial is None or (isinstance(partial, int | float) and 0 < partial <= 1)
    require(right, "partial_rotary_factor", partial, "a number > 0 and <= 1")
    turned = None
    if partial not in (None, 1):
        right = is_whole(head_dim) and head_dim <= LARGEST
        require(right, "head_dim", head_dim, "a whole number > 0 and < 2**63")
        turned = int(head_dim * partial)
    # An unknown type, or a key that its type does not know, is refused here and not passed over.
    size = (turned or head_dim) if kind == LONGROPE else 2
    check_rope(theta, scaling, size)
    return {
        "rope_theta": theta,
        "rope_scaling": None if kind == UNSCALED else scaling,
        "local_rope_theta": local,
        "rotary_dim": turned,
    }


def with_one_rope(found: Mapping[str, Any], theta: float) -> tuple[Mapping[str, Any], Any]:
    """The config with the RoPE of full attention only, and the theta of layers with a window. The
    old dialect calls that rope_local_base_freq, the new one has rope_parameters by type of layer.
    """
    parameters = found.get("rope_parameters")
    if not isinstance(parameters, dict) or not parameters.keys() & set(LAYER_TYPES):
        return found, found.get("rope_local_base_freq") or theta
    require(parameters.keys() <= set(LAYER_TYPES), "rope_parameters", parameters, "one of a type")
    full, sliding = (parameters.get(kind) or {} for kind in LAYER_TYPES)
    for part in (full, sliding):
        require(isinstance(part, dict), "rope_parameters", parameters, "an object for each type")
    sliding = {"rope_type": UNSCALED, "rope_theta": theta} | sliding
    supported(sliding, "rope_type", UNSCALED)
    local = sliding.pop("rope_theta")
    check_rope(local, sliding)
    return {**found, "rope_parameters": full}, local


def rope_of(found: Mapping[str, Any], architecture: ModelType) -> tuple[float, dict[str, Any], Any]:
    """theta (that of the architecture where none is said), scaling and the part of a head that is
    turned, from whichever dialect has them."""
    parts = {name: found.get(name) or {} for name in ("rope_parameters", "rope_scaling")}
    for name, part in parts.items():
        require(isinstance(part, dict), name, part, "an object")
        if any(isinstance(value, dict) for value in part.values()):
            raise CheckpointError(f"{name} that differs from layer to layer", "one for all layers")
    merged: dict[str, Any] = {}
    for part in (parts["rope_scaling"], parts["rope_parameters"]):
        agree(merged, part, "rope_scaling and rope_parameters")
        merged |= part
    for name in ("rope_theta", "partial_rotary_factor"):
        if merged.get(name) is None and found.get(name) is not None:
            merged[name] = found[name]
        agree(merged, {name: found.get(name)}, f"{name} and rope_parameters")
    said = merged.get("rope_theta")
    theta = architecture.theta if said is None else said
    partial = merged.get("partial_rotary_factor")
    scaling = {
        name: value
        for name, value in merged.items()
        if name not in ("rope_theta", "partial_rotary_factor")
    }
    kind = scaling.get("rope_type", scaling.get("type", UNSCALED))
    require(isinstance(kind, str), "rope_type", kind, "text")
    if kind in architecture.longrope:
        kind, scaling = LONGROPE, {**scaling, "rope_type": LONGROPE}
    context = found.get("original_max_position_embeddings")
    if context is not None and kind in ("llama3", "yarn", LONGROPE):
        agree(scaling, {"original_max_position_embeddings": context}, "the config and its RoPE")
        scaling["original_max_position_embeddings"] = context
    longest: Any = found["max_position_embeddings"]
    short: Any = scaling.get("original_max_position_embeddings")
    if kind == LONGROPE and all(is_whole(size) and size <= LARGEST for size in (longest, short)):
        scaling.setdefault("factor", max(longest / short, 1.0))
    return theta, scaling, partial


def agree(one: Mapping[str, Any], other: Mapping[str, Any], names: str) -> None:
    for key in one.keys() & other.keys():
        if other[key] is not None and one[key] is not None and one[key] != other[key]:
            raise CheckpointError(
                f"{names} that disagree on {shown(key)}: {shown(one[key])} and {shown(other[key])}",
                "the same in both",
            )


# ---- sliding windows -----------------------------------------------------------------------------


def windows_of(
    found: Mapping[str, Any], architecture: ModelType, layers: int
) -> int | tuple[int | None, ...] | None:
    """The sliding window of each layer: as `layer_types` say, else by the rule of the type."""
    window, types = found.get("sliding_window"), found.get("layer_types")
    off = architecture.window_switch and not flag(found, "use_sliding_window")
    right = window is None or is_whole(window, 0 if off else 1)
    require(right, "sliding_window", window, "a whole number > 0 or null")
    if off:
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
    if architecture.windows is None:
        kind = found["model_type"]
        raise wrong("sliding_window", window, f"null or layer_types: {kind} has none")
    return by_layer([window if slides else None for slides in architecture.windows(found)])


def flag(found: Mapping[str, Any], name: str) -> bool:
    value = found.get(name)
    require(value is None or isinstance(value, bool), name, value, "true or false")
    return bool(value)
