"""Whole models: the wrong weight at the right place.

Loops over layers, and matrices whose names differ in one letter, are where weights get mixed up,
and the arrays have the right shape all the same. Layers other than the first are not in the
catalogue, for each model has its own number of them: `of_layer` gives their lines when needed.
"""

import re

from simdformer.learn import program
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes import experts, model  # noqa: F401  their steps
from simdformer.learn.mistakes.linear import SQUARE

__all__ = ["STEPS", "called", "of_layer"]

# Which step of a layer uses a weight, with its bias.
STEPS = {
    "attn_norm": "layer.attn_norm",
    "wq": "layer.attn_q",
    "wk": "layer.attn_k",
    "wv": "layer.attn_v",
    "q_norm": "layer.attn_q_normed",
    "k_norm": "layer.attn_k_normed",
    "wo": "layer.attn_out",
    "mlp_norm": "layer.mlp_norm",
    "gate": "layer.mlp_gate",
    "up": "layer.mlp_up",
    "down": "layer.mlp_out",
    "router": "experts.mlp_router",
    "expert_down": "experts.mlp_expert_out",
}
OF_LAYER = [weight for weight, step in STEPS.items() if step.startswith("layer.")]
META = {"gate": "w1", "up": "w3", "down": "w2", "expert_down": "w2 of its experts"}


def called(weight: str) -> str:
    """A weight's name, and what Meta's checkpoints call it if it is another one: gate (w1)."""
    return f"{weight} ({META[weight]})" if weight in META else weight


def of_layer(weight: str, index: int) -> str:
    """The line in which a weight is used, with that of another layer."""
    return re.sub(r"\bindex\b", str(index), line_of(weight))


def line_of(weight: str) -> str:
    return program.STEPS[STEPS[weight]].text.replace("\n", "; ")


# ---- a layer index that is stuck -----------------------------------------------------------------

QKV, MLP = ("wq", "wk", "wv"), ("gate", "up", "down")
STUCK = {
    **{
        f"{one}_of_layer_0": (f"this is what layer 0's {called(one)} gives", one)
        for one in OF_LAYER
    },
    "qk_norms_of_layer_0": ("q_norm and k_norm are those of layer 0", "q_norm", "k_norm"),
    "norms_of_layer_0": ("the weights of both norms are those of layer 0", "attn_norm", "mlp_norm"),
    "qkv_of_layer_0": ("wq, wk and wv are those of layer 0", *QKV),
    "attention_of_layer_0": ("wq, wk, wv and wo are those of layer 0", *QKV, "wo"),
    "mlp_of_layer_0": ("gate, up and down (w1, w3, w2) are those of layer 0", *MLP),
    "experts_of_layer_0": ("the experts are those of layer 0", "gate", "up", "expert_down"),
    "matrices_of_layer_0": ("all matrices are those of layer 0", *QKV, "wo", *MLP),
    "layer_0_every_time": (
        "every layer is layer 0 once more",
        *("attn_norm", *QKV, "wo", "mlp_norm", *MLP),
    ),
}
for name, (title, *weights) in STUCK.items():
    lines = "\n            ".join(f"{STEPS[one]} | {of_layer(one, 0)}" for one in weights)
    mistakes(
        f"""
        layer (02 §8) > Take the index of the loop: layers[i], or f"layers.{{i}}..." where a 0 was
            copied.

        {name}: {title}
            The line was written for the first layer and moved into the loop as it was: its index
            is still 0.
            {lines}
        """
    )

# ---- a weight that is not transposed -------------------------------------------------------------

for weight in (*QKV, "wo"):
    mistakes(
        f"""
        layer (02 §8) > Write x @ {weight}.T.

        {weight}_not_transposed (unless linear.not_transposed): {called(weight)} is not transposed
            {SQUARE}
            {STEPS[weight]} | {line_of(weight).replace("index)", "index, np.transpose)")}
        """
    )

# ---- a bias that is forgotten --------------------------------------------------------------------

BIASED: dict[str, tuple[str, ...]] = {one: (one,) for one in (*QKV, "wo", *MLP, "router")}
BIASED |= {"qkv": QKV, "up and down": MLP[1:], "the experts": ("gate", "up", "expert_down")}
for name, some in BIASED.items():
    lines = "\n            ".join(
        f"{STEPS[one]} | {line_of(one).replace('index)', 'index, biased=False)')}" for one in some
    )
    mistakes(
        f"""
        layer (02 §8) > Add the bias once: x @ W.T + b.

        no_bias_of_{name.replace(" ", "_")} (unless linear.no_bias): the bias of {name} is forgotten
            This matrix has a bias in this model; others have none.
            {lines}
        """
    )

# ---- one weight for another ----------------------------------------------------------------------


def mixed(right: str, other: str) -> str:
    """The line of one weight with the other."""
    return f"{STEPS[right]} | " + line_of(right).replace(f'"{right}"', f'"{other}"')


for letter, other in (("v", "k"), ("k", "v"), ("q", "k"), ("k", "q"), ("q", "v")):
    mistakes(
        f"""
        layer (02 §8) > Compute {letter} with w{letter}.

        w{other}_for_w{letter}: {other} for {letter}: this is what w{other} gives, not w{letter}
            The lines of q, k and v are copies of one another; in that of {letter} a {other} stayed.
            {mixed(f"w{letter}", f"w{other}")}
        """
    )

mistakes(
    f"""
    layer (02 §8) > mlp.act is silu(x @ w1.T) * (x @ w3.T), and w2 leads back.

    k_and_v_swapped: wk and wv are swapped
        They have the same shape, and were unpacked or split from one matrix in the wrong order.
        > The order in a fused matrix is q, k, v.
        {mixed("wk", "wv")}
        {mixed("wv", "wk")}
    up_for_gate: up for gate: this is what up (w3) gives, not gate (w1)
        Meta's names do not say what they do: w1 is the gate, which goes through silu, w3 is up.
        {mixed("gate", "up")}
    gate_for_up: gate for up: this is what gate (w1) gives, not up (w3)
        as above
        {mixed("up", "gate")}
    gate_and_up_swapped: gate (w1) and up (w3) are swapped
        as above
        {mixed("gate", "up")}
        {mixed("up", "gate")}

    layer (02 §8) > attention_norm (input_layernorm) is before attention, ffn_norm
        (post_attention_layernorm) before the MLP.

    mlp_norm_for_attn_norm: the norm before attention uses the weight of the other norm, mlp_norm
        A layer has two norms with weights of the same shape.
        {mixed("attn_norm", "mlp_norm")}
    attn_norm_for_mlp_norm: the norm before the MLP uses the weight of the other norm, attn_norm
        as above
        {mixed("mlp_norm", "attn_norm")}
    norms_swapped: the weights of the two norms are swapped
        as above
        {mixed("attn_norm", "mlp_norm")}
        {mixed("mlp_norm", "attn_norm")}
    k_norm_for_q_norm: the heads of q are normalised with k_norm
        q_norm and k_norm have the same shape.
        > Normalise q with q_norm.
        {mixed("q_norm", "k_norm")}
    q_norm_for_k_norm: the heads of k are normalised with q_norm
        as above
        > Normalise k with k_norm.
        {mixed("k_norm", "q_norm")}
    """
)
