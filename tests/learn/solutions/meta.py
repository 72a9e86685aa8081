"""The exercises in the idiom of Meta's Llama: complex RoPE, float32 inside, type_as behind it.

Neither the gradients, which it has not, nor what gives the same ids however it is written."""

import math

import torch
import torch.nn.functional as F


def softmax(x, axis=-1):
    return F.softmax(x.float(), dim=axis).type_as(x)


def causal_mask(seqlen, total):
    start_pos = total - seqlen
    mask = torch.full((seqlen, seqlen), float("-inf"))
    mask = torch.triu(mask, diagonal=1)
    return torch.hstack([torch.zeros((seqlen, start_pos)), mask])


def scaled_dot_product_attention(query, key, value, mask=None, scale=None):
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    scores = torch.matmul(query, key.transpose(-2, -1)) * scale
    if mask is not None:
        scores = scores + mask
    scores = F.softmax(scores.float(), dim=-1).type_as(query)
    return torch.matmul(torch.nan_to_num(scores), value)


def linear(x, weight, bias=None):
    y = torch.matmul(x, weight.t())
    return y if bias is None else y + bias


def split_heads(x, num_heads):
    return x.view(*x.shape[:-1], num_heads, x.shape[-1] // num_heads).transpose(-3, -2)


def merge_heads(x):
    x = x.transpose(-3, -2).contiguous()
    return x.view(*x.shape[:-2], -1)


def multi_head_attention(query, key, value, num_heads, wq, wk, wv, wo, mask=None):
    xq, xk, xv = linear(query, wq), linear(key, wk), linear(value, wv)
    xq, xk, xv = (split_heads(x, num_heads) for x in (xq, xk, xv))
    return linear(merge_heads(scaled_dot_product_attention(xq, xk, xv, mask)), wo)


def repeat_kv(x, n_rep):
    *batch, n_kv_heads, slen, head_dim = x.shape
    if n_rep == 1:
        return x
    return (
        x.unsqueeze(-3)
        .expand(*batch, n_kv_heads, n_rep, slen, head_dim)
        .reshape(*batch, n_kv_heads * n_rep, slen, head_dim)
    )


def rope_frequencies(dim, theta):
    return 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))


def rope_interleaved(x, positions, theta):
    freqs = torch.outer(positions.float(), rope_frequencies(x.shape[-1], theta)).float()
    freqs_cis = torch.polar(torch.ones_like(freqs), freqs)
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs_cis).flatten(-2).type_as(x)


def rope_half(x, positions, theta):
    D = x.shape[-1]
    order = torch.arange(D).view(2, D // 2).t().flatten()  # pairs become neighbours, and go back
    turned = rope_interleaved(x[..., order], positions, theta)
    return turned[..., torch.argsort(order)]


def rms_norm(x, weight, eps):
    def _norm(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)

    return _norm(x.float()).type_as(x) * weight


def layer_norm(x, weight, bias, eps):
    x32 = x.float()
    mean, var = x32.mean(-1, keepdim=True), x32.var(-1, keepdim=True, unbiased=False)
    return ((x32 - mean) * torch.rsqrt(var + eps)).type_as(x) * weight + bias


def silu(x):
    return x * torch.sigmoid(x)


def mlp(x, w1, w3, w2):
    return linear(F.silu(linear(x, w1)) * linear(x, w3), w2)


def grouped_query_attention(x, n_heads, n_kv_heads, wq, wk, wv, wo, theta):
    seqlen, positions = x.shape[-2], torch.arange(x.shape[-2])
    xq, xk, xv = linear(x, wq), linear(x, wk), linear(x, wv)
    xq = rope_half(split_heads(xq, n_heads), positions, theta)
    xk = rope_half(split_heads(xk, n_kv_heads), positions, theta)
    keys = repeat_kv(xk, n_heads // n_kv_heads)
    values = repeat_kv(split_heads(xv, n_kv_heads), n_heads // n_kv_heads)
    mask = torch.triu(torch.full((seqlen, seqlen), float("-inf")), diagonal=1)
    return linear(merge_heads(scaled_dot_product_attention(xq, keys, values, mask)), wo)


def transformer_block(x, weights, n_heads, n_kv_heads, eps, theta):
    attention = [weights[name] for name in ("wq", "wk", "wv", "wo")]
    normed = rms_norm(x, weights["attn_norm"], eps)
    h = x + grouped_query_attention(normed, n_heads, n_kv_heads, *attention, theta)
    feed_forward = [weights[name] for name in ("gate", "up", "down")]
    return h + mlp(rms_norm(h, weights["mlp_norm"], eps), *feed_forward)


def attend_with_cache(query, key, value, cached_keys, cached_values):
    start_pos, seqlen = cached_keys.shape[-2], key.shape[-2]
    heads, _, head_dim = key.shape
    cache_k, cache_v = (torch.zeros(heads, start_pos + seqlen, head_dim) for _ in range(2))
    for cache, old, new in ((cache_k, cached_keys, key), (cache_v, cached_values, value)):
        cache[:, :start_pos] = old
        cache[:, start_pos : start_pos + seqlen] = new
    mask = causal_mask(seqlen, start_pos + seqlen)
    return scaled_dot_product_attention(query, cache_k, cache_v, mask), cache_k, cache_v


def sampling_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    probs = torch.softmax(logits / temperature, dim=-1)
    probs_sort, probs_idx = torch.sort(probs, dim=-1, descending=True)
    if top_k is not None:
        probs_sort[top_k:] = 0.0
        probs_sort.div_(probs_sort.sum(dim=-1, keepdim=True))
    if top_p is not None:
        probs_sum = torch.cumsum(probs_sort, dim=-1)
        mask = probs_sum - probs_sort > top_p
        probs_sort[mask] = 0.0
        probs_sort.div_(probs_sort.sum(dim=-1, keepdim=True))
    return torch.zeros_like(probs).scatter_(-1, probs_idx, probs_sort)


def text_loss(logits, ids, pad_id):
    token_logprobs = -F.cross_entropy(
        input=logits[:-1], target=ids[1:], reduction="none", ignore_index=pad_id
    )
    return -token_logprobs.sum() / (ids[1:] != pad_id).sum()
