"""What each model_type of a config.json means, as data: the names of its tensors, and where its
config says something else than Llama's.

What a config leaves out is what transformers takes then.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from simdformer.checkpoints.huggingface_rules import (
    Found,
    all_but_every_nth,
    all_layers,
    every_other_below_max_window_layers,
    experts_and_bias,
    from_max_window_layers,
    gemma_scales,
    gpt2_sizes,
    gpt_oss_experts,
    layers_with_experts,
    layers_without_rope,
    minimind,
    mixtral_experts,
    nothing,
    smollm3_rope,
)
from simdformer.checkpoints.names import Names
from simdformer.checkpoints.tensor_names import (
    GEMMA,
    GPT2,
    GPT_OSS,
    LLAMA,
    MINIMIND,
    MIXTRAL,
    OLMO2,
    PHI3,
    TensorNames,
)

__all__ = ["ARCHITECTURES", "ModelType"]

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


@dataclass(frozen=True, kw_only=True)
class ModelType:
    """What a model_type means.

    model
        Its class, as `architectures` names it.
    tensors
        The names of its tensors.
    numbers
        Its fields that others do not have: theirs -> ours.
    fields
        What it calls the sizes and switches that all have.
    prefix
        How the names of its tensors begin, or do not: files of both kinds are published.
    ignored
        How the names of tensors end that are not needed: masks, and frequencies of RoPE.
    transposed
        Its matrices that are stored as (in, out), by the last part of our names.
    aliases
        Second names of its config's fields: the other -> that of `numbers`.
    always
        Fields of ModelConfig that every such model has.
    required
        Further fields that its config must have.
    unsaid
        Its config's fields where a config.json leaves them out.
    follows(found, tensors)
        Fields of ModelConfig that are computed from config.json and the tensors there are.
    derived
        Those fields, and theirs that they follow from, for messages.
    refused
        Further fields of what the model does not do, with the values that ask for nothing.
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
        The same of layers with a window, where they have a RoPE of their own.
    partial_rotary
        Whether partial_rotary_factor counts.
    longrope
        What else it calls longrope, the only scaling of RoPE that it knows then.
    rope
        Whether it has RoPE.
    """

    model: str
    tensors: TensorNames = LLAMA
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
        return Names(self.fields | self.numbers, self.tensors.huggingface, self.derived)

    def names_among(self, tensors: Collection[str]) -> Names:
        """Its names in a file with such tensors."""
        names = self.names
        if any(name.startswith(self.prefix) for name in tensors):
            return names
        short = {theirs.removeprefix(self.prefix): ours for theirs, ours in names.tensors.items()}
        return replace(names, tensors=short)


OLMO2_TYPE = ModelType(
    model="Olmo2ForCausalLM",
    tensors=OLMO2,
    always={"norm_placement": "after", "qk_norm": True, "qk_norm_over": "all_heads"},
)
GEMMA2_TYPE = ModelType(
    model="Gemma2ForCausalLM",
    tensors=GEMMA,
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
GEMMA3_TYPE = replace(
    GEMMA2_TYPE,
    model="Gemma3ForCausalLM",
    numbers={"final_logit_softcapping": "logit_softcap"},
    always=GEMMA2_TYPE.always | {"qk_norm": True},
    derived=GEMMA2_TYPE.derived | {"local_rope_theta": "rope_local_base_freq"},
    unsaid={
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
    theta=1000000.0,
    local_theta=10000.0,
)

GPT2_TYPE = ModelType(
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
QWEN2_MOE = ModelType(
    model="Qwen2MoeForCausalLM",
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
    "gpt2": GPT2_TYPE,
    "llama": ModelType(
        model="LlamaForCausalLM",
        numbers={"mlp_bias": "mlp_bias"},
    ),
    "qwen2": ModelType(
        model="Qwen2ForCausalLM",
        always={"qkv_bias": True, "wo_bias": False},
        windows=from_max_window_layers,
        window_switch=True,
    ),
    "qwen3": ModelType(
        model="Qwen3ForCausalLM",
        always={"qk_norm": True},
        windows=from_max_window_layers,
        window_switch=True,
    ),
    "mistral": ModelType(model="MistralForCausalLM", windows=all_layers),
    "minimind": ModelType(
        model="MiniMindForCausalLM",
        tensors=MINIMIND,
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
    "mixtral": ModelType(
        model="MixtralForCausalLM",
        tensors=MIXTRAL,
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
    "gpt_oss": ModelType(
        model="GptOssForCausalLM",
        tensors=GPT_OSS,
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
        numbers=QWEN_EXPERTS,
        always={"qk_norm": True},
        unsaid={"norm_topk_prob": False, "decoder_sparse_step": 1},
        follows=layers_with_experts,
        windows=all_layers,
    ),
    "granite": ModelType(
        model="GraniteForCausalLM",
        numbers={
            "mlp_bias": "mlp_bias",
            "embedding_multiplier": "embed_scale",
            "residual_multiplier": "residual_scale",
            "attention_multiplier": "attention_scale",
            "logits_scaling": "logit_divisor",
        },
        unsaid={"attention_multiplier": 1.0},
    ),
    "smollm3": ModelType(
        model="SmolLM3ForCausalLM",
        unsaid={"no_rope_layer_interval": 4},
        follows=smollm3_rope,
        windows=layers_without_rope,
        window_switch=True,
        theta=2000000.0,
    ),
    "olmo2": OLMO2_TYPE,
    "olmo3": replace(
        OLMO2_TYPE,
        model="Olmo3ForCausalLM",
        unsaid={"sliding_window": 4096, "sliding_window_pattern": 4},
        derived={"local_rope_theta": "rope_parameters"},
        windows=all_but_every_nth,
        theta=500000.0,
        local_theta=500000.0,
    ),
    "gemma2": GEMMA2_TYPE,
    "gemma3_text": GEMMA3_TYPE,
    "phi3": ModelType(
        model="Phi3ForCausalLM",
        tensors=PHI3,
        always={"qkv_bias": False, "wo_bias": False},
        derived={"rotary_dim": "partial_rotary_factor"},
        windows=all_layers,
        partial_rotary=True,
        longrope=("su", "yarn"),
    ),
}
