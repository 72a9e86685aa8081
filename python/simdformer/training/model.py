"""The transformer with its way back: models/transformer.py line by line, and each line's gradient.

Letters in shapes are those of models/transformer.py.
"""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from simdformer import backward
from simdformer.checkpoints import read_checkpoint
from simdformer.checkpoints.locate import locate
from simdformer.functional import embedding, layer_norm, linear, rms_norm, rope
from simdformer.functional import scaled_dot_product_attention as attention
from simdformer.loss import linear_cross_entropy
from simdformer.models.activations import GATED, PLAIN
from simdformer.models.config import ModelConfig
from simdformer.models.forward_pass import are_long, checked_ids, rope_of_layers
from simdformer.models.transformer import Transformer
from simdformer.models.weights import arrays_of, check_weights, weight_shapes
from simdformer.text.language_model import LanguageModel
from simdformer.text.tokenizer import Tokenizer
from simdformer.training.export import export
from simdformer.types import Array, ArrayLike

__all__ = ["TrainableModel"]

SeeGradient = Callable[[str, Array], object]
INITIAL = 0.02  # the standard deviation of new matrices, as in GPT-2


class TrainableModel:
    """A dense decoder-only transformer in float32 whose loss has gradients.

    `parameters()` are its weights under the names of `weight_shapes(config)`; who writes into them
    changes the model. ValueError: the config has experts, whose gradients are not here.

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

    def __init__(self, config: ModelConfig, weights: Mapping[str, Any]) -> None:
        if config.num_experts:
            raise ValueError(
                f"TrainableModel: config has num_experts = {config.num_experts}, needs 0; "
                "take a model with one MLP a layer"
            )
        if config.activation == "clamped_swiglu":
            raise ValueError(
                "TrainableModel: config has activation = 'clamped_swiglu', needs silu or gelu_tanh"
            )
        self.config = config
        self.weights: dict[str, Array] = {
            name: np.array(weights[name], np.float32) for name in weight_shapes(config)
        }
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
        ends a text. transformers and `sf.from_pretrained` read it. Rows of wq and wk are put into
        Hugging Face's order where RoPE is interleaved.

        tokenizer : a folder, or a file of one, whose tokenizer's files are copied.

        CheckpointError: the config is not one of a Llama, Mistral, Qwen2 or Qwen3; no tokenizer is
        there. OSError: the disk is full; files that stood there before are as they were.
        """
        export(Path(directory), self.config, self.weights, tokenizer, self.eos_ids)

    def loss_and_gradients(
        self,
        ids: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        count: int | None = None,
        precision: Literal["float32"] = "float32",
        checkpoint: Literal["none", "layer"] = "none",
        see: SeeGradient | None = None,
    ) -> tuple[float, dict[str, Array]]:
        """ids (L,) or (B,L) -> the mean loss of the labels and the gradients of all parameters.

        labels : the same shape; -100 counts for nothing. None: each id's successor.
        count : what the mean divides by, where this is a part of a batch: all its labels.
        checkpoint : "layer" keeps what goes into a layer alone and computes the rest again.
        see(name, gradient) : is shown the gradients of activations, by the names of a trace.

        ValueError: no label counts; shapes; another precision or checkpoint. IndexError: an id or
        a label outside the vocabulary.
        """
        for name, value, known in (
            ("precision", precision, ("float32",)),
            ("checkpoint", checkpoint, ("none", "layer")),
        ):
            if value not in known:
                needed = " or ".join(map(repr, known))
                raise ValueError(f"loss_and_gradients: {name} is {value!r}, needs {needed}")
        ids = np.atleast_2d(checked_ids(ids))  # type: ignore[arg-type]
        if ids.shape[1] > self.config.max_seq_len:
            raise ValueError(
                f"loss_and_gradients: ids have {ids.shape[1]} positions, needs at most "
                f"{self.config.max_seq_len}; shorten them"
            )
        if labels is None:
            after = np.full((len(ids), 1), -100)
            labels = np.concatenate([ids[:, 1:], after], axis=1)
        labels = np.atleast_2d(np.asarray(labels))
        if labels.shape != ids.shape:
            raise ValueError(
                f"loss_and_gradients: labels have shape {labels.shape}, needs {ids.shape}"
            )
        return Step(self, ids, labels, count, checkpoint == "layer", see).run()


