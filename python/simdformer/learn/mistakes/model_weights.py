"""Whole models: the wrong weight at the right place.

Loops over layers, and matrices whose names differ in one letter, are where weights get mixed up,
and the arrays have the right shape all the same. Layers other than the first are not in the
catalogue, for each model has its own number of them: `using` makes their mistakes when needed.
"""

from collections.abc import Mapping

from simdformer.learn.mistakes.model import layer, model
from simdformer.learn.program import State, Step, mistake

__all__ = ["STEPS", "called", "using"]

MODEL, ANSWER = "02 §8", "02 §9"

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
BIASES = {"wq": "bq", "wk": "bk", "wv": "bv", "wo": "bo"}
META = {"gate": "w1", "up": "w3", "down": "w2"}
W1_W3 = "Meta's names do not say what they do: w1 is the gate, which goes through silu, w3 is up."
TWO_NORMS = "A layer has two norms with weights of the same shape."
OWN_WEIGHT = "The final norm has a weight of its own: norm.weight (model.norm.weight)."
WHICH_NORM = (
    "attention_norm (input_layernorm) is before attention, ffn_norm (post_attention_layernorm) "
    "before the MLP."
)


def called(weight: str) -> str:
    """A weight's name, and what Meta's checkpoints call it if it is another one: gate (w1)."""
    return f"{weight} ({META[weight]})" if weight in META else weight


def using(step: str, weights: Mapping[str, str], at: int | None = None) -> Step:
    """A step of a layer with other weights: those of another name, those of the layer `at`."""
    right = layer.steps[f"layer.{step}"]

    def wrong(s: State) -> None:
        tensors = s.tensors
        s.tensors = lambda name, index: tensors(
            weights.get(name, name), index if at is None else at
        )
        right(s)
        s.tensors = tensors

    return wrong


# ---- a layer index that is stuck -----------------------------------------------------------------

FIX = 'Take the index of the loop: layers[i], or f"layers.{i}..." where a 0 was copied.'


def stuck(name: str, title: str, *weights: str) -> None:
    steps = {STEPS[weight]: using(STEPS[weight], {}, 0) for weight in weights}
    mistake(
        *[f"layer.{step}" for step in steps],
        title=title,
        cause="The line was written for the first layer and moved into the loop as it was: its "
        "index is still 0.",
        fix=FIX,
        step=MODEL,
        name=name,
    )(type("Stuck", (), {step: staticmethod(wrong) for step, wrong in steps.items()}))


for weight in STEPS:
    stuck(f"{weight}_of_layer_0", f"this is what layer 0's {called(weight)} gives", weight)
stuck("qk_norms_of_layer_0", "q_norm and k_norm are those of layer 0", "q_norm", "k_norm")
stuck("norms_of_layer_0", "the weights of both norms are those of layer 0", "attn_norm", "mlp_norm")
stuck("qkv_of_layer_0", "wq, wk and wv are those of layer 0", "wq", "wk", "wv")
stuck("attention_of_layer_0", "wq, wk, wv and wo are those of layer 0", "wq", "wk", "wv", "wo")
stuck(
    "mlp_of_layer_0",
    "gate, up and down (w1, w3, w2) are those of layer 0 in every layer",
    *("gate", "up", "down"),
)
stuck(
    "matrices_of_layer_0",
    "all matrices are those of layer 0 in every layer",
    *("wq", "wk", "wv", "wo", "gate", "up", "down"),
)
stuck(
    "layer_0_every_time",
    "every layer is layer 0 once more",
    *("attn_norm", "wq", "wk", "wv", "wo", "mlp_norm", "gate", "up", "down"),
)


# ---- one weight for another ----------------------------------------------------------------------


def mixed_up(name: str, title: str, cause: str, fix: str, **weights: str) -> None:
    steps = {}
    for right, wrong in weights.items():
        swaps = {right: wrong}
        if right in BIASES:
            swaps[BIASES[right]] = BIASES[wrong]
        steps[STEPS[right]] = using(STEPS[right], swaps)
    mistake(
        *[f"layer.{step}" for step in steps],
        title=title,
        cause=cause,
        fix=fix,
        step=MODEL,
        name=name,
    )(type("MixedUp", (), {step: staticmethod(wrong) for step, wrong in steps.items()}))


