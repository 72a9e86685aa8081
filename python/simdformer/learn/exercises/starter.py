# mypy: disable-error-code="no-untyped-def"
"""A transformer, to be written by you.

Replace each `raise NotImplementedError` by your own code, in any order, and look how far you are:

    simdformer check {file}

and when you are stuck, which nobody need know:

    simdformer check {file} softmax --hint

Everything runs on this machine, without a network. Your functions are called with numpy arrays; if
this file imports torch, with tensors. They may return either. Arrays come in float32, and `...` in
a shape means any number of axes in front, none included. Leave the inputs as they are: another
function may need them.

B sequences, L queries, S keys, E hidden_size, H query heads, K key/value heads, D head_dim, V
vocabulary. Weights are (outputs, inputs), as in checkpoints: y = x @ weight.T.
"""

import numpy as np  # noqa: F401  (or torch, or both)

# ---- 1. Attention --------------------------------------------------------------------------------


def softmax(x, axis=-1):
    """exp(x) / sum of exp(x) along one axis: positive numbers that sum to 1.

    x (...) -> (...). It works for large numbers too: softmax([1000, 1001]) is softmax([0, 1]).
    """
    raise NotImplementedError


def causal_mask(L, S):
    """(L, S): 0 where query i may look at key j, -inf where not.

    The last query is the newest and sees all S keys; the one before sees one less. With L == S
    query i sees the keys 0 ... i.
    """
    raise NotImplementedError


def scaled_dot_product_attention(query, key, value, mask=None, scale=None):
    """softmax(query keyᵀ · scale + mask) value.

    query (..., H, L, D), key (..., H, S, D), value (..., H, S, Dv) -> (..., H, L, Dv).
    scale: None means 1/sqrt(D); 0.0 means 0.0.
    mask: added to the scores before softmax, broadcastable to (..., H, L, S); or None.
    A query that may see no key at all (a row of -inf) gets zeros, not NaN.
    """
    raise NotImplementedError


# ---- 2. Heads ------------------------------------------------------------------------------------


def linear(x, weight, bias=None):
    """x (..., I), weight (O, I), bias (O,) or None -> (..., O)"""
    raise NotImplementedError


def split_heads(x, num_heads):
    """(..., L, H·D) -> (..., H, L, D). Head h owns the columns h·D to (h+1)·D of x."""
    raise NotImplementedError


def merge_heads(x):
    """(..., H, L, D) -> (..., L, H·D), the way back."""
    raise NotImplementedError


def multi_head_attention(query, key, value, num_heads, wq, wk, wv, wo, mask=None):
    """Project with wq, wk, wv; split into heads; attend in each; merge; project with wo.

    query (..., L, E), key and value (..., S, E), weights (E, E) -> (..., L, E).
    mask: added to the scores, broadcastable to (..., H, L, S); or None.
    """
    raise NotImplementedError


def repeat_kv(x, n):
    """Each head n times in place, a a b b: (..., K, S, D) -> (..., K·n, S, D)"""
    raise NotImplementedError


# ---- 3. Positions --------------------------------------------------------------------------------


def rope_frequencies(head_dim, theta):
    """(head_dim/2,): theta to the power of -2i/head_dim, for i = 0, 1, 2 ..."""
    raise NotImplementedError


def rope_interleaved(x, positions, theta):
    """Rotary position embedding as Meta's Llama has it: the pairs are (0, 1), (2, 3) ...

    x (..., T, D), positions (T,) whole numbers -> (..., T, D). Pair i at position p is turned by
    the angle p · theta^(-2i/D): (a, b) becomes (a cos - b sin, b cos + a sin).
    """
    raise NotImplementedError


def rope_half(x, positions, theta):
    """The same as Hugging Face, Qwen and MiniMind have it: the pairs are (i, i + D/2)."""
    raise NotImplementedError


# ---- 4. Layers -----------------------------------------------------------------------------------


def embedding(ids, weight):
    """ids (...) whole numbers, weight (V, E) -> (..., E)"""
    raise NotImplementedError


def rms_norm(x, weight, eps):
    """x / sqrt(mean(x²) + eps) · weight over the last axis: x (..., E), weight (E,) -> (..., E)"""
    raise NotImplementedError


def layer_norm(x, weight, bias, eps):
    """(x - mean) / sqrt(variance + eps) · weight + bias over the last axis, (..., E) -> (..., E)"""
    raise NotImplementedError


