"""The transformer with its way back: models/transformer.py line by line, and each line's gradient.

Letters in shapes are those of models/transformer.py. What a layer keeps for its way back, in `s`:

    x, mid            what goes into attention and into the MLP, before their norms: (B,L,E)
    q, k              before their norms, where the model has such: (B,L,H,D), (B,L,K,D)
    q_rot, k_rot, v   as attention takes them
    z, lse            what it gives, (B,L,H,D), and log sum exp of its scores, (B,H,L)
    gate, up          what the activation takes: (B,L,I), or (B,L,k,M) of experts
    experts           the chosen ones: (B,L,k)
    shared.*          what the activation of an MLP beside them takes: (B,L,J)
    *_out_norm        what goes into the norms behind attention and MLP, where there are such

Norms' outputs, the activation's and the scores are computed again. With checkpoint "mlp" gate and
up are too, with "layer" all but x. What a block is made of is in parts.py and mixture.py.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from simdformer import backward
from simdformer.functional import embedding
from simdformer.functional import scaled_dot_product_attention as attention
from simdformer.loss import (
    BLOCK_BYTES,
    counted,
    cross_entropy,
    linear_cross_entropy_in_parts,
    logits_of,
)
from simdformer.models.activations import added
from simdformer.models.transformer import scaled
from simdformer.runtime import awake
from simdformer.training.mixture import SHARED_INPUTS, Mixtures
from simdformer.training.parts import Kept, Model, Precision, SeeGradient
from simdformer.training.work import logits_bytes
from simdformer.types import Array

__all__ = ["CHECKPOINTS", "Objective", "Passes"]

Objective = Callable[[Array], tuple[float, Array]]
CHECKPOINTS = ("none", "mlp", "layer")
QKV, QKV_BIASES = ("wq", "wk", "wv"), ("bq", "bk", "bv")
IGNORED = -100


class Passes(Mixtures):
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
        balance: float = 0.0,
        precision: Precision = "float32",
    ) -> None:
        self.ids, self.labels, self.count = ids, labels, count
        if balance and objective is None:  # as much as these labels among all
            balance *= float((labels != IGNORED).sum()) / self.label_count
        super().__init__(model, ids.shape[1], see, precision, balance)
        self.checkpoint, self.objective = checkpoint, objective
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
        loss, self.returning = loss + self.balance_loss(), True
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

    # ---- the head --------------------------------------------------------------------------------

    def head_input(self, x: Array) -> Array:
        return scaled(self.norm("final_norm", x), 1 / self.config.logit_divisor)

    def head_back(self, x: Array) -> tuple[float, Array]:
        """x (B,L,E) -> the loss, and the gradient of x"""
        if self.objective is None and self.head in self.parameters:
            x, head, softcap = self.narrow(x), self.rounded(self.head), self.config.logit_softcap
            made = linear_cross_entropy_in_parts(
                x, head, self.labels, self.count, "mean", (IGNORED, 0.0, 0.0, softcap),
                most_bytes=logits_bytes(self.config, self.labels.size),
            )  # fmt: skip
            self.add(self.head, made.weight)
            return float(made.loss), self.wide(made.x)
        losses, lse = self.head_losses(x)
        loss, grad = (self.objective or self.mean)(losses)
        return loss, self.head_gradients(x, grad, lse)

    @property
    def label_count(self) -> int:
        """What the mean divides by."""
        return counted("loss", self.labels, IGNORED) if self.count is None else self.count

    def mean(self, losses: Array) -> tuple[float, Array]:
        """The mean of the losses that count, and its gradient"""
        count = self.label_count
        return float(losses.sum(dtype=np.float64)) / count, np.full(losses.shape, 1 / count)

    def head_losses(self, x: Array) -> tuple[Array, Array]:
        """x (B,L,E) -> the losses of the labels, and log sum exp of their logits, (B,L) each"""
        losses, lse = (np.empty(x.shape[:2], np.float32) for _ in range(2))
        head = self.matrix(self.head)
        for rows, flat, labels in self.pieces(x):
            losses.reshape(-1)[rows], lse.reshape(-1)[rows] = cross_entropy(
                logits_of(flat, head),
                labels,
                reduction="none",
                softcap=self.config.logit_softcap,
                return_lse=True,
            )
        return losses, lse

    def head_gradients(self, x: Array, grad: Array, lse: Array) -> Array:
        """grad (B,L) of the losses -> the gradient of x (B,L,E)"""
        head, rounded = self.matrix(self.head), self.rounded(self.head)
        dx = np.empty_like(x)
        total: dict[str, Array] = {}
        if self.head in self.parameters:
            total["weight"] = np.zeros(head.shape, np.float32)
        for rows, flat, labels in self.pieces(x):
            logits = logits_of(flat, head)
            dlogits = backward.cross_entropy(
                logits,
                labels,
                grad=grad.reshape(-1)[rows],
                lse=lse.reshape(-1)[rows],
                reduction="none",
                softcap=self.config.logit_softcap,
                out=logits,
            )
            dlogits = self.narrow(dlogits)
            of = backward.linear(dlogits, flat, rounded, needs=("x", *total), accumulate=total)
            dx.reshape(x.shape[0] * x.shape[1], -1)[rows] = of.x
        if total:
            self.add(self.head, total["weight"])
        return dx

    def pieces(self, x: Array) -> Iterator[tuple[slice, Array, Array]]:
        """All rows of x and of the labels, so many at a time that their logits take 16 MB."""
        flat, labels = self.narrow(x.reshape(-1, x.shape[-1])), self.labels.reshape(-1)
        step = max(BLOCK_BYTES // (4 * self.config.vocab_size), 64)
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
        tied = self.gradients.get("embed")  # that of the head, whose sum it is with this one
        vocabulary = self.config.vocab_size
        self.gradients["embed"] = backward.embedding(dx, self.ids, vocabulary, accumulate=tied)

    # ---- a block, forwards and backwards ---------------------------------------------------------

    def block(self, layer: int, x: Array, s: Kept, *, again: bool = False) -> Array:
        """x (B,L,E) -> (B,L,E). `again`: for what is kept alone, the result is not complete"""
        at, factor = f"layers.{layer}.", self.config.residual_scale
        s["x"] = x
        out = self.wide(self.attention(layer, self.norm(at + "attn_norm", x), s))
        out = self.norm_behind(at, "attn_out_norm", out, s)
        mid = s["mid"] = added(x, scaled(out, factor))
        needed = not again or at + "mlp_out_norm" in self.weights
        out = self.wide(self.mlp(layer, self.norm(at + "mlp_norm", mid), s, needed=needed))
        out = self.norm_behind(at, "mlp_out_norm", out, s)
        if self.checkpoint == "mlp":
            for name in (*self.inputs, *SHARED_INPUTS):
                s.pop(name, None)
        return added(mid, scaled(out, factor))

    def block_back(self, layer: int, dx: Array, s: Kept) -> Array:
        at, factor = f"layers.{layer}.", self.config.residual_scale
        self.see(at + "resid_post", dx)
        dout = scaled(dx, factor)
        self.see(at + "mlp.out", dout)
        dout = self.norm_behind_back(at, "mlp_out_norm", dout, s)
        dnormed = self.wide(self.mlp_back(layer, dout, s))
        self.see(at + "mlp_norm", dnormed)
        dx = added(dx, self.norm_back(at + "mlp_norm", dnormed, s.pop("mid")))
        self.see(at + "resid_mid", dx)
        dout = scaled(dx, factor)
        self.see(at + "attn.out", dout)
        dout = self.norm_behind_back(at, "attn_out_norm", dout, s)
        dnormed = self.wide(self.attention_back(layer, dout, s))
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

    def mlp(self, layer: int, x: Array, s: Kept, *, needed: bool = True) -> Array:
        """x (B,L,E) -> (B,L,E): one MLP, or experts; x itself where it is not needed"""
        at = f"layers.{layer}."
        if self.config.has_experts(layer):
            return self.mixture(at, x, s, needed=needed)
        s.update(zip(self.inputs, self.mlp_inputs(at, x), strict=True))
        if not needed:
            return x
        act = self.activated([s[name] for name in self.inputs])
        [out] = self.linear(at, ("down",), ("down_bias",), act)
        return out

    def mlp_back(self, layer: int, dout: Array, s: Kept) -> Array:
        at = f"layers.{layer}."
        x = self.norm(at + "mlp_norm", s["mid"])
        if "up" not in s:
            self.mlp(layer, x, s, needed=False)
        if self.config.has_experts(layer):
            return self.mixture_back(at, dout, x, s)
        inputs = [s.pop(name) for name in self.inputs]
        dact = self.linear_back(at, ("down",), ("down_bias",), [dout], self.activated(inputs))
        self.see(at + "mlp.act", dact)
        grads = self.activated_back(dact, inputs)
        for name, d in zip(self.inputs, grads, strict=True):
            self.see(f"{at}mlp.{name}", d)
        return self.mlp_inputs_back(at, grads, x)
