"""The operations as layers: weights are given once, then the layer is called on arrays.

    attention = nn.MultiHeadAttention(hidden_size, num_heads, wq, wk, wv, wo)
    y = attention(x, x, x, mask="causal")

Weights are (outputs, inputs), as checkpoints hold them; each may be an array or what
`simdformer.pack` made of one. Nothing is copied and nothing is trained here; `simdformer.torch.nn`
has the same layers as modules of PyTorch, which train. Letters in shapes: B sequences, L queries,
S keys, E hidden_size, H query heads, K key/value heads, D head_dim, V vocabulary, X experts, k of
them a token.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from simdformer.arguments import as_array, is_whole, shown
from simdformer.experts import combine_experts, expert_linear, expert_weights, top_k
from simdformer.functional import (
    embedding,
    layer_norm,
    linear,
    rms_norm,
    rope,
    scaled_dot_product_attention,
    swiglu,
)
from simdformer.layer_checks import (
    Mask,
    Weight,
    check_heads,
    check_input,
    check_shape,
    each_of,
    linear_of,
    mask_of,
    shape_of,
    two_axes,
)
from simdformer.types import Array, ArrayLike

__all__ = [
    "MLP",
    "Embedding",
    "GroupedQueryAttention",
    "LayerNorm",
    "MixtureOfExperts",
    "MultiHeadAttention",
    "RMSNorm",
    "TransformerBlock",
]
__dir__ = __all__.copy  # what dir() and completion show


def split_heads(x: Array, num_heads: int) -> Array:
    """(..., L, H·D) -> (..., H, L, D), a view."""
    return x.reshape(*x.shape[:-1], num_heads, -1).swapaxes(-3, -2)


def merge_heads(x: Array) -> Array:
    """(..., H, L, D) -> (..., L, H·D)"""
    x = x.swapaxes(-3, -2)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


class OnArrays:
    """The functions that layers are made of, on arrays; `simdformer.torch.nn` puts those on tensors
    in their place."""

    as_array = staticmethod(as_array)
    each_of = staticmethod(each_of)
    linear: Any = staticmethod(linear)  # of one weight or of several
    linear_of = staticmethod(linear_of)
    embedding = staticmethod(embedding)
    rms_norm = staticmethod(rms_norm)
    layer_norm = staticmethod(layer_norm)
    rope = staticmethod(rope)
    swiglu = staticmethod(swiglu)
    scaled_dot_product_attention = staticmethod(scaled_dot_product_attention)
    top_k = staticmethod(top_k)
    expert_weights = staticmethod(expert_weights)
    expert_linear = staticmethod(expert_linear)
    combine_experts = staticmethod(combine_experts)


class Layer:
    """What all layers are: `f` has the functions that they are made of."""

    f: ClassVar[type[OnArrays]] = OnArrays


class MultiHeadAttention(Layer):
    """concat(head_1 ... head_H) woᵀ, each head the attention of its slice of query wqᵀ, key wkᵀ and
    value wvᵀ.

    Vaswani et al. 2017, section 3.2.2. wq, wk, wv, wo: (E, E); head_dim is E / num_heads.

    Calling it: query (..., L, E), key and value (..., S, E) -> (..., L, E). mask: bool (True = may
    attend) or additive, broadcastable to (..., H, L, S), or "causal".

    ValueError: num_heads does not divide hidden_size; a shape does not fit.

    >>> import numpy as np
    >>> from simdformer import nn
    >>> w = np.eye(4, dtype=np.float32)
    >>> x = np.array([[1, 0, 0, 0], [0, 1, 0, 0]], np.float32)
    >>> nn.MultiHeadAttention(4, 2, w, w, w, w)(x, x, x, mask="causal").round(2)
    array([[1.  , 0.  , 0.  , 0.  ],
           [0.33, 0.67, 0.  , 0.  ]], dtype=float32)
    """

    def __init__(
        self, hidden_size: int, num_heads: int, wq: Weight, wk: Weight, wv: Weight, wo: Weight
    ) -> None:
        check_heads("MultiHeadAttention", num_heads, "hidden_size", hidden_size)
        for name, weight in (("wq", wq), ("wk", wk), ("wv", wv), ("wo", wo)):
            check_shape("MultiHeadAttention", name, weight, (hidden_size, hidden_size), "(E, E)")
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.wq, self.wk, self.wv, self.wo = wq, wk, wv, wo

    def __call__(
        self, query: ArrayLike, key: ArrayLike, value: ArrayLike, mask: Mask = None
    ) -> Array:
        for name, x in (("query", query), ("key", key), ("value", value)):
            check_input("MultiHeadAttention", name, x, "(..., L, {})", self.hidden_size)
        q = split_heads(self.f.linear_of(query, self.wq), self.num_heads)
        k = split_heads(self.f.linear_of(key, self.wk), self.num_heads)
        v = split_heads(self.f.linear_of(value, self.wv), self.num_heads)
        z = self.f.scaled_dot_product_attention(q, k, v, **mask_of("MultiHeadAttention", mask))
        return self.f.linear_of(merge_heads(z), self.wo)

    def __repr__(self) -> str:
        return f"MultiHeadAttention(hidden_size={self.hidden_size}, num_heads={self.num_heads})"


class GroupedQueryAttention(Layer):
    """Self-attention of Llama, Qwen, Mistral and MiniMind: H query heads share K key/value heads.

    Ainslie et al. 2023. wq (H·D, E), wk and wv (K·D, E), wo (E, H·D); D is what wq says, which need
    not be E / H. Optional, in the order in which they act: q_norm and k_norm (D,), an RMSNorm over
    each head with norm_eps (Qwen3); RoPE when rope_layout is given ("half" or "interleaved"), with
    theta (10000 if neither is given) or inv_freq (see `simdformer.rope_frequencies`).

    Calling it: x (..., L, E) -> (..., L, E). mask: bool (True = may attend) or additive,
    broadcastable to (..., H, L, L), or "causal". positions (L,) or (B, L): for RoPE; 0, 1, 2 ... if
    not given.

    ValueError: numbers of heads or shapes that do not fit, a norm without its eps, positions, theta
    or inv_freq without a rope_layout.

    >>> import numpy as np
    >>> from simdformer import nn
    >>> wq = wo = np.eye(4, dtype=np.float32)
    >>> wk = wv = np.eye(2, 4, dtype=np.float32)
    >>> attention = nn.GroupedQueryAttention(4, 2, 1, wq, wk, wv, wo, rope_layout="half")
    >>> attention(np.ones((5, 4), np.float32), mask="causal").shape
    (5, 4)
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        wq: Weight,
        wk: Weight,
        wv: Weight,
        wo: Weight,
        *,
        q_norm: ArrayLike | None = None,
        k_norm: ArrayLike | None = None,
        norm_eps: float | None = None,
        rope_layout: Literal["half", "interleaved"] | None = None,
        theta: float | None = None,
        inv_freq: ArrayLike | None = None,
    ) -> None:
        me = "GroupedQueryAttention"
        check_heads(me, num_kv_heads, "num_heads", num_heads)
        check_heads(me, 1, "hidden_size", hidden_size)
        rows = (*shape_of(wq, me, "wq"), 0)[0]
        check_heads(me, num_heads, "rows of wq", rows)
        kv_rows = rows // num_heads * num_kv_heads
        check_shape(me, "wq", wq, (rows, hidden_size), "(H·D, E)")
        check_shape(me, "wk", wk, (kv_rows, hidden_size), "(K·D, E)")
        check_shape(me, "wv", wv, (kv_rows, hidden_size), "(K·D, E)")
        check_shape(me, "wo", wo, (hidden_size, rows), "(E, H·D)")
        if norm_eps is None and not (q_norm is None and k_norm is None):
            raise ValueError(f"{me}: norm_eps is not given, needs a number beside q_norm or k_norm")
        if rope_layout is None and not (theta is None and inv_freq is None):
            raise ValueError(
                f'{me}: rope_layout is not given, needs "half" or "interleaved" beside theta or '
                "inv_freq"
            )
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.wq, self.wk, self.wv, self.wo = wq, wk, wv, wo
        self.q_norm, self.k_norm, self.norm_eps = q_norm, k_norm, norm_eps
        self.rope_layout, self.theta, self.inv_freq = rope_layout, theta, inv_freq

    def __call__(
        self, x: ArrayLike, mask: Mask = None, positions: ArrayLike | None = None
    ) -> Array:
        check_input("GroupedQueryAttention", "x", x, "(..., L, {})", self.hidden_size)
        q, k, v = self.f.linear(x, [self.wq, self.wk, self.wv])
        q = split_heads(q, self.num_heads)
        k = split_heads(k, self.num_kv_heads)
        v = split_heads(v, self.num_kv_heads)
        q = self._rotate(self._normalise(q, self.q_norm), positions)
        k = self._rotate(self._normalise(k, self.k_norm), positions)
        z = self.f.scaled_dot_product_attention(q, k, v, **mask_of("GroupedQueryAttention", mask))
        return self.f.linear_of(merge_heads(z), self.wo)

    def _normalise(self, x: Array, weight: ArrayLike | None) -> Array:
        if weight is None or self.norm_eps is None:
            return x
        return self.f.rms_norm(x, weight, eps=self.norm_eps)

    def _rotate(self, x: Array, positions: ArrayLike | None) -> Array:
        if self.rope_layout is not None:
            return self.f.rope(
                x,
                layout=self.rope_layout,
                positions=positions,
                theta=self.theta,
                inv_freq=self.inv_freq,
            )
        if positions is not None:
            raise ValueError(
                "GroupedQueryAttention: positions are given, needs a rope_layout to have a meaning"
            )
        return x

    def __repr__(self) -> str:
        return (
            f"GroupedQueryAttention(hidden_size={self.hidden_size}, num_heads={self.num_heads}, "
            f"num_kv_heads={self.num_kv_heads}, rope_layout={self.rope_layout!r})"
        )


