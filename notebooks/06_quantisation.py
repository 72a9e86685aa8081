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
# # 06 · Quantisation
#
# A model of eight billion parameters takes 16 GB when each of them is a number of 16 bits. The files that people run on their
# laptops take five. They hold the *same* parameters, in four bits and a half each. What was thrown away, and why does the
# model hardly notice?
#
# This notebook makes such numbers by hand, measures the error of each type that files use, and follows the error through a
# model, layer by layer and token by token. The model is the demonstration checkpoint that comes with the package.

# %%
import itertools

import matplotlib.pyplot as plt
import numpy as np

import simdformer as sf
from simdformer.checkpoints import read_checkpoint
from simdformer.data import corpus
from simdformer.models import Transformer

checkpoint = read_checkpoint(sf.demo_path())
weights = {name: np.asarray(tensor, np.float32) for name, tensor in checkpoint.weights.items()}
gate = weights["layers.3.gate"]
print("the matrix `gate` of layer 3:", gate.shape)

# %% [markdown]
# ## 1 · A block
#
# Take 32 numbers that lie side by side in a row of the matrix. They are of similar size. So write down **one scale** for all of
# them, and for each a **small whole number** that says how many times the scale it is. In 8 bits such a code may be -127 to 127,
# and the scale is chosen so that the largest number just fits:

# %%
block = gate[0, :32]
scale = np.abs(block).max() / 127
codes = np.rint(block / scale)
back = np.float32(np.float16(scale)) * codes  # the scale is kept in 16 bits

print("numbers ", block[:5].round(4))
print("codes   ", codes[:5].astype(int))
print("read as ", back[:5].round(4))
print(f"32 codes of 8 bits and a scale of 16: {(32 * 8 + 16) / 32} bits a weight")

# %% [markdown]
# This is the type that GGUF files call `q8_0`. `sf.quantize` makes the same, to the last bit:

# %%
q = sf.quantize(gate, "q8_0")
print(q)
print("our block and its first:", np.array_equal(back, q.dequantize()[0, :32]))

# %% [markdown]
# **Four bits** leave sixteen codes. `q4_0` spends them on -8 to 7, and since that is one more below zero than above, it turns
# the sign of the scale so that the largest number, whichever sign it has, becomes -8:

# %%
largest = block[np.abs(block).argmax()]
scale = largest / -8
codes = np.clip(np.floor(block / scale + 8.5), 0, 15) - 8
four = np.float32(np.float16(scale)) * codes

print("numbers ", block[:5].round(4))
print("codes   ", codes[:5].astype(int))
print("read as ", four[:5].round(4))
print(
    "our block and its first:", np.array_equal(four, sf.quantize(gate, "q4_0").dequantize()[0, :32])
)

# %% [markdown]
# `q4_1` also writes down the smallest number of the block and counts upwards from there: the sixteen codes then cover exactly
# what occurs, and that costs 16 bits more. On this matrix, which of the two is nearer?
#
# The error is told as a part of the size of the numbers: the root mean square of what is off, over that of the weights.

# %%
for name in ("q4_0", "q4_1"):
    q = sf.quantize(gate, name)
    print(f"{name}: {q.bits_per_weight} bits a weight, error {q.error:.1%}")

# %% [markdown]
# ## 2 · One large number spoils its block
#
# A single weight that is twenty times as large as its neighbours takes the scale with it, and little of the codes is left for
# them. Its block suffers, and no other: this is what blocks are for.

# %%
spiked = gate.copy()
spiked[0, 5] *= 20
for where, columns in (("its own block", slice(0, 32)), ("the next block", slice(32, 64))):
    others = [at for at in range(columns.start, columns.stop) if at != 5]
    off = (sf.quantize(spiked, "q4_0").dequantize() - spiked)[0, others]
    before = (sf.quantize(gate, "q4_0").dequantize() - gate)[0, others]
    size = np.sqrt(np.mean(gate[0, others] ** 2))
    print(
        f"{where}: error {np.sqrt(np.mean(before**2)) / size:.0%} before, {np.sqrt(np.mean(off**2)) / size:.0%} after"
    )

