"""LoRA: a model whose weights stay as they are, and whose adapters are trained.

Hu et al. 2021, arXiv:2106.09685. What it computes is in models/adapters.py, its gradients are in
step.py.
"""

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from simdformer.arguments import is_whole, shown
from simdformer.checkpoints import read_checkpoint
from simdformer.checkpoints.checkpoint import Checkpoint
from simdformer.checkpoints.huggingface import HUGGINGFACE
from simdformer.checkpoints.locate import locate
from simdformer.checkpoints.names import renamed
from simdformer.checkpoints.peft import CONFIG, MODULES, PREFIX, WEIGHTS
from simdformer.checkpoints.rope_rows import TURNED, in_layout
from simdformer.models.adapters import ADAPTABLE, Adapter
from simdformer.models.config import ModelConfig
from simdformer.models.transformer import Transformer
from simdformer.models.weight_table import weight_rows
from simdformer.models.weights import weight_shapes
from simdformer.runtime import keep_memory
from simdformer.text.language_model import LanguageModel
from simdformer.text.tokenizer import Tokenizer
from simdformer.training.export import copy_tokenizer, write_safetensors
from simdformer.training.files import write_text
from simdformer.training.model import TrainableModel
from simdformer.training.parts import LORA_A, LORA_B
from simdformer.types import Array

__all__ = ["LoRAModel", "write_adapters"]


