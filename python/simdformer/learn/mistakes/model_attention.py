"""Whole models: what goes wrong between the parts of attention, and after the last layer."""

from collections.abc import Mapping

import numpy as np

from simdformer.learn.catalogue import Mistakes, first, instead, then
from simdformer.learn.mistakes.model import logits_by, norm, turned
from simdformer.learn.mistakes.softmax import softmax
from simdformer.learn.mistakes.split_heads import merge_heads
from simdformer.learn.program import STEPS, Step

ROPE, ATTENTION, ANSWER = "02 §5", "02 §6", "02 §9"

# ---- norms of the heads --------------------------------------------------------------------------

QWEN3 = "Qwen3 normalises each head of q and k before RoPE; Llama and Qwen2 do not."


def no_norm(q: str) -> Mapping[str, Step]:
    done = f"attn_{q}_normed"
    return {done: instead(**{done: lambda s: s.run.array(getattr(s, f"attn_{q}"))})}


def turned_without_norm(q: str) -> Mapping[str, Step]:
    done, rotated = f"attn_{q}_normed", f"attn_{q}_rot"
    return {
        done: STEPS[f"layer.{done}"],
        rotated: instead(**{rotated: lambda s: turned(s, getattr(s, f"attn_{q}"))}),
    }


def normed_after_rope(q: str) -> Mapping[str, Step]:
    done, rotated = f"attn_{q}_normed", f"attn_{q}_rot"
    late = instead(
        **{
            rotated: lambda s: norm(
                s, turned(s, getattr(s, f"attn_{q}")), s.tensors(f"{q}_norm", s.index)
            )
        }
    )
    return {done: STEPS[f"layer.{done}"], rotated: late}


for q, whose in (("q", "query's"), ("k", "keys'")):
    in_norm = Mistakes("layer", see="04 §4", fix=f"Apply {q}_norm to each head of {q}, then RoPE.")
    in_norm.add(
        f"no_{q}_norm",
        no_norm(q),
        f"the norm of the {whose} heads is forgotten",
        QWEN3,
    )
    in_norm.add(
        f"{q}_turned_without_norm",
        turned_without_norm(q),
        f"{q} is turned without its norm",
        QWEN3,
    )
    in_norm.add(
        f"{q}_normed_after_rope",
        normed_after_rope(q),
        f"{q} is normalised after RoPE instead of before",
        "The two lines are in the wrong order. The weight of the norm then meets other channels.",
    )

# ---- RoPE and scores -----------------------------------------------------------------------------

Mistakes("layer.attn_v", see=ROPE)(
    """
    v_turned: v is turned by RoPE
        RoPE tells queries and keys where they are; values carry no position.
        > Apply RoPE to q and k alone.
    """,
    v_turned=then(attn_v=lambda s: turned(s, s.attn_v)),
)

Mistakes(
    "layer.attn_scores_unmasked", see=ROPE, fix="Multiply the turned queries by the turned keys."
)(
    """
    scores_of_unturned: the scores are those of q and k before RoPE
        The turned array has a name of its own, and the old one was used.
    scores_of_unturned_queries: the queries in the scores are those before RoPE
        as above
    scores_of_unturned_keys: the keys in the scores are those before RoPE
        as above
    """,
    scores_of_unturned=first(attn_q_rot=lambda s: s.attn_q, attn_k_rot=lambda s: s.attn_k),
    scores_of_unturned_queries=first(attn_q_rot=lambda s: s.attn_q),
    scores_of_unturned_keys=first(attn_k_rot=lambda s: s.attn_k),
)

Mistakes("layer.attn_z", see=ATTENTION)(
    """
    unturned_keys_as_values: the keys are used as values, as they are before RoPE
        k and v have the same shape, and a k stayed in a copied line.
        > Multiply the pattern by the values.
    """,
    unturned_keys_as_values=first(attn_v=lambda s: s.attn_k),
)

Mistakes("layer.attn_out", see=ATTENTION)(
    """
    no_wo: wo is forgotten: these are the merged heads
        The heads are put side by side and added to the stream without the last projection.
        > Multiply the merged heads by wo.
    """,
    no_wo=instead(attn_out=lambda s: s.run(merge_heads, x=s.attn_z.swapaxes(1, 2)).out),
)

# ---- the end -------------------------------------------------------------------------------------


Mistakes(
    "model.final_norm", see=ANSWER, fix="Write rms_norm(x, norm.weight) once, after the loop."
)(
    """
    no_final_norm: the final norm is forgotten
        After the last layer there is one more norm before the logits.
    final_norm_twice: the final norm is applied twice
        The variable holds the normed value already.
    attn_norm_of_layer_0_for_final_norm: the final norm uses the weight of layer 0's attn_norm
        The name of a weight was copied from the beginning of the loop.
        > The final norm has a weight of its own: norm.weight (model.norm.weight).
    last_mlp_norm_for_final_norm: the final norm uses the weight of the last layer's mlp_norm
        The variable of the loop still holds the weight of a norm in it.
        > The final norm has a weight of its own: norm.weight (model.norm.weight).
    last_attn_norm_for_final_norm: the final norm uses the weight of the last layer's attn_norm
        as above
        > The final norm has a weight of its own: norm.weight (model.norm.weight).
    """,
    no_final_norm=instead(final_norm=lambda s: s.run.array(s.resid_post)),
    final_norm_twice=then(final_norm=lambda s: norm(s, s.final_norm, s.tensors("final_norm"))),
    attn_norm_of_layer_0_for_final_norm=instead(
        final_norm=lambda s: norm(s, s.resid_post, s.tensors("attn_norm", 0))
    ),
    last_mlp_norm_for_final_norm=instead(
        final_norm=lambda s: norm(s, s.resid_post, s.tensors("mlp_norm", s.config.num_layers - 1))
    ),
    last_attn_norm_for_final_norm=instead(
        final_norm=lambda s: norm(s, s.resid_post, s.tensors("attn_norm", s.config.num_layers - 1))
    ),
)

Mistakes("model.logits", see=ANSWER, fix="Multiply the normed value by lm_head (output.weight).")(
    """
    logits_of_unnormed: the logits come from the stream itself: the final norm is forgotten
        After the last layer there is one more norm before the logits.
    embedding_for_lm_head: the logits come from the embedding, but there is an lm_head
        In models with tied embeddings the last matrix is the embedding again; here tie_embeddings
        is false.
        > Use output.weight (lm_head.weight).
    probabilities: these are probabilities, not logits: softmax is applied already
        Logits are the scores before softmax.
        > Leave softmax to what comes after the model.
    log_probabilities: these are log probabilities, not logits
        log_softmax is what losses are made of; it is applied to what the model gives.
        > Leave it to what comes after the model.
    """,
    logits_of_unnormed=first(final_norm=lambda s: s.resid_post),
    embedding_for_lm_head=instead(logits=lambda s: logits_by(s, s.tensors("embed"))),
    probabilities=then(logits=lambda s: s.run(softmax, x=s.logits).out),
    log_probabilities=then(logits=lambda s: np.log(s.run(softmax, x=s.logits).out)),
)
