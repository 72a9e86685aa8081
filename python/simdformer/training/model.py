"""A model whose loss has gradients: its weights, and what may be asked of it. The passes themselves
are in step.py."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from simdformer.checkpoints import read_checkpoint
from simdformer.checkpoints.locate import locate
from simdformer.models.adapters import Adapter
from simdformer.models.config import ModelConfig
from simdformer.models.forward_pass import checked_ids, rope_of_layers
from simdformer.models.transformer import Transformer
from simdformer.models.weights import arrays_of, check_weights, weight_shapes
from simdformer.runtime import keep_memory
from simdformer.text.language_model import LanguageModel
from simdformer.text.tokenizer import Tokenizer
from simdformer.training.export import export
from simdformer.training.parts import Precision, SeeGradient
from simdformer.training.step import CHECKPOINTS, Objective, Passes
from simdformer.types import Array, ArrayLike

__all__ = ["PRECISIONS", "TrainableModel"]

PRECISIONS = ("float32", "bfloat16")
INITIAL = 0.02  # the standard deviation of new matrices, as in GPT-2


class TrainableModel:
    """A decoder-only transformer in float32 whose loss has gradients: one MLP a layer, or experts.

    `parameters()` are its weights under the names of `weight_shapes(config)`; who writes into them
    changes the model. `tokenizer`, where it is set, is what `sf.look` and `sf.explore` read a text
    with.

    >>> from simdformer.training import TrainableModel
    >>> from simdformer.models import ModelConfig
    >>> config = ModelConfig(
    ...     hidden_size=8, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4,
    ...     intermediate_size=12, vocab_size=16, max_seq_len=32, norm_eps=1e-5,
    ...     rope_theta=10000.0, rope_layout="half", tie_embeddings=True)
    >>> model = TrainableModel.from_config(config, seed=0)
    >>> loss, gradients = model.loss_and_gradients([[3, 1, 4, 1, 5]])
    >>> round(loss, 1), gradients["layers.1.wq"].shape          # ln 16 is 2.77
    (2.8, (8, 8))
    """

    tokenizer: Tokenizer | None = None

    def __init__(self, config: ModelConfig, weights: Mapping[str, Any]) -> None:
        keep_memory(self)
        self.config = config
        self.weights: Mapping[str, Any] = {
            name: np.array(weights[name], np.float32, order="C") for name in weight_shapes(config)
        }
        self.adapters: Mapping[str, Adapter] = {}
        self.rope_of_layers = rope_of_layers(config)
        self.eos_ids: tuple[int, ...] = ()  # what ends a text, where a checkpoint says so

    @classmethod
    def from_config(cls, config: ModelConfig, *, seed: int = 0) -> Self:
        """New weights: matrices normal with 0.02, what writes to the residual stream divided by
        sqrt(2 layers), norms 1, biases and sinks 0."""
        rng = np.random.default_rng(seed)
        weights: dict[str, Array] = {}
        for name, shape in weight_shapes(config).items():
            if len(shape) == 2:
                writes = name.endswith((".wo", ".down"))
                spread = INITIAL / math.sqrt(2 * config.num_layers) if writes else INITIAL
                weights[name] = spread * rng.standard_normal(shape, np.float32)
            else:
                one = 1 - config.norm_offset if name.endswith("norm") else 0
                weights[name] = np.full(shape, one, np.float32)
        return cls(config, weights)

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str]) -> Self:
        """The model of a checkpoint that `sf.from_pretrained` reads, in float32."""
        checkpoint = read_checkpoint(locate(path), None, None)
        weights = arrays_of(checkpoint.weights)
        check_weights(checkpoint.config, weights)
        model = cls(checkpoint.config, weights)
        model.eos_ids = checkpoint.eos_ids
        return model

    def parameters(self) -> dict[str, Array]:
        """The weights by name: writable float32 arrays, the model's own."""
        return dict(self.weights)

    def language_model(self, tokenizer: Tokenizer | None = None) -> LanguageModel:
        """The model of the same numbers that generates; what is trained later does not reach it."""
        return LanguageModel(Transformer(self.config, self.weights), tokenizer)

    def save(
        self,
        directory: str | os.PathLike[str],
        *,
        tokenizer: str | os.PathLike[str] | None = None,
    ) -> None:
        """Writes the model as Hugging Face lays it out, in float32: config.json, model.safetensors
        (files of 5 GB at most, with their index), generation_config.json where it is known what
        ends a text. transformers and `sf.from_pretrained` read it; experts with an MLP beside them
        that no gate weighs, as MiniMind has, only the latter. Rows of wq and wk are put into
        Hugging Face's order where RoPE is interleaved.

        tokenizer : a folder, or a file of one, whose tokenizer's files are copied.

        CheckpointError: no architecture that is written has such a config;
        no tokenizer is there. OSError: the disk is full; files that stood there before are as they
        were.
        """
        export(Path(directory), self.config, self.weights, tokenizer, self.eos_ids)

    def loss(
        self,
        ids: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        count: int | None = None,
        precision: Precision = "float32",
    ) -> float:
        """ids (L,) or (B,L) -> the mean loss of the labels, in the memory of a forward pass.

        Arguments and errors are those of `loss_and_gradients`.
        """
        check_choice("loss", "precision", precision, PRECISIONS)
        passes = Passes(self, *self.batch("loss", ids, labels), count, precision=precision)
        return passes.mean(passes.losses())[0]

    def losses(
        self,
        ids: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        precision: Precision = "float32",
    ) -> Array:
        """ids (B,L) -> the loss of each label, -log p(label), (B,L) in float32; 0 where it does not
        count."""
        check_choice("losses", "precision", precision, PRECISIONS)
        return Passes(self, *self.batch("losses", ids, labels), None, precision=precision).losses()

    def loss_and_gradients(
        self,
        ids: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        count: int | None = None,
        precision: Precision = "float32",
        checkpoint: Literal["none", "mlp", "layer"] = "none",
        see: SeeGradient | None = None,
        objective: Objective | None = None,
        balance: float = 0.0,
    ) -> tuple[float, dict[str, Array]]:
        """ids (L,) or (B,L) -> the mean loss of the labels and the gradients of all parameters.

        labels : the same shape; -100 counts for nothing. None: each id's successor.
        count : what the mean divides by, where this is a part of a batch: all its labels.
        precision : "bfloat16" rounds what products, attention and activations take and give, and
            needs half of the memory for them; weights, gradients and sums stay float32.
        checkpoint : what is computed again on the way back instead of kept: "mlp" what goes into
            the activations, "layer" all but what goes into a layer. The bits are the same.
        see(name, gradient) : is shown the gradients of activations, by the names of a trace; those
            of attn.out and mlp.out in front of residual_scale, where a trace has them behind it.
        objective(losses) -> loss, gradient : what to train for instead of the mean, of the losses
            (B,L) of the labels, and its gradient by them.
        balance : how much the loss counts that is smallest where all experts of a mixture have as
            many tokens. It is a part of the loss.

        ValueError: no id, or no label that counts; shapes; another precision or checkpoint.
        IndexError: an id or a label outside the vocabulary.
        """
        function = "loss_and_gradients"
        check_choice(function, "precision", precision, PRECISIONS)
        check_choice(function, "checkpoint", checkpoint, CHECKPOINTS)
        batch = self.batch(function, ids, labels)
        return Passes(self, *batch, count, checkpoint, see, objective, balance, precision).run()

    def batch(self, function: str, ids: ArrayLike, labels: ArrayLike | None) -> tuple[Array, Array]:
        """Both as (B,L), checked."""
        given = checked_ids(ids)  # type: ignore[arg-type]
        if given.size == 0:
            raise ValueError(
                f"{function}: ids have shape {given.shape}, needs at least one; leave this batch "
                "out"
            )
        ids = np.atleast_2d(given)
        if ids.shape[1] > self.config.max_seq_len:
            raise ValueError(
                f"{function}: ids have {ids.shape[1]} positions, needs at most "
                f"{self.config.max_seq_len}; shorten them"
            )
        if labels is None:
            after = np.full((len(ids), 1), -100)
            labels = np.concatenate([ids[:, 1:], after], axis=1)
        labels = np.atleast_2d(np.asarray(labels))
        if labels.shape != ids.shape:
            raise ValueError(f"{function}: labels have shape {labels.shape}, needs {ids.shape}")
        return ids, labels


def check_choice(function: str, name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        needed = " or ".join(map(repr, known))
        raise ValueError(f"{function}: {name} is {value!r}, needs {needed}")
