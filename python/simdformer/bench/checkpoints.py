"""A checkpoint of yours as work: how fast it loads, reads and writes here, beside whoever opens it
too.

llama.cpp reads the same GGUF file, transformers the same directory in bfloat16. Errors are those of
the logits after a few ids, against the same weights in float64: see `Exact`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from simdformer.bench.loading import LOADING_GOALS, Loading, files_of
from simdformer.bench.models import CHECKED, MODEL_GOALS, PROMPT_GOALS, STEP_GOALS, ModelRun
from simdformer.bench.work import BOTH, Case, Dtype, Inputs
from simdformer.checkpoints import read_checkpoint
from simdformer.checkpoints.locate import locate
from simdformer.models import Transformer
from simdformer.models.budget import active_parameters, decode_bytes, parameter_budget
from simdformer.models.tensors import Quantized

__all__ = ["CheckpointLoading", "CheckpointRun", "checkpoint_cases"]

PROMPT, IN_CACHE = 512, 64  # ids, or as many as the model takes


def checkpoint_cases(path: str | os.PathLike[str], format: str | None = None) -> list[Case]:
    """A model of yours loaded, a prompt and a step of decoding; `path` and `format` are those of
    `from_pretrained`. Floats of 16 bits read the prompt in bfloat16 too.

    FileNotFoundError, CheckpointError: as `from_pretrained` has them.
    """
    checkpoint = read_checkpoint(locate(path), format)
    config, held = checkpoint.config, checkpoint.weights["layers.0.wo"]
    sizes: dict[str, Any] = {"config": config, "path": str(checkpoint.path)}
    sizes["format"] = checkpoint.format.name
    prompt = min(PROMPT, config.max_seq_len)
    step = CheckpointRun(new=1, in_cache=min(IN_CACHE, config.max_seq_len - 1), **sizes)
    name, quantised = checkpoint.path.name, isinstance(held, Quantized)
    reading, writing = (PROMPT_GOALS, STEP_GOALS) if quantised else (MODEL_GOALS, MODEL_GOALS)
    arithmetics = BOTH if not quantised and held.dtype.itemsize == 2 else BOTH[:1]
    prompts = [CheckpointRun(new=prompt, dtype=dtype, **sizes) for dtype in arithmetics]
    loading = CheckpointLoading(new=min(CHECKED, config.max_seq_len), **sizes)
    cases = [Case(f"{name}/load", loading, LOADING_GOALS)]
    cases += [Case(f"{name}/prefill/{work.dtype}", work, reading) for work in prompts]
    cases.append(Case(f"{name}/decode", step, writing))
    return cases


@dataclass(frozen=True, kw_only=True)
class CheckpointRun(ModelRun):
    """`new` ids through the model at `path`, whose `config` is known already."""

    path: str
    format: str

    @property
    def cache_dtype(self) -> Dtype:
        return "float32"

    @property
    def model(self) -> Any:
        return self.path, self.format

    def packed(self, inputs: Inputs) -> Transformer:
        checkpoint = read_checkpoint(Path(self.path), self.format)
        return Transformer.of_fitting(checkpoint.config, checkpoint.weights)

    @property
    def matrices(self) -> int:
        """With as many experts as an id goes through."""
        budget = parameter_budget(self.config)
        return active_parameters(self.config) - budget["embedding"] - budget["lm_head"]

    @property
    def nbytes(self) -> int:
        """What a step of decoding reads. A prompt reads more of a mixture's experts."""
        weights = self.our_model({}).weights
        return decode_bytes(self.config, weights, self.in_cache + self.new, 4)

    def inputs(self, rng: np.random.Generator) -> Inputs:
        """ids"""
        return {"ids": self.ids(rng)}

    def given_to(self, library: ModuleType, inputs: Inputs) -> Any:
        return library.open_model(Path(self.path), self.config)


@dataclass(frozen=True, kw_only=True)
class CheckpointLoading(CheckpointRun, Loading):
    """From the files at `path` to the model, its tokenizer with it, and on to the first token."""

    @property
    def nbytes(self) -> int:
        """The bytes of the files that the weights lie in."""
        return sum(Path(file).stat().st_size for file in files_of(Path(self.path), self.format))

    @contextmanager
    def saved(self, inputs: Inputs) -> Iterator[Path]:
        yield Path(self.path)
