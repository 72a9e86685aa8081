"""What makes one transformer differ from another, as data: no code asks "which model is this?"."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, get_args

from simdformer.arguments import is_whole, shown

__all__ = ["FieldError", "ModelConfig", "by_layer"]


class FieldError(ValueError):
    """A field of a ModelConfig that makes no sense: its name, its value, what is needed."""

    def __init__(self, name: str, value: Any, needed: str) -> None:
        super().__init__(f"ModelConfig: {name} is {shown(value)}, needs {needed}")
        self.name, self.value, self.needed = name, value, needed


@dataclass(frozen=True, slots=True)
class Rule:
    """What a field must be: `right(value, config)`, and the same in words, in which other fields
    stand in braces."""

    right: Callable[[Any, Any], bool]
    needed: str


def one_of(kind: Any) -> Rule:
    choices = get_args(kind)
    return Rule(lambda value, config: value in choices, " or ".join(map(repr, choices)))


def ruled(*rules: Rule, default: Any = MISSING, hash: bool | None = None) -> Any:
    """A field with its rules. The first rules of all fields come before the second ones, and may
    look at the fields above their own."""
    return field(default=default, hash=hash, metadata={"rules": rules})


RopeLayout = Literal["half", "interleaved"]
QKNormOver = Literal["head", "all_heads"]
PositionKind = Literal["rope", "learned"]
Norm = Literal["rms_norm", "layer_norm"]
NormPlacement = Literal["before", "after", "both"]
ActivationFunction = Literal["silu", "gelu_tanh", "clamped_swiglu"]

LAYOUT = one_of(RopeLayout)
NORMED_AT_ONCE = one_of(QKNormOver)
POSITIONS = one_of(PositionKind)
NORM = one_of(Norm)
PLACEMENT = one_of(NormPlacement)
FUNCTION = one_of(ActivationFunction)
COUNT = Rule(lambda n, config: is_whole(n), "a whole number > 0")
COUNT_OR_ZERO = Rule(lambda n, config: is_whole(n, 0), "a whole number >= 0")
SWITCH = Rule(lambda value, config: isinstance(value, bool), "True or False")
FINITE = Rule(lambda x, config: is_finite(x), "finite")
NOT_NEGATIVE = Rule(lambda x, config: is_finite(x) and x >= 0, "finite and >= 0")
POSITIVE = Rule(lambda x, config: is_finite(x) and x > 0, "finite and > 0")
POSITIVE_OR_NONE = Rule(
    lambda x, config: x is None or (is_finite(x) and x > 0), "None, or finite and > 0"
)
BY_LAYER = Rule(
    lambda value, config: value is None or is_tuple_of(value, is_bool, config.num_layers),
    "None, or a tuple of True and False for {num_layers} layers",
)
WINDOWS = Rule(
    lambda value, config: is_window(value) or is_tuple_of(value, is_window, config.num_layers),
    "None, a whole number > 0, or a tuple of {num_layers} such (one a layer)",
)
SCALING = Rule(
    lambda value, config: value is None or isinstance(value, Mapping),
    "None or a dict as in Hugging Face configs",
)
ROTARY = Rule(
    lambda n, config: n is None or (is_whole(n) and n in range(2, config.head_dim + 1, 2)),
    "None, or an even number from 2 to head_dim = {head_dim}",
)
EVEN = Rule(lambda n, config: n % 2 == 0, "an even number, because RoPE turns pairs")
DIVIDES_HEADS = Rule(
    lambda n, config: config.num_heads % n == 0, "a divisor of num_heads = {num_heads}"
)
CLAMPED_NEEDS_GATE = Rule(
    lambda name, config: config.gated_mlp or name != "clamped_swiglu",
    "silu or gelu_tanh without gated_mlp",
)
NEEDS_EXPERTS = Rule(
    lambda value, config: config.num_experts > 0 or not value, "nothing without num_experts"
)
AT_MOST_EXPERTS = Rule(
    lambda n, config: config.num_experts == 0 or 1 <= n <= config.num_experts,
    "from 1 to num_experts = {num_experts}",
)
BESIDE_EXPERTS = Rule(
    lambda n, config: config.num_experts == 0 or n > 0,
    "a whole number > 0 beside num_experts",
)
NEEDS_SHARED = Rule(
    lambda has, config: config.shared_intermediate_size > 0 or not has,
    "False without shared_intermediate_size",
)


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

    hidden_size: int = ruled(COUNT)
    num_layers: int = ruled(COUNT)
    num_heads: int = ruled(COUNT)
    num_kv_heads: int = ruled(COUNT, DIVIDES_HEADS)
    head_dim: int = ruled(COUNT, EVEN)
    intermediate_size: int = ruled(COUNT)
    vocab_size: int = ruled(COUNT)
    max_seq_len: int = ruled(COUNT)
    norm_eps: float = ruled(NOT_NEGATIVE)
    rope_theta: float = ruled(POSITIVE)
    rope_layout: RopeLayout = ruled(LAYOUT)
    tie_embeddings: bool = ruled(SWITCH)
    rope_scaling: Mapping[str, Any] | None = ruled(SCALING, default=None, hash=False)
    qkv_bias: bool = ruled(SWITCH, default=False)
    wo_bias: bool = ruled(SWITCH, default=False)
    qk_norm: bool = ruled(SWITCH, default=False)
    qk_norm_over: QKNormOver = ruled(NORMED_AT_ONCE, default="head")
    sliding_window: int | tuple[int | None, ...] | None = ruled(WINDOWS, default=None)
    rope_layers: tuple[bool, ...] | None = ruled(BY_LAYER, default=None)
    local_rope_theta: float | None = ruled(POSITIVE_OR_NONE, default=None)
    rotary_dim: int | None = ruled(ROTARY, default=None)
    positions: PositionKind = ruled(POSITIONS, default="rope")
    norm: Norm = ruled(NORM, default="rms_norm")
    norm_placement: NormPlacement = ruled(PLACEMENT, default="before")
    norm_offset: float = ruled(FINITE, default=0.0)
    activation: ActivationFunction = ruled(FUNCTION, CLAMPED_NEEDS_GATE, default="silu")
    gated_mlp: bool = ruled(SWITCH, default=True)
    mlp_bias: bool = ruled(SWITCH, default=False)
    swiglu_alpha: float = ruled(POSITIVE, default=1.702)
    swiglu_limit: float = ruled(POSITIVE, default=7.0)
    num_experts: int = ruled(COUNT_OR_ZERO, default=0)
    num_experts_per_tok: int = ruled(COUNT_OR_ZERO, NEEDS_EXPERTS, AT_MOST_EXPERTS, default=0)
    expert_intermediate_size: int = ruled(COUNT_OR_ZERO, NEEDS_EXPERTS, BESIDE_EXPERTS, default=0)
    expert_layers: tuple[bool, ...] | None = ruled(BY_LAYER, NEEDS_EXPERTS, default=None)
    normalize_expert_weights: bool = ruled(SWITCH, default=True)
    shared_intermediate_size: int = ruled(COUNT_OR_ZERO, NEEDS_EXPERTS, default=0)
    shared_router: bool = ruled(SWITCH, NEEDS_EXPERTS, NEEDS_SHARED, default=False)
    attention_scale: float | None = ruled(POSITIVE_OR_NONE, default=None)
    attention_sinks: bool = ruled(SWITCH, default=False)
    attention_softcap: float | None = ruled(POSITIVE_OR_NONE, default=None)
    logit_softcap: float | None = ruled(POSITIVE_OR_NONE, default=None)
    embed_scale: float = ruled(POSITIVE, default=1.0)
    residual_scale: float = ruled(POSITIVE, default=1.0)
    logit_divisor: float = ruled(POSITIVE, default=1.0)

    def __post_init__(self) -> None:
        for first in (True, False):  # each field by itself, then beside the others
            for one in fields(self):
                rules, value = one.metadata["rules"], getattr(self, one.name)
                for rule in rules[:1] if first else rules[1:]:
                    if not rule.right(value, self):
                        raise FieldError(one.name, value, rule.needed.format_map(vars(self)))

    def __repr__(self) -> str:
        """The fields that are not as in Llama; it can be evaluated."""
        told = ((one, getattr(self, one.name)) for one in fields(self))
        own = [f"{one.name}={value!r}" for one, value in told if value != one.default]
        return f"ModelConfig({', '.join(own)})"

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


COUNTS = tuple(
    one.name for one in fields(ModelConfig) if one.metadata["rules"][0] in (COUNT, COUNT_OR_ZERO)
)


def by_layer(windows: Sequence[int | None]) -> int | tuple[int | None, ...] | None:
    """A `sliding_window` of layers: one number where all of them agree."""
    return windows[0] if len(set(windows)) == 1 else tuple(windows)


def is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def is_window(value: Any) -> bool:
    return value is None or is_whole(value)


def is_tuple_of(values: Any, right: Callable[[Any], bool], count: int) -> bool:
    return isinstance(values, tuple) and len(values) == count and all(map(right, values))


def is_finite(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max  # an int may be too large for any float
