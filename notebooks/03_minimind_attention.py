# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 · The attention of MiniMind, line by line
#
# **MiniMind** is a small language model by [jingyaogong](https://github.com/jingyaogong/minimind) that many people train at
# home. A [guide to its attention](https://github.com/joyehuang/minimind-notes) by joyehuang goes through one class,
# `Attention`, in nine steps, and sets three exercises. This notebook takes the same nine steps, and does the exercises.
# Thanks to both.
#
# [The same as an exercise](exercises/03_minimind_attention.ipynb): what you write is left out there, and checked.
#
# You know attention from notebook 01. New are **grouped heads**, **rotary positions** and the **KV cache**. The rhythm
# stays: you write the step in numpy, the kernel computes it too, and
#
# ```python
# sf.check(sf.repeat_kv, mine, k, 4, axis=-2).raise_if_wrong()
# ```
#
# stops the notebook if `mine` is not what `sf.repeat_kv(k, 4, axis=-2)` should give, and says what went wrong.
#
# | letter | meaning | in the guide |
# |---|---|---|
# | `B` | sequences (the batch) | |
# | `S` | tokens in each | |
# | `E` | numbers per token (`hidden_size`) | 512 |
# | `H`, `K` | query heads, key/value heads | 8, 2 |
# | `D` | numbers per head (`head_dim`) | 64 |

# %%
import os
from math import sqrt

import matplotlib.pyplot as plt
import numpy as np

import simdformer as sf
from simdformer.checkpoints import read_checkpoint
from simdformer.models import ModelConfig, Transformer, weight_shapes

rng = np.random.default_rng(3)


def random(*shape):
    """Normally distributed float32 numbers: what activations look like after a norm."""
    return rng.standard_normal(shape, dtype=np.float32)


def random_weights(config):
    """Matrices that keep the size of what goes through them; norm weights around 1."""
    return {
        name: 1 + random(*shape) / 4 if len(shape) == 1 else random(*shape) / sqrt(shape[-1])
        for name, shape in weight_shapes(config).items()
    }


# %% [markdown]
# ### Which weights
#
# By default the weights are random, in the sizes of the guide: a right step is right for any weights. If you have
# MiniMind on disk, set `SIMDFORMER_MINIMIND=DIR` before you start Jupyter; then layer 0 of the real model is taken, in
# the sizes that it has.

# %%
folder = os.environ.get("SIMDFORMER_MINIMIND")
if folder:
    checkpoint = read_checkpoint(folder)
    E, H, K, D = (
        getattr(checkpoint.config, name)
        for name in ("hidden_size", "num_heads", "num_kv_heads", "head_dim")
    )
    theta = checkpoint.config.rope_theta
    layer0 = {
        name: np.asarray(checkpoint.weights[f"layers.0.{name}"], np.float32)
        for name in ("attn_norm", "wq", "wk", "wv", "wo")
    }
    tokenizer = sf.tokenizer.load(folder)
    texts = (
        "The capital of France is a city called Paris, and it lies on a river.",
        "Once upon a time there was a small model that lived in a computer at home.",
    )
    sentences = [tokenizer.encode(text)[:12] for text in texts]
    shortest = min(map(len, sentences))
    embedded = checkpoint.weights["embed"][np.array([ids[:shortest] for ids in sentences])]
    x = sf.rms_norm(
        np.asarray(embedded, np.float32), layer0["attn_norm"], eps=checkpoint.config.norm_eps
    )
else:
    E, H, K, D, theta = 512, 8, 2, 64, 1e6
    shapes = {"wq": (H * D, E), "wk": (K * D, E), "wv": (K * D, E), "wo": (E, H * D)}
    layer0 = {name: random(*shape) / sqrt(shape[1]) for name, shape in shapes.items()}
    x = random(2, 12, E)

wq, wk, wv, wo = (layer0[name] for name in ("wq", "wk", "wv", "wo"))
B, S, _ = x.shape
n_rep = H // K
print(f"x {x.shape}   wq {wq.shape}   wk {wk.shape}   wv {wv.shape}   wo {wo.shape}")
print(f"{H} query heads, {K} key/value heads: {n_rep} query heads share one")

# %% [markdown]
# ## 1 · Project, and deal out the heads
#
# Three linear layers give queries, keys and values. `view` in PyTorch, `reshape` in numpy: the last axis is cut into
# heads. There are only `K` heads of keys and values, so `wk` and `wv` are smaller than `wq`.

