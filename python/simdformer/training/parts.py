"""What the passes of step.py are made of, each beside its way back: products, norms, rotations,
activations. Letters in shapes are those of models/transformer.py."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import ml_dtypes
import numpy as np

from simdformer import _core, backward
from simdformer.arguments import converted
from simdformer.functional import layer_norm, linear, pack, rms_norm, rope
from simdformer.models.activations import GATED, PLAIN, added, clamped_swiglu
from simdformer.models.adapters import Adapter
from simdformer.models.config import ModelConfig
from simdformer.models.forward_pass import ByLength, are_long
from simdformer.types import Array

__all__ = ["LORA_A", "LORA_B", "Kept", "Model", "Parts", "Precision", "SeeGradient"]

SeeGradient = Callable[[str, Array], object]
Kept = dict[str, Array]
Precision = Literal["float32", "bfloat16"]
LORA_A, LORA_B = ".lora_a", ".lora_b"  # behind the name of a matrix: what its adapter has


class Model(Protocol):
    """What a step reads of a TrainableModel."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def weights(self) -> Mapping[str, Any]: ...
    @property
    def adapters(self) -> Mapping[str, Adapter]: ...
    @property
    def rope_of_layers(self) -> Sequence[ByLength | None]: ...
    def parameters(self) -> Mapping[str, Array]: ...


def nobody(name: str, gradient: Array) -> None:
    """Nobody looks on."""


