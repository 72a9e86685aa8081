"""Whole models as work: random weights in the shapes of published checkpoints, bfloat16.

How fast a model is does not depend on what its weights say, so that no checkpoint is needed. Ours,
transformers on PyTorch and llama.cpp run the same weights.
"""

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np

from simdformer import reference
from simdformer.bench import llama_cpp, transformers
from simdformer.bench.contestants import (
    LLAMA_CPP,
    OURS,
    TRANSFORMERS,
    Contestant,
    Missing,
    Way,
)
from simdformer.bench.work import (
    AT_THE_LIMIT,
    Case,
    Dtype,
    Inputs,
    Unit,
    Work,
    numpy_dtype,
    random_array,
    times,
)
from simdformer.functional import embedding
from simdformer.models import KVCache, ModelConfig, Transformer, weight_shapes
from simdformer.models.budget import cache_bytes
from simdformer.rope_scaling import rope_frequencies
from simdformer.runtime import get_num_threads
from simdformer.types import Array

__all__ = [
    "MODEL_GOALS",
    "SHAPES",
    "ModelRun",
    "computing",
    "contestant",
    "forget_models",
    "made",
    "model_cases",
    "our_model",
    "random_weights",
    "reference_logits",
]

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SHAPES = {
    "Qwen3-0.6B": ModelConfig(
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
    ),
    "Llama-3.2-1B": ModelConfig(
        hidden_size=2048,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        intermediate_size=8192,
        vocab_size=128256,
        max_seq_len=131072,
        norm_eps=1e-5,
        rope_theta=500000.0,
        rope_layout="half",
        rope_scaling=LLAMA3_SCALING,
        tie_embeddings=True,
    ),
}
BLOCK = 1_000_003  # random numbers that all matrices repeat; a prime, so that no two rows are equal
CHECKED = 16  # ids; float64 is slow, and a model that is right for these is the same model
SAMPLED = 256  # logits
SEED = 20240601
MODEL_GOALS = (times(1.0, TRANSFORMERS, LLAMA_CPP), AT_THE_LIMIT)

# The models made last, by what made them: cases of one model follow each other.
_made: dict[str, tuple[Any, Any]] = {}


def model_cases() -> Iterator[Case]:
    """A prompt of 512 ids in two arithmetics, and a step of decoding, of each shape."""
    arithmetics: tuple[Dtype, ...] = ("float32", "bfloat16")  # peers have the second
    for shape, config in SHAPES.items():
        for dtype in arithmetics:
            prompt = ModelRun(config=config, new=512, dtype=dtype)
            yield Case(f"{shape}/prefill/{dtype}", prompt, MODEL_GOALS)
        yield Case(f"{shape}/decode", ModelRun(config=config, new=1, in_cache=64), MODEL_GOALS)


@dataclass(frozen=True, kw_only=True)
class ModelRun(Work):
    """`new` ids through a model that holds `in_cache` ids already: a prompt, or a step of decoding.

    Weights and cache are bfloat16. `dtype` is that of the arithmetic between the kernels. Logits
    are wanted for the last id only.
    """

    config: ModelConfig
    new: int
    in_cache: int = 0
    cache_dtype: ClassVar[Dtype] = "bfloat16"

    @property
    def model(self) -> Any:
        """By what its model is known."""
        return self.config

    @property
    def operation(self) -> str:
        return "decode with a model" if self.new == 1 else "prefill with a model"

    @property
    def matrices(self) -> int:
        """Parameters that each id is multiplied with, without the last matrix."""
        shapes = weight_shapes(self.config)
        return sum(
            math.prod(shape)
            for name, shape in shapes.items()
            if len(shape) == 2 and name not in ("embed", "lm_head")
        )

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
        """Every weight once, and the cache. (Of the embedding only a few rows.)"""
        weights = 2 * (self.matrices + self.last_matrix)
        return weights + cache_bytes(self.config, self.in_cache + self.new, 2)

    @property
    def counted_in(self) -> Unit:
        return "tok/s"

    @property
    def tolerance(self) -> float:
        """Roundings to 16 bits add up over the layers; unrelated logits would be 1.4 away."""
        return 0.2

    def speed(self, seconds: float) -> float:
        return self.new / seconds

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """config, weights, ids (in_cache + new,)"""
        ids = rng.integers(self.config.vocab_size, size=self.in_cache + self.new)
        return {"config": self.config, "weights": random_weights(self.config), "ids": ids}

    def sample(self, result: Array) -> Array:
        return result[self.sampled()]

    def sampled(self) -> Array:
        count = self.config.vocab_size
        return np.unique(np.linspace(0, count - 1, SAMPLED).astype(np.intp))

    def checked_ids(self, inputs: Inputs) -> Array:
        ids: Array = inputs["ids"][:CHECKED]
        return ids

    def expected(self, inputs: Inputs) -> Array:
        """Some of the last logits after the first few ids; those of cases of one model are kept."""
        ids = self.checked_ids(inputs)

        def logits() -> Array:
            return self.exact_logits(inputs, ids)

        found: Array = made("expected", (self.model, tuple(ids)), logits)
        return found

    def exact_logits(self, inputs: Inputs, ids: Array) -> Array:
        """The sampled logits after ids, in float64."""
        return reference_logits(self.config, inputs["weights"], ids, self.sampled())

    def contestants(self, inputs: Inputs) -> list[Contestant | Missing]:
        return [ours(self, inputs), with_transformers(self, inputs), with_llama_cpp(self, inputs)]

    def smaller(self) -> Self:
        """Two layers of the same proportions."""
        config = replace(
            self.config,
            hidden_size=64,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            head_dim=16,
            intermediate_size=96,
            vocab_size=300,
        )
        return replace(self, config=config, new=min(self.new, 20), in_cache=min(self.in_cache, 20))


