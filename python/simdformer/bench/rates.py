"""What this machine does in the work of a whole model, measured in a few seconds: the figures that
`simdformer.parallel.plan` predicts from."""

import math
from dataclasses import replace
from typing import Any

import simdformer as sf
from simdformer.bench.machine import best_time, free_memory, this_machine
from simdformer.bench.models import random_weights
from simdformer.models import ModelConfig, Transformer, weight_shapes
from simdformer.models.budget import decode_bytes
from simdformer.models.tensors import block_of
from simdformer.parallel.plan import Rates, operations_of, sizes_of

__all__ = ["measure_rates", "narrowed"]

# Sizes that every memory has room for; wider models are not read at another rate.
WIDEST, INNER, FEW_HEADS, VOCABULARY = 4096, 14336, 32, 512
SMALL, SMALL_LAYERS = 256, 8
PROMPT, BEHIND = 256, 32  # ids that are read at once, and those that a token stands behind
LARGEST = 1 << 30  # bytes
SIMILAR = "q4_0"  # to the types that are read but not written


def measure_rates(config: ModelConfig, type: str, budget: float = 3.0) -> Rates:
    """Within about `budget` seconds, and those that it takes to make weights: a token and a prompt
    go through some layers as wide as the model's, whose random weights in `type` (a dtype's name or
    a quantised type's) are larger than the caches; and a token goes through very small layers,
    whose time is that of calls alone."""
    machine = this_machine()
    wide = narrowed(config, WIDEST, INNER, FEW_HEADS)
    enough = min(4 * (machine.l2 * machine.threads + machine.l3), LARGEST, free_memory() // 4)
    one = sum(sizes_of(wide, dict.fromkeys(weight_shapes(wide), type)).values())
    wide = replace(wide, num_layers=max(2, math.ceil(enough / one)))
    model = made(wide, type)
    share = budget / 3
    calls = time_of_calls(config, share)
    token = time_of(model, 1, share)
    reading = max(token - wide.num_layers * calls, token / 2)  # of a tiny model calls are all
    prompt = time_of(model, PROMPT, share)
    return Rates(
        read=decode_bytes(wide, model.weights, BEHIND, 4) / reading,
        operations=operations_of(wide, PROMPT) / prompt,
        layer=calls,
        threads=machine.threads,
    )


def time_of_calls(config: ModelConfig, budget: float) -> float:
    """Seconds a layer of one token when there is next to nothing to compute."""
    few = 2 * config.num_experts_per_tok
    small = sample(
        config,
        hidden_size=SMALL,
        num_heads=2,
        num_kv_heads=1,
        head_dim=128,
        intermediate_size=SMALL,
        num_layers=SMALL_LAYERS,
        num_experts=min(config.num_experts, few),
        num_experts_per_tok=config.num_experts_per_tok,
        expert_intermediate_size=SMALL if few else 0,
    )
    return time_of(made(small, "float32"), 1, budget) / SMALL_LAYERS


def narrowed(
    config: ModelConfig, widest: int, inner: int, few_heads: int, **sizes: Any
) -> ModelConfig:
    """A sample of it that is at most so wide."""
    heads = min(config.num_heads, few_heads)
    return sample(
        config,
        hidden_size=min(config.hidden_size, widest),
        num_heads=heads,
        num_kv_heads=max(1, heads * config.num_kv_heads // config.num_heads),
        intermediate_size=min(inner_width(config), inner),
        **sizes,
    )


def sample(config: ModelConfig, **sizes: Any) -> ModelConfig:
    """A model like it in these sizes: every layer is like any other, and without experts where the
    sizes name none."""
    without = {"num_experts": 0, "num_experts_per_tok": 0, "expert_intermediate_size": 0}
    alike: dict[str, Any] = {
        "num_layers": 1,
        "vocab_size": VOCABULARY,
        "max_seq_len": PROMPT + BEHIND,
        "tie_embeddings": True,
        "rope_scaling": None,
        "rotary_dim": None,
        "sliding_window": None,
        "rope_layers": None,
        "expert_layers": None,
        "shared_intermediate_size": 0,
        "shared_router": False,
    }
    return replace(config, **alike | without | sizes)


def inner_width(config: ModelConfig) -> int:
    """The width of the MLP, or of all experts together that a token goes through."""
    if config.num_experts:
        return config.num_experts_per_tok * config.expert_intermediate_size
    return config.intermediate_size


def made(config: ModelConfig, type: str) -> Transformer:
    """A model of random weights."""
    if block_of(type) > 1:
        kind = sf.quantization_types().get(type)
        written = kind is not None and kind.writable
        return Transformer(config, random_weights(config, type if written else SIMILAR))
    return Transformer(config, random_weights(config), dtype=type)


def time_of(model: Transformer, ids: int, budget: float) -> float:
    """Seconds of a forward pass over new ids behind others."""
    cache = model.new_cache()
    model([1] * BEHIND, cache)

    def step() -> None:
        cache.truncate(BEHIND)
        model([1] * ids, cache, logits_to_keep=1)

    return best_time(step, budget)
