"""What a step of training takes, from shapes alone: floating-point operations, and bytes.

A multiply-add counts two. Letters in shapes are those of step.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simdformer.loss import BLOCK_BYTES
from simdformer.models.config import ModelConfig
from simdformer.models.weight_table import expert_of, weight_rows
from simdformer.models.weights import weight_shapes
from simdformer.training.parts import LORA_A
from simdformer.types import Array

__all__ = ["StepWork", "all_parameters", "flops_of_token", "head_flops", "work_of_step"]

BACKWARD = 2.5  # attention's way back has 5 products, its forward 2
FLOAT = 4  # bytes
SIZES = {"float32": FLOAT, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """What a step computes, with what checkpoint= computes again, and bytes of one process."""

    flops: float
    gradients: int
    moments: int
    activations: int


def work_of_step(
    config: ModelConfig,
    parameters: Mapping[str, Array],
    *,
    rows: int,
    length: int,
    micro_batches: int = 1,
    checkpoint: str = "none",
    precision: str = "float32",
) -> StepWork:
    """The work of rows of `length` ids, computed in micro-batches one after the other."""
    size = sum(array.size for array in parameters.values()) * FLOAT
    tokens = math.ceil(rows / micro_batches) * length
    return StepWork(
        flops=rows * length * flops_of_token(config, parameters, length, checkpoint),
        gradients=size * micro_batches.bit_length(),  # sums of the tree that are held at a time
        moments=2 * size,
        activations=activations_of(config, tokens, checkpoint, precision),
    )


def all_parameters(config: ModelConfig) -> dict[str, Array]:
    """What is trained of a model without adapters, in its shapes: arrays of one number each."""
    shapes = weight_shapes(config)
    return {name: np.broadcast_to(np.float32(), shape) for name, shape in shapes.items()}


def flops_of_token(
    config: ModelConfig, parameters: Mapping[str, Array], length: int, checkpoint: str = "none"
) -> float:
    """Those of a token in a row of `length`, forwards and backwards."""
    shapes, total = weight_shapes(config), 0.0
    for name, row in weight_rows(config).items():
        if not row.is_matrix or (name == "embed" and not config.tie_embeddings):
            continue
        # forwards, the gradient of what went in, and its own
        passes = 2 + (name in parameters) + is_computed_again(name, checkpoint)
        total += 2 * passes * used_share(config, name) * math.prod(shapes[name])
        if (adapter := parameters.get(name + LORA_A)) is not None:
            rank, (outputs, inputs) = len(adapter), shapes[name]
            total += 2 * rank * (3 * (outputs + inputs) + inputs)
    for layer in range(config.num_layers):
        keys = visible_keys(length, config.window(layer))
        forward = 4 * keys * config.num_heads * config.head_dim
        total += (1 + BACKWARD + (checkpoint == "layer")) * forward
    return total


def head_flops(config: ModelConfig) -> float:
    """Those of the head for a token, forwards and backwards, of which it is trained too."""
    return 6 * config.vocab_size * config.hidden_size


def is_computed_again(name: str, checkpoint: str) -> bool:
    short = name.rpartition(".")[2]
    if checkpoint == "mlp":
        return short in ("gate", "up")
    return checkpoint == "layer" and name.startswith("layers.") and short != "down"


def used_share(config: ModelConfig, name: str) -> float:
    """Which part of a matrix's rows a token goes through: one expert of several, now and then."""
    short = name.split(".", 2)[-1]
    return 1.0 if expert_of(short) is None else config.num_experts_per_tok / config.num_experts


def visible_keys(length: int, window: int | None) -> float:
    """How many a query sees, the mean over a row."""
    most = length if window is None else min(window, length)
    return most * (2 * length - most + 1) / 2 / length


# ---- memory --------------------------------------------------------------------------------------


def activations_of(config: ModelConfig, tokens: int, checkpoint: str, precision: str) -> int:
    """Bytes: what is kept of all layers, and beside it the logits or the layer on its way back."""
    layers, size = range(config.num_layers), SIZES[precision]
    kept = sum(kept_by_layer(config, layer, checkpoint, size) for layer in layers)
    inner = max(inner_width(config, layer) for layer in layers)
    back: float = 4 * size * inner + 5 * FLOAT * config.hidden_size
    if checkpoint == "layer":
        back += max(kept_by_layer(config, layer, "none", size) for layer in layers)
    # a block of logits, its gradient, and what is packed beside
    head = max(3 * BLOCK_BYTES, 2 * logits_bytes(config, tokens))
    head += 0 if size == FLOAT else size * config.vocab_size * config.hidden_size
    return int(tokens * kept + max(tokens * back, head))


def logits_bytes(config: ModelConfig, tokens: int) -> int:
    """Those of the logits that exist at a time. Few tokens have all of theirs at once, which take
    at most half of what the gradient of the head does."""
    few = 2 * tokens <= config.hidden_size
    return max(FLOAT * tokens * config.vocab_size if few else 0, BLOCK_BYTES)


def kept_by_layer(config: ModelConfig, layer: int, checkpoint: str, size: int) -> float:
    """The bytes of what step.py lists, for a token: the residual stream, what norms behind a block
    take, and lse in float32, all else in `size` bytes a number."""
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    if checkpoint == "layer":
        return FLOAT * hidden
    wide = 2 * hidden + config.num_heads
    wide += 2 * hidden if config.norm_placement != "before" else 0
    narrow = 2 * heads + 2 * keys
    narrow += heads + keys if config.qk_norm else 0
    if checkpoint == "none":
        narrow += (2 if config.gated_mlp else 1) * inner_width(config, layer)
    return FLOAT * wide + size * narrow


def inner_width(config: ModelConfig, layer: int) -> int:
    """That of the MLP, or of all experts that a token goes through."""
    if not config.has_experts(layer):
        return config.intermediate_size
    experts = config.num_experts_per_tok * config.expert_intermediate_size
    return experts + config.shared_intermediate_size
