"""What each general.architecture of a GGUF file means, as data: the names of its tensors, and where
its keys say something else than Llama's.

What a file leaves out is what llama.cpp takes then. Norms are stored as they multiply: those of
Gemma, which Hugging Face's files hold minus 1, come without an offset.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from simdformer.checkpoints.names import Names, require
from simdformer.checkpoints.tensor_names import (
    GEMMA,
    GPT2,
    GPT_OSS,
    LLAMA,
    OLMO2,
    PHI3,
    TensorNames,
)

__all__ = ["ARCHITECTURES", "Architecture"]

Found = Mapping[str, Any]  # the keys of a file behind the name of its architecture

FIELDS = {
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
QKV = ("bq", "bk", "bv")
COUNTS_OF_EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
WIDTH_OF_EXPERTS = {"expert_feed_forward_length": "expert_intermediate_size"}


# ---- what follows from the keys ------------------------------------------------------------------


def nothing(found: Found) -> dict[str, Any]:
    return {}


def gemma_scales(layers_of_27b: int) -> Callable[[Found], dict[str, Any]]:
    """Scores are divided by the root of head_dim; in the model of 27 billion parameters, which is
    known by the number of its layers, by that of hidden_size / num_heads."""

    def follows(found: Found) -> dict[str, Any]:
        width, heads = found["embedding_length"], found["attention.head_count"]
        largest = found["block_count"] == layers_of_27b
        per_head = width // heads if largest else found["attention.key_length"]
        return {"attention_scale": per_head**-0.5, "embed_scale": width**0.5}

    return follows


def gemma3_scales_and_rope(found: Found) -> dict[str, Any]:
    local = found.get("rope.freq_base_swa", 10000.0)
    return gemma_scales(62)(found) | {"local_rope_theta": local}


def olmo_rope(found: Found) -> dict[str, Any]:
    """In layers with a window, which OLMo 3 has, RoPE is not scaled."""
    local = found.get("rope.freq_base_swa", found["rope.freq_base"])
    return {"local_rope_theta": local if found.get("attention.sliding_window") else None}


def rope_in_three_of_four(found: Found) -> dict[str, Any]:
    return {"rope_layers": tuple((layer + 1) % 4 != 0 for layer in range(found["block_count"]))}


def as_wide_as_an_mlp(found: Found) -> dict[str, Any]:
    """The experts of Mixtral, whose files have Llama's architecture."""
    mixed = bool(found.get("expert_count"))
    return {"expert_intermediate_size": found["feed_forward_length"] if mixed else 0}


def rope_that_is_on(found: Found) -> dict[str, Any]:
    """Granite's files say with this key that there is no RoPE."""
    turns = found.get("rope.scaling.finetuned", True)
    require(turns is True, "granite.rope.scaling.finetuned", turns, "true")
    return {}


