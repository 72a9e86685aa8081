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
# # 05 · How fast, and why
#
# Why does a language model take so long to write a word? Why does it read a page in the time in which it writes a line?
# And why does buying a faster processor often change nothing?
#
# The answers need no profiler. They need a pencil: **count the operations, count the bytes, divide.** This notebook counts
# first. Then it lets your own machine measure whether the count was right.
#
# | letter | meaning |
# |---|---|
# | `H`, `K` | query heads, key/value heads |
# | `L`, `S` | queries of this call, keys that they see |
# | `D` | numbers per head (`head_dim`) |
# | FLOP | one addition or multiplication of floating-point numbers |
# | GFLOPS | a billion of them per second |
#
# Some cells measure. What you see below them was measured on one machine, which section 6 names; run them, and it is **yours**.
# All other outputs follow from shapes alone, and are the same everywhere.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

import simdformer as sf
from simdformer import bench

rng = np.random.default_rng(5)


def random(*shape):
    """Normally distributed float32 numbers: what activations look like after a norm."""
    return rng.standard_normal(shape, dtype=np.float32)


# %% [markdown]
# ## 1 · Two numbers describe a computation
#
# A processor does two things: it **fetches** numbers and it **computes** with them. It does both at the same time, so the
# slower of the two decides how long everything takes. How much of each is needed does not depend on the machine at all.
#
# Take a linear layer, $y = x W^\top$, with `x` of shape `(M, I)` and `W` of shape `(O, I)`:
#
# * every output is a sum of `I` products: $2 \cdot M \cdot I \cdot O$ FLOP;
# * `x`, `W` and `y` must each come by at least once: $4 \cdot (M I + O I + M O)$ bytes in float32.
#
# That is easy to believe and just as easy to get wrong. So let us count for real: numbers that keep a tally whenever
# somebody adds or multiplies them.


# %%
class Counted:
    """A number that counts what is done with it."""

    flops = 0

    def __init__(self, value):
        self.value = value

    def __mul__(self, other):
        Counted.flops += 1
        return Counted(self.value * other.value)

    def __add__(self, other):
        Counted.flops += 1
        return Counted(self.value + other.value)


def counted(array):
    return [[Counted(float(number)) for number in row] for row in array]


def slow_linear(x, weight):
    """(M, I), (O, I) -> (M, O), one product and one addition at a time."""
    return [
        [sum((a * b for a, b in zip(row, column, strict=True)), Counted(0.0)) for column in weight]
        for row in x
    ]


M, I, O = 3, 7, 5
x, weight = random(M, I), random(O, I)
Counted.flops = 0
result = slow_linear(counted(x), counted(weight))
mine = np.array([[number.value for number in row] for row in result], np.float32)
sf.check(sf.linear, mine, x, weight).raise_if_wrong()

work = bench.Linear(rows=M, width_in=I, width_out=O)
print(f"counted: {Counted.flops} FLOP, the formula says {work.flops}")
print(f"bytes:   {work.nbytes}, so {work.intensity:.2f} FLOP per byte")

# %% [markdown]
# The quotient, **FLOP per byte**, is called the *arithmetic intensity*. It is the one number to remember about an operation.
#
# ## 2 · The same layer, one token or many
#
# A **prefill** reads the prompt: all its tokens go through the layer together, `M` is large. A **decode** step writes one
# token: `M = 1`. The weight is fetched once in either case. With `M` tokens it is *used* `M` times.

# %%
print("tokens |      FLOP |     bytes | FLOP per byte")
for rows in (1, 4, 16, 64, 512):
    work = bench.Linear(rows=rows)  # 4096 -> 14336, a matrix of Llama-3-8B's MLP
    print(f"{rows:6d} | {work.flops:9.2e} | {work.nbytes:9.2e} | {work.intensity:13.1f}")

# %% [markdown]
# 512 times the arithmetic, and hardly any more bytes. That is why a prompt is read so much faster than a text is written,
# per token, on the same machine with the same weights.
#
# Attention has the same two faces. In a prefill each of `S` queries meets up to `S` keys: the work grows with `S²`, the
# arrays only with `S`. In a decode step one query per head walks past the whole cache: every key is read, used once per query head that
# shares it, and gone. Sharing is what **grouped-query attention** is for: with 4 query heads per key/value head each
# byte that is read works four times.

