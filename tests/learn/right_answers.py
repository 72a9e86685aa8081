"""The operations as people write them, in nine idioms; all of it is right.

An idiom is a class with a method for each operation. `Numpy` is the plainest; the others write
differently what they write differently. Arrays are numpy's or PyTorch's, `to` and `back` convert.

    q (B,H,L,D)   k, v (B,K,S,D)   x (...,E)   weight (O,I)
"""

import math

import ml_dtypes
import numpy as np
import torch
from torch.nn import functional as F

from conftest import to_torch

bfloat16 = ml_dtypes.bfloat16
TORCH = {
    np.dtype(np.float64): torch.float64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float16): torch.float16,
    np.dtype(bfloat16): torch.bfloat16,
}


class Numpy:
    """Plain numpy, every step in the dtype of x."""

    name = "numpy"
    hidden = -np.inf  # what the mask holds

    def to(self, x):
        return x

    def back(self, x, dtype):
        return x

    def softmax(self, x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def linear(self, x, weight, bias=None):
        y = x @ weight.T
        return y if bias is None else y + bias

    def embedding(self, ids, weight):
        return weight[ids]

    def rms_norm(self, x, weight, eps):
        size = (x * x).mean(-1, keepdims=True) + x.dtype.type(eps)
        return x / np.sqrt(size) * weight

    def swiglu(self, gate, up):
        return gate / (1 + np.exp(-gate)) * up

    def rope_frequencies(self, dim, theta):
        return 1 / theta ** (np.arange(0, dim, 2) / dim)

    def rope(self, x, theta):
        """Half: element i is paired with i + D/2."""
        angles = np.arange(x.shape[-2])[:, None] * self.rope_frequencies(x.shape[-1], theta)
        cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def mask(self, like):
        length = like.shape[-1]
        return np.triu(np.full((length, length), self.hidden), 1).astype(like.dtype)

    def attention(self, q, k, v):
        group = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        scores = q @ k.swapaxes(-1, -2) / q.dtype.type(math.sqrt(q.shape[-1]))
        return self.softmax(scores + self.mask(scores)) @ v

    def heads(self, x, count):
        return x.reshape(*x.shape[:-1], count, -1).swapaxes(1, 2)

    def merged(self, x):
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)

    def layer(self, x, w, sizes):
        """A decoder layer, its norms before attention and MLP."""
        heads, kv_heads, theta, eps = sizes
        h = self.rms_norm(x, w["attn_norm"], eps)
        q = self.heads(self.linear(h, w["wq"]), heads)
        k, v = (self.heads(self.linear(h, w[name]), kv_heads) for name in ("wk", "wv"))
        z = self.attention(self.rope(q, theta), self.rope(k, theta), v)
        x = x + self.linear(self.merged(z), w["wo"])
        h = self.rms_norm(x, w["mlp_norm"], eps)
        h = self.swiglu(self.linear(h, w["gate"]), self.linear(h, w["up"]))
        return x + self.linear(h, w["down"])


class Einsum(Numpy):
    name = "einsum"
    hidden = -1e4  # fits into every dtype

    def einsum(self, equation, *arrays):
        dtype = arrays[0].dtype
        if dtype == bfloat16:  # which einsum does not know
            return np.einsum(equation, *(x.astype(np.float32) for x in arrays)).astype(dtype)
        return np.einsum(equation, *arrays)

    def linear(self, x, weight, bias=None):
        y = self.einsum("...i,oi->...o", x, weight)
        return y if bias is None else y + bias

    def rms_norm(self, x, weight, eps):
        n = x.dtype.type(x.shape[-1])
        size = self.einsum("...n,...n->...", x, x)[..., None] / n + x.dtype.type(eps)
        return self.einsum("...n,n->...n", x / np.sqrt(size), weight)

    def attention(self, q, k, v):
        b, heads, length, dim = q.shape
        q = q.reshape(b, k.shape[1], -1, length, dim)
        scores = self.einsum("bkgld,bksd->bkgls", q * q.dtype.type(dim**-0.5), k)
        shares = self.softmax(scores + self.mask(scores))
        return self.einsum("bkgls,bksd->bkgld", shares, v).reshape(b, heads, length, -1)


