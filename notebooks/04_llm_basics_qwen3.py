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
# # 04 · What is inside an 8-billion-parameter model
#
# This notebook follows [Lesson 1: LLM basics](https://github.com/wyann22/aios/tree/main/resources/lesson-1-llm-basics)
# of the course aios by wyann22, which uses **Qwen3-8B** as its example: tokenizer, embedding, norms, projections, RoPE,
# softmax, attention, MLP, the whole layer, and at last the question *where are the parameters?* Thanks for it! The
# sections have the numbers of the lesson. Read it beside this page, or read only this page.
#
# [The same as an exercise](exercises/04_llm_basics_qwen3.ipynb): what you write is left out there, and checked.
#
# The rhythm is that of notebook 01. **You** write a step in plain numpy. The **kernel** computes the same step. Then
#
# ```python
# sf.check(sf.rms_norm, mine, x, weight, eps=eps).raise_if_wrong()
# ```
#
# reads: *is `mine` what `sf.rms_norm(x, weight, eps=eps)` should give?* If not, the notebook stops there, and the
# report says what went wrong. In the cells called **break it yourself** a mistake is made on purpose, to see it named.
#
# Every number that the lesson prints is computed again here. Those that come out differently are in an appendix at the
# end.
#
# | letter | meaning | Qwen3-8B |
# |---|---|---|
# | `L` | tokens in the text | |
# | `E` | numbers per token (`hidden_size`) | 4096 |
# | `H`, `K` | query heads, key/value heads | 32, 8 |
# | `D` | numbers per head (`head_dim`) | 128 |
# | `I` | inner width of the MLP (`intermediate_size`) | 12288 |
# | `V` | words in the vocabulary | 151936 |

# %%
import os
from itertools import pairwise
from math import sqrt

import matplotlib.pyplot as plt
import numpy as np

import simdformer as sf
from simdformer.checkpoints import read_checkpoint
from simdformer.models import ModelConfig, Transformer, weight_shapes

rng = np.random.default_rng(4)


def random(*shape):
    """Normally distributed float32 numbers: what activations look like after a norm."""
    return rng.standard_normal(shape, dtype=np.float32)


# %% [markdown]
# ### The model of this notebook
#
# Qwen3-8B takes 16 GB. So by default the notebook builds a **small model of the same shape** with random weights: every
# step is the same, only the sizes differ. If you have a Qwen3 checkpoint on disk (the 0.6B is enough), set
# `SIMDFORMER_QWEN3=DIR` before you start Jupyter, and the same cells run on the real weights.
#
# Where *trained* weights say more than random ones, the demonstration checkpoint is used, which comes with the package.

# %%
QWEN3_8B = ModelConfig(
    hidden_size=4096,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=12288,
    vocab_size=151936,
    max_seq_len=40960,
    norm_eps=1e-6,
    rope_theta=1e6,
    rope_layout="half",
    tie_embeddings=False,
    qk_norm=True,
)

demo = sf.from_pretrained(sf.demo_path())

if folder := os.environ.get("SIMDFORMER_QWEN3"):
    checkpoint = read_checkpoint(folder)
    config, weights = checkpoint.config, checkpoint.weights
    tokenizer = sf.tokenizer.load(folder)
else:
    config = ModelConfig(
        hidden_size=256,
        num_layers=4,
        num_heads=8,
        num_kv_heads=2,
        head_dim=32,
        intermediate_size=768,
        vocab_size=demo.config.vocab_size,
        max_seq_len=1024,
        norm_eps=1e-6,
        rope_theta=1e6,
        rope_layout="half",
        tie_embeddings=False,
        qk_norm=True,
    )
    weights = {
        name: 1 + random(*shape) / 4 if len(shape) == 1 else random(*shape) / sqrt(shape[-1])
        for name, shape in weight_shapes(config).items()
    }
    tokenizer = demo.tokenizer

model = Transformer(config, weights)
E, H, K, D = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim
I, V, eps = config.intermediate_size, config.vocab_size, config.norm_eps


def weight(name):
    """One weight as float32; a checkpoint may hold 16 bits."""
    return np.asarray(weights[name], dtype=np.float32)


print(f"E {E}   H {H}   K {K}   D {D}   I {I}   V {V}   layers {config.num_layers}")

# %% [markdown]
# ## 1 · The tokenizer: text becomes numbers
#
# A model reads no letters. A **tokenizer** cuts the text into pieces of a fixed vocabulary and gives each its number,
# its *id*. The way back only glues the pieces together again, so nothing may be lost.

# %%
text = "The cat sat on the mat. The cat was not hungry, so it sat there all day."
ids = tokenizer.encode(text, bos=False)
print(len(text), "characters,", len(text.split()), "words,", len(ids), "tokens")
print(" · ".join(tokenizer.decode([one]) for one in ids))
print(ids)

# %% [markdown]
# Why pieces? *Characters* make the sequence long, and attention pays for length squared (section 7). Whole *words* make
# the vocabulary explode, and a new word cannot be written at all. Pieces are the middle: a frequent word is one token,
# a rare one is several.
#
# How are the pieces found? With **byte-pair encoding**. Begin with single characters. Look at every pair of neighbours
# that is a piece of the vocabulary too, and merge the one that was learned first: the one with the smallest id. Repeat
# until nothing merges. That is short enough to write down:

# %%
vocabulary = {tokenizer.decode([one]): one for one in reversed(range(tokenizer.vocab_size))}


def encode_word(word):
    """The pieces of one word, by merging neighbours in the order in which they were learned."""
    pieces = list(word)
    while len(pieces) > 1:
        pairs = [vocabulary.get(a + b, np.inf) for a, b in pairwise(pieces)]
        best = int(np.argmin(pairs))
        if pairs[best] == np.inf:
            break
        pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
    return pieces


for word in (" cat", " everything", " unbelievable", " tokenization", " simdformer"):
    pieces = encode_word(word)
    same = [vocabulary[piece] for piece in pieces] == tokenizer.encode(word, bos=False)
    print(f"{word!r:<18} {'as the tokenizer has it' if same else 'OTHERWISE'}  {pieces}")

