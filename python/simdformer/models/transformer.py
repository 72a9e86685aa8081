"""The transformer. Llama, Qwen, MiniMind and Mistral are this one file and a ModelConfig.

    x = embed[ids]
    each layer:   x = x + attention(rms_norm(x)),   x = x + mlp(rms_norm(x))
    logits = lm_head rms_norm(x)

Letters in shapes: B sequences, L new positions, S positions visible, E hidden_size, H heads,
K key/value heads, D head_dim, V vocabulary.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from simdformer.functional import (
    embedding,
    linear,
    rms_norm,
    rope,
    rope_frequencies,
    scaled_dot_product_attention,
    swiglu,
)
from simdformer.models.cache import KVCache
from simdformer.models.checkpoint import Tensor
from simdformer.models.config import ModelConfig
from simdformer.models.forward_pass import ForwardPass, checked_ids
from simdformer.models.trace import Trace
from simdformer.models.weights import Weights, check_dtypes, check_weights
from simdformer.types import Array

__all__ = ["Transformer"]


class Transformer:
    """A decoder-only transformer on ids: `logits = model(ids)`.

    Parameters
    ----------
    config : ModelConfig
    weights : dict of arrays
        Under the names and in the shapes of `weight_shapes(config)`. They are packed, so that
        neither the arrays nor the file behind them are needed afterwards.
    dtype : dtype, optional
        What the weights are converted to; None: as they are.
    activations : dtype
        Of the arithmetic between the kernels; float32 beside weights of 16 bits is the usual.

    Raises
    ------
    CheckpointError
        The weights do not fit the config. (It is a ValueError.)
    TypeError
        The kernels do not take weights of such a dtype beside such activations.

    >>> import numpy as np
    >>> from simdformer.models import ModelConfig, Transformer, weight_shapes
    >>> config = ModelConfig(
    ...     hidden_size=8, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4,
    ...     intermediate_size=12, vocab_size=16, max_seq_len=32, norm_eps=1e-5,
    ...     rope_theta=10000.0, rope_layout="half", tie_embeddings=True)
    >>> rng = np.random.default_rng(0)
    >>> shapes = weight_shapes(config)
    >>> model = Transformer(config, {name: rng.normal(size=shapes[name]) for name in shapes},
    ...                     dtype="float32")
    >>> cache = model.new_cache()
    >>> model([3, 1, 4], cache).shape, model([1], cache).shape
    ((3, 16), (1, 16))
    >>> logits, trace = model.run_with_cache([3, 1, 4, 1])
    >>> trace["layers.1.attn.pattern"].shape
    (2, 4, 4)
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        dtype: npt.DTypeLike | None = None,
        activations: npt.DTypeLike = "float32",
    ) -> None:
        self.config = config
        self.activations: np.dtype[Any] = np.dtype(activations)
        check_weights(config, weights)
        check_dtypes(weights, dtype, self.activations)
        self.weights = Weights.prepare(config, weights, dtype)
        self.inv_freq, self.attention_factor = rope_frequencies(
            config.head_dim, theta=config.rope_theta, scaling=config.rope_scaling
        )

    def __call__(
        self, ids: npt.ArrayLike, cache: KVCache | None = None, logits_to_keep: int | None = None
    ) -> Array:
        """ids (L,) or (B,L) -> float32 logits (L,V) or (B,L,V).

        With a cache the ids continue what is in it and are appended to it. `logits_to_keep` n
        gives the logits of the last n positions only. TypeError for ids that are no integers,
        IndexError for one outside the vocabulary, ValueError when the cache is full or belongs to
        another model.
        """
        ids = checked_ids(ids)
        logits = self.forward(np.atleast_2d(ids), cache, logits_to_keep, None)
        return logits if ids.ndim == 2 else logits[0]

    def run_with_cache(
        self, ids: npt.ArrayLike, names: str | Iterable[str] | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """The logits, and every activation by name; with `names` (globs) only those.

        embed, layers.{i}.{resid_pre, attn_norm, attn.q, attn.k, attn.v, attn.q_rot, attn.k_rot,
        attn.scores, attn.pattern, attn.z, attn.out, resid_mid, mlp_norm, mlp.gate, mlp.up,
        mlp.act, mlp.out, resid_post}, final_norm, logits; attn.q_normed and attn.k_normed where
        the model has them. q, k, v, z are (L,H,D) or (L,K,D), scores (scaled, -inf where hidden)
        and pattern (H,L,S), mlp.gate, up, act (L,intermediate_size), the others (L,E), with a
        batch axis in front when ids have one. An unknown name: KeyError that lists near ones.
        """
        ids = checked_ids(ids)
        trace = Trace(self.config, names, batched=ids.ndim == 2)
        logits = self.forward(np.atleast_2d(ids), None, None, trace)
        return logits if ids.ndim == 2 else logits[0], trace.in_order(self.config)

    def new_cache(
        self, max_seq_len: int | None = None, batch: int = 1, dtype: npt.DTypeLike = "float32"
    ) -> KVCache:
        """An empty cache for this model, for `max_seq_len` positions (None: the config's)."""
        return KVCache(
            num_layers=self.config.num_layers,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            max_seq_len=self.config.max_seq_len if max_seq_len is None else max_seq_len,
            batch=batch,
            dtype=dtype,
        )

    # ---- the model, from here on as in the paper -------------------------------------------------

    def forward(
        self, ids: Array, cache: KVCache | None, logits_to_keep: int | None, trace: Trace | None
    ) -> Array:
        """ids (B,L) -> logits (B,L,V)"""
        if logits_to_keep is not None and logits_to_keep < 1:
            raise ValueError(
                f"model: logits_to_keep is {logits_to_keep}, needed is None (all) or n >= 1"
            )
        run = ForwardPass.begin(self.config, ids, cache, trace)
        x = embed = embedding(ids, self.weights.embed, dtype=self.activations)
        for layer in range(self.config.num_layers):
            x = self.block(layer, x, run)
        if cache is not None:
            cache.advance(ids.shape[1])

        kept = x if logits_to_keep is None else x[:, -logits_to_keep:]
        normed = rms_norm(kept, self.weights.final_norm, eps=self.config.norm_eps)
        logits: Array = linear(normed, self.weights.lm_head).astype(np.float32, copy=False)
        if trace is not None:
            trace.record(None, {"embed": embed, "final_norm": normed, "logits": logits})
        return logits

    def block(self, layer: int, x: Array, run: ForwardPass) -> Array:
        """x (B,L,E) -> (B,L,E)"""
        weights, eps = self.weights.layers[layer], self.config.norm_eps
        attn_norm = rms_norm(x, weights.attn_norm, eps=eps)
        attention = self.attention(layer, attn_norm, run)
        h = x + attention
        mlp_norm = rms_norm(h, weights.mlp_norm, eps=eps)
        mlp = self.mlp(layer, mlp_norm, run)
        out: Array = h + mlp
        if run.trace is not None:
            run.trace.record(layer, {"resid_pre": x, "attn_norm": attn_norm, "attn.out": attention})
            run.trace.record(layer, {"resid_mid": h, "mlp_norm": mlp_norm, "mlp.out": mlp})
            run.trace.record(layer, {"resid_post": out})
        return out

    def attention(self, layer: int, x: Array, run: ForwardPass) -> Array:
        """x (B,L,E) -> (B,L,E): the new positions attend to what the cache holds and themselves"""
        weights, config = self.weights.layers[layer], self.config
        batch, new, _ = x.shape
        q, k, v = linear(x, weights.wq_wk_wv, weights.qkv_bias)
        q = q.reshape(batch, new, config.num_heads, config.head_dim)
        k = k.reshape(batch, new, config.num_kv_heads, config.head_dim)
        v = v.reshape(batch, new, config.num_kv_heads, config.head_dim)
        q_normed, k_normed = q, k
        if config.qk_norm:
            q_normed = rms_norm(q, weights.q_norm, eps=config.norm_eps)
            k_normed = rms_norm(k, weights.k_norm, eps=config.norm_eps)
        q_rot, k_rot = self.rotated(q_normed, run), self.rotated(k_normed, run)  # heads first
        keys, values = k_rot, v.swapaxes(1, 2)  # (B,K,S,D)
        if run.cache is not None:
            keys, values = run.cache.write(layer, keys, values)

        z = np.empty_like(q)  # (B,L,H,D): written through a view, so that heads are merged already
        traced = run.trace is not None and run.trace.wants(layer, "attn.scores", "attn.pattern")
        attended = scaled_dot_product_attention(
            q_rot,
            keys,
            values,
            is_causal=True,
            causal_offset=run.offset,
            window=config.window(layer),
            return_weights=traced,
            return_scores=traced,
            out=z.swapaxes(1, 2),
        )
        width = config.num_heads * config.head_dim
        out: Array = linear(z.reshape(batch, new, width), weights.wo, weights.wo_bias)
        if run.trace is not None:
            run.trace.record(layer, {"attn.q": q, "attn.k": k, "attn.v": v, "attn.z": z})
            run.trace.record(layer, {"attn.q_normed": q_normed, "attn.k_normed": k_normed})
            run.trace.record(layer, {"attn.q_rot": q_rot.swapaxes(1, 2)})
            run.trace.record(layer, {"attn.k_rot": k_rot.swapaxes(1, 2)})
            if traced:
                run.trace.record(layer, {"attn.pattern": attended[1], "attn.scores": attended[2]})
        return out

    def mlp(self, layer: int, x: Array, run: ForwardPass) -> Array:
        """x (B,L,E) -> (B,L,E): down(silu(gate x) * up x)"""
        weights = self.weights.layers[layer]
        gate, up = linear(x, weights.gate_up)
        act = swiglu(gate, up)
        out: Array = linear(act, weights.down)
        if run.trace is not None:
            run.trace.record(layer, {"mlp.gate": gate, "mlp.up": up, "mlp.act": act})
        return out

    def rotated(self, x: Array, run: ForwardPass) -> Array:
        """x (B,L,H,D) -> (B,H,L,D), every head turned by its position"""
        return rope(
            x.swapaxes(1, 2),
            layout=self.config.rope_layout,
            positions=run.positions,
            inv_freq=self.inv_freq,
            attention_factor=self.attention_factor,
        )