def silu(x):
    """x / (1 + exp(-x)), element by element. Numbers may be as large as ±1000."""
    raise NotImplementedError


def mlp(x, gate, up, down):
    """down (silu(gate x) · up x), the SwiGLU of Llama.

    x (..., E), gate and up (I, E), down (E, I) -> (..., E). Meta calls them w1, w3 and w2.
    """
    raise NotImplementedError


# ---- 5. A whole layer ----------------------------------------------------------------------------


def grouped_query_attention(x, num_heads, num_kv_heads, wq, wk, wv, wo, theta):
    """Causal self-attention of Qwen and MiniMind: H query heads share K key/value heads.

    x (..., L, E), wq (H·D, E), wk and wv (K·D, E), wo (E, H·D) -> (..., L, E). Queries and keys go
    through `rope_half` at the positions 0 ... L-1. Query head h reads key/value head h // (H/K).
    """
    raise NotImplementedError


def transformer_block(x, weights, num_heads, num_kv_heads, eps, theta):
    """h = x + attention(rms_norm(x)), then h + mlp(rms_norm(h)): (..., L, E) -> (..., L, E).

    weights: a dict of attn_norm (E,), wq, wk, wv, wo, mlp_norm (E,), gate, up, down. The attention
    is `grouped_query_attention`.
    """
    raise NotImplementedError


def attend_with_cache(query, key, value, cached_keys, cached_values):
    """One step of text generation: the new tokens look at the old ones and at themselves.

    query (H, L, D), key and value (H, L, D) of the L new tokens; cached_keys, cached_values
    (H, P, D) of the P tokens before them, P may be 0.
    Gives three arrays: the causal attention (H, L, D), and the cache with the new tokens behind
    the old: all keys (H, P+L, D), all values (H, P+L, D).
    """
    raise NotImplementedError


# ---- 6. Text -------------------------------------------------------------------------------------


def sampling_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    """The probabilities from which the next token is drawn, logits (V,) -> (V,).

    In this order: the logits are divided by temperature (> 0). top_k: only the k likeliest stay.
    top_p: of the probabilities of those that stay, which sum to 1, the largest are added up until
    p is reached; the one that reaches it is the last to stay. None: nothing is cut. What is cut
    away has probability 0, and what stays sums to 1.
    """
    raise NotImplementedError


def generate(model, prompt, max_new_tokens, end_id):
    """The loop that writes a text, with a cache: always the likeliest token.

    logits, cache = model(ids, cache) reads ids (L,) behind what the cache holds (None: nothing yet)
    and gives logits (L, V): row i predicts what follows ids[i]. prompt: a list of ids. Read it at
    once, afterwards one id a call. Gives the list of new ids: at most max_new_tokens, and fewer
    where end_id comes, which is no part of it.
    """
    raise NotImplementedError


def bpe_merges(word, ranks):
    """Byte-pair encoding: the ranks of the pairs that are merged in a word, in that order.

    word: a string, at first a piece for every character. ranks: {"lo": 0, "er": 1, "low": 2}. As
    long as two neighbours together are in ranks, the pair of the lowest rank becomes one piece:
    l o w e r, lo w e r, lo w er, low er. That is [0, 1, 2].
    """
    raise NotImplementedError


def chat_ids(messages, encode, special):
    """The ids of a conversation as Llama 3 Instruct reads it, up to where it has to answer.

    messages: [{"role": "user", "content": "Hi!"}, ...]. encode("Hi!") gives a list of ids, and
    special["<|eot_id|>"] the id of a special token. The format: <|begin_of_text|> once; for every
    message a header, its content without white space at both ends, <|eot_id|>; at last the header
    of "assistant". A header is <|start_header_id|>, the role, <|end_header_id|>, two line ends.
    """
    raise NotImplementedError


def text_loss(logits, ids, pad_id):
    """How badly a model predicts a text: the mean of -log(probability of the right next token).

    logits (L, V), ids (L,) -> a number, in nats. Row i predicts ids[i + 1]; places where that is
    pad_id do not count. Logits may be as large as ±100.
    """
    raise NotImplementedError


# ---- 7. Backwards --------------------------------------------------------------------------------


def softmax_backward(grad, output):
    """The gradient of softmax along the last axis, from its output.

    grad (...): how the loss changes with each share; output (...): the shares -> (...): how it
    changes with each score.
    """
    raise NotImplementedError


