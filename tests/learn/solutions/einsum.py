"""The exercises with einsum and numpy, everything in float32."""

import itertools

import numpy as np

f32 = np.float32


def softmax(x, axis=-1):
    x = x.astype(f32)
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e * (f32(1) / np.sum(e, axis=axis, keepdims=True))


def causal_mask(L, S):
    i, j = np.ogrid[:L, :S]
    return np.where(j <= i + S - L, f32(0), f32(-np.inf))


def scaled_dot_product_attention(query, key, value, mask=None, scale=None):
    if scale is None:
        scale = f32(1) / np.sqrt(f32(query.shape[-1]))
    scores = np.einsum("...ld,...sd->...ls", query * f32(scale), key)
    blind = np.zeros((*scores.shape[:-1], 1), bool)
    if mask is not None:
        scores += mask
        blind = np.isneginf(scores).all(-1, keepdims=True)
    weights = softmax(np.where(blind, f32(0), scores))
    return np.where(blind, f32(0), np.einsum("...ls,...sd->...ld", weights, value))


def linear(x, weight, bias=None):
    y = np.einsum("...i,oi->...o", x, weight)
    return y if bias is None else y + bias


def split_heads(x, num_heads):
    return np.moveaxis(np.stack(np.split(x, num_heads, axis=-1)), 0, -3)


def merge_heads(x):
    return np.concatenate(list(np.moveaxis(x, -3, 0)), axis=-1)


def multi_head_attention(query, key, value, num_heads, wq, wk, wv, wo, mask=None):
    heads = (num_heads, -1, query.shape[-1])
    q = np.einsum("...le,hde->...hld", query, wq.reshape(heads))
    k = np.einsum("...se,hde->...hsd", key, wk.reshape(heads))
    v = np.einsum("...se,hde->...hsd", value, wv.reshape(heads))
    z = scaled_dot_product_attention(q, k, v, mask)
    return np.einsum("...hld,ehd->...le", z, wo.reshape(len(wo), num_heads, -1))