# %% [markdown]
# ### Break it yourself: half a character
#
# The pieces are pieces of *bytes*. A character outside the vocabulary is spread over several tokens, and a single one
# of them is no text. Decode ids one at a time, as a chat that prints while it writes must do, and question marks
# appear. A **stream** holds bytes back until the character is whole.

# %%
umbrella = tokenizer.encode("I ☂ UTF-8", bos=False)
one_by_one = "".join(tokenizer.decode([one]) for one in umbrella)
stream = tokenizer.stream()
streamed = "".join(stream.put(one) for one in umbrella) + stream.flush()
print(f"{len(umbrella)} ids; one by one {one_by_one!r}, streamed {streamed!r}")

# %% [markdown]
# ## 2 · The embedding: numbers become vectors
#
# The embedding is a table with a row of `E` numbers for every id. Looking up is all there is to it.

# %%
ids = np.array(ids)
table = weight("embed")
x = table[ids]
print(f"ids {ids.shape}, table {table.shape} → x {x.shape}")
sf.check(sf.embedding, x, ids, table).raise_if_wrong()

# %% [markdown]
# It *could* be written as a matrix product, with rows that are 1 at the id and 0 elsewhere. That gives the same
# numbers, but reads the whole table to copy a few rows. And the table of Qwen3-8B is large.

# %%
embedding_8b = QWEN3_8B.vocab_size * QWEN3_8B.hidden_size
print(f"{QWEN3_8B.vocab_size} × {QWEN3_8B.hidden_size} = {embedding_8b:,} parameters")

one_hot = np.zeros((len(ids), V), np.float32)
one_hot[np.arange(len(ids)), ids] = 1
sf.check(sf.embedding, one_hot @ table, ids, table).raise_if_wrong()

# %% [markdown]
# ### Break it yourself: ids that count from one
#
# Everything has the right shape, every row is a real row, and the model talks nonsense.

# %%
report = sf.check(sf.embedding, table[(ids + 1) % V], ids, table)
report

# %% [markdown]
# ## 3 · LayerNorm and RMSNorm
#
# Through dozens of layers numbers grow or fade. A norm brings every token's vector back to a standard size before it is
# worked on.
#
# $$\text{LayerNorm}(x) = \gamma\,\frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta
# \qquad\qquad \text{RMSNorm}(x) = \gamma\,\frac{x}{\sqrt{\frac1E\sum x_i^2 + \epsilon}}$$
#
# The mean and the variance are taken over the `E` numbers of **one token**: tokens know nothing of each other here.


# %%
def layer_norm(x, gamma, beta, eps):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


def rms_norm(x, gamma, eps):
    return gamma * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


vectors = 2 * random(3, E) + 1  # with a mean, so that the two norms differ
gamma, beta = weight("layers.0.attn_norm"), random(E)
plain, root = sf.layer_norm(vectors, eps=eps), sf.rms_norm(vectors, eps=eps)


def rms(x):
    return np.sqrt((x * x).mean(-1))


print("mean      ", vectors.mean(-1).round(2), "→ LayerNorm", np.abs(plain.mean(-1)).round(2))
print("deviation ", vectors.std(-1).round(2), "→ LayerNorm", plain.std(-1).round(2))
print("rms       ", rms(vectors).round(2), "→ RMSNorm  ", rms(root).round(2))

mine = layer_norm(vectors, gamma, beta, eps)
sf.check(sf.layer_norm, mine, vectors, gamma, beta, eps=eps).raise_if_wrong()
sf.check(sf.rms_norm, rms_norm(vectors, gamma, eps), vectors, gamma, eps=eps).raise_if_wrong()

# %% [markdown]
# RMSNorm leaves out the mean and the shift `β`: half the parameters, fewer passes over the numbers, and in practice
# just as good. Where the mean is zero the two norms are the same:

# %%
centred = vectors - vectors.mean(-1, keepdims=True)
sf.check(sf.rms_norm, layer_norm(centred, 1, 0, eps), centred, eps=eps).raise_if_wrong()

# %% [markdown]
# ### Break it yourself: four norms that are nearly right
#
# `ε` outside the root, one norm for the other, the weight forgotten, the sum taken for the mean. The vectors are small
# here: small ones show where `ε` stands, large ones hide it.

# %%
small = random(3, E) / 1000 + np.float32(0.0005)
squares = small * small
for what, mine in {
    "eps outside the root": gamma * small / (np.sqrt(squares.mean(-1, keepdims=True)) + eps),
    "LayerNorm for RMSNorm": layer_norm(small, gamma, 0, eps),
    "the weight forgotten": rms_norm(small, 1, eps),
    "the sum for the mean": gamma * small / np.sqrt(squares.sum(-1, keepdims=True) + eps),
}.items():
    report = sf.check(sf.rms_norm, mine, small, gamma, eps=eps)
    print(f"{what:<22} → {report.diagnosis[0].title}")

# %% [markdown]
# The whole report of the last one says why, and what to write instead:

# %%
report

# %% [markdown]
# ## 4 · Queries, keys and values: linear layers
#
# $$y = x W^\top + b$$
#
# A weight is stored as *(outputs, inputs)*. Output `o` is the dot product of `x` with row `o`. From 4 numbers to 3, by
# hand:

# %%
W, four = random(3, 4), random(4)
by_hand = [sum(four[i] * W[o, i] for i in range(4)) for o in range(3)]
sf.check(sf.linear, by_hand, four, W).raise_if_wrong()

many = random(2, 5, 4)  # every leading axis just comes along
print("weight", W.shape, "  x", many.shape, "→ y", (many @ W.T).shape)
sf.check(sf.linear, many @ W.T, many, W).raise_if_wrong()

# %% [markdown]
# ### Break it yourself: the forgotten transpose
#
# With a square weight numpy has nothing to complain about.

# %%
square, rows = random(E, E) / sqrt(E), random(6, E)
report = sf.check(sf.linear, rows @ square, rows, square)
report

