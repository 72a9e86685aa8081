"""A model as somebody writes it in PyTorch who follows a walkthrough, with switches: each `slip` is
a mistake at one of its lines."""

import math

import torch
from torch.nn import functional as F

__all__ = ["Learner", "hidden_states"]


class Learner:
    """Llama, or Qwen3 where there are norms of q and k.

    Learner(config, weights, *slips, ids=ids)() gives its activations, under the names of Hugging
    Face and Meta. theta, eps, head_dim: other constants than the config's.
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
        self.ids = ids[1:] if "ids without bos" in slips else ids
        self.w = {name: torch.from_numpy(w).to(dtype) for name, w in weights.items()}
        self.theta = 1e4 if "theta of llama 2" in slips else theta or config.rope_theta
        self.eps = 1e-5 if "eps of llama" in slips else eps or config.norm_eps
        self.head_dim = head_dim or config.head_dim
        self.generator = torch.Generator().manual_seed(3)
        self.seen = {}

    def __call__(self):
        w, seen, slips = self.w, self.seen, self.slips
        layers = list(range(self.config.num_layers))
        if "layers in another order" in slips:
            layers = [0, 2, 1]
        if "a layer is left out" in slips:
            layers = [0, 2]
        if "the last layer is left out" in slips:
            layers = layers[:-1]
        h = seen["model.embed_tokens"] = w["embed"][torch.tensor(self.ids)]
        for name, i in enumerate(layers):
            at = f"layers.{i if 'a layer is left out' in slips else name}."
            h = self.layer(h, at, f"layers.{i}.")
        seen["model.norm"] = h if "no final norm" in slips else self.norm(h, w["final_norm"])
        seen["logits"] = seen["model.norm"] @ w["embed" if "head tied" in slips else "lm_head"].T
        return seen

    def layer(self, h, at, of):
        """`at`: how its activations are called; `of`: whose weights it takes."""
        w, seen, post = self.w, self.seen, "post-norm" in self.slips
        seen[at + "resid_pre"] = h
        x = h if post else self.norm(h, w[of + "attn_norm"])
        seen[at + "input_layernorm"] = x
        out = seen[at + "o_proj"] = self.attention(x, at, of)
        h = out if "no residual" in self.slips else h + out
        h = self.norm(h, w[of + "attn_norm"]) if post else h
        seen[at + "resid_mid"] = h
        x = h if post else self.norm(h, w[of + "mlp_norm"])
        seen[at + "post_attention_layernorm"] = x
        out = seen[at + "mlp.out"] = self.mlp(x, h, at, of)
        h = h + out
        h = self.norm(h, w[of + "mlp_norm"]) if post else h
        seen[at + "resid_post"] = h
        return h

    def norm(self, x, weight):
        slips, kind = self.slips, x.dtype
        if "norm in float16" in slips:
            x, weight = x.half(), weight.half()
            return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * weight).float()
        x = x.float()
        if "norm subtracts the mean" in slips:
            x = x - x.mean(-1, keepdim=True)
        squares = x.pow(2).mean(-1, keepdim=True)
        if "eps outside of the root" in slips:
            return x / (squares.sqrt() + self.eps) * weight
        return (x * torch.rsqrt(squares + self.eps)).to(kind) * weight

    def rotate(self, x):
        size = x.shape[-1]
        freqs = self.theta ** -(torch.arange(0, size, 2).double() / size)
        first = 1 if "positions from 1" in self.slips else 0
        angle = torch.outer(torch.arange(first, first + x.shape[-2]).double(), freqs)
        if "interleaved pairs" in self.slips:
            cos, sin = (t.repeat_interleave(2, -1) for t in (angle.cos(), angle.sin()))
            turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        else:
            cos, sin = (torch.cat([t, t], -1) for t in (angle.cos(), angle.sin()))
            turned = torch.cat([-x[..., size // 2 :], x[..., : size // 2]], -1)
        return x * cos.to(x.dtype) + turned * sin.to(x.dtype)

    def attention(self, x, at, of):
        """(L,E) -> (L,E)"""
        w, seen, slips = self.w, self.seen, self.slips
        length, size = len(x), self.config.head_dim
        q = x @ (w[of + "wq"] if "wq not transposed" in slips else w[of + "wq"].T)
        k, v = x @ w[of + "wk"].T, x @ w[of + "wv"].T
        q, k, v = (t.view(length, -1, size).transpose(0, 1) for t in (q, k, v))
        seen |= {at + "q_proj": q, at + "k_proj": k}
        if self.config.qk_norm and "q_norm forgotten" not in slips:
            q, k = self.norm(q, w[of + "q_norm"]), self.norm(k, w[of + "k_norm"])
            seen |= {at + "q_norm": q, at + "k_norm": k}
        q = self.rotate(q)
        k = k if "k not rotated" in slips else self.rotate(k)
        v = self.rotate(v) if "v rotated too" in slips else v
        seen |= {at + "v_proj": v, at + "q_rot": q, at + "k_rot": k}
        many = torch.Tensor.repeat if "heads tiled" in slips else torch.repeat_interleave
        times = (2, 1, 1) if "heads tiled" in slips else (2, 0)
        key, value = many(k, *times), many(v, *times)
        scores = q @ key.transpose(-2, -1)
        if "no scale" not in slips:
            wide = "scale of the hidden size" in slips
            scores = scores / math.sqrt(self.config.hidden_size if wide else self.head_dim)
        hidden = 2 if "mask off by one" in slips else 0 if "diagonal hidden" in slips else 1
        if "no mask" not in slips:
            low = torch.full_like(scores[0], torch.finfo(scores.dtype).min)
            scores = scores + torch.triu(low, hidden)
        seen[at + "masked_scores"] = scores
        axis = -2 if "softmax over queries" in slips else -1
        pattern = seen[at + "attn_weights"] = scores.float().softmax(axis).to(x.dtype)
        z = seen[at + "z"] = (pattern @ value).transpose(0, 1).reshape(length, -1)
        out = z @ w[of + "wo"].T
        if "dropout left on" in slips:
            out = out * (torch.rand(out.shape, generator=self.generator) > 0.1) / 0.9
        return out

    def mlp(self, x, stream, at, of):
        """(L,E) -> (L,E), of the norm and of the stream before it"""
        w, seen, slips = self.w, self.seen, self.slips
        gate, up = x @ w[of + "gate"].T, x @ w[of + "up"].T
        if "gate and up swapped" in slips:
            gate, up = up, gate
        seen |= {at + "gate_proj": gate, at + "up_proj": up}
        seen[at + "act"] = (F.gelu(gate) if "gelu for silu" in slips else F.silu(gate)) * up
        return seen[at + "act"] @ w[of + "down"].T


def hidden_states(seen):
    """What output_hidden_states of Hugging Face gives, and the logits."""
    kept = ("embed_tokens", "resid_post", "model.norm")
    return {name: x for name, x in seen.items() if name.endswith(kept) or name == "logits"}