def repeat_kv(x, n):
    return x[..., np.arange(x.shape[-3] * n) // n, :, :]


def rope_frequencies(head_dim, theta):
    return f32(theta) ** -(np.arange(0, head_dim, 2, dtype=f32) / f32(head_dim))


def turned(pairs, positions, theta):
    """pairs (..., T, D/2, 2), by a matrix for every angle"""
    angle = np.einsum(
        "t,f->tf", positions.astype(f32), rope_frequencies(2 * pairs.shape[-2], theta)
    )
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.array([[cos, -sin], [sin, cos]])
    return np.einsum("ijtf,...tfj->...tfi", turn, pairs)


def rope_interleaved(x, positions, theta):
    return turned(x.reshape(*x.shape[:-1], -1, 2), positions, theta).reshape(x.shape)


def rope_half(x, positions, theta):
    pairs = np.swapaxes(x.reshape(*x.shape[:-1], 2, -1), -1, -2)
    return np.swapaxes(turned(pairs, positions, theta), -1, -2).reshape(x.shape)


def embedding(ids, weight):
    return np.take(weight, ids, axis=0)


def rms_norm(x, weight, eps):
    squares = np.einsum("...e,...e->...", x, x) / f32(x.shape[-1])
    return np.einsum("...e,...,e->...e", x, f32(1) / np.sqrt(squares + f32(eps)), weight)


def layer_norm(x, weight, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(
        x.var(-1, keepdims=True) + f32(eps)
    ) * weight + bias


def silu(x):
    with np.errstate(over="ignore"):
        return x / (f32(1) + np.exp(-x))


def mlp(x, gate, up, down):
    act = silu(np.einsum("...e,ie->...i", x, gate)) * np.einsum("...e,ie->...i", x, up)
    return np.einsum("...i,ei->...e", act, down)


def grouped_query_attention(x, num_heads, num_kv_heads, wq, wk, wv, wo, theta):
    K, n, E = num_kv_heads, num_heads // num_kv_heads, x.shape[-1]
    positions = np.arange(x.shape[-2])
    q = np.einsum("...le,knde->...knld", x, wq.reshape(K, n, -1, E))
    k = np.einsum("...le,kde->...kld", x, wk.reshape(K, -1, E))
    v = np.einsum("...le,kde->...kld", x, wv.reshape(K, -1, E))
    q, k = rope_half(q, positions, theta), rope_half(k, positions, theta)
    scores = np.einsum("...knld,...ksd->...knls", q, k) / np.sqrt(f32(q.shape[-1]))
    pattern = softmax(scores + causal_mask(len(positions), len(positions)))
    z = np.einsum("...knls,...ksd->...knld", pattern, v)
    return np.einsum("...knld,eknd->...le", z, wo.reshape(E, K, n, -1))


def transformer_block(x, weights, num_heads, num_kv_heads, eps, theta):
    w = weights
    heads = num_heads, num_kv_heads, w["wq"], w["wk"], w["wv"], w["wo"], theta
    h = x + grouped_query_attention(rms_norm(x, w["attn_norm"], eps), *heads)
    return h + mlp(rms_norm(h, w["mlp_norm"], eps), w["gate"], w["up"], w["down"])


def attend_with_cache(query, key, value, cached_keys, cached_values):
    keys, values = np.hstack([cached_keys, key]), np.hstack([cached_values, value])
    mask = causal_mask(query.shape[1], keys.shape[1])
    return scaled_dot_product_attention(query, keys, values, mask), keys, values


def sampling_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    order = np.argsort(logits)[::-1][:top_k]
    kept = softmax(logits[order] / f32(temperature))
    if top_p is not None:
        count = np.searchsorted(np.cumsum(kept), top_p) + 1
        order, kept = order[:count], kept[:count] / kept[:count].sum()
    return np.bincount(order, weights=kept, minlength=len(logits)).astype(f32)


def generate(model, prompt, max_new_tokens, end_id):
    def ids():
        unread, cache = np.array(prompt), None
        for _ in range(max_new_tokens):
            logits, cache = model(unread, cache)
            unread = np.argmax(logits, axis=-1)[-1:]
            if unread[0] == end_id:
                return
            yield unread[0]

    return np.fromiter(ids(), int)


def bpe_merges(word, ranks):
    merges = []
    pieces = list(word)
    while known := [
        (ranks[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in ranks
    ]:
        rank, i = min(known)
        pieces[i] += pieces.pop(i + 1)
        merges.append(rank)
    return np.array(merges, int)


def chat_ids(messages, encode, special):
    begin, start, end, eot = (
        special[f"<|{name}|>"]
        for name in ("begin_of_text", "start_header_id", "end_header_id", "eot_id")
    )
    parts = [[begin]]
    for message in messages:
        parts.append([start, *encode(message["role"]), end])
        parts.append([*encode("\n\n" + message["content"].strip()), eot])
    parts.append([start, *encode("assistant"), end, *encode("\n\n")])
    return np.concatenate(parts)


def text_loss(logits, ids, pad_id):
    logits, following = logits[:-1], ids[1:]
    one_hot = np.eye(logits.shape[-1], dtype=f32)[following] * (following != pad_id)[:, None]
    logs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return -np.einsum("lv,lv->", one_hot, logs) / one_hot.sum()


def softmax_backward(grad, output):
    jacobian = np.einsum("...i,ij->...ij", output, np.eye(output.shape[-1], dtype=f32))
    jacobian -= np.einsum("...i,...j->...ij", output, output)
    return np.einsum("...ij,...j->...i", jacobian, grad)


def cross_entropy_backward(logits, labels):
    counts = (labels >= 0).astype(f32)
    target = (np.arange(logits.shape[-1]) == labels[:, None]).astype(f32)
    return np.einsum("nv,n->nv", softmax(logits) - target, counts / counts.sum())


def rows(x):
    return x.reshape(-1, x.shape[-1])


def linear_backward(grad, x, weight):
    return (
        np.einsum("...o,oi->...i", grad, weight),
        np.einsum("no,ni->oi", rows(grad), rows(x)),
        np.einsum("no->o", rows(grad)),
    )


def rms_norm_backward(grad, x, weight, eps):
    n = f32(x.shape[-1])
    r = (np.einsum("...e,...e->...", x, x) / n + f32(eps)) ** f32(-0.5)
    share = np.einsum("...e,e,...e->...", grad, weight, x) / n
    dx = np.einsum("...e,e,...->...e", grad, weight, r) - x * (share * r**3)[..., None]
    return dx, np.einsum("ne,ne,n->e", rows(grad), rows(x), r.ravel())


def rope_backward(grad, positions, theta):
    pairs = np.swapaxes(grad.reshape(*grad.shape[:-1], 2, -1), -1, -2)
    return np.swapaxes(turned(pairs, -positions, theta), -1, -2).reshape(grad.shape)


def swiglu_backward(grad, gate, up):
    s = f32(0.5) * (f32(1) + np.tanh(gate / f32(2)))
    return grad * up * (s + gate * s * (f32(1) - s)), grad * gate * s


def attention_backward(grad, query, key, value):
    scale, L = f32(query.shape[-1] ** -0.5), query.shape[-2]
    scores = np.einsum("...ld,...sd->...ls", query, key) * scale + causal_mask(L, L)
    p = softmax(scores)
    dp = np.einsum("...ld,...sd->...ls", grad, value)
    ds = p * (dp - np.einsum("...ls,...ls->...l", p, dp)[..., None]) * scale
    return (
        np.einsum("...ls,...sd->...ld", ds, key),
        np.einsum("...ls,...ld->...sd", ds, query),
        np.einsum("...ls,...ld->...sd", p, grad),
    )


def batch_and_labels(texts, answers, pad_id):
    longest = max(map(len, texts))
    rows = [(t + longest * [pad_id])[:longest] for t in texts]
    said = [(a + longest * [False])[:longest] for a in answers]
    following = [[*row[1:], -100] for row in rows]
    counts = [[*row[1:], False] for row in said]
    labels = [
        [id if one else -100 for id, one in zip(*both, strict=True)]
        for both in zip(following, counts, strict=True)
    ]
    return rows, labels


def clip_gradients(gradients, max_norm):
    norm = np.linalg.norm(np.concatenate([g.ravel() for g in gradients]))
    return [g * f32(max_norm / norm) for g in gradients] if norm > max_norm else gradients


def cosine_lr(step, lr, warmup, total, min_lr):
    if step < warmup:
        return lr / warmup * (step + 1)
    half = np.cos(np.pi / 2 * min(step - warmup, total - warmup) / (total - warmup))
    return min_lr + (lr - min_lr) * half**2


def adamw_step(weight, gradient, m, v, step, lr, beta1, beta2, eps, weight_decay):
    m = m + f32(1 - beta1) * (gradient - m)
    v = v + f32(1 - beta2) * (gradient**2 - v)
    root = np.sqrt(v) / f32((1 - beta2**step) ** 0.5) + f32(eps)
    kept = weight * f32(1 - lr * weight_decay)
    return kept - f32(lr / (1 - beta1**step)) * m / root, m, v


def training_step(loss_and_gradients, weights, m, v, ids, labels, step, options):
    o = options
    loss, gradients = loss_and_gradients(weights, ids, labels)
    norm = np.sqrt(sum(np.vdot(g, g) for g in gradients.values()))
    lr = cosine_lr(step - 1, o["lr"], o["warmup"], o["total"], o["min_lr"])
    after = {"w": {}, "m": {}, "v": {}}
    for name in weights:
        g = gradients[name] / max(f32(1), norm / f32(o["max_norm"]))
        a = f32(o["beta1"]) * m[name] + f32(1 - o["beta1"]) * g
        b = f32(o["beta2"]) * v[name] + f32(1 - o["beta2"]) * g * g
        a_hat, b_hat = a / (1 - o["beta1"] ** step), b / (1 - o["beta2"] ** step)
        decay = o["weight_decay"] if "norm" not in name else 0.0
        w = weights[name] - lr * decay * weights[name] - lr * a_hat / (np.sqrt(b_hat) + o["eps"])
        after["w"][name], after["m"][name], after["v"][name] = w, a, b
    return [loss, *after.values()]


def lora_linear(x, weight, a, b, alpha):
    merged = weight + f32(alpha / a.shape[0]) * np.einsum("or,ri->oi", b, a)
    return np.einsum("...i,oi->...o", x, merged)


def lora_backward(grad, x, weight, a, b, alpha):
    s = f32(alpha / a.shape[0])
    merged = weight + s * np.einsum("or,ri->oi", b, a)
    da = s * np.einsum("no,or,ni->ri", rows(grad), b, rows(x))
    db = s * np.einsum("no,ni,ri->or", rows(grad), rows(x), a)
    return np.einsum("...o,oi->...i", grad, merged), da, db
