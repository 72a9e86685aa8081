"""Whole models: the wrong weight at the right place.

Loops over layers, and matrices whose names differ in one letter, are where weights get mixed up,
and the arrays have the right shape all the same. Layers other than the first are not in the
catalogue, for each model has its own number of them: `Using` makes their mistakes when needed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simdformer.learn import program
from simdformer.learn.catalogue import Mistakes, reads
from simdformer.learn.mistakes.model import BIASES

__all__ = ["STEPS", "Using", "called"]

# Which step of a layer uses a weight, with its bias.
STEPS = {
    "attn_norm": "attn_norm",
    "wq": "attn_q",
    "wk": "attn_k",
    "wv": "attn_v",
    "q_norm": "attn_q_normed",
    "k_norm": "attn_k_normed",
    "wo": "attn_out",
    "mlp_norm": "mlp_norm",
    "gate": "mlp_gate",
    "up": "mlp_up",
    "down": "mlp_out",
}

META = {"gate": "w1", "up": "w3", "down": "w2"}


def called(weight: str) -> str:
    """A weight's name, and what Meta's checkpoints call it if it is another one: gate (w1)."""
    return f"{weight} ({META[weight]})" if weight in META else weight


@dataclass(frozen=True)
class Using:
    """A step of a layer with other weights: those of another name, those of the layer `at`."""

    step: str
    weights: Mapping[str, str] = field(default_factory=dict)
    at: int | None = None

    def __call__(self, s: Any) -> None:
        tensors = s.tensors
        s.tensors = lambda name, index: tensors(
            self.weights.get(name, name), index if self.at is None else self.at
        )
        program.STEPS[f"layer.{self.step}"](s)
        s.tensors = tensors

    @property
    def lines(self) -> list[str]:
        """Those of the step, with the other name or index in them."""
        found = "\n".join(reads(program.STEPS[f"layer.{self.step}"]))
        for right, wrong in self.weights.items():
            found = found.replace(f"'{right}'", f"'{wrong}'")
        if self.at is not None:
            found = re.sub(r"\bindex\b", str(self.at), found)
        return found.splitlines()


# ---- a layer index that is stuck -----------------------------------------------------------------

of_layer_0 = Mistakes(
    "layer",
    see="02 §8",
    fix='Take the index of the loop: layers[i], or f"layers.{i}..." where a 0 was copied.',
)


def stuck(name: str, title: str, *weights: str) -> None:
    of_layer_0.add(
        name,
        {STEPS[weight]: Using(STEPS[weight], at=0) for weight in weights},
        title,
        "The line was written for the first layer and moved into the loop as it was: its "
        "index is still 0.",
    )


QKV, MLP = ("wq", "wk", "wv"), ("gate", "up", "down")

for weight in STEPS:
    stuck(f"{weight}_of_layer_0", f"this is what layer 0's {called(weight)} gives", weight)

stuck("qk_norms_of_layer_0", "q_norm and k_norm are those of layer 0", "q_norm", "k_norm")

stuck("norms_of_layer_0", "the weights of both norms are those of layer 0", "attn_norm", "mlp_norm")

stuck("qkv_of_layer_0", "wq, wk and wv are those of layer 0", *QKV)

stuck("attention_of_layer_0", "wq, wk, wv and wo are those of layer 0", *QKV, "wo")

stuck("mlp_of_layer_0", "gate, up and down (w1, w3, w2) are those of layer 0", *MLP)

stuck("matrices_of_layer_0", "all matrices are those of layer 0", *QKV, "wo", *MLP)

stuck(
    "layer_0_every_time",
    "every layer is layer 0 once more",
    *("attn_norm", *QKV, "wo", "mlp_norm", *MLP),
)

# ---- one weight for another ----------------------------------------------------------------------


def mixed(**weights: str) -> dict[str, Using]:
    """Those on the left are replaced by those on the right, with their biases."""
    wrong = {}
    for right, other in weights.items():
        biases = {BIASES[right]: BIASES[other]} if right in BIASES else {}
        wrong[STEPS[right]] = Using(STEPS[right], {right: other} | biases)
    return wrong


for letter, other in (("v", "k"), ("k", "v"), ("q", "k"), ("k", "q"), ("q", "v")):
    Mistakes("layer", see="02 §8").add(
        f"w{other}_for_w{letter}",
        mixed(**{f"w{letter}": f"w{other}"}),
        f"{other} for {letter}: this is what w{other} gives, not w{letter}",
        f"The lines of q, k and v are copies of one another; in that of {letter} a {other} stayed.",
        f"Compute {letter} with w{letter}.",
    )

Mistakes("layer", see="02 §8", fix="mlp.act is silu(x @ w1.T) * (x @ w3.T), and w2 leads back.")(
    """
    k_and_v_swapped: wk and wv are swapped
        They have the same shape, and were unpacked or split from one matrix in the wrong order.
        > The order in a fused matrix is q, k, v.
    up_for_gate: up for gate: this is what up (w3) gives, not gate (w1)
        Meta's names do not say what they do: w1 is the gate, which goes through silu, w3 is up.
    gate_for_up: gate for up: this is what gate (w1) gives, not up (w3)
        as above
    gate_and_up_swapped: gate (w1) and up (w3) are swapped
        as above
    """,
    k_and_v_swapped=mixed(wk="wv", wv="wk"),
    up_for_gate=mixed(gate="up"),
    gate_for_up=mixed(up="gate"),
    gate_and_up_swapped=mixed(gate="up", up="gate"),
)

Mistakes(
    "layer",
    see="02 §8",
    fix="attention_norm (input_layernorm) is before attention, ffn_norm "
    "(post_attention_layernorm) before the MLP.",
)(
    """
    mlp_norm_for_attn_norm: the norm before attention uses the weight of the other norm, mlp_norm
        A layer has two norms with weights of the same shape.
    attn_norm_for_mlp_norm: the norm before the MLP uses the weight of the other norm, attn_norm
        as above
    norms_swapped: the weights of the two norms are swapped
        as above
    k_norm_for_q_norm: the heads of q are normalised with k_norm
        q_norm and k_norm have the same shape.
        > Normalise q with q_norm.
    q_norm_for_k_norm: the heads of k are normalised with q_norm
        as above
        > Normalise k with k_norm.
    """,
    mlp_norm_for_attn_norm=mixed(attn_norm="mlp_norm"),
    attn_norm_for_mlp_norm=mixed(mlp_norm="attn_norm"),
    norms_swapped=mixed(attn_norm="mlp_norm", mlp_norm="attn_norm"),
    k_norm_for_q_norm=mixed(q_norm="k_norm"),
    q_norm_for_k_norm=mixed(k_norm="q_norm"),
)
