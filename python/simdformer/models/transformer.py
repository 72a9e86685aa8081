"""The transformer. Llama, Qwen, Gemma, GPT-2 and their like are this one file and a ModelConfig.

    x = embed[ids]
    each layer:   x = x + attention(rms_norm(x)),   x = x + mlp(rms_norm(x))
    logits = lm_head rms_norm(x)

Some models have a norm behind attention and MLP too, or instead; some scale what is added, or the
embeddings or logits; GPT-2 has LayerNorms, and adds a vector for the position where others turn
queries and keys; some have many MLPs, experts, of which each position goes through a few. Where a
ModelConfig says nothing of that, nothing is done.

Letters in shapes: B sequences, L new positions, S positions visible, E hidden_size, H heads,
K key/value heads, D head_dim, I intermediate_size, X experts, k of them a position, V vocabulary.
"""

from typing import Any

import numpy as np

from simdformer.experts import combine_experts, expert_linear, expert_weights, top_k
from simdformer.functional import (
    RopeFrequencies,
    embedding,
    layer_norm,
    linear,
    rms_norm,
    rope,
    scaled_dot_product_attention,
)
from simdformer.models.activations import GATED, PLAIN, added, clamped_swiglu, sigmoid
from simdformer.models.adapters import linear_of
from simdformer.models.batch_pass import BatchPass
from simdformer.models.cache import KVCache
from simdformer.models.decoder import Decoder
from simdformer.models.forward_pass import ForwardPass
from simdformer.models.observer import (
    Observer,
    See,
    see_attention,
    see_experts,
    see_results,
    see_scale,
    unseen,
)
from simdformer.models.ranks import Split
from simdformer.models.weights import ExpertWeights, MLPWeights
from simdformer.runtime import awake
from simdformer.types import Array

__all__ = ["Transformer"]