def cross_entropy_backward(logits, labels):
    """The gradient of the mean of -log(softmax(logits)[label]) over all rows that count.

    logits (N, V), labels (N,) whole numbers -> (N, V). Rows with a label of -100 do not count, and
    have a gradient of 0. Logits may be as large as ±100.
    """
    raise NotImplementedError


def linear_backward(grad, x, weight):
    """The gradients of y = x @ weight.T + bias: those of x, weight and bias.

    grad (..., O), x (..., I), weight (O, I) -> (..., I), (O, I), (O,)
    """
    raise NotImplementedError


def rms_norm_backward(grad, x, weight, eps):
    """The gradients of x / sqrt(mean(x²) + eps) · weight: those of x and weight.

    grad (..., E), x (..., E), weight (E,) -> (..., E), (E,)
    """
    raise NotImplementedError


def rope_backward(grad, positions, theta):
    """The gradient of `rope_half`: grad (..., T, D), positions (T,) -> (..., T, D)"""
    raise NotImplementedError


def swiglu_backward(grad, gate, up):
    """The gradients of silu(gate) · up: those of gate and up, all of one shape."""
    raise NotImplementedError


def attention_backward(grad, query, key, value):
    """The gradients of causal attention: those of query, key and value.

    query, key (..., L, D), value (..., L, Dv), grad (..., L, Dv). The forward is
    softmax(query keyᵀ / sqrt(D) + mask) value, where query i sees the keys 0 ... i.
    """
    raise NotImplementedError


# ---- 8. Training ---------------------------------------------------------------------------------


def batch_and_labels(texts, answers, pad_id):
    """A batch of texts, and what each place is to predict: ids and labels, both (B, L).

    texts: B lists of ids of several lengths, L is the longest; pad_id stands behind the others.
    answers: for every id True or False, whether the assistant said it. The label of a place is the
    id behind it, if the assistant said that one; else it is -100, at the end of a text as well. In
    an answer the id pad_id may occur, as its end.
    """
    raise NotImplementedError


def clip_gradients(gradients, max_norm):
    """All gradients times one number, so that the norm of all together is at most max_norm.

    gradients: a list of arrays. Gives a list of as many. A smaller norm changes nothing.
    """
    raise NotImplementedError


def cosine_lr(step, lr, warmup, total, min_lr):
    """The learning rate of a step, a number. Steps count from 0.

    In the first `warmup` steps it rises, lr · (step + 1) / warmup; from there to `total` it falls
    along half a cosine from lr to min_lr, where it stays.
    """
    raise NotImplementedError


def adamw_step(weight, gradient, m, v, step, lr, beta1, beta2, eps, weight_decay):
    """One step of AdamW: the new weight, m and v, all of one shape.

    m is the running mean of the gradients (exp_avg), v that of their squares (exp_avg_sq); step
    counts from 1. The decay is lr · weight_decay of the weight, and eps stands outside the root.
    """
    raise NotImplementedError


def training_step(loss_and_gradients, weights, m, v, ids, labels, step, options):
    """One step of training: the loss before it, and the new weights, m and v.

    loss, gradients = loss_and_gradients(weights, ids, labels) is a model's. weights, gradients, m
    and v are dicts of arrays with the same keys; give four results, the last three such dicts. The
    gradients are clipped, then every weight makes a step of AdamW. step counts from 1, in cosine_lr
    from 0: the first step has the rate of cosine_lr(0, ...). Matrices are decayed, norms (one axis)
    are not. options has "lr", "warmup", "total", "min_lr", "max_norm", "beta1", "beta2", "eps",
    "weight_decay".
    """
    raise NotImplementedError


def lora_linear(x, weight, a, b, alpha):
    """x @ weight.T with an adapter beside it: y = (weight + alpha / r · b a) x, r the rank.

    x (..., I), weight (O, I), a (r, I), b (O, r) -> (..., O), without ever computing b a.
    """
    raise NotImplementedError


def lora_backward(grad, x, weight, a, b, alpha):
    """The gradients of `lora_linear`: those of x, a and b. The weight is frozen and has none.

    grad (..., O), x (..., I), weight (O, I), a (r, I), b (O, r) -> (..., I), (r, I), (O, r)
    """
    raise NotImplementedError
