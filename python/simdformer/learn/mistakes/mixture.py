"""A mixture of experts in steps, and what goes wrong in it.

x (...,E); router (X,E); gate, up, down: a weight for each expert; k experts a token. The meaning is
that of `nn.MixtureOfExperts`. What goes wrong inside of an expert is with the MLP.
"""

from typing import Any

import numpy as np

from simdformer import nn
from simdformer.learn.mistakes.activations import MLP
from simdformer.learn.mistakes.block import run_layer
from simdformer.learn.mistakes.linear import linear
from simdformer.learn.mistakes.mlp import mlp
from simdformer.learn.mistakes.softmax import softmax
from simdformer.learn.program import Program, State, mistake

mixture = Program("mixture", of=nn.MixtureOfExperts, axes=("position", "channel"))


@mixture.step
def route(s: State) -> None:
    s.logits = s.run(linear, x=s.x, weight=s.router, bias=s.router_bias).out


@mixture.step
def choose(s: State) -> None:
    s.ids = largest(s.logits, s.num_experts_per_tok)


@mixture.step
def weigh(s: State) -> None:
    s.weights = over_chosen(s) if s.normalize else over_all(s)


@mixture.step
def ask_experts(s: State) -> None:
    s.outs = outs_of(s, s.run.array(s.x))


@mixture.step
def combine(s: State) -> None:
    s.out = (s.weights[..., None] * s.outs).sum(axis=-2)


@mixture.step
def add_shared(s: State) -> None:
    if s.shared is not None:
        s.out = s.run(with_shared, out=s.out, shared=s.shared, x=s.x).out


# Run where there is an MLP for all tokens: what goes wrong with it is tried there only.
with_shared = Program("mixture")


@with_shared.step
def add_mlp_of_all(s: State) -> None:
    s.out = s.out + run_layer(s, s.shared, s.x)


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


@mistake(
    "mixture.choose",
    title="the experts with the smallest logits are asked",
    cause="argsort sorts upwards: its first entries are the smallest.",
    fix="Take argsort(-logits)[..., :k], or the last k entries.",
    step=MLP,
)
def smallest_chosen(s: State) -> None:
    s.ids = largest(-s.logits, s.num_experts_per_tok)


@mistake(
    "mixture.choose",
    title="only the likeliest expert is asked",
    cause="An argmax gives one expert; this layer asks num_experts_per_tok of them.",
    fix="Take the num_experts_per_tok largest logits, as torch.topk does.",
    step=MLP,
)
def one_chosen(s: State) -> None:
    s.ids = largest(s.logits, 1)


@mistake(
    "mixture.choose",
    title="all experts are asked",
    cause="The softmax over all logits is used without choosing: a dense mixture.",
    fix="Keep the num_experts_per_tok largest logits, and leave the other experts out.",
    step=MLP,
)
def all_chosen(s: State) -> None:
    s.ids = largest(s.logits, s.logits.shape[-1])


@mistake(
    "mixture.weigh",
    title="the weights are normalised the other way: over all experts, or over the chosen ones",
    cause="Mixtral and gpt-oss divide by the sum over the chosen experts; Qwen2-MoE keeps the "
    "softmax over all. A config says it as norm_topk_prob.",
    fix="Take normalize as it is given: softmax of the chosen logits if true, else softmax of all "
    "logits and then the chosen entries.",
    step=MLP,
)
def normalised_otherwise(s: State) -> None:
    s.weights = over_all(s) if s.normalize else over_chosen(s)


@mistake(
    "mixture.weigh",
    title="the logits of the router are used as weights, without a softmax",
    cause="What topk gives is used as it is.",
    fix="Apply the softmax to the logits before they multiply what the experts write.",
    step=MLP,
)
def logits_as_weights(s: State) -> None:
    s.weights = np.take_along_axis(s.logits, s.ids, axis=-1)


@mistake(
    "mixture.weigh",
    title="a sigmoid of the logits weighs the experts, not a softmax",
    cause="DeepSeek-V3 and Llama 4 score experts so; Mixtral, Qwen and gpt-oss do not.",
    fix="Apply the softmax over the experts.",
    step=MLP,
)
def sigmoid_as_weights(s: State) -> None:
    s.weights = 1 / (1 + np.exp(-np.take_along_axis(s.logits, s.ids, axis=-1)))


@mistake(
    "mixture.combine",
    title="what the experts write is added up without their weights",
    cause="The router decides who is asked, and what it thinks of them is then not used.",
    fix="Multiply what each expert writes with its weight before the sum.",
    step=MLP,
)
def weights_forgotten(s: State) -> None:
    s.out = s.outs.sum(axis=-2)


@mistake(
    "mixture.combine",
    title="the mean over the chosen experts is taken, without their weights",
    cause="The outputs are stacked and averaged.",
    fix="Multiply what each expert writes with its weight, and add up.",
    step=MLP,
)
def mean_of_experts(s: State) -> None:
    s.out = s.outs.mean(axis=-2)


@mistake(
    "mixture.ask_experts",
    "mixture.combine",
    title="the weights multiply what the experts read, not what they write",
    cause="An expert is no linear function: silu(w·x) is not w·silu(x), though Llama 4 does it so.",
    fix="Give x to the experts as it is, and weigh what comes out.",
    step=MLP,
)
class InputsWeighed:
    @staticmethod
    def ask_experts(s: State) -> None:
        s.outs = outs_of(s, s.weights[..., None] * s.run.array(s.x)[..., None, :])

    @staticmethod
    def combine(s: State) -> None:
        s.out = s.outs.sum(axis=-2)


@mistake(
    "mixture.add_mlp_of_all",
    title="the shared expert is forgotten",
    cause="The MLP beside the experts, which every token goes through, is left out.",
    fix="Add shared(x) to the sum over the experts.",
    step=MLP,
)
def shared_forgotten(s: State) -> None:
    pass
