"""A model as somebody writes it who follows a walkthrough, in NumPy or in PyTorch, with switches:
each `slip` is a mistake at one of its lines. Written from the texts, not from the package."""

import math

import numpy as np
import torch
from torch.nn import functional as F

import simdformer as sf

__all__ = ["Learner", "hidden_states", "learner"]


class Learner:
    """Llama, with what Qwen2 and 3, Mistral and Llama 3.1 add where the config has it.

    Learner(config, weights, *slips, ids=ids)() gives its activations, under the names of Hugging
    Face and Meta. dtype: of PyTorch, or of NumPy, in which it is computed then.
    theta, eps, head_dim: other constants than the config's.
    """

    def __init__(
        self,
        config,
        weights,
        *slips,
        ids,
        dtype=torch.float32,
        theta=None,
        eps=None,
        head_dim=None,
    ):
        self.config, self.slips, self.dtype = config, slips, dtype
        if "mlp of layer 0" in slips:
            self.slips += tuple(f"{name} of layer 0" for name in ("gate", "up", "down"))
        self.lib = torch if isinstance(dtype, torch.dtype) else np
        self.cast = torch.Tensor.to if self.lib is torch else np.ndarray.astype
        self.ids = ids[1:] if "ids without bos" in slips else ids
        self.w = {name: self.array(w) for name, w in weights.items()}
        self.theta = 1e4 if "theta of llama 2" in slips else theta or config.rope_theta
        self.eps = 1e-5 if "eps of llama" in slips else eps or config.norm_eps
        self.head_dim = head_dim or config.head_dim
        self.generator = torch.Generator().manual_seed(3)
        self.seen = {}

    def array(self, x):
        return self.cast(self.lib.asarray(x), self.dtype)

    def __call__(self):
        w, seen, slips = self.w, self.seen, self.slips
        layers = list(range(self.config.num_layers))
        if "layers in another order" in slips:
            layers = [0, 2, 1]
        if "a layer is left out" in slips:
            layers = [0, 2]
        if "the last layer is left out" in slips:
            layers = layers[:-1]
        h = seen["model.embed_tokens"] = w["embed"][list(self.ids)]
        for name, i in enumerate(layers):
            at = f"layers.{i if 'a layer is left out' in slips else name}."
            h = self.layer(h, at, f"layers.{i}.")
        seen["model.norm"] = h if "no final norm" in slips else self.norm(h, w["final_norm"])
        tied = self.config.tie_embeddings or "head tied" in slips
        seen["logits"] = seen["model.norm"] @ w["embed" if tied else "lm_head"].T
        return seen

    def weight(self, of, name):
        for number in (0, 2):
            if f"{name} of layer {number}" in self.slips:
                of = f"layers.{number}."
        return self.w[of + name]

    def layer(self, h, at, of):
        """`at`: how its activations are called; `of`: whose weights it takes."""
        seen, slips, post = self.seen, self.slips, "post-norm" in self.slips
        start = seen[at + "resid_pre"] = h
        other = "mlp_norm for attn_norm in layer 1" in slips and of == "layers.1."
        attn_norm = self.weight(of, "mlp_norm" if other else "attn_norm")
        x = normed = h if post else self.norm(h, attn_norm)
        seen[at + "input_layernorm"] = x
        out = seen[at + "o_proj"] = self.attention(x, start, at, of)
        h = normed + out if "residual of the norm" in slips else h + out
        if "no residual" in slips or f"no residual in {at}" in slips:
            h = out
        h = self.norm(h, attn_norm) if post else h
        seen[at + "resid_mid"] = h
        mlp_norm = self.weight(of, "mlp_norm")
        x = h if post else self.norm(start if "parallel blocks" in slips else h, mlp_norm)
        seen[at + "post_attention_layernorm"] = x
        out = seen[at + "mlp.out"] = self.mlp(x, h, at, of)
        h = start if "mlp residual from the input" in slips else h
        h = seen["model.embed_tokens"] if "mlp residual from the embedding" in slips else h
        h = h + out
        h = self.norm(h, mlp_norm) if post else h
        seen[at + "resid_post"] = h
        return h

    def norm(self, x, weight):
        slips, lib, cast, kind = self.slips, self.lib, self.cast, x.dtype
        if "norm in float16" in slips:
            x, weight = cast(x, lib.float16), cast(weight, lib.float16)
            squares = (x**2).mean(-1, keepdims=True)
            return cast(x * (1 / lib.sqrt(squares + self.eps)) * weight, lib.float32)
        x = cast(x, lib.float32)
        if "norm subtracts the mean" in slips:
            x = x - x.mean(-1, keepdims=True)
        squares = (x**2).mean(-1, keepdims=True)
        if "eps outside of the root" in slips:
            return x / (lib.sqrt(squares) + self.eps) * weight
        return cast(x / lib.sqrt(squares + self.eps), kind) * weight

    def rotate(self, x):
        """(H,L,D) -> (H,L,D)"""
        if "rope before split" in self.slips:  # all heads are taken for one
            merged = x.swapaxes(0, 1).reshape(1, x.shape[1], -1)
            return self.rotate_heads(merged).reshape(x.shape[1], -1, x.shape[2]).swapaxes(0, 1)
        return self.rotate_heads(x)

    def rotate_heads(self, x):
        slips, size = self.slips, x.shape[-1]
        freqs, factor = self.theta ** -(np.arange(0, size, 2) / size), 1
        if self.config.rope_scaling is not None and "rope scaling forgotten" not in slips:
            scaling = self.config.rope_scaling
            freqs, factor = sf.rope_frequencies(size, theta=self.theta, scaling=scaling)
        first = 1 if "positions from 1" in slips else 0
        angle = np.outer(np.arange(first, first + x.shape[-2]), freqs)
        cos, sin = factor * np.cos(angle), factor * np.sin(angle)
        if "rope backwards" in slips:
            sin = -sin
        half = (self.config.rope_layout == "half") != ("layout swapped" in slips)
        if half:
            cos, sin = (np.concatenate([t, t], -1) for t in (cos, sin))
            turned = [-x[..., size // 2 :], x[..., : size // 2]]
            turned = self.lib.concatenate(turned, -1)
        else:
            cos, sin = (np.repeat(t, 2, -1) for t in (cos, sin))
            turned = self.lib.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
        return x * self.array(cos) + turned * self.array(sin)

    def project(self, x, of, name, bias):
        """(L,E) -> (L,H * D), or back"""
        weight = self.weight(of, name)
        y = x @ (weight if f"{name} not transposed" in self.slips else weight.T)
        forgotten = of + bias not in self.w or "bias forgotten" in self.slips
        return y if forgotten else y + self.w[of + bias]

    def attention(self, x, stream, at, of):
        """(L,E) -> (L,E), of the norm and of the stream before it"""
        w, seen, slips = self.w, self.seen, self.slips
        length, size = len(x), self.config.head_dim
        q, k = self.project(x, of, "wq", "bq"), self.project(x, of, "wk", "bk")
        v = self.project(stream if "v of the stream" in slips else x, of, "wv", "bv")
        v = k if "k for v" in slips else v
        if "cut without transpose" in slips:
            q, k, v = (t.reshape(-1, length, size) for t in (q, k, v))
        else:
            q, k, v = (t.reshape(length, -1, size).swapaxes(0, 1) for t in (q, k, v))
        seen |= {at + "q_proj": q, at + "k_proj": k, at + "v_proj": v}
        if self.config.qk_norm and "q_norm forgotten" not in slips:
            q = self.norm(q, w[of + ("k_norm" if "k_norm for q" in slips else "q_norm")])
            k = self.norm(k, w[of + "k_norm"])
            seen |= {at + "q_norm": q, at + "k_norm": k}
        q = self.rotate(q)
        k = k if "k not rotated" in slips else self.rotate(k)
        v = self.rotate(v) if "v rotated too" in slips else v
        seen |= {at + "v_proj": v, at + "q_rot": q, at + "k_rot": k}
        heads = np.arange(len(q))
        heads = heads % len(k) if "heads tiled" in slips else heads // (len(q) // len(k))
        key, value = k[heads], v[heads]
        scores = q @ key.swapaxes(-2, -1)
        if "no scale" not in slips:
            wide = "scale of the hidden size" in slips
            scores = scores / math.sqrt(self.config.hidden_size if wide else self.head_dim)
        if "scaled twice" in slips:
            scores = scores / math.sqrt(size)
        seen[at + "scores"] = scores
        i, j = np.arange(length)[:, None], np.arange(length)
        seen[at + "masked_scores"] = scores = scores + self.array(self.mask(i - j, of))
        pattern = self.softmax(scores, -2 if "softmax over queries" in slips else -1)
        seen[at + "attn_weights"] = pattern
        z = seen[at + "z"] = pattern @ (key if "keys as values" in slips else value)
        merged = z if "merged without transpose" in slips else z.swapaxes(0, 1)
        out = self.project(merged.reshape(length, -1), of, "wo", "bo")
        if "dropout left on" in slips:
            out = out * (torch.rand(out.shape, generator=self.generator) > 0.1) / 0.9
        return out

    def mask(self, distance, of):
        """What is added to scores whose key lies so far before its query."""
        low = torch.finfo(self.dtype).min if self.lib is torch else -np.inf
        window = self.config.window(int(of.split(".")[1]))
        nearest = "diagonal hidden" in self.slips, "mask off by one" in self.slips
        visible = distance >= nearest[0] - nearest[1]
        if window is not None and "window forgotten" not in self.slips:
            visible &= distance < window
        return np.where(visible | ("no mask" in self.slips), 0, low)

    def softmax(self, x, axis):
        x = self.cast(x, self.lib.float32)
        e = self.lib.exp(x - self.lib.amax(x, axis, keepdims=True))
        return self.cast(e / e.sum(axis, keepdims=True), self.dtype)

    def mlp(self, x, stream, at, of):
        """(L,E) -> (L,E), of the norm and of the stream before it"""
        seen, slips = self.seen, self.slips
        gate, up = (x @ self.weight(of, name).T for name in ("gate", "up"))
        if "gate and up swapped" in slips:
            gate, up = up, gate
        seen |= {at + "gate_proj": gate, at + "up_proj": up}
        act = F.gelu(gate) if "gelu for silu" in slips else gate / (1 + self.lib.exp(-gate))
        act = gate * (gate > 0) if "relu for silu" in slips else act
        seen[at + "act"] = act * up
        return seen[at + "act"] @ self.weight(of, "down").T


OWN = {  # the package's names
    "model.embed_tokens": "embed",
    "input_layernorm": "attn_norm",
    "q_proj": "attn.q",
    "k_proj": "attn.k",
    "v_proj": "attn.v",
    "q_norm": "attn.q_normed",
    "k_norm": "attn.k_normed",
    "q_rot": "attn.q_rot",
    "k_rot": "attn.k_rot",
    "scores": "attn.scores_unmasked",
    "masked_scores": "attn.scores",
    "attn_weights": "attn.pattern",
    "z": "attn.z",
    "o_proj": "attn.out",
    "post_attention_layernorm": "mlp_norm",
    "gate_proj": "mlp.gate",
    "up_proj": "mlp.up",
    "act": "mlp.act",
    "model.norm": "final_norm",
}


def learner(config, weights, ids, *slips, dtype=np.float32):
    """All activations of a model in NumPy, under the package's names, positions first."""
    own = {}
    for name, x in Learner(config, weights, *slips, ids=ids, dtype=dtype)().items():
        at, last = (name[:9], name[9:]) if name.startswith("layers.") else ("", name)
        per_head = last[:2] in ("q_", "k_", "v_", "z")
        own[at + OWN.get(last, last)] = x.swapaxes(0, 1) if per_head else x
    return {name: x.astype(dtype) for name, x in own.items()}  # bfloat16 @ bfloat16 is float32


def hidden_states(seen):
    """What output_hidden_states of Hugging Face gives, and the logits."""
    kept = ("embed_tokens", "resid_post", "model.norm")
    return {name: x for name, x in seen.items() if name.endswith(kept) or name == "logits"}
