"""What Hugging Face's files call the tensors of a model, and its config the fields that all have:
theirs -> ours."""

__all__ = [
    "ATTENTION",
    "EXPERTS",
    "FIELDS",
    "FUSED",
    "GATE_AND_UP",
    "GPT2",
    "GPT_OSS",
    "LLAMA",
    "MINIMIND_SHARED_EXPERT",
    "MIXTRAL_EXPERTS",
    "MLP_BIASES",
    "NORMS_AFTER",
    "NORMS_AROUND",
    "NORMS_BEFORE",
    "OUTPUTS",
    "OUTSIDE",
    "SHARED_EXPERT",
]

ATTENTION = {
    "model.layers.{}.self_attn.q_proj.weight": "layers.{}.wq",
    "model.layers.{}.self_attn.k_proj.weight": "layers.{}.wk",
    "model.layers.{}.self_attn.v_proj.weight": "layers.{}.wv",
    "model.layers.{}.self_attn.q_proj.bias": "layers.{}.bq",
    "model.layers.{}.self_attn.k_proj.bias": "layers.{}.bk",
    "model.layers.{}.self_attn.v_proj.bias": "layers.{}.bv",
    "model.layers.{}.self_attn.q_norm.weight": "layers.{}.q_norm",
    "model.layers.{}.self_attn.k_norm.weight": "layers.{}.k_norm",
}
GATE_AND_UP = {
    "model.layers.{}.mlp.gate_proj.weight": "layers.{}.gate",
    "model.layers.{}.mlp.up_proj.weight": "layers.{}.up",
}
OUTPUTS = {
    "model.layers.{}.self_attn.o_proj.weight": "layers.{}.wo",
    "model.layers.{}.self_attn.o_proj.bias": "layers.{}.bo",
    "model.layers.{}.mlp.down_proj.weight": "layers.{}.down",
}
OUTSIDE = {
    "model.embed_tokens.weight": "embed",
    "model.norm.weight": "final_norm",
    "lm_head.weight": "lm_head",
}
FUSED = {  # their rows stand below each other
    "model.layers.{}.self_attn.qkv_proj.weight": "layers.{}.wq_wk_wv",
    "model.layers.{}.mlp.gate_up_proj.weight": "layers.{}.gate_up",
}
NORMS_BEFORE = {
    "model.layers.{}.input_layernorm.weight": "layers.{}.attn_norm",
    "model.layers.{}.post_attention_layernorm.weight": "layers.{}.mlp_norm",
}
NORMS_AFTER = {
    "model.layers.{}.post_attention_layernorm.weight": "layers.{}.attn_out_norm",
    "model.layers.{}.post_feedforward_layernorm.weight": "layers.{}.mlp_out_norm",
}
NORMS_AROUND = {
    "model.layers.{}.input_layernorm.weight": "layers.{}.attn_norm",
    "model.layers.{}.post_attention_layernorm.weight": "layers.{}.attn_out_norm",
    "model.layers.{}.pre_feedforward_layernorm.weight": "layers.{}.mlp_norm",
    "model.layers.{}.post_feedforward_layernorm.weight": "layers.{}.mlp_out_norm",
}
MLP_BIASES = {
    "model.layers.{}.mlp.gate_proj.bias": "layers.{}.gate_bias",
    "model.layers.{}.mlp.up_proj.bias": "layers.{}.up_bias",
    "model.layers.{}.mlp.down_proj.bias": "layers.{}.down_bias",
}
EXPERTS = {
    "model.layers.{}.mlp.gate.weight": "layers.{}.router",
    "model.layers.{}.mlp.experts.{}.gate_proj.weight": "layers.{}.experts.{}.gate",
    "model.layers.{}.mlp.experts.{}.up_proj.weight": "layers.{}.experts.{}.up",
    "model.layers.{}.mlp.experts.{}.down_proj.weight": "layers.{}.experts.{}.down",
}
MIXTRAL_EXPERTS = {
    "model.layers.{}.block_sparse_moe.gate.weight": "layers.{}.router",
    "model.layers.{}.block_sparse_moe.experts.{}.w1.weight": "layers.{}.experts.{}.gate",
    "model.layers.{}.block_sparse_moe.experts.{}.w3.weight": "layers.{}.experts.{}.up",
    "model.layers.{}.block_sparse_moe.experts.{}.w2.weight": "layers.{}.experts.{}.down",
}
SHARED_EXPERT = {
    "model.layers.{}.mlp.shared_expert.gate_proj.weight": "layers.{}.shared.gate",
    "model.layers.{}.mlp.shared_expert.up_proj.weight": "layers.{}.shared.up",
    "model.layers.{}.mlp.shared_expert.down_proj.weight": "layers.{}.shared.down",
    "model.layers.{}.mlp.shared_expert_gate.weight": "layers.{}.shared.router",
}
MINIMIND_SHARED_EXPERT = {
    "model.layers.{}.mlp.shared_experts.0.gate_proj.weight": "layers.{}.shared.gate",
    "model.layers.{}.mlp.shared_experts.0.up_proj.weight": "layers.{}.shared.up",
    "model.layers.{}.mlp.shared_experts.0.down_proj.weight": "layers.{}.shared.down",
}
GPT_OSS = {
    "model.layers.{}.self_attn.sinks": "layers.{}.sinks",
    "model.layers.{}.mlp.router.weight": "layers.{}.router",
    "model.layers.{}.mlp.router.bias": "layers.{}.router_bias",
    "model.layers.{}.mlp.experts.gate_up_proj": "layers.{}.experts.gate_up_columns",
    "model.layers.{}.mlp.experts.gate_up_proj_blocks": "layers.{}.experts.gate_up_blocks",
    "model.layers.{}.mlp.experts.gate_up_proj_scales": "layers.{}.experts.gate_up_scales",
    "model.layers.{}.mlp.experts.gate_up_proj_bias": "layers.{}.experts.gate_up_bias",
    "model.layers.{}.mlp.experts.down_proj": "layers.{}.experts.down_columns",
    "model.layers.{}.mlp.experts.down_proj_blocks": "layers.{}.experts.down_blocks",
    "model.layers.{}.mlp.experts.down_proj_scales": "layers.{}.experts.down_scales",
    "model.layers.{}.mlp.experts.down_proj_bias": "layers.{}.experts.down_bias",
}
LLAMA = OUTSIDE | ATTENTION | OUTPUTS | GATE_AND_UP | NORMS_BEFORE
GPT2 = {
    "transformer.wte.weight": "embed",
    "transformer.wpe.weight": "pos_embed",
    "transformer.h.{}.ln_1.weight": "layers.{}.attn_norm",
    "transformer.h.{}.ln_1.bias": "layers.{}.attn_norm_bias",
    "transformer.h.{}.attn.c_attn.weight": "layers.{}.wq_wk_wv",
    "transformer.h.{}.attn.c_attn.bias": "layers.{}.bq_bk_bv",
    "transformer.h.{}.attn.c_proj.weight": "layers.{}.wo",
    "transformer.h.{}.attn.c_proj.bias": "layers.{}.bo",
    "transformer.h.{}.ln_2.weight": "layers.{}.mlp_norm",
    "transformer.h.{}.ln_2.bias": "layers.{}.mlp_norm_bias",
    "transformer.h.{}.mlp.c_fc.weight": "layers.{}.up",
    "transformer.h.{}.mlp.c_fc.bias": "layers.{}.up_bias",
    "transformer.h.{}.mlp.c_proj.weight": "layers.{}.down",
    "transformer.h.{}.mlp.c_proj.bias": "layers.{}.down_bias",
    "transformer.ln_f.weight": "final_norm",
    "transformer.ln_f.bias": "final_norm_bias",
    "lm_head.weight": "lm_head",
}
FIELDS = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
}
