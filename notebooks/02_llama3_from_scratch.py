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
# # 02 · Llama 3 from scratch: one layer
#
# Llama 3 comes as three files: a list of tokens, a few lines of settings, and a heap of numbers. In this notebook and its second part
# ([02b](02b_llama3_every_layer.ipynb)) you open them and compute, by hand and in plain numpy, what the model says after
#
# > the answer to the ultimate question of life, the universe, and everything is
#
# This part goes from the files through the first layer. The second part runs every layer, and writes.
#
# The notebook follows [Llama 3 from scratch, explained step by step](https://github.com/liangxhao/blogs) by liangxhao, which builds on
# [llama3-from-scratch](https://github.com/naklecha/llama3-from-scratch) by naklecha. Thanks to both: many people have learned from
# them. What came out differently here is in an appendix at the end.
#
# [The same as an exercise](exercises/02_llama3_from_scratch.ipynb): what you write is left out there, and checked.
#
# The rhythm is that of notebook 01. **You** write the step, from the raw tensors of the file. The **kernel** of `simdformer` is called with the
# same numbers. The **check** compares your array with the right one, and stops the notebook if it is wrong:
#
# ```python
# sf.check(sf.rms_norm, mine, x, weight, eps=eps).raise_if_wrong()
# ```
#
# In the cells called **break it yourself** a classic mistake is made on purpose, and the check has to find out which.
#
# | letter | meaning | in Llama 3 8B |
# |---|---|---|
# | `L` | tokens in the text | 17 |
# | `E` | numbers per token (`dim`) | 4096 |
# | `H`, `K` | query heads, key/value heads | 32, 8 |
# | `D` | numbers per head | 128 |
# | `I` | inner width of the MLP | 14336 |
# | `V` | tokens in the vocabulary | 128256 |
#
# Which model? By default a very small one that comes with the package. It has the same parts in the same files, only fewer of each: 1.4 million
# parameters instead of 8 billion. It has read children's stories, small sums, and one famous question. To run every cell on the real one, set
# `SIMDFORMER_LLAMA3` to the directory of Meta-Llama-3-8B (`params.json`, `tokenizer.model`, `consolidated.00.pth`). That takes 64 GB of memory, and some patience.

# %%
import base64
import json
import os
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import ml_dtypes
import numpy as np

import simdformer as sf

FOLDER = Path(os.environ.get("SIMDFORMER_LLAMA3") or sf.demo_path())
PROMPT = "the answer to the ultimate question of life, the universe, and everything is "

# %% [markdown]
# ## 1 · The tokenizer: text to numbers
#
# `tokenizer.model` is a text file. Each line is a token and its number. The token is written in base64, because it may be any *bytes*, not only
# letters: that is what the `==` at the end is for.

# %%
lines = (FOLDER / "tokenizer.model").read_bytes().splitlines()
for line in [*lines[:3], *lines[300:303]]:
    token, rank = line.split()
    print(f"{line.decode():<14} → {base64.b64decode(token)!r:<9} is number {int(rank)}")

ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
print(f"{len(ranks)} tokens; the first 256 are the single bytes, so that any text can be written")

# %% [markdown]
# After the last line of the file come 256 *special* tokens. The file does not list them: their numbers simply continue. Only five have a meaning so
# far, the rest are reserved. `<|begin_of_text|>` is the first of them and opens every text.

# %%
BEGIN, END = len(ranks), len(ranks) + 1
print("begin_of_text:", BEGIN, "  end_of_text:", END, "  vocabulary:", len(ranks) + 256)

# %% [markdown]
# ### Cut, then merge
#
# First a regular expression cuts the text into pieces: words with the blank in front of them, numbers of up to three digits, punctuation, white space.
# Tokens never reach across a cut. (`\p{L}` is any letter of any script, `\p{N}` any digit.)

# %%
import regex  # like Python's re, but it knows \p{L}; tiktoken brings it along

PIECES = regex.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # the endings of it's, don't, we're ...
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"  # a word, with one character in front that is not a letter: mostly a blank
    r"|\p{N}{1,3}"  # one to three digits
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"  # punctuation
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"  # line ends; blanks, but the last one belongs to the next word
)
for text in (PROMPT, "It's 12345 o'clock!\n\n", "世界 здравствуй 🌍"):
    print(PIECES.findall(text))

# %% [markdown]
# Then **byte-pair encoding**: a piece begins as single bytes. Look at all neighbours, find the pair whose union has the *lowest number* in the list, merge it,
# and repeat until no pair is in the list. The number is thus two things at once: the name of a token, and its place in the order of merging.