class Step:
    """One forward and one backward pass over ids (B,L)."""

    def __init__(
        self,
        model: TrainableModel,
        ids: Array,
        labels: Array,
        count: int | None,
        recompute: bool,
        see: SeeGradient | None,
    ) -> None:
        self.model, self.config, self.weights = model, model.config, model.weights
        self.ids, self.labels, self.count, self.recompute = ids, labels, count, recompute
        self.see = see or (lambda name, gradient: None)
        self.gradients: dict[str, Array] = {}
        self.positions = np.arange(ids.shape[1])

    def run(self) -> tuple[float, dict[str, Array]]:
        config, weights = self.config, self.weights
        x = embedding(self.ids, weights["embed"]) * np.float32(config.embed_scale)
        if config.positions == "learned":
            x = x + weights["pos_embed"][self.positions]
        inputs, kept = [], []
        for layer in range(config.num_layers):
            inputs.append(x)
            x, saved = self.block(layer, x)
            kept.append(None if self.recompute else saved)

        normed = self.norm("final_norm", x)
        head = "embed" if config.tie_embeddings else "lm_head"
        divided = normed / np.float32(config.logit_divisor)
        result = linear_cross_entropy(
            divided, weights[head], self.labels, count=self.count, softcap=config.logit_softcap
        )
        self.add(head, result.weight)
        dx = result.x / np.float32(config.logit_divisor)
        self.see("final_norm", dx)
        dx = self.norm_back("final_norm", dx, x)
        for layer in reversed(range(config.num_layers)):
            saved = kept.pop() or self.block(layer, inputs[layer])[1]
            dx = self.block_back(layer, dx, inputs.pop(), saved)
        if config.positions == "learned":
            of_positions = np.zeros_like(weights["pos_embed"])
            of_positions[self.positions] = dx.sum(axis=0)
            self.add("pos_embed", of_positions)
        self.see("embed", dx)
        dx = dx * np.float32(config.embed_scale)
        self.add("embed", backward.embedding(dx, self.ids, config.vocab_size))
        return float(result.loss), {name: self.gradients[name] for name in weights}

    def add(self, name: str, gradient: Array) -> None:
        """A tied embedding has two gradients, which add up."""
        if name in self.gradients:
            self.gradients[name] += gradient
        else:
            self.gradients[name] = gradient

    # ---- a block, forwards and backwards ---------------------------------------------------------

    def block(self, layer: int, x: Array) -> tuple[Array, dict[str, Any]]:
        """x (B,L,E) -> (B,L,E), and what the way back needs"""
        at, factor, s = f"layers.{layer}.", np.float32(self.config.residual_scale), {}
        s["attn_norm"] = self.norm(at + "attn_norm", x)
        s["attn"] = self.attention(layer, s["attn_norm"], s)
        s["mid"] = x + self.norm(at + "attn_out_norm", s["attn"]) * factor
        s["mlp_norm"] = self.norm(at + "mlp_norm", s["mid"])
        s["mlp"] = self.mlp(layer, s["mlp_norm"], s)
        return s["mid"] + self.norm(at + "mlp_out_norm", s["mlp"]) * factor, s

    def block_back(self, layer: int, dx: Array, x: Array, s: dict[str, Any]) -> Array:
        at, factor = f"layers.{layer}.", np.float32(self.config.residual_scale)
        self.see(at + "resid_post", dx)
        dout = dx * factor
        self.see(at + "mlp.out", dout)
        dout = self.norm_back(at + "mlp_out_norm", dout, s["mlp"])
        dnormed = self.mlp_back(layer, dout, s)
        self.see(at + "mlp_norm", dnormed)
        dx = dx + self.norm_back(at + "mlp_norm", dnormed, s["mid"])
        self.see(at + "resid_mid", dx)
        dout = dx * factor
        self.see(at + "attn.out", dout)
        dout = self.norm_back(at + "attn_out_norm", dout, s["attn"])
        dnormed = self.attention_back(layer, dout, s)
        self.see(at + "attn_norm", dnormed)
        dx = dx + self.norm_back(at + "attn_norm", dnormed, x)
        self.see(at + "resid_pre", dx)
        return dx

    def attention(self, layer: int, x: Array, s: dict[str, Any]) -> Array:
        """x (B,L,E) -> (B,L,E)"""
        at, config = f"layers.{layer}.", self.config
        for one, heads in (("q", config.num_heads), *((n, config.num_kv_heads) for n in "kv")):
            y = linear(x, self.weights[f"{at}w{one}"], self.weights.get(f"{at}b{one}"))
            s[one] = y.reshape(*x.shape[:2], heads, config.head_dim)
        s["q_rot"] = self.turned(layer, self.norm_heads(at + "q_norm", s["q"]))
        s["k_rot"] = self.turned(layer, self.norm_heads(at + "k_norm", s["k"]))
        z, s["lse"] = attention(*self.heads(s), return_lse=True, **self.options(layer))
        s["z"] = z
        merged = z.swapaxes(1, 2).reshape(*x.shape[:2], -1)
        return linear(merged, self.weights[at + "wo"], self.weights.get(at + "bo"))

    def attention_back(self, layer: int, dout: Array, s: dict[str, Any]) -> Array:
        at, config, x = f"layers.{layer}.", self.config, s["attn_norm"]
        merged = s["z"].swapaxes(1, 2).reshape(*x.shape[:2], -1)
        dz = self.linear_back(at + "wo", at + "bo", dout, merged)
        dz = dz.reshape(*x.shape[:2], config.num_heads, config.head_dim)
        self.see(at + "attn.z", dz)
        needs = ("query", "key", "value", *(("sinks",) if config.attention_sinks else ()))
        of = backward.scaled_dot_product_attention(
            dz.swapaxes(1, 2), *self.heads(s), s["z"], s["lse"], needs=needs, **self.options(layer)
        )
        if config.attention_sinks:
            self.add(at + "sinks", of.sinks)
        dq, dk, dv = (d.swapaxes(1, 2) for d in (of.query, of.key, of.value))
        self.see(at + "attn.q_rot", dq)
        self.see(at + "attn.k_rot", dk)
        dq = self.norm_heads_back(at + "q_norm", self.turned(layer, dq, back=True), s["q"])
        dk = self.norm_heads_back(at + "k_norm", self.turned(layer, dk, back=True), s["k"])
        dx: Array = np.zeros_like(x)
        for one, d in (("q", dq), ("k", dk), ("v", dv)):
            self.see(f"{at}attn.{one}", d)
            dx += self.linear_back(f"{at}w{one}", f"{at}b{one}", d.reshape(*x.shape[:2], -1), x)
        return dx

    def heads(self, s: dict[str, Any]) -> tuple[Array, Array, Array]:
        """q (B,H,L,D), k and v (B,K,L,D)"""
        q, k, v = (s[name].swapaxes(1, 2) for name in ("q_rot", "k_rot", "v"))
        return q, k, v

    def options(self, layer: int) -> dict[str, Any]:
        config = self.config
        return {
            "scale": config.attention_scale,
            "softcap": config.attention_softcap,
            "is_causal": True,
            "window": config.window(layer),
            "sinks": self.weights.get(f"layers.{layer}.sinks"),
        }

    def mlp(self, layer: int, x: Array, s: dict[str, Any]) -> Array:
        """x (B,L,E) -> (B,L,E)"""
        at, config, w = f"layers.{layer}.", self.config, self.weights
        s["up"] = linear(x, w[at + "up"], w.get(at + "up_bias"))
        if config.gated_mlp:
            s["gate"] = linear(x, w[at + "gate"], w.get(at + "gate_bias"))
            s["act"] = GATED[config.activation](s["gate"], s["up"])
        else:
            s["act"] = PLAIN[config.activation](s["up"])
        return linear(s["act"], w[at + "down"], w.get(at + "down_bias"))

    def mlp_back(self, layer: int, dout: Array, s: dict[str, Any]) -> Array:
        at, config, x = f"layers.{layer}.", self.config, s["mlp_norm"]
        dact = self.linear_back(at + "down", at + "down_bias", dout, s["act"])
        self.see(at + "mlp.act", dact)
        gelu = config.activation == "gelu_tanh"
        if not config.gated_mlp:
            up = s["up"]
            dup = backward.gelu(dact, up, approximate="tanh") if gelu else backward.silu(dact, up)
            self.see(at + "mlp.up", dup)
            return self.linear_back(at + "up", at + "up_bias", dup, x)
        if gelu:
            dgate = backward.gelu(dact * s["up"], s["gate"], approximate="tanh")
            dup = dact * PLAIN["gelu_tanh"](s["gate"])
        else:
            dgate, dup = backward.swiglu(dact, s["gate"], s["up"])
        self.see(at + "mlp.gate", dgate)
        self.see(at + "mlp.up", dup)
        dx = self.linear_back(at + "gate", at + "gate_bias", dgate, x)
        return dx + self.linear_back(at + "up", at + "up_bias", dup, x)

    # ---- their parts -----------------------------------------------------------------------------

    def linear_back(self, weight: str, bias: str, dy: Array, x: Array) -> Array:
        needs = ("x", "weight", "bias") if bias in self.weights else ("x", "weight")
        of = backward.linear(dy, x, self.weights[weight], needs=needs)
        self.add(weight, of.weight)
        if bias in self.weights:
            self.add(bias, of.bias)
        return np.asarray(of.x)

    def scale_of(self, name: str) -> Array:
        """The weight of a norm as it is multiplied: Gemma's is 1 + w."""
        return self.weights[name] + np.float32(self.config.norm_offset)

    def norm(self, name: str, x: Array) -> Array:
        if name not in self.weights:
            return x
        if self.config.norm == "layer_norm":
            bias = self.weights.get(name + "_bias")
            return layer_norm(x, self.scale_of(name), bias, eps=self.config.norm_eps)
        return rms_norm(x, self.scale_of(name), eps=self.config.norm_eps)

    def norm_back(self, name: str, dy: Array, x: Array) -> Array:
        if name not in self.weights:
            return dy
        eps, weight, bias = (
            self.config.norm_eps,
            self.scale_of(name),
            self.weights.get(name + "_bias"),
        )
        if self.config.norm == "layer_norm":
            of = backward.layer_norm(dy, x, weight, bias, eps=eps)
            if bias is not None:
                self.add(name + "_bias", of.bias)
            self.add(name, of.weight)
            return np.asarray(of.x)
        dx, dweight = backward.rms_norm(dy, x, weight, eps=eps)
        self.add(name, dweight)
        return np.asarray(dx)

    def flat(self, x: Array) -> Array:
        """Heads as a norm over all of them sees them."""
        return x if self.config.qk_norm_over == "head" else x.reshape(*x.shape[:2], -1)

    def norm_heads(self, name: str, x: Array) -> Array:
        return self.norm(name, self.flat(x)).reshape(x.shape)

    def norm_heads_back(self, name: str, dy: Array, x: Array) -> Array:
        return self.norm_back(name, self.flat(dy), self.flat(x)).reshape(x.shape)

    def turned(self, layer: int, x: Array, *, back: bool = False) -> Array:
        """x (B,L,H,D), every head turned by its position, or back"""
        if (tables := self.model.rope_of_layers[layer]) is None:
            return x
        table = tables[are_long(self.config, len(self.positions))]
        return (backward.rope if back else rope)(
            x.swapaxes(1, 2),
            layout=self.config.rope_layout,
            positions=self.positions,
            inv_freq=table.inv_freq,
            attention_factor=table.attention_factor,
            rotary_dim=self.config.rotary_dim,
        ).swapaxes(1, 2)
