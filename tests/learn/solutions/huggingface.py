"""The exercises in the idiom of Hugging Face's models: rotate_half, finfo.min, float32 upcasts.

The same exercises as in meta.py."""

import torch
from torch import nn


def softmax(x, axis=-1):
    return nn.functional.softmax(x, dim=axis, dtype=torch.float32).to(x.dtype)


def causal_mask(target_length, source_length):
    cache_position = torch.arange(source_length - target_length, source_length)
    future = torch.arange(source_length)[None] > cache_position[:, None]
    return torch.zeros(target_length, source_length).masked_fill(future, float("-inf"))


def scaled_dot_product_attention(query, key, value, mask=None, scale=None):
    scaling = query.shape[-1] ** -0.5 if scale is None else scale
    attn_weights = torch.matmul(query, key.transpose(-1, -2)) * scaling
    unmasked = None
    if mask is not None:
        unmasked = (mask > float("-inf")).any(-1, keepdim=True)
        attn_weights = attn_weights + mask.clamp(min=torch.finfo(query.dtype).min)
    attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)
    attn_output = torch.matmul(attn_weights, value)
    return attn_output if unmasked is None else attn_output * unmasked


def linear(x, weight, bias=None):
    return nn.functional.linear(x, weight, bias)


def split_heads(x, num_heads):
    return x.view(*x.shape[:-1], num_heads, -1).transpose(-3, -2)


def merge_heads(x):
    x = x.transpose(-3, -2).contiguous()
    return x.reshape(*x.shape[:-2], -1).contiguous()


class Attention(nn.Module):
    def __init__(self, num_heads, wq, wk, wv, wo):
        super().__init__()
        self.num_heads = num_heads
        for name, weight in (("q_proj", wq), ("k_proj", wk), ("v_proj", wv), ("o_proj", wo)):
            layer = nn.Linear(*reversed(weight.shape), bias=False)
            layer.weight = nn.Parameter(weight)
            self.add_module(name, layer)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.num_heads)
        k = split_heads(self.k_proj(key), self.num_heads)
        v = split_heads(self.v_proj(value), self.num_heads)
        return self.o_proj(merge_heads(scaled_dot_product_attention(q, k, v, mask)))


def multi_head_attention(query, key, value, num_heads, wq, wk, wv, wo, mask=None):
    return Attention(num_heads, wq, wk, wv, wo)(query, key, value, mask)


def repeat_kv(hidden_states, n_rep):
    *batch, num_key_value_heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[..., :, None, :, :].expand(
        *batch, num_key_value_heads, n_rep, slen, head_dim
    )
    return hidden_states.reshape(*batch, num_key_value_heads * n_rep, slen, head_dim)


def rope_frequencies(head_dim, theta):
    return 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def rope_half(x, positions, theta):
    inv_freq = rope_frequencies(x.shape[-1], theta)
    freqs = positions[:, None].float() @ inv_freq[None, :].float()
    emb = torch.cat((freqs, freqs), dim=-1)
    cos, sin = emb.cos().to(x.dtype), emb.sin().to(x.dtype)
    return (x * cos) + (rotate_half(x) * sin)


def rope_interleaved(x, positions, theta):
    # GPT-J's: rotate_every_two, with every angle twice in a row
    angle = torch.einsum("i,j->ij", positions.float(), rope_frequencies(x.shape[-1], theta))
    sin, cos = (torch.repeat_interleave(part, 2, dim=-1) for part in (angle.sin(), angle.cos()))
    rotated = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return (x * cos) + (rotated * sin)


def rms_norm(hidden_states, weight, eps):
    input_dtype = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + eps)
    return weight * hidden_states.to(input_dtype)


def layer_norm(x, weight, bias, eps):
    layer = nn.LayerNorm(x.shape[-1], eps=eps)
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer(x)


def silu(x):
    return nn.SiLU()(x)


def mlp(x, gate, up, down):
    return linear(nn.functional.silu(linear(x, gate)) * linear(x, up), down)


def grouped_query_attention(x, num_heads, num_kv_heads, wq, wk, wv, wo, theta):
    length = x.shape[-2]
    positions = torch.arange(length)
    query = rope_half(split_heads(linear(x, wq), num_heads), positions, theta)
    key = rope_half(split_heads(linear(x, wk), num_kv_heads), positions, theta)
    value = split_heads(linear(x, wv), num_kv_heads)
    key, value = (repeat_kv(y, num_heads // num_kv_heads) for y in (key, value))
    mask = torch.triu(torch.full((length, length), torch.finfo(x.dtype).min), diagonal=1)
    return linear(merge_heads(scaled_dot_product_attention(query, key, value, mask)), wo)


def transformer_block(hidden_states, weights, num_heads, num_kv_heads, eps, theta):
    residual = hidden_states
    hidden_states = rms_norm(hidden_states, weights["attn_norm"], eps)
    projections = [weights[name] for name in ("wq", "wk", "wv", "wo")]
    hidden_states = residual + grouped_query_attention(
        hidden_states, num_heads, num_kv_heads, *projections, theta
    )
    residual = hidden_states
    hidden_states = rms_norm(hidden_states, weights["mlp_norm"], eps)
    return residual + mlp(hidden_states, weights["gate"], weights["up"], weights["down"])


def attend_with_cache(query, key, value, cached_keys, cached_values):
    keys = torch.cat((cached_keys, key), dim=-2)
    values = torch.cat((cached_values, value), dim=-2)
    mask = causal_mask(query.shape[-2], keys.shape[-2])
    return scaled_dot_product_attention(query, keys, values, mask), keys, values


def sampling_probabilities(scores, temperature=1.0, top_k=None, top_p=None):
    scores = scores / temperature
    if top_k is not None:
        top_k = min(top_k, scores.size(-1))
        scores = scores.masked_fill(
            scores < torch.topk(scores, top_k)[0][..., -1, None], -float("inf")
        )
    if top_p is not None:
        sorted_logits, sorted_indices = torch.sort(scores, descending=False)
        cumulative_probs = sorted_logits.softmax(dim=-1).cumsum(dim=-1)
        sorted_indices_to_remove = cumulative_probs <= (1 - top_p)
        sorted_indices_to_remove[..., -1:] = 0
        remove = sorted_indices_to_remove.scatter(-1, sorted_indices, sorted_indices_to_remove)
        scores = scores.masked_fill(remove, -float("inf"))
    return nn.functional.softmax(scores, dim=-1)


def text_loss(logits, ids, pad_id):
    labels = ids.masked_fill(ids == pad_id, -100)
    shift_logits, shift_labels = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
    return nn.CrossEntropyLoss()(shift_logits.float(), shift_labels)
