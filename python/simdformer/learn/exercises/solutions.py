# mypy: ignore-errors
"""One way to write each exercise, in plain numpy: `simdformer check FILE NAME --solution` shows it.

They lean on each other, as the functions of a learner's file do.
"""

from itertools import pairwise

import numpy as np


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def causal_mask(L, S):
    return np.triu(np.full((L, S), -np.inf), S - L + 1)


def scaled_dot_product_attention(query, key, value, mask=None, scale=None):
    scores = query @ key.swapaxes(-1, -2)
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores + mask
    highest = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isinf(highest), 0, highest))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total) @ value


def linear(x, weight, bias=None):
    return x @ weight.T if bias is None else x @ weight.T + bias


def split_heads(x, num_heads):
    return x.reshape(*x.shape[:-1], num_heads, -1).swapaxes(-3, -2)


def merge_heads(x):
    x = x.swapaxes(-3, -2)
    return x.reshape(*x.shape[:-2], -1)


def multi_head_attention(query, key, value, num_heads, wq, wk, wv, wo, mask=None):
    q, k, v = (split_heads(x @ w.T, num_heads) for x, w in ((query, wq), (key, wk), (value, wv)))
    return merge_heads(scaled_dot_product_attention(q, k, v, mask)) @ wo.T


def repeat_kv(x, n):
    return np.repeat(x, n, axis=-3)


def rope_frequencies(head_dim, theta):
    return theta ** (-np.arange(0, head_dim, 2) / head_dim)


def turned(x, positions, theta, first, second):
    angle = positions[:, None] * rope_frequencies(x.shape[-1], theta)
    cos, sin = np.cos(angle), np.sin(angle)
    y = np.empty_like(x)
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y


def rope_interleaved(x, positions, theta):
    return turned(x, positions, theta, slice(0, None, 2), slice(1, None, 2))


def rope_half(x, positions, theta):
    half = x.shape[-1] // 2
    return turned(x, positions, theta, slice(0, half), slice(half, None))


def embedding(ids, weight):
    return weight[ids]


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def layer_norm(x, weight, bias, eps):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight + bias


def silu(x):
    return x * np.exp(-np.logaddexp(0, -x))


def mlp(x, gate, up, down):
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def grouped_query_attention(x, num_heads, num_kv_heads, wq, wk, wv, wo, theta):
    positions, n = np.arange(x.shape[-2]), num_heads // num_kv_heads
    q = rope_half(split_heads(x @ wq.T, num_heads), positions, theta)
    k = rope_half(split_heads(x @ wk.T, num_kv_heads), positions, theta)
    v = split_heads(x @ wv.T, num_kv_heads)
    mask = causal_mask(len(positions), len(positions))
    z = scaled_dot_product_attention(q, repeat_kv(k, n), repeat_kv(v, n), mask)
    return merge_heads(z).astype(x.dtype) @ wo.T


def transformer_block(x, weights, num_heads, num_kv_heads, eps, theta):
    attention = [weights[name] for name in ("wq", "wk", "wv", "wo")]
    normed = rms_norm(x, weights["attn_norm"], eps)
    h = x + grouped_query_attention(normed, num_heads, num_kv_heads, *attention, theta)
    normed = rms_norm(h, weights["mlp_norm"], eps)
    return h + mlp(normed, weights["gate"], weights["up"], weights["down"])


def attend_with_cache(query, key, value, cached_keys, cached_values):
    keys = np.concatenate([cached_keys, key], axis=-2)
    values = np.concatenate([cached_values, value], axis=-2)
    mask = causal_mask(query.shape[-2], keys.shape[-2])
    return scaled_dot_product_attention(query, keys, values, mask), keys, values


def sampling_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    scores = logits / temperature
    if top_k is not None:
        kth = np.sort(scores)[-min(top_k, len(scores))]
        scores = np.where(scores >= kth, scores, -np.inf)
    probabilities = softmax(scores)
    if top_p is not None:
        order = np.argsort(-probabilities)
        before = np.cumsum(probabilities[order]) - probabilities[order]
        probabilities[order[before >= top_p]] = 0
    return probabilities / probabilities.sum()


def generate(model, prompt, max_new_tokens, end_id):
    new = []
    logits, cache = model(prompt, None)
    while len(new) < max_new_tokens:
        id = int(logits[-1].argmax())
        if id == end_id:
            break
        new.append(id)
        logits, cache = model([id], cache)
    return new


def bpe_merges(word, ranks):
    pieces, merges = list(word), []
    while True:
        pairs = [a + b for a, b in pairwise(pieces)]
        known = [pair for pair in pairs if pair in ranks]
        if not known:
            return merges
        best = min(known, key=ranks.get)
        place = pairs.index(best)
        pieces[place : place + 2] = [best]
        merges.append(ranks[best])


