"""What files call the tensors of a model: a row for each, and a column for each format.

    ours    Hugging Face's    llama.cpp's (GGUF)    Meta's

"-" stands where a format has no such tensor; the last columns may be left out. At the end the
groups are put together for each kind of models.
"""

from typing import NamedTuple

__all__ = [
    "GEMMA",
    "GPT2",
    "GPT_OSS",
    "LLAMA",
    "MINIMIND",
    "MIXTRAL",
    "OLMO2",
    "PHI3",
    "TensorNames",
]


class TensorNames(NamedTuple):
    """For each format: theirs -> ours."""

    huggingface: dict[str, str]
    gguf: dict[str, str]
    meta: dict[str, str]

    def __or__(self, other: "TensorNames") -> "TensorNames":
        return TensorNames(*(one | more for one, more in zip(self, other, strict=True)))


NONE = "-"
OF_A_LAYER = ("layers.{}.", "model.layers.{}.", "blk.{}.", "layers.{}.")


def names(rows: str, prefixes: tuple[str, ...] = OF_A_LAYER) -> TensorNames:
    """The names in rows, each column behind its prefix."""
    found = TensorNames({}, {}, {})
    for row in rows.strip().splitlines():
        ours, *theirs = row.split()
        for column, name, prefix in zip(found, theirs, prefixes[1:], strict=False):
            if name != NONE:
                column[prefix + name] = prefixes[0] + ours
    return found