# %% [markdown]
# ### What a projection costs
#
# For each token the query projection of Qwen3-8B multiplies and adds once for every weight. One multiplication and one
# addition are **two** floating-point operations.

# %%
multiply_adds = QWEN3_8B.hidden_size * QWEN3_8B.num_heads * QWEN3_8B.head_dim
print(f"{multiply_adds:,} weights, {2 * multiply_adds:,} operations a token")

# %% [markdown]
# ### Many heads, few keys
#
# The queries are cut into `H` heads of `D` numbers, the keys and values into only `K`: in **grouped-query attention**
# `H / K` query heads share one pair. (`head_dim` is a number of its own in the config, and not always
# `hidden_size // num_heads`: Qwen3-0.6B has 1024 numbers per token and 16 heads of 128.)


# %%
def split_heads(x, heads):
    """(L, heads · D) → (heads, L, D)"""
    return x.reshape(len(x), heads, D).swapaxes(0, 1)


h = rms_norm(x, weight("layers.0.attn_norm"), eps)
wq, wk, wv, wo = (weight(f"layers.0.{name}") for name in ("wq", "wk", "wv", "wo"))
q, k, v = h @ wq.T, h @ wk.T, h @ wv.T
sf.check(sf.linear, [q, k, v], h, [wq, wk, wv]).raise_if_wrong()

q, k, v = split_heads(q, H), split_heads(k, K), split_heads(v, K)
print(f"h {h.shape}   wq {wq.shape}   wk {wk.shape}")
print(f"q {q.shape}   k {k.shape}   v {v.shape}: {H // K} query heads share a key head")

# %% [markdown]
# To multiply, every query head needs its key head beside it. The heads are repeated **in place**, `a a b b`, as in
# notebook 03.

