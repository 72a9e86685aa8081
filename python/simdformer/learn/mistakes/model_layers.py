"""Whole models: the wrong array at the right place, and what is forgotten between the layers."""

from simdformer.learn.catalogue import Change, Mistakes, instead, then
from simdformer.learn.mistakes.activations import silu
from simdformer.learn.mistakes.model import heads, norm, project

MODEL = "02 §8"
NORM, MLP = "02 §4", "02 §7"

BOTH_SUMS = "Write h = x + attention(norm(x)), then h + mlp(norm(h))."

# ---- residuals -----------------------------------------------------------------------------------

Mistakes("layer.resid_mid", see=MODEL, fix="Write x = x + attention(norm(x)).")(
    """
    no_residual_around_attention: the residual is forgotten: this is the output of attention alone
        x = attention(norm(x)) replaces the stream instead of adding to it.
    residual_of_normed_around_attention:
        the output of attention is added to the normed value, not to the stream
        The name of the input was given to its norm: x = norm(x); x = x + attention(x).
        > Keep the stream as it was before the norm, and add to that.
    residual_of_embedding_around_attention:
        the output of attention is added to the embeddings, not to the stream
        The line was written for the first layer, whose input is the embedding.
        > Add to what the layer before has left.
    attention_not_added: attention is left out: this is the input of the layer
        The result of attention is computed and never added.
    """,
    no_residual_around_attention=instead(resid_mid=lambda s: s.run.array(s.attn_out)),
    residual_of_normed_around_attention=instead(
        resid_mid=lambda s: s.run.array(s.attn_norm) + s.run.array(s.attn_out)
    ),
    residual_of_embedding_around_attention=instead(
        resid_mid=lambda s: s.run.array(s.embed) + s.run.array(s.attn_out)
    ),
    attention_not_added=instead(resid_mid=lambda s: s.run.array(s.resid_pre)),
)

Mistakes("layer.resid_post", see=MODEL, fix=BOTH_SUMS)(
    """
    no_residual_around_mlp: the residual is forgotten: this is the output of the MLP alone
        h = mlp(norm(h)) replaces the stream instead of adding to it.
    residual_of_normed_around_mlp:
        the output of the MLP is added to the normed value, not to the stream
        The name of the input was given to its norm: h = norm(h); h = h + mlp(h).
        > Keep the stream as it was before the norm, and add to that.
    residual_of_input_around_mlp:
        the output of the MLP is added to the layer's input: attention is lost
        The second residual starts from x again, not from h = x + attention.
    residual_of_embedding_around_mlp:
        the output of the MLP is added to the embeddings instead of the stream
        The line was written for the first layer, whose input is the embedding.
    mlp_not_added: the MLP is left out: this is the stream after attention
        The result of the MLP is computed and never added.
    input_added_twice: the layer's input is added twice
        h has the input in it already: x + h + mlp(norm(h)) counts it once more.
    """,
    no_residual_around_mlp=instead(resid_post=lambda s: s.run.array(s.mlp_out)),
    residual_of_normed_around_mlp=instead(
        resid_post=lambda s: s.run.array(s.mlp_norm) + s.run.array(s.mlp_out)
    ),
    residual_of_input_around_mlp=instead(
        resid_post=lambda s: s.run.array(s.resid_pre) + s.run.array(s.mlp_out)
    ),
    residual_of_embedding_around_mlp=instead(
        resid_post=lambda s: s.run.array(s.embed) + s.run.array(s.mlp_out)
    ),
    mlp_not_added=instead(resid_post=lambda s: s.run.array(s.resid_mid)),
    input_added_twice=then(resid_post=lambda s: s.resid_post + s.run.array(s.resid_pre)),
)

Mistakes("layer.resid_pre", see=MODEL)(
    """
    starts_from_embedding: the layer starts from the embeddings, not from what the one before left
        Inside the loop the name of the embeddings is read, and the result has another name.
        > Use one name for the stream, and let each layer give it a new value.
    """,
    starts_from_embedding=instead(resid_pre=lambda s: s.run.array(s.embed)),
)

# ---- norms ---------------------------------------------------------------------------------------

