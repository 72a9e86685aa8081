"""A mixture of experts and its way back, beside `mixture` of models/transformer.py.

    logits = router x,   y = sum over the k likeliest experts of share · down(activation(...))

With dy the gradient of y and dact = dy down of one expert, that of its share is dact · act: what
the expert has written is not computed again. Letters in shapes are those of models/transformer.py.
"""

from typing import Any

import numpy as np

from simdformer import backward
from simdformer.experts import combine_experts, expert_linear, expert_weights, top_k
from simdformer.functional import softmax
from simdformer.models.activations import added, sigmoid
from simdformer.training.parts import Kept, Model, Parts, Precision, SeeGradient
from simdformer.types import Array

__all__ = ["SHARED_INPUTS", "Mixtures"]

EXPERT_MATRICES = ("gate", "up", "down")
ROUTER = {"weight": "router", "bias": "router_bias"}
SHARED_INPUTS = ("shared.gate", "shared.up")


class Mixtures(Parts):
    """balance : how much the balance loss counts, which is smallest where all experts have as many
    tokens: X · sum over experts of the share of choices that they get times their mean probability,
    over all layers. Fedus et al. 2021, arXiv:2101.03961; as in transformers.
    """

    def __init__(
        self,
        model: Model,
        length: int,
        see: SeeGradient | None,
        precision: Precision,
        balance: float,
    ) -> None:
        super().__init__(model, length, see, precision)
        experts = self.config.num_experts
        self.balance = balance
        self.chosen, self.probable = np.zeros(experts), np.zeros(experts)
        self.routed = 0  # tokens over all layers
        self.returning = False

    def mixture(self, at: str, x: Array, s: Kept, *, needed: bool) -> Array:
        """x (B,L,E) -> (B,L,E), x itself where it is not needed"""
        config, logits = self.config, self.route(at, x)
        own: dict[str, Array] = {}
        x = self.narrow(x)
        ids = s["experts"] = top_k(logits, config.num_experts_per_tok)  # (B,L,k)
        if self.balance and not self.returning:
            self.chosen += np.bincount(ids.reshape(-1), minlength=config.num_experts)
            self.probable += softmax(logits).reshape(-1, config.num_experts).sum(0, np.float64)
            self.routed += x[..., 0].size
        matrices = [self.of_experts(at, name) for name in self.inputs]
        biases = [self.of_experts(at, f"{name}_bias") for name in self.inputs]
        made = self.expert_product(x[..., None, :], ids, matrices, biases)  # (B,L,k,M)
        s.update(zip(self.inputs, made, strict=True))
        if self.config.shared_intermediate_size:
            own = dict(zip(self.inputs, self.mlp_inputs(at + "shared.", x), strict=True))
            s |= {f"shared.{name}": made for name, made in own.items()}
        if not needed:
            return x
        [out] = self.expert_product(
            self.activated(made),
            ids,
            [self.of_experts(at, "down")],
            [self.of_experts(at, "down_bias")],
        )
        summed = combine_experts(out, expert_weights(logits, ids, **self.normalised))
        if own:
            act = self.activated([own[name] for name in self.inputs])
            [beside] = self.linear(at + "shared.", ("down",), ("down_bias",), act)
            summed = added(summed, self.narrow(beside * self.shared_share(at, x)))
        return summed

    def mixture_back(self, at: str, dout: Array, x: Array, s: Kept) -> Array:
        config, logits, routed = self.config, self.route(at, x), x
        x, dout = self.narrow(x), self.narrow(dout)
        ids = s.pop("experts").reshape(-1, config.num_experts_per_tok)
        shares = expert_weights(logits, ids.reshape(*x.shape[:2], -1), **self.normalised)
        shares = shares.reshape(ids.shape)
        dshares: Array = np.zeros(ids.shape, np.float32)
        inputs = [s.pop(name).reshape(*ids.shape, -1) for name in self.inputs]
        flat, dflat = (array.reshape(-1, x.shape[-1]) for array in (x, dout))
        dx: Array = np.zeros(flat.shape, np.float32)
        for expert in range(config.num_experts):
            rows, places = np.nonzero(ids == expert)
            own = [part[rows, places] for part in inputs]
            one = f"{at}experts.{expert}."
            dxs, dshares[rows, places] = self.expert_back(
                one, dflat[rows], shares[rows, places], flat[rows], own
            )
            dx[rows] += dxs  # a token goes through an expert once
        dx = dx.reshape(x.shape)
        if config.shared_intermediate_size:
            dx = added(dx, self.wide(self.shared_back(at, dout, x, s)))
        self.see(at + "mlp.expert_weights", dshares.reshape(*x.shape[:2], -1))
        dlogits = self.shares_back(dshares, shares, ids, logits.reshape(len(flat), -1))
        dlogits = dlogits.reshape(logits.shape)
        self.see(at + "mlp.router", dlogits)
        return added(dx, self.route_back(at, dlogits, routed))

    def expert_back(
        self, at: str, dy: Array, share: Array, x: Array, inputs: list[Array]
    ) -> tuple[Array, Array]:
        """One expert's tokens: dy and x (n,E), share (n,), what its activation took (n,M) each ->
        the gradients of x and of the shares"""
        act = self.wide(self.activated(inputs))
        dact = self.wide(self.linear_back(at, ("down",), (), [dy], share[:, None] * act))
        dshare: Array = np.einsum("ni,ni->n", dact, act)
        if (bias := self.weights.get(at + "down_bias")) is not None:
            dy = self.wide(dy)
            dshare += dy @ bias
            self.add(at + "down_bias", (share[:, None] * dy).sum(axis=0))
        grads = self.activated_back(self.narrow(share[:, None] * dact), inputs)
        return self.mlp_inputs_back(at, grads, x), dshare

    def shares_back(self, dshares: Array, shares: Array, ids: Array, logits: Array) -> Array:
        """The shares' gradients (n,k) -> that of all logits (n,X), with the balance loss's"""
        rows = np.arange(len(ids))[:, None]
        dlogits = np.zeros_like(logits)
        if self.config.normalize_expert_weights:
            dlogits[rows, ids] = backward.softmax(dshares, shares)
        else:
            dlogits[rows, ids] = dshares
            dlogits = backward.softmax(dlogits, softmax(logits))
        if self.balance:
            even = self.config.num_experts * self.chosen / self.routed**2
            slope = np.broadcast_to(self.balance * even, logits.shape).astype(np.float32)
            dlogits += backward.softmax(slope, softmax(logits))
        return dlogits

    def balance_loss(self) -> float:
        if not self.routed:
            return 0.0
        mean = self.chosen / self.routed, self.probable / self.routed
        return float(self.balance * self.config.num_experts * (mean[0] * mean[1]).sum())

    # ---- their parts -----------------------------------------------------------------------------

    def route(self, at: str, x: Array) -> Array:
        """x (B,L,E) -> logits (B,L,X), in float32 always: a choice has no nearby one"""
        logits: Array = self.product(
            x, self.weights[at + "router"], self.weights.get(at + "router_bias")
        )
        return logits

    def route_back(self, at: str, dlogits: Array, x: Array) -> Array:
        own = [kind for kind in ("weight", "bias") if at + ROUTER[kind] in self.parameters]
        of = backward.linear(dlogits, x, self.weights[at + "router"], needs=("x", *own))
        for kind in own:
            self.add(at + ROUTER[kind], getattr(of, kind))
        return np.asarray(of.x)

    @property
    def normalised(self) -> dict[str, bool]:
        return {"normalize": self.config.normalize_expert_weights}

    def of_experts(self, at: str, name: str) -> list[Any] | None:
        """The same tensor of all experts; None where they have none such."""
        names = [f"{at}experts.{one}.{name}" for one in range(self.config.num_experts)]
        if names[0] not in self.weights:
            return None
        return [self.matrix(one) if name in EXPERT_MATRICES else self.weights[one] for one in names]

    def expert_product(self, x: Array, ids: Array, weights: Any, biases: Any) -> list[Array]:
        return expert_linear(x, ids, weights, biases, arithmetic="float32")

    def shared_share(self, at: str, x: Array) -> Any:
        """How much the MLP beside the experts counts (B,L,1), or 1"""
        if at + "shared.router" not in self.weights:
            return np.float32(1)
        return sigmoid(self.wide(self.product(x, self.matrix(at + "shared.router"))))

    def shared_back(self, at: str, dout: Array, x: Array, s: Kept) -> Array:
        flat = x.reshape(-1, x.shape[-1])
        share = np.broadcast_to(self.shared_share(at, x), (*x.shape[:2], 1)).reshape(-1)
        inputs = [s.pop(f"shared.{name}").reshape(len(flat), -1) for name in self.inputs]
        dx, dshare = self.expert_back(at + "shared.", dout.reshape(flat.shape), share, flat, inputs)
        if at + "shared.router" in self.weights:
            dlogit = (dshare * share * (1 - share))[:, None]
            dx = added(dx, self.linear_back(at, ("shared.router",), (), [dlogit], flat))
        return dx.reshape(x.shape)