# %%
xq = (x @ wq.T).reshape(B, S, H, D)
xk = (x @ wk.T).reshape(B, S, K, D)
xv = (x @ wv.T).reshape(B, S, K, D)
print(f"xq {xq.shape}   xk {xk.shape}   xv {xv.shape}")
for mine, weight in ((xq, wq), (xk, wk), (xv, wv)):
    sf.check(sf.linear, mine.reshape(B, S, -1), x, weight).raise_if_wrong()

# %% [markdown]
# ## 2 · RoPE: turn the pairs
#
# The guide keeps a table `freqs_cis` of complex numbers of length 1: one row a position, one column a pair. Two
# neighbouring numbers of a head, `2i` and `2i + 1`, are taken as one complex number, and multiplying turns it. (The
# table is used in the guide's class, but never made there. Here it is.)

# %%
inv_freq = theta ** (-np.arange(0, D, 2) / D)  # one speed a pair
freqs_cis = np.exp(1j * np.outer(np.arange(4096), inv_freq)).astype(np.complex64)
pos_ids = np.arange(S)
print(f"freqs_cis {freqs_cis.shape}, of which {S} rows are used: {freqs_cis[pos_ids].shape}")


def apply_rotary_emb(x, freqs):
    """x (B, S, heads, D), freqs (S, D/2)"""
    # two floats are one complex number: (B, S, heads, D/2)
    pairs = np.ascontiguousarray(x).view(np.complex64)
    return (pairs * freqs[:, None, :]).view(np.float32)  # the same turn for every head


q = apply_rotary_emb(xq, freqs_cis[pos_ids])
k = apply_rotary_emb(xk, freqs_cis[pos_ids])
print(f"q {q.shape}   k {k.shape}")

# %% [markdown]
# `sf.rope` wants the positions on the last axis but one, so heads go in front. That is a view, `swapaxes` moves
# nothing.

# %%
turn = {"layout": "interleaved", "positions": pos_ids, "theta": theta}
sf.check(sf.rope, q.swapaxes(1, 2), xq.swapaxes(1, 2), **turn).raise_if_wrong()
sf.check(sf.rope, k.swapaxes(1, 2), xk.swapaxes(1, 2), **turn).raise_if_wrong()

# %%
sf.plots.rope_turns(inv_freq, positions=S)
plt.show()

# %% [markdown]
# ### Break it yourself: turned by the number of the head
#
# `freqs[:, None, :]` is there because the axes are `(S, heads, D/2)`. Forget the `None`, and numpy lines the table up
# with the *heads*. That fails, unless there happen to be as many tokens as heads. With `H` tokens it runs.

# %%
few = np.ascontiguousarray(xq[:, :H])  # as many tokens as heads
over_heads = (few.view(np.complex64) * freqs_cis[:H]).view(np.float32)
report = sf.check(
    sf.rope, over_heads.swapaxes(1, 2), few.swapaxes(1, 2), layout="interleaved", theta=theta
)
report

# %% [markdown]
# And the other habit that shifts everything: positions that count from one.

# %%
from_one = apply_rotary_emb(xq, freqs_cis[pos_ids + 1])
report = sf.check(
    sf.rope, from_one.swapaxes(1, 2), xq.swapaxes(1, 2), layout="interleaved", theta=theta
)
report

# %% [markdown]
# ## 3 · repeat_kv: a partner for every query head
#
# `K` heads become `H`: each is repeated `n_rep` times, next to itself.


# %%
def repeat_kv(x, n_rep):
    """(B, S, K, D) → (B, S, K · n_rep, D)"""
    B, S, K, D = x.shape
    return np.broadcast_to(x[:, :, :, None, :], (B, S, K, n_rep, D)).reshape(B, S, K * n_rep, D)


keys, values = repeat_kv(k, n_rep), repeat_kv(xv, n_rep)
print(k.shape, "→", keys.shape)
sf.check(sf.repeat_kv, keys, k, n_rep, axis=-2).raise_if_wrong()
sf.check(sf.repeat_kv, values, xv, n_rep, axis=-2).raise_if_wrong()

# %% [markdown]
# ### Break it yourself: tiled
#
# The order `a b a b a b a b` has the right shape, too. Query heads 0 to 3 should all read key head 0.

# %%
tiled = np.tile(k, (1, 1, n_rep, 1))
report = sf.check(sf.repeat_kv, tiled, k, n_rep, axis=-2)
report