# ---- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a general.architecture means.

    rope_layout
        The pairs of RoPE in its files: llama.cpp's converter stores wq and wk of some models with
        neighbours as pairs.
    tensors
        The names of its tensors.
    numbers
        Its keys that others do not have: theirs -> ours.
    fields
        The keys of the sizes that all have.
    always
        Fields of ModelConfig that every such model has.
    required
        Further keys that a file must have.
    unsaid
        Its keys where a file leaves them out.
    follows(found)
        Fields of ModelConfig that are computed from the keys, whose whole numbers are > 0.
    derived
        Those fields, and the keys that they follow from, for messages.
    window_period
        Where no pattern says which layers have the sliding window: all but every n-th. None:
        all have it, and no pattern can say otherwise.
    rope_scaling
        What a scaling has that no key says.
    partial_rotary
        Whether rope.dimension_count may be less than a head.
    biases
        The biases of attention that llama.cpp's graph of it reads.
    tied
        Whether that graph needs the last matrix to be the embedding; None: it may be.
    square
        Whether all heads together have to be as wide as the model there.
    """

    rope_layout: Literal["half", "interleaved"]
    tensors: TensorNames = LLAMA
    fields: dict[str, str] = field(default_factory=lambda: FIELDS)
    numbers: dict[str, str] = field(default_factory=dict)
    always: dict[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    unsaid: dict[str, Any] = field(default_factory=dict)
    follows: Callable[[Found], dict[str, Any]] = nothing
    derived: dict[str, str] = field(default_factory=dict)
    window_period: int | None = None
    rope_scaling: dict[str, Any] = field(default_factory=dict)
    partial_rotary: bool = False
    biases: tuple[str, ...] = ()
    tied: bool | None = None
    square: bool = False

    def names(self, arch: str) -> Names:
        """Those in the files of architecture `arch`."""

        def full(keys: str) -> str:
            return " / ".join(f"{arch}.{key}" for key in keys.split(" / "))

        derived = {"head_dim": "embedding_length / attention.head_count"} | self.derived
        return Names(
            {full(theirs): ours for theirs, ours in (self.fields | self.numbers).items()},
            self.tensors.gguf,
            {ours: full(theirs) for ours, theirs in derived.items()},
        )


GEMMA2 = Architecture(
    rope_layout="half",
    tensors=GEMMA,
    numbers={
        "attn_logit_softcapping": "attention_softcap",
        "final_logit_softcapping": "logit_softcap",
    },
    always={"norm_placement": "both", "activation": "gelu_tanh"},
    unsaid={
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "attention.sliding_window": 4096,
    },
    follows=gemma_scales(46),
    derived={"attention_scale": "attention.key_length", "embed_scale": "embedding_length"},
    window_period=2,
    tied=True,
)
ARCHITECTURES = {
    "llama": Architecture(
        rope_layout="interleaved",
        numbers=COUNTS_OF_EXPERTS,
        follows=as_wide_as_an_mlp,
        derived={"expert_intermediate_size": "feed_forward_length"},
        biases=(*QKV, "bo"),
    ),
    "qwen2": Architecture(rope_layout="half", always={"qkv_bias": True}, biases=QKV, square=True),
    "qwen3": Architecture(rope_layout="half", always={"qk_norm": True}),
    "phi3": Architecture(
        rope_layout="half",
        tensors=PHI3,
        derived={"rotary_dim": "rope.dimension_count"},
        partial_rotary=True,
        square=True,
    ),
    "granite": Architecture(
        rope_layout="interleaved",
        numbers={
            "embedding_scale": "embed_scale",
            "residual_scale": "residual_scale",
            "attention.scale": "attention_scale",
            "logit_scale": "logit_divisor",
        },
        required=("logit_scale",),
        follows=rope_that_is_on,
        biases=(*QKV, "bo"),
    ),
    "smollm3": Architecture(rope_layout="interleaved", follows=rope_in_three_of_four),
    "olmo2": Architecture(
        rope_layout="half",
        tensors=OLMO2,
        always={"norm_placement": "after", "qk_norm": True, "qk_norm_over": "all_heads"},
        follows=olmo_rope,
        derived={"local_rope_theta": "rope.freq_base_swa"},
        window_period=4,
        tied=False,
        square=True,
    ),
    "gemma2": GEMMA2,
    "gemma3": replace(
        GEMMA2,
        numbers={"final_logit_softcapping": "logit_softcap"},
        always=GEMMA2.always | {"qk_norm": True},
        unsaid={},
        follows=gemma3_scales_and_rope,
        derived=GEMMA2.derived | {"local_rope_theta": "rope.freq_base_swa"},
        window_period=6,
        tied=None,
    ),
    "qwen2moe": Architecture(
        rope_layout="half",
        numbers=COUNTS_OF_EXPERTS
        | WIDTH_OF_EXPERTS
        | {"expert_shared_feed_forward_length": "shared_intermediate_size"},
        always={"qkv_bias": True, "shared_router": True, "normalize_expert_weights": False},
        required=(*COUNTS_OF_EXPERTS, *WIDTH_OF_EXPERTS, "expert_shared_feed_forward_length"),
        biases=QKV,
        tied=False,
        square=True,
    ),
    "qwen3moe": Architecture(
        rope_layout="half",
        numbers=COUNTS_OF_EXPERTS | WIDTH_OF_EXPERTS,
        always={"qk_norm": True},
        required=(*COUNTS_OF_EXPERTS, *WIDTH_OF_EXPERTS),
    ),
    "gpt-oss": Architecture(
        rope_layout="half",
        tensors=GPT_OSS,
        numbers=COUNTS_OF_EXPERTS | WIDTH_OF_EXPERTS,
        always={"attention_sinks": True, "activation": "clamped_swiglu", "mlp_bias": True},
        required=(*COUNTS_OF_EXPERTS, *WIDTH_OF_EXPERTS),
        window_period=2,
        rope_scaling={"truncate": False},
        biases=(*QKV, "bo"),
        tied=False,
    ),
    "gpt2": Architecture(
        rope_layout="half",  # there is none
        tensors=GPT2,
        fields={
            "attention.layer_norm_epsilon" if ours == "norm_eps" else theirs: ours
            for theirs, ours in FIELDS.items()
        },
        always={
            "positions": "learned",
            "norm": "layer_norm",
            "activation": "gelu_tanh",
            "gated_mlp": False,
            "qkv_bias": True,
            "wo_bias": True,
            "mlp_bias": True,
        },
        biases=(*QKV, "bo"),
        square=True,
    ),
}
