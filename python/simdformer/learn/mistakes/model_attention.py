"""Whole models: what goes wrong between the parts of attention, and after the last layer."""

from typing import Any

from simdformer.learn.mistakes.linear import linear
from simdformer.learn.mistakes.model import heads, layer, model, norm, turned
from simdformer.learn.mistakes.softmax import softmax
from simdformer.learn.mistakes.split_heads import merge_heads
from simdformer.learn.program import State, Step, mistake

ANSWER = "02 §9"
ROPE, ATTENTION, QK_NORM = "02 §5", "02 §6", "04 §4"
QWEN3 = "Qwen3 normalises each head of q and k before RoPE; Llama and Qwen2 do not."
TURNED = "Multiply the turned queries by the turned keys."


# ---- attention -----------------------------------------------------------------------------------


@mistake(
    "layer.attn_q_normed",
    title="the norm of the query's heads is forgotten",
    cause=QWEN3,
    fix="Apply q_norm to each head of q.",
    step=QK_NORM,
)
def no_q_norm(s: State) -> None:
    s.attn_q_normed = s.run.array(s.attn_q)


@mistake(
    "layer.attn_k_normed",
    title="the norm of the keys' heads is forgotten",
    cause=QWEN3,
    fix="Apply k_norm to each head of k.",
    step=QK_NORM,
)
def no_k_norm(s: State) -> None:
    s.attn_k_normed = s.run.array(s.attn_k)


def unnormed(letter: str) -> None:
    def wrong(s: State) -> None:
        setattr(s, f"attn_{letter}_rot", turned(s, getattr(s, f"attn_{letter}")))

    def late(s: State) -> None:
        weight = s.tensors(f"{letter}_norm", s.index)
        setattr(s, f"attn_{letter}_rot", norm(s, turned(s, getattr(s, f"attn_{letter}")), weight))

    mistake(
        f"layer.attn_{letter}_normed",
        f"layer.attn_{letter}_rot",
        title=f"{letter} is turned without its norm",
        cause=QWEN3,
        fix=f"Apply {letter}_norm to each head of {letter}, then RoPE.",
        step=QK_NORM,
        name=f"{letter}_turned_without_norm",
    )(wrong_in(f"attn_{letter}_normed", f"attn_{letter}_rot", wrong))
    mistake(
        f"layer.attn_{letter}_normed",
        f"layer.attn_{letter}_rot",
        title=f"{letter} is normalised after RoPE instead of before",
        cause="The two lines are in the wrong order. The weight of the norm then meets other "
        "channels.",
        fix=f"Apply {letter}_norm to each head of {letter} first, then RoPE.",
        step=QK_NORM,
        name=f"{letter}_normed_after_rope",
    )(wrong_in(f"attn_{letter}_normed", f"attn_{letter}_rot", late))


def wrong_in(before: str, step: str, wrong: Step) -> type:
    """A mistake of the second step, whatever the first has given."""
    return type("Wrong", (), {before: layer.steps[f"layer.{before}"], step: wrong})


for letter in "qk":
    unnormed(letter)


@mistake(
    "layer.attn_v",
    title="v is turned by RoPE",
    cause="RoPE tells queries and keys where they are; values carry no position.",
    fix="Apply RoPE to q and k alone.",
    step=ROPE,
)
def v_turned(s: State) -> None:
    s.attn_v = turned(s, heads(s, s.attn_norm, "wv"))


@mistake(
    "layer.attn_scores_unmasked",
    title="the scores are those of q and k before RoPE",
    cause="The turned arrays have names of their own, and the old ones were used.",
    fix=TURNED,
    step=ROPE,
)
def scores_of_unturned(s: State) -> None:
    scores_of(s, attn_q_rot=s.attn_q, attn_k_rot=s.attn_k)


@mistake(
    "layer.attn_scores_unmasked",
    title="the queries in the scores are those before RoPE",
    cause="The turned array has a name of its own, and the old one was used.",
    fix=TURNED,
    step=ROPE,
)
def scores_of_unturned_queries(s: State) -> None:
    scores_of(s, attn_q_rot=s.attn_q)


@mistake(
    "layer.attn_scores_unmasked",
    title="the keys in the scores are those before RoPE",
    cause="The turned array has a name of its own, and the old one was used.",
    fix=TURNED,
    step=ROPE,
)
def scores_of_unturned_keys(s: State) -> None:
    scores_of(s, attn_k_rot=s.attn_k)


def scores_of(s: State, **others: Any) -> None:
    kept = {name: getattr(s, name) for name in others}
    vars(s).update(others)
    layer.steps["layer.attn_scores_unmasked"](s)
    vars(s).update(kept)


@mistake(
    "layer.attn_z",
    title="the keys are used as values, as they are before RoPE",
    cause="k and v have the same shape, and a k stayed in a copied line.",
    fix="Multiply the pattern by the values.",
    step=ATTENTION,
)
def unturned_keys_as_values(s: State) -> None:
    kept, s.attn_v = s.attn_v, s.attn_k
    layer.steps["layer.attn_z"](s)
    s.attn_v = kept


@mistake(
    "layer.attn_out",
    title="wo is forgotten: these are the merged heads",
    cause="The heads are put side by side and added to the stream without the last projection.",
    fix="Multiply the merged heads by wo.",
    step=ATTENTION,
)
def no_wo(s: State) -> None:
    s.attn_out = s.run(merge_heads, x=s.attn_z.swapaxes(1, 2)).out


# ---- the end -------------------------------------------------------------------------------------


@mistake(
    "model.final_norm",
    title="the final norm is forgotten",
    cause="After the last layer there is one more norm before the logits.",
    fix="Write rms_norm(x, norm.weight) after the loop.",
    step=ANSWER,
)
def no_final_norm(s: State) -> None:
    s.final_norm = s.run.array(s.resid_post)


@mistake(
    "model.final_norm",
    title="the final norm is applied twice",
    cause="The variable holds the normed value already.",
    fix="Normalise once after the loop.",
    step=ANSWER,
)
def final_norm_twice(s: State) -> None:
    model.steps["model.final_norm"](s)
    s.final_norm = norm(s, s.final_norm, s.tensors("final_norm"))


@mistake(
    "model.logits",
    title="the logits come from the stream itself: the final norm is forgotten",
    cause="After the last layer there is one more norm before the logits.",
    fix="Multiply the normed value by lm_head (output.weight).",
    step=ANSWER,
)
def logits_of_unnormed(s: State) -> None:
    s.logits = s.run(linear, x=s.resid_post, weight=s.tensors("lm_head")).out


@mistake(
    "model.logits",
    title="these are probabilities, not logits: softmax is applied already",
    cause="Logits are the scores before softmax.",
    fix="Leave softmax to what comes after the model.",
    step=ANSWER,
)
def probabilities(s: State) -> None:
    model.steps["model.logits"](s)
    s.logits = s.run(softmax, x=s.logits).out
