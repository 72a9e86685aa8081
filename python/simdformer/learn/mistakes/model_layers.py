"""Whole models: the wrong array at the right place, and what is forgotten between the layers."""

from typing import Any

import numpy as np

from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes import model
from simdformer.learn.mistakes.activations import silu
from simdformer.learn.program import State


def by_head(s: State, number: int) -> Any:
    """q, k or v (B,L,H,D), where the three are taken to lie side by side in each head"""
    fused = [model.project(s, s.attn_norm, name, s.index) for name in ("wq", "wk", "wv")]
    side_by_side = np.concatenate(fused, axis=-1)
    each = side_by_side.reshape(*side_by_side.shape[:2], s.config.num_heads, 3, -1)
    return each[..., number, :]


mistakes(
    """
    layer.resid_mid (02 §8)

    residual_of_embedding_around_attention:
        the output of attention is added to the embeddings, not to the stream
        The line was written for the first layer, whose input is the embedding.
        > Add to what the layer before has left.
        | resid_mid = array(embed) + array(attn_out)

    layer.resid_post (02 §8)

    residual_of_embedding_around_mlp:
        the output of the MLP is added to the embeddings instead of the stream
        as above
        > Write h = x + attention(norm(x)), then h + mlp(norm(h)).
        | resid_post = array(embed) + array(mlp_out)

    layer.resid_pre (02 §8)

    starts_from_embedding: the layer starts from the embeddings, not from what the one before left
        Inside the loop the name of the embeddings is read, and the result has another name.
        > Use one name for the stream, and let each layer give it a new value.
        | resid_pre = array(embed)

    layer.attn_norm (02 §4) > Normalise what the layer before left.

    norm_of_embedding: this is the norm of the embeddings, not of this layer's input
        The line was written for the first layer, whose input is the embedding.
        | attn_norm = norm(s, embed, "attn_norm", index)

    layer (02 §4) > Project the normed value.

    qkv_of_unnormed: q, k and v are computed from the stream, not from its norm
        The norm is computed and then not used.
        attn_q | attn_q = heads(s, resid_pre, "wq", index)
        attn_k | attn_k = heads(s, resid_pre, "wk", index)
        attn_v | attn_v = heads(s, resid_pre, "wv", index)

    layer (02 §4) > Split the last axis in three before it is cut into heads.

    qkv_by_head: q, k and v are read from the fused matrix as if they lay there by heads
        In GPT-2 all of q comes first, then all of k, then all of v; in GPT-NeoX and BLOOM q, k and
        v of a head lie side by side.
        attn_q | attn_q = by_head(s, 0)
        attn_k | attn_k = by_head(s, 1)
        attn_v | attn_v = by_head(s, 2)

    layer (02 §7) > The MLP reads the norm of the stream after attention.

    mlp_of_unnormed: gate and up are computed from the stream, not from its norm
        The norm is computed and then not used.
        mlp_gate | mlp_gate = project(s, resid_mid, "gate", index)
        mlp_up | mlp_up = project(s, resid_mid, "up", index)

    layer.mlp_out (02 §7) > Write silu(gate) * up before down.

    down_of_gate_alone: down is applied to silu(gate) alone: the product with up is forgotten
        The gate is computed and its partner never used.
        | mlp_out = project(s, run(silu, x=mlp_gate).out, "down", index)
    down_of_up_alone: down is applied to up alone: the gate is forgotten
        Without its gate it is a plain linear layer.
        | unless(mlp_gate is None); mlp_out = project(s, mlp_up, "down", index)
    """,
    calls=(silu, by_head),
)

for letter in "qkv":
    mistakes(
        f"""
        layer.attn_{letter} (02 §4) > Project the normed value.

        {letter}_of_unnormed: {letter} is computed from the stream, not from its norm
            The norm is computed and then not used.
            | attn_{letter} = heads(s, resid_pre, "w{letter}", index)
        {letter}_by_head: {letter} is read from the fused matrix as if it lay there by heads
            One matrix makes q, k and v. In GPT-2 all of q comes first, then all of k, then all of
            v; in GPT-NeoX and BLOOM q, k and v of a head lie side by side.
            > Split the last axis in three (of GQA: by their widths) before it is cut into heads.
            | attn_{letter} = by_head(s, {"qkv".index(letter)})
        """,
        calls=(by_head,),
    )


def cut_otherwise(s: State, number: int, stored: str) -> Any:
    """gate or up of the two in one matrix, cut in halves where they alternate in it, or taken by
    turns where they are its halves"""
    inner = [model.project(s, s.mlp_norm, name, s.index) for name in ("gate", "up")]
    if stored == "alternating":
        return np.split(np.stack(inner, -1).reshape(*inner[0].shape[:-1], -1), 2, axis=-1)[number]
    return np.concatenate(inner, -1)[..., number::2]


CUT = {
    "gate": ("gate is", "mlp_gate | mlp_gate = cut_otherwise(s, 0, {0!r})"),
    "up": ("up is", "mlp_up | mlp_up = cut_otherwise(s, 1, {0!r})"),
}
CUT["gate_and_up"] = ("gate and up are", "\n            ".join(lines for _, lines in CUT.values()))
for name, (who, lines) in CUT.items():
    mistakes(
        f"""
        layer (02 §7) > Look at how the checkpoint stores gate_up_proj, and cut it so.

        {name}_by_halves: {who} cut by halves, but the two alternate in the fused matrix
            In gpt-oss gate is x[..., ::2] and up x[..., 1::2] of what gate_up_proj gives; in Phi-3
            they are its halves.
            {lines.format("alternating")}
        {name}_by_turns: {who} taken by turns, but the fused matrix has the two by halves
            as above
            {lines.format("halves")}
        """,
        calls=(cut_otherwise,),
    )

for name in ("gate", "up"):
    mistakes(
        f"""
        layer.mlp_{name} (02 §7) > The MLP reads the norm of the stream after attention.

        {name}_of_unnormed: {name} is computed from the stream, not from its norm
            The norm is computed and then not used.
            | mlp_{name} = project(s, resid_mid, "{name}", index)
        {name}_of_attn_norm: {name} is computed from attn_norm, the norm before attention
            Two norms of the layer have similar names.
            | mlp_{name} = project(s, attn_norm, "{name}", index)
        """
    )
