"""Whole models: the wrong array at the right place, and what is forgotten between the layers."""

from simdformer.learn.mistakes.activations import silu
from simdformer.learn.mistakes.model import heads, norm, project
from simdformer.learn.program import State, mistake

MODEL = "02 §8"
NORM, MLP = "02 §4", "02 §7"
NORMED = "Project the normed value."
NOT_USED = "The norm before the MLP is computed and then not used."
FIRST_LAYER = "The line was written for the first layer, whose input is the embedding."
BOTH_SUMS = "Write h = x + attention(norm(x)), then h + mlp(norm(h))."


# ---- residuals -----------------------------------------------------------------------------------


@mistake(
    "layer.resid_mid",
    title="the residual is forgotten: this is the output of attention alone",
    cause="x = attention(norm(x)) replaces the stream instead of adding to it.",
    fix="Write x = x + attention(norm(x)).",
    step=MODEL,
)
def no_residual_around_attention(s: State) -> None:
    s.resid_mid = s.run.array(s.attn_out)


@mistake(
    "layer.resid_mid",
    title="the output of attention is added to the normed value, not to the stream",
    cause="The name of the input was given to its norm: x = norm(x); x = x + attention(x).",
    fix="Keep the stream as it was before the norm, and add to that.",
    step=MODEL,
)
def residual_of_normed_around_attention(s: State) -> None:
    s.resid_mid = s.run.array(s.attn_norm) + s.run.array(s.attn_out)


@mistake(
    "layer.resid_mid",
    title="the output of attention is added to the embeddings instead of this layer's input",
    cause=FIRST_LAYER,
    fix="Add to what the layer before has left.",
    step=MODEL,
)
def residual_of_embedding_around_attention(s: State) -> None:
    s.resid_mid = s.run.array(s.embed) + s.run.array(s.attn_out)


@mistake(
    "layer.resid_mid",
    title="attention is left out: this is the input of the layer",
    cause="The result of attention is computed and never added.",
    fix="Write x = x + attention(norm(x)).",
    step=MODEL,
)
def attention_not_added(s: State) -> None:
    s.resid_mid = s.run.array(s.resid_pre)


@mistake(
    "layer.resid_post",
    title="the residual is forgotten: this is the output of the MLP alone",
    cause="h = mlp(norm(h)) replaces the stream instead of adding to it.",
    fix="Write h = h + mlp(norm(h)).",
    step=MODEL,
)
def no_residual_around_mlp(s: State) -> None:
    s.resid_post = s.run.array(s.mlp_out)


@mistake(
    "layer.resid_post",
    title="the output of the MLP is added to the normed value, not to the stream",
    cause="The name of the input was given to its norm: h = norm(h); h = h + mlp(h).",
    fix="Keep the stream as it was before the norm, and add to that.",
    step=MODEL,
)
def residual_of_normed_around_mlp(s: State) -> None:
    s.resid_post = s.run.array(s.mlp_norm) + s.run.array(s.mlp_out)


@mistake(
    "layer.resid_post",
    title="the output of the MLP is added to the layer's input: what attention gave is lost",
    cause="The second residual starts from x again, not from h = x + attention.",
    fix=BOTH_SUMS,
    step=MODEL,
)
def residual_of_input_around_mlp(s: State) -> None:
    s.resid_post = s.run.array(s.resid_pre) + s.run.array(s.mlp_out)


@mistake(
    "layer.resid_post",
    title="the output of the MLP is added to the embeddings instead of the stream",
    cause=FIRST_LAYER,
    fix=BOTH_SUMS,
    step=MODEL,
)
def residual_of_embedding_around_mlp(s: State) -> None:
    s.resid_post = s.run.array(s.embed) + s.run.array(s.mlp_out)


@mistake(
    "layer.resid_post",
    title="the MLP is left out: this is the stream after attention",
    cause="The result of the MLP is computed and never added.",
    fix="Write h = h + mlp(norm(h)).",
    step=MODEL,
)
def mlp_not_added(s: State) -> None:
    s.resid_post = s.run.array(s.resid_mid)


@mistake(
    "layer.resid_post",
    title="the layer's input is added twice",
    cause="h has the input in it already: x + h + mlp(norm(h)) counts it once more.",
    fix=BOTH_SUMS,
    step=MODEL,
)
def input_added_twice(s: State) -> None:
    s.resid_post = s.run.array(s.resid_mid) + s.run.array(s.mlp_out) + s.run.array(s.resid_pre)


@mistake(
    "layer.resid_pre",
    title="the layer starts from the embeddings again, not from what the layer before has left",
    cause="Inside the loop the name of the embeddings is read, and the result has another name.",
    fix="Use one name for the stream, and let each layer give it a new value.",
    step=MODEL,
)
def starts_from_embedding(s: State) -> None:
    s.resid_pre = s.run.array(s.embed)


# ---- norms ---------------------------------------------------------------------------------------


@mistake(
    "layer.attn_norm",
    title="the norm before attention is forgotten",
    cause="Attention reads the stream itself.",
    fix="Llama normalises before each part: attention(norm(x)).",
    step=NORM,
)
def no_attn_norm(s: State) -> None:
    s.attn_norm = s.run.array(s.resid_pre)