class MLP(Layer):
    """down (silu(gate x) · up x), the SwiGLU of Llama. Shazeer 2020.

    gate and up: (intermediate_size, E), down: (E, intermediate_size); x (..., E) -> (..., E).
    """

    def __init__(self, gate: Weight, up: Weight, down: Weight) -> None:
        inner, hidden_size = two_axes("MLP", "gate", gate)
        check_shape("MLP", "up", up, (inner, hidden_size), "the shape of gate")
        check_shape("MLP", "down", down, (hidden_size, inner), "(E, intermediate_size)")
        self.gate, self.up, self.down = gate, up, down

    def __call__(self, x: ArrayLike) -> Array:
        check_input("MLP", "x", x, "(..., {})", shape_of(self.gate)[1])
        gate, up = self.f.linear(x, [self.gate, self.up])
        return self.f.linear_of(self.f.swiglu(gate, up, out=gate), self.down)

    def __repr__(self) -> str:
        inner, hidden_size = shape_of(self.gate)
        return f"MLP(hidden_size={hidden_size}, intermediate_size={inner})"


class MixtureOfExperts(Layer):
    """X MLPs, of which each token goes through the k that a router likes best: the sum of what they
    write, down (silu(gate x) · up x), times their weights.

    Shazeer et al. 2017, with the SwiGLU of Mixtral and Qwen3-MoE. router: (X, E), whose logits are
    router x + router_bias. gate, up, down: for each expert a weight, (intermediate_size, E) twice
    and (E, intermediate_size): a list, or an array (X, ...). The weights are the softmax over the
    logits of the k chosen, or, without `normalize`, that over all X. `shared`, if there is one, is
    called on every token too and added (an MLP: DeepSeek, MiniMind). Where logits are equal the
    lower number wins.

    Calling it: x (..., E) -> (..., E). Each expert is read once, for all its tokens. With packed
    or quantised weights what a token gets does not depend on which others come with it. `route(x)`
    tells which experts those are and how much they count.

    ValueError: num_experts_per_tok is not 1 to X; a shape does not fit.

    >>> import numpy as np
    >>> from simdformer import nn
    >>> router = np.array([[1, 0], [0, 1], [-1, 0]], np.float32)
    >>> gate = up = np.ones((3, 4, 2), np.float32)
    >>> down = np.ones((3, 2, 4), np.float32)
    >>> moe = nn.MixtureOfExperts(router, gate, up, down, num_experts_per_tok=2)
    >>> experts, weights = moe.route(np.array([[0, 1], [-1, 0]], np.float32))
    >>> experts
    array([[1, 0],
           [2, 1]])
    >>> moe(np.ones((5, 2), np.float32)).shape
    (5, 2)
    """

    def __init__(
        self,
        router: Weight,
        gate: Sequence[Weight] | ArrayLike,
        up: Sequence[Weight] | ArrayLike,
        down: Sequence[Weight] | ArrayLike,
        *,
        num_experts_per_tok: int,
        normalize: bool = True,
        router_bias: ArrayLike | None = None,
        shared: Callable[[Any], Array] | None = None,
    ) -> None:
        me = "MixtureOfExperts"
        count, hidden_size = two_axes(me, "router", router)
        self.gate, self.up, self.down = (
            self.f.each_of(me, *one, count) for one in (("gate", gate), ("up", up), ("down", down))
        )
        inner = (*shape_of(self.gate[0], me, "gate[0]"), 0)[0]
        for number, (one, two, three) in enumerate(zip(self.gate, self.up, self.down, strict=True)):
            check_shape(me, f"gate[{number}]", one, (inner, hidden_size), "(intermediate_size, E)")
            check_shape(me, f"up[{number}]", two, (inner, hidden_size), "(intermediate_size, E)")
            check_shape(
                me, f"down[{number}]", three, (hidden_size, inner), "(E, intermediate_size)"
            )
        if not is_whole(num_experts_per_tok) or num_experts_per_tok > count:
            raise ValueError(
                f"{me}: num_experts_per_tok is {shown(num_experts_per_tok)}, needs 1 to {count}, "
                "the number of experts"
            )
        self.router, self.router_bias = router, router_bias
        self.num_experts_per_tok, self.normalize = num_experts_per_tok, normalize
        self.shared = shared

    def route(self, x: ArrayLike) -> tuple[Array, Array]:
        """x (..., E) -> the experts (..., k), the likeliest first, and their weights (..., k)."""
        check_input("MixtureOfExperts", "x", x, "(..., {})", shape_of(self.router)[1])
        logits = self.f.linear_of(x, self.router, self.router_bias)
        experts = self.f.top_k(logits, self.num_experts_per_tok)
        return experts, self.f.expert_weights(logits, experts, normalize=self.normalize)

    def __call__(self, x: ArrayLike) -> Array:
        experts, weights = self.route(x)
        x = self.f.as_array("MixtureOfExperts", "x", x)
        gate, up = self.f.expert_linear(x[..., None, :], experts, [self.gate, self.up])
        (out,) = self.f.expert_linear(self.f.swiglu(gate, up, out=gate), experts, [self.down])
        total = self.f.combine_experts(out, weights)
        if self.shared is not None:
            total = total + self.shared(x)
        return total

    def __repr__(self) -> str:
        inner, hidden_size = shape_of(self.gate[0])
        return (
            f"MixtureOfExperts(hidden_size={hidden_size}, intermediate_size={inner}, "
            f"num_experts={len(self.gate)}, num_experts_per_tok={self.num_experts_per_tok})"
        )


