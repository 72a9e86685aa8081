"""The transformer: Llama, Qwen, MiniMind and Mistral are this one file with the switches of a ModelConfig.

    x = embed[ids]
    each layer:   x = x + attention(rms_norm(x)),   x = x + mlp(rms_norm(x))
    logits = lm_head rms_norm(x)

Letters in shapes: B sequences, L new positions, S positions visible, E hidden_size, H heads, K key/value heads,
D head_dim, V vocabulary.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
from simdformer.models.config import ModelConfig
from simdformer.models.trace import Trace
from simdformer.models.weights import Weights

__all__ = ["Transformer"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Pass:
    """What the layers of one forward pass share."""

    positions: npt.NDArray[np.int64]  # of the new ids: (L,), or (B,L) where the sequences of a cache differ in length
    offset: int | npt.NDArray[np.int64]  # position of the first of them, one or (B,)
    cache: KVCache | None
    trace: Trace | None


class Transformer:
    """A decoder-only transformer on ids: `logits = model(ids)`.

    `weights` are arrays under the names and shapes of `simdformer.models.weights.weight_shapes(config)`; they are
    converted to `dtype` (None: kept), packed and copied. `activations` is the dtype of the arithmetic between the
    kernels: "float32" unless said otherwise.

    Raises CheckpointError (a ValueError) when the weights do not fit the config.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Array],
        *,
        dtype: npt.DTypeLike | None = None,
        activations: npt.DTypeLike = "float32",
    ) -> None:
        self.config = config
        self.activations: np.dtype[Any] = np.dtype(activations)
        self.weights = Weights.prepare(config, weights, dtype)
        self.inv_freq, self.attention_factor = rope_frequencies(
            config.head_dim, theta=config.rope_theta, scaling=config.rope_scaling
        )

    def __call__(
        self, ids: npt.ArrayLike, cache: KVCache | None = None, logits_to_keep: int | None = None
    ) -> Array:
        """ids (L,) or (B,L) -> logits (L,V) or (B,L,V) in float32, of the last `logits_to_keep` positions (None: all).

        With a cache the ids continue what is in it and are appended to it. TypeError for ids that are no integers,
        IndexError for one outside the vocabulary, ValueError when the cache is full or belongs to another model.
        """
        ids = checked_ids(ids)
        logits = self.forward(np.atleast_2d(ids), cache, logits_to_keep, None)
        return logits if ids.ndim == 2 else logits[0]

    def run_with_cache(
        self, ids: npt.ArrayLike, names: str | Iterable[str] | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """The logits, and every activation by name (`names`: only those; globs such as "layers.*.attn.pattern").

        Names: embed, layers.{i}.{resid_pre, attn_norm, attn.q, attn.k, attn.v, attn.q_rot, attn.k_rot, attn.scores,
        attn.pattern, attn.z, attn.out, resid_mid, mlp_norm, mlp.gate, mlp.up, mlp.act, mlp.out, resid_post},
        final_norm, logits; attn.q_normed and attn.k_normed where the model has them. Shapes: q, k, v, z (L,H or K,D),
        scores (scaled, -inf where hidden) and pattern (H,L,S), mlp.* (L, intermediate_size), the others (L,E); a
        batch axis in front when ids have one. An unknown name: KeyError.
        """
        ids = checked_ids(ids)
        trace = Trace(self.config, names, batched=ids.ndim == 2)
        logits = self.forward(np.atleast_2d(ids), None, None, trace)
        return logits if ids.ndim == 2 else logits[0], trace.in_order(self.config)

    def new_cache(
        self, max_seq_len: int | None = None, batch: int = 1, dtype: npt.DTypeLike = "float32"
    ) -> KVCache:
        """An empty cache for this model; `max_seq_len` positions (None: all that the model was made for)."""
        return KVCache(
            num_layers=self.config.num_layers,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            max_seq_len=self.config.max_seq_len if max_seq_len is None else max_seq_len,
            batch=batch,
            dtype=dtype,
        )

    # ---- the model, from here on as in the paper -----------------------------------------------------------------

    def forward(
        self, ids: Array, cache: KVCache | None, logits_to_keep: int | None, trace: Trace | None
    ) -> Array:
        """ids (B,L) -> logits (B,L,V)"""
        run = self.begin(ids, cache, logits_to_keep, trace)
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

    def block(self, layer: int, x: Array, run: Pass) -> Array:
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
            run.trace.record(layer, {"resid_mid": h, "mlp_norm": mlp_norm, "mlp.out": mlp, "resid_post": out})
        return out

    def attention(self, layer: int, x: Array, run: Pass) -> Array:
        """x (B,L,E) -> (B,L,E): grouped-query attention of the new positions on themselves and what the cache holds"""
        weights, config = self.weights.layers[layer], self.config
        batch, new, _ = x.shape
        qkv = linear(x, weights.wq_wk_wv, weights.qkv_bias)
        q, k, v = (y.reshape(batch, new, -1, config.head_dim) for y in qkv)  # (B,L,H,D), (B,L,K,D) twice
        q_normed = k_normed = None
        if weights.q_norm is not None:
            q_normed = rms_norm(q, weights.q_norm, eps=config.norm_eps)
            k_normed = rms_norm(k, weights.k_norm, eps=config.norm_eps)
        q_rot = self.rotated(q if q_normed is None else q_normed, run)  # (B,H,L,D)
        k_rot = self.rotated(k if k_normed is None else k_normed, run)
        keys, values = k_rot, v.swapaxes(1, 2)  # (B,K,S,D)
        if run.cache is not None:
            keys, values = run.cache.write(layer, keys, values)

        z = np.empty_like(q)  # (B,L,H,D): attention writes it transposed, so that merging the heads copies nothing
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
        out: Array = linear(z.reshape(batch, new, -1), weights.wo, weights.wo_bias)
        if run.trace is not None:
            _, pattern, scores = attended if traced else (None, None, None)
            run.trace.record(layer, {"attn.q": q, "attn.k": k, "attn.v": v})
            run.trace.record(layer, {"attn.q_normed": q_normed, "attn.k_normed": k_normed})
            run.trace.record(layer, {"attn.q_rot": q_rot.swapaxes(1, 2), "attn.k_rot": k_rot.swapaxes(1, 2)})
            run.trace.record(layer, {"attn.scores": scores, "attn.pattern": pattern, "attn.z": z})
        return out

    def mlp(self, layer: int, x: Array, run: Pass) -> Array:
        """x (B,L,E) -> (B,L,E): down(silu(gate x) * up x)"""
        weights = self.weights.layers[layer]
        gate, up = linear(x, weights.gate_up)
        act = swiglu(gate, up)
        out: Array = linear(act, weights.down)
        if run.trace is not None:
            run.trace.record(layer, {"mlp.gate": gate, "mlp.up": up, "mlp.act": act})
        return out

    # ---- positions -----------------------------------------------------------------------------------------------

    def rotated(self, x: Array, run: Pass) -> Array:
        """x (B,L,H,D) -> (B,H,L,D), turned by its positions"""
        return rope(
            x.swapaxes(1, 2),
            layout=self.config.rope_layout,
            positions=run.positions,
            inv_freq=self.inv_freq,
            attention_factor=self.attention_factor,
        )

    def begin(
        self, ids: Array, cache: KVCache | None, logits_to_keep: int | None, trace: Trace | None
    ) -> Pass:
        """Checks a call and finds the positions of its ids."""
        batch, new = ids.shape
        if logits_to_keep is not None and logits_to_keep < 1:
            raise ValueError(f"model: logits_to_keep is {logits_to_keep}, needed is None (all) or n >= 1")
        if cache is None:
            if new > self.config.max_seq_len:
                raise ValueError(
                    f"model: {new} ids are more than max_seq_len = {self.config.max_seq_len}; shorten them, "
                    "or load the model with a larger max_seq_len"
                )
            return Pass(np.arange(new), 0, None, trace)
        layers, _, sequences, kv_heads, _, head_dim = cache.data.shape
        found, config = (layers, kv_heads, head_dim, sequences), self.config
        if found != (config.num_layers, config.num_kv_heads, config.head_dim, batch):
            raise ValueError(
                f"model: cache has (layers, key/value heads, head_dim, batch) = {found}, needed is "
                f"{(config.num_layers, config.num_kv_heads, config.head_dim, batch)}; make one with new_cache()"
            )
        cache.require_room(new)
        start = int(cache.lengths[0])
        if (cache.lengths == start).all():
            return Pass(np.arange(start, start + new), start, cache, trace)
        return Pass(cache.lengths[:, None] + np.arange(new), cache.lengths.copy(), cache, trace)


def checked_ids(ids: npt.ArrayLike) -> Array:
    """ids as an integer array of one or two axes."""
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iu" and ids.size:
        raise TypeError(f"model: ids are {ids.dtype}, needed are integers; the tokenizer's encode gives them")
    if ids.ndim not in (1, 2):
        raise ValueError(f"model: ids have shape {ids.shape}, needed is (L,) or (B,L)")
    return ids if ids.dtype.kind in "iu" else ids.astype(np.int64)