# %% [markdown]
# ## 4 · Heads in front
#
# A matrix product works on the last two axes: those must be `(S, D)`. So the heads move in front of the tokens.

# %%
q, keys, values = q.swapaxes(1, 2), keys.swapaxes(1, 2), values.swapaxes(1, 2)
print(f"q {q.shape}   keys {keys.shape}   values {values.shape}")

# %% [markdown]
# ## 5 to 8 · Scores, mask, softmax, weighted sum
#
# $$\text{softmax}\!\left(\frac{q\,k^\top}{\sqrt D} + \text{mask}\right) v$$


# %%
def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


scores = q @ keys.swapaxes(-2, -1) / sqrt(D)
mask = np.triu(np.full((S, S), -np.inf, np.float32), k=1)
masked = scores + mask
attn_weights = softmax(masked)
z = attn_weights @ values
print(f"scores {scores.shape}   mask {mask.shape}")
print(f"attn_weights {attn_weights.shape}   z {z.shape}")

# %% [markdown]
# The kernel takes keys and values with `K` heads, as they are before `repeat_kv`; nothing is repeated in memory. It
# hands out every stage.

# %%
k, v = k.swapaxes(1, 2), xv.swapaxes(1, 2)
sf.check(
    sf.scaled_dot_product_attention,
    (z, attn_weights, masked),
    q,
    k,
    v,
    is_causal=True,
    return_weights=True,
    return_scores=True,
).raise_if_wrong()

# %% [markdown]
# ### Break it yourself: five ways to miss

# %%
too_far = np.triu(np.full((S, S), -np.inf, np.float32), k=2)
for what, mine in {
    "no scale": softmax(scores * sqrt(D) + mask) @ values,
    "divided by D, not by its root": softmax(scores / sqrt(D) + mask) @ values,
    "mask off by one": softmax(scores + too_far) @ values,
    "softmax over the queries": softmax(masked, axis=-2) @ values,
    "a key taken for a value": attn_weights @ keys,
}.items():
    report = sf.check(sf.scaled_dot_product_attention, mine, q, k, v, is_causal=True)
    print(f"{what:<30} → {report.diagnosis[0].title}")
report

# %% [markdown]
# ## 9 · Merge the heads, and mix
#
# Back to `(B, S, H, D)`, then the heads of a token are laid side by side, and `wo` mixes them.
#
# The guide needs `.contiguous()` before `.view(...)`. Why? `transpose` moves no number, it only changes the steps in
# which memory is read. `view` demands that the new shape fits the old steps. Numpy's `reshape` is kinder: it copies
# when it must.

# %%
back = z.swapaxes(1, 2)
print("steps in bytes: z", z.strides, "  swapped", back.strides)
merged = back.reshape(B, S, H * D)

output = merged @ wo.T
print(f"z {z.shape} → {back.shape} → {merged.shape} → output {output.shape}")
sf.check(sf.linear, output, merged, wo).raise_if_wrong()

# %% [markdown]
# The nine steps in a row are the whole class. Its counterpart in the package is `sf.nn.GroupedQueryAttention`.


# %%
def split_heads(x, heads):
    return x.reshape(*x.shape[:-1], heads, D)


def merge_heads(x):
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], H * D)


def attention(x, split=split_heads, merge=merge_heads):
    """(B, S, E) → (B, S, E)"""
    freqs = freqs_cis[: x.shape[1]]
    q = apply_rotary_emb(split(x @ wq.T, H), freqs).swapaxes(1, 2)
    k = apply_rotary_emb(split(x @ wk.T, K), freqs)
    keys, values = (repeat_kv(y, n_rep).swapaxes(1, 2) for y in (k, split(x @ wv.T, K)))
    weights = softmax(q @ keys.swapaxes(-2, -1) / sqrt(D) + mask)
    return merge(weights @ values) @ wo.T


layer = sf.nn.GroupedQueryAttention(E, H, K, wq, wk, wv, wo, rope_layout="interleaved", theta=theta)
print(layer)
sf.check(layer, attention(x), x, mask="causal").raise_if_wrong()

# %% [markdown]
# ### Break it yourself: heads cut and merged in the wrong order
#
# First: the last axis is `(H, D)`, first the number of the head, then the number within it. Cut it as `(D, H)` and
# every head gets each `H`-th number. Second: `(B, H, S, D)` reshapes to `(B, S, H·D)` without a murmur; but a token
# then gets pieces of other tokens. No shape gives either away.