class Loops(Numpy):
    """Python's floats and math, one number after the other, stored in the dtype of x."""

    name = "loops"

    def softmax(self, x):
        out = np.empty_like(x)
        for at in np.ndindex(x.shape[:-1]):
            row = [float(value) for value in x[at]]
            e = [math.exp(value - max(row)) for value in row]
            out[at] = [value / sum(e) for value in e]
        return out

    def rms_norm(self, x, weight, eps):
        out = np.empty_like(x)
        for at in np.ndindex(x.shape[:-1]):
            total = 0.0
            for value in x[at]:
                total += float(value) ** 2
            size = math.sqrt(total / x.shape[-1] + eps)
            out[at] = [float(a) / size * float(w) for a, w in zip(x[at], weight, strict=True)]
        return out

    def swiglu(self, gate, up):
        out = np.empty_like(gate)
        for at in np.ndindex(gate.shape):
            out[at] = float(gate[at]) / (1 + math.exp(-float(gate[at]))) * float(up[at])
        return out

    def rope_frequencies(self, dim, theta):
        return np.array([math.pow(theta, -2 * i / dim) for i in range(dim // 2)])

    def rope(self, x, theta):
        out, half = np.empty_like(x), x.shape[-1] // 2
        for *lead, m in np.ndindex(x.shape[:-1]):
            for i in range(half):
                angle = m * math.pow(theta, -i / half)
                a, b = float(x[(*lead, m, i)]), float(x[(*lead, m, i + half)])
                out[(*lead, m, i)] = a * math.cos(angle) - b * math.sin(angle)
                out[(*lead, m, i + half)] = b * math.cos(angle) + a * math.sin(angle)
        return out

    def linear(self, x, weight, bias=None):
        """The sum in the dtype itself, rounded after every number."""
        total = np.zeros((*x.shape[:-1], len(weight)), x.dtype)
        for i in range(x.shape[-1]):
            total = total + x[..., i, None] * weight[:, i]
        return total if bias is None else total + bias

    def attention(self, q, k, v):
        out = np.zeros_like(q)
        for b, h, i in np.ndindex(q.shape[:3]):
            g = h * k.shape[1] // q.shape[1]
            scores = [float(q[b, h, i] @ k[b, g, j]) / math.sqrt(q.shape[-1]) for j in range(i + 1)]
            shares = [math.exp(score - max(scores)) for score in scores]
            mixed = sum(share * v[b, g, j].astype(float) for j, share in enumerate(shares))
            out[b, h, i] = mixed / sum(shares)
        return out


class Torch(Numpy):
    """PyTorch's own functions."""

    name = "torch"

    def to(self, x):
        return to_torch(x) if x.dtype in TORCH else torch.from_numpy(x)

    def softmax(self, x):
        return F.softmax(x, -1)

    def linear(self, x, weight, bias=None):
        return F.linear(x, weight, bias)

    def embedding(self, ids, weight):
        return F.embedding(ids, weight)

    def rms_norm(self, x, weight, eps):
        return F.rms_norm(x, x.shape[-1:], weight, eps)

    def swiglu(self, gate, up):
        return F.silu(gate) * up

    def rope_frequencies(self, dim, theta):
        return 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)

    def rope(self, x, theta):
        positions = torch.arange(x.shape[-2]).float()
        angles = torch.outer(positions, self.rope_frequencies(x.shape[-1], theta))
        table = torch.cat([angles, angles], -1)
        cos, sin = table.cos().to(x.dtype), table.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def mask(self, like):
        length = like.shape[-1]
        return torch.full((length, length), self.hidden, dtype=like.dtype).triu(1)

    def attention(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class Meta(Torch):
    """As Meta's Llama: norms, softmax and angles in float32, cast back to the dtype of x."""

    name = "meta"

    def rms_norm(self, x, weight, eps):
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
        return y.type_as(x) * weight

    def softmax(self, x):
        return F.softmax(x.float(), dim=-1).type_as(x)

    def rope(self, x, theta):
        """On complex numbers; Meta pairs neighbours, so the halves are interleaved first."""
        angles = torch.outer(
            torch.arange(x.shape[-2]).float(), self.rope_frequencies(x.shape[-1], theta)
        )
        turns = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.stack(x.float().chunk(2, -1), -1).contiguous()
        turned = torch.view_as_real(torch.view_as_complex(pairs) * turns)
        return torch.cat([turned[..., 0], turned[..., 1]], -1).type_as(x)

    def attention(self, q, k, v):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1])
        return torch.matmul(self.softmax(scores + self.mask(scores)), v)


class HuggingFace(Meta):
    """As transformers: what it casts, and when."""

    name = "transformers"

    def mask(self, like):
        length = like.shape[-1]
        lowest = torch.finfo(like.dtype).min
        return torch.full((length, length), lowest, dtype=like.dtype).triu(1)

    def rope(self, x, theta):
        return Torch.rope(self, x, theta)

    def attention(self, q, k, v):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
        shares = F.softmax(scores + self.mask(scores), dim=-1, dtype=torch.float32).to(q.dtype)
        return torch.matmul(shares, v)


class In:
    """Another idiom in another dtype: arrays are converted first; and back, where `cast_back`."""

    def __init__(self, idiom, dtype, cast_back):
        self.idiom, self.dtype, self.cast_back = idiom, np.dtype(dtype), cast_back
        self.name = f"{idiom.name} in {self.dtype}{' and back' if cast_back else ''}"

    def to(self, x):
        return self.idiom.to(x if x.dtype.kind == "i" else x.astype(self.dtype))

    def back(self, x, dtype):
        if not self.cast_back:
            return x
        return x.to(TORCH[dtype]) if isinstance(x, torch.Tensor) else x.astype(dtype)

    def __getattr__(self, name):
        return getattr(self.idiom, name)


IDIOMS = [
    Numpy(),
    Einsum(),
    Loops(),
    Torch(),
    Meta(),
    HuggingFace(),
    In(Numpy(), np.float32, cast_back=True),
    In(Numpy(), np.float16, cast_back=False),
    In(Numpy(), np.float16, cast_back=True),
    In(Torch(), bfloat16, cast_back=False),
    In(Torch(), bfloat16, cast_back=True),
]
