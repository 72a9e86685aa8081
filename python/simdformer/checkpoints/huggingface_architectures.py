"""What each model_type of a config.json means, as data: the names of its tensors, and where its
config says something else than Llama's.

What a config leaves out is what transformers takes then.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simdformer.arguments import LARGEST, is_whole
from simdformer.checkpoints.names import Names, require

__all__ = ["ARCHITECTURES", "Architecture"]

Found = Mapping[str, Any]  # a config.json

ATTENTION = {
    "model.layers.{}.self_attn.q_proj.weight": "layers.{}.wq",
    "model.layers.{}.self_attn.k_proj.weight": "layers.{}.wk",
    "model.layers.{}.self_attn.v_proj.weight": "layers.{}.wv",
    "model.layers.{}.self_attn.q_proj.bias": "layers.{}.bq",
    "model.layers.{}.self_attn.k_proj.bias": "layers.{}.bk",
    "model.layers.{}.self_attn.v_proj.bias": "layers.{}.bv",
    "model.layers.{}.self_attn.q_norm.weight": "layers.{}.q_norm",
    "model.layers.{}.self_attn.k_norm.weight": "layers.{}.k_norm",
}
GATE_AND_UP = {
    "model.layers.{}.mlp.gate_proj.weight": "layers.{}.gate",
    "model.layers.{}.mlp.up_proj.weight": "layers.{}.up",
}
OUTPUTS = {
    "model.layers.{}.self_attn.o_proj.weight": "layers.{}.wo",
    "model.layers.{}.self_attn.o_proj.bias": "layers.{}.bo",
    "model.layers.{}.mlp.down_proj.weight": "layers.{}.down",
}
OUTSIDE = {
    "model.embed_tokens.weight": "embed",
    "model.norm.weight": "final_norm",
    "lm_head.weight": "lm_head",
}
FUSED = {  # their rows stand below each other
    "model.layers.{}.self_attn.qkv_proj.weight": "layers.{}.wq_wk_wv",
    "model.layers.{}.mlp.gate_up_proj.weight": "layers.{}.gate_up",
}
NORMS_BEFORE = {
    "model.layers.{}.input_layernorm.weight": "layers.{}.attn_norm",
    "model.layers.{}.post_attention_layernorm.weight": "layers.{}.mlp_norm",
}
NORMS_AFTER = {
    "model.layers.{}.post_attention_layernorm.weight": "layers.{}.attn_out_norm",
    "model.layers.{}.post_feedforward_layernorm.weight": "layers.{}.mlp_out_norm",
}
NORMS_AROUND = {
    "model.layers.{}.input_layernorm.weight": "layers.{}.attn_norm",
    "model.layers.{}.post_attention_layernorm.weight": "layers.{}.attn_out_norm",
    "model.layers.{}.pre_feedforward_layernorm.weight": "layers.{}.mlp_norm",
    "model.layers.{}.post_feedforward_layernorm.weight": "layers.{}.mlp_out_norm",
}
MLP_BIASES = {
    "model.layers.{}.mlp.gate_proj.bias": "layers.{}.gate_bias",
    "model.layers.{}.mlp.up_proj.bias": "layers.{}.up_bias",
    "model.layers.{}.mlp.down_proj.bias": "layers.{}.down_bias",
}
EXPERTS = {
    "model.layers.{}.mlp.gate.weight": "layers.{}.router",
    "model.layers.{}.mlp.experts.{}.gate_proj.weight": "layers.{}.experts.{}.gate",
    "model.layers.{}.mlp.experts.{}.up_proj.weight": "layers.{}.experts.{}.up",
    "model.layers.{}.mlp.experts.{}.down_proj.weight": "layers.{}.experts.{}.down",
}
MIXTRAL_EXPERTS = {
    "model.layers.{}.block_sparse_moe.gate.weight": "layers.{}.router",
    "model.layers.{}.block_sparse_moe.experts.{}.w1.weight": "layers.{}.experts.{}.gate",
    "model.layers.{}.block_sparse_moe.experts.{}.w3.weight": "layers.{}.experts.{}.up",
    "model.layers.{}.block_sparse_moe.experts.{}.w2.weight": "layers.{}.experts.{}.down",
}
SHARED_EXPERT = {
    "model.layers.{}.mlp.shared_expert.gate_proj.weight": "layers.{}.shared.gate",
    "model.layers.{}.mlp.shared_expert.up_proj.weight": "layers.{}.shared.up",
    "model.layers.{}.mlp.shared_expert.down_proj.weight": "layers.{}.shared.down",
    "model.layers.{}.mlp.shared_expert_gate.weight": "layers.{}.shared.router",
}
MINIMIND_SHARED_EXPERT = {
    "model.layers.{}.mlp.shared_experts.0.gate_proj.weight": "layers.{}.shared.gate",
    "model.layers.{}.mlp.shared_experts.0.up_proj.weight": "layers.{}.shared.up",
    "model.layers.{}.mlp.shared_experts.0.down_proj.weight": "layers.{}.shared.down",
}
GPT_OSS = {
    "model.layers.{}.self_attn.sinks": "layers.{}.sinks",
    "model.layers.{}.mlp.router.weight": "layers.{}.router",
    "model.layers.{}.mlp.router.bias": "layers.{}.router_bias",
    "model.layers.{}.mlp.experts.gate_up_proj": "layers.{}.experts.gate_up_columns",
    "model.layers.{}.mlp.experts.gate_up_proj_blocks": "layers.{}.experts.gate_up_blocks",
    "model.layers.{}.mlp.experts.gate_up_proj_scales": "layers.{}.experts.gate_up_scales",
    "model.layers.{}.mlp.experts.gate_up_proj_bias": "layers.{}.experts.gate_up_bias",
    "model.layers.{}.mlp.experts.down_proj": "layers.{}.experts.down_columns",
    "model.layers.{}.mlp.experts.down_proj_blocks": "layers.{}.experts.down_blocks",
    "model.layers.{}.mlp.experts.down_proj_scales": "layers.{}.experts.down_scales",
    "model.layers.{}.mlp.experts.down_proj_bias": "layers.{}.experts.down_bias",
}
LLAMA = OUTSIDE | ATTENTION | OUTPUTS | GATE_AND_UP | NORMS_BEFORE
GPT2 = {
    "transformer.wte.weight": "embed",
    "transformer.wpe.weight": "pos_embed",
    "transformer.h.{}.ln_1.weight": "layers.{}.attn_norm",
    "transformer.h.{}.ln_1.bias": "layers.{}.attn_norm_bias",
    "transformer.h.{}.attn.c_attn.weight": "layers.{}.wq_wk_wv",
    "transformer.h.{}.attn.c_attn.bias": "layers.{}.bq_bk_bv",
    "transformer.h.{}.attn.c_proj.weight": "layers.{}.wo",
    "transformer.h.{}.attn.c_proj.bias": "layers.{}.bo",
    "transformer.h.{}.ln_2.weight": "layers.{}.mlp_norm",
    "transformer.h.{}.ln_2.bias": "layers.{}.mlp_norm_bias",
    "transformer.h.{}.mlp.c_fc.weight": "layers.{}.up",
    "transformer.h.{}.mlp.c_fc.bias": "layers.{}.up_bias",
    "transformer.h.{}.mlp.c_proj.weight": "layers.{}.down",
    "transformer.h.{}.mlp.c_proj.bias": "layers.{}.down_bias",
    "transformer.ln_f.weight": "final_norm",
    "transformer.ln_f.bias": "final_norm_bias",
    "lm_head.weight": "lm_head",
}
FIELDS = {
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
}


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
    """Every so manieth layer, without those that mlp_only_layers counts."""
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


# ---- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a model_type means.

    model
        Its class, as `architectures` names it.
    tensors, numbers
        Its tensors, and its fields besides those of `fields`: theirs -> ours.
    fields
        What it calls the sizes and switches that all have.
    prefix
        How the names of its tensors begin, or do not: files of both kinds are published.
    ignored
        How the names of tensors end that nobody reads: masks, and frequencies of RoPE.
    transposed
        Its matrices that are stored as (in, out), by the last part of our names.
    aliases
        Second names of its config's fields: the other -> that of `numbers`.
    always
        Fields of ModelConfig that every such model has.
    required
        Fields that its config must have besides those that all have.
    unsaid
        Its config's fields where a config.json leaves them out.
    follows(found, tensors)
        Fields of ModelConfig that are computed from config.json and the tensors there are.
    derived
        Those fields, and theirs that they follow from, for messages.
    refused
        What the model does not do besides what no model does: the fields, with the values that ask
        for nothing.
    knows
        Fields that no other model does, and that `follows` looks at.
    quant_method
        What quantization_config says of quantised tensors that `tensors` names; None: none are.
    activation
        The field that names the activation of its MLP.
    windows(found)
        Which layers have the sliding window where layer_types do not say it; None: such a model
        has no window then.
    window_switch
        Whether use_sliding_window has to be true for any window.
    theta
        rope_theta, where it is not said.
    local_theta
        The same of layers with a window, which have a RoPE of their own; None: they have not.
    partial_rotary
        Whether partial_rotary_factor counts.
    longrope
        What else it calls longrope, the only scaling of RoPE that it knows then.
    rope
        Whether it has RoPE.
    """

    model: str
    tensors: dict[str, str] = field(default_factory=lambda: LLAMA)
    fields: dict[str, str] = field(default_factory=lambda: FIELDS)
    prefix: str = ""
    ignored: tuple[str, ...] = (".inv_freq",)
    transposed: tuple[str, ...] = ()
    numbers: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    always: dict[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    unsaid: dict[str, Any] = field(default_factory=dict)
    follows: Callable[[Found, Collection[str]], dict[str, Any]] = nothing
    derived: dict[str, str] = field(default_factory=dict)
    refused: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    knows: tuple[str, ...] = ()
    quant_method: str | None = None
    activation: str = "hidden_act"
    windows: Callable[[Found], list[bool]] | None = None
    window_switch: bool = False
    theta: float = 10000.0
    local_theta: float | None = None
    partial_rotary: bool = False
    longrope: tuple[str, ...] = ()
    rope: bool = True

    @property
    def names(self) -> Names:
        return Names(self.fields | self.numbers, self.tensors, self.derived)

    def names_among(self, tensors: Collection[str]) -> Names:
        """Its names in a file with such tensors."""
        if any(name.startswith(self.prefix) for name in tensors):
            return self.names
        short = {theirs.removeprefix(self.prefix): ours for theirs, ours in self.tensors.items()}
        return replace(self, tensors=short).names


OLMO2 = Architecture(
    model="Olmo2ForCausalLM",
    tensors=OUTSIDE | ATTENTION | OUTPUTS | GATE_AND_UP | NORMS_AFTER,
    always={"norm_placement": "after", "qk_norm": True, "qk_norm_over": "all_heads"},
)
GEMMA2 = Architecture(
    model="Gemma2ForCausalLM",
    tensors=OUTSIDE | ATTENTION | OUTPUTS | GATE_AND_UP | NORMS_AROUND,
    numbers={
        "attn_logit_softcapping": "attention_softcap",
        "final_logit_softcapping": "logit_softcap",
    },
    always={"norm_placement": "both", "norm_offset": 1.0},
    unsaid={
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
    },
    follows=gemma_scales,
    derived={"attention_scale": "query_pre_attn_scalar", "embed_scale": "hidden_size"},
    activation="hidden_activation",
    windows=all_but_every_nth,
)
GEMMA3 = replace(
    GEMMA2,
    model="Gemma3ForCausalLM",
    numbers={"final_logit_softcapping": "logit_softcap"},
    always=GEMMA2.always | {"qk_norm": True},
    derived=GEMMA2.derived | {"local_rope_theta": "rope_local_base_freq"},
    unsaid={
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
    theta=1000000.0,
    local_theta=10000.0,
)

GPT2_MODEL = Architecture(
    model="GPT2LMHeadModel",
    tensors=GPT2,
    fields={
        "n_embd": "hidden_size",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "n_positions": "max_seq_len",
        "vocab_size": "vocab_size",
        "layer_norm_epsilon": "norm_eps",
        "tie_word_embeddings": "tie_embeddings",
    },
    prefix="transformer.",
    ignored=(".attn.bias", ".attn.masked_bias"),
    transposed=("wq_wk_wv", "wo", "up", "down"),
    always={
        "positions": "learned",
        "norm": "layer_norm",
        "gated_mlp": False,
        "qkv_bias": True,
        "wo_bias": True,
        "mlp_bias": True,
    },
    unsaid={"activation_function": "gelu_new", "tie_word_embeddings": True},
    follows=gpt2_sizes,
    derived={"intermediate_size": "n_inner", "head_dim": "n_embd / n_head"},
    refused={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
    activation="activation_function",
    rope=False,
)
QWEN_EXPERTS = {
    "num_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "moe_intermediate_size": "expert_intermediate_size",
    "norm_topk_prob": "normalize_expert_weights",
}
QWEN2_MOE = Architecture(
    model="Qwen2MoeForCausalLM",
    tensors=LLAMA | EXPERTS | SHARED_EXPERT,
    numbers=QWEN_EXPERTS | {"shared_expert_intermediate_size": "shared_intermediate_size"},
    aliases={"num_local_experts": "num_experts"},
    always={"wo_bias": False, "shared_router": True},
    required=("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    unsaid={"norm_topk_prob": False, "decoder_sparse_step": 1, "qkv_bias": True},
    follows=experts_and_bias,
    derived={"expert_layers": "mlp_only_layers"},
    windows=every_other_below_max_window_layers,
    window_switch=True,
)

ARCHITECTURES = {
    "gpt2": GPT2_MODEL,
    "llama": Architecture(
        model="LlamaForCausalLM",
        tensors=LLAMA | MLP_BIASES,
        numbers={"mlp_bias": "mlp_bias"},
    ),
    "qwen2": Architecture(
        model="Qwen2ForCausalLM",
        always={"qkv_bias": True, "wo_bias": False},
        windows=from_max_window_layers,
        window_switch=True,
    ),
    "qwen3": Architecture(
        model="Qwen3ForCausalLM",
        always={"qk_norm": True},
        windows=from_max_window_layers,
        window_switch=True,
    ),
    "mistral": Architecture(model="MistralForCausalLM", windows=all_layers),
    "minimind": Architecture(
        model="MiniMindForCausalLM",
        tensors=LLAMA | EXPERTS | MINIMIND_SHARED_EXPERT,
        unsaid={"norm_topk_prob": True},
        follows=minimind,
        derived={
            "num_experts": "num_experts",
            "num_experts_per_tok": "num_experts_per_tok",
            "expert_intermediate_size": "moe_intermediate_size",
            "normalize_expert_weights": "norm_topk_prob",
        },
        knows=("use_moe",),
    ),
    "mixtral": Architecture(
        model="MixtralForCausalLM",
        tensors=OUTSIDE | ATTENTION | OUTPUTS | NORMS_BEFORE | MIXTRAL_EXPERTS,
        numbers={
            "num_local_experts": "num_experts",
            "num_experts_per_tok": "num_experts_per_tok",
        },
        required=("num_local_experts", "num_experts_per_tok"),
        follows=mixtral_experts,
        derived={"expert_intermediate_size": "intermediate_size"},
        windows=all_layers,
        theta=1000000.0,
    ),
    "gpt_oss": Architecture(
        model="GptOssForCausalLM",
        tensors=OUTSIDE | ATTENTION | OUTPUTS | NORMS_BEFORE | GPT_OSS,
        numbers={
            "num_local_experts": "num_experts",
            "num_experts_per_tok": "num_experts_per_tok",
            "swiglu_alpha": "swiglu_alpha",
            "swiglu_limit": "swiglu_limit",
        },
        aliases={"num_experts": "num_local_experts"},
        always={"attention_sinks": True, "activation": "clamped_swiglu", "mlp_bias": True},
        required=("num_local_experts", "num_experts_per_tok"),
        unsaid={"attention_bias": True, "sliding_window": 128, "sliding_window_pattern": 2},
        follows=gpt_oss_experts,
        derived={"expert_intermediate_size": "intermediate_size"},
        quant_method="mxfp4",
        windows=all_but_every_nth,
        theta=150000.0,
    ),
    "qwen2_moe": QWEN2_MOE,
    "qwen3_moe": replace(
        QWEN2_MOE,
        model="Qwen3MoeForCausalLM",
        tensors=LLAMA | EXPERTS,
        numbers=QWEN_EXPERTS,
        always={"qk_norm": True},
        unsaid={"norm_topk_prob": False, "decoder_sparse_step": 1},
        follows=layers_with_experts,
        windows=all_layers,
    ),
    "granite": Architecture(
        model="GraniteForCausalLM",
        tensors=LLAMA | MLP_BIASES,
        numbers={
            "mlp_bias": "mlp_bias",
            "embedding_multiplier": "embed_scale",
            "residual_multiplier": "residual_scale",
            "attention_multiplier": "attention_scale",
            "logits_scaling": "logit_divisor",
        },
        unsaid={"attention_multiplier": 1.0},
    ),
    "smollm3": Architecture(
        model="SmolLM3ForCausalLM",
        unsaid={"no_rope_layer_interval": 4},
        follows=smollm3_rope,
        windows=layers_without_rope,
        window_switch=True,
        theta=2000000.0,
    ),
    "olmo2": OLMO2,
    "olmo3": replace(
        OLMO2,
        model="Olmo3ForCausalLM",
        unsaid={"sliding_window": 4096, "sliding_window_pattern": 4},
        derived={"local_rope_theta": "rope_parameters"},
        windows=all_but_every_nth,
        theta=500000.0,
        local_theta=500000.0,
    ),
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "phi3": Architecture(
        model="Phi3ForCausalLM",
        tensors=OUTSIDE | FUSED | OUTPUTS | NORMS_BEFORE,
        always={"qkv_bias": False, "wo_bias": False},
        derived={"rotary_dim": "partial_rotary_factor"},
        windows=all_layers,
        partial_rotary=True,
        longrope=("su", "yarn"),
    ),
}
