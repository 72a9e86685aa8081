"""The exercises as PyTorch users write them: F.* and torch.* wherever there is one."""

import torch
import torch.nn.functional as F

linear = F.linear


def softmax(x, axis=-1):
    return F.softmax(x, dim=axis)


def causal_mask(L, S):
    return torch.triu(torch.full((L, S), float("-inf")), diagonal=S - L + 1)


def scaled_dot_product_attention(query, key, value, mask=None, scale=None):
    return F.scaled_dot_product_attention(query, key, value, mask, scale=scale)


def split_heads(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


def merge_heads(x):
    return x.transpose(-3, -2).flatten(-2)


def multi_head_attention(query, key, value, num_heads, wq, wk, wv, wo, mask=None):
    q, k, v = F.linear(query, wq), F.linear(key, wk), F.linear(value, wv)
    q, k, v = (split_heads(x, num_heads) for x in (q, k, v))
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return F.linear(merge_heads(z), wo)


def repeat_kv(x, n):
    return x.repeat_interleave(n, dim=-3)


def rope_frequencies(head_dim, theta):
    return 1.0 / (theta ** (torch.arange(0, head_dim, 2).float() / head_dim))


def cos_and_sin(positions, head_dim, theta):
    angles = torch.outer(positions.float(), rope_frequencies(head_dim, theta))
    return angles.cos(), angles.sin()


def rope_interleaved(x, positions, theta):
    cos, sin = cos_and_sin(positions, x.shape[-1], theta)
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2)


def rope_half(x, positions, theta):
    cos, sin = cos_and_sin(positions, x.shape[-1], theta)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def embedding(ids, weight):
    return F.embedding(ids, weight)


def rms_norm(x, weight, eps):
    layer = torch.nn.RMSNorm(x.shape[-1], eps=eps)
    layer.weight.data = weight
    return layer(x)  # which needs a gradient


def layer_norm(x, weight, bias, eps):
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


silu = F.silu


