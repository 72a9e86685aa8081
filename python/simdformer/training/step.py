"""The transformer with its way back: models/transformer.py line by line, and each line's gradient.

Letters in shapes are those of models/transformer.py. What a layer keeps for its way back, in `s`:

    x, mid            what goes into attention and into the MLP, before their norms: (B,L,E)
    q, k              before their norms, where the model has such: (B,L,H,D), (B,L,K,D)
    q_rot, k_rot, v   as attention takes them
    z, lse            what it gives, (B,L,H,D), and log sum exp of its scores, (B,H,L)
    gate, up          what the activation takes: (B,L,I)
    *_out_norm        what goes into the norms behind attention and MLP, where there are such

Norms' outputs, the activation's and the scores are computed again. With checkpoint "mlp" gate and
up are too, with "layer" all but x.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from simdformer import backward
from simdformer.functional import embedding, layer_norm, linear, rms_norm, rope
from simdformer.functional import scaled_dot_product_attention as attention
from simdformer.loss import counted, cross_entropy, linear_cross_entropy
from simdformer.models.activations import GATED, PLAIN, added
from simdformer.models.adapters import Adapter
from simdformer.models.config import ModelConfig
from simdformer.models.forward_pass import ByLength, are_long
from simdformer.models.transformer import scaled
from simdformer.runtime import awake
from simdformer.types import Array

__all__ = ["CHECKPOINTS", "LORA_A", "LORA_B", "Objective", "SeeGradient", "Step"]

SeeGradient = Callable[[str, Array], object]
Objective = Callable[[Array], tuple[float, Array]]
CHECKPOINTS = ("none", "mlp", "layer")
Kept = dict[str, Array]
QKV, QKV_BIASES = ("wq", "wk", "wv"), ("bq", "bk", "bv")
LORA_A, LORA_B = ".lora_a", ".lora_b"  # behind the name of a matrix: what its adapter has
IGNORED = -100
LOGIT_BYTES = 16 << 20  # of logits at a time


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


class Step:
    """One forward and one backward pass over ids (B,L).

    objective : losses (B,L) -> the loss, and its gradient (B,L); None: their mean
    checkpoint : what is computed again on the way back instead of kept
    see(name, gradient) : is shown gradients of activations
    """

    def __init__(
        self,
        model: Model,
        ids: Array,
        labels: Array,
        count: int | None,
        checkpoint: Literal["none", "mlp", "layer"] = "none",
        see: SeeGradient | None = None,
        objective: Objective | None = None,
    ) -> None:
        self.model, self.config, self.weights = model, model.config, model.weights
        self.parameters = model.parameters()  # what has a gradient; the other weights are frozen
        self.ids, self.labels, self.count = ids, labels, count
        self.checkpoint, self.see, self.objective = checkpoint, see or nobody, objective
        self.gradients: dict[str, Array] = {}
        self.positions = np.arange(ids.shape[1])
        self.head = "embed" if self.config.tie_embeddings else "lm_head"

    @awake
    def losses(self) -> Array:
        """The loss of each label (B,L) in float32, 0 where none counts; nothing is kept."""
        x = self.embedded()
        for layer in range(self.config.num_layers):
            x = self.block(layer, x, {})
        return self.head_losses(self.head_input(x))[0]

    @awake
    def run(self) -> tuple[float, dict[str, Array]]:
        """The loss and the gradients of all parameters."""
        config = self.config
        x = self.embedded()
        kept: list[Kept] = []
        for layer in range(config.num_layers):
            s: Kept = {}
            x = self.block(layer, x, s)
            kept.append({"x": s["x"]} if self.checkpoint == "layer" else s)

        loss, dx = self.head_back(self.head_input(x))
        dx = scaled(dx, 1 / config.logit_divisor)
        self.see("final_norm", dx)
        dx = self.norm_back("final_norm", dx, x)
        for layer in reversed(range(config.num_layers)):
            s = kept.pop()
            if self.checkpoint == "layer":
                self.block(layer, s["x"], s, again=True)
            dx = self.block_back(layer, dx, s)
        self.embedded_back(dx)
        return loss, {name: self.gradients[name] for name in self.parameters}

    def add(self, name: str, gradient: Array) -> None:
        """A tied embedding has two gradients, which add up."""
        if name not in self.parameters:
            return
        if name in self.gradients:
            self.gradients[name] += gradient
        else:
            self.gradients[name] = gradient

    # ---- the head --------------------------------------------------------------------------------

    def head_input(self, x: Array) -> Array:
        return scaled(self.norm("final_norm", x), 1 / self.config.logit_divisor)

    def head_back(self, x: Array) -> tuple[float, Array]:
        """x (B,L,E) -> the loss, and the gradient of x"""
        if self.objective is None and self.head in self.parameters:
            head, softcap = self.weights[self.head], self.config.logit_softcap
            made = linear_cross_entropy(x, head, self.labels, count=self.count, softcap=softcap)
            self.add(self.head, made.weight)
            return float(made.loss), made.x
        losses, lse = self.head_losses(x)
        loss, grad = (self.objective or self.mean)(losses)
        return loss, self.head_gradients(x, grad, lse)

    def mean(self, losses: Array) -> tuple[float, Array]:
        """The mean of the losses that count, and its gradient"""
        count = counted("loss", self.labels, IGNORED) if self.count is None else self.count
        return float(losses.sum(dtype=np.float64)) / count, np.full(losses.shape, 1 / count)

    def head_losses(self, x: Array) -> tuple[Array, Array]:
        """x (B,L,E) -> the losses of the labels, and log sum exp of their logits, (B,L) each"""
        losses, lse = (np.empty(x.shape[:2], np.float32) for _ in range(2))
        for rows, flat, labels in self.pieces(x):
            losses.reshape(-1)[rows], lse.reshape(-1)[rows] = cross_entropy(
                self.product(flat, self.weights[self.head]),
                labels,
                reduction="none",
                softcap=self.config.logit_softcap,
                return_lse=True,
            )
        return losses, lse

    def head_gradients(self, x: Array, grad: Array, lse: Array) -> Array:
        """grad (B,L) of the losses -> the gradient of x (B,L,E)"""
        head, trained = self.weights[self.head], self.head in self.parameters
        dx = np.empty_like(x)
        total: dict[str, Array] = {"weight": np.zeros(head.shape, np.float32)} if trained else {}
        for rows, flat, labels in self.pieces(x):
            logits = self.product(flat, head)
            dlogits = backward.cross_entropy(
                logits,
                labels,
                grad=grad.reshape(-1)[rows],
                lse=lse.reshape(-1)[rows],
                reduction="none",
                softcap=self.config.logit_softcap,
                out=logits,
            )
            of = backward.linear(dlogits, flat, head, needs=("x", *total), accumulate=total)
            dx.reshape(x.shape[0] * x.shape[1], -1)[rows] = of.x
        if trained:
            self.add(self.head, total["weight"])
        return dx

    def pieces(self, x: Array) -> Iterator[tuple[slice, Array, Array]]:
        """All rows of x and of the labels, so many at a time that their logits take 16 MB."""
        flat, labels = x.reshape(-1, x.shape[-1]), self.labels.reshape(-1)
        step = max(LOGIT_BYTES // (4 * self.config.vocab_size), 64)
        for begin in range(0, len(flat), step):
            rows = slice(begin, begin + step)
            yield rows, flat[rows], labels[rows]

    # ---- embedding -------------------------------------------------------------------------------

    def embedded(self) -> Array:
        """ids (B,L) -> (B,L,E)"""
        x = embedding(self.ids, self.weights["embed"], dtype=np.float32)
        x = scaled(x, self.config.embed_scale)
        if self.config.positions == "learned":
            x = x + self.weights["pos_embed"][self.positions]
        return x

    def embedded_back(self, dx: Array) -> None:
        if "pos_embed" in self.parameters:
            of_positions = np.zeros_like(self.weights["pos_embed"])
            of_positions[self.positions] = dx.sum(axis=0)
            self.add("pos_embed", of_positions)
        self.see("embed", dx)
        if "embed" not in self.parameters:
            return
        dx = scaled(dx, self.config.embed_scale)
        self.add("embed", backward.embedding(dx, self.ids, self.config.vocab_size))

    # ---- a block, forwards and backwards ---------------------------------------------------------

    def block(self, layer: int, x: Array, s: Kept, *, again: bool = False) -> Array:
        """x (B,L,E) -> (B,L,E). `again`: for what is kept alone, the result is not complete"""
        at, factor = f"layers.{layer}.", self.config.residual_scale
        s["x"] = x
        out = self.attention(layer, self.norm(at + "attn_norm", x), s)
        out = self.norm_behind(at, "attn_out_norm", out, s)
        mid = s["mid"] = added(x, scaled(out, factor))
        self.mlp_inputs(layer, self.norm(at + "mlp_norm", mid), s)
        if again and at + "mlp_out_norm" not in self.weights:
            return x
        [out] = self.linear(at, ("down",), ("down_bias",), self.activated(s))
        out = self.norm_behind(at, "mlp_out_norm", out, s)
        if self.checkpoint == "mlp" and not again:
            s.pop("gate", None), s.pop("up")
        return added(mid, scaled(out, factor))

    def block_back(self, layer: int, dx: Array, s: Kept) -> Array:
        at, factor = f"layers.{layer}.", self.config.residual_scale
        self.see(at + "resid_post", dx)
        dout = scaled(dx, factor)
        self.see(at + "mlp.out", dout)
        dout = self.norm_behind_back(at, "mlp_out_norm", dout, s)
        dnormed = self.mlp_back(layer, dout, s)
        self.see(at + "mlp_norm", dnormed)
        dx = added(dx, self.norm_back(at + "mlp_norm", dnormed, s.pop("mid")))
        self.see(at + "resid_mid", dx)
        dout = scaled(dx, factor)
        self.see(at + "attn.out", dout)
        dout = self.norm_behind_back(at, "attn_out_norm", dout, s)
        dnormed = self.attention_back(layer, dout, s)
        self.see(at + "attn_norm", dnormed)
        dx = added(dx, self.norm_back(at + "attn_norm", dnormed, s.pop("x")))
        self.see(at + "resid_pre", dx)
        return dx

    def attention(self, layer: int, x: Array, s: Kept) -> Array:
        """x (B,L,E) -> (B,L,E)"""
        at, config = f"layers.{layer}.", self.config
        q, k, s["v"] = (
            y.reshape(*x.shape[:2], -1, config.head_dim)
            for y in self.linear(at, QKV, QKV_BIASES, x)
        )
        if config.qk_norm:
            s["q"], s["k"] = q, k
            q, k = self.norm_heads(at + "q_norm", q), self.norm_heads(at + "k_norm", k)
        s["q_rot"], s["k_rot"] = self.turn(layer, q), self.turn(layer, k)
        z = s["z"] = np.empty_like(q)
        _, s["lse"] = attention(
            *self.heads(s), return_lse=True, out=z.swapaxes(1, 2), **self.options(layer)
        )
        [out] = self.linear(at, ("wo",), ("bo",), z.reshape(*x.shape[:2], -1))
        return out

    def attention_back(self, layer: int, dout: Array, s: Kept) -> Array:
        at, config = f"layers.{layer}.", self.config
        z = s.pop("z")
        dz = self.linear_back(at, ("wo",), ("bo",), [dout], z.reshape(*z.shape[:2], -1))
        dz = dz.reshape(z.shape)
        self.see(at + "attn.z", dz)
        needs = ("query", "key", "value", *(("sinks",) if config.attention_sinks else ()))
        of = backward.scaled_dot_product_attention(
            dz.swapaxes(1, 2),
            *self.heads(s),
            z.swapaxes(1, 2),
            s.pop("lse"),
            needs=needs,
            **self.options(layer),
        )
        for name in ("q_rot", "k_rot", "v"):
            del s[name]
        if config.attention_sinks:
            self.add(at + "sinks", of.sinks)
        dq, dk, dv = (d.swapaxes(1, 2) for d in (of.query, of.key, of.value))
        self.see(at + "attn.q_rot", dq)
        self.see(at + "attn.k_rot", dk)
        dq, dk = self.turned_back(layer, dq), self.turned_back(layer, dk)
        if config.qk_norm:
            dq = self.norm_heads_back(at + "q_norm", dq, s.pop("q"))
            dk = self.norm_heads_back(at + "k_norm", dk, s.pop("k"))
        for name, d in (("q", dq), ("k", dk), ("v", dv)):
            self.see(f"{at}attn.{name}", d)
        grads = [d.reshape(*z.shape[:2], -1) for d in (dq, dk, dv)]
        return self.linear_back(at, QKV, QKV_BIASES, grads, self.norm(at + "attn_norm", s["x"]))

    def heads(self, s: Kept) -> tuple[Array, Array, Array]:
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

    # ---- the MLP ---------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("gate", "up") if self.config.gated_mlp else ("up",)

    def mlp_inputs(self, layer: int, x: Array, s: Kept) -> None:
        """x (B,L,E) -> gate and up (B,L,I), or up alone"""
        biases = tuple(f"{name}_bias" for name in self.inputs)
        made = self.linear(f"layers.{layer}.", self.inputs, biases, x)
        s.update(zip(self.inputs, made, strict=True))

    def activated(self, s: Kept) -> Array:
        """activation(gate) * up, or activation(up)"""
        kind = self.config.activation
        return GATED[kind](s["gate"], s["up"]) if self.config.gated_mlp else PLAIN[kind](s["up"])

    def mlp_back(self, layer: int, dout: Array, s: Kept) -> Array:
        at, normed = f"layers.{layer}.", self.norm(f"layers.{layer}.mlp_norm", s["mid"])
        if "up" not in s:
            self.mlp_inputs(layer, normed, s)
        dact = self.linear_back(at, ("down",), ("down_bias",), [dout], self.activated(s))
        self.see(at + "mlp.act", dact)
        grads = self.activated_back(dact, s)
        for name, d in zip(self.inputs, grads, strict=True):
            self.see(f"{at}mlp.{name}", d)
            del s[name]
        biases = tuple(f"{name}_bias" for name in self.inputs)
        return self.linear_back(at, self.inputs, biases, grads, normed)

    def activated_back(self, dact: Array, s: Kept) -> list[Array]:
        """The gradients of gate and up, or of up alone"""
        gelu, up = self.config.activation == "gelu_tanh", s["up"]
        if not self.config.gated_mlp:
            dup = backward.gelu(dact, up, approximate="tanh") if gelu else backward.silu(dact, up)
            return [dup]
        if gelu:
            dgate = backward.gelu(dact * up, s["gate"], approximate="tanh")
            return [dgate, dact * PLAIN["gelu_tanh"](s["gate"])]
        return [*backward.swiglu(dact, s["gate"], up)]

    # ---- their parts -----------------------------------------------------------------------------

    def product(self, x: Array, weight: Any, bias: Any = None) -> Any:
        """x weightᵀ, in the arithmetic that the way back has"""
        return linear(x, weight, bias, arithmetic="float32")

    def linear(self, at: str, names: Sequence[str], biases: Sequence[str], x: Array) -> list[Array]:
        """x (...,I) through several matrices (O,I), and their adapters -> (...,O) of each"""
        w = self.weights
        made: list[Array] = self.product(
            x, [w[at + name] for name in names], [w.get(at + name) for name in biases]
        )
        for number, name in enumerate(names):
            if adapter := self.model.adapters.get(at + name):
                inner = linear(x, adapter.a) * np.float32(adapter.scale)
                made[number] = added(made[number], linear(inner, adapter.b))
        return made

    def linear_back(
        self, at: str, names: Sequence[str], biases: Sequence[str], dy: Sequence[Array], x: Array
    ) -> Array:
        biased = [at + name for name in biases if at + name in self.parameters]
        needs = ["x", *(["weight"] if at + names[0] in self.parameters else ())]
        needs += ["bias"] if biased else []
        of = backward.linear(dy, x, [self.weights[at + name] for name in names], needs=needs)
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
        scale = np.float32(adapter.scale)
        inner = linear(x, adapter.a) * scale
        dinner, db, _ = backward.linear(dy, inner, adapter.b, needs=("x", "weight"))
        own, da, _ = backward.linear(dinner * scale, x, adapter.a, needs=("x", "weight"))
        self.add(name + LORA_A, da)
        self.add(name + LORA_B, db)
        return added(dx, own)

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