class Transformer(Decoder):
    """A decoder-only transformer on ids: `logits = model(ids)`.

    Parameters
    ----------
    config : ModelConfig
    weights : dict of arrays, tensors on the CPU or QuantizedWeights
        Under the names and in the shapes of `weight_shapes(config)`. They are packed, so that
        neither they nor the file behind them are needed afterwards.
    dtype : dtype, optional
        What the weights are converted to, quantised ones too; None: as they are.
    activations : dtype
        That of the arithmetic between the kernels; float32 beside weights of 16 bits is the usual.
    arithmetic : "int16" or "float32"
        How activations meet quantised weights, see `linear`.
    communicator : Communicator, optional
        All processes that hold the model together, each a part: `simdformer.parallel` has one.
        Every one of them is given the whole weights, calls the same methods, and gets the same.

    Raises
    ------
    ValueError
        The weights do not fit the config.
    TypeError
        The kernels do not take weights of such a dtype beside such activations.
    BufferError
        A tensor is not on the CPU, or requires a gradient while PyTorch records them.

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

    @awake
    def forward(
        self,
        ids: Array,
        cache: KVCache | None,
        logits_to_keep: int | None,
        observer: Observer | None,
    ) -> Array:
        """ids (B,L) -> logits (B,L,V)"""
        run = ForwardPass.begin(self.own, ids, cache, observer)
        x = self.residual(ids, run)
        run.advance()
        kept = x if logits_to_keep is None else x[:, -logits_to_keep:]
        return run.at()("logits", self.unembed(kept, run.at()))

    @awake
    def forward_batch(self, run: BatchPass) -> list[Array]:
        """The new ids of several sequences -> the logits (rows,V) that each piece of them wants"""
        x = self.residual(run.ids, run)
        run.advance()
        logits = self.unembed(x[0, run.answers])
        return [logits[part] for part in run.parts]

    def residual(self, ids: Array, run: ForwardPass | BatchPass) -> Array:
        """ids (B,L) -> x (B,L,E), the residual stream behind the last layer"""
        first, x = run.start or (0, self.embedded(ids, run))
        for layer in range(first, self.config.num_layers):
            x = self.block(layer, x, run)
        return x

    def embedded(self, ids: Array, run: ForwardPass | BatchPass) -> Array:
        """ids (B,L) -> x (B,L,E), the residual stream in front of the first layer"""
        see = run.at()
        x = self.ranks.embedding(ids, self.weights.embed, self.activations)
        x = see("embed", scaled(x, self.config.embed_scale))
        if self.weights.pos_embed is not None:
            where = np.broadcast_to(run.positions, ids.shape)
            where = embedding(where, self.weights.pos_embed, dtype=self.activations)
            x = x + see("pos_embed", where)
        return x

    def unembed(self, x: Array, see: See = unseen) -> Array:
        """x (...,E) -> float32 logits (...,V): the final norm and the lm_head"""
        x = x.astype(self.activations, copy=False)
        bias = self.weights.final_norm_bias
        normed = self.norm(x, self.weights.final_norm, bias)
        if see.wants("final_norm_scale"):
            normed = see_scale(see, x, normed, bias, self.config)
        logits = self.linear(see("final_norm", normed), self.weights.lm_head)
        logits = self.ranks.all_gather(logits, "vocabulary", axis=-1)
        logits = scaled(logits.astype(np.float32, copy=False), 1 / self.config.logit_divisor)
        return softcapped(logits, self.config.logit_softcap)

    def block(self, layer: int, x: Array, run: ForwardPass | BatchPass) -> Array:
        """x (B,L,E) -> (B,L,E)"""
        weights, factor, see = self.weights.layers[layer], self.config.residual_scale, run.at(layer)
        x = see("resid_pre", x)
        normed = see("attn_norm", self.norm(x, weights.attn_norm, weights.attn_norm_bias))
        out = self.attention(layer, normed, run)
        out = self.norm(out, weights.attn_out_norm, weights.attn_out_norm_bias)
        x = see("resid_mid", added(x, see("attn.out", scaled(out, factor))))
        normed = see("mlp_norm", self.norm(x, weights.mlp_norm, weights.mlp_norm_bias))
        out = self.mlp(layer, normed, run)
        out = self.norm(out, weights.mlp_out_norm, weights.mlp_out_norm_bias)
        return see("resid_post", added(x, see("mlp.out", scaled(out, factor))))

    def norm(self, x: Array, weight: Array | None, bias: Array | None = None) -> Array:
        """x (...,E) -> (...,E); as it is where the model has no such norm"""
        if weight is None:
            return x
        if self.config.norm == "layer_norm":
            return layer_norm(x, weight, bias, eps=self.config.norm_eps)
        return rms_norm(x, weight, eps=self.config.norm_eps)

    def attention(self, layer: int, x: Array, run: ForwardPass | BatchPass) -> Array:
        """x (B,L,E) -> (B,L,E): the new positions attend to what the cache holds and themselves"""
        weights, config, see = self.weights.layers[layer], self.own, run.at(layer)
        batch, new, _ = x.shape
        q, k, v = self.linear(x, weights.wq_wk_wv, weights.qkv_bias)
        q = see("attn.q", q.reshape(batch, new, config.num_heads, config.head_dim))
        k = see("attn.k", k.reshape(batch, new, config.num_kv_heads, config.head_dim))
        v = see("attn.v", v.reshape(batch, new, config.num_kv_heads, config.head_dim))
        q = see("attn.q_normed", self.norm_heads(q, weights.q_norm, "heads"))
        k = see("attn.k_normed", self.norm_heads(k, weights.k_norm, "kv_heads"))
        q = see("attn.q_rot", self.rotated(layer, q, run))
        k = see("attn.k_rot", self.rotated(layer, k, run))

        z: Array = np.empty(q.shape, q.dtype)  # (B,L,H,D): written as a view, so that heads merge
        seen = see.wants("attn.scores", "attn.pattern")
        for part in run.attending(layer, q, k, v, z):
            attended = scaled_dot_product_attention(
                part.query,
                part.keys,
                part.values,
                scale=config.attention_scale,
                softcap=config.attention_softcap,
                is_causal=True,
                causal_offset=part.offset,
                window=config.window(layer),
                key_lengths=part.key_lengths,
                block_table=part.block_table,
                sinks=weights.sinks,
                return_weights=seen,
                return_scores=seen,
                out=part.out,
            )
        if seen:
            _, pattern, scores = attended
            z = see_attention(see, scores, pattern, part.values, z, weights.sinks)
        z = see("attn.z", z)
        merged = z.reshape(batch, new, config.num_heads * config.head_dim)
        out: Array = self.linear(merged, weights.wo, weights.wo_bias)
        if see.wants("attn.result"):
            out = see_results(see, z, out, lambda alone: self.linear(alone, weights.wo))
        return self.ranks.all_reduce(out)

    def mlp(self, layer: int, x: Array, run: ForwardPass | BatchPass) -> Array:
        """x (B,L,E) -> (B,L,E): one MLP, or a mixture of experts"""
        weights, see = self.weights.layers[layer].mlp, run.at(layer)
        if isinstance(weights, ExpertWeights):
            return self.ranks.all_reduce(self.mixture(weights, x, see))
        return self.ranks.all_reduce(self.feed_forward(weights, x, see, "mlp"))

    def feed_forward(self, weights: MLPWeights, x: Array, see: See, name: str) -> Array:
        """x (B,L,E) -> (B,L,E): down(activation(gate x) * up x), or down(activation(up x))"""
        inner = self.linear(x, weights.gate_up, weights.gate_up_bias)
        act = self.activated(inner, see, name)
        out: Array = self.linear(act, weights.down, weights.down_bias)
        return out

    def activated(self, inner: list[Array], see: See, name: str) -> Array:
        """activation(gate) * up, of [gate, up]; activation(up), of [up]"""
        config = self.config
        if not config.gated_mlp:
            (up,) = inner
            return see(f"{name}.act", PLAIN[config.activation](see(f"{name}.up", up)))
        gate, up = see(f"{name}.gate", inner[0]), see(f"{name}.up", inner[1])
        if config.activation == "clamped_swiglu":
            act = clamped_swiglu(gate, up, config.swiglu_alpha, config.swiglu_limit)
        else:
            act = GATED[config.activation](gate, up)
        return see(f"{name}.act", act)

    def mixture(self, weights: ExpertWeights, x: Array, see: See) -> Array:
        """x (B,L,E) -> (B,L,E): the k of X experts that a router likes best, each by its weight"""
        config = self.config
        logits = see("mlp.router", self.linear(x, weights.router, weights.router_bias))
        ids = see_experts(see, top_k(logits, config.num_experts_per_tok), config.num_experts)
        shares = expert_weights(logits, ids, normalize=config.normalize_expert_weights)
        shares = see("mlp.expert_weights", shares)  # (B,L,k)
        held = self.ranks.place_of_experts(ids)
        inner = self.expert_linear(x[..., None, :], held, *weights.gate_up)  # (B,L,k,I)
        (out,) = self.expert_linear(self.activated(inner, see, "mlp"), held, *weights.down)
        summed = combine_experts(see("mlp.expert_out", out), shares)
        if weights.shared is not None:  # an MLP for all positions
            beside = self.feed_forward(weights.shared, x, see, "mlp.shared")
            if weights.shared_router is not None:
                share = see("mlp.shared.weight", sigmoid(self.linear(x, weights.shared_router)))
                beside = beside * share
            summed = added(summed, see("mlp.shared.out", beside))
        return summed

    def linear(self, x: Array, weight: Any, bias: Any = None) -> Any:
        """x (...,I) weight (O,I) -> (...,O), by the arithmetic that was asked for"""
        multiply = linear_of if self.adapters else linear
        return multiply(x, weight, bias, arithmetic=self.arithmetic)

    def expert_linear(self, x: Array, ids: Array, weights: Any, biases: Any = None) -> list[Array]:
        """x (B,L,k,I), or (B,L,1,I) for all k, ids (B,L,k) -> (B,L,k,O) by each list of experts"""
        return expert_linear(x, ids, weights, biases, arithmetic=self.arithmetic)

    def norm_heads(self, x: Array, weight: Array | None, split: Split) -> Array:
        """x (B,L,H,D) -> (B,L,H,D): over each head, or over all of a position as one vector"""
        if weight is None or self.config.qk_norm_over == "head":
            return self.norm(x, weight)
        every = self.ranks.all_gather(x, split, axis=2)
        normed = self.norm(every.reshape(*every.shape[:2], len(weight)), weight)
        return self.ranks.part(normed.reshape(every.shape), split, axis=2)

    def rotated(self, layer: int, x: Array, run: ForwardPass | BatchPass) -> Array:
        """x (B,L,H,D) -> (B,L,H,D), every head turned by its position"""
        if (tables := self.rope_of_layers[layer]) is None:
            return x

        def turned(table: RopeFrequencies) -> Array:
            return rope(
                x.swapaxes(1, 2),
                layout=self.config.rope_layout,
                positions=run.positions,
                inv_freq=table.inv_freq,
                attention_factor=table.attention_factor,
                rotary_dim=self.config.rotary_dim,
            ).swapaxes(1, 2)

        return run.by_length(turned, tables)


def scaled(x: Array, factor: float) -> Array:
    """x * factor in the dtype of x"""
    return x if factor == 1 else (x * factor).astype(x.dtype, copy=False)


def softcapped(x: Array, softcap: float | None) -> Array:
    """softcap * tanh(x / softcap), which stays below softcap"""
    return x if softcap is None else softcap * np.tanh(x / softcap)