OUTSIDE = names(
    """
    embed       model.embed_tokens.weight  token_embd.weight   tok_embeddings.weight
    final_norm  model.norm.weight          output_norm.weight  norm.weight
    lm_head     lm_head.weight             output.weight       output.weight
    """,
    ("", "", "", ""),
)
ATTENTION = names("""
    wq      self_attn.q_proj.weight  attn_q.weight       attention.wq.weight
    wk      self_attn.k_proj.weight  attn_k.weight       attention.wk.weight
    wv      self_attn.v_proj.weight  attn_v.weight       attention.wv.weight
    bq      self_attn.q_proj.bias    attn_q.bias
    bk      self_attn.k_proj.bias    attn_k.bias
    bv      self_attn.v_proj.bias    attn_v.bias
    q_norm  self_attn.q_norm.weight  attn_q_norm.weight
    k_norm  self_attn.k_norm.weight  attn_k_norm.weight
""")
GATE_AND_UP = names("""
    gate  mlp.gate_proj.weight  ffn_gate.weight  feed_forward.w1.weight
    up    mlp.up_proj.weight    ffn_up.weight    feed_forward.w3.weight
""")
FUSED = names("""
    wq_wk_wv  self_attn.qkv_proj.weight  attn_qkv.weight
    gate_up   mlp.gate_up_proj.weight    ffn_up.weight
""")
OUTPUTS = names("""
    wo    self_attn.o_proj.weight  attn_output.weight  attention.wo.weight
    bo    self_attn.o_proj.bias    attn_output.bias
    down  mlp.down_proj.weight     ffn_down.weight     feed_forward.w2.weight
""")
NORMS_BEFORE = names("""
    attn_norm  input_layernorm.weight           attn_norm.weight  attention_norm.weight
    mlp_norm   post_attention_layernorm.weight  ffn_norm.weight   ffn_norm.weight
""")
NORMS_AFTER = names("""
    attn_out_norm  post_attention_layernorm.weight    post_attention_norm.weight
    mlp_out_norm   post_feedforward_layernorm.weight  post_ffw_norm.weight
""")
NORMS_AROUND = NORMS_AFTER | names("""
    attn_norm  input_layernorm.weight            attn_norm.weight
    mlp_norm   pre_feedforward_layernorm.weight  ffn_norm.weight
""")
MLP_BIASES = names("""
    gate_bias  mlp.gate_proj.bias
    up_bias    mlp.up_proj.bias
    down_bias  mlp.down_proj.bias
""")
EXPERTS = names("""
    router            mlp.gate.weight                  ffn_gate_inp.weight
    experts.{}.gate   mlp.experts.{}.gate_proj.weight
    experts.{}.up     mlp.experts.{}.up_proj.weight
    experts.{}.down   mlp.experts.{}.down_proj.weight
    experts.gate      -                                ffn_gate_exps.weight
    experts.up        -                                ffn_up_exps.weight
    experts.down      -                                ffn_down_exps.weight
""")
MIXTRAL_EXPERTS = names("""
    router           block_sparse_moe.gate.weight
    experts.{}.gate  block_sparse_moe.experts.{}.w1.weight
    experts.{}.up    block_sparse_moe.experts.{}.w3.weight
    experts.{}.down  block_sparse_moe.experts.{}.w2.weight
""")
SHARED_EXPERT = names("""
    shared.gate    mlp.shared_expert.gate_proj.weight  ffn_gate_shexp.weight
    shared.up      mlp.shared_expert.up_proj.weight    ffn_up_shexp.weight
    shared.down    mlp.shared_expert.down_proj.weight  ffn_down_shexp.weight
    shared.router  mlp.shared_expert_gate.weight       ffn_gate_inp_shexp.weight
""")
MINIMIND_SHARED_EXPERT = names("""
    shared.gate  mlp.shared_experts.0.gate_proj.weight
    shared.up    mlp.shared_experts.0.up_proj.weight
    shared.down  mlp.shared_experts.0.down_proj.weight
""")
# A weight that stands in several of a format's tensors is written to the last.
EXPERTS_OF_GPT_OSS = names("""
    attn_norm                input_layernorm.weight           attn_norm.weight
    mlp_norm                 post_attention_layernorm.weight  post_attention_norm.weight
    sinks                    self_attn.sinks                  attn_sinks.weight
    router                   mlp.router.weight                ffn_gate_inp.weight
    router_bias              mlp.router.bias                  ffn_gate_inp.bias
    experts.gate             -                                ffn_gate_exps.weight
    experts.up               -                                ffn_up_exps.weight
    experts.down             -                                ffn_down_exps.weight
    experts.gate_bias        -                                ffn_gate_exps.bias
    experts.up_bias          -                                ffn_up_exps.bias
    experts.down_bias        mlp.experts.down_proj_bias       ffn_down_exps.bias
    experts.gate_up_blocks   mlp.experts.gate_up_proj_blocks
    experts.gate_up_scales   mlp.experts.gate_up_proj_scales
    experts.gate_up_bias     mlp.experts.gate_up_proj_bias
    experts.down_blocks      mlp.experts.down_proj_blocks
    experts.down_scales      mlp.experts.down_proj_scales
    experts.gate_up_columns  mlp.experts.gate_up_proj
    experts.down_columns     mlp.experts.down_proj
""")
AROUND_GPT2 = names(
    """
    embed            wte.weight   token_embd.weight
    pos_embed        wpe.weight   position_embd.weight
    final_norm       ln_f.weight  output_norm.weight
    final_norm_bias  ln_f.bias    output_norm.bias
    """,
    ("", "transformer.", ""),
)
LAYERS_OF_GPT2 = names(
    """
    attn_norm       ln_1.weight         attn_norm.weight
    attn_norm_bias  ln_1.bias           attn_norm.bias
    wq_wk_wv        attn.c_attn.weight  attn_qkv.weight
    bq_bk_bv        attn.c_attn.bias    attn_qkv.bias
    wo              attn.c_proj.weight  attn_output.weight
    bo              attn.c_proj.bias    attn_output.bias
    mlp_norm        ln_2.weight         ffn_norm.weight
    mlp_norm_bias   ln_2.bias           ffn_norm.bias
    up              mlp.c_fc.weight     ffn_up.weight
    up_bias         mlp.c_fc.bias       ffn_up.bias
    down            mlp.c_proj.weight   ffn_down.weight
    down_bias       mlp.c_proj.bias     ffn_down.bias
    """,
    ("layers.{}.", "transformer.h.{}.", "blk.{}."),
)
LM_HEAD = names("lm_head  lm_head.weight  output.weight", ("", "", ""))

PLAIN = OUTSIDE | ATTENTION | OUTPUTS
LLAMA = PLAIN | GATE_AND_UP | NORMS_BEFORE | MLP_BIASES | EXPERTS | SHARED_EXPERT
MINIMIND = PLAIN | GATE_AND_UP | NORMS_BEFORE | EXPERTS | MINIMIND_SHARED_EXPERT
MIXTRAL = PLAIN | NORMS_BEFORE | MIXTRAL_EXPERTS
GPT2 = AROUND_GPT2 | LAYERS_OF_GPT2 | LM_HEAD
GPT_OSS = PLAIN | EXPERTS_OF_GPT_OSS
OLMO2 = PLAIN | GATE_AND_UP | NORMS_AFTER
GEMMA = PLAIN | GATE_AND_UP | NORMS_AROUND
PHI3 = OUTSIDE | FUSED | OUTPUTS | NORMS_BEFORE