class RMSNorm(Layer):
    """x / sqrt(mean(x²) + eps) · weight: see `simdformer.rms_norm`."""

    def __init__(self, weight: ArrayLike, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def __call__(self, x: ArrayLike) -> Array:
        return self.f.rms_norm(x, self.weight, eps=self.eps)

    def __repr__(self) -> str:
        return f"RMSNorm({shape_of(self.weight)}, eps={self.eps})"


class LayerNorm(Layer):
    """(x - mean) / sqrt(var + eps) · weight + bias: see `simdformer.layer_norm`."""

    def __init__(self, weight: ArrayLike, bias: ArrayLike | None, eps: float) -> None:
        self.weight, self.bias, self.eps = weight, bias, eps

    def __call__(self, x: ArrayLike) -> Array:
        return self.f.layer_norm(x, self.weight, self.bias, eps=self.eps)

    def __repr__(self) -> str:
        return f"LayerNorm({shape_of(self.weight)}, eps={self.eps})"


class Embedding(Layer):
    """Ids (...) to rows of weight (V, E): (..., E).

    `.as_linear(x)` is the way back, x weightᵀ: the logits of a model whose embeddings are tied.
    """

    def __init__(self, weight: ArrayLike) -> None:
        two_axes("Embedding", "weight", weight)
        self.weight = weight

    def __call__(self, ids: ArrayLike) -> Array:
        return self.f.embedding(ids, self.weight)

    def as_linear(self, x: ArrayLike) -> Array:
        """x (..., E) -> (..., V)"""
        check_input("Embedding", "x", x, "(..., {})", shape_of(self.weight)[1])
        return self.f.linear_of(x, self.weight)

    def __repr__(self) -> str:
        return "Embedding(vocab_size={}, hidden_size={})".format(*shape_of(self.weight))


class TransformerBlock(Layer):
    """One layer: h = x + attention(attn_norm(x)), then h + mlp(mlp_norm(h)).

    `attention` is a GroupedQueryAttention or a MultiHeadAttention, the others any callables on
    arrays. Calling it: x (..., L, E) -> (..., L, E); mask and positions go to the attention.
    """

    def __init__(
        self,
        attention: GroupedQueryAttention | MultiHeadAttention,
        mlp: Callable[[Any], Array],
        attn_norm: Callable[[Any], Array],
        mlp_norm: Callable[[Any], Array],
    ) -> None:
        self.attention, self.mlp = attention, mlp
        self.attn_norm, self.mlp_norm = attn_norm, mlp_norm

    def __call__(
        self, x: ArrayLike, mask: Mask = None, positions: ArrayLike | None = None
    ) -> Array:
        x = self.f.as_array("TransformerBlock", "x", x)
        h = x + self._attend(self.attn_norm(x), mask, positions)
        out: Array = h + self.mlp(self.mlp_norm(h))
        return out

    def _attend(self, x: Array, mask: Mask, positions: ArrayLike | None) -> Array:
        if not isinstance(self.attention, MultiHeadAttention):
            return self.attention(x, mask, positions)
        if positions is not None:
            raise ValueError(
                "TransformerBlock: positions are given, needs an attention that has RoPE; "
                "MultiHeadAttention has none"
            )
        return self.attention(x, x, x, mask)

    def __repr__(self) -> str:
        parts = (self.attention, self.mlp, self.attn_norm, self.mlp_norm)
        return f"TransformerBlock({', '.join(map(repr, parts))})"
