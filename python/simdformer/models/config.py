"""What makes one transformer differ from another, as data: no code asks "which model is this?"."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from simdformer.arguments import is_whole, shown

__all__ = ["FieldError", "ModelConfig", "by_layer"]

COUNTS = (
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_seq_len",
)
COUNTS_OR_ZERO = (
    "num_experts",
    "num_experts_per_tok",
    "expert_intermediate_size",
    "shared_intermediate_size",
)
OF_EXPERTS = (
    "num_experts_per_tok",
    "expert_intermediate_size",
    "expert_layers",
    "shared_intermediate_size",
    "shared_router",
)
SWITCHES = (
    "tie_embeddings",
    "qkv_bias",
    "wo_bias",
    "qk_norm",
    "mlp_bias",
    "gated_mlp",
    "attention_sinks",
    "normalize_expert_weights",
    "shared_router",
)
CHOICES = {
    "rope_layout": ("half", "interleaved"),
    "qk_norm_over": ("head", "all_heads"),
    "norm": ("rms_norm", "layer_norm"),
    "norm_placement": ("before", "after", "both"),
    "positions": ("rope", "learned"),
    "activation": ("silu", "gelu_tanh", "clamped_swiglu"),
}
BY_LAYER = ("rope_layers", "expert_layers")
POSITIVE = (
    "rope_theta",
    "embed_scale",
    "residual_scale",
    "logit_divisor",
    "swiglu_alpha",
    "swiglu_limit",
)
POSITIVE_OR_NONE = ("attention_scale", "attention_softcap", "logit_softcap", "local_rope_theta")


class FieldError(ValueError):
    """A field of a ModelConfig that makes no sense: its name, its value, what is needed."""

    def __init__(self, name: str, value: Any, needed: str) -> None:
        super().__init__(f"ModelConfig: {name} is {shown(value)}, needed is {needed}")
        self.name, self.value, self.needed = name, value, needed


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and switches of a decoder-only transformer. ValueError names a field that makes no
    sense. The defaults are Llama's.

    hidden_size, num_layers, vocab_size, max_seq_len
    num_heads, num_kv_heads, head_dim
        num_kv_heads divides num_heads, head_dim is even; their product need not be hidden_size.
    intermediate_size
        Inner width of the MLP.
    norm_eps, rope_theta
    rope_layout
        Which elements RoPE pairs: "half" (i, i + D/2), "interleaved" (2i, 2i + 1). It belongs to
        the format of the checkpoint.
    rope_scaling
        The dict that Hugging Face configs carry, see `simdformer.rope_frequencies`.
    tie_embeddings
        Whether the embedding is also the last matrix.
    qkv_bias, wo_bias, mlp_bias
        Whether wq, wk, wv (Qwen2), wo, and the MLP's matrices have biases.
    qk_norm, qk_norm_over
        Whether q and k go through an RMSNorm: each "head" by itself (Qwen3), or "all_heads" of a
        position as one vector (OLMo 2).
    sliding_window
        How many keys a query sees, itself included (Mistral): a number, or one a layer; None: all.
    rope_layers
        Whether each layer turns its queries and keys (SmolLM3 has some that do not); None: all do.
    local_rope_theta
        The theta of layers with a sliding window, which rope_scaling is not for (Gemma 3); None: no
        difference.
    rotary_dim
        How many elements of a head RoPE turns, the first ones (Phi); None: all.
    positions
        How a token knows where it stands: "rope" turns queries and keys, "learned" adds a vector
        for each of max_seq_len positions to the embedding, and nothing is turned (GPT-2).
    norm
        "rms_norm", or "layer_norm" with a bias (GPT-2).
    norm_placement
        Where attention and the MLP have their norms: "before" (what they read), "after" (what they
        write, before it is added: OLMo 2), or "both" (Gemma).
    norm_offset
        What is added to the weights of all norms (Gemma's checkpoints hold the weight minus 1).
    activation
        For the MLP's gate: "silu", or "gelu_tanh" (Gemma), or "clamped_swiglu" (gpt-oss): with gate
        at most swiglu_limit and up within ± that, gate · sigmoid(swiglu_alpha · gate) · (up + 1).
    gated_mlp
        Whether the MLP is down(activation(gate x) * up x), or down(activation(up x)) (GPT-2).
    num_experts, num_experts_per_tok, expert_intermediate_size
        How many MLPs a layer has instead of one, how many of them a token goes through, and their
        inner width (Mixtral, Qwen3-MoE, gpt-oss); 0: one MLP for all tokens.
    expert_layers
        Whether each layer has experts; None: all have.
    normalize_expert_weights
        Whether what experts write counts by the softmax over the chosen ones, or by that over all.
    shared_intermediate_size, shared_router
        The inner width of an MLP beside the experts for all tokens (0: there is none), and
        whether a router says how much it counts (Qwen2-MoE).
    attention_scale
        What query keyᵀ is multiplied by; None: 1/sqrt(head_dim).
    attention_sinks
        Whether each head has a logit of its own in the softmax, with no value behind it (gpt-oss).
    attention_softcap, logit_softcap
        Scores and logits become softcap · tanh(x / softcap) (Gemma 2); None: they stay.
    embed_scale, residual_scale, logit_divisor
        What embeddings and all that is added to the residual stream are multiplied by, and what
        logits are divided by (Granite; Gemma has the first).
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_seq_len: int
    norm_eps: float
    rope_theta: float
    rope_layout: Literal["half", "interleaved"]
    tie_embeddings: bool
    rope_scaling: Mapping[str, Any] | None = field(default=None, hash=False)
    qkv_bias: bool = False
    wo_bias: bool = False
    qk_norm: bool = False
    qk_norm_over: Literal["head", "all_heads"] = "head"
    sliding_window: int | tuple[int | None, ...] | None = None
    rope_layers: tuple[bool, ...] | None = None
    local_rope_theta: float | None = None
    rotary_dim: int | None = None
    positions: Literal["rope", "learned"] = "rope"
    norm: Literal["rms_norm", "layer_norm"] = "rms_norm"
    norm_placement: Literal["before", "after", "both"] = "before"
    norm_offset: float = 0.0
    activation: Literal["silu", "gelu_tanh", "clamped_swiglu"] = "silu"
    gated_mlp: bool = True
    mlp_bias: bool = False
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    num_experts: int = 0
    num_experts_per_tok: int = 0
    expert_intermediate_size: int = 0
    expert_layers: tuple[bool, ...] | None = None
    normalize_expert_weights: bool = True
    shared_intermediate_size: int = 0
    shared_router: bool = False
    attention_scale: float | None = None
    attention_sinks: bool = False
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_divisor: float = 1.0

    def __post_init__(self) -> None:
        for name in COUNTS:
            value = getattr(self, name)
            self._require(is_whole(value), name, "a whole number > 0")
        for name in COUNTS_OR_ZERO:
            self._require(is_whole(getattr(self, name), 0), name, "a whole number >= 0")
        for name in SWITCHES:
            self._require(isinstance(getattr(self, name), bool), name, "True or False")
        for name, choices in CHOICES.items():
            known = getattr(self, name) in choices
            self._require(known, name, " or ".join(map(repr, choices)))
        for name in (*POSITIVE, *POSITIVE_OR_NONE):
            value, optional = getattr(self, name), name in POSITIVE_OR_NONE
            right = (optional and value is None) or (is_finite(value) and value > 0)
            self._require(right, name, "None, or finite and > 0" if optional else "finite and > 0")
        self._require(
            self.num_heads % self.num_kv_heads == 0,
            "num_kv_heads",
            f"a divisor of num_heads = {self.num_heads}",
        )
        self._require(
            self.head_dim % 2 == 0, "head_dim", "an even number, because RoPE turns pairs"
        )
        self._require(
            is_finite(self.norm_eps) and self.norm_eps >= 0, "norm_eps", "finite and >= 0"
        )
        self._require(is_finite(self.norm_offset), "norm_offset", "finite")
        self._require(
            self.rotary_dim is None
            or (is_whole(self.rotary_dim) and self.rotary_dim in range(2, self.head_dim + 1, 2)),
            "rotary_dim",
            f"None, or an even number from 2 to head_dim = {self.head_dim}",
        )
        for name in BY_LAYER:
            value = getattr(self, name)
            self._require(
                value is None
                or (
                    isinstance(value, tuple)
                    and len(value) == self.num_layers
                    and all(isinstance(one, bool) for one in value)
                ),
                name,
                f"None, or a tuple of True and False for {self.num_layers} layers",
            )
        self._require(
            self.gated_mlp or self.activation != "clamped_swiglu",
            "activation",
            "silu or gelu_tanh without gated_mlp",
        )
        self._check_experts()
        self._require(
            self.rope_scaling is None or isinstance(self.rope_scaling, Mapping),
            "rope_scaling",
            "None or a dict as in Hugging Face configs",
        )
        windows = (
            self.sliding_window
            if isinstance(self.sliding_window, tuple)
            else (self.sliding_window,)
        )
        self._require(
            all(window is None or is_whole(window) for window in windows)
            and (not isinstance(self.sliding_window, tuple) or len(windows) == self.num_layers),
            "sliding_window",
            f"None, a whole number > 0, or a tuple of {self.num_layers} such (one a layer)",
        )

    def _check_experts(self) -> None:
        if self.num_experts == 0:
            for name in OF_EXPERTS:
                self._require(not getattr(self, name), name, "nothing without num_experts")
            return
        right = 1 <= self.num_experts_per_tok <= self.num_experts
        needed = f"from 1 to num_experts = {self.num_experts}"
        self._require(right, "num_experts_per_tok", needed)
        right = self.expert_intermediate_size > 0
        self._require(right, "expert_intermediate_size", "a whole number > 0 beside num_experts")
        right = self.shared_intermediate_size > 0 or not self.shared_router
        self._require(right, "shared_router", "False without shared_intermediate_size")

    def has_experts(self, layer: int) -> bool:
        """Whether one layer has experts instead of one MLP."""
        return self.num_experts > 0 and (self.expert_layers is None or self.expert_layers[layer])

    def window(self, layer: int) -> int | None:
        """The sliding window of one layer."""
        return (
            self.sliding_window[layer]
            if isinstance(self.sliding_window, tuple)
            else self.sliding_window
        )

    @property
    def rope_boundary(self) -> int | None:
        """Longer texts have other frequencies of RoPE ("longrope"); None: all have the same."""
        scaling = self.rope_scaling or {}
        longrope = scaling.get("rope_type", scaling.get("type")) == "longrope"
        return int(scaling["original_max_position_embeddings"]) if longrope else None

    @property
    def summary(self) -> str:
        """Its size in a few words."""
        return f"{self.num_layers} layers of {self.num_heads} heads"

    def turns(self, layer: int) -> bool:
        """Whether one layer has RoPE."""
        return self.positions == "rope" and (self.rope_layers is None or self.rope_layers[layer])

    def _require(self, right: bool, name: str, needed: str) -> None:
        if not right:
            raise FieldError(name, getattr(self, name), needed)


def by_layer(windows: Sequence[int | None]) -> int | tuple[int | None, ...] | None:
    """A `sliding_window` of layers: one number where all of them agree."""
    return windows[0] if len(set(windows)) == 1 else tuple(windows)


def is_finite(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max  # an int may be too large for any float