Mistakes("layer.attn_norm", see=NORM, fix="Normalise what the layer before left.")(
    """
    no_attn_norm: the norm before attention is forgotten
        Attention reads the stream itself.
        > Llama normalises before each part: attention(norm(x)).
    norm_of_embedding: this is the norm of the embeddings, not of this layer's input
        The line was written for the first layer, whose input is the embedding.
    """,
    no_attn_norm=instead(attn_norm=lambda s: s.run.array(s.resid_pre)),
    norm_of_embedding=instead(
        attn_norm=lambda s: norm(s, s.embed, s.tensors("attn_norm", s.index))
    ),
)

Mistakes("layer.mlp_norm", see=NORM, fix="Normalise h = x + attention(norm(x)).")(
    """
    no_mlp_norm: the norm before the MLP is forgotten
        The MLP reads the stream itself.
        > Llama normalises before each part: mlp(norm(h)).
    mlp_norm_of_input: the norm before the MLP is that of the layer's input: attention is lost
        It normalises x, not h = x + attention(norm(x)); so it is in models whose attention and MLP
        stand side by side (GPT-J, Falcon).
    mlp_norm_of_attention: the norm before the MLP is that of attention's output, no residual added
        It normalises what attention gave, not the stream that it was added to.
    """,
    no_mlp_norm=instead(mlp_norm=lambda s: s.run.array(s.resid_mid)),
    mlp_norm_of_input=instead(
        mlp_norm=lambda s: norm(s, s.resid_pre, s.tensors("mlp_norm", s.index))
    ),
    mlp_norm_of_attention=instead(
        mlp_norm=lambda s: norm(s, s.attn_out, s.tensors("mlp_norm", s.index))
    ),
)

# ---- what the projections read -------------------------------------------------------------------


def of_stream(letter: str) -> dict[str, Change]:
    value = instead(**{f"attn_{letter}": lambda s: heads(s, s.resid_pre, f"w{letter}", s.index)})
    return {f"attn_{letter}": value}


def of_other(name: str, source: str) -> dict[str, Change]:
    value = instead(**{f"mlp_{name}": lambda s: project(s, getattr(s, source), name, s.index)})
    return {f"mlp_{name}": value}


NOT_USED = "The norm is computed and then not used."

in_attention = Mistakes("layer", see=NORM, fix="Project the normed value.")


in_attention(
    """
    qkv_of_unnormed: q, k and v are computed from the stream, not from its norm
        The norm is computed and then not used.
    """,
    qkv_of_unnormed=of_stream("q") | of_stream("k") | of_stream("v"),
)

for letter in "qkv":
    in_attention.add(
        f"{letter}_of_unnormed",
        of_stream(letter),
        f"{letter} is computed from the stream, not from its norm",
        NOT_USED,
    )

in_mlp = Mistakes("layer", see=MLP, fix="The MLP reads the norm of the stream after attention.")


in_mlp(
    """
    mlp_of_unnormed: gate and up are computed from the stream, not from its norm
        The norm is computed and then not used.
    """,
    mlp_of_unnormed=of_other("gate", "resid_mid") | of_other("up", "resid_mid"),
)

for name in ("gate", "up"):
    in_mlp.add(
        f"{name}_of_unnormed",
        of_other(name, "resid_mid"),
        f"{name} is computed from the stream, not from its norm",
        NOT_USED,
    )
    in_mlp.add(
        f"{name}_of_attn_norm",
        of_other(name, "attn_norm"),
        f"{name} is computed from attn_norm, the norm before attention",
        "Two norms of the layer have similar names.",
    )

Mistakes("layer.mlp_out", see=MLP, fix="Write silu(gate) * up before down.")(
    """
    down_of_gate_alone: down is applied to silu(gate) alone: the product with up is forgotten
        The gate is computed and its partner never used.
    down_of_up_alone: down is applied to up alone: the gate is forgotten
        Without its gate it is a plain linear layer.
    """,
    down_of_gate_alone=instead(
        mlp_out=lambda s: project(s, s.run(silu, x=s.mlp_gate).out, "down", s.index)
    ),
    down_of_up_alone=instead(mlp_out=lambda s: project(s, s.mlp_up, "down", s.index)),
)