@mistake(
    "layer.attn_norm",
    title="this is the norm of the embeddings, not of this layer's input",
    cause=FIRST_LAYER,
    fix="Normalise what the layer before has left.",
    step=NORM,
)
def norm_of_embedding(s: State) -> None:
    s.attn_norm = norm(s, s.embed, s.tensors("attn_norm", s.index))


@mistake(
    "layer.mlp_norm",
    title="the norm before the MLP is forgotten",
    cause="The MLP reads the stream itself.",
    fix="Llama normalises before each part: mlp(norm(h)).",
    step=NORM,
)
def no_mlp_norm(s: State) -> None:
    s.mlp_norm = s.run.array(s.resid_mid)


@mistake(
    "layer.mlp_norm",
    title="the norm before the MLP is that of the layer's input: what attention gave is lost",
    cause="It normalises x, not h = x + attention(norm(x)); so it is in models whose attention and "
    "MLP stand side by side (GPT-J, Falcon).",
    fix="Normalise h, the stream after attention.",
    step=NORM,
)
def mlp_norm_of_input(s: State) -> None:
    s.mlp_norm = norm(s, s.resid_pre, s.tensors("mlp_norm", s.index))


@mistake(
    "layer.mlp_norm",
    title="the norm before the MLP is that of the output of attention, without the residual",
    cause="It normalises what attention gave, not the stream that it was added to.",
    fix="Normalise h = x + attention(norm(x)).",
    step=NORM,
)
def mlp_norm_of_attention(s: State) -> None:
    s.mlp_norm = norm(s, s.attn_out, s.tensors("mlp_norm", s.index))


@mistake(
    "layer.attn_q", "layer.attn_k", "layer.attn_v",
    title="q, k and v are computed from the stream, not from its norm",
    cause="The norm is computed and then not used.",
    fix=NORMED,
    step=NORM,
    name="qkv_of_unnormed",
)  # fmt: skip
class QkvOfUnnormed:
    @staticmethod
    def attn_q(s: State) -> None:
        s.attn_q = heads(s, s.resid_pre, "wq")

    @staticmethod
    def attn_k(s: State) -> None:
        s.attn_k = heads(s, s.resid_pre, "wk")

    @staticmethod
    def attn_v(s: State) -> None:
        s.attn_v = heads(s, s.resid_pre, "wv")


def of_unnormed(letter: str) -> None:
    """The same for one of the three."""

    def wrong(s: State) -> None:
        setattr(s, f"attn_{letter}", heads(s, s.resid_pre, f"w{letter}"))

    mistake(
        f"layer.attn_{letter}",
        title=f"{letter} is computed from the stream, not from its norm",
        cause="The norm is computed and then not used.",
        fix=NORMED,
        step=NORM,
        name=f"{letter}_of_unnormed",
    )(wrong)


for letter in "qkv":
    of_unnormed(letter)


@mistake(
    "layer.mlp_gate", "layer.mlp_up",
    title="gate and up are computed from the stream, not from its norm",
    cause=NOT_USED,
    fix=NORMED,
    step=MLP,
    name="mlp_of_unnormed",
)  # fmt: skip
class MlpOfUnnormed:
    @staticmethod
    def mlp_gate(s: State) -> None:
        s.mlp_gate = project(s, s.resid_mid, "gate")

    @staticmethod
    def mlp_up(s: State) -> None:
        s.mlp_up = project(s, s.resid_mid, "up")


@mistake(
    "layer.mlp_gate",
    title="gate is computed from the stream, not from its norm",
    cause=NOT_USED,
    fix=NORMED,
    step=MLP,
)
def gate_of_unnormed(s: State) -> None:
    s.mlp_gate = project(s, s.resid_mid, "gate")


@mistake(
    "layer.mlp_up",
    title="up is computed from the stream, not from its norm",
    cause=NOT_USED,
    fix=NORMED,
    step=MLP,
)
def up_of_unnormed(s: State) -> None:
    s.mlp_up = project(s, s.resid_mid, "up")


@mistake(
    "layer.mlp_gate",
    title="gate is computed from attn_norm, the norm before attention",
    cause="Two norms of the layer have similar names.",
    fix="The MLP reads the norm of the stream after attention.",
    step=MLP,
)
def gate_of_attn_norm(s: State) -> None:
    s.mlp_gate = project(s, s.attn_norm, "gate")


@mistake(
    "layer.mlp_up",
    title="up is computed from attn_norm, the norm before attention",
    cause="Two norms of the layer have similar names.",
    fix="The MLP reads the norm of the stream after attention.",
    step=MLP,
)
def up_of_attn_norm(s: State) -> None:
    s.mlp_up = project(s, s.attn_norm, "up")


@mistake(
    "layer.mlp_out",
    title="down is applied to silu(gate) alone: the product with up is forgotten",
    cause="The gate is computed and its partner never used.",
    fix="Write silu(gate) * up before down.",
    step=MLP,
)
def down_of_gate_alone(s: State) -> None:
    s.mlp_out = project(s, s.run(silu, x=s.mlp_gate).out, "down")


@mistake(
    "layer.mlp_out",
    title="down is applied to up alone: the gate is forgotten",
    cause="Without its gate it is a plain linear layer.",
    fix="Write silu(gate) * up before down.",
    step=MLP,
)
def down_of_up_alone(s: State) -> None:
    s.mlp_out = project(s, s.mlp_up, "down")