# %%
heads = {"K = H (no sharing)": 32, "K = H/4": 8, "K = H/8": 4, "K = 1 (one for all)": 1}
for name, kv_heads in heads.items():
    step = bench.Attention(heads=32, kv_heads=kv_heads, queries=1, keys=4096, head_dim=128)
    print(
        f"decode, {name:<20} {step.nbytes / 1e6:6.1f} MB to read, {step.intensity:5.2f} FLOP per byte"
    )
prefill = bench.Attention(heads=32, kv_heads=32, queries=4096, keys=4096, head_dim=128)
print(
    f"prefill of as many tokens     {prefill.nbytes / 1e6:8.1f} MB, {prefill.intensity:11.2f} FLOP per byte"
)

alone, shared = (
    bench.Attention(heads=32, kv_heads=kv_heads, queries=1, keys=4096, head_dim=128)
    for kv_heads in (32, 8)
)
pairs = sf.causal_mask(512, 512).sum()  # how many (query, key) pairs may see each other
half = bench.Attention(heads=32, kv_heads=32, queries=512, keys=512, head_dim=128)

# %% [markdown]
# ## 3 · The roofline
#
# A machine has two numbers as well: how many FLOP per second it computes at most, and how many bytes per second it reads
# at most. Divide them, and you get the intensity at which both are busy: the **ridge**. Left of it the memory is the
# limit, and arithmetic is free. Right of it arithmetic is the limit, and memory is free.
#
# $$\text{GFLOPS possible} = \min(\text{peak},\ \text{FLOP per byte} \times \text{bandwidth})$$
#
# The picture takes a round example: 400 GFLOPS and 40 GB/s, so the ridge is at 10. Laptops and servers differ by a lot in
# both numbers, but far less in their quotient.

# %%
peak, bandwidth = 400, 40  # GFLOPS and GB/s of an example
shown = {
    "SwiGLU, RMSNorm, RoPE ...": bench.SwiGLU(rows=128, width=11008),
    "linear, 1 token": bench.Linear(rows=1),
    "linear, 1 token, 16 bits": bench.Linear(rows=1, dtype="bfloat16", weight_dtype="bfloat16"),
    "attention, decode": bench.Attention(heads=32, kv_heads=8, queries=1, keys=4096, head_dim=128),
    "linear, 16 tokens": bench.Linear(rows=16),
    "prefill of 512": bench.Attention(heads=32, kv_heads=32, queries=512, keys=512, head_dim=128),
    "linear, 512 tokens": bench.Linear(rows=512),
}


sf.plots.roofline(
    {name: work.intensity for name, work in shown.items()},
    gflops=peak,
    gigabytes_per_second=bandwidth,
    title="the most that an example machine can do",
)
plt.show()

# %% [markdown]
# ## 4 · How fast can a model write?
#
# To write one token, every weight must be read once, and the cache as well. So there is a bound that no kernel can break:
#
# $$\text{tokens per second} \le \frac{\text{bandwidth}}{\text{bytes of weights} + \text{bytes of cache}}$$

# %%
print("                 read per token |  at 20 GB/s |  at 40 GB/s | at 100 GB/s")
for name, config in bench.SHAPES.items():
    for in_cache in (64, 4096):
        step = bench.ModelRun(config=config, new=1, in_cache=in_cache)
        bounds = " | ".join(f"{gb * 1e9 / step.nbytes:5.1f} tok/s" for gb in (20, 40, 100))
        print(f"{name:<13} {in_cache:5d} tokens {step.nbytes / 1e9:5.2f} GB | {bounds}")

# %% [markdown]
# Three ways are left to write faster: a machine with more bandwidth, fewer bytes per weight (16 bits, 8, 4), or more tokens
# for one reading (several texts at once, or guesses that are checked together). More arithmetic units are not among them.
#
# ## 5 · First right, then fast
#
# A fast wrong answer is worth nothing, so nobody is timed here before the result is checked. Below: the obvious numpy for
# four operations, the kernel, and how far each is from float64. The error is the root mean square of the differences,
# relative to that of the result. float32 carries about seven digits.