# %%
each_nth = attention(x, split=lambda y, heads: y.reshape(*y.shape[:-1], D, heads).swapaxes(-1, -2))
report = sf.check(layer, each_nth, x, mask="causal")
report

# %%
not_turned_back = attention(x, merge=lambda z: z.reshape(B, S, H * D))
report = sf.check(layer, not_turned_back, x, mask="causal")
report

# %% [markdown]
# ## Exercise 1 · Look at the weights
#
# The guide asks for `plt.imshow(attn_weights[0, 0])`. With random weights there is little to see but the mask:

# %%
sf.plots.attention_heads(attn_weights[0], title="MiniMind, layer 0" if folder else "random weights")
plt.show()

# %% [markdown]
# A *trained* model is more interesting. The demonstration checkpoint reads a little puzzle. The word that goes on after the
# last `is` stands far back in the text, and only attention can bring it from there. Which head looks at it hardest?

# %%
demo = sf.from_pretrained(sf.demo_path())
puzzle = "Mia has a red kite. Ben has a blue boat. What colour is the boat of Ben? It is"
ids = demo.tokenizer.encode(puzzle)
pieces = [demo.tokenizer.decode([one]) for one in ids]
_, trace = demo.run_with_cache(ids)

patterns = np.stack([trace[f"layers.{i}.attn.pattern"] for i in range(demo.config.num_layers)])
blue = pieces.index(" blue")
to_blue = patterns[:, :, -1, blue]  # layers × heads: how much the last token attends to " blue"
at = np.unravel_index(to_blue.argmax(), to_blue.shape)
said = demo.generate(puzzle, max_new_tokens=1)
print(
    f"layer {at[0]}, head {at[1]} attends most to {pieces[blue]!r}; the model goes on with {said!r}"
)

sf.plots.attention_map(patterns[at], pieces, title=f"layer {at[0]}, head {at[1]}")
plt.show()

# %% [markdown]
# That head *looks* hardest. Does it also do the work? Spoil the text: `green` for `blue`. Then put the results of one head,
# from the run on the right text, into the run on the spoilt one. How much of the answer comes back? 0 is nothing, 1 is all.

# %%
spoilt = puzzle.replace("blue", "green")
back = sf.patch(demo, puzzle, spoilt, (" blue", " green"), by="head")
most = np.unravel_index(back.argmax(), back.shape)
print(f"layer {at[0]}, head {at[1]}, which looks hardest, brings back {back[at]:.0%}")
print(
    f"layer {most[0]}, head {most[1]} brings back {back[most]:.0%}; it gives {to_blue[most]:.0%} to {pieces[blue]!r}"
)
sf.plots.patching(back, title="how much of the answer each head brings back")
plt.show()

# %% [markdown]
# Looking is not doing: several heads do the same work, and none of them does much of it alone. Notebook 07 asks on: who
# writes, who is needed, and who tells these heads where to look.

# %% [markdown]
# ## Exercise 2 · Take the scale away
#
# What does the division by $\sqrt D$ do? Measure how *spread out* a row of weights is: its **entropy**. Evenly spread
# over 64 keys it is `log 64 = 4.16`; all on one key, it is 0. And look at the slope of softmax, $\sum_i p_i (1 - p_i)$,
# through which a network learns: where it is 0, nothing is learned.


# %%
def entropy(p):
    return -(p * np.log(np.maximum(p, 1e-30))).sum(-1).mean()


def slope(p):
    return (p * (1 - p)).sum(-1).mean()


widths = np.array([4, 8, 16, 32, 64, 128, 256, 512, 1024])
measured = {"with the scale": [], "without": []}
for width in widths:
    some_q, some_k = random(500, width), random(64, width)
    raw = some_q @ some_k.T
    for name, p in (("with the scale", softmax(raw / sqrt(width))), ("without", softmax(raw))):
        measured[name].append((entropy(p), slope(p)))

print("   D | entropy, scaled / raw | slope, scaled / raw")
for width, (e1, s1), (e2, s2) in zip(widths, *measured.values(), strict=True):
    print(f"{width:4d} | {e1:10.2f} / {e2:8.2f} | {s1:10.2f} / {s2:6.2f}")
with_scale, without = (np.array(values)[:, 0] for values in measured.values())

# %%
sf.plots.lines(
    widths,
    {"scores / √D": with_scale, "scores as they are": without},
    xlabel="D, numbers per head",
    ylabel="entropy of a row",
    level=("evenly spread: log 64", np.log(64)),
    title="without the scale, wide heads attend to one token alone",
)
plt.show()