# %% [markdown]
# ## 3 · Bits and errors
#
# The types whose name ends in `_k` go one step further: 256 numbers share one large block, and the scales of its small blocks
# are themselves codes of 6 bits. That saves bits, and the bits go into better scales. (Their rows are multiples of 256 long;
# ours have 128, so two rows are laid end to end here.)

# %%
types = [name for name, kind in sf.quantization_types().items() if kind.writable]
made = {name: sf.quantize(gate.reshape(-1, 256), name) for name in types}
for name, q in sorted(made.items(), key=lambda item: -item[1].bits_per_weight):
    print(f"{name:6s} {q.bits_per_weight:7.4f} bits a weight   error {q.error:7.3%}")

with sf.plots.style():
    _, ax = plt.subplots(figsize=(5, 3))
    for name, q in made.items():
        ax.plot(q.bits_per_weight, q.error, "o", color=sf.plots.COLOURS["blue"])
        beside = "top" if name.endswith("_k") else "bottom"
        ax.annotate(f" {name}", (q.bits_per_weight, q.error), va=beside)
    bits = np.array([4, 9])
    ax.plot(bits, made["q8_0"].error * 2.0 ** (8.5 - bits), ":", color=sf.plots.COLOURS["orange"])
    ax.set(
        yscale="log",
        xlabel="bits a weight",
        ylabel="error",
        title="dotted: a bit more halves the error",
    )
    ax.set_xlim(4, 9.3)
plt.show()

# %% [markdown]
# A bit more halves the error: the dotted line. What lies below it makes more of its bits than `q8_0` does: all three `_k` types.
#
# ## 4 · What the model says
#
# Now put all matrices of the model into few bits, embedding and last matrix included. The weights stay so in memory:
# `sf.linear` multiplies with the codes.

# %%
tokenizer = sf.from_pretrained(sf.demo_path()).tokenizer


def in_few_bits(name, only=None):
    """The model with its matrices in a type: all of them, or those whose names are given."""
    few = {
        full: sf.quantize(weight, name)
        if weight.ndim == 2 and (only is None or full.split(".")[-1] in only)
        else weight
        for full, weight in weights.items()
    }
    return sf.LanguageModel(Transformer(checkpoint.config, few), tokenizer)


exact = sf.LanguageModel(Transformer(checkpoint.config, weights), tokenizer)
text = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"
print(f"float32: {exact.generate(text, max_new_tokens=1)!r}")
for name in ("q8_0", "q5_1", "q4_0"):
    print(f"{name:7s}: {in_few_bits(name).generate(text, max_new_tokens=1)!r}")

# %% [markdown]
# One word proves little. Better is the loss over many texts that the model was not trained on; and better than two losses is
# their *difference token by token*, because most of the noise is the same in both and cancels.

# %%
texts = [
    one
    for one in itertools.islice(corpus.documents(seed=987), 150)
    if len(tokenizer.encode(one)) < 250
][:60]
right = np.concatenate([exact.loss(one) for one in texts])
print(f"float32: loss {right.mean():.4f} over {len(right)} tokens")
for name in ("q8_0", "q5_1", "q4_1", "q4_0"):
    model = in_few_bits(name)
    more = np.concatenate([model.loss(one) for one in texts]) - right
    print(
        f"{name:7s}: {more.mean():+.4f} ± {more.std() / len(more) ** 0.5:.4f}, the worst token {more.max():+.2f}"
    )

# %% [markdown]
# An error of eight percent in every matrix, in a seventh of the bits, and the loss moves by one to three thousandths. But see the
# last column: single tokens become much worse. **The mean hides where it hurts.** So where does it?
#
# ## 5 · Where the error goes
#
# Read the same text with both models, keep both traces, and compare them layer by layer, token by token:

# %%
_, right_trace = exact.run_with_cache(text)
_, few_trace = in_few_bits("q4_0").run_with_cache(text)
limits = (0.03, 0.7)  # of the colours, the same in both pictures
title = "q4_0 against float32: the residual stream behind each layer"
sf.plots.trace_errors(few_trace, right_trace, limits=limits, title=title)
plt.show()