# %%
def naive_attention(q, k, v, causal):
    """(H,L,D), (K,S,D), (K,S,D) -> (H,L,D), with the whole (H,L,S) array in memory"""
    k, v = (np.repeat(y, len(q) // len(y), axis=0) for y in (k, v))
    scores = q @ k.swapaxes(-1, -2) / np.float32(np.sqrt(q.shape[-1]))
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


def naive_rms_norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6)) * weight


def compare(name, mine, op, *args, **kwargs):
    """Checks yours, then shows how far yours and the kernel's are from float64."""
    sf.check(op, mine, *args, **kwargs).raise_if_wrong()
    exact = getattr(sf.reference, op.__name__)(*args, **kwargs)
    yours, kernels = (bench.relative_error(y, exact) for y in (mine, op(*args, **kwargs)))
    print(f"{name:<18} error of numpy {yours:.0e}, of the kernel {kernels:.0e}")


attention = sf.scaled_dot_product_attention
q, k, v = (random(8, 256, 64) for _ in range(3))
compare("attention, prefill", naive_attention(q, k, v, True), attention, q, k, v, is_causal=True)
q, k, v = random(8, 1, 64), random(2, 2000, 64), random(2, 2000, 64)
compare("attention, decode", naive_attention(q, k, v, False), attention, q, k, v)
x, weight = random(16, 512), random(384, 512)
compare("linear", x @ weight.T, sf.linear, x, weight)
x, weight = random(64, 1024), random(1024)
compare("RMSNorm", naive_rms_norm(x, weight), sf.rms_norm, x, weight, eps=1e-6)

# %% [markdown]
# ## 6 · Your machine's roof
#
# Two small kernels that do nothing else: chains of multiply-adds in registers, and a sum over an array. The array is once
# as large as half a cache and once larger than all caches, because a cache is several times as fast as the memory behind it.

# %% tags=["measured"]
machine = bench.this_machine()
roof = bench.measure_limits(machine, 2.0, bench.Stopwatch())
print(machine)
print(f"multiply-adds  {roof.gflops:8.0f} GFLOPS")
for level in roof.levels:
    print(f"read from {level.name:<8} {level.gigabytes_per_second:5.0f} GB/s")
print(f"the ridge lies at {roof.gflops / roof.levels[-1].gigabytes_per_second:.0f} FLOP per byte")

# %% [markdown]
# And now the operations, by turns with PyTorch and onnxruntime where they are installed. Everybody gets the same numbers,
# the same threads, and an output that exists already. Compare *within* a line: the ratios say more than the times.
#
# (This is `simdformer bench` with smaller sizes and little patience. For numbers to quote, run the command itself, on an idle machine.)

# %% tags=["measured"]
chosen = {
    "prefill, 512 tokens": bench.Attention(
        heads=8, kv_heads=8, queries=512, keys=512, head_dim=128
    ),
    "decode, 4096 keys": bench.Attention(heads=32, kv_heads=8, queries=1, keys=4096, head_dim=128),
    "decode, 16 bits": bench.Attention(
        heads=32, kv_heads=8, queries=1, keys=4096, head_dim=128, dtype="bfloat16"
    ),
    "linear, 1 token": bench.Linear(rows=1, width_in=2048, width_out=8192),
    "linear, 16 tokens": bench.Linear(rows=16, width_in=2048, width_out=8192),
    "linear, 256 tokens": bench.Linear(rows=256, width_in=2048, width_out=8192),
    "RMSNorm": bench.RMSNorm(rows=128, width=1024),
    "RoPE": bench.RoPE(heads=32, tokens=128, head_dim=128),
    "softmax": bench.Softmax(rows=128, width=4096),
    "SwiGLU": bench.SwiGLU(rows=128, width=11008),
}
measured = bench.Results(machine, roof)
print("                       ours |    of the roof | × torch | × onnxruntime | × numpy")
for name, work in chosen.items():
    result = bench.run_case(bench.Case(name, work), roof, 0.4, bench.Stopwatch())
    measured.results.append(result)
    ratios = " | ".join(
        f"{ratio:8.2f}" if (ratio := result.ratio(peer)) > 0 else "       -"  # cannot do it
        for peer in ("torch", "onnxruntime", "numpy")
    )
    print(f"{name:<20} {result.ours.best * 1e6:6.0f} µs | {result.share:14.0%} | {ratios}")

