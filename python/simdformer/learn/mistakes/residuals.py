"""What goes wrong between the parts of a layer, of `nn` or in a whole model: residuals, norms, and
their order."""

from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes import block, model  # noqa: F401  their steps

mistakes(
    """
    block (04 §9), layer (02 §8) > The order is h = x + attention(attn_norm(x)), then
        h + mlp(mlp_norm(h)).

    no_residual_around_attention: the residual is forgotten: this is the output of attention alone
        x = attention(norm(x)) replaces the stream instead of adding to it.
        resid_mid | resid_mid = array(attn_out)
    no_residual_around_mlp: the residual is forgotten: this is the output of the MLP alone
        h = mlp(norm(h)) replaces the stream instead of adding to it.
        resid_post | resid_post = array(mlp_out)
    no_residuals: both residuals are forgotten
        The layers are called one after the other, and nothing is added.
        resid_mid | resid_mid = array(attn_out)
        resid_post | resid_post = array(mlp_out)
    residual_of_normed_around_attention:
        the output of attention is added to the normed value, not to the stream
        The name of the input was given to its norm: x = norm(x); x = x + attention(x).
        > Keep the stream as it was before the norm, and add to that.
        resid_mid | resid_mid = array(attn_norm) + array(attn_out)
    residual_of_normed_around_mlp:
        the output of the MLP is added to the normed value, not to the stream
        The name of the input was given to its norm: h = norm(h); h = h + mlp(h).
        > Keep the stream as it was before the norm, and add to that.
        resid_post | resid_post = array(mlp_norm) + array(mlp_out)
    residuals_of_normed: both residuals are the normed values, not the stream
        x = norm(x) overwrites the stream before it is added: each needs its own name.
        resid_mid | resid_mid = array(attn_norm) + array(attn_out)
        resid_post | resid_post = array(mlp_norm) + array(mlp_out)
    residual_of_input_around_mlp:
        the output of the MLP is added to the layer's input: attention is lost
        The second residual starts from x again, not from h = x + attention.
        resid_post | resid_post = array(resid_pre) + array(mlp_out)
    input_added_twice (rare): the layer's input is added twice
        h has the input in it already: x + h + mlp(norm(h)) counts it once more.
        resid_post | ...; resid_post = resid_post + array(resid_pre)
    attention_not_added: attention is left out: this is the input of the layer
        The result of attention is computed and never added.
        resid_mid | resid_mid = array(resid_pre)
    mlp_not_added: the MLP is left out: this is the stream after attention
        The result of the MLP is computed and never added.
        resid_post | resid_post = array(resid_mid)
    no_attn_norm: the norm before attention is forgotten
        Attention reads the stream itself.
        > Llama normalises before each part: attention(norm(x)).
        attn_norm | attn_norm = array(resid_pre)
    no_mlp_norm: the norm before the MLP is forgotten
        The MLP reads the stream itself.
        > Llama normalises before each part: mlp(norm(h)).
        mlp_norm | mlp_norm = array(resid_mid)
    mlp_norm_of_input: the norm before the MLP is that of the layer's input: attention is lost
        It normalises x, not h = x + attention(norm(x)).
        mlp_norm | mlp_norm = normed_second(s, resid_pre)
    mlp_norm_of_attention: the norm before the MLP is that of attention's output, no residual added
        It normalises what attention gave, not the stream that it was added to.
        mlp_norm | mlp_norm = normed_second(s, attn_out)
    in_parallel: the MLP gets what attention got: attention and MLP run in parallel
        Some models (GPT-J, Falcon) compute both from the same normed x; Llama's kind computes one
        after the other.
        mlp_norm | mlp_norm = array(attn_norm)
    post_norm: the norms come after the additions (post-norm)
        The first transformer normalised after adding: norm(x + attention(x)). Llama's kind
        normalises what the layers read and leaves the stream alone.
        attn_norm | attn_norm = array(resid_pre)
        resid_mid | resid_mid = normed_first(s, array(resid_pre) + array(attn_out))
        mlp_norm | mlp_norm = array(resid_mid)
        resid_post | resid_post = normed_second(s, array(resid_mid) + array(mlp_out))
    results_normed (rare): the norms are applied to the results of attention and MLP
        x + norm(attention(x)) instead of x + attention(norm(x)).
        attn_norm | attn_norm = array(resid_pre)
        resid_mid | resid_mid = array(resid_pre) + normed_first(s, array(attn_out))
        mlp_norm | mlp_norm = array(resid_mid)
        resid_post | resid_post = array(resid_mid) + normed_second(s, array(mlp_out))
    """
)