def mlp(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def grouped_query_attention(x, num_heads, num_kv_heads, wq, wk, wv, wo, theta):
    positions = torch.arange(x.shape[-2])
    q = rope_half(split_heads(F.linear(x, wq), num_heads), positions, theta)
    k = rope_half(split_heads(F.linear(x, wk), num_kv_heads), positions, theta)
    v = split_heads(F.linear(x, wv), num_kv_heads)
    z = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return F.linear(merge_heads(z), wo)


def transformer_block(x, weights, num_heads, num_kv_heads, eps, theta):
    w, E = weights, x.shape[-1:]
    normed = F.rms_norm(x, E, w["attn_norm"], eps)
    attention = w["wq"], w["wk"], w["wv"], w["wo"], theta
    h = x + grouped_query_attention(normed, num_heads, num_kv_heads, *attention)
    return h + mlp(F.rms_norm(h, E, w["mlp_norm"], eps), w["gate"], w["up"], w["down"])


def attend_with_cache(query, key, value, cached_keys, cached_values):
    keys = torch.cat([cached_keys, key], dim=-2)
    values = torch.cat([cached_values, value], dim=-2)
    mask = causal_mask(query.shape[-2], keys.shape[-2])
    return F.scaled_dot_product_attention(query, keys, values, mask), keys, values


def sampling_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    logits = logits / temperature
    if top_k is not None:
        least = torch.topk(logits, min(top_k, logits.shape[-1])).values[-1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if top_p is not None:
        sorted_logits, order = torch.sort(logits, descending=True)
        cumulated = F.softmax(sorted_logits, dim=-1).cumsum(dim=-1)
        remove = cumulated > top_p
        remove[1:] = remove[:-1].clone()
        remove[0] = False
        logits[order[remove]] = float("-inf")
    return F.softmax(logits, dim=-1)


@torch.inference_mode()
def generate(model, prompt, max_new_tokens, end_id):
    logits, cache = model(torch.tensor(prompt))
    new = []
    for _ in range(max_new_tokens):
        id = torch.argmax(logits[-1])
        if id == end_id:
            break
        new.append(id)
        logits, cache = model(id[None], cache)
    return torch.stack(new)


def bpe_merges(word, ranks):
    parts, merges = list(word), []
    while len(parts) > 1:
        rank, i = min(
            (ranks.get(parts[i] + parts[i + 1], float("inf")), i) for i in range(len(parts) - 1)
        )
        if rank == float("inf"):
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
        merges.append(rank)
    return torch.tensor(merges)


def chat_ids(messages, encode, special):
    ids = [special["<|begin_of_text|>"]]
    for message in [*messages, {"role": "assistant", "content": None}]:
        ids += [special["<|start_header_id|>"], *encode(message["role"])]
        ids += [special["<|end_header_id|>"], *encode("\n\n")]
        if message["content"] is not None:
            ids += [*encode(message["content"].strip()), special["<|eot_id|>"]]
    return torch.tensor(ids)


def text_loss(logits, ids, pad_id):
    return F.cross_entropy(logits[:-1], ids[1:], ignore_index=pad_id)


def by_autograd(forward, grad, *inputs):
    leaves = [x.clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(forward(*leaves), leaves, grad)


def softmax_backward(grad, output):
    return torch.ops.aten._softmax_backward_data(grad, output, -1, output.dtype)


def cross_entropy_backward(logits, labels):
    return by_autograd(lambda z: F.cross_entropy(z, labels), None, logits)[0]


def linear_backward(grad, x, weight):
    bias = torch.zeros(len(weight))
    return by_autograd(F.linear, grad, x, weight, bias)


def rms_norm_backward(grad, x, weight, eps):
    return by_autograd(lambda x, w: F.rms_norm(x, w.shape, w, eps), grad, x, weight)


def rope_backward(grad, positions, theta):
    return by_autograd(lambda x: rope_half(x, positions, theta), grad, torch.zeros_like(grad))[0]


def swiglu_backward(grad, gate, up):
    return by_autograd(lambda gate, up: F.silu(gate) * up, grad, gate, up)


def attention_backward(grad, query, key, value):
    def forward(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return by_autograd(forward, grad, query, key, value)


def batch_and_labels(texts, answers, pad_id):
    def pad(rows, fill):
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(r) for r in rows], True, fill)

    ids, said = pad(texts, pad_id), pad(answers, False)
    labels = ids.masked_fill(~said, -100)
    return ids, F.pad(labels[:, 1:], (0, 1), value=-100)


def clip_gradients(gradients, max_norm):
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, g in zip(parameters, gradients, strict=True):
        parameter.grad = g.clone()
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return [parameter.grad for parameter in parameters]


def cosine_lr(step, lr, warmup, total, min_lr):
    if step < warmup:
        return lr * (step + 1) / warmup
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total - warmup, min_lr)
    for _ in range(min(step, total) - warmup):
        optimizer.step()
        schedule.step()
    return torch.tensor(schedule.get_last_lr()[0])


def adamw_step(weight, gradient, m, v, step, lr, beta1, beta2, eps, weight_decay):
    parameter = torch.nn.Parameter(weight.clone())
    parameter.grad = gradient.clone()
    optimizer = torch.optim.AdamW(
        [parameter], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay
    )
    state = {"step": torch.tensor(step - 1.0), "exp_avg": m.clone()}
    optimizer.state[parameter] = state | {"exp_avg_sq": v.clone()}
    optimizer.step()
    return parameter, state["exp_avg"], optimizer.state[parameter]["exp_avg_sq"]


def training_step(loss_and_gradients, weights, m, v, ids, labels, step, options):
    loss, gradients = loss_and_gradients(weights, ids, labels)
    parameters = {name: torch.nn.Parameter(w.clone()) for name, w in weights.items()}
    for name, parameter in parameters.items():
        parameter.grad = gradients[name].clone()
    torch.nn.utils.clip_grad_norm_(parameters.values(), options["max_norm"])
    groups = [
        {"params": [p for p in parameters.values() if p.ndim > 1]},
        {"params": [p for p in parameters.values() if p.ndim == 1], "weight_decay": 0.0},
    ]
    schedule = (options[name] for name in ("lr", "warmup", "total", "min_lr"))
    optimizer = torch.optim.AdamW(
        groups,
        lr=float(cosine_lr(step - 1, *schedule)),
        betas=(options["beta1"], options["beta2"]),
        eps=options["eps"],
        weight_decay=options["weight_decay"],
    )
    for name, parameter in parameters.items():
        moments = {"exp_avg": m[name].clone(), "exp_avg_sq": v[name].clone()}
        optimizer.state[parameter] = {"step": torch.tensor(step - 1.0)} | moments
    optimizer.step()
    states = {name: optimizer.state[parameter] for name, parameter in parameters.items()}
    moments = [{n: s[key] for n, s in states.items()} for key in ("exp_avg", "exp_avg_sq")]
    return loss, {name: p.detach() for name, p in parameters.items()}, *moments


def lora_linear(x, weight, a, b, alpha):
    return F.linear(x, weight) + F.linear(F.linear(x, a), b) * (alpha / a.shape[0])


def lora_backward(grad, x, weight, a, b, alpha):
    return by_autograd(lambda x, a, b: lora_linear(x, weight, a, b, alpha), grad, x, a, b)
