"""What helps somebody who is stuck: three hints for each exercise, the last nearly the code, and
then the code."""

import ast
import inspect
import re
from types import CodeType, FunctionType

from simdformer.learn.exercises import solutions
from simdformer.learn.exercises.exercise import EXERCISES

__all__ = ["HINTS", "solution"]

# The name of an exercise, and below it its hints.
TEXT = """
softmax
  * exp makes every number positive; dividing by a sum makes the sum 1. Over which axis?
  * exp(1000) is infinite. Adding one number to all of x changes nothing in the result: which
    number makes the largest exponent 0?
  * e = exp(x - max(x)), then e / sum(e); maximum and sum along `axis`, with keepdims=True.
causal_mask
  * np.triu keeps what lies above a diagonal, and sets the rest to 0.
  * With L == S the future of query i begins at key i + 1, one above the diagonal. With more keys
    than queries everything moves to the right by S - L.
  * np.triu of a full (L, S) of -inf, with k = S - L + 1.
scaled_dot_product_attention
  * Three lines: scores, their softmax, and the average of the values with these shares.
  * key.T turns all axes around; only the last two are to be swapped. And 0.0 is false in Python:
    ask `scale is None`.
  * scores = query @ swapped key * scale, plus the mask. In a row of -inf the maximum is -inf,
    and -inf - -inf is NaN: subtract 0 there, and divide by 1 where the sum is 0.
linear
  * Every output is the dot product of x with one row of the weight.
  * weight is (O, I): its last axis has to meet the last axis of x.
  * x @ weight.T, plus bias unless it is None.
split_heads
  * It takes two steps, for reshape never moves a number.
  * (..., L, H·D) to (..., L, H, D): which axis is cut, and what comes first in it?
  * reshape to (..., L, num_heads, D), then swap the axes -3 and -2.
merge_heads
  * The two steps of split_heads, backwards.
  * The heads of one token must lie side by side before they can become one axis.
  * Swap the axes -3 and -2, then reshape the last two to one of H·D.
multi_head_attention
  * You have written all of its parts: linear, split_heads, attention, merge_heads.
  * query, key and value are projected each with its own weight, then split.
  * linear(merge_heads(scaled_dot_product_attention(q, k, v, mask)), wo), where q is
    split_heads(linear(query, wq), num_heads), and k and v likewise.
repeat_kv
  * There is np.repeat, and there is np.tile: a a b b, and a b a b.
  * The heads are on axis -3, whatever comes in front.
  * np.repeat(x, n, axis=-3)
rope_frequencies
  * It is one power, with a range of exponents: half as many as head_dim.
  * i = 0, 1, 2 ... and -2i/head_dim: np.arange can count in steps of two.
  * theta ** (-np.arange(0, head_dim, 2) / head_dim)
rope_interleaved
  * angle[t, i] is positions[t] times frequency i: an outer product, (T, D/2).
  * x[..., 0::2] holds the first of each pair, x[..., 1::2] the second. Keep both while you
    compute: the new second needs the old first.
  * y[..., 0::2] = a cos - b sin and y[..., 1::2] = b cos + a sin, with y = np.empty_like(x).
rope_half
  * The angles are those of rope_interleaved; only the partners are others.
  * a is the first half of the last axis, b the second.
  * np.concatenate([a cos - b sin, b cos + a sin], axis=-1)
embedding
  * Looking up is all there is to it.
  * An array may be the index of an array.
  * weight[ids]
rms_norm
  * The root of the mean of the squares, over the last axis.
  * eps stands under the root, beside the mean. keepdims=True keeps an axis to divide by.
  * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
layer_norm
  * First subtract the mean; what then is the variance?
  * It is the mean of the squares, without any -1 in the count; eps stands under the root.
  * c = x - mean, then c / sqrt(mean of c² + eps) * weight + bias, all over the last axis.
silu
  * x / (1 + exp(-x)) is right, but exp(1000) is infinite.
  * It is x times sigmoid(x). For which x does exp(-x) overflow, and what is silu there?
  * x * np.exp(-np.logaddexp(0, -x)): log(1 + exp(-x)) without computing exp(-x) alone.
mlp
  * Three products; between them two arrays are multiplied number by number.
  * silu belongs to the gate alone.
  * linear(silu(linear(x, gate)) * linear(x, up), down)
grouped_query_attention
  * multi_head_attention, with fewer key heads, with rope_half, and with a causal mask.
  * Split q into num_heads, k and v into num_kv_heads; turn q and k, not v; then repeat_kv.
  * positions: np.arange(L); n: num_heads // num_kv_heads; mask: causal_mask(L, L).
transformer_block
  * Two lines. Each adds to what is there, and each reads through a norm.
  * The second norm reads h, not x.
  * h = x + attention(rms_norm(x, attn_norm)), then h + mlp(rms_norm(h, mlp_norm)).
attend_with_cache
  * First make the longer keys and values, then attend to them.
  * The new tokens stand behind the old ones, on axis -2. The last query sees all keys.
  * keys = np.concatenate([cached_keys, key], axis=-2), values likewise; the mask is
    causal_mask(L, P + L).
sampling_probabilities
  * The temperature comes first. What is cut away gets a logit of -inf, or a share of 0.
  * The k-th largest logit is np.sort(logits)[-k]. For top_p sort the probabilities, the largest
    first, and add them up with np.cumsum.
  * A token stays if the sum of those before it is below top_p: cumsum - probability < top_p.
    np.argsort says whose they are; at the end divide by what is left.
generate
  * model(prompt, None) first. Which row of its logits predicts something new?
  * The last row, logits[-1]. Its argmax is the next id; give the model this id alone, as a list,
    and the cache that came with the logits.
  * while len(new) < max_new_tokens: take the argmax, stop if it is end_id, append it, and
    logits, cache = model([id], cache).
bpe_merges
  * pieces = list(word). Each turn makes one piece out of two neighbours.
  * Look at all neighbours whose union is in ranks, and take the union of the lowest rank. After
    that all pairs are looked at again.
  * pieces[place : place + 2] = [union] replaces two by one; append ranks[union].
chat_ids
  * Write a function for the header of a role: you need it for every message, and once more.
  * strip() the content, not the role. Special tokens come from `special`, never from encode.
  * [begin] + for each message: header + encode(content.strip()) + [eot], + the header of
    "assistant", and nothing behind it.
text_loss
  * The softmax of a row says how likely each token is. Which one came?
  * logits[:-1] predict ids[1:]. The log of a softmax is x - max - log(sum(exp(x - max))).
  * logs[np.arange(len(ids) - 1), ids[1:]] picks them; leave out those whose next id is pad_id;
    minus the mean.
softmax_backward
  * Raising one score lowers all other shares: the Jacobian of a row is diag(p) - p pᵀ.
  * You need no matrix: the second term is p times one number for each row.
  * output * (grad - t), where t is the sum of grad * output along the row, keepdims=True.
cross_entropy_backward
  * The gradient of log sum exp is the softmax. Which number does the label take away?
  * p - 1 at the label, p elsewhere. The mean divides, and by what?
  * Divide by the number of labels that are not -100, and set the rows of the others to 0.
linear_backward
  * Look at the shapes: which product of grad and weight is as large as x?
  * Weight and bias were used in every row: their gradients are sums over all rows.
  * With all leading axes folded: grad @ weight, grad.T @ x, grad.sum(0).
rms_norm_backward
  * y = h * weight with h = x * r. Begin with g = grad * weight, the gradient of h.
  * r depends on every number of the row, which makes a second term: h * mean(g * h).
  * x: r * (g - h * mean(g * h)). weight: the sum of grad * h over all rows.
rope_backward
  * A rotation keeps lengths. What undoes it?
  * The transpose of a rotation turns by the opposite angle.
  * rope_half(grad, -positions, theta).
swiglu_backward
  * Two rules: the product rule, and the slope of silu.
  * With s = sigmoid(x) the slope of x * s is s + x * s * (1 - s).
  * gate: grad * up * s * (1 + gate * (1 - s)). up: grad * silu(gate).
attention_backward
  * Compute the shares p once more. Then go back through: value, softmax, scores.
  * value: pᵀ grad. The shares: grad valueᵀ, and from there softmax_backward to the scores.
  * query: ds @ key * scale. key: dsᵀ @ query * scale. The scale is there as in the forward.
batch_and_labels
  * np.full makes an array of pad_id, and one of -100, into which each text is written.
  * Label t is id t + 1, and answers[t + 1] says whether it counts: a text of n ids has n - 1
    labels.
  * labels[row, : len(text) - 1] = np.where(answer[1:], text[1:], -100)
clip_gradients
  * One norm for all arrays together keeps the direction.
  * The squares of all numbers of all arrays add up; one root of the sum.
  * Each array times min(1, max_norm / norm).
cosine_lr
  * Three parts: the warm-up, the cosine, and what comes behind total.
  * progress = (step - warmup) / (total - warmup) goes from 0 to 1.
  * min_lr + (lr - min_lr) * (1 + cos(pi * progress)) / 2.
adamw_step
  * Two running means: of the gradient with beta1, of its square with beta2.
  * Both begin at 0 and are too small at first: divide them by 1 - beta**step.
  * weight - lr * (m / (sqrt(v) + eps) + weight_decay * weight), m and v corrected.
training_step
  * All parts are written: clip_gradients, cosine_lr, adamw_step. In which order?
  * clip_gradients takes and gives a list: list(gradients.values()). One call for all gradients,
    before the loop over the names.
  * For each name: adamw_step(weights[name], clipped, m[name], v[name], step, lr, beta1, beta2,
    eps, decay) with lr = cosine_lr(step - 1, ...) and decay = 0 where ndim is 1.
lora_linear
  * Two ways from x to y, added: through the weight, and through a and then b.
  * The rank r is the number of rows of a. Only the adapter's way is multiplied by alpha / r.
  * x @ weight.T + alpha / len(a) * (x @ a.T @ b.T)
lora_backward
  * The adapter is two linear layers, one behind the other: linear_backward, twice.
  * Begin with alpha / r * grad. What linear_backward gives for x of b is the grad of a.
  * With s = alpha / r: x: grad @ weight + s * grad @ b @ a. a: s * (grad @ b).T @ x. b: s *
    grad.T @ (x @ a.T), with all leading axes folded.
"""
HINTS: dict[str, tuple[str, ...]] = {
    name: tuple(" ".join(hint.split()) for hint in hints.split("\n  * ")[1:])
    for name, hints in re.findall(r"^(\w+)((?:\n .+)+)", TEXT, re.M)
}


