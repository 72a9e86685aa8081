"""Whole models as work: random weights in the shapes of published checkpoints.

How fast a model is does not depend on what its weights say, so that no checkpoint is needed. Ours,
transformers on PyTorch and llama.cpp run the same weights.
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import Any, ClassVar, TypeVar

import numpy as np

from simdformer.bench import llama_cpp, transformers
from simdformer.bench.contestants import LLAMA_CPP, OURS, TRANSFORMERS, Contestant, Missing, Way
from simdformer.bench.exact import Exact
from simdformer.bench.work import (
    AT_THE_LIMIT,
    BOTH,
    SEED,
    Case,
    Dtype,
    Goal,
    Inputs,
    Unit,
    Work,
    random_array,
    some_weight,
    spread,
    times,
)
from simdformer.models import KVCache, ModelConfig, Transformer, weight_shapes
from simdformer.models.budget import active_parameters, cache_bytes, parameter_budget
from simdformer.models.tensors import bits_of, block_of
from simdformer.types import Array

__all__ = [
    "MODEL_GOALS",
    "PROMPT_GOALS",
    "SHAPES",
    "STEP_GOALS",
    "ModelRun",
    "forget_models",
    "made",
    "model_cases",
    "quantised_model_cases",
    "random_weights",
]

T = TypeVar("T")

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
QWEN3 = ModelConfig(
    hidden_size=1024,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=3072,
    vocab_size=151936,
    max_seq_len=40960,
    norm_eps=1e-6,
    rope_theta=1e6,
    rope_layout="half",
    tie_embeddings=True,
    qk_norm=True,
)
LLAMA3 = replace(
    QWEN3,
    hidden_size=2048,
    num_layers=16,
    num_heads=32,
    head_dim=64,
    intermediate_size=8192,
    vocab_size=128256,
    max_seq_len=131072,
    norm_eps=1e-5,
    rope_theta=500000.0,
    rope_scaling=LLAMA3_SCALING,
    qk_norm=False,
)
SHAPES = {"Qwen3-0.6B": QWEN3, "Llama-3.2-1B": LLAMA3}
QUANTISED = {"Qwen3-0.6B": ("q8_0", "q4_0", "q4_k"), "Llama-3.2-1B": ("q4_k",)}
BLOCK = 1_000_003  # random numbers that all matrices repeat; a prime, so that no two rows are equal
CHECKED = 16  # ids; float64 is slow, and a model that is right for these is the same model
SAMPLED = 256  # logits
MODEL_GOALS = (times(1.0, TRANSFORMERS, LLAMA_CPP), AT_THE_LIMIT)
PROMPT_GOALS = (times(1.2, LLAMA_CPP),)  # of few bits
STEP_GOALS = (times(1.0, LLAMA_CPP), times(1.3, LLAMA_CPP) | Goal(0.85, "read"))

# The models made last, by what made them: cases of one model follow each other.
_made: dict[str, tuple[Any, Any]] = {}


def model_cases() -> Iterator[Case]:
    """A prompt of 512 ids in two arithmetics, and a step of decoding, of each shape."""
    for shape, config in SHAPES.items():
        for dtype in BOTH:  # peers have the second
            prompt = ModelRun(config=config, new=512, dtype=dtype)
            yield Case(f"{shape}/prefill/{dtype}", prompt, MODEL_GOALS)
        yield Case(f"{shape}/decode", ModelRun(config=config, new=1, in_cache=64), MODEL_GOALS)


def quantised_model_cases() -> Iterator[Case]:
    """The same of few bits."""
    for shape, types in QUANTISED.items():
        for type in types:
            prompt = ModelRun(config=SHAPES[shape], new=512, type=type)
            yield Case(f"{shape}/{type}/prefill", prompt, PROMPT_GOALS)
            step = ModelRun(config=SHAPES[shape], new=1, in_cache=64, type=type)
            yield Case(f"{shape}/{type}/decode", step, STEP_GOALS)


@dataclass(frozen=True, kw_only=True)
class ModelRun(Work):
    """`new` ids through a model that holds `in_cache` ids already: a prompt, or a step of decoding.

    `type` is that of the matrices; the cache is bfloat16 beside bfloat16, else float32. `dtype` is
    that of the arithmetic between the kernels. Logits are wanted for the last id only.
    """

    counted_in: ClassVar[Unit] = "tok/s"
    peers: ClassVar[tuple[str, ...]] = (TRANSFORMERS, LLAMA_CPP)
    how: ClassVar[dict[str, Any]] = {}  # that peers are asked
    config: ModelConfig
    new: int
    in_cache: int = 0
    type: str = "bfloat16"

    @property
    def cache_dtype(self) -> Dtype:
        return "bfloat16" if self.type == "bfloat16" else "float32"

    @property
    def model(self) -> Any:
        """By what its model is known."""
        return self.config, self.type

    @property
    def operation(self) -> str:
        return "decode with a model" if self.new == 1 else "prefill with a model"

    @property
    def matrices(self) -> int:
        """Parameters that each id is multiplied with, without the last matrix: of experts those
        that it goes through."""
        others = {"embedding", "norms", "lm_head"}
        budget = parameter_budget(self.config)
        return active_parameters(self.config) - sum(budget[part] for part in others)

    @property
    def last_matrix(self) -> int:
        return self.config.vocab_size * self.config.hidden_size

    @property
    def flops(self) -> int:
        """The matrices for every id, the last one once, attention over the pairs that it needs."""
        pairs = self.new * self.in_cache + self.new * (self.new + 1) // 2
        heads = self.config.num_layers * self.config.num_heads * self.config.head_dim
        return 2 * (self.matrices * self.new + self.last_matrix) + 4 * heads * pairs

    @property
    def nbytes(self) -> int:
        """Every weight once, and the cache. (Only a few rows of the embedding.)"""
        weights = int((self.matrices + self.last_matrix) * bits_of(self.type)) // 8
        itemsize = np.dtype(self.cache_dtype).itemsize
        return weights + cache_bytes(self.config, self.in_cache + self.new, itemsize)

    @property
    def tolerance(self) -> float:
        """Roundings to 16 bits add up over the layers; unrelated logits would be 1.4 away."""
        return 0.2

    @property
    def token_count(self) -> int:
        return self.new

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """config, weights, ids"""
        weights = random_weights(self.config, self.type)
        return {"config": self.config, "weights": weights, "ids": self.ids(rng)}

    def ids(self, rng: np.random.Generator) -> Array:
        """(in_cache + new,)"""
        return rng.integers(self.config.vocab_size, size=self.in_cache + self.new)

    def sample(self, result: Array) -> Array:
        return result[self.sampled()]

    def sampled(self) -> Array:
        return spread(self.config.vocab_size, SAMPLED)

    def checked_ids(self, inputs: Inputs) -> Array:
        ids: Array = inputs["ids"][:CHECKED]
        return ids

    def expected(self, inputs: Inputs) -> Array:
        """Some of the last logits after the first few ids; those of cases of one model are kept."""
        ids = self.checked_ids(inputs)

        def exact() -> Array:
            logits: Array = Exact(self.our_model(inputs))(ids, None, 1)[0, self.sampled()]
            return logits

        return made("expected", (self.model, tuple(ids)), exact)

    # Who runs it.

    def contestants(self, inputs: Inputs) -> list[Contestant | Missing]:
        libraries = (transformers, llama_cpp) if self.type == "bfloat16" else (llama_cpp,)
        return [self.ours(inputs), *(self.theirs(library, inputs) for library in libraries)]

    def our_model(self, inputs: Inputs) -> Transformer:
        """On the packed weights that all work with this model shares."""
        model = copy(made(OURS, self.model, lambda: self.packed(inputs)))
        model.activations = np.dtype(self.dtype)
        return model

    def packed(self, inputs: Inputs) -> Transformer:
        return Transformer(self.config, inputs["weights"])

    def ours(self, inputs: Inputs) -> Contestant:
        model, ids, first = self.our_model(inputs), inputs["ids"], self.in_cache
        cache = model.new_cache(first + self.new, dtype=self.cache_dtype)
        if first:
            model(ids[:first], cache, 1)
        new = ids[first:]

        def call() -> Array:
            cache.truncate(first)
            return model(new, cache, 1)

        def checked(_: Array) -> Array:
            few = self.checked_ids(inputs)
            short: KVCache = model.new_cache(len(few), dtype=self.cache_dtype)
            model(few[:-1], short, 1)
            logits: Array = model(few[-1:], short, 1)[-1]
            return logits

        return Contestant(OURS, (Way(f"activations {self.dtype}", call, checked),))

    def theirs(self, library: ModuleType, inputs: Inputs) -> Contestant | Missing:
        """`library`: transformers or llama_cpp of this folder."""
        missing: Missing | None = library.missing()
        if missing:
            return missing
        try:
            model = made(library.NAME, self.model, lambda: self.given_to(library, inputs))
            ids, few = inputs["ids"], self.checked_ids(inputs)
            found: Contestant = library.contestant(model, ids, self.in_cache, few, **self.how)
            return found
        # No room for a file, a checkpoint that takes other packages, a library that is too new.
        except Exception as error:
            return Missing(library.NAME, f"could not be given the model: {error}")

    def given_to(self, library: ModuleType, inputs: Inputs) -> Any:
        """The model as the library has it."""
        return library.model_of(self.config, inputs["weights"])


@lru_cache(maxsize=1)
def random_weights(config: ModelConfig, type: str = "bfloat16") -> dict[str, Any]:
    """Tensors for `Transformer(config, ...)`, scaled so that activations stay moderate: bfloat16,
    or matrices of a quantised type and float32 norms.

    The last ones made are kept; `forget_models` lets them go.
    """
    rng = np.random.default_rng(SEED)

    def tensor(shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:  # of a norm
            return 1 + random_array(rng, shape, "bfloat16" if plain else "float32", 0.1)
        if plain:
            return np.resize(random_array(rng, (BLOCK,), type, shape[1] ** -0.5), shape)
        return some_weight(type, *shape)

    plain = block_of(type) == 1
    return {name: tensor(shape) for name, shape in weight_shapes(config).items()}


def forget_models() -> None:
    """Lets the memory of the models and of their weights go."""
    _made.clear()
    random_weights.cache_clear()


def made(by: str, model: Any, make: Callable[[], T]) -> T:
    """What `by` made last, if it is of that model, else a new one in its place."""
    if by not in _made or _made[by][0] != model:
        _made.pop(by, None)  # before the next one is made
        _made[by] = (model, make())
    found: T = _made[by][1]
    return found
