"""Whole models with weights of few bits: ours and llama.cpp on the same blocks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

import simdformer as sf
from simdformer.bench.contestants import LLAMA_CPP, Contestant, Missing
from simdformer.bench.models import SEED, SHAPES, ModelRun, made, ours, with_llama_cpp
from simdformer.bench.work import Case, Dtype, Goal, Inputs, random_array, times
from simdformer.models import ModelConfig, weight_shapes
from simdformer.models.budget import cache_bytes
from simdformer.types import Array

__all__ = [
    "PROMPT_GOALS",
    "STEP_GOALS",
    "QuantizedModelRun",
    "quantized_model_cases",
    "quantized_weights",
]

MODELS = {"Qwen3-0.6B": ("q8_0", "q4_0", "q4_k"), "Llama-3.2-1B": ("q4_k",)}
PROMPT_GOALS = (times(1.2, LLAMA_CPP),)
STEP_GOALS = (times(1.0, LLAMA_CPP), times(1.3, LLAMA_CPP) | Goal(0.85, "read"))
REPEATED = 256  # rows of a matrix that all others repeat: speed does not depend on what they say


def quantized_model_cases() -> Iterator[Case]:
    """A prompt of 512 ids, and a step of decoding, of each shape and type."""
    for shape, types in MODELS.items():
        for type in types:
            prompt = QuantizedModelRun(config=SHAPES[shape], new=512, type=type)
            yield Case(f"{shape}/{type}/prefill", prompt, PROMPT_GOALS)
            step = QuantizedModelRun(config=SHAPES[shape], new=1, in_cache=64, type=type)
            yield Case(f"{shape}/{type}/decode", step, STEP_GOALS)


@dataclass(frozen=True, kw_only=True)
class QuantizedModelRun(ModelRun):
    """The same with matrices of a quantised type; norms and the cache are float32."""

    type: str = "q8_0"
    cache_dtype: ClassVar[Dtype] = "float32"

    @property
    def nbytes(self) -> int:
        """Every weight once as the file has it, and the cache."""
        kind = sf.quantization_types()[self.type]
        weights = (self.matrices + self.last_matrix) // kind.block * kind.nbytes
        return weights + cache_bytes(self.config, self.in_cache + self.new, 4)

    @property
    def model(self) -> Any:
        return self.config, self.type

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """config, weights, ids (in_cache + new,)"""
        weights = made("weights", self.model, lambda: quantized_weights(*self.model))
        ids = rng.integers(self.config.vocab_size, size=self.in_cache + self.new)
        return {"config": self.config, "weights": weights, "ids": ids}

    def contestants(self, inputs: Inputs) -> list[Contestant | Missing]:
        return [ours(self, inputs), with_llama_cpp(self, inputs)]

    def smaller(self) -> Self:
        """Two layers of whole blocks."""
        config = replace(
            super().smaller().config, hidden_size=256, head_dim=64, intermediate_size=256
        )
        return replace(self, config=config, new=min(self.new, 20), in_cache=min(self.in_cache, 20))


def quantized_weights(config: ModelConfig, type: str) -> dict[str, Array | sf.QuantizedWeight]:
    """Tensors for `Transformer(config, ...)`: blocks of a type, rows that repeat; float32 norms."""
    rng = np.random.default_rng(SEED)
    made: dict[tuple[int, ...], Array] = {}  # blocks by shape: each layer packs its own

    def tensor(shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:  # of a norm
            return 1 + random_array(rng, shape, "float32", 0.1)
        if shape not in made:
            few = random_array(rng, (min(shape[0], REPEATED), shape[1]), "float32", 1.0)
            made[shape] = sf.quantize(few * np.float32(shape[1] ** -0.5), type).blocks()
        blocks = np.resize(made[shape], (shape[0], made[shape].shape[1]))
        return sf.QuantizedWeight.from_blocks(blocks, type, (shape[0], shape[1]))

    return {name: tensor(shape) for name, shape in weight_shapes(config).items()}
