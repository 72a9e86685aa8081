"""Whole models: the wrong array at the right place, and what is forgotten between the layers."""

from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes import model  # noqa: F401  its steps
from simdformer.learn.mistakes.activations import silu

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
        | attn_norm = norm(s, embed, tensors("attn_norm", index))

    layer (02 §4) > Project the normed value.

    qkv_of_unnormed: q, k and v are computed from the stream, not from its norm
        The norm is computed and then not used.
        attn_q | attn_q = heads(s, resid_pre, "wq", index)
        attn_k | attn_k = heads(s, resid_pre, "wk", index)
        attn_v | attn_v = heads(s, resid_pre, "wv", index)

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
        | mlp_out = project(s, mlp_up, "down", index)
    """,
    calls=(silu,),
)

for letter in "qkv":
    mistakes(
        f"""
        layer.attn_{letter} (02 §4) > Project the normed value.

        {letter}_of_unnormed: {letter} is computed from the stream, not from its norm
            The norm is computed and then not used.
            | attn_{letter} = heads(s, resid_pre, "w{letter}", index)
        """
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