# %%
def merge_pairs(piece, ranks):
    """bytes → the numbers of the tokens that it consists of"""
    if piece in ranks:
        return [ranks[piece]]
    parts = [bytes([byte]) for byte in piece]
    while True:
        pairs = [ranks.get(a + b, np.inf) for a, b in pairwise(parts)]
        if not pairs or min(pairs) == np.inf:
            return [ranks[part] for part in parts]
        best = int(np.argmin(pairs))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]


def encode(text, ranks=ranks):
    ids = [len(ranks)]  # begin_of_text, the first number behind those of the file
    for piece in PIECES.findall(text):
        ids += merge_pairs(piece.encode(), ranks)
    return ids


tokens_of = {id: token for token, id in ranks.items()}
tokens_of |= {BEGIN: b"<|begin_of_text|>", END: b"<|end_of_text|>"}


def decode(ids):
    return b"".join(tokens_of.get(int(id), b"") for id in ids).decode(errors="replace")


ids = np.array(encode(PROMPT))
tokens = [decode([id]) for id in ids]
L = len(ids)
print(ids.tolist())
print(tokens)

# %% [markdown]
# The check: the package's own tokenizer, which leaves the merging to `tiktoken`, must give the same numbers. Also for texts that are not English.

# %%
tokenizer = sf.tokenizer.load(FOLDER / "tokenizer.model")
for text in (
    PROMPT,
    "hello world!",
    "  It's 12345 o'clock,\n\n\tsaid Zoë…  ",
    "世界 здравствуй 🌍",
    "",
):
    same_ids, same_text = encode(text) == tokenizer.encode(text), decode(encode(text)[1:]) == text
    print(f"same ids {same_ids}   same text {same_text}   {text!r}")

# %% [markdown]
# With Meta's own `tokenizer.model` the numbers are known. If the file is here, your `encode` has to give exactly these. (It may not be passed on with this
# package. You get it together with the weights.)

# %%
candidates = [FOLDER / "tokenizer.model", Path("../../shared/data/llama3/tokenizer.model")]
of_meta = next((file for file in candidates if file.exists() and file.stat().st_size > 2**20), None)

if of_meta is None:
    print("skipped: Meta's tokenizer.model is not here")
else:
    pairs = map(bytes.split, of_meta.read_bytes().splitlines())
    meta = {base64.b64decode(token): int(rank) for token, rank in pairs}
    found, hello = encode(PROMPT, meta), encode("hello world!", meta)[1:]
    print(found, hello, meta[b"42"], sep="\n")

# %% [markdown]
# ### Break it yourself: merge from left to right
#
# What if the first pair that is in the list is merged, instead of the one with the lowest number? The nasty part: decoding still gives the text back. Any
# way of cutting does. Only the numbers differ, in some words, from those that the model was trained on. So *never* test a tokenizer by decoding what it encoded.


# %%
def merge_from_the_left(piece):
    parts = [bytes([byte]) for byte in piece]
    place = 0
    while place + 1 < len(parts):
        if parts[place] + parts[place + 1] in ranks:
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
            place = 0
        else:
            place += 1
    return [ranks[part] for part in parts]


text = "unhappiness is everywhere"
right = encode(text)[1:]
wrong = [id for piece in PIECES.findall(text) for id in merge_from_the_left(piece.encode())]
print("right:", [decode([id]) for id in right])
print("wrong:", [decode([id]) for id in wrong])

# %% [markdown]
# ## 2 · The heap of numbers
#
# `consolidated.00.pth` holds tensors by name. (`torch.load` reads it, too. Such a file is a *pickle*, which may contain code; the reader here takes out the numbers and runs
# nothing.) `params.json` says how many of each part there are.

# %%
from simdformer.checkpoints.torch_file import read_tensors

tensors = read_tensors(FOLDER / "consolidated.00.pth")
params = json.loads((FOLDER / "params.json").read_text())
for name in [name for name in tensors if ".0." in name or "layers" not in name]:
    print(f"{name:<40} {tensors[name].shape!s:<16} {tensors[name].dtype}")
params

# %%
E, H, V = params["dim"], params["n_heads"], params["vocab_size"]
K, layers = params["n_kv_heads"], params["n_layers"]
eps, theta = params["norm_eps"], params["rope_theta"]
D = E // H  # numbers per head
group = H // K  # query heads that share a key head and a value head


def weight(name):
    """One tensor of the file in float32. The file has 16 bits a number, too few to compute with."""
    return np.asarray(tensors[name]).astype(np.float32)


# %% [markdown]
# How wide is the MLP? The settings do not say it outright. Two thirds of four times `dim`, times a factor, rounded up to a multiple:


# %%
def inner_width(params):
    width = int(params.get("ffn_dim_multiplier", 1) * int(2 * 4 * params["dim"] / 3))
    multiple = params["multiple_of"]
    return -(-width // multiple) * multiple


def parameters(params, tied=False):
    """How many numbers a model with these settings consists of, part by part."""
    E, V = params["dim"], params["vocab_size"]
    I, D = inner_width(params), E // params["n_heads"]
    attention = 2 * E * E + 2 * E * params["n_kv_heads"] * D  # wq and wo, wk and wv
    layer = attention + 3 * E * I + 2 * E  # ... w1, w2, w3, and two norms
    return V * E + params["n_layers"] * layer + E + (0 if tied else V * E)


I = inner_width(params)
llama3_8b = {
    "dim": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 8,
    "vocab_size": 128256,
    "multiple_of": 1024,
    "ffn_dim_multiplier": 1.3,
    "norm_eps": 1e-05,
    "rope_theta": 500000.0,
}
tied = "output.weight" not in tensors
print(f"this model:  {parameters(params, tied):>13,} parameters, MLP {I} wide")
print(f"Llama 3 8B:  {parameters(llama3_8b):>13,} parameters, MLP {inner_width(llama3_8b)} wide")

# %%
from simdformer.models import ModelConfig


def config(params, tied=False):
    return ModelConfig(
        hidden_size=params["dim"],
        num_layers=params["n_layers"],
        num_heads=params["n_heads"],
        num_kv_heads=params["n_kv_heads"],
        head_dim=params["dim"] // params["n_heads"],
        intermediate_size=inner_width(params),
        vocab_size=params["vocab_size"],
        max_seq_len=8192,
        norm_eps=params["norm_eps"],
        rope_theta=params["rope_theta"],
        rope_layout="interleaved",
        tie_embeddings=tied,
    )


sf.plots.parameter_budget(
    {"this model": config(params, tied), "Llama 3 8B": config(llama3_8b)},
    title="where the parameters are: mostly in the MLPs",
)
plt.show()

# %% [markdown]
# The shapes of one pass, side by side. Everything below works for both columns, because no size is written into the code.


# %%
def shapes(E, H, K, D, I, V):
    return {
        "token vectors": (L, E),
        "wq, by heads": (H, D, E),
        "wk and wv, by heads": (K, D, E),
        "one head's q, k, v": (L, D),
        "the same as pairs": (L, D // 2, 2),
        "scores of one head": (L, L),
        "all heads side by side": (L, H * D),
        "inside the MLP": (L, I),
        "logits": (L, V),
    }


large = shapes(4096, 32, 8, 128, 14336, 128256)
print(f"{'':<24}{'this model':<20}Llama 3 8B")
for what, shape in shapes(E, H, K, D, I, V).items():
    print(f"{what:<24}{shape!s:<20}{large[what]}")

# %% [markdown]
# ## 3 · Ids to vectors
#
# The embedding is a table with one row per token. Looking an id up means taking its row. That is all.

# %%
table = weight("tok_embeddings.weight")
embedded = table[ids]
print("table", table.shape, "→", embedded.shape)
sf.check(sf.embedding, embedded, ids, table).raise_if_wrong()

# %% [markdown]
# ### Break it yourself: count from one

# %%
report = sf.check(sf.embedding, table[ids - 1], ids, table)
report

# %% [markdown]
# ## 4 · RMSNorm
#
# Before each half of a layer, every token's vector is brought to the same length: divided by the root of the mean of its squares, then multiplied with a
# learned weight, number by number. Unlike LayerNorm it subtracts nothing. The small `eps` keeps a vector of zeros from causing a division by zero.
#
# $$\text{rms\_norm}(x)_i = \frac{x_i}{\sqrt{\frac{1}{E}\sum_j x_j^2 + \epsilon}} \cdot w_i$$


# %%
def rms_norm(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight


norm_weight = weight("layers.0.attention_norm.weight")
x = rms_norm(embedded, norm_weight)
print(f"{embedded.shape} → {x.shape}")
sf.check(sf.rms_norm, x, embedded, norm_weight, eps=eps).raise_if_wrong()

# %% [markdown]
# ### Break it yourself
#
# All of these give an array of the right shape, with numbers of a plausible size. (An `eps` in the wrong place shows only where vectors are short, so they are made faint first. In a model
# such mistakes stay hidden until a faint vector comes along.)

# %%
faint = np.float32(0.01) * embedded / np.sqrt(np.mean(embedded**2))
small = np.float32(eps)
squares = np.mean(faint**2, axis=-1, keepdims=True)
centred = faint - faint.mean(axis=-1, keepdims=True)
variance = np.mean(centred**2, axis=-1, keepdims=True)
for what, wrong in {
    "no weight": faint / np.sqrt(squares + small),
    "eps outside of the root": faint / (np.sqrt(squares) + small) * norm_weight,
    "another eps": faint / np.sqrt(squares + np.float32(1e-6)) * norm_weight,
    "sum for mean": faint / np.sqrt(E * squares + small) * norm_weight,
    "LayerNorm": centred / np.sqrt(variance + small) * norm_weight,
    "one size for all tokens": faint / np.sqrt(np.mean(faint**2) + small) * norm_weight,
}.items():
    report = sf.check(sf.rms_norm, wrong, faint, norm_weight, eps=eps)
    print(f"{what:<26} → {report.diagnosis[0].title}")

# %% [markdown]
# ## 5 · Queries, and where they stand
#
# A token's **query** says what it is looking for. One matrix `wq` makes the queries of all heads. Its rows come head by head: cut it into `H` blocks of `D` rows and
# you have one matrix per head.

# %%
wq = weight("layers.0.attention.wq.weight")
wq_by_heads = wq.reshape(H, D, E)
q_head0 = x @ wq_by_heads[0].T
print("wq", wq.shape, "→ by heads", wq_by_heads.shape, "→ query of head 0", q_head0.shape)
sf.check(sf.linear, q_head0, x, wq_by_heads[0]).raise_if_wrong()

# %% [markdown]
# So far "the" has the same query wherever it stands. **RoPE** changes that: it takes the `D` numbers in pairs, looks at each pair as an arrow in the plane, and turns the
# arrow by an angle that grows with the position. Every pair has its own speed, from one radian per token down to almost nothing:
#
# $$\theta_i = \text{base}^{-2i/D}, \qquad i = 0, 1, \dots, D/2-1$$


# %%
def frequencies(D, theta):
    return theta ** (-np.arange(0, D, 2) / D)


inv_freq = frequencies(D, theta)
print(inv_freq.round(5))
print(sf.check(sf.rope_frequencies, (inv_freq, 1.0), D, theta=theta).raise_if_wrong())

# those of Llama 3 8B, to five digits
of_8b = frequencies(128, 500000.0)
print("D = 128:", of_8b[[0, 1, 2, 31, 63]])
expected = [1.0, 0.81462, 0.66360, 1.7360e-3, 2.4551e-6]

# %% [markdown]
# Position times speed is the angle. An arrow of length one at that angle is a complex number, and *multiplying* with it turns another one. So one table of complex numbers
# holds all turns: `freqs_cis`, a row per position, a column per pair. Here is the row of token 3, for this model and for Llama 3 8B:

# %%
freqs_cis = np.exp(1j * np.outer(np.arange(L), inv_freq))  # (L, D/2)
sf.plots.rope_circle(freqs_cis[3], title=f"token 3, {D // 2} pairs")
plt.show()
sf.plots.rope_circle(np.exp(3j * of_8b), title="token 3, the 64 pairs of Llama 3 8B")
plt.show()

# %% [markdown]
# The other way round: one pair, all positions. The first pair runs around the circle like a second hand; slow ones are like the hour hand, and tell far positions apart.

# %%
sf.plots.rope_turns(of_8b, L)
plt.show()
sf.plots.rope_bands(
    of_8b, context=8192, title="Llama 3 8B: 29 of the 64 pairs turn less than once in 8192 tokens"
)
plt.show()

# %% [markdown]
# Now turn the query. Neighbours are partners: numbers 0 and 1, numbers 2 and 3, and so on. Each pair becomes a complex number, is multiplied, and becomes a pair again.


# %%
def rope(x, freqs_cis):
    """x (..., L, D) → the same shape, every pair turned"""
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * freqs_cis
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape).astype(x.dtype)


q_rotated_head0 = rope(q_head0, freqs_cis)
print("pairs", q_head0.reshape(L, -1, 2).shape, "→ turned", q_rotated_head0.shape)
sf.check(sf.rope, q_rotated_head0, q_head0, layout="interleaved", theta=theta).raise_if_wrong()

# %% [markdown]
# Why turning? Because a dot product of two arrows depends on the angle *between* them. Turn the query by its position and the key by its own, and what remains is the
# distance of the two tokens. Move both by five: the score stays.

# %%
far = np.exp(1j * np.outer(np.arange(L) + 5, inv_freq))
a, b = q_head0[2], q_head0[9]  # any two vectors will do
here = rope(a[None], freqs_cis[2]) @ rope(b[None], freqs_cis[9]).T
moved = rope(a[None], far[2]) @ rope(b[None], far[9]).T
without = a @ b
print(
    f"positions 2 and 9: {here.item():.4f}   7 and 14: {moved.item():.4f}   not turned: {without:.4f}"
)

# %% [markdown]
# ### Break it yourself
#
# The classic one: Meta pairs neighbours, Hugging Face pairs number `i` with number `i + D/2`. Both are RoPE, both files are called Llama 3, and each needs its own code.


# %%
def rope_of_hugging_face(x, angles):
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


position = np.arange(L)
exponent = np.arange(0, D, 2)
for what, wrong in {
    "pairs of Hugging Face": rope_of_hugging_face(q_head0, np.outer(position, inv_freq)),
    "the other way round": rope(q_head0, freqs_cis.conj()),
    "positions from 1": rope(q_head0, np.exp(1j * np.outer(position + 1, inv_freq))),
    "theta of Llama 2": rope(q_head0, np.exp(1j * np.outer(position, frequencies(D, 10000.0)))),
    "exponent i/D": rope(q_head0, np.exp(1j * np.outer(position, theta ** (-exponent / 2 / D)))),
    "turned twice": rope(q_rotated_head0, freqs_cis),
    "forgotten": q_head0,
}.items():
    report = sf.check(sf.rope, np.float32(wrong), q_head0, layout="interleaved", theta=theta)
    print(f"{what:<24} → {report.diagnosis[0].title}")

# %% [markdown]
# ## 6 · Attention
#
# ### Keys
#
# A **key** says what a token has to offer. It is made like a query, turned like a query, but there are fewer of them: `H` query heads share `K` key heads, in groups of
# neighbours. That saves memory when many keys have to be kept (chapter 10). Query head `h` belongs to key head `h // group`.

# %%
wk = weight("layers.0.attention.wk.weight")
k_head0 = x @ wk.reshape(K, D, E)[0].T
k_rotated_head0 = rope(k_head0, freqs_cis)
print(f"{H} query heads, {K} key heads: {group} query heads to a key head")
print("wk by heads", wk.reshape(K, D, E).shape, "→ key of head 0", k_rotated_head0.shape)
sf.check(sf.rope, k_rotated_head0, k_head0, layout="interleaved", theta=theta).raise_if_wrong()

# %% [markdown]
# ### Scores
#
# Every query meets every key; the dot product says how well they fit. Divided by `√D`, so that the scores do not grow with the width of a head. In effect this is
# a linear layer whose weight happens to be the keys, and that is how we check it.

# %%
scores = q_rotated_head0 @ k_rotated_head0.T / np.float32(np.sqrt(D))
divided = q_rotated_head0 / np.float32(np.sqrt(D))
print(sf.check(sf.linear, scores, divided, k_rotated_head0).raise_if_wrong())
sf.plots.score_map(scores, tokens, title="scores, layer 0, head 0: row attends to column")
plt.show()

# %% [markdown]
# ### The mask
#
# A token must not attend to what comes after it: when the model writes, that does not exist yet. So minus infinity is added above the diagonal.

# %%
mask = np.triu(np.full((L, L), -np.inf, np.float32), k=1)
masked = scores + mask
print(mask[:5, :5])
print(sf.check(sf.causal_mask, mask, L, L, dtype=np.float32).raise_if_wrong())
sf.plots.score_map(masked, tokens, title="the future is hidden")
plt.show()

# %% [markdown]
# ### Softmax: scores to shares


# %%
def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


pattern = softmax(masked)
print(sf.check(sf.softmax, pattern, masked).raise_if_wrong())
sf.plots.attention_map(pattern, tokens, title="pattern, layer 0, head 0: every row sums up to 1")
plt.show()

# %% [markdown]
# ### Values, and the result of one head
#
# A **value** is what a token contributes when it is attended to. Values are not turned: what is said does not depend on where. The result is the mean of all values, weighted with
# the shares.

# %%
wv = weight("layers.0.attention.wv.weight")
v_head0 = x @ wv.reshape(K, D, E)[0].T
z_head0 = pattern @ v_head0
print("value", v_head0.shape, "→ result of head 0", z_head0.shape)

sdpa = sf.scaled_dot_product_attention
sf.check(
    sdpa,
    (z_head0, pattern, masked),
    q_rotated_head0,
    k_rotated_head0,
    v_head0,
    is_causal=True,
    return_weights=True,
    return_scores=True,
).raise_if_wrong()

# %% [markdown]
# ### All heads at once
#
# The same for every head, in one go: heads become a leading axis. `np.repeat` gives each key head to its `group` of query heads. Then the results are put side by side, and one
# more matrix, `wo`, mixes them.


# %%
def split_heads(x):
    """(L, heads · D) → (heads, L, D)"""
    return x.reshape(L, -1, D).swapaxes(0, 1)


def merge_heads(z):
    """(heads, L, D) → (L, heads · D)"""
    return z.swapaxes(0, 1).reshape(L, -1)


q, k, v = split_heads(x @ wq.T), split_heads(x @ wk.T), split_heads(x @ wv.T)
q_rotated, k_rotated = rope(q, freqs_cis), rope(k, freqs_cis)
keys, values = np.repeat(k_rotated, group, axis=0), np.repeat(v, group, axis=0)
all_patterns = softmax(q_rotated @ keys.swapaxes(1, 2) / np.float32(np.sqrt(D)) + mask)
z = all_patterns @ values
print("q", q.shape, " k, v", k.shape, " z", z.shape, " side by side", merge_heads(z).shape)
print(sf.check(sdpa, z, q_rotated, k_rotated, v, is_causal=True).raise_if_wrong())

wo = weight("layers.0.attention.wo.weight")
delta = merge_heads(z) @ wo.T
layer = sf.nn.GroupedQueryAttention(E, H, K, wq, wk, wv, wo, rope_layout="interleaved", theta=theta)
sf.check(layer, delta, x, mask="causal").raise_if_wrong()

# %%
sf.plots.attention_heads(
    all_patterns, tokens, heads=range(min(H, 8)), title="layer 0: each head attends in its own way"
)
plt.show()

# %% [markdown]
# ### Break it yourself: the whole attention layer

# %%
tiled = np.tile(k_rotated, (group, 1, 1)), np.tile(v, (group, 1, 1))
over_sqrt_d = np.float32(1 / np.sqrt(D))


def attend(q=q_rotated, k=keys, v=values, mask=mask, scale=over_sqrt_d):
    return softmax(q @ k.swapaxes(1, 2) * scale + mask) @ v


v_by_wk = np.repeat(k, group, axis=0)
for what, wrong in {
    "heads merged without transposing": attend().reshape(L, -1) @ wo.T,
    "key heads tiled, not repeated": merge_heads(attend(k=tiled[0], v=tiled[1])) @ wo.T,
    "wk for wv": merge_heads(attend(v=v_by_wk)) @ wo.T,
    "no scale": merge_heads(attend(scale=np.float32(1))) @ wo.T,
    "no mask": merge_heads(attend(mask=np.float32(0))) @ wo.T,
    "RoPE on the query only": merge_heads(attend(k=np.repeat(k, group, axis=0))) @ wo.T,
    "wo forgotten": merge_heads(attend()),
}.items():
    report = sf.check(layer, wrong, x, mask="causal")
    print(f"{what:<34} → {report.diagnosis[0].title}")

# %% [markdown]
# ### The residual stream
#
# The layer does not replace a token's vector, it *adds* to it. What the embedding said is still there, and every layer writes its share on top.

# %%
after_attention = embedded + delta
print(after_attention.shape)

# %% [markdown]
# ## 7 · SwiGLU
#
# The second half of a layer works on each token alone. Two matrices make the vector wider. One of them, the *gate*, goes through `silu` and decides number by number how
# much of the other comes through. The third matrix makes it narrow again. In Meta's file they are called `w1` (gate), `w3` (up) and `w2` (down).
#
# $$\text{mlp}(x) = w_2\,\big(\text{silu}(w_1 x) \cdot w_3 x\big), \qquad \text{silu}(g) = \frac{g}{1 + e^{-g}}$$


# %%
def silu(x):
    return x / (1 + np.exp(-x))


w1, w2, w3 = (weight(f"layers.0.feed_forward.w{n}.weight") for n in (1, 2, 3))
normed = rms_norm(after_attention, weight("layers.0.ffn_norm.weight"))
gate, up = normed @ w1.T, normed @ w3.T
inside = silu(gate) * up
mlp_out = inside @ w2.T
after_layer = after_attention + mlp_out
print("normed", normed.shape, "→ inside", inside.shape, "→ out", mlp_out.shape)
print(sf.check(sf.swiglu, inside, gate, up).raise_if_wrong())
sf.check(sf.nn.MLP(w1, w3, w2), mlp_out, normed).raise_if_wrong()

# %% [markdown]
# ### Break it yourself

# %%
for what, wrong in {
    "w1 and w3 swapped": (silu(up) * gate) @ w2.T,
    "silu after the product": silu(gate * up) @ w2.T,
    "sigmoid for silu": (up / (1 + np.exp(-gate))) @ w2.T,
    "relu for silu": (np.maximum(gate, 0) * up) @ w2.T,
    "no silu at all": (gate * up) @ w2.T,
}.items():
    report = sf.check(sf.nn.MLP(w1, w3, w2), wrong, normed)
    print(f"{what:<24} → {report.diagnosis[0].title}")

# %% [markdown]
# ### The classic one, with ReLU
#
# The transformer of 2017 had no gate. Two matrices with biases, and between them everything below zero is cut off:
#
# $$\text{ffn}(x) = \max(0,\, x W_1^\top + b_1)\, W_2^\top + b_2$$
#
# Its inner width was four times that of the stream. SwiGLU has three matrices instead of two, so it takes two thirds of that width: about as many parameters either way. (That is
# where the `2 * 4 * dim / 3` in chapter 2 comes from.)


# %%
def classic_ffn(x, w_in, b_in, w_out, b_out):
    return np.maximum(x @ w_in.T + b_in, 0) @ w_out.T + b_out


rng = np.random.default_rng(2)
w_in, w_out = (
    rng.standard_normal(shape, dtype=np.float32) / 16 for shape in ((4 * E, E), (E, 4 * E))
)
b_in, b_out = (rng.standard_normal(width, dtype=np.float32) / 16 for width in (4 * E, E))
wide = sf.linear(normed, w_in, b_in)
sf.check(
    sf.linear, classic_ffn(normed, w_in, b_in, w_out, b_out), sf.relu(wide), w_out, b_out
).raise_if_wrong()

print(
    f"cut off by ReLU: {(wide < 0).mean():.0%} of the inner numbers; by SwiGLU: {(inside == 0).mean():.0%}"
)
print(
    f"weights: classic {w_in.size + w_out.size:,}, SwiGLU at two thirds of its width {3 * E * int(8 * E / 3):,}"
)

# %% [markdown]
# ### The same layer in a few lines
#
# You have written all of this once. From here on you may use it. The layer, built from the parts of `sf.nn`:

# %%
block = sf.nn.TransformerBlock(
    sf.nn.GroupedQueryAttention(E, H, K, wq, wk, wv, wo, rope_layout="interleaved", theta=theta),
    sf.nn.MLP(w1, w3, w2),
    sf.nn.RMSNorm(norm_weight, eps),
    sf.nn.RMSNorm(weight("layers.0.ffn_norm.weight"), eps),
)
sf.check(block, after_layer, embedded, mask="causal").raise_if_wrong()

# %% [markdown]
# ### Against PyTorch, and against the clock
#
# The same layer a third time, in PyTorch, to be sure that the two do not merely agree with each other.

# %%
import torch
from torch.nn import functional as F

t = {name: torch.from_numpy(array) for name, array in {
    "x": embedded, "wq": wq, "wk": wk, "wv": wv, "wo": wo, "w1": w1, "w2": w2, "w3": w3,
    "attention_norm": norm_weight, "ffn_norm": weight("layers.0.ffn_norm.weight"),
}.items()}  # fmt: skip


def torch_layer(x):
    turns = torch.polar(
        torch.ones(len(x), D // 2),
        torch.outer(torch.arange(len(x)), torch.tensor(inv_freq)).float(),
    )

    def heads(w):
        return F.linear(normed, w).view(len(x), -1, D).transpose(0, 1)

    def turned(y):
        return torch.view_as_real(
            torch.view_as_complex(y.reshape(*y.shape[:-1], -1, 2)) * turns
        ).flatten(-2)

    normed = F.rms_norm(x, (E,), t["attention_norm"], eps)
    q, k, v = turned(heads(t["wq"])), turned(heads(t["wk"])), heads(t["wv"])
    q, k, v = q[None], k[None], v[None]
    z = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0]
    h = x + F.linear(z.transpose(0, 1).reshape(len(x), -1), t["wo"])
    normed = F.rms_norm(h, (E,), t["ffn_norm"], eps)
    return h + F.linear(F.silu(F.linear(normed, t["w1"])) * F.linear(normed, t["w3"]), t["w2"])


with torch.inference_mode():
    theirs = torch_layer(t["x"])
sf.check(block, theirs, embedded, mask="causal").raise_if_wrong()

# %% tags=["measured"]
# One layer. The times below come from a small shared machine; run the cell to see yours.
from timeit import repeat


def numpy_layer(x):
    normed = rms_norm(x, norm_weight)
    q, k, v = (split_heads(normed @ w.T) for w in (wq, wk, wv))
    q, k = rope(q, freqs_cis), rope(k, freqs_cis)
    k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
    z = softmax(q @ k.swapaxes(1, 2) / np.float32(np.sqrt(D)) + mask) @ v
    h = x + merge_heads(z) @ wo.T
    normed = rms_norm(h, weight("layers.0.ffn_norm.weight"))
    return h + (silu(normed @ w1.T) * (normed @ w3.T)) @ w2.T


with torch.inference_mode():
    for name, call in {
        "your numpy": lambda: numpy_layer(embedded),
        "PyTorch": lambda: torch_layer(t["x"]),
        "simdformer": lambda: block(embedded, mask="causal"),
    }.items():
        call()  # the first call warms up
        print(f"{name:<12} {min(repeat(call, number=3, repeat=5)) / 3 * 1000:8.3f} ms")

# %% [markdown]
# ## What you have now
#
# * a tokenizer, an embedding, RMSNorm, RoPE, grouped-query attention, SwiGLU: every part of Llama 3, written by yourself and checked;
# * the first layer of a model on raw tensors, and the same layer from the parts of `sf.nn` and in PyTorch.
#
# Change a line above and run the notebook again. It stops at the line that you broke, and says what you did.
# [Part two](02b_llama3_every_layer.ipynb) runs all layers, up to the answer.

# %% [markdown]
# ## Appendix · Errata
#
# Four places where the guide computes something else than Llama 3 does, or more roughly. They are easy mistakes to make.

# %% [markdown]
# ### A norm in 16 bits
#
# The guide keeps everything in bfloat16, the norm too. bfloat16 has 8 significant bits, about two decimal digits, and each of the five operations rounds once more.
# Nothing crashes. But measure it against float64, beside the same formula in float32:


# %%
def bfloat16(x):
    return np.asarray(x).astype(ml_dtypes.bfloat16)


def rms_norm_in_16_bits(x, weight):
    """Every operation rounds its result. Only the sum inside of the mean is exact, as in PyTorch."""
    mean = bfloat16(np.mean(np.square(x).astype(np.float32), axis=-1, keepdims=True))
    inverse = bfloat16(1 / np.sqrt((mean + bfloat16(eps)).astype(np.float32)))
    return x * inverse * weight


def loss(mine, exact):
    """The error as a part of the whole: RMS of the difference over RMS of the right array."""
    return np.sqrt(np.mean((np.float64(mine) - exact) ** 2) / np.mean(exact**2))


x16, w16 = bfloat16(embedded), bfloat16(norm_weight)  # as in the file: nothing is lost yet
exact = sf.reference.rms_norm(x16, w16, eps=eps)
in_16 = rms_norm_in_16_bits(x16, w16).astype(np.float64)
in_32 = rms_norm(x16.astype(np.float32), w16.astype(np.float32))
rounded_once = bfloat16(in_32).astype(np.float64)
kernel = sf.rms_norm(x16, w16, eps=eps)
print(f"float32                                {loss(in_32, exact):.0e}")
print(f"float32, the result in bfloat16        {loss(rounded_once, exact):.1e}")
print(f"the kernel on bfloat16 arrays          {loss(kernel, exact):.1e}")
print(f"bfloat16 at every step                 {loss(in_16, exact):.1e}")

# %% [markdown]
# The kernel computes in float32 whatever comes in, and rounds once, at the end. Is the step-by-step result wrong? No: it is right as far as bfloat16 goes, and the check says where the digits went:

# %%
report = sf.check(sf.rms_norm, np.float32(in_16), embedded, norm_weight, eps=eps)
report

# %% [markdown]
# ### A key for a value
#
# The guide has `v_layer0_head0 = k_layer0[0]`, a slip of copy and paste. Key and value have the same shape, so nothing complains. Make the same slip after the turning,
# and the check of one head sees it at once:

# %%
report = sf.check(
    sdpa, pattern @ k_rotated_head0, q_rotated_head0, k_rotated_head0, v_head0, is_causal=True
)
report

# %% [markdown]
# ### Sizes written into the code
#
# The guide's loop over the heads says `head // 4` and `128 ** 0.5`. Both are true for Llama 3 8B, and only there. On a model with other sizes the code still runs, or stops with
# an error that says nothing. So that you see it whatever model this is, the same two slips with sizes that are wrong here:

# %%
wrong_group = 2 * group
of_head = np.arange(H) // wrong_group  # some key heads are never asked
divided = q_rotated / np.float32(np.sqrt(D))
wrong_heads = softmax(divided @ k_rotated[of_head].swapaxes(1, 2) + mask) @ v[of_head]
wrong_scale = softmax(q_rotated @ keys.swapaxes(1, 2) / np.float32(np.sqrt(8 * D)) + mask) @ values
for what, wrong in {"head // number": wrong_heads, "number ** 0.5": wrong_scale}.items():
    report = sf.check(sdpa, wrong, q_rotated, k_rotated, v, is_causal=True)
    print(f"{what}\n{report}\n")

# %% [markdown]
# Where an array is wrong says a lot, too. This is the first of the two: the heads that happen to get the right key head are right but for rounding, all others are off entirely.

# %%
sf.plots.error_map(wrong_heads, z)
plt.show()

# %% [markdown]
# ### Softmax in 16 bits
#
# The guide rounds the pattern to bfloat16 before it meets the values. Shares that should sum up to one then do not:

# %%
pattern_16 = bfloat16(all_patterns).astype(np.float32)
off_32, off_16 = (np.abs(p.sum(axis=-1) - 1).max() for p in (all_patterns, pattern_16))
exact = all_patterns.astype(np.float64) @ values
print(f"rows sum up to 1 within    float32 {off_32:.0e}   bfloat16 {off_16:.0e}")
print(
    f"error of the result        float32 {loss(z, exact):.0e}   bfloat16 {loss(pattern_16 @ values, exact):.0e}"
)
