"""What others call the activations of a transformer.

A learner's dict may use the names of a trace ("layers.0.attn.q"), those of the walkthroughs
("embedding_after_edit"), those of Hugging Face ("model.layers.0.input_layernorm"), of
TransformerLens ("blocks.0.hook_resid_pre"), or of his own with `aliases=`. How they are read is in
places.py.
"""

from collections.abc import Iterator

from simdformer.models.activation_table import every_activation
from simdformer.models.table import rows_of

__all__ = ["FUSED", "INSTEAD", "LAYER_ALIASES", "MODEL_ALIASES", "OTHER_MEANINGS"]

# What a name means where the model has no such activation.
INSTEAD = {"mlp.gate": "mlp.up", "mlp.routed": "mlp.out"}
# Several activations side by side, as one matrix makes them.
FUSED = {"attn.qkv": ("attn.q", "attn.k", "attn.v"), "mlp.gate_up": ("mlp.gate", "mlp.up")}

# What they are called in Llama 3 step by step, MiniMind, Llama's own code, GPT-2 and its teachers',
# in the modules of Hugging Face and Meta, and as many write it. TransformerLens' names are in the
# table of activations.
#
# In a layer: a name may stand alone, or behind a prefix that says which layer.
IN_LAYERS = """
attn_norm            | token_embeddings, layer_embedding_norm, x_norm, x_normed, normed, normed_x
attn_norm            | ln_1, ln1, input_layernorm, attention_norm
attn.q               | q_per_token, xq, q, queries, query, query_states, q_proj, self_attn.q_proj
attn.q               | attention.wq
attn.k               | k_per_token, xk, k, keys, key, key_states, k_proj, self_attn.k_proj
attn.k               | attention.wk
attn.v               | v_per_token, xv, v, values, value, value_states, v_proj, self_attn.v_proj
attn.v               | attention.wv
attn.q_rot           | q_per_token_rotated, q_embed, q_rot, q_rotated, q_rope, xq_rot, rotated_q
attn.k_rot           | k_per_token_rotated, k_embed, k_rot, k_rotated, k_rope, xk_rot, rotated_k
attn.scores_unmasked | qk_per_token, attn.scores_unmasked
attn.scores          | qk_per_token_after_masking, scores, attn_scores, attention_scores
attn.scores          | masked_scores
attn.pattern         | qk_per_token_after_masking_after_softmax, attn_weights, attention_weights
attn.pattern         | pattern, attn, attn_probs, attention_probs, attn_pattern, probs, att
attn.z               | qkv_attention, qkv_attention_store, stacked_qkv_attention, z, context
attn.z               | context_layer, heads
attn.out             | embedding_delta, attn_output, o_proj, attention_output, attn_out
attn.out             | attention_out, self_attn_output, attn.c_proj, self_attn.o_proj, self_attn
attn.out             | attention.wo, attention
resid_mid            | embedding_after_edit, h, residual, after_attention
mlp_norm             | embedding_after_edit_normalized, h_norm, ffn_normed, ln_2, ln2
mlp_norm             | post_attention_layernorm, ffn_norm
mlp.up               | fc_up, up, up_proj, mlp.c_fc, c_fc, mlp.up_proj, feed_forward.w3
mlp.silu             | fc_gate, gate_act, mlp.act_fn, mlp.activation_fn
mlp.out              | output_after_feedforward, down_proj, down, mlp_out, mlp_output, ffn_out
mlp.out              | ffn_output, feed_forward_output, block_sparse_moe, mlp.c_proj
mlp.out              | mlp.down_proj, mlp, feed_forward.w2, feed_forward
resid_post           | embedding, out, output, layer_output, block_output, after_mlp
resid_pre            | hidden_states
mlp.gate             | gate, gate_proj, mlp.gate_proj, feed_forward.w1
mlp.act              | hidden, act, swiglu, mlp.gelu
mlp.router           | router_logits, gate_logits, gating_logits, block_sparse_moe.gate
mlp.router_probs     | router_probs, router_probabilities, routing_weights
mlp.experts          | selected_experts, expert_ids, expert_indices, router_indices, topk_ids
mlp.experts          | topk_idx, topk_indices
mlp.expert_weights   | expert_weights, topk_weight, topk_weights
mlp.expert_out       | expert_out, expert_outputs
mlp.routed           | routed_out
mlp.shared.out       | shared_out, shared_output
mlp.shared.down      | mlp.shared_expert, mlp.shared_expert.down_proj
mlp.shared.router    | mlp.shared_expert_gate
mlp.shared.gate      | mlp.shared_expert.gate_proj
mlp.shared.up        | mlp.shared_expert.up_proj
attn.qkv             | c_attn, attn.c_attn, qkv, self_attn.qkv_proj
mlp.gate_up          | mlp.gate_up_proj
attn.q_normed        | self_attn.q_norm
attn.k_normed        | self_attn.k_norm
"""
# Of the whole model.
OF_MODELS = """
embed              | token_embeddings_unnormalized, embedding, embeddings, tok_embeddings
embed              | embed_tokens, model.embed_tokens, tok_emb, x0, wte
pos_embed          | wpe, pos_emb, position_embeddings
layers.0.resid_pre | drop
final_norm         | ln_f, final_embedding, norm, final_normed, normed_final, model.norm
logits             | lm_head, output
"""
# Words that are used for several things, of which the first stands above: the others.
WORDS = """
attn.z                                     | attn_output, attention_output, attn_out, attention_out
attn.scores_unmasked, attn.pattern         | scores, attn_scores, attention_scores
attn.scores_unmasked, attn.scores          | attn_weights, attention_weights, att
attn.scores, attn.z, attn.out              | attn
attn.out                                   | qkv_attention
resid_pre, resid_post, attn.out            | h
resid_pre, resid_mid, resid_post, mlp.silu | hidden
resid_mid, resid_post, attn_norm, mlp_norm | hidden_states
resid_pre, resid_post                      | residual
mlp_norm                                   | normed, x_norm, x_normed, normed_x
mlp.silu, mlp.router                       | gate
mlp.router                                 | mlp.gate
mlp.expert_weights, mlp.router_probs       | mlp.router
mlp.expert_weights                         | routing_weights
mlp.router_probs                           | expert_weights
mlp.routed, mlp.out                        | mlp.experts
mlp.shared.down                            | shared_out, shared_output
attn.out, mlp.out, attn.z                  | out, output
mlp.out                                    | layer_output, block_output
attn.q_normed, attn.q_rot                  | query_states
attn.k_normed, attn.k_rot                  | key_states
"""


def cells(table: str) -> Iterator[tuple[str, str]]:
    """Each name of the second column, with what the first one has for it."""
    for meant, names in rows_of(table, 2):
        yield from ((name.strip(), meant) for name in names.split(","))


def lens(in_layer: bool) -> dict[str, str]:
    """TransformerLens' names."""
    rows = (row for row in every_activation() if row.lens and row.in_layer == in_layer)
    return {row.lens: row.name for row in rows}


LAYER_ALIASES = dict(cells(IN_LAYERS)) | lens(in_layer=True)
MODEL_ALIASES = dict(cells(OF_MODELS)) | lens(in_layer=False)
OTHER_MEANINGS = {word: tuple(meant.split(", ")) for word, meant in cells(WORDS)}
