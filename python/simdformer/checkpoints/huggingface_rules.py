"""What follows from a config.json and its tensors, beyond fields that only have another name."""

from collections.abc import Collection, Mapping
from typing import Any

from simdformer.arguments import LARGEST, is_whole
from simdformer.checkpoints.names import require

__all__ = [
    "Found",
    "all_but_every_nth",
    "all_layers",
    "every_other_below_max_window_layers",
    "experts_and_bias",
    "from_max_window_layers",
    "gemma_scales",
    "gpt2_sizes",
    "gpt_oss_experts",
    "layers_with_experts",
    "layers_without_rope",
    "minimind",
    "mixtral_experts",
    "nothing",
    "smollm3_rope",
]

Found = Mapping[str, Any]  # a config.json


# ---- what follows from a config ------------------------------------------------------------------


def nothing(found: Found, tensors: Collection[str]) -> dict[str, Any]:
    return {}


def norms_that_are_there(found: Found, tensors: Collection[str]) -> dict[str, Any]:
    """MiniMind has had norms of q and k for some generations, which its tensors tell."""
    return {"qk_norm": "layers.0.q_norm" in tensors}


def minimind_experts(found: Found, tensors: Collection[str]) -> dict[str, Any]:
    """Where it uses them. Its earlier generation calls their number n_routed_experts, may have one
    more for all tokens, and does not normalise the weight of a single one."""
    if not switched_on(found, "use_moe"):
        return {}
    earlier, one = "n_routed_experts" in found, found.get("num_experts_per_tok") == 1
    count = "n_routed_experts" if earlier else "num_experts"
    for name in (count, "num_experts_per_tok"):
        require(is_whole(found.get(name)), name, found.get(name), "a whole number > 0")
    shared = found.get("n_shared_experts") or 0
    require(is_whole(shared, 0) and shared <= 1, "n_shared_experts", shared, "0 or 1")
    scoring = found.get("scoring_func", "softmax")
    require(scoring == "softmax", "scoring_func", scoring, "'softmax'")
    inner = found["intermediate_size"]
    return {
        "num_experts": found[count],
        "num_experts_per_tok": found["num_experts_per_tok"],
        "expert_intermediate_size": found.get("moe_intermediate_size") or inner,
        "normalize_expert_weights": found["norm_topk_prob"] and not (earlier and one),
        "shared_intermediate_size": inner if shared else 0,
    }


def minimind(found: Found, tensors: Collection[str]) -> dict[str, Any]:
    return norms_that_are_there(found, tensors) | minimind_experts(found, tensors)


def mixtral_experts(found: Found, tensors: Collection[str]) -> dict[str, Any]:
    return {"expert_intermediate_size": found["intermediate_size"]}


def gpt_oss_experts(found: Found, tensors: Collection[str]) -> dict[str, Any]:
    """Its experts. Where no RoPE is said transformers takes a scaled one, which is a guess."""
    rope = found.get("rope_parameters") or found.get("rope_scaling")
    require(bool(rope), "rope_scaling", rope, "an object")
    return mixtral_experts(found, tensors)


def layers_with_experts(found: Found, tensors: Collection[str]) -> dict[str, Any]:
    """Each decoder_sparse_step-th layer, without those that mlp_only_layers lists."""
    layers, step = found["num_hidden_layers"], found["decoder_sparse_step"]
    plain = found.get("mlp_only_layers") or []
    require(is_whole(step), "decoder_sparse_step", step, "a whole number > 0")
    right = isinstance(plain, list) and all(is_whole(one, 0) for one in plain)
    require(right, "mlp_only_layers", plain, "a list of numbers of layers")
    mixed = tuple(layer not in plain and (layer + 1) % step == 0 for layer in range(layers))
    return {"expert_layers": None if all(mixed) else mixed}


def experts_and_bias(found: Found, tensors: Collection[str]) -> dict[str, Any]:
    return layers_with_experts(found, tensors) | {"qkv_bias": switched_on(found, "qkv_bias")}


def switched_on(found: Found, name: str) -> bool:
    value = found.get(name)
    require(value is None or isinstance(value, bool), name, value, "true or false")
    return bool(value)


def gemma_scales(found: Found, tensors: Collection[str]) -> dict[str, Any]:
    scalar, width = found["query_pre_attn_scalar"], found["hidden_size"]
    for name, value in (("query_pre_attn_scalar", scalar), ("hidden_size", width)):
        right = is_whole(value) and value <= LARGEST
        require(right, name, value, "a whole number > 0 and < 2**63")
    return {"attention_scale": scalar**-0.5, "embed_scale": width**0.5}


def gpt2_sizes(found: Found, tensors: Collection[str]) -> dict[str, Any]:
    inner, width = found.get("n_inner"), found["n_embd"]
    return {"intermediate_size": 4 * width if inner is None else inner}


def smollm3_rope(found: Found, tensors: Collection[str]) -> dict[str, Any]:
    turns = turning_layers(found)
    return {"rope_layers": None if all(turns) else tuple(turns)}


def turning_layers(found: Found) -> list[bool]:
    """Which layers have RoPE: no_rope_layers has a 1 for those that do."""
    layers, flags = found["num_hidden_layers"], found.get("no_rope_layers")
    if flags is None:
        every = found["no_rope_layer_interval"]
        require(is_whole(every), "no_rope_layer_interval", every, "a whole number > 0")
        return [(layer + 1) % every != 0 for layer in range(layers)]
    right = isinstance(flags, list) and len(flags) == layers and all(one in (0, 1) for one in flags)
    require(right, "no_rope_layers", flags, f"0 or 1 for each of {layers} layers")
    return [bool(one) for one in flags]


# ---- which layers have a window, where no layer_types say it -------------------------------------


def all_layers(found: Found) -> list[bool]:
    return [True] * int(found["num_hidden_layers"])


def from_max_window_layers(found: Found) -> list[bool]:
    first: Any = found.get("max_window_layers")
    require(is_whole(first, 0), "max_window_layers", first, "a whole number >= 0")
    return [layer >= first for layer in range(found["num_hidden_layers"])]


def every_other_below_max_window_layers(found: Found) -> list[bool]:
    first: Any = found.get("max_window_layers")
    require(is_whole(first, 0), "max_window_layers", first, "a whole number >= 0")
    return [layer % 2 == 0 and layer < first for layer in range(found["num_hidden_layers"])]


def all_but_every_nth(found: Found) -> list[bool]:
    every = found["sliding_window_pattern"]
    require(is_whole(every), "sliding_window_pattern", every, "a whole number > 0")
    return [(layer + 1) % every != 0 for layer in range(found["num_hidden_layers"])]


def layers_without_rope(found: Found) -> list[bool]:
    return [not turns for turns in turning_layers(found)]