# %% [markdown]
# Two things can be seen.
#
# * At most tokens it does **not pile up**: they are about as far off behind layer 5 as they were behind layer 0.
# * It **gathers at a few tokens**: at `Tom`, which this tokenizer cuts in two, wherever he is named, and in the sentence about him.
#   What do the two models expect to come next there?

# %%
few = in_few_bits("q4_0")
expects, expects_too = sf.softmax(exact(text)), sf.softmax(few(text))
further = (expects * np.log(expects / expects_too)).sum(-1)  # Kullback-Leibler divergence, in nats
for at in np.argsort(further)[::-1][:4]:
    word, word_too = tokenizer.to_str_tokens([expects[at].argmax(), expects_too[at].argmax()])
    print(
        f"behind {right_trace.tokens[at]!r:5} {further[at]:.2f} nats apart: float32 expects {word!r} "
        f"({expects[at].max():.0%}), 4 bits {word_too!r} ({expects_too[at].max():.0%})"
    )
print(f"behind all other tokens {np.sort(further)[:-4].mean():.4f} nats on average")

# %% [markdown]
# The answer ` blue` stands. But all four places are in the sentence about `Tom` or right behind it, and there the two models expect
# different things. What is it about `Tom`? Perhaps that the model has never met him: look for him in what it was trained on. And ask the same question
# about somebody whom it knows.

# %%
read = list(itertools.islice(corpus.documents(seed=1), 5000))
print(
    {name: sum(f" {name} " in one for one in read) for name in ("Tom", "Ben")},
    "of",
    len(read),
    "documents",
)

known = text.replace("Tom", "Ben")
_, right_known = exact.run_with_cache(known)
_, few_known = few.run_with_cache(known)
sf.plots.trace_errors(few_known, right_known, limits=limits, title="the same with Ben for Tom")
plt.show()
expects, expects_too = sf.softmax(exact(known)), sf.softmax(few(known))
print(
    f"no token is further apart than {(expects * np.log(expects / expects_too)).sum(-1).max():.2f} nats"
)

# %% [markdown]
# Where a model is at home, its answers stand far from where they would tip, and an error of a few percent moves nothing. Where it is
# out of its depth, as with a word in pieces that it never read together, the same error decides. A benchmark of easy questions
# sees nothing of that.
#
# Which steps lose most? Here is the error of four activations, layer by layer:

# %%
for name in ("attn.q", "attn.pattern", "attn.out", "mlp.out"):
    every = []
    for layer in range(6):
        mine, needed = (trace[f"layers.{layer}.{name}"] for trace in (few_trace, right_trace))
        every.append(np.linalg.norm(mine - needed) / np.linalg.norm(needed))
    print(f"{name:13s}" + "  ".join(f"{error:6.1%}" for error in every))

# %% [markdown]
# All four are further off in late layers than in early ones, and what attention writes is further off than the rest.
#
# ## 6 · Which matrix may have fewer bits?
#
# Put one kind of matrix at a time into 4 bits and leave the others alone:

# %%
kinds = (["embed"], ["wq", "wk"], ["wv"], ["wo"], ["gate", "up"], ["down"], ["lm_head"])
needed = exact(text)
for only in kinds:
    model = in_few_bits("q4_0", only)
    more = np.concatenate([model.loss(one) for one in texts]) - right
    off = np.linalg.norm(model(text) - needed) / np.linalg.norm(needed)
    share = sum(w.size for full, w in weights.items() if full.split(".")[-1] in only)
    share /= sum(w.size for w in weights.values())
    print(
        f"{' and '.join(only):11s} {share:4.0%} of the weights: logits off by {off:.1%}, "
        f"loss {more.mean():+.4f} ± {more.std() / len(more) ** 0.5:.4f}"
    )