class Parts:
    """What all parts share: the weights, the gradients so far, who looks on.

    precision "bfloat16": products, attention and activations take and give bfloat16 numbers, whose
    sums are float32. Weights, their gradients, norms and the residual stream stay float32.
    """

    def __init__(
        self, model: Model, length: int, see: SeeGradient | None, precision: Precision
    ) -> None:
        self.model, self.config, self.weights = model, model.config, model.weights
        self.dtype = np.dtype(ml_dtypes.bfloat16 if precision == "bfloat16" else np.float32)
        self.parameters = model.parameters()  # what has a gradient; the other weights are frozen
        self.gradients: dict[str, Array] = {}
        self.positions = np.arange(length)
        self.see = see or nobody

    def add(self, name: str, gradient: Array) -> None:
        """A tied embedding has two gradients, which add up."""
        if name not in self.parameters:
            return
        if name in self.gradients:
            _core.add_to(self.gradients[name], gradient)
        else:
            self.gradients[name] = gradient

    # ---- numbers ---------------------------------------------------------------------------------

    def narrow(self, x: Array) -> Array:
        """x as products take it."""
        return converted(x, self.dtype)

    def wide(self, x: Array) -> Array:
        """x as the residual stream is."""
        return converted(x, np.dtype(np.float32))

    def matrix(self, name: str) -> Any:
        """A weight as it is multiplied with: frozen ones as they are stored. It is not kept: to
        round a weight again takes less time than to read back what is packed."""
        weight = self.rounded(name)
        return weight if weight is self.weights[name] else pack(weight)

    def rounded(self, name: str) -> Any:
        """The same as its way back takes it."""
        weight = self.weights[name]
        return self.narrow(weight) if isinstance(weight, np.ndarray) else weight

    # ---- products --------------------------------------------------------------------------------

    def product(self, x: Array, weight: Any, bias: Any = None) -> Any:
        """x weightᵀ, in the arithmetic that the way back has"""
        return linear(x, weight, bias, arithmetic="float32")

    def linear(self, at: str, names: Sequence[str], biases: Sequence[str], x: Array) -> list[Array]:
        """x (...,I) through several matrices (O,I), and their adapters -> (...,O) of each"""
        x = self.narrow(x)
        made: list[Array] = self.product(
            x,
            [self.matrix(at + name) for name in names],
            [self.weights.get(at + name) for name in biases],
        )
        for number, name in enumerate(names):
            if adapter := self.model.adapters.get(at + name):
                inner = self.inner(adapter, x)
                made[number] = added(made[number], linear(inner, adapter.b))
        return made

    def inner(self, adapter: Adapter, x: Array) -> Array:
        """What is between an adapter's two matrices: scale a x"""
        return self.narrow(linear(x, adapter.a) * np.float32(adapter.scale))

    def linear_back(
        self, at: str, names: Sequence[str], biases: Sequence[str], dy: Sequence[Array], x: Array
    ) -> Array:
        biased = [at + name for name in biases if at + name in self.parameters]
        needs = ["x", *(["weight"] if at + names[0] in self.parameters else ())]
        needs += ["bias"] if biased else []
        x, dy = self.narrow(x), [self.narrow(d) for d in dy]
        of = backward.linear(dy, x, [self.rounded(at + name) for name in names], needs=needs)
        for name, gradient in zip(names, of.weight or (), strict=False):
            self.add(at + name, gradient)
        for name, gradient in zip(biased, of.bias or (), strict=False):
            self.add(name, gradient)
        dx = np.asarray(of.x)
        for name, d in zip(names, dy, strict=True):
            if adapter := self.model.adapters.get(at + name):
                dx = self.adapter_back(at + name, adapter, d, x, dx)
        return dx

    def adapter_back(self, name: str, adapter: Adapter, dy: Array, x: Array, dx: Array) -> Array:
        """y = scale b (a x): what comes this way, added to dx"""
        of_b = backward.linear(dy, self.inner(adapter, x), adapter.b, needs=("x", "weight"))
        db, dinner = of_b.weight, self.narrow(of_b.x * np.float32(adapter.scale))
        own, da, _ = backward.linear(dinner, x, adapter.a, needs=("x", "weight"))
        self.add(name + LORA_A, da)
        self.add(name + LORA_B, db)
        return added(dx, own)

    # ---- norms -----------------------------------------------------------------------------------

    def norm_weight(self, name: str) -> Array:
        """The weight of a norm as it is multiplied: Gemma's is 1 + w."""
        weight: Array = self.weights[name] + np.float32(self.config.norm_offset)
        return weight

    def norm(self, name: str, x: Array) -> Array:
        """x (...,E) -> (...,E); as it is where the model has no such norm"""
        if name not in self.weights:
            return x
        if self.config.norm == "layer_norm":
            bias = self.weights.get(name + "_bias")
            return layer_norm(x, self.norm_weight(name), bias, eps=self.config.norm_eps)
        return rms_norm(x, self.norm_weight(name), eps=self.config.norm_eps)

    def norm_back(self, name: str, dy: Array, x: Array) -> Array:
        if name not in self.weights:
            return dy
        eps, weight = self.config.norm_eps, self.norm_weight(name)
        bias = self.weights.get(name + "_bias")
        if self.config.norm == "layer_norm":
            of = backward.layer_norm(dy, x, weight, bias, eps=eps)
            if bias is not None:
                self.add(name + "_bias", of.bias)
            self.add(name, of.weight)
            return np.asarray(of.x)
        dx, dweight = backward.rms_norm(dy, x, weight, eps=eps)
        self.add(name, dweight)
        return np.asarray(dx)

    def norm_behind(self, at: str, name: str, x: Array, s: Kept) -> Array:
        """A norm whose input nothing else has kept."""
        if at + name in self.weights:
            s[name] = x
        return self.norm(at + name, x)

    def norm_behind_back(self, at: str, name: str, dy: Array, s: Kept) -> Array:
        return self.norm_back(at + name, dy, s.pop(name)) if name in s else dy

    def flat(self, x: Array) -> Array:
        """Heads as a norm over all of them sees them."""
        return x if self.config.qk_norm_over == "head" else x.reshape(*x.shape[:2], -1)

    def norm_heads(self, name: str, x: Array) -> Array:
        return self.norm(name, self.flat(x)).reshape(x.shape)

    def norm_heads_back(self, name: str, dy: Array, x: Array) -> Array:
        return self.norm_back(name, self.flat(dy), self.flat(x)).reshape(x.shape)

    # ---- rotations -------------------------------------------------------------------------------

    def turn(self, layer: int, x: Array) -> Array:
        """x (B,L,H,D), every head turned by its position, where it lies"""
        heads = x.swapaxes(1, 2)
        if (options := self.rotation(layer)) is not None:
            rope(heads, out=heads, **options)
        return x

    def turned_back(self, layer: int, dx: Array) -> Array:
        """The same back, into memory in which heads lie side by side."""
        if (options := self.rotation(layer)) is None:
            return dx
        merged = np.empty(dx.shape, dx.dtype)
        backward.rope(dx.swapaxes(1, 2), out=merged.swapaxes(1, 2), **options)
        return merged

    def rotation(self, layer: int) -> dict[str, Any] | None:
        if (tables := self.model.rope_of_layers[layer]) is None:
            return None
        table = tables[are_long(self.config, len(self.positions))]
        return {
            "layout": self.config.rope_layout,
            "positions": self.positions,
            "inv_freq": table.inv_freq,
            "attention_factor": table.attention_factor,
            "rotary_dim": self.config.rotary_dim,
        }

    # ---- activations -----------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[str, ...]:
        """What an activation takes."""
        return ("gate", "up") if self.config.gated_mlp else ("up",)

    def mlp_inputs(self, at: str, x: Array) -> list[Array]:
        """x (...,E) -> gate and up (...,I), or up alone"""
        return self.linear(at, self.inputs, [f"{name}_bias" for name in self.inputs], x)

    def mlp_inputs_back(self, at: str, grads: Sequence[Array], x: Array) -> Array:
        return self.linear_back(at, self.inputs, [f"{n}_bias" for n in self.inputs], grads, x)

    def activated(self, inputs: Sequence[Array]) -> Array:
        """activation(gate) * up, or activation(up)"""
        config = self.config
        if not config.gated_mlp:
            return PLAIN[config.activation](*inputs)
        if config.activation == "clamped_swiglu":
            gate, up = inputs
            return clamped_swiglu(gate, up, config.swiglu_alpha, config.swiglu_limit)
        return GATED[config.activation](*inputs)

    def activated_back(self, dact: Array, inputs: Sequence[Array]) -> list[Array]:
        """The gradients of gate and up, or of up alone"""
        kind = self.config.activation
        if not self.config.gated_mlp:
            [up] = inputs
            if kind == "gelu_tanh":
                return [backward.gelu(dact, up, approximate="tanh")]
            return [backward.silu(dact, up)]
        gate, up = inputs
        if kind == "clamped_swiglu":
            return self.clamped_back(dact, gate, up)
        if kind == "gelu_tanh":
            dgate = backward.gelu(dact * up, gate, approximate="tanh")
            return [dgate, dact * PLAIN["gelu_tanh"](gate)]
        return [*backward.swiglu(dact, gate, up)]

    def clamped_back(self, dact: Array, gate: Array, up: Array) -> list[Array]:
        """swiglu(alpha gate, (up + 1) / alpha) of what is within limits; what is not has none"""
        alpha, limit = np.float32(self.config.swiglu_alpha), np.float32(self.config.swiglu_limit)
        dact, gate, up = self.wide(dact), self.wide(gate), self.wide(up)
        low, within = np.minimum(gate, limit), np.clip(up, -limit, limit)
        dgate, dup = backward.swiglu(dact, alpha * low, (within + 1) / alpha)
        dgate *= alpha * (gate <= limit)
        dup *= (np.abs(up) <= limit) / alpha
        return [self.narrow(dgate), self.narrow(dup)]