def solution(name: str) -> str:
    """The source of one way to write it, with what it imports and what it calls that is no
    exercise; a comment names the exercises that it calls."""
    functions: list[FunctionType] = []
    called = in_order(name, functions)
    others = [one for one in called if one in EXERCISES]
    imports = import_lines(called)
    notes = [f"# calls {', '.join(others)}"] if others else []
    head = "\n\n".join(["\n".join(imports), *notes]).strip()
    bodies = [inspect.getsource(function).rstrip() for function in functions]
    return "\n\n\n".join([*([head] if head else []), *bodies]) + "\n"


def in_order(name: str, functions: list[FunctionType]) -> list[str]:
    """Adds a function to `functions`, those that it calls and that are no exercises before it;
    gives the names that all of them use."""
    function: FunctionType = getattr(solutions, name)
    names = names_in(function.__code__)
    for one in names[:]:
        helper = getattr(solutions, one, None)
        if isinstance(helper, FunctionType) and one not in EXERCISES and helper not in functions:
            names += in_order(one, functions)
    functions.append(function)
    return list(dict.fromkeys(names))


def names_in(code: CodeType) -> list[str]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return [*code.co_names, *(name for one in inner for name in names_in(one))]


def import_lines(names: list[str]) -> list[str]:
    """The imports of the module of solutions that bring some of these names."""
    return [
        ast.unparse(node)
        for node in ast.parse(inspect.getsource(solutions)).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any((alias.asname or alias.name) in names for alias in node.names)
    ]