# %% [markdown]
# No kind alone costs a thousandth. `wv`, with three percent of the weights, moves the logits most, and the loss not at all: to be
# off is one thing, to be wrong another. Mixtures such as `q4_k_m` give `wv`, the last matrix and a few others more bits.
#
# ## 7 · And the activations?
#
# `sf.linear` rounds them too, beside quantised weights, to 16-bit integers: sums of whole numbers are exact, and fast. What
# that costs, beside what the weights cost:

# %%
x = right_trace["mlp_norm", 3]
q = sf.quantize(gate, "q4_0")
values = q.dequantize().astype(np.float64)
with_integers, with_floats = sf.linear(x, q), sf.linear(x, q, arithmetic="float32")


def apart(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


print(
    f"from rounding the weights to 4 bits:      {apart(x @ values.T, x @ gate.astype(np.float64).T):.1e}"
)
print(f"from rounding the activations to 16 bits: {apart(with_integers, x @ values.T):.1e}")
print(f'arithmetic="float32":                     {apart(with_floats, x @ values.T):.1e}')

# %% [markdown]
# ## 8 · What it is for
#
# Writing a word reads every weight once (notebook 05). So the time of a word is the bytes of the weights over the bytes a
# second that memory gives, and **fewer bits are more words**. How many more, if that were all:

# %%
for name, bits in {
    "float32": 32,
    "bfloat16": 16,
    **{n: q.bits_per_weight for n, q in made.items()},
}.items():
    print(
        f"{name:8s} {bits:7.4f} bits: {8e9 * bits / 8 / 1e9:5.1f} GB for 8 billion weights, {32 / bits:4.1f} times the words"
    )

# %% [markdown]
# And measured, here on a small shared machine: 67 million weights, more than caches hold, times one token. (The weights are a small
# matrix, many times one below the other: the time does not depend on what they are.)

# %% tags=["measured"]
from simdformer import bench

rng = np.random.default_rng(0)
small, times, x = (
    rng.standard_normal((64, 2048), np.float32),
    512,
    rng.standard_normal((1, 2048), np.float32),
)
shape = (len(small) * times, 2048)
packed = {"float32": sf.pack(np.tile(small, (times, 1)))}
packed["bfloat16"] = sf.pack(np.tile(small, (times, 1)).astype("bfloat16"))
for name in ("q8_0", "q6_k", "q5_k", "q4_k", "q4_0"):
    blocks = np.tile(sf.quantize(small, name).blocks(), (times, 1))
    packed[name] = sf.QuantizedWeight.from_blocks(blocks, name, shape)
seconds = bench.compare({name: (lambda w=w: sf.linear(x, w)) for name, w in packed.items()})
bits = {name: 8 * w.nbytes / (shape[0] * shape[1]) for name, w in packed.items()}

with sf.plots.style():
    _, ax = plt.subplots(figsize=(5.5, 3.2))
    for name, took in seconds.items():
        ax.plot(bits[name], 1 / took, "o", color=sf.plots.COLOURS["blue"])
        ax.annotate(f" {name}", (bits[name], 1 / took), va="bottom")
    every = np.linspace(4, 32)
    ax.plot(every, 32 / every / seconds["float32"], ":", color=sf.plots.COLOURS["orange"])
    ax.set(
        xlabel="bits a weight", ylabel="tokens a second", title="dotted: float32's bytes a second"
    )
    ax.set(xscale="log", yscale="log")
    ax.minorticks_off()
    ax.set_xticks([4, 8, 16, 32], labels=["4", "8", "16", "32"])
plt.show()

# %% [markdown]
# Points on the dotted line read as many bytes a second as float32 does: they are bound by memory, and all that they save is
# won. Below it, the arithmetic of unpacking codes shows.
#
# ## What you have now
#
# * A block is a scale and small whole numbers; a bit more halves the error.
# * The mean loss hardly moves at 4 bits; single tokens do. Compare traces to see which.
# * Matrices are not equally patient. The last one wants more bits.
# * Words a second go with bytes, so bits are speed.
#
# With a file of your own: `simdformer quantize MODEL model.gguf --type q4_k_m` writes one, `sf.from_pretrained("model.gguf")` keeps
# its weights in their bits, and everything in this notebook, the traces too, works on it.