class LoRAModel(TrainableModel):
    """A model of frozen weights whose adapters have gradients. The weights keep the types that they
    have in their file, of few bits too (a GGUF file): they take no more memory than for generating.

    `parameters()` are layers.0.wq.lora_a (rank, in) and layers.0.wq.lora_b (out, rank), and so on:
    y = W x + alpha / rank · lora_b (lora_a x). lora_b begins as zeros, so that the model begins as
    it was.

    >>> from simdformer.training import LoRAModel
    >>> import simdformer as sf
    >>> model = LoRAModel.from_pretrained(sf.demo_path(), rank=4, targets=("wq", "wv"))
    >>> loss, gradients = model.loss_and_gradients([[3, 1, 4, 1, 5]])
    >>> gradients["layers.0.wq.lora_a"].shape, gradients["layers.0.wq.lora_b"].shape
    ((4, 128), (128, 4))
    """

    def __init__(
        self, transformer: Transformer, adapters: Mapping[str, Adapter], base: str = ""
    ) -> None:
        transformer.require_whole("LoRAModel")
        keep_memory(self)
        self.transformer, self.base = transformer, base
        # what is added to the weights of norms is in the weights that a Transformer holds
        self.config = dataclasses.replace(transformer.config, norm_offset=0.0)
        self.weights = {name: transformer.weights.held(name) for name in transformer.weights}
        self.adapters = adapters
        self.rope_of_layers = transformer.rope_of_layers
        self.eos_ids = ()

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        *,
        rank: int = 16,
        alpha: float | None = None,
        targets: Sequence[str] | None = None,
        seed: int = 0,
    ) -> Self:
        """New adapters beside a checkpoint that `sf.from_pretrained` reads.

        rank : the inner width of each adapter
        alpha : what an adapter gives is multiplied by alpha / rank; None: 2 rank.
        targets : which matrices of a layer have one, out of wq, wk, wv, wo, gate, up, down; None:
            all that the model has.

        lora_a is uniform within ± 1 / sqrt(in), as in PEFT. ValueError: rank, alpha or a target
        that makes no sense, a model of whose files PEFT could not name the matrices.
        """
        checkpoint = read_checkpoint(locate(path), None, None)
        config = checkpoint.config
        if not is_whole(rank):
            raise ValueError(f"LoRA: rank is {shown(rank)}, needs a whole number > 0")
        alpha = 2.0 * rank if alpha is None else alpha
        if not 0 < alpha < math.inf:
            raise ValueError(f"LoRA: alpha is {alpha!r}, needs a number > 0")
        names = targets_of(config, targets)
        check_modules(checkpoint, names)
        rng, shapes = np.random.default_rng(seed), weight_shapes(config)
        adapters = {}
        for name in names:
            outputs, inputs = shapes[name]
            a = (2 * rng.random((rank, inputs), np.float32) - 1) / np.float32(math.sqrt(inputs))
            adapters[name] = Adapter(a, np.zeros((outputs, rank), np.float32), alpha / rank)
        model = cls(Transformer.of_fitting(config, checkpoint.weights), adapters, os.fspath(path))
        model.eos_ids = checkpoint.eos_ids
        return model

    def parameters(self) -> dict[str, Array]:
        """The adapters' matrices by name: writable float32 arrays, the model's own."""
        pairs = ((LORA_A, "a"), (LORA_B, "b"))
        return {
            name + behind: getattr(adapter, part)
            for name, adapter in self.adapters.items()
            for behind, part in pairs
        }

    def language_model(self, tokenizer: Tokenizer | None = None) -> LanguageModel:
        """The model with its adapters of now that generates, in the memory of this one."""
        now = {
            name: Adapter(one.a.copy(), one.b.copy(), one.scale)
            for name, one in self.adapters.items()
        }
        return LanguageModel(self.transformer.with_adapters(now), tokenizer)

    def merged(self) -> TrainableModel:
        """The model in float32 whose matrices have their adapters in them: W + alpha / rank b a."""
        config, held = self.transformer.config, self.transformer.with_adapters(self.adapters)
        rows = weight_rows(config)
        weights = {name: np.array(held.weights[name], np.float32) for name in held.weights}
        for name, weight in weights.items():
            if rows[name].is_norm:
                weight -= np.float32(config.norm_offset)
        model = TrainableModel(config, weights)
        model.eos_ids = self.eos_ids
        return model

    def save(
        self,
        directory: str | os.PathLike[str],
        *,
        tokenizer: str | os.PathLike[str] | None = None,
    ) -> None:
        """Writes the adapters as the package peft does: adapter_config.json,
        adapter_model.safetensors. `sf.from_pretrained(base, adapter=directory)` reads them, and
        peft beside the Hugging Face files of the model.

        tokenizer : a folder, or a file of one, whose tokenizer's files are copied.

        CheckpointError: no tokenizer is there. OSError: the disk is full.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        if tokenizer is not None:
            copy_tokenizer(Path(tokenizer), folder)
        write_adapters(folder, self.config, self.adapters, self.base)


def targets_of(config: ModelConfig, targets: Sequence[str] | None) -> list[str]:
    """The names of the matrices that have adapters. ValueError: there are none such."""
    known = [
        short
        for short in ADAPTABLE
        if any(name.split(".")[2:] == [short] for name in weight_rows(config))
    ]
    for target in known if targets is None else targets:
        if target not in known:
            raise ValueError(f"LoRA: targets has {shown(target)}, needs {', '.join(known)}")
    if targets is not None and not targets:
        raise ValueError(f"LoRA: targets is empty, needs some of {', '.join(known)}")
    wanted = [[target] for target in (known if targets is None else targets)]
    return [name for name in weight_rows(config) if name.split(".")[2:] in wanted]


def check_modules(checkpoint: Checkpoint, names: Sequence[str]) -> None:
    """ValueError: PEFT would not find a matrix in the files of the model under the name it has."""
    if checkpoint.format is not HUGGINGFACE:
        return
    for name in names:
        found = str(checkpoint.weights[name].name).rpartition(".")[0]  # type: ignore[attr-defined]
        needed = renamed(name, MODULES) or ""
        if not needed.endswith(found):
            raise ValueError(
                f"LoRA: the model's files have {name} in {found}, needs {needed}; adapters of "
                "matrices that are stored together are not written"
            )


def write_adapters(
    directory: Path, config: ModelConfig, adapters: Mapping[str, Adapter], base: str
) -> None:
    """The files of the package peft."""
    tensors: dict[str, Array] = {}
    for name, adapter in adapters.items():
        b, short = adapter.b, name.rpartition(".")[2]
        if config.rope_layout == "interleaved" and short in TURNED:
            b = in_layout(b, head_dim=config.head_dim, wanted="half")
        module = f"{PREFIX}{renamed(name, MODULES)}"
        tensors |= {f"{module}.lora_A.weight": adapter.a, f"{module}.lora_B.weight": b}
    write_safetensors(directory / WEIGHTS, tensors)
    [one, *_] = adapters.values()
    modules = {(renamed(name, MODULES) or "").rpartition(".")[2] for name in adapters}
    found = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": len(one.a),
        "lora_alpha": one.scale * len(one.a),
        "lora_dropout": 0.0,
        "target_modules": sorted(modules),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    write_text(directory / CONFIG, json.dumps(found, indent=2) + "\n")