# %%
repeated = np.repeat(k, H // K, axis=0)
print(k.shape, "→", repeated.shape)
sf.check(sf.repeat_kv, repeated, k, H // K).raise_if_wrong()

# %% [markdown]
# Why share? Because of the **KV cache**: while a model writes, the keys and values of every earlier token stay in
# memory. Per token, in Qwen3-8B, with 16-bit numbers:

# %%
for name, kv_heads in (("MHA", 32), ("GQA", 8), ("MQA", 1)):
    per_token = 2 * QWEN3_8B.num_layers * kv_heads * QWEN3_8B.head_dim * 2
    print(
        f"{name}  {kv_heads:2d} key/value heads  {per_token / 1024:4.0f} KiB a token"
        f"  {per_token * 32768 / 2**30:6.2f} GiB for 32768 tokens"
    )

# %% [markdown]
# ### Qwen3 normalises queries and keys
#
# Before they meet, Qwen3 sends every head of `q` and `k` through an RMSNorm of its own,
# **before** RoPE: `q_norm` and `k_norm`, with `D` weights each, the same for all heads. It keeps scores from running
# away in training. Leave it out and every score is wrong:

# %%
q_norm, k_norm = weight("layers.0.q_norm"), weight("layers.0.k_norm")
q_normed, k_normed = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
_, trace = model.run_with_cache(ids, names="layers.0.attn.*")

sf.check(sf.rms_norm, q_normed, q, q_norm, eps=eps).raise_if_wrong()
sf.check(sf.rms_norm, k_normed, k, k_norm, eps=eps).raise_if_wrong()

report = sf.check(sf.rms_norm, q, q, q_norm, eps=eps)  # break it yourself: left out
report

# %% [markdown]
# ## 5 · RoPE: where am I?
#
# Attention without positions cannot tell *dog bites man* from *man bites dog*: shuffle the tokens, and the results are
# shuffled likewise.


# %%
def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def attend(q, k, v):
    return softmax(q @ k.swapaxes(-1, -2) / sqrt(q.shape[-1])) @ v


order = rng.permutation(len(ids))
seen, key, value = q_normed[0], k_normed[0], v[0]
shuffled = attend(seen[order], key[order], value[order])
sf.check(
    sf.scaled_dot_product_attention, shuffled[np.argsort(order)], seen, key, value
).raise_if_wrong()

# %% [markdown]
# **RoPE** cuts each head into `D/2` pairs of numbers, takes each pair as an arrow in the plane, and turns it by an
# angle that grows with the position `p`:
#
# $$\text{angle}_i(p) = p \cdot \theta^{-2i/D} \qquad i = 0 \dots D/2 - 1$$
#
# The first pairs turn fast, like the hand for the seconds. The last ones hardly move: they are the hand for the years.

# %%
inv_freq = config.rope_theta ** (-np.arange(0, D, 2) / D)

for theta in (1e4, 1e6):
    first = sf.rope_frequencies(128, theta=theta).inv_freq
    print(f"θ = {theta:9,.0f}, D = 128:", first[:3].round(3), "...", f"slowest {first[-1]:.2e}")

# %%
sf.plots.rope_turns(inv_freq)
plt.show()
sf.plots.rope_bands(inv_freq, context=config.max_seq_len)
plt.show()

# %% [markdown]
# Which numbers make a pair? In Hugging Face checkpoints, and so in Qwen3, element `i` goes with element `i + D/2`: the
# **half** layout, and not with its neighbour as in Meta's (notebook 03 compares the two). That is what `rotate_half` is for. It needs no loop and no strides:


# %%
def rotate_half(x):
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([-second, first], axis=-1)


def rope_half(x, inv_freq):
    """(heads, L, D): position p is the place in the sequence"""
    angle = np.outer(np.arange(x.shape[-2]), inv_freq)
    cos = np.cos(np.concatenate([angle, angle], axis=-1)).astype(x.dtype)
    sin = np.sin(np.concatenate([angle, angle], axis=-1)).astype(x.dtype)
    return x * cos + rotate_half(x) * sin


print("rotate_half of", np.arange(4), "is", rotate_half(np.arange(4)))
q_rot, k_rot = rope_half(q_normed, inv_freq), rope_half(k_normed, inv_freq)
print(q_normed.shape, "→", q_rot.shape)
theta = config.rope_theta
sf.check(sf.rope, q_rot, q_normed, layout="half", theta=theta).raise_if_wrong()
sf.check(sf.rope, k_rot, k_normed, layout="half", theta=theta).raise_if_wrong()

# %% [markdown]
# Turning changes no length. And the dot product of a query at position `m` with a key at position `n` depends only on
# `m - n`: both may move on together, the score stays. This is why it is called *relative*.

# %%
one_q, one_k = random(1, D), random(1, D)


def score(m, n):
    turned = [sf.rope(y, layout="half", theta=theta, offset=p) for y, p in ((one_q, m), (one_k, n))]
    return float(turned[0][0] @ turned[1][0])


for m, n in ((5, 2), (105, 102), (1005, 1002), (5, 3)):
    print(f"query at {m:4d}, key at {n:4d}, distance {m - n}: score {score(m, n):8.4f}")

# %% [markdown]
# ### Break it yourself: RoPE, wrong in four ways

# %%
backwards = rope_half(q_normed, -inv_freq)
exponent = rope_half(q_normed, config.rope_theta ** (-np.arange(D // 2) / D))
from_one = rope_half(np.concatenate([q_normed[:, :1], q_normed], axis=1), inv_freq)[:, 1:]
other_theta = rope_half(q_normed, 1e4 ** (-np.arange(0, D, 2) / D))
for what, mine in {
    "turned backwards": backwards,
    "i/D in the exponent, not 2i/D": exponent,
    "positions from 1": from_one,
    "θ = 10000": other_theta,
}.items():
    report = sf.check(sf.rope, mine, q_normed, layout="half", theta=theta)
    print(f"{what:<30} → {report.diagnosis[0].title}")

# %% [markdown]
# ## 6 · Softmax: scores become shares
#
# $$\text{softmax}(z)_i = \frac{e^{z_i}}{\sum_j e^{z_j}}$$

# %%
z = np.array([2.0, 1.0, 0.1])
exponentials = np.exp(z)
print("e^z ", exponentials.round(2), " sum", exponentials.sum().round(2))
print("share", softmax(z).round(2))
sf.check(sf.softmax, softmax(z), z).raise_if_wrong()

# %% [markdown]
# **Temperature** divides the scores before softmax. Cold is bold: the largest takes nearly all. Hot is even.

# %%
z = np.array([2.0, 1.0, 0.0])
for temperature in (1.0, 0.5, 2.0):
    mine = softmax(z / temperature)
    sf.check(sf.softmax, mine, z, temperature=temperature).raise_if_wrong()
    print(f"T = {temperature}: {mine.round(3)}")

report = sf.check(
    sf.softmax, softmax(z * 0.5), z, temperature=0.5
)  # break it yourself: multiplied with T
report

# %% [markdown]
# ### Which words may come at all
#
# Before the draw the tail is cut off. **top-k** keeps the `k` most probable. **top-p** keeps the most probable until their shares sum up to `p`: few where the model is sure, many where it is not. What is cut gets a logit of `-inf`,
# and softmax shares out the rest anew.


# %%
def kept(logits, temperature=1.0, top_k=None, top_p=None):
    scores = logits / temperature
    if top_k is not None:
        scores = np.where(scores >= np.sort(scores)[-top_k], scores, -np.inf)
    if top_p is not None:
        order = np.argsort(-scores)
        shares = softmax(scores[order])
        before = np.cumsum(shares) - shares  # a word stays if those before it are not enough
        scores[order[before >= top_p]] = -np.inf
    return softmax(scores)


from simdformer.text import Sampler

last = demo("One day Ada")[-1].astype(np.float64)
apart = []
for options in (
    {"temperature": 1.0},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 2.0, "top_p": 0.9},
):
    mine = kept(last, **options)
    best = [f"{demo.tokenizer.decode([id])!r} {mine[id]:.1%}" for id in np.argsort(-mine)[:3]]
    print(f"{options!s:<36} {(mine > 0).sum():4d} words left: {', '.join(best)} ...")
    apart.append(np.abs(mine - Sampler(**options).probabilities(last)).max())
print(f"largest difference from the package's Sampler: {max(apart):.0e}")

# %% [markdown]
# ## 7 · Attention
#
# Every token asks a question (query), every token holds up a label (key), and has something to say (value). The dot
# product of question and label is the score.

# %%
a = np.array([1.0, 0.0])
for name, b in {
    "the same direction": [1, 0],
    "at right angles": [0, 1],
    "opposite": [-1, 0],
}.items():
    print(f"{name:<20} {a @ b:+.0f}")

# %% [markdown]
# ### Step 1 and 2: scores, scaled
#
# A dot product of `D` random terms has a variance of `D`. Without the division by $\sqrt{D}$ softmax would get scores
# of ±20 and become a hard choice.

# %%
queries, keys = random(2000, 128), random(2000, 128)
dots = (queries * keys).sum(-1)
beyond = (abs(dots) > 20).mean()
print(f"D = 128: variance {dots.var():.0f}, deviation {dots.std():.1f}, beyond ±20: {beyond:.0%}")
print(f"divided by √D: deviation {(dots / sqrt(128)).std():.2f}")

kr, vr = np.repeat(k_rot, H // K, axis=0), np.repeat(v, H // K, axis=0)
scores = q_rot @ kr.swapaxes(-1, -2) / sqrt(D)
print(f"q {q_rot.shape} · k {kr.shape} → scores {scores.shape}")

# %% [markdown]
# ### Step 3: the causal mask
#
# Position `t` must not see `t + 1`. Forbidden scores become `-inf`.

# %%
L = len(ids)
mask = np.triu(np.full((L, L), -np.inf, np.float32), k=1)
print(mask[:4, :4])
masked = scores + mask

# %% [markdown]
# ### Step 4 and 5: shares, and the average of the values
#
# The kernel does all five steps in one pass and hands out what it computed. Note that it takes `k` and `v` with their
# `K` heads: it repeats nothing.

# %%
pattern = softmax(masked)
z = pattern @ vr
print(f"pattern {pattern.shape} · v {vr.shape} → z {z.shape}")
sf.check(
    sf.scaled_dot_product_attention,
    (z, pattern, masked),
    q_rot,
    k_rot,
    v,
    is_causal=True,
    return_weights=True,
    return_scores=True,
).raise_if_wrong()

# %% [markdown]
# Here is a real pattern: the demonstration checkpoint reads "The cat sat on the mat." Each square is one head of one
# layer; a row is the token that attends, a column the token that it attends to.

# %%
sentence = "The cat sat on the mat."
demo_ids = demo.tokenizer.encode(sentence)
pieces = [demo.tokenizer.decode([one]) for one in demo_ids]
_, demo_trace = demo.run_with_cache(demo_ids)

layers = range(demo.config.num_layers)
patterns = np.stack([demo_trace[f"layers.{i}.attn.pattern"] for i in layers])
print("patterns: layers, heads, L, S =", patterns.shape)
sf.plots.attention_heads(patterns[0], pieces, title="layer 0")
plt.show()
sf.plots.attention_heads(patterns[-1], pieces, title="the last layer")
plt.show()

# %% [markdown]
# The lesson says that shallow layers look near and deep ones look far. Measure it: how many tokens does a head look
# back, on average?

# %%
story = demo.tokenizer.encode(
    "Once upon a time there was a small fox named Ada. Ada lived in the forest. "
    "One day Ada felt happy and walked to the lake."
)
_, story_trace = demo.run_with_cache(story, names="*.attn.pattern")
n = len(story)
distance = np.arange(n)[:, None] - np.arange(n)
even = (np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None] * distance).sum(-1).mean()
print(f"{n} tokens; a head that attends to all alike looks back {even:.1f} tokens")
for i in layers:
    back = (story_trace[f"layers.{i}.attn.pattern"] * distance).sum(-1).mean(-1)
    print(f"layer {i}: heads look back {back.min():.1f} to {back.max():.1f} tokens")

# %% [markdown]
# In this small model depth says little: the heads of layer 2 look nearest, one of layer 3 looks farthest back, and the last
# layer looks nearer than the first.
#
# ### What it costs
#
# Every token looks at every earlier one: `n²` scores per head and layer, `D` multiply-adds each, and as many again for
# the values. The table counts for all of Qwen3-8B, and what the scores of **one layer** would take, were they stored in
# 16 bits.

# %%
print(f"{'n':>7} | {'n²':>7} | multiply-adds, all layers | scores of one layer")
for n, said in ((1024, "1M"), (4096, "16M"), (32768, "1B"), (131072, "16B")):
    squared = n * n
    work = 2 * squared * QWEN3_8B.head_dim * QWEN3_8B.num_heads * QWEN3_8B.num_layers
    stored = squared * QWEN3_8B.num_heads * 2 / 2**30
    print(f"{n:7,} | {said:>7} | {work:25.2e} | {stored:14,.1f} GiB")

# %% [markdown]
# Nobody stores those gigabytes. Kernels in the manner of **flash attention**, `sf.scaled_dot_product_attention` among
# them, go through the keys in blocks, keep a running maximum and a running sum, and never have more than a block of
# scores. The work stays `O(n²)`, the memory becomes `O(n)`. The trick in a few lines:


# %%
def attend_in_blocks(q, k, v, block=4):
    """One head, no mask. Never more than `block` scores per query at a time."""
    highest = np.full((len(q), 1), -np.inf, np.float32)
    total, out = np.zeros((len(q), 1), np.float32), np.zeros((len(q), v.shape[-1]), np.float32)
    for start in range(0, len(k), block):
        scores = q @ k[start : start + block].T / sqrt(q.shape[-1])
        higher = np.maximum(highest, scores.max(-1, keepdims=True))
        shrink, e = np.exp(highest - higher), np.exp(scores - higher)
        total = total * shrink + e.sum(-1, keepdims=True)
        out = out * shrink + e @ v[start : start + block]
        highest = higher
    return out / total


blocks = attend_in_blocks(q_rot[0], k_rot[0], v[0])
sf.check(sf.scaled_dot_product_attention, blocks, q_rot[0], k_rot[0], v[0]).raise_if_wrong()

# %% tags=["measured"]
# How it grows: four times the time for twice the length. (Times of a small shared machine.)
from timeit import repeat

for n in (512, 1024, 2048, 4096):
    long_q, long_k = random(8, n, 64), random(2, n, 64)

    def call(q=long_q, k=long_k):
        return sf.scaled_dot_product_attention(q, k, k, is_causal=True)

    print(f"n = {n:5d}: {min(repeat(call, number=1, repeat=3)) * 1000:8.2f} ms")

# %% [markdown]
# ## 8 · The MLP
#
# Attention moves information between tokens. The **MLP** works on each token alone: up into `I` numbers, a bend, and
# down again. Modern models use **SwiGLU**: one projection is a gate that decides how much of the other passes.
#
# $$\text{MLP}(x) = W_\text{down}\,\bigl(\text{silu}(W_\text{gate}\,x) \odot W_\text{up}\,x\bigr) \qquad \text{silu}(x) = \frac{x}{1 + e^{-x}}$$


# %%
def silu(x):
    return x / (1 + np.exp(-x))


line = np.linspace(-6, 6, 241, dtype=np.float32)
sf.check(sf.silu, silu(line), line).raise_if_wrong()
sf.plots.activations([sf.silu, sf.gelu, sf.relu])
plt.show()

# %%
gate, up, down = (weight(f"layers.0.{name}") for name in ("gate", "up", "down"))
resid_mid = x + z.swapaxes(0, 1).reshape(L, H * D) @ wo.T
mlp_norm = rms_norm(resid_mid, weight("layers.0.mlp_norm"), eps)
act = silu(mlp_norm @ gate.T) * (mlp_norm @ up.T)
mlp_out = act @ down.T
print(f"x {mlp_norm.shape} → gate, up {act.shape} → down {mlp_out.shape}")
sf.check(sf.swiglu, act, mlp_norm @ gate.T, mlp_norm @ up.T).raise_if_wrong()
sf.check(sf.nn.MLP(gate, up, down), mlp_out, mlp_norm).raise_if_wrong()

# %% [markdown]
# ### Break it yourself: the gate on the wrong side
#
# `w1` and `w3` have the same shape, and everybody numbers them differently.

# %%
swapped = (silu(mlp_norm @ up.T) * (mlp_norm @ gate.T)) @ down.T
report = sf.check(sf.nn.MLP(gate, up, down), swapped, mlp_norm)
report

# %% [markdown]
# ### How wide it is
#
# Qwen3-8B has an `intermediate_size` of 12288: three times 4096. (Llama-3-8B has 14336.)

# %%
mlp_8b = 3 * QWEN3_8B.hidden_size * QWEN3_8B.intermediate_size
print(f"parameters of one MLP: {mlp_8b:,}")

# %% [markdown]
# ## 9 · The whole layer
#
# Two steps, and each **adds** to what is there. The stream of `E` numbers per token that runs through the model is
# called the *residual stream*: layers read from it through a norm, and write into it with a plus.


# %%
def decoder_layer(x, layer, note, qk_norm=True):
    """(L, E) → (L, E), and notes every activation under its name."""
    at = f"layers.{layer}."

    def w(name):
        return weight(at + name)

    h = rms_norm(x, w("attn_norm"), eps)
    q, k, v = (
        split_heads(h @ w("wq").T, H),
        split_heads(h @ w("wk").T, K),
        split_heads(h @ w("wv").T, K),
    )
    if qk_norm:
        q, k = rms_norm(q, w("q_norm"), eps), rms_norm(k, w("k_norm"), eps)
    q_rot, k_rot = rope_half(q, inv_freq), rope_half(k, inv_freq)
    keys, values = np.repeat(k_rot, H // K, axis=0), np.repeat(v, H // K, axis=0)
    pattern = softmax(q_rot @ keys.swapaxes(-1, -2) / sqrt(D) + mask)
    z = (pattern @ values).swapaxes(0, 1)
    attn_out = z.reshape(len(x), H * D) @ w("wo").T
    mid = x + attn_out

    g = rms_norm(mid, w("mlp_norm"), eps)
    act = silu(g @ w("gate").T) * (g @ w("up").T)
    out = mid + act @ w("down").T
    note |= {
        at + name: value
        for name, value in {
            "attn_norm": h,
            "attn.q_rot": q_rot.swapaxes(0, 1),
            "attn.k_rot": k_rot.swapaxes(0, 1),
            "attn.pattern": pattern,
            "attn.z": z,
            "attn.out": attn_out,
            "resid_mid": mid,
            "mlp_norm": g,
            "mlp.act": act,
            "resid_post": out,
        }.items()
    }
    return out


# %% [markdown]
# All layers, one after the other; the final norm; and one last matrix that gives a score, a *logit*, to every word of
# the vocabulary. Then `sf.check_trace` compares every activation that you noted with those of the model, in the order
# in which they were computed.


# %%
def forward(ids, layer_function=decoder_layer, **options):
    note = {"embed": table[ids]}
    x = note["embed"]
    for layer in range(config.num_layers):
        x = layer_function(x, layer, note, **options)
    note["final_norm"] = rms_norm(x, weight("final_norm"), eps)
    lm_head = weight("embed" if config.tie_embeddings else "lm_head")
    note["logits"] = note["final_norm"] @ lm_head.T
    return note


mine = forward(ids)
print(len(mine), "activations; logits", mine["logits"].shape)
sf.check_trace(mine, model, ids).raise_if_wrong()

# %% [markdown]
# ### Break it yourself: two norms forgotten
#
# Without `q_norm` and `k_norm`. The names tell where to look: what comes before is right, so the mistake is in this
# step.


# %%
report = sf.check_trace(forward(ids, qk_norm=False), model, ids)
report

# %% [markdown]
# And with the second norm reading from the wrong place: `x` instead of `x + attention`. A short cut that is easily
# made, and that no shape gives away.


# %%
def parallel_layer(x, layer, note):
    at = f"layers.{layer}."
    decoder_layer(x, layer, note)
    g = rms_norm(x, weight(at + "mlp_norm"), eps)
    act = silu(g @ weight(at + "gate").T) * (g @ weight(at + "up").T)
    out = note[at + "resid_mid"] + act @ weight(at + "down").T
    note |= {at + "mlp_norm": g, at + "mlp.act": act, at + "resid_post": out}
    return out


report = sf.check_trace(forward(ids, parallel_layer), model, ids)
report

# %% [markdown]
# The demonstration checkpoint shows what trained layers do with the stream: how much each adds, and when the answer
# becomes visible.

# %%
prompt = "the answer to the ultimate question of life, the universe, and everything is "
demo_ids = demo.tokenizer.encode(prompt)
_, demo_trace = demo.run_with_cache(demo_ids)
sf.plots.residual_norms(demo_trace)
plt.show()
sf.plots.logit_lens(
    demo, demo_trace, [demo.tokenizer.decode([one]) for one in demo_ids], positions=range(-8, 0)
)
plt.show()

# %% [markdown]
# ## 10 · Where are the parameters?
#
# By hand, for one layer of Qwen3-8B:

# %%
c = QWEN3_8B
by_hand = {
    "q": c.hidden_size * c.num_heads * c.head_dim,
    "k": c.hidden_size * c.num_kv_heads * c.head_dim,
    "v": c.hidden_size * c.num_kv_heads * c.head_dim,
    "o": c.num_heads * c.head_dim * c.hidden_size,
    "gate": c.hidden_size * c.intermediate_size,
    "up": c.hidden_size * c.intermediate_size,
    "down": c.intermediate_size * c.hidden_size,
    "norms": 2 * c.hidden_size,
    "q_norm, k_norm": 2 * c.head_dim,
}
one_layer = sum(by_hand.values())
for part, count in by_hand.items():
    print(f"{part:<16} {count:>12,} {count / one_layer:7.1%}")
print(f"{'one layer':<16} {one_layer:>12,}")

attention_8b = sum(by_hand[part] for part in "qkvo")
print(f"attention is {attention_8b / one_layer:.1%} of a layer")

# %%
total = c.num_layers * one_layer + c.hidden_size + 2 * c.vocab_size * c.hidden_size
print(f"{c.num_layers} layers + final norm   {total - 2 * embedding_8b:>14,}")
print(f"embedding, lm_head     2 × {embedding_8b:>11,}")
print(f"Qwen3-8B               {total:>14,}")
print(f"the {c.num_layers} layers are {c.num_layers * one_layer / total:.1%} of it")

# %% [markdown]
# The package counts too, for any model:

# %%
from simdformer.models.budget import cache_bytes, parameter_budget

budget = parameter_budget(c)
for part, count in budget.items():
    print(f"{part:<10} {count:>14,} {count / total:7.1%}")

cache = cache_bytes(c, 32768, 2)
print(
    f"in 16 bits: {total * 2 / 1e9:.1f} GB of weights, {cache / 1e9:.1f} GB of cache at 32768 tokens"
)

# %%
sf.plots.parameter_budget(
    {"Qwen3-8B": QWEN3_8B, "the model of this notebook": config, "demonstration": demo.config}
)
plt.show()

# %% [markdown]
# ## 11 · The same, with the layers of the package
#
# Every line above has its counterpart in `sf.nn`. This is layer 0 again:

# %%
options = {
    "q_norm": q_norm,
    "k_norm": k_norm,
    "norm_eps": eps,
    "rope_layout": "half",
    "theta": theta,
}
block = sf.nn.TransformerBlock(
    sf.nn.GroupedQueryAttention(E, H, K, wq, wk, wv, wo, **options),
    sf.nn.MLP(gate, up, down),
    sf.nn.RMSNorm(weight("layers.0.attn_norm"), eps),
    sf.nn.RMSNorm(weight("layers.0.mlp_norm"), eps),
)
sf.check(block, mine["layers.0.resid_post"], x, mask="causal").raise_if_wrong()

# %% [markdown]
# The model is one call. Its random weights have nothing to say (unless you brought a real Qwen3), so the last word
# belongs to the demonstration checkpoint, which is the same code with another config.

# %%
logits = model(ids)

prompt = "the answer to the ultimate question of life, the universe, and everything is "
print(prompt + demo.generate(prompt, max_new_tokens=2))

# %% [markdown]
# And PyTorch? The same layer with its functions, checked with the same check, because a tensor is an array too.

# %%
import torch
from torch.nn import functional as F

names = ("attn_norm", "wq", "wk", "wv", "wo", "q_norm", "k_norm", "mlp_norm", "gate", "up", "down")
t = {name: torch.from_numpy(np.array(weight(f"layers.0.{name}"))) for name in names}


def torch_layer(x):
    n = len(x)
    angle = torch.outer(torch.arange(n), torch.from_numpy(inv_freq)).repeat(1, 2)
    cos, sin = angle.cos().float(), angle.sin().float()

    def heads(y, count, norm=None):
        y = y.view(n, count, D).transpose(0, 1)
        if norm is None:
            return y
        y = F.rms_norm(y, (D,), norm, eps)
        return y * cos + torch.cat([-y[..., D // 2 :], y[..., : D // 2]], -1) * sin

    h = F.rms_norm(x, (E,), t["attn_norm"], eps)
    q = heads(F.linear(h, t["wq"]), H, t["q_norm"])
    k, v = heads(F.linear(h, t["wk"]), K, t["k_norm"]), heads(F.linear(h, t["wv"]), K)
    q, k, v = q[None], k[None], v[None]
    z = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0]
    x = x + F.linear(z.transpose(0, 1).reshape(n, H * D), t["wo"])
    h = F.rms_norm(x, (E,), t["mlp_norm"], eps)
    return x + F.linear(F.silu(F.linear(h, t["gate"])) * F.linear(h, t["up"]), t["down"])


with torch.inference_mode():
    sf.check(block, torch_layer(torch.from_numpy(x)), x, mask="causal").raise_if_wrong()

# %% tags=["measured"]
# One layer: 256 tokens, and a single one. (The times come from a small shared machine; run it to see yours.)
packed = sf.nn.TransformerBlock(
    sf.nn.GroupedQueryAttention(E, H, K, *map(sf.pack, (wq, wk, wv, wo)), **options),
    sf.nn.MLP(*map(sf.pack, (gate, up, down))),
    block.attn_norm,
    block.mlp_norm,
)
with torch.inference_mode():
    for n in (256, 1):
        tokens = random(n, E)
        tensor = torch.from_numpy(tokens)
        for name, call in {
            "PyTorch": lambda x=tensor: torch_layer(x),
            "simdformer": lambda x=tokens: block(x, mask="causal"),
            "simdformer, weights packed": lambda x=tokens: packed(x, mask="causal"),
        }.items():
            call()
            once = min(repeat(call, number=3, repeat=5)) / 3
            print(f"{n:4d} tokens  {name:<28} {once * 1000:8.3f} ms")

# %% [markdown]
# ## Appendix · Errata
#
# What the lesson says and what it is, computed. None of it makes the lesson a bad one: it shows how far a reader gets
# who checks what is printed.

# %% [markdown]
# ### RMSNorm in half precision
#
# The lesson squares `x` in the dtype in which it comes. In float16 that ends at 65504: a single number above 255 makes
# the square infinite, and the whole vector becomes zero. Real models do have such numbers. Qwen's own code, and the
# kernel, go to float32 first and round once at the end.

# %%
loud = random(E).astype(np.float16)
loud[7] = 300  # one channel of a token
with np.errstate(over="ignore"):
    as_in_the_text = loud / np.sqrt((loud * loud).mean(-1, keepdims=True) + np.float16(1e-6))
print("float16 all the way:", as_in_the_text[:4])
print("the kernel:         ", sf.rms_norm(loud, eps=1e-6)[:4])
report = sf.check(sf.rms_norm, as_in_the_text, loud, eps=1e-6)
report

# %% [markdown]
# ### θ = 1 000 000 is not "NTK-aware scaling"
#
# Qwen3 was *trained* with the larger base. NTK-aware scaling is something else: it changes the base of a finished
# model, when texts get longer than those of its training, by a rule that needs the factor `s` of the lengthening:
# $\theta' = \theta\, s^{D/(D-2)}$. (For more than 32768 tokens Qwen3 recommends a third method, YaRN.)

# %%
for s in (2, 4, 8):
    print(f"NTK-aware, {s} times as long: θ' = {1e4 * s ** (128 / 126):9,.0f}")

# %% [markdown]
# ### Three lines of softmax
#
# Shares depend only on the *differences* of scores. 1000, 1000.1 and 1000.2 are 0.1 apart, so the shares must be close
# together; what is printed is the softmax of 0, 1, 2. For the same reason books with the scores 0.95 and 0.1 cannot
# have the shares 0.7 and 0.01, whatever the other books are: the ratio of two shares is $e^{\text{difference}}$.

# %%
large = np.array([1000.0, 1000.1, 1000.2])
said_large = [0.0900, 0.2447, 0.6652]
report = sf.check(sf.softmax, said_large, large, rtol=0.02)

ratio = np.exp(0.95 - 0.1)
for others in ([], [-3.0] * 100, [5.0]):
    shares = softmax(np.array([0.95, 0.1, 0.3, *others]))
    print(f"{len(others):3d} others: the two shares are {shares[0] / shares[1]:.2f} : 1")
report

# %% [markdown]
# ### The attention in the picture looks ahead
#
# The lesson draws a pattern for "The cat sat on the mat", and its first token gives 10% to words that are still to
# come. Such a pattern cannot come out of a causal model. The check says so:

# %%
words = ["The", "cat", "sat", "on", "the", "mat"]
pictured = np.array(
    [
        [0.90, 0.05, 0.02, 0.01, 0.01, 0.01],
        [0.30, 0.50, 0.10, 0.05, 0.03, 0.02],
        [0.10, 0.40, 0.30, 0.10, 0.05, 0.05],
        [0.10, 0.10, 0.20, 0.40, 0.10, 0.10],
        [0.05, 0.10, 0.10, 0.10, 0.30, 0.35],
        [0.05, 0.20, 0.10, 0.10, 0.15, 0.40],
    ]
)
ahead = np.triu(pictured, k=1).sum(-1)
for word, share in zip(words, ahead, strict=True):
    print(f"{word:<4} gives {share:.0%} to words that come later")

# The logarithms of shares are scores that give these shares. Hide the future in them:
causal_scores = np.where(sf.causal_mask(6, 6), np.log(pictured), -np.inf)
report = sf.check(sf.softmax, pictured, causal_scores)
causal = softmax(causal_scores)
report

# %% [markdown]
# ### All of them
#
# That the two pairings of RoPE are *not* equivalent on the same weights is shown in notebook 03, section 10.

# %%
from IPython.display import Markdown

flops = f"{2 * multiply_adds / 1e6:.1f}M"
slow, fast = (sf.rope_frequencies(128, theta=base).inv_freq[:3].round(3) for base in (1e4, 1e6))
z1, z2, z3 = np.array([2.0, 1.0, 0.1]), np.array([2.0, 1.0, 0.0]), np.array([2.1, -0.5, 1.3, 0.8])
three_lines = 622e6 + 7.8e9 + 626e6
errata = [
    ("RMSNorm of float16", "x.pow(2).mean() in float16", "in float32, rounded once"),
    ("FLOPs per token of the query projection", "16.7M", flops),
    ("queries and keys in Qwen3", "used as they are", "q_norm and k_norm, per head"),
    ("inv_freq of D = 128, θ = 10,000", "[1.0, 0.93, 0.87]", slow),
    ("inv_freq of D = 128, θ = 1,000,000", "[1.0, 0.93, 0.87]", fast),
    ("the two RoPE pairings", "completely equivalent", "only after permuting wq and wk"),
    ("θ = 1e6 of Qwen3", "NTK-aware scaling", "the base that it was trained with"),
    ("sum of e^2, e^1, e^0.1", "11.22", f"{np.exp(z1).sum():.2f}"),
    ("softmax([2, 1, 0] / 0.5)", "[0.84, 0.11, 0.04]", softmax(z2 / 0.5).round(3)),
    ("softmax([1000, 1000.1, 1000.2])", said_large, softmax(large).round(4)),
    ("softmax([2.1, -0.5, 1.3, 0.8])", "[0.42, 0.03, 0.29, 0.26]", softmax(z3).round(3)),
    ("share of score 0.95 : share of score 0.1", "0.7 : 0.01 = 70", f"{ratio:.2f}"),
    ("share that The gives to later words", f"{ahead[0]:.0%}", f"{1 - causal[0, 0]:.0%}"),
    ("intermediate_size", "14336", QWEN3_8B.intermediate_size),
    ("parameters of one MLP", "176M", f"{mlp_8b:,}"),
    ("parameters of one layer", "42M + 176M", f"{one_layer:,}"),
    ("share of the attention in a layer", "18.8%", f"{attention_8b / one_layer:.1%}"),
    ("parameters of the model", f"{three_lines / 1e9:.2f}B in three lines", f"{total:,}"),
    ("share of the 36 layers", "92%", f"{c.num_layers * one_layer / total:.1%}"),
    ("share of final norm and lm_head", "1%", f"{(embedding_8b + c.hidden_size) / total:.1%}"),
]
rows = [f"| {what} | {said} | {computed} |" for what, said, computed in errata]
Markdown("\n".join(["| | the text says | it is |", "|---|---|---|", *rows]))