# %% [markdown]
# The same in the layer of this notebook: without the scale its heads are surer of themselves, for no reason.

# %%
no_scale = softmax(scores * sqrt(D) + mask)
later = slice(S // 2, None)  # the first tokens have few to choose from
sure, unsure = entropy(no_scale[..., later, :]), entropy(attn_weights[..., later, :])
print(f"entropy with the scale {unsure:.2f}, without {sure:.2f}")
report = sf.check(
    layer, (no_scale @ values).swapaxes(1, 2).reshape(B, S, H * D) @ wo.T, x, mask="causal"
)
report

# %% [markdown]
# ## Exercise 3 · A KV cache
#
# A model writes one token at a time. Naively it computes the keys and values of the whole text again for every new
# token. But a token that is past never changes: its key and value can be **kept**. Then a step projects just one token,
# turns it by *its* position, and appends.


# %%
class CachedAttention:
    """The class of this notebook, one call a new piece of text."""

    def __init__(self, batch):
        self.k = np.empty((batch, 0, K, D), np.float32)  # keys are kept turned
        self.v = np.empty((batch, 0, K, D), np.float32)

    def __call__(self, x):
        B, past, new = len(x), self.k.shape[1], x.shape[1]
        freqs = freqs_cis[past : past + new]  # positions go on where the cache ends
        q = apply_rotary_emb((x @ wq.T).reshape(B, new, H, D), freqs)
        k = apply_rotary_emb((x @ wk.T).reshape(B, new, K, D), freqs)
        self.k = np.concatenate([self.k, k], axis=1)
        self.v = np.concatenate([self.v, (x @ wv.T).reshape(B, new, K, D)], axis=1)

        q = q.swapaxes(1, 2)
        keys, values = (repeat_kv(kept, n_rep).swapaxes(1, 2) for kept in (self.k, self.v))
        mask = np.triu(np.full((new, past + new), -np.inf, np.float32), k=past + 1)
        weights = softmax(q @ keys.swapaxes(-2, -1) / sqrt(D) + mask)
        return (weights @ values).swapaxes(1, 2).reshape(B, new, H * D) @ wo.T


cached = CachedAttention(B)
steps = [cached(x[:, :3])]  # a prompt of three tokens ...
steps += [cached(x[:, i : i + 1]) for i in range(3, S)]  # ... and then one by one
one_by_one = np.concatenate(steps, axis=1)
print("one by one", one_by_one.shape, "  cache", cached.k.shape)
sf.check(sf.linear, cached.v.reshape(B, S, K * D), x, wv).raise_if_wrong()
sf.check(layer, one_by_one, x, mask="causal").raise_if_wrong()

# %% [markdown]
# The mask of a step has `new` rows and `past + new` columns: the *last* query sees *all* keys. So the diagonal starts
# at `past`. The kernel wants to be told (`causal_offset`), because PyTorch starts it in the other corner: there one new
# token would see one key only, the very first.

# %%
last_q, past = q[:, :, -1:], S - 1
last = softmax(last_q @ keys.swapaxes(-2, -1) / sqrt(D)) @ values
sf.check(
    sf.scaled_dot_product_attention, last, last_q, k, v, is_causal=True, causal_offset=past
).raise_if_wrong()

# break it yourself: the other corner, where only key 0 is seen
corner = np.repeat(v[:, :, :1], n_rep, axis=1)
report = sf.check(
    sf.scaled_dot_product_attention, corner, last_q, k, v, is_causal=True, causal_offset=past
)
report

# %% [markdown]
# ### Break it yourself: the clock starts again
#
# With a cache each call sees a short piece, and its positions seem to begin at 0. The most frequent mistake of all
# caches, and the text still sounds nearly right.

# %%
fresh = xq[:, -2:]  # the two newest tokens, at positions S-2 and S-1
restarted = apply_rotary_emb(fresh, freqs_cis[:2]).swapaxes(1, 2)
now = {"layout": "interleaved", "theta": theta, "offset": S - 2}
report = sf.check(sf.rope, restarted, fresh.swapaxes(1, 2), **now)
report

# %% [markdown]
# ### What it saves
#
# Count the multiplications. Without the cache the `n`-th token costs the projections of all `n` tokens, and `n²`
# scores. With it: one projection, and `n` scores.

# %%
lengths = np.array([16, 64, 256, 1024, 4096])
projections = E * (2 * H + 2 * K) * D
without_cache = lengths * projections + 2 * lengths**2 * H * D
with_cache = projections + 2 * lengths * H * D
print("   n | without a cache | with a cache")
for n, slow, fast in zip(lengths, without_cache, with_cache, strict=True):
    print(f"{n:4d} | {slow:15,} | {fast:12,}   {slow / fast:6,.0f} times less")
print(f"cache of a layer: 2 · K · D = {2 * K * D} numbers a token; with all heads {2 * H * D}")

# %% tags=["measured"]
# Time per token as the text grows. (Times of a small shared machine; run the cell to see yours.)
from timeit import repeat

filled = CachedAttention(1)
text = random(1, 2048, E)
print("   n | all again | with a cache")
for n in (128, 256, 512, 1024, 2048):
    past_k, past_v = random(1, n - 1, K, D), random(1, n - 1, K, D)

    def with_cache(past_k=past_k, past_v=past_v, n=n):
        filled.k, filled.v = past_k, past_v
        return filled(text[:, n - 1 : n])

    def all_again(n=n):
        return CachedAttention(1)(text[:, :n])

    slow, fast = (min(repeat(call, number=1, repeat=3)) * 1000 for call in (all_again, with_cache))
    print(f"{n:4d} | {slow:6.2f} ms | {fast:9.2f} ms")

# %% [markdown]
# ## 10 · Which numbers are a pair?
#
# The guide turns neighbours, `(0, 1), (2, 3) …`, as Meta's code does. MiniMind's own code does **not**: it uses
# `rotate_half`, where `i` goes with `i + D/2`. Give the guide's class the weights of MiniMind and it computes something
# else:


# %%
def rotate_half(x):
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([-second, first], axis=-1)


def rope_half(x):
    """(B, S, heads, D), as MiniMind's code does it"""
    angle = np.outer(np.arange(x.shape[1]), inv_freq)[:, None, :]
    cos, sin = (f(np.concatenate([angle, angle], -1)).astype(np.float32) for f in (np.cos, np.sin))
    return x * cos + rotate_half(x) * sin


mine = rope_half(xq).swapaxes(1, 2)
sf.check(sf.rope, mine, xq.swapaxes(1, 2), layout="half", theta=theta).raise_if_wrong()

minimind = sf.nn.GroupedQueryAttention(E, H, K, wq, wk, wv, wo, rope_layout="half", theta=theta)
report = sf.check(minimind, output, x, mask="causal")  # the output of the guide's class
report

# %% [markdown]
# Is one of them better? No. A model may be trained with either. But weights and layout belong together. To run weights
# of one layout with the code of the other, put the **rows** of `wq` and `wk` into the other order, head by head. (`wv`
# and `wo` stay: values are not turned. The scores come out the same because query and key are reordered alike.)


# %%
def half_to_interleaved(w, heads):
    """Rows 0, D/2, 1, D/2 + 1, ... of every head."""
    order = np.arange(D).reshape(2, D // 2).T.ravel()
    return w.reshape(heads, D, E)[:, order].reshape(heads * D, E)


permuted = sf.nn.GroupedQueryAttention(
    E,
    H,
    K,
    half_to_interleaved(wq, H),
    half_to_interleaved(wk, K),
    wv,
    wo,
    rope_layout="interleaved",
    theta=theta,
)
print("interleaved code on permuted rows = half code on the rows as they are:")
sf.check(minimind, permuted(x, mask="causal"), x, mask="causal").raise_if_wrong()

# %% [markdown]
# ## 11 · The MiniMind of today
#
# The model has grown since the guide was written: 8 layers of 768 numbers, 8 query heads and **4** key/value heads of
# 96 numbers, an RMSNorm on every head of the queries and keys before RoPE, and one table that serves as embedding and
# as last matrix. Count it:

# %%
later = ModelConfig(
    hidden_size=768,
    num_layers=8,
    num_heads=8,
    num_kv_heads=4,
    head_dim=96,
    intermediate_size=2432,
    vocab_size=6400,
    max_seq_len=32768,
    norm_eps=1e-6,
    rope_theta=1e6,
    rope_layout="half",
    tie_embeddings=True,
    qk_norm=True,
)
attention_part = 768 * (8 + 4 + 4 + 8) * 96
mlp_part = 3 * 768 * 2432
norms_part = 2 * 768 + 2 * 96
total = 6400 * 768 + 8 * (attention_part + mlp_part + norms_part) + 768
print(f"a layer: attention {attention_part:,} + MLP {mlp_part:,} + norms {norms_part:,}")
print(
    f"embedding {6400 * 768:,} + layers {8 * (attention_part + mlp_part + norms_part):,} + 768 = {total:,}"
)


sf.plots.parameter_budget({"MiniMind": later, "demonstration": demo.config})
plt.show()

# %% [markdown]
# The whole model in numpy is the attention from above, with two norms more, and an MLP. The random weights (or yours)
# go into both: your code, and `Transformer`. Then `sf.check_trace` compares every activation that you noted, in the
# order of computation, and stops at the first that is wrong.

# %%
if folder:
    config, weights = checkpoint.config, checkpoint.weights
    ids = np.array(sentences[0])
else:
    config, weights = later, random_weights(later)
    ids = rng.integers(0, config.vocab_size, 16)
model = Transformer(config, weights)


def rms_norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def forward(ids, qk_norm=True):
    """ids (S,) → every activation by name"""
    w = {name: np.asarray(tensor, np.float32) for name, tensor in weights.items()}
    H, K, D, S = config.num_heads, config.num_kv_heads, config.head_dim, len(ids)
    angle = np.outer(np.arange(S), config.rope_theta ** (-np.arange(0, D, 2) / D))[:, None, :]
    cos, sin = (f(np.concatenate([angle, angle], -1)).astype(np.float32) for f in (np.cos, np.sin))
    mask = np.triu(np.full((S, S), -np.inf, np.float32), k=1)

    note = {"embed": w["embed"][ids]}
    x = note["embed"]
    for i in range(config.num_layers):
        at = f"layers.{i}."
        h = rms_norm(x, w[at + "attn_norm"])
        q, k = (h @ w[at + "wq"].T).reshape(S, H, D), (h @ w[at + "wk"].T).reshape(S, K, D)
        v = (h @ w[at + "wv"].T).reshape(S, K, D)
        if qk_norm:
            q, k = rms_norm(q, w[at + "q_norm"]), rms_norm(k, w[at + "k_norm"])
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        keys, values = np.repeat(k, H // K, axis=1), np.repeat(v, H // K, axis=1)
        scores = q.swapaxes(0, 1) @ keys.transpose(1, 2, 0) / sqrt(D)
        pattern = softmax(scores + mask)
        z = (pattern @ values.swapaxes(0, 1)).swapaxes(0, 1)
        out = z.reshape(S, H * D) @ w[at + "wo"].T
        mid = x + out
        g = rms_norm(mid, w[at + "mlp_norm"])
        act = silu(g @ w[at + "gate"].T) * (g @ w[at + "up"].T)
        x = mid + act @ w[at + "down"].T
        note |= {
            at + "attn_norm": h,
            at + "attn.q_rot": q,
            at + "attn.k_rot": k,
            at + "attn.pattern": pattern,
        }
        note |= {at + "attn.z": z, at + "attn.out": out, at + "resid_mid": mid, at + "mlp.act": act}
        note |= {at + "resid_post": x}
    note["final_norm"] = rms_norm(x, w["final_norm"])
    note["logits"] = note["final_norm"] @ w["embed" if config.tie_embeddings else "lm_head"].T
    return note


mine = forward(ids, qk_norm=config.qk_norm)
print(len(mine), "activations, logits", mine["logits"].shape)
sf.check_trace(mine, model, ids).raise_if_wrong()

# %% [markdown]
# ### Break it yourself: the class of the guide in the model of today
#
# Without the norms on the heads. `attn_norm` is still right, so the blame falls on the right step:

# %%
report = sf.check_trace(forward(ids, qk_norm=False), model, ids)
report

# %% [markdown]
# ## 12 · Longer texts: YaRN
#
# MiniMind is trained on short texts. To read longer ones it can stretch its slow pairs and leave the fast ones alone, a
# rule called **YaRN**. In the picture every dot is a pair; higher up it turns more slowly.

# %%
yarn = {
    "rope_type": "yarn",
    "factor": 16,
    "original_max_position_embeddings": 2048,
    "beta_fast": 32,
    "beta_slow": 1,
    "attention_factor": 1.0,
}
before = sf.rope_frequencies(96, theta=1e6).inv_freq
after = sf.rope_frequencies(96, theta=1e6, scaling=yarn).inv_freq
slower = before / after
print(f"the fastest pair keeps its speed, the slowest turns {slower[-1]:.0f} times slower")
sf.plots.rope_bands(before, scaled=after, context=2048)
plt.show()

# %% [markdown]
# ## 13 · Against PyTorch and transformers
#
# The guide's class as PyTorch runs it, both ways: by hand, and with `F.scaled_dot_product_attention` (the guide's
# "flash attention" branch).

# %%
import torch
from torch.nn import functional as F

tx, tq, tk, tv, to = (torch.from_numpy(np.array(a)) for a in (x, wq, wk, wv, wo))
cis = torch.from_numpy(freqs_cis[pos_ids])


def torch_attention(x, flash):
    n = x.shape[1]

    def turned(y, heads):
        pairs = torch.view_as_complex(F.linear(x, y).view(len(x), n, heads, D // 2, 2))
        return torch.view_as_real(pairs * cis[:n, None]).flatten(-2).transpose(1, 2)

    q, k = turned(tq, H), turned(tk, K)
    v = F.linear(x, tv).view(len(x), n, K, D).transpose(1, 2)
    k, v = k.repeat_interleave(n_rep, 1), v.repeat_interleave(n_rep, 1)
    if flash:
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        scores = q @ k.transpose(-2, -1) / D**0.5
        future = torch.triu(torch.full((n, n), float("-inf")), diagonal=1)
        z = F.softmax(scores + future, dim=-1) @ v
    return F.linear(z.transpose(1, 2).contiguous().view(len(x), n, -1), to)


with torch.inference_mode():
    for flash in (False, True):
        sf.check(layer, torch_attention(tx, flash), x, mask="causal").raise_if_wrong()
print("by hand = F.scaled_dot_product_attention = yours")

try:
    torch.zeros(2, 3, 4, 5).transpose(1, 2).view(2, 4, 15)
except RuntimeError:
    print("and .view after .transpose, without .contiguous(), is refused")

# %% [markdown]
# The MiniMind of today has the shape of a small Qwen3. If the package `transformers` is installed, its Qwen3 gets the
# same weights, and has to give the same logits.

# %%
try:
    from transformers import Qwen3Config, Qwen3ForCausalLM
except ImportError:
    print("transformers is not installed: this cell has nothing to compare with")
else:
    qwen3 = Qwen3ForCausalLM(
        Qwen3Config(
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_seq_len,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=config.tie_embeddings,
        )
    ).eval()
    from simdformer.checkpoints.huggingface_architectures import ARCHITECTURES

    names = ARCHITECTURES["qwen3"].names
    theirs = {
        names.theirs(name): torch.from_numpy(np.array(tensor, np.float32))
        for name, tensor in weights.items()
    }
    missing = qwen3.load_state_dict(theirs, strict=False)
    print(f"transformers counts {qwen3.num_parameters():,} parameters")
    with torch.inference_mode():
        logits = qwen3(torch.from_numpy(ids)[None]).logits[0].numpy()
    for who, own in (("your", mine["logits"]), ("the kernels'", model(ids))):
        apart = np.abs(own - logits).max() / np.abs(logits).max()
        same = (own.argmax(-1) == logits.argmax(-1)).mean()
        print(
            f"{who} logits differ from those of transformers by {apart:.0e}; same token {same:.0%}"
        )

# %% tags=["measured"]
# The layer: 256 tokens. (Times of a small shared machine; run the cell to see yours.)
long_x = random(1, 256, E)
long_t, cis = torch.from_numpy(long_x), torch.from_numpy(freqs_cis[:256])
with torch.inference_mode():
    for name, call in {
        "PyTorch by hand": lambda: torch_attention(long_t, flash=False),
        "PyTorch, its own kernel": lambda: torch_attention(long_t, flash=True),
        "simdformer": lambda: layer(long_x, mask="causal"),
    }.items():
        call()
        print(f"{name:<24} {min(repeat(call, number=3, repeat=5)) / 3 * 1000:8.2f} ms")

# %% [markdown]
# ## What you have now
#
# * the class of the guide, step by step, each step checked, and equal to PyTorch's;
# * a KV cache of your own, and the two places where caches go wrong: the positions, and the corner of the mask;
# * the reason why weights must be told their RoPE layout: it is not written in them.
#
# Notebook 04 goes on with the other parts of such a model. With a real checkpoint the whole of it is three lines:
#
# ```python
# model = sf.from_pretrained("path/to/minimind")
# print(model.generate("Once upon a time", max_new_tokens=40))
# ```