for right, wrong in (("wv", "wk"), ("wk", "wv"), ("wq", "wk"), ("wk", "wq"), ("wq", "wv")):
    letter, other = right[1], wrong[1]
    mixed_up(
        f"{wrong}_for_{right}",
        f"{other} for {letter}: this is what {wrong} gives, not {right}",
        f"The lines of q, k and v are copies of one another; in that of {letter} a {other} stayed "
        "behind.",
        f"Compute {letter} with {right}.",
        **{right: wrong},
    )
mixed_up(
    "k_and_v_swapped",
    "wk and wv are swapped",
    "They have the same shape, and were unpacked or split from one matrix in the wrong order.",
    "The order in a fused matrix is q, k, v.",
    wk="wv",
    wv="wk",
)
mixed_up(
    "up_for_gate",
    "up for gate: this is what up (w3) gives, not gate (w1)",
    W1_W3,
    "gate = x @ w1.T, up = x @ w3.T, and w2 leads back.",
    gate="up",
)
mixed_up(
    "gate_for_up",
    "gate for up: this is what gate (w1) gives, not up (w3)",
    W1_W3,
    "gate = x @ w1.T, up = x @ w3.T, and w2 leads back.",
    up="gate",
)
mixed_up(
    "gate_and_up_swapped",
    "gate (w1) and up (w3) are swapped",
    W1_W3,
    "mlp.act is silu(x @ w1.T) * (x @ w3.T).",
    gate="up",
    up="gate",
)
mixed_up(
    "mlp_norm_for_attn_norm",
    "the norm before attention uses the weight of the other norm, mlp_norm",
    TWO_NORMS,
    WHICH_NORM,
    attn_norm="mlp_norm",
)
mixed_up(
    "attn_norm_for_mlp_norm",
    "the norm before the MLP uses the weight of the other norm, attn_norm",
    TWO_NORMS,
    WHICH_NORM,
    mlp_norm="attn_norm",
)
mixed_up(
    "norms_swapped",
    "the weights of the two norms are swapped",
    TWO_NORMS,
    WHICH_NORM,
    attn_norm="mlp_norm",
    mlp_norm="attn_norm",
)
for right, wrong in (("q_norm", "k_norm"), ("k_norm", "q_norm")):
    mixed_up(
        f"{wrong}_for_{right}",
        f"the heads of {right[0]} are normalised with {wrong}",
        "q_norm and k_norm have the same shape.",
        f"Normalise {right[0]} with {right}.",
        **{right: wrong},
    )


# ---- the last norm and matrix --------------------------------------------------------------------


@mistake(
    "model.logits",
    title="the logits come from the embedding, but this model has an lm_head of its own",
    cause="In models with tied embeddings the last matrix is the embedding again; here "
    "tie_embeddings is false.",
    fix="Use output.weight (lm_head.weight).",
    step=ANSWER,
)
def embedding_for_lm_head(s: State) -> None:
    with_tensor(s, "lm_head", "embed", None)


def with_tensor(s: State, right: str, wrong: str, at: int | None) -> None:
    tensors = s.tensors
    s.tensors = lambda name, index=None: (
        tensors(wrong, at) if name == right else tensors(name, index)
    )
    step = "final_norm" if right == "final_norm" else "logits"
    model.steps[f"model.{step}"](s)
    s.tensors = tensors


@mistake(
    "model.final_norm",
    title="the final norm uses the weight of layer 0's attn_norm",
    cause="The name of a weight was copied from the beginning of the loop.",
    fix=OWN_WEIGHT,
    step=ANSWER,
)
def attn_norm_of_layer_0_for_final_norm(s: State) -> None:
    with_tensor(s, "final_norm", "attn_norm", 0)


@mistake(
    "model.final_norm",
    title="the final norm uses the weight of the last layer's mlp_norm",
    cause="The variable of the loop still holds the weight of the last norm in it.",
    fix=OWN_WEIGHT,
    step=ANSWER,
)
def last_mlp_norm_for_final_norm(s: State) -> None:
    with_tensor(s, "final_norm", "mlp_norm", s.config.num_layers - 1)


@mistake(
    "model.final_norm",
    title="the final norm uses the weight of the last layer's attn_norm",
    cause="The variable of the loop still holds the weight of a norm in it.",
    fix=OWN_WEIGHT,
    step=ANSWER,
)
def last_attn_norm_for_final_norm(s: State) -> None:
    with_tensor(s, "final_norm", "attn_norm", s.config.num_layers - 1)