@lru_cache(maxsize=1)
def random_weights(config: ModelConfig) -> dict[str, Array]:
    """bfloat16 tensors for `Transformer(config, ...)`, scaled so that activations stay moderate.

    The last ones made are kept; `forget_models` lets them go.
    """
    rng = np.random.default_rng(SEED)

    def tensor(shape: tuple[int, ...]) -> Array:
        if len(shape) == 1:  # of a norm
            return 1 + random_array(rng, shape, "bfloat16", 0.1)
        block = random_array(rng, (BLOCK,), "bfloat16", shape[1] ** -0.5)
        return np.resize(block, shape)

    return {name: tensor(shape) for name, shape in weight_shapes(config).items()}


def reference_logits(
    config: ModelConfig, weights: dict[str, Array], ids: Array, rows: Array
) -> Array:
    """The logits `rows` after the last of ids (L,), in float64 and one matrix at a time.

    For models without biases and windows. It is what `simdformer.models.Transformer` computes.
    """
    inv_freq, factor = rope_frequencies(
        config.head_dim, theta=config.rope_theta, scaling=config.rope_scaling
    )

    def norm(x: Array, name: str) -> Array:
        return reference.rms_norm(x, weights[name], eps=config.norm_eps)

    def linear(x: Array, name: str) -> Array:
        return reference.forward.float64(reference.linear(x, weights[name]))

    def heads(x: Array) -> Array:
        return x.reshape(len(ids), -1, config.head_dim).swapaxes(0, 1)

    def rotated(x: Array, norm_name: str) -> Array:
        x = norm(x, norm_name) if config.qk_norm else x
        options: dict[str, Any] = {"layout": config.rope_layout, "attention_factor": factor}
        return reference.rope(x, inv_freq=inv_freq, **options)

    x = reference.forward.float64(embedding(ids, weights["embed"], dtype="float32"))
    for at in (f"layers.{layer}." for layer in range(config.num_layers)):
        h = norm(x, at + "attn_norm")
        q, k, v = (heads(linear(h, at + name)) for name in ("wq", "wk", "wv"))
        q, k = rotated(q, at + "q_norm"), rotated(k, at + "k_norm")
        z: Any = reference.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(z.swapaxes(0, 1).reshape(len(ids), -1), at + "wo")
        h = norm(x, at + "mlp_norm")
        x = x + linear(reference.swiglu(linear(h, at + "gate"), linear(h, at + "up")), at + "down")
    last = weights["embed" if config.tie_embeddings else "lm_head"]
    last_rows = embedding(rows, last, dtype="float32")
    return reference.forward.float64(reference.linear(norm(x[-1], "final_norm"), last_rows))


# ---- who runs them -------------------------------------------------------------------------------


def forget_models() -> None:
    """Lets the memory of the models and of their weights go."""
    _made.clear()
    random_weights.cache_clear()


def made(by: str, model: Any, make: Callable[[], Any]) -> Any:
    """What `by` made last, if it is of that model, else a new one in its place."""
    if by not in _made or _made[by][0] != model:
        _made.pop(by, None)  # before the next one is made
        _made[by] = (model, make())
    return _made[by][1]


def our_model(work: ModelRun, inputs: Inputs) -> Transformer:
    """On the packed weights that all work with this model shares."""
    config, weights = work.config, inputs["weights"]
    return computing(work, made(OURS, work.model, lambda: Transformer(config, weights)))


def computing(work: ModelRun, packed: Transformer) -> Transformer:
    """The arithmetic of the work on packed weights that others share."""
    model = copy(packed)
    model.activations = numpy_dtype(work.dtype)
    return model


def ours(work: ModelRun, inputs: Inputs) -> Contestant:
    return contestant(our_model(work, inputs), work, inputs)


def contestant(model: Transformer, work: ModelRun, inputs: Inputs) -> Contestant:
    ids, first = inputs["ids"], work.in_cache
    cache = model.new_cache(first + work.new, dtype=work.cache_dtype)
    if first:
        model(ids[:first], cache, 1)
    new = ids[first:]

    def call() -> Array:
        cache.truncate(first)
        return model(new, cache, 1)

    def checked(_: Array) -> Array:
        few = work.checked_ids(inputs)
        short: KVCache = model.new_cache(len(few), dtype=work.cache_dtype)
        model(few[:-1], short, 1)
        logits: Array = model(few[-1:], short, 1)[-1]
        return logits

    return Contestant(OURS, (Way(f"activations {work.dtype}", call, checked),))


def with_transformers(work: ModelRun, inputs: Inputs) -> Contestant | Missing:
    if missing := transformers.missing():
        return missing
    config, weights, ids = work.config, inputs["weights"], inputs["ids"]
    model = made(TRANSFORMERS, work.model, lambda: transformers.load(config, weights))
    return transformers.contestant(model, ids, work.in_cache, work.checked_ids(inputs))


def with_llama_cpp(work: ModelRun, inputs: Inputs) -> Contestant | Missing:
    if missing := llama_cpp.missing():
        return missing
    config, weights, ids = work.config, inputs["weights"], inputs["ids"]
    few, threads = work.checked_ids(inputs), get_num_threads()
    try:
        model = made(LLAMA_CPP, work.model, lambda: llama_cpp.Model.of(config, weights))
        return llama_cpp.contestant(model, ids, work.in_cache, few, threads)
    except (OSError, RuntimeError) as error:  # no room for its file, or a library that is too new
        return Missing(LLAMA_CPP, f"could not be given the model: {error}")
