"""A mixture of experts in steps, and what goes wrong in it.

x (...,E); router (X,E); gate, up, down: a weight for each expert; k experts a token. The meaning is
that of `nn.MixtureOfExperts`. What goes wrong inside of an expert is with the MLP.
"""

from typing import Any

import numpy as np

from simdformer import nn
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.block import run_layer
from simdformer.learn.mistakes.linear import linear
from simdformer.learn.mistakes.mlp import mlp
from simdformer.learn.mistakes.softmax import softmax
from simdformer.learn.program import Program, State


def largest(logits: Any, count: int) -> Any:
    return np.argsort(-logits, axis=-1, kind="stable")[..., :count]


def over_chosen(s: State) -> Any:
    return s.run(softmax, x=np.take_along_axis(s.logits, s.ids, axis=-1)).out


def over_all(s: State) -> Any:
    return np.take_along_axis(s.run(softmax, x=s.logits).out, s.ids, axis=-1)


def outs_of(s: State, x: Any) -> Any:
    """What each token's experts write (...,k,E), of x (...,E) or (...,k,E)."""
    each = x if x.ndim > s.ids.ndim else x[..., None, :]
    each = np.broadcast_to(each, (*s.ids.shape, x.shape[-1]))
    outs = np.zeros(each.shape, s.run.dtype)
    for expert in np.unique(s.ids):
        of_it = s.ids == expert
        w = {"gate": s.gate[expert], "up": s.up[expert], "down": s.down[expert]}
        outs[of_it] = s.run(mlp, x=each[of_it], **w).out
    return outs


mixture = Program(
    "mixture",
    """
    route: logits = run(linear, x=x, weight=router, bias=router_bias).out
    choose: ids = largest(logits, num_experts_per_tok)
    weigh: weights = over_chosen(s) if normalize else over_all(s)
    ask_experts: outs = outs_of(s, array(x))
    combine: out = (weights[..., None] * outs).sum(axis=-2)
    add_shared if shared is not None: out = out + run_layer(s, shared, x)
    """,
    calls=(largest, linear, outs_of, over_all, over_chosen, run_layer),
    of=nn.MixtureOfExperts,
    axes=("position", "channel"),
)

mistakes(
    """
    mixture.choose (02 §7) > Take argsort(-logits)[..., :k], or the last k entries.

    smallest_chosen: the experts with the smallest logits are asked
        argsort sorts upwards: its first entries are the smallest.
        | ids = largest(-logits, num_experts_per_tok)
    one_chosen: only the likeliest expert is asked
        An argmax gives one expert; this layer asks num_experts_per_tok of them.
        > Take the num_experts_per_tok largest logits, as torch.topk does.
        | ids = largest(logits, 1)
    all_chosen: all experts are asked
        The softmax over all logits is used without choosing: a dense mixture.
        > Keep the num_experts_per_tok largest logits, and leave the other experts out.
        | ids = largest(logits, logits.shape[-1])

    mixture.weigh (02 §7) > Apply the softmax over the experts: over the chosen logits where
        normalize is true, else over all of them, and then choose.

    normalised_otherwise:
        the weights sum to one over all experts, or over the chosen ones
        Mixtral and gpt-oss divide by the sum over the chosen experts; Qwen2-MoE keeps the softmax
        over all. A config says it as norm_topk_prob.
        | weights = over_all(s) if normalize else over_chosen(s)
    logits_as_weights: the logits of the router are used as weights, without a softmax
        What topk gives is used as it is.
        > Apply the softmax to the logits before they multiply what the experts write.
        | weights = np.take_along_axis(logits, ids, axis=-1)
    sigmoid_as_weights: a sigmoid of the logits weighs the experts, not a softmax
        DeepSeek-V3 and Llama 4 score experts so; Mixtral, Qwen and gpt-oss do not.
        > Apply the softmax over the experts.
        | weights = 1 / (1 + np.exp(-np.take_along_axis(logits, ids, axis=-1)))

    mixture.combine (02 §7) > Multiply what each expert writes with its weight before the sum.

    weights_forgotten: what the experts write is added up without their weights
        The router decides who is asked, and what it thinks of them is then not used.
        | out = outs.sum(axis=-2)
    mean_of_experts: the mean over the chosen experts is taken, without their weights
        The outputs are stacked and averaged.
        > Multiply what each expert writes with its weight, and add up.
        | out = outs.mean(axis=-2)
    inputs_weighed: the weights multiply what the experts read, not what they write
        An expert is no linear function: silu(w·x) is not w·silu(x), though Llama 4 does it so.
        > Give x to the experts as it is, and weigh what comes out.
        ask_experts | outs = outs_of(s, weights[..., None] * array(x)[..., None, :])
        | out = outs.sum(axis=-2)

    mixture.add_shared (02 §7) > Add shared(x) to the sum over the experts.

    shared_forgotten: the shared expert is forgotten
        The MLP beside the experts, which every token goes through, is left out.
        | pass
    """,
)