# %% tags=["measured"]
sf.plots.roofline(
    {result.case.name: result.case.work.intensity for result in measured.results},
    gflops=roof.gflops,
    gigabytes_per_second={level.name: level.gigabytes_per_second for level in roof.levels},
    measured={
        result.case.name: result.case.work.flops / result.ours.best / 1e9
        for result in measured.results
    },
)
plt.show()

# %% [markdown]
# There is a roof for every cache, too: what lies in one is read faster than from memory. Find a dot that lies low. Then ask the
# two questions: left or right of the ridge? And does it touch its roof? A dot on the slanted line cannot be helped by better arithmetic. A dot below it can.
#
# ## 7 · The page that nobody wrote to yet
#
# `y = f(x)` makes a new array. The operating system does not give memory away, it gives a *promise*: only when a page of
# 4096 bytes is touched for the first time does it stop your program, find a page, fill it with zeros, and let you go on.
# For an operation that does little per byte, this costs more than the operation itself. numpy hands small arrays back to you
# warm, but large ones go back to the system as soon as you drop them.
#
# `out=` writes to an array that you already have.

# %%
gate, up = random(2048, 11008), random(2048, 11008)
pages = gate.nbytes // 4096
print(
    f"one output of {gate.shape} in float32 is {gate.nbytes / 2**20:.0f} MiB: {pages} pages to ask for"
)

out = np.empty_like(gate)
returned = sf.swiglu(gate, up, out=out)
rows = slice(0, 3)
sf.check(
    sf.swiglu, gate[rows] / (1 + np.exp(-gate[rows])) * up[rows], gate[rows], up[rows]
).raise_if_wrong()
overwritten = gate.copy()

# %% tags=["measured"]
seconds = bench.compare(
    {
        "numpy, one line": lambda: gate / (1 + np.exp(-gate)) * up,
        "a new output": lambda: sf.swiglu(gate, up),
        "out=": lambda: sf.swiglu(gate, up, out=out),
    },
    budget=3.0,
)
for name, time in seconds.items():
    print(f"{name:<16} {time * 1e3:7.1f} ms   {3 * gate.nbytes / time / 1e9:6.1f} GB/s")

# %% [markdown]
# The one line of numpy makes array after array of that size on its way. The kernel makes none.
#
# ## 8 · What is never written is never slow
#
# The same thought, larger. The naive attention above stores the scores of every pair. The kernel works on a block of
# queries and a block of keys at a time, keeps a running maximum and a running sum, and never holds the whole array.

# %%
print("tokens |   q, k, v and output | scores of 32 heads")
for length in (512, 2048, 8192, 32768):
    work = bench.Attention(heads=32, kv_heads=32, queries=length, keys=length, head_dim=128)
    scores = 32 * length * length * 4
    print(f"{length:6d} | {work.nbytes / 2**20:16.0f} MiB | {scores / 2**20:13.0f} MiB")

# %% [markdown]
# ## 9 · Threads
#
# Work for more than a few microseconds is cut into pieces for all cores. Which core takes which piece is up to chance. The
# result is not: it does not depend on the number of threads, and that not nearly, but **to the last bit**:

# %%
q, k, v = random(8, 300, 64), random(8, 300, 64), random(8, 300, 64)
x, weight = random(33, 700), random(900, 700)
packed = sf.pack(weight)
digests = set()
for count in (1, 2, 3, 4):
    with sf.num_threads(count):
        z = sf.scaled_dot_product_attention(q, k, v, is_causal=True)
        digests.add((z.tobytes(), sf.linear(x, packed).tobytes()))
