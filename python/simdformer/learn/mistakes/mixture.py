"""A mixture of experts in steps, and what goes wrong in it.

x (...,E); router (X,E); gate, up, down: a weight for each expert; k experts a token. The meaning is
that of `nn.MixtureOfExperts`, and the variables are called as in the trace of a model. What goes
wrong between the experts is in experts.py, inside of one with the MLP.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import nn
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.block import run_layer
from simdformer.learn.mistakes.linear import linear
from simdformer.learn.mistakes.mlp import mlp
from simdformer.learn.mistakes.softmax import softmax
from simdformer.learn.program import Program, State


def largest(s: State, logits: Any, count: int) -> Any:
    """The experts (...,k) with the largest logits (...,X); where the model's are as good as equal,
    those that it was decided for."""
    if (decided := vars(s).get("decided")) is not None:
        logits = logits + decided.leaning(s.run, logits)
    return np.argsort(-logits, axis=-1, kind="stable")[..., :count]


def over_chosen(s: State) -> Any:
    return s.run(softmax, x=np.take_along_axis(s.mlp_router, s.mlp_experts, axis=-1)).out


def over_all(s: State) -> Any:
    return np.take_along_axis(s.run(softmax, x=s.mlp_router).out, s.mlp_experts, axis=-1)


def for_each(s: State, x: Any, write: Callable[[int, Any], Any]) -> Any:
    """What each token's experts write (...,k,O), of x (...,I) or (...,k,I)."""
    ids = s.mlp_experts
    each = x if x.ndim > ids.ndim else x[..., None, :]
    each = np.broadcast_to(each, (*ids.shape, x.shape[-1]))
    found = {expert: write(expert, each[ids == expert]) for expert in np.unique(ids).tolist()}
    outs = np.zeros((*ids.shape, next(iter(found.values())).shape[-1]), s.run.dtype)
    for expert, rows in found.items():
        outs[ids == expert] = rows
    return outs


def outs_of(s: State, x: Any) -> Any:
    def write(expert: int, rows: Any) -> Any:
        w = {"gate": s.gate[expert], "up": s.up[expert], "down": s.down[expert]}
        return s.run(mlp, x=rows, **w).out

    return for_each(s, x, write)


mixture = Program(
    "mixture",
    """
    mlp_router: mlp_router = run(linear, x=x, weight=router, bias=router_bias).out
    mlp_experts: mlp_experts = largest(s, mlp_router, num_experts_per_tok)
    mlp_expert_weights: mlp_expert_weights = over_chosen(s) if normalize else over_all(s)
    mlp_expert_out: mlp_expert_out = outs_of(s, array(x))
    mlp_routed: mlp_routed = (mlp_expert_weights[..., None] * mlp_expert_out).sum(axis=-2)
    mlp_out: out = mlp_routed if shared is None else mlp_routed + run_layer(s, shared, x)
    """,
    calls=(largest, linear, outs_of, over_all, over_chosen, run_layer),
    of=nn.MixtureOfExperts,
    axes=("position", "channel"),
)

mistakes(
    """
    mixture (02 §7)

    inputs_weighed: the weights multiply what the experts read, not what they write
        An expert is no linear function: silu(w·x) is not w·silu(x), though Llama 4 does it so.
        > Give x to the experts as it is, and weigh what comes out.
        mlp_expert_out | weighed = mlp_expert_weights[..., None] * array(x)[..., None, :]
        mlp_expert_out | mlp_expert_out = outs_of(s, weighed)
        mlp_routed | mlp_routed = mlp_expert_out.sum(axis=-2)
    shared_forgotten: the shared expert is forgotten
        The MLP beside the experts, which every token goes through, is left out.
        > Add shared(x) to the sum over the experts.
        mlp_out | out = mlp_routed
    """,
)