def chat_ids(messages, encode, special):
    def header(role):
        start, end = special["<|start_header_id|>"], special["<|end_header_id|>"]
        return [start, *encode(role), end, *encode("\n\n")]

    ids = [special["<|begin_of_text|>"]]
    for message in messages:
        ids += header(message["role"])
        ids += encode(message["content"].strip())
        ids += [special["<|eot_id|>"]]
    return ids + header("assistant")


def text_loss(logits, ids, pad_id):
    scores, following = logits[:-1], ids[1:]
    shifted = scores - scores.max(-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    right = logs[np.arange(len(following)), following]
    return -right[following != pad_id].mean()


def softmax_backward(grad, output):
    return output * (grad - (grad * output).sum(-1, keepdims=True))


def cross_entropy_backward(logits, labels):
    counts = labels != -100
    rows = np.flatnonzero(counts)
    gradient = softmax(logits)
    gradient[rows, labels[rows]] -= 1
    return gradient * counts[:, None] / counts.sum()


def linear_backward(grad, x, weight):
    dy, h = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    return grad @ weight, dy.T @ h, dy.sum(0)


def rms_norm_backward(grad, x, weight, eps):
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    h, g = x * r, grad * weight
    dx = r * (g - h * (g * h).mean(-1, keepdims=True))
    return dx, (grad * h).reshape(-1, len(weight)).sum(0)


def rope_backward(grad, positions, theta):
    return rope_half(grad, -positions, theta)


def swiglu_backward(grad, gate, up):
    s = 1 / (1 + np.exp(-gate))
    return grad * up * s * (1 + gate * (1 - s)), grad * gate * s


def attention_backward(grad, query, key, value):
    scale = query.shape[-1] ** -0.5
    scores = query @ key.swapaxes(-1, -2) * scale
    p = softmax(scores + causal_mask(*scores.shape[-2:]))
    ds = softmax_backward(grad @ value.swapaxes(-1, -2), p)
    dq, dk = ds @ key * scale, ds.swapaxes(-1, -2) @ query * scale
    return dq, dk, p.swapaxes(-1, -2) @ grad


def batch_and_labels(texts, answers, pad_id):
    shape = len(texts), max(map(len, texts))
    ids, labels = np.full(shape, pad_id), np.full(shape, -100)
    for row, (text, answer) in enumerate(zip(texts, answers, strict=True)):
        ids[row, : len(text)] = text
        labels[row, : len(text) - 1] = np.where(answer[1:], text[1:], -100)
    return ids, labels


def clip_gradients(gradients, max_norm):
    norm = np.sqrt(sum((g * g).sum() for g in gradients))
    return [g * min(1, max_norm / (norm + 1e-6)) for g in gradients]


def cosine_lr(step, lr, warmup, total, min_lr):
    if step < warmup:
        return lr * (step + 1) / warmup
    progress = min(1, (step - warmup) / (total - warmup))
    return min_lr + (lr - min_lr) * (1 + np.cos(np.pi * progress)) / 2


def adamw_step(weight, gradient, m, v, step, lr, beta1, beta2, eps, weight_decay):
    m = beta1 * m + (1 - beta1) * gradient
    v = beta2 * v + (1 - beta2) * gradient**2
    update = m / (1 - beta1**step) / (np.sqrt(v / (1 - beta2**step)) + eps)
    return weight - lr * (update + weight_decay * weight), m, v


def training_step(loss_and_gradients, weights, m, v, ids, labels, step, options):
    schedule = [options[name] for name in ("lr", "warmup", "total", "min_lr")]
    constants = [options[name] for name in ("beta1", "beta2", "eps")]
    loss, gradients = loss_and_gradients(weights, ids, labels)
    clipped = clip_gradients(list(gradients.values()), options["max_norm"])
    lr = cosine_lr(step - 1, *schedule)
    new_weights, new_m, new_v = {}, {}, {}
    for name, gradient in zip(gradients, clipped, strict=True):
        weight, decay = weights[name], options["weight_decay"]
        if weight.ndim == 1:
            decay = 0
        moments = m[name], v[name]
        new = adamw_step(weight, gradient, *moments, step, lr, *constants, decay)
        new_weights[name], new_m[name], new_v[name] = new
    return loss, new_weights, new_m, new_v


def lora_linear(x, weight, a, b, alpha):
    return x @ weight.T + alpha / len(a) * (x @ a.T @ b.T)


def lora_backward(grad, x, weight, a, b, alpha):
    scale = alpha / len(a)
    through_b, of_b, _ = linear_backward(scale * grad, x @ a.T, b)
    through_a, of_a, _ = linear_backward(through_b, x, a)
    return grad @ weight + through_a, of_a, of_b
