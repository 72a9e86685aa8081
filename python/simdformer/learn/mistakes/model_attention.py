"""Whole models: what goes wrong between the parts of attention, after the last layer, and with
factors that some models have."""

from typing import Any

from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes import model  # noqa: F401  its steps
from simdformer.learn.mistakes.softmax import softmax
from simdformer.learn.program import State


def unturned(s: State, name: str) -> Any:
    """q or k as it goes into RoPE."""
    return getattr(s, f"attn_{name}_normed" if s.config.qk_norm else f"attn_{name}")


for q, whose in (("q", "query's"), ("k", "keys'")):
    mistakes(
        f"""
        layer (04 §4) > Apply {q}_norm to each head of {q}, then RoPE.

        no_{q}_norm: the norm of the {whose} heads is forgotten
            Qwen3 normalises each head of q and k before RoPE; Llama and Qwen2 do not.
            attn_{q}_normed | attn_{q}_normed = array(attn_{q})
        {q}_turned_without_norm: {q} is turned without its norm
            as above
            attn_{q}_normed | ...
            attn_{q}_rot | attn_{q}_rot = turned(s, attn_{q})
        {q}_normed_after_rope: {q} is normalised after RoPE instead of before
            The two lines are in the wrong order. The weight of the norm then meets other channels.
            attn_{q}_normed | ...
            attn_{q}_rot | attn_{q}_rot = norm(s, turned(s, attn_{q}), "{q}_norm", index)
        """
    )

mistakes(
    """
    layer (04 §4) > Apply q_norm and k_norm to each head of q and k, then RoPE.

    no_qk_norms: the norms of the heads of q and k are forgotten
        Qwen3 normalises each head of q and k before RoPE; Llama and Qwen2 do not.
        attn_q_normed | attn_q_normed = array(attn_q)
        attn_k_normed | attn_k_normed = array(attn_k)

    layer.attn_v (02 §5)

    v_turned: v is turned by RoPE
        RoPE tells queries and keys where they are; values carry no position.
        > Apply RoPE to q and k alone.
        | ...; attn_v = turned(s, attn_v)

    layer.attn_scores_unmasked (02 §5) > Multiply the turned queries by the turned keys.

    scores_of_unturned: the scores are those of q and k before RoPE
        The turned array has a name of its own, and the old one was used.
        | attn_q_rot, attn_k_rot = unturned(s, "q"), unturned(s, "k"); ...
    scores_of_unturned_queries: the queries in the scores are those before RoPE
        as above
        | attn_q_rot = unturned(s, "q"); ...
    scores_of_unturned_keys: the keys in the scores are those before RoPE
        as above
        | attn_k_rot = unturned(s, "k"); ...

    layer.attn_z (02 §6)

    unturned_keys_as_values: the keys are used as values, as they are before RoPE
        k and v have the same shape, and a k stayed in a copied line.
        > Multiply the pattern by the values.
        | attn_v = attn_k; ...

    layer.attn_out (02 §6)

    no_wo: wo is forgotten: these are the merged heads
        The heads are put side by side and added to the stream without the last projection.
        > Multiply the merged heads by wo.
        | attn_out = run(merge_heads, x=attn_z.swapaxes(1, 2)).out

    model.embed (02 §3)

    centred: each row has lost its mean
        TransformerLens folds norms into matrices and centres all that is written to the stream,
        unless it is told not to.
        > Load it with HookedTransformer.from_pretrained_no_processing.
        | ...; embed = embed - embed.mean(axis=-1, keepdims=True)

    model.stream (02 §3) > Write x = wte[ids] + wpe[np.arange(L)].

    no_positions: the positions are forgotten: the stream begins with the embedding alone
        Where nothing turns queries and keys, a vector that is learned for each position is added.
        | stream = array(embed)

    model.pos_embed (02 §3) > Take the rows 0 to L - 1 of wpe, as np.arange(L) gives them.

    positions_from_one: the positions count from 1
        The first token stands at 0; an offset for padding or for a bos does not belong here.
        | pos_embed = places(s, np.arange(1, 1 + ids.shape[1]))
    positions_of_ids: the rows are those of the ids instead of the positions
        Two tables are looked up one after the other, and the index of the first line was copied.
        | pos_embed = places(s, ids)
    one_position: every token has the vector of position 0
        A row was taken where a slice was meant: wpe[0] is added to all of them.
        | pos_embed = places(s, np.zeros_like(ids))

    model.final_norm (02 §9) > Write rms_norm(x, norm.weight) once, after the loop.

    no_final_norm: the final norm is forgotten
        After the last layer there is one more norm before the logits.
        | final_norm = array(resid_post)
    final_norm_twice: the final norm is applied twice
        The variable holds the normed value already.
        | ...; final_norm = norm(s, final_norm, "final_norm")
    attn_norm_of_layer_0_for_final_norm: the final norm uses the weight of layer 0's attn_norm
        The name of a weight was copied from the beginning of the loop.
        > The final norm has a weight of its own: norm.weight (model.norm.weight).
        | final_norm = norm(s, resid_post, "attn_norm", 0)
    last_mlp_norm_for_final_norm: the final norm uses the weight of the last layer's mlp_norm
        The variable of the loop still holds the weight of a norm in it.
        > The final norm has a weight of its own: norm.weight (model.norm.weight).
        | final_norm = norm(s, resid_post, "mlp_norm", config.num_layers - 1)
    last_attn_norm_for_final_norm: the final norm uses the weight of the last layer's attn_norm
        as above
        > The final norm has a weight of its own: norm.weight (model.norm.weight).
        | final_norm = norm(s, resid_post, "attn_norm", config.num_layers - 1)

    model.logits (02 §9) > Multiply the normed value by lm_head (output.weight).

    logits_of_unnormed: the logits come from the stream itself: the final norm is forgotten
        After the last layer there is one more norm before the logits.
        | final_norm = resid_post; ...
    embedding_for_lm_head: the logits come from the embedding, but there is an lm_head
        In models with tied embeddings the last matrix is the embedding again; here tie_embeddings
        is false.
        > Use output.weight (lm_head.weight).
        | logits = logits_by(s, tensors("embed"))
    probabilities: these are probabilities, not logits: softmax is applied already
        Logits are the scores before softmax.
        > Leave softmax to what comes after the model.
        | ...; logits = run(softmax, x=logits).out
    log_probabilities: these are log probabilities, not logits
        log_softmax is what losses are made of; it is applied to what the model gives.
        > Leave it to what comes after the model.
        | ...; logits = np.log(run(softmax, x=logits).out)

    scaling.multiply (02 §8) > Look into the config: embedding_multiplier, residual_multiplier,
        logits_scaling.

    forgotten: a factor of the model is forgotten
        Some models multiply embeddings or what is added to the stream, or divide the logits.
        | out = array(x)

    softcapping.cap (02 §9) > Apply final_logit_softcapping of the config to the logits.

    forgotten: the cap of the logits is forgotten
        Gemma 2 bends large logits: cap * tanh(logits / cap).
        | out = array(x)
    """,
    calls=(softmax, unturned),
)
