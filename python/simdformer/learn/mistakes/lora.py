"""LoRA in steps, forwards and backwards, and what goes wrong there.

y = x weightᵀ + alpha / r · (x aᵀ) bᵀ       x (...,I), weight (O,I), a (r,I), b (O,r), y (...,O)

Hu et al. 2021, arXiv:2106.09685.
"""

from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.backward_linear import rows_of
from simdformer.learn.program import Program

__all__ = ["lora", "lora_backward"]


lora = Program(
    "lora",
    """
    inputs: h, w, down, up = array(x), array(weight), array(a), array(b)
    scale: s = real(alpha / len(down))
    adapter: added = s * (h @ down.T) @ up.T
    add: out = h @ w.T + added
    """,
    takes=("x", "weight", "a", "b", "alpha"),
    axes=("sequence", "row", "channel"),
)
lora_backward = Program(
    "lora_backward",
    """
    inputs: dy, h, w, down, up = array(grad), array(x), array(weight), array(a), array(b)
    scale: s = real(alpha / len(down))
    of_b: db = s * rows_of(dy).T @ rows_of(h @ down.T)
    of_a: da = s * rows_of(dy @ up).T @ rows_of(h)
    of_x: dx = dy @ w + s * (dy @ up) @ down
    give: out = dx, da, db
    """,
    calls=(rows_of,),
    takes=("grad", "x", "weight", "a", "b", "alpha"),
    axes=("sequence", "row", "channel"),
)

mistakes(
    """
    lora.scale (09 §9), lora_backward.scale (09 §9) > Multiply by alpha / r; r is a.shape[0].

    alpha_not_divided: alpha is not divided by the rank
        Some libraries hand on alpha, others alpha / r: the adapter is r times too strong.
        | s = real(alpha)
    rank_over_alpha: r / alpha stands for alpha / r
        The fraction is upside down.
        | s = real(len(down) / alpha)
    divided_by_root: alpha is divided by the root of the rank
        That is rsLoRA, which is another method.
        | s = real(alpha / np.sqrt(len(down)))
    only_divided: the adapter is divided by the rank, and alpha is missing
        alpha is handed on and never used.
        | s = real(1 / len(down))
    divided_by_inputs: alpha is divided by the number of inputs, not by the rank
        a is (r, I): its rank is a.shape[0], and a.shape[1] or -1 are the inputs.
        | s = real(alpha / down.shape[1])
    divided_by_outputs: alpha is divided by the number of outputs, not by the rank
        b is (O, r): its rank is b.shape[1], and len(b) are the outputs.
        | s = real(alpha / len(up))

    lora.adapter (09 §9) > Add alpha / r * (x @ a.T) @ b.T.

    no_alpha: alpha / r is missing
        The adapter counts with 1.
        | added = (h @ down.T) @ up.T
    adapter_left_out: the adapter is left out
        This is what the frozen weight gives: as long as b is 0 there is no difference.
        | added = real(0) * (h @ down.T) @ up.T
    scale_squared: alpha / r counts twice
        It was multiplied to a and to b, or to x and to the result.
        | added = s * s * (h @ down.T) @ up.T
    adapter_subtracted (rare): the adapter is subtracted
        It is added: merging adds it to the weight, and taking it away subtracts.
        | added = -s * (h @ down.T) @ up.T

    lora.add (09 §9) > Add the adapter to what the frozen weight gives: x @ weight.T.

    adapter_alone: the frozen weight is left out
        The adapter is what is learned, beside the weight and not in its place.
        | out = added
    all_scaled: alpha / r multiplies the frozen weight, too
        Parentheses: only the adapter is scaled.
        | out = s * (h @ w.T) + added
    averaged_with_weight (rare): the two are averaged
        A sum is meant: with b = 0 the model has to be what it was.
        | out = (h @ w.T + added) / 2

    lora_backward.of_b (09 §9) > b: alpha / r * grad.T @ (x @ a.T), all leading axes folded.

    b_without_scale: alpha / r is missing in the gradient of b
        What the forward multiplies by, the way back multiplies by as well.
        | db = rows_of(dy).T @ rows_of(h @ down.T)
    b_scaled_twice: alpha / r counts twice in the gradient of b
        grad was multiplied by it, and the product again.
        | db = s * s * rows_of(dy).T @ rows_of(h @ down.T)
    b_batch_kept: the gradient of b keeps the batch: each sequence has its own
        swapaxes(-1, -2) @ ... multiplies the matrices of a batch one by one; the sum is missing.
        | unless(dy.ndim < 3); db = s * dy.swapaxes(-1, -2) @ (h @ down.T)
    b_averaged (rare): the gradient of b is divided by the number of rows
        The mean is in the loss already, and so in grad.
        | ...; db = db / real(len(rows_of(dy)))
    b_of_last_sequence: the gradient of b is that of the last sequence
        A loop that assigns with = where += is meant, or an index -1.
        | unless(dy.ndim < 3); db = s * rows_of(dy[-1]).T @ rows_of(h[-1] @ down.T)

    lora_backward.of_a (09 §9) > a: alpha / r * (grad @ b).T @ x, all leading axes folded.

    a_without_scale: alpha / r is missing in the gradient of a
        What the forward multiplies by, the way back multiplies by as well.
        | da = rows_of(dy @ up).T @ rows_of(h)
    a_scaled_twice: alpha / r counts twice in the gradient of a
        grad was multiplied by it, and the product again.
        | da = s * s * rows_of(dy @ up).T @ rows_of(h)
    a_batch_kept: the gradient of a keeps the batch: each sequence has its own
        swapaxes(-1, -2) @ ... multiplies the matrices of a batch one by one; the sum is missing.
        | unless(dy.ndim < 3); da = s * (dy @ up).swapaxes(-1, -2) @ h
    a_averaged (rare): the gradient of a is divided by the number of rows
        The mean is in the loss already, and so in grad.
        | ...; da = da / real(len(rows_of(dy)))
    a_of_last_sequence: the gradient of a is that of the last sequence
        A loop that assigns with = where += is meant, or an index -1.
        | unless(dy.ndim < 3); da = s * rows_of(dy[-1] @ up).T @ rows_of(h[-1])

    lora_backward.of_x (09 §9) > x: grad @ weight + alpha / r * (grad @ b) @ a.

    x_of_weight_alone: the gradient of x lacks what comes through the adapter
        x was used twice: two gradients are added.
        | dx = dy @ w
    x_of_adapter_alone: the gradient of x lacks what comes through the frozen weight
        Frozen means that the weight has no gradient; x has one through it all the same.
        | dx = s * (dy @ up) @ down
    x_without_scale: alpha / r is missing in the gradient of x
        What the forward multiplies by, the way back multiplies by as well.
        | dx = dy @ w + (dy @ up) @ down
    x_all_scaled: alpha / r multiplies the frozen weight's part of the gradient of x, too
        Parentheses, or grad was multiplied by it at the start.
        | dx = s * (dy @ w + (dy @ up) @ down)
    x_scaled_twice: alpha / r counts twice in the gradient of x
        grad was multiplied by it, and the product again.
        | dx = dy @ w + s * s * (dy @ up) @ down
    """
)
