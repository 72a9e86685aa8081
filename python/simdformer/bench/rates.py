"""What this machine does in the work of a whole model, measured in a few seconds: the figures that
`simdformer.parallel.plan` predicts from."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import simdformer as sf
from simdformer.bench.machine import free_memory, this_machine
from simdformer.bench.models import random_weights
from simdformer.bench.stopwatch import compare
from simdformer.bench.work import numpy_dtype, random_array
from simdformer.models import ModelConfig, Transformer
from simdformer.parallel.plan import Rates

__all__ = ["measure_rates"]

INPUTS = 2048  # of the matrix that decode is measured on
SQUARE = 4096  # outputs and inputs of the one that a prompt is measured on
PROMPT = 256  # rows
REPEATED = 256  # rows of numbers that a matrix repeats: speed does not depend on what they say
LARGEST = 1 << 30  # bytes
LAYERS = 8


def measure_rates(config: ModelConfig, type: str, budget: float = 2.0) -> Rates:
    """Within about `budget` seconds, on the threads in use: matrices of `type` (a dtype's name or a
    quantised type's) far larger than the caches read by `linear` once a token, such a matrix
    multiplied with the rows of a prompt, and small layers built as `config` says, whose time is
    that of calls alone."""
    seed = np.random.default_rng(0)
    caches = this_machine().l2 + this_machine().l3
    nbytes = min(max(4 * caches, LARGEST // 8), LARGEST, free_memory() // 4)
    rows = max(1, int(nbytes / (INPUTS * bits_of(type) / 8)))
    large, square = matrix(seed, rows, INPUTS, type), matrix(seed, SQUARE, SQUARE, type)
    one, many = (random_array(seed, shape, "float32") for shape in ((1, INPUTS), (PROMPT, SQUARE)))
    share = budget / 3
    decode = best(lambda: sf.linear(one, large), share)
    prompt = best(lambda: sf.linear(many, square), share)
    return Rates(
        read=large.nbytes / decode,
        operations=2 * PROMPT * SQUARE**2 / prompt,
        layer=time_of_calls(config, share),
        threads=sf.get_num_threads(),
    )


def bits_of(type: str) -> float:
    """Of a weight."""
    types = sf.quantization_types()
    return types[type].bits_per_weight if type in types else 8 * numpy_dtype(type).itemsize


def matrix(rng: np.random.Generator, rows: int, columns: int, type: str) -> Any:
    """(rows, columns), packed."""
    few = random_array(rng, (min(rows, REPEATED), columns), "float32", columns**-0.5)
    if type in sf.quantization_types():
        blocks = sf.quantize(few, type).blocks()
        blocks = np.resize(blocks, (rows, blocks.shape[1]))
        return sf.QuantizedWeight.from_blocks(blocks, type, (rows, columns))
    return sf.pack(np.resize(few.astype(numpy_dtype(type)), (rows, columns)))


def time_of_calls(config: ModelConfig, budget: float) -> float:
    """Seconds a layer of one token when there is next to nothing to compute."""
    experts = min(config.num_experts, 2 * config.num_experts_per_tok)
    small = replace(
        config,
        hidden_size=256,
        num_heads=2,
        num_kv_heads=1,
        head_dim=128,
        num_layers=LAYERS,
        intermediate_size=256,
        vocab_size=256,
        max_seq_len=64,
        num_experts=experts,
        expert_intermediate_size=256 if experts else 0,
        shared_intermediate_size=256 if config.shared_intermediate_size else 0,
        sliding_window=None,
        rope_layers=None,
        expert_layers=None,
        rope_scaling=None,
        rotary_dim=None,
    )
    model = Transformer(small, random_weights(small), dtype="float32")
    cache = model.new_cache(8)

    def step() -> None:
        cache.reset()
        model([1], cache)

    step()
    return best(step, budget) / LAYERS


def best(call: Callable[[], object], budget: float) -> float:
    return compare({"one": call}, budget)["one"]