print("different results with 1, 2, 3 and 4 threads:", len(digests) - 1)

# %% tags=["measured"]
many_rows, large = random(256, 2048), sf.pack(random(8192, 2048))
row, outs = random(1, 2048), [np.empty((n, 8192), np.float32) for n in (1, 256)]
cores = len(os.sched_getaffinity(0))
for count in sorted({1, 2, cores}):
    with sf.num_threads(count):
        seconds = bench.compare(
            {
                "1 token": lambda: sf.linear(row, large, out=outs[0]),
                "256 tokens": lambda: sf.linear(many_rows, large, out=outs[1]),
            },
            budget=1.0,
        )
    print(
        f"{count} of {cores} cores: "
        + ", ".join(f"{n} {t * 1e3:.2f} ms" for n, t in seconds.items())
    )

# %% [markdown]
# Arithmetic grows with the cores. Bandwidth does not: often one or two cores can ask for all that the memory gives. That
# is the third reason why a larger processor may not write any faster.
#
# ## 10 · Half the bits
#
# If bytes are the limit, take fewer. A weight in bfloat16 has half the bytes of float32, and the same range of
# magnitudes. What it loses is digits: 8 bits of mantissa instead of 24. The kernel widens each number when it is
# already in a register, and adds in float32. So the only error is that of *storing* the weight:

# %%
x, weight = random(1, 4096), random(256, 4096) / 64
exact = sf.reference.linear(x, weight)
narrow = {name: weight.astype(name) for name in ("float32", "float16", "bfloat16")}
for name, w in narrow.items():
    y = sf.linear(x, w)
    sf.check(sf.linear, x @ w.astype(np.float32).T, x, w).raise_if_wrong()  # widened by hand: equal
    lost = bench.relative_error(y, exact)
    print(
        f"{name:<9} {w.nbytes / 2**20:5.1f} MiB, error against the float32 weight in float64: {lost:.0e}"
    )

# %% [markdown]
# ## 11 · Packing
#
# A weight lies in memory row by row. The kernel wants to compute many outputs at once, and would need numbers from many rows,
# thousands of bytes apart. `sf.pack` rearranges the weight once, so that what is needed together lies together. Loading a
# model does it for you. No number changes:

# %%
packed = {name: sf.pack(w) for name, w in narrow.items()}
for name, w in narrow.items():
    sf.check(sf.linear, sf.linear(x, packed[name]), x, w).raise_if_wrong()
print(packed["bfloat16"])

# With a packed weight a row of x gives the same bits, alone or in company.
x5 = random(5, 4096)
together = sf.linear(x5, packed["float32"])
alone = np.concatenate([sf.linear(x5[i : i + 1], packed["float32"]) for i in range(5)])

# %% tags=["measured"]
weight = random(8192, 2048)
x, out = random(1, 2048), np.empty((1, 8192), np.float32)
contestants = {"float32, numpy x @ w.T": lambda: x @ weight.T}
for name in ("float32", "bfloat16"):
    w = weight.astype(name)
    for title, form in (("as it lies", w), ("packed", sf.pack(w))):
        contestants[f"{name}, {title}"] = lambda form=form: sf.linear(x, form, out=out)
for name, time in bench.compare(contestants, budget=2.0).items():
    size = weight.size * (2 if name.startswith("bf") else 4)
    print(f"{name:<24} {time * 1e3:6.2f} ms   {size / time / 1e9:6.1f} GB/s")

# %% [markdown]
# ## What you have now
#
# * Count FLOP, count bytes, divide: the quotient tells which limit an operation will meet, before a line of it is written.
# * Prefill is arithmetic, decode is bandwidth. The same weights, the same kernel; only the number of tokens differs.
# * Bytes that are not moved are the best ones: scores that are never stored, outputs that exist already, weights of half the size,
#   keys that four heads share.
# * Fast and exact are no opposites: `bench` compares every contestant with float64 before its clock starts.
#
# `simdformer bench` measures every operation of the library like this, at full size, beside PyTorch and onnxruntime;
# `simdformer bench --plot roofline.png` draws your machine's picture.
