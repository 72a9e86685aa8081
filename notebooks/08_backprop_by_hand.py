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
# # 08 · Backprop by hand
#
# A model learns by asking of every weight: *if you were a little larger, would the loss be larger or smaller, and by how
# much?* The answers are its **gradients**. A framework computes them for you, and so few people have ever seen one being
# computed. Here you compute all of them yourself, from the loss back to the embedding, for a whole language model.
#
# You know the way there from notebooks 01 and 02. The way back needs one rule, the chain rule: *what comes in from behind,
# times the slope of this step*. For each operation you write it in a few lines of numpy, see which **law** it obeys, and
# **break it yourself**; `sf.check` tells which mistake it was. The mistakes are real ones: many of them have been made in
# well-known code, and models train nevertheless, only worse.
#
# To write all of it yourself, open [the exercise](exercises/08_backprop_by_hand.ipynb): it leaves out what you write.
#
# | letter | meaning |
# |---|---|
# | `dy` | the gradient that comes in: the slope of the loss by `y`, of the shape of `y` |
# | `dx`, `dw` | what you compute: the slope of the loss by `x`, by `w`, each of the shape of its array |
# | `L`, `E` | tokens, numbers per token (`hidden_size`) |
# | `H`, `K`, `D` | query heads, key/value heads, numbers per head |
# | `V` | words of the vocabulary |

# %%
from math import log, sqrt

import matplotlib.pyplot as plt
import numpy as np

import simdformer as sf
from simdformer.training import TrainableModel

rng = np.random.default_rng(8)


def random(*shape):
    """Normally distributed float32 numbers: what activations look like after a norm."""
    return rng.standard_normal(shape, dtype=np.float32)


def broken(operation, wrong, *args, **kwargs):
    """What `sf.check` says of each of several wrong results."""
    for what, mine in wrong.items():
        report = sf.check(operation, mine, *args, **kwargs)
        said = [mistake.title for mistake in report.diagnosis] or report.observations
        print(f"{what:<34} → {'right?!' if report.ok else said[0]}")


# %% [markdown]
# ## 1 · One weight, nudged
#
# Take the demonstration model and a story. Its last matrix, the head, has a row for each word of the vocabulary. Move
# **one** of its weights by `h`, once up and once down, and watch the loss. The difference over `2h` is the slope: the gradient
# of this weight. (The loss is the mean of `-log p` over the tokens that really come next.)

# %%
model = sf.from_pretrained("demo")
story = "Once upon a time there was a little hare named Zoe. Zoe was sleepy, so the hare went to the forest."
ids = np.array(model.tokenizer.encode(story, bos=True))
labels = np.append(ids[1:], -100)  # the next token of each; the last one has none
_, trace = model.run_with_cache(ids)
final, head = trace["final_norm"], model.weights["lm_head"]


def loss(head, dtype):
    z = final[:-1].astype(dtype) @ head.astype(dtype).T  # (L-1, V)
    z = z - z.max(-1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
    return -log_p[np.arange(len(z)), labels[:-1]].mean()


def slope(h, dtype):
    """The slope of the loss by one weight of the head"""
    up, down = head.astype(np.float64), head.astype(np.float64)
    up[row, column] += h
    down[row, column] -= h
    return (loss(up, dtype) - loss(down, dtype)) / (2 * h)


trainable = TrainableModel.from_pretrained(sf.demo_path())
_, gradients = trainable.loss_and_gradients(ids)
row, column = np.unravel_index(np.abs(gradients["lm_head"]).argmax(), head.shape)  # the largest
print(f"by nudging, h = 0.001: {slope(1e-3, np.float64):+.8f}")
print(f"by a formula:          {gradients['lm_head'][row, column]:+.8f}")

# %% [markdown]
# How small should `h` be? The smaller, the straighter the curve between the two points; but the two losses then differ in
# their last digits only, and these are rounding. Count the digits that agree with the formula:

# %%
exponents = np.arange(-10.0, 0.5, 0.5)
z = final[:-1].astype(np.float64) @ head.T
p = np.exp(z[:, row]) / np.exp(z).sum(-1)
exact = ((p - (labels[:-1] == row)) * final[:-1, column]).mean()  # sections 3 and 4 say why


def digits(dtype):
    off = [abs(slope(10.0**e, dtype) - exact) / abs(exact) for e in exponents]
    return np.clip(-np.log10(np.maximum(off, 1e-12)), 0, None)


curves = {"float64": digits(np.float64), "float32": digits(np.float32)}
labels_of = {"xlabel": "h = 10 to the power of", "ylabel": "digits that are right"}
sf.plots.lines(exponents, curves, title="a difference has few digits in float32", **labels_of)
plt.show()

# %% [markdown]
# In float32 even the best `h` leaves few digits, and this is the largest gradient of all; a smaller one gets fewer. Float64
# gives twice as many. So differences are taken in **float64**. And to nudge all weights of this model one by one would take
# two forward passes for each of them, millions in all; the formulas of this notebook take as long as two or three. `sf.gradcheck` compares a backward of
# *your own* operations with such differences, in a few random directions instead of along every weight.

# %%
sf.gradcheck(lambda x: x**3, lambda dy, x: dy * 3 * x**2, random(4, 5).astype(np.float64))

# %% [markdown]
# ## 2 · Tests that see nothing
#
# Before the first formula, a warning. The gradient that comes in, `dy`, is often set to ones, as `y.sum().backward()` does.
# Look at what softmax makes of it. All rows of a softmax sum to one, whatever goes in; so the slope of their sum is **zero**,
# and a formula that always gives zero passes the test.

# %%
p = sf.softmax(random(3, 7))
ones, dy = np.ones_like(p), random(3, 7)
print("dx of ones:", np.abs(sf.backward.softmax(ones, p)).max().round(6))
nonsense = {"all zeros": 0 * p}
broken(sf.backward.softmax, nonsense, ones, p)  # dy of ones
broken(sf.backward.softmax, nonsense, dy, p)  # a random dy

# %% [markdown]
# The same trap stands elsewhere: norm weights of ones hide a forgotten weight, square matrices hide a transpose, ids that
# occur once hide a lost sum, a batch of one hides a mean over the batch. **The rule: random numbers, unequal sizes,
# repeated ids, some ignored labels.** That is what the inputs below are like.
#
# ## 3 · Cross entropy: where all gradients begin
#
# The loss of one row is $-\log p_{label}$ with $p = \text{softmax}(z)$, that is $\log\sum_j e^{z_j} - z_{label}$. The slope
# of the first term by $z_j$ is $e^{z_j}/\sum = p_j$; the second takes 1 away at the label:
#
# $$dz = \frac{1}{n}\,(p - \text{onehot}(label))$$
#
# where `n` counts the labels that count. (A label of -100 does not: its row of `dz` is zero.) **Law:** every row sums to 0,
# because adding the same number to all logits changes nothing.


# %%
def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cross_entropy_backward(z, labels):
    keep = labels != -100
    onehot = np.arange(z.shape[-1]) == np.where(keep, labels, 0)[:, None]
    return (softmax(z) - onehot) * keep[:, None] / np.float32(keep.sum())


z, some = random(6, 11), np.array([3, 0, -100, 3, 10, -100])
dz = cross_entropy_backward(z, some)
sf.check(sf.backward.cross_entropy, dz, z, some).raise_if_wrong()
print("rows sum to", np.abs(dz.sum(-1)).max().round(6))
print(
    f"a model that knows nothing has a loss of ln V = {log(1024):.2f}; this one has {trainable.loss(ids):.2f}"
)

# break it yourself
keep, n = (some != -100)[:, None], np.float32((some != -100).sum())
onehot = np.arange(11) == np.where(some == -100, 0, some)[:, None]
broken(
    sf.backward.cross_entropy,
    {
        "a sum, not a mean": (softmax(z) - onehot) * keep,
        "a mean over all rows": (softmax(z) - onehot) * keep / np.float32(len(z)),
        "the label forgotten": softmax(z) * keep / n,
        "ignored rows learn too": (softmax(z) - onehot) / n,
        "the next label": cross_entropy_backward(z, np.roll(some, -1)),
    },
    z,
    some,
)

# %% [markdown]
# ## 4 · A linear layer: the shapes prove it
#
# $y = x W^\top + b$, with `x` (rows, I), `W` (O, I), `y` (rows, O). Each `dx` number collects from all outputs that it went
# into, each `dW` number from all rows that it was used in. There is only one way to multiply arrays of these shapes so that
# the shapes come out right:
#
# $$dx = dy\,W \qquad dW = dy^\top x \qquad db = \sum_{rows} dy$$
#
# Leading axes (batch, positions) are folded into rows first. **Law:** $\langle x, dx\rangle = \langle W, dW\rangle$ when there
# is no bias: both are what the loss would change by if everything were scaled a little.


# %%
def linear_backward(dy, x, w):
    rows = dy.reshape(-1, dy.shape[-1])
    return dy @ w, rows.T @ x.reshape(-1, x.shape[-1]), rows.sum(0)


x, w, dy = random(2, 5, 6), random(4, 6), random(2, 5, 4)
dx, dw, db = linear_backward(dy, x, w)
sf.check(sf.backward.linear, (dx, dw, db), dy, x, w).raise_if_wrong()
print(f"<x, dx> = {(x * dx).sum():.4f}   <W, dW> = {(w * dw).sum():.4f}")

# break it yourself
broken(
    sf.backward.linear,
    {
        "x.T @ dy, as in the books": {"weight": dw.T},
        "one weight gradient a sequence": {"weight": dy.swapaxes(-1, -2) @ x},
        "= in the loop instead of +=": {"weight": dy[-1].T @ x[-1]},
        "a mean over the rows": {"weight": dw / 10},
        "the bias summed over one axis": {"bias": dy.sum(0)},
    },
    dy,
    x,
    w,
)

# %% [markdown]
# ## 5 · RMSNorm: only the direction counts
#
# $y = x\,r\,w$ with $r = 1/\sqrt{\text{mean}(x^2) + eps}$. With $h = x r$ and $g = dy\,w$ the first thought is $dx = r\,g$. But
# each number of the row is in `r`, too. If `x` grows in its own direction, `r` shrinks just as much and `y` stays as it
# is: that part of the gradient is taken out.
#
# $$dx = r\,(g - h\cdot\text{mean}(g\,h)) \qquad dw = \sum_{rows} dy\,h$$
#
# The second term is a projection. **Law:** $x \cdot dx = 0$ in each row, up to `eps`. (LayerNorm subtracts the mean on the way
# there, and so it subtracts $\text{mean}(g)$ on the way back, too: $dx = r\,(g - \text{mean}(g) - h\cdot\text{mean}(g\,h))$.)


# %%
def rms_norm_backward(dy, x, w, eps):
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps))
    h, g = x * r, dy * w
    dx = r * (g - h * (g * h).mean(-1, keepdims=True))
    return dx, (dy * h).reshape(-1, len(w)).sum(0)


x, w, dy = random(2, 5, 8), random(8), random(2, 5, 8)
dx, dw = rms_norm_backward(dy, x, w, 1e-6)
sf.check(sf.backward.rms_norm, (dx, dw), dy, x, w, eps=1e-6).raise_if_wrong()
print("x · dx:", np.abs((x * dx).sum(-1)).max().round(5))

# break it yourself
r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6))
h, g = x * r, dy * w
broken(
    sf.backward.rms_norm,
    {
        "r taken for a constant": {"x": r * g},
        "the weight forgotten": {"x": r * (dy - h * (dy * h).mean(-1, keepdims=True))},
        "... in the second term only": {"x": r * (g - h * (dy * h).mean(-1, keepdims=True))},
        "the mean over the rows": {"x": r * (g - h * (g * h).mean((0, 1), keepdims=True))},
        "dw made of x": {"weight": (dy * x).sum((0, 1))},
    },
    dy,
    x,
    w,
    eps=1e-6,
)

# %% [markdown]
# ## 6 · SwiGLU: the product rule, twice
#
# $y = \text{silu}(gate)\cdot up$ with $\text{silu}(x) = x\,s$, $s = 1/(1+e^{-x})$. Each factor's gradient holds the other
# factor, and silu is a product itself:
#
# $$dup = dy\cdot\text{silu}(gate) \qquad dgate = dy\cdot up\cdot s\,(1 + gate\,(1 - s))$$
#
# **Law:** $up\cdot dup = y\cdot dy$, number by number.


# %%
def swiglu_backward(dy, gate, up):
    s = 1 / (1 + np.exp(-gate))
    return dy * up * s * (1 + gate * (1 - s)), dy * gate * s


gate, up, dy = random(5, 12), random(5, 12), random(5, 12)
dgate, dup = swiglu_backward(dy, gate, up)
sf.check(sf.backward.swiglu, (dgate, dup), dy, gate, up).raise_if_wrong()
off = np.abs(up * dup - sf.swiglu(gate, up) * dy).max()
print(f"up · dup and y · dy are apart by {off:.0e} at most")

# break it yourself
s = 1 / (1 + np.exp(-gate))
broken(
    sf.backward.swiglu,
    {
        "the sigmoid's slope": (dy * up * s * (1 - s), dup),
        "half of the product rule": (dy * up * s, dup),
        "up forgotten": (dy * s * (1 + gate * (1 - s)), dup),
        "gate and up swapped": (dup, dgate),
        "dgate written over gate": (dgate, dy * dgate / (1 + np.exp(-dgate))),
    },
    dy,
    gate,
    up,
)

# %% [markdown]
# ## 7 · RoPE: turn back
#
# RoPE turns pairs of numbers by an angle. A rotation's transpose is the rotation back, so `dx` is `dy`, turned by **minus**
# the angle. **Law:** every pair keeps its length.


# %%
def rope_back(dy, theta):
    """dy (..., L, D), pairs beside each other"""
    length, size = dy.shape[-2:]
    angles = np.outer(np.arange(length), theta ** -(np.arange(0, size, 2) / size))
    turned = (dy[..., ::2] + 1j * dy[..., 1::2]) * np.exp(-1j * angles)
    return np.stack([turned.real, turned.imag], -1).reshape(dy.shape).astype(np.float32)


dy = random(2, 6, 8)
options = {"layout": "interleaved", "theta": 100.0}
dx = rope_back(dy, 100.0)
sf.check(sf.backward.rope, dx, dy, **options).raise_if_wrong()
first, second = (np.hypot(one[..., ::2], one[..., 1::2])[0, 5] for one in (dy, dx))
print("lengths of the pairs of one row:", first.round(4), "and turned back:", second.round(4))

# break it yourself
broken(
    sf.backward.rope,
    {
        "the forward once more": sf.rope(dy, **options),
        "no backward at all": dy,
        "the other layout": sf.backward.rope(dy, layout="half", theta=100.0),
    },
    dy,
    **options,
)

# %% [markdown]
# ## 8 · Softmax: a matrix that you never build
#
# Each share depends on all scores of its row, so a row of softmax has a whole matrix of slopes, its **Jacobian**:
# $\partial p_i/\partial x_j = p_i(\delta_{ij} - p_j)$. Here it is for one row of eight scores:

# %%
p = softmax(2 * random(8))
jacobian = np.diag(p) - np.outer(p, p)
ax = sf.plots.score_map(jacobian, title="the Jacobian of softmax")
ax.set(xlabel="score j", ylabel="share i")
ax.images[0].colorbar.set_label("slope")
plt.show()

# %% [markdown]
# Positive on the diagonal, negative elsewhere: a share grows only at the cost of the others. Multiplied with `dy` it needs no
# matrix: $dx_j = p_j\,(dy_j - \sum_i p_i\,dy_i)$. **Law:** rows sum to 0.


# %%
def softmax_backward(dp, p):
    return p * (dp - (p * dp).sum(-1, keepdims=True))


p, dp = softmax(random(3, 7)), random(3, 7)
dx = softmax_backward(dp, p)
sf.check(sf.backward.softmax, dx, dp, p).raise_if_wrong()
print("rows sum to", np.abs(dx.sum(-1)).max().round(6))

# break it yourself
broken(
    sf.backward.softmax,
    {
        "the diagonal's first half": p * dp,
        "the diagonal alone": p * (1 - p) * dp,
        "the sum of dp": p * (dp - dp.sum(-1, keepdims=True)),
        "the mean for the sum": p * (dp - (p * dp).mean(-1, keepdims=True)),
        "p forgotten outside": dp - (p * dp).sum(-1, keepdims=True),
    },
    dp,
    p,
)

# %% [markdown]
# ## 9 · Attention: five lines
#
# Two products and a softmax, read backwards: each product gives two gradients (section 4), the softmax one (section 8).
#
# $$dV = P^\top dO \qquad dP = dO\,V^\top \qquad dS = P\,(dP - \delta) \qquad dQ = dS\,K \cdot scale \qquad dK = dS^\top Q \cdot scale$$
#
# `δ` is the row sum of $P\,dP$. Where a query does not see a key, `P` is 0, and so is `dS`: the mask needs no line of its own, as
# long as `P` is the masked one. And where several query heads share a key/value head, the gradients of the group are **added**.
# **Laws:** $\sum dK = 0$ over the keys of a head, $\sum dV = \sum dO$.


# %%
def attention_back(do, q, k, v, scale):
    """do and q (H,L,D), k and v (K,L,D) -> dq, dk, dv of the same shapes"""
    group = len(q) // len(k)
    keys, values = k.repeat(group, 0), v.repeat(group, 0)
    scores = q @ keys.swapaxes(-1, -2) * scale
    p = softmax(np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf))
    dv = p.swapaxes(-1, -2) @ do
    dp = do @ values.swapaxes(-1, -2)
    ds = softmax_backward(dp, p)
    dq = ds @ keys * scale
    dk = ds.swapaxes(-1, -2) @ q * scale
    return dq, *(d.reshape(len(k), group, *d.shape[1:]).sum(1) for d in (dk, dv))


q, k, v, do = random(6, 5, 8), random(2, 5, 8), random(2, 5, 8), random(6, 5, 8)
out, lse = sf.scaled_dot_product_attention(q, k, v, is_causal=True, return_lse=True)
scale = np.float32(1 / sqrt(8))
dq, dk, dv = attention_back(do, q, k, v, scale)
backward = sf.backward.scaled_dot_product_attention
sf.check(backward, (dq, dk, dv), do, q, k, v, out, lse, is_causal=True).raise_if_wrong()
print("sum of dK:", np.abs(dk.sum(1)).max().round(5))
print("sum of dV:", dv.sum((0, 1))[:4].round(4), " sum of dO:", do.sum((0, 1))[:4].round(4))

# break it yourself
group = (2, 3, 5, 8)
each = attention_back(
    do, q, k.repeat(3, 0), v.repeat(3, 0), scale
)  # a gradient for each query head
ungrouped = {"key": each[1].reshape(group), "value": each[2].reshape(group)}
broken(
    backward,
    {
        "scale missing in dQ": {"query": dq / scale},
        "scale twice in dK": {"key": dk * scale},
        "a mean over the group": {"key": dk / 3},
        "the last head of the group": {"key": ungrouped["key"][:, -1]},
        "dV by P, not Pᵀ": {"value": (softmax(np.where(np.tri(5, dtype=bool),
                            q @ k.repeat(3, 0).swapaxes(-1, -2) * scale, -np.inf)) @ do).reshape(group).sum(1)},
    },
    do, q, k, v, out, lse, is_causal=True,
)  # fmt: skip

# %% [markdown]
# ### How the kernel does it: without P
#
# `P` has L × L numbers a head. The kernel never stores them: it keeps `lse`, one number a query, and computes
# $P = e^{S - lse}$ again, tile by tile. But `δ` needs a whole row of $P\,dP$ before the first tile of `dS` can be made. One
# line of algebra helps: $\delta = \sum_j P_j\,(dO\cdot V_j) = dO\cdot\sum_j P_j V_j = dO\cdot O$.

# %%
delta = (do * out).sum(-1)
print("δ of one head, from dO and O:", delta[0].round(4))
full = q[0] @ k[0].T * scale
p = np.tril(np.exp(full - lse[0][:, None]))
print("δ of one head, from P and dP:", (p * (do[0] @ v[0].T)).sum(-1).round(4))

# %% [markdown]
# ## 10 · Where ways meet: residuals, embeddings, tied heads
#
# An array that is used **twice** has two gradients, and they are **added**. There are three such places in a transformer:
#
# * the **residual stream**, $y = x + f(x)$: $dx = dy + $ what comes through `f`. The `dy` that passes by is why deep models
#   can be trained at all;
# * the **embedding**: the gradient of a word's row is the sum over all places where the word stands;
# * a **tied head**: the same matrix reads the ids and writes the logits.
#
# The embedding has the best-known trap of numpy. `table[ids] += dy` looks like a sum, and is none: only the last
# place of an id counts. **Law:** the columns of the table's gradient sum to what those of `dy` sum to; nothing gets lost.


# %%
def embedding_back(dy, ids, rows):
    table = np.zeros((rows, dy.shape[-1]), dy.dtype)
    np.add.at(table, ids, dy)
    return table


some_ids, dy = np.array([3, 1, 3, 3, 7]), random(5, 4)
table = embedding_back(dy, some_ids, 9)
sf.check(sf.backward.embedding, table, dy, some_ids, 9).raise_if_wrong()
print("columns sum to", table.sum(0).round(4), " those of dy to", dy.sum(0).round(4))

# break it yourself
table = np.zeros((9, 4), np.float32)
table[some_ids] += dy
report = sf.check(sf.backward.embedding, table, dy, some_ids, 9)
report

# %% [markdown]
# ## 11 · The whole model
#
# All parts are there. A block forwards, which keeps what its way back needs, and the block backwards: read it from the bottom
# of the forward to its top. Every line is one of the functions above.

# %%
config = trainable.config
H, K, D, EPS = config.num_heads, config.num_kv_heads, config.head_dim, config.norm_eps
rope = {"layout": config.rope_layout, "theta": config.rope_theta}
SCALE = np.float32(1 / sqrt(D))


def heads(x):
    """(L, H·D) -> (H, L, D)"""
    return x.reshape(len(x), -1, D).swapaxes(0, 1)


def merged(x):
    """(H, L, D) -> (L, H·D)"""
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def block(w, x):
    """x (L,E) -> (L,E), and what is kept"""
    normed = sf.rms_norm(x, w["attn_norm"], eps=EPS)
    q, k = (sf.rope(heads(normed @ w[name].T), **rope) for name in ("wq", "wk"))
    v = heads(normed @ w["wv"].T)
    z = merged(sf.scaled_dot_product_attention(q, k, v, is_causal=True))
    mid = x + z @ w["wo"].T
    normed2 = sf.rms_norm(mid, w["mlp_norm"], eps=EPS)
    gate, up = normed2 @ w["gate"].T, normed2 @ w["up"].T
    y = mid + sf.swiglu(gate, up) @ w["down"].T
    return y, (x, normed, q, k, v, z, mid, normed2, gate, up)


def block_back(
    w, dy, kept, norm_back=rms_norm_backward, act_back=swiglu_backward, attend_back=attention_back
):
    """dy (L,E) -> dx (L,E), and the gradients of the weights"""
    x, normed, q, k, v, z, mid, normed2, gate, up = kept
    g = {}
    dact, g["down"], _ = linear_backward(dy, sf.swiglu(gate, up), w["down"])
    dgate, dup = act_back(dact, gate, up)
    of_gate, g["gate"], _ = linear_backward(dgate, normed2, w["gate"])
    of_up, g["up"], _ = linear_backward(dup, normed2, w["up"])
    dmid, g["mlp_norm"] = norm_back(of_gate + of_up, mid, w["mlp_norm"], EPS)
    dmid = dy + dmid  # two ways
    dz, g["wo"], _ = linear_backward(dmid, z, w["wo"])
    dq, dk, dv = attend_back(heads(dz), q, k, v, SCALE)
    dq, dk = rope_back(dq, config.rope_theta), rope_back(dk, config.rope_theta)
    dnormed = 0
    for name, d in (("wq", dq), ("wk", dk), ("wv", dv)):
        part, g[name], _ = linear_backward(merged(d), normed, w[name])
        dnormed = dnormed + part  # three ways
    dx, g["attn_norm"] = norm_back(dnormed, x, w["attn_norm"], EPS)
    return dmid + dx, g


def of_layer(weights, layer):
    at = f"layers.{layer}."
    return {name.removeprefix(at): w for name, w in weights.items() if name.startswith(at)}


# %% [markdown]
# One block alone first: forwards, beside the model's own activations, and backwards. `see` of `loss_and_gradients` shows
# the gradients of activations on their way back: what comes into the last block from behind, and what leaves it.

# %%
weights, last = trainable.parameters(), config.num_layers - 1
seen = {}
trainable.loss_and_gradients(ids, see=lambda name, gradient: seen.update({name: gradient.copy()}))
own = of_layer(weights, last)
y, kept = block(own, trace[f"layers.{last}.resid_pre"])
sf.testing.assert_close(y, trace[f"layers.{last}.resid_post"])
dx, _ = block_back(own, seen[f"layers.{last}.resid_post"][0], kept)
sf.testing.assert_close(dx, seen[f"layers.{last}.resid_pre"][0])
print("the last block's dx is right:", dx.shape)

# %% [markdown]
# And the model: the blocks in a row, the loss, and the same row backwards. `sf.check_gradients` knows the names of all arrays
# and walks back from the head; it stops at the first that is wrong.


# %%
def by_hand(weights, ids, labels, others=()):
    """The loss, and the gradients of all weights by their names; a layer may have other functions"""
    x, kept = weights["embed"][ids], []
    for layer in range(config.num_layers):
        x, of_block = block(of_layer(weights, layer), x)
        kept.append(of_block)
    normed = sf.rms_norm(x, weights["final_norm"], eps=EPS)
    z = normed @ weights["lm_head"].T

    g = {}
    dx, g["lm_head"], _ = linear_backward(
        cross_entropy_backward(z, labels), normed, weights["lm_head"]
    )
    dx, g["final_norm"] = rms_norm_backward(dx, x, weights["final_norm"], EPS)
    for layer in reversed(range(config.num_layers)):
        dx, of_block = block_back(
            of_layer(weights, layer), dx, kept[layer], **dict(others).get(layer, {})
        )
        g |= {f"layers.{layer}.{name}": d for name, d in of_block.items()}
    g["embed"] = embedding_back(dx, ids, config.vocab_size)
    return sf.cross_entropy(z, labels), g


value, mine = by_hand(weights, ids, labels)
sf.check(sf.cross_entropy, value, model(ids), labels).raise_if_wrong()
report = sf.check_gradients(mine, model, ids).raise_if_wrong()
print(f"{sum(g.size for g in mine.values()):,} gradients")
report

# %% [markdown]
# Green: and each of them is yours.
#
# ### Break it yourself: one line in one layer
#
# Give **one** layer another function for its way back, as if its author had copied an older version. The loss would still fall,
# and no curve would show it. The check finds the layer, the operation and the line.


# %%
def constant_r(dy, x, w, eps):
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps))
    return r * dy * w, rms_norm_backward(dy, x, w, eps)[1]


def sigmoid_slope(dy, gate, up):
    s = 1 / (1 + np.exp(-gate))
    return dy * up * s * (1 - s), dy * gate * s


def scale_forgotten(do, q, k, v, scale):
    dq, dk, dv = attention_back(do, q, k, v, scale)
    return dq, dk / scale, dv


for others in (
    {4: {"norm_back": constant_r}},
    {3: {"act_back": sigmoid_slope}},
    {1: {"attend_back": scale_forgotten}},
):
    report = sf.check_gradients(by_hand(weights, ids, labels, others)[1], model, ids)
    print(f"{report.sentence}:\n    {report.diagnosis[0].title}")
report

# %% [markdown]
# Some mistakes are made with *all* gradients: labels that are not shifted, a forgotten `zero_grad`.

# %%
_, unshifted = by_hand(weights, ids, ids)
print(sf.check_gradients(unshifted, model, ids).diagnosis[0].title)
doubled = {name: 2 * g for name, g in mine.items()}
report = sf.check_gradients(doubled, model, ids)
report

# %% [markdown]
# ### What the gradients look like
#
# How long are they, layer by layer? If the lines fell towards the left, by a factor from layer to layer, the lower layers would
# learn nothing; if they rose so, training would explode. The residual stream keeps them within sight of each other.

# %%
kinds = {"attention (wq)": "wq", "attention (wo)": "wo", "MLP (gate)": "gate", "MLP (down)": "down"}
sizes = {
    kind: [np.linalg.norm(mine[f"layers.{layer}.{name}"]) for layer in range(config.num_layers)]
    for kind, name in kinds.items()
}
labels_of = {"xlabel": "layer", "ylabel": "length of the gradient"}
sf.plots.lines(np.arange(config.num_layers), sizes, title="no layer is forgotten", **labels_of)
plt.show()

# %% [markdown]
# ### One step of training
#
# Gradients are for one thing: to take a step against them. AdamW in five lines, `g` clipped so that all gradients together are
# no longer than 1. `sf.check_step` looks at the loss, the gradients, the clipping and the new weights, in this order.


# %%
def step(weights, ids, labels, lr=1e-3, weight_decay=0.1):
    loss, gradients = by_hand(weights, ids[0], labels[0])
    norm = sqrt(sum(float((g * g).sum()) for g in gradients.values()))
    for name, w in weights.items():
        g = gradients[name] * min(1, 1 / (norm + 1e-6))
        m, v = g, g * g  # the first step: the corrected averages are g itself, and its square
        if w.ndim > 1:
            w *= 1 - lr * weight_decay
        w -= lr * m / (np.sqrt(v) + 1e-8)
    return {"loss": loss, "norm": norm}


sf.check_step(step, model, ids, lr=1e-3, max_norm=1.0).raise_if_wrong()


def summed_norms(weights, ids, labels):
    found = step(weights, ids, labels)
    return found | {"norm": sum(np.linalg.norm(g) for g in mine.values())}


report = sf.check_step(summed_norms, model, ids, lr=1e-3, max_norm=1.0)
report

# %% [markdown]
# ### How long it takes
#
# The same gradients by your numpy, by this package, and by PyTorch's autograd: the fastest of several runs, side by side.
# (So few tokens are read here that most of the time goes into calls. Run it, and it is your machine's.)

# %% tags=["measured", "given"]
from time import perf_counter

import torch
from torch.nn import functional as F

tensors = {name: torch.tensor(w, requires_grad=True) for name, w in weights.items()}
angles = torch.outer(torch.arange(len(ids)), config.rope_theta ** -(torch.arange(0, D, 2) / D))
turn = torch.polar(torch.ones_like(angles), angles)


def turned(x):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2)


def by_torch():
    for tensor in tensors.values():
        tensor.grad = None
    x = tensors["embed"][torch.tensor(ids)]
    for layer in range(config.num_layers):
        w = of_layer(tensors, layer)
        n = F.rms_norm(x, (len(x[0]),), w["attn_norm"], EPS)
        q, k, v = (F.linear(n, w[f"w{c}"]).unflatten(-1, (-1, D)).transpose(0, 1) for c in "qkv")
        q, k = turned(q), turned(k)
        z = F.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, enable_gqa=True
        )
        x = x + F.linear(z[0].transpose(0, 1).flatten(1), w["wo"])
        n = F.rms_norm(x, (len(x[0]),), w["mlp_norm"], EPS)
        x = x + F.linear(F.silu(F.linear(n, w["gate"])) * F.linear(n, w["up"]), w["down"])
    z = F.linear(F.rms_norm(x, (len(x[0]),), tensors["final_norm"], EPS), tensors["lm_head"])
    F.cross_entropy(z, torch.tensor(labels)).backward()
    return {name: tensor.grad for name, tensor in tensors.items()}


ways = {
    "your numpy": lambda: by_hand(weights, ids, labels),
    "PyTorch": by_torch,
    "simdformer": lambda: trainable.loss_and_gradients(ids),
}
sf.check_gradients(by_torch(), model, ids).raise_if_wrong()
taken = dict.fromkeys(ways, float("inf"))
for _ in range(15):
    for way, run in ways.items():
        begin = perf_counter()
        run()
        taken[way] = min(taken[way], perf_counter() - begin)
for way in ("your numpy", "PyTorch"):
    print(f"{way} takes {taken[way] / taken['simdformer']:.1f} times as long as simdformer")

# %% [markdown]
# ## 12 · A tape in a hundred lines
#
# What does a framework do, then? No more than you did, but in general: every operation writes down what it was made of and how
# a gradient goes back through it. That is the **tape**. At the end it is read backwards. Three rules make it work: an array
# that was broadcast gets the **sum** over what it was stretched along; an operation is visited only **after** everything that
# used its result; and gradients are **added**, never assigned.


# %%
def unbroadcast(g, shape):
    """The sum over the axes along which an array of that shape was stretched"""
    g = g.sum(axis=tuple(range(g.ndim - len(shape))))
    return g.sum(axis=tuple(i for i, n in enumerate(shape) if n != g.shape[i]), keepdims=True)


class Array:
    """A numpy array that knows what it was made of"""

    __array_ufunc__ = None  # so that numpy leaves `ndarray * Array` to us

    def __init__(self, data, parents=(), backs=()):
        self.data, self.grad = np.asarray(data, np.float32), 0
        self.parents, self.backs = parents, backs  # back: my gradient -> that of the parent

    def __add__(self, other):
        other = wrapped(other)
        return Array(self.data + other.data, (self, other), (lambda g: g, lambda g: g))

    def __mul__(self, other):
        other = wrapped(other)
        backs = (lambda g: g * other.data, lambda g: g * self.data)
        return Array(self.data * other.data, (self, other), backs)

    def __pow__(self, n):
        return Array(self.data**n, (self,), (lambda g: g * n * self.data ** (n - 1),))

    def __matmul__(self, other):
        backs = (
            lambda g: g @ other.data.swapaxes(-1, -2),
            lambda g: self.data.swapaxes(-1, -2) @ g,
        )
        return Array(self.data @ other.data, (self, other), backs)

    def __getitem__(self, rows):
        return Array(self.data[rows], (self,), (lambda g: at(rows, g, self.data.shape),))

    def exp(self):
        out = np.exp(self.data)
        return Array(out, (self,), (lambda g: g * out,))

    def log(self):
        return Array(np.log(self.data), (self,), (lambda g: g / self.data,))

    def sum(self):
        """Over the last axis, which is kept"""
        out = self.data.sum(-1, keepdims=True)
        return Array(out, (self,), (lambda g: g + np.zeros_like(self.data),))

    def swap(self, a, b):
        return Array(self.data.swapaxes(a, b), (self,), (lambda g: g.swapaxes(a, b),))

    def reshape(self, *shape):
        return Array(self.data.reshape(shape), (self,), (lambda g: g.reshape(self.data.shape),))

    @property
    def T(self):
        return self.swap(-1, -2)

    def backward(self):
        order, seen = [], set()

        def visit(array):  # its parents first, so that the reversed order is safe
            if id(array) not in seen:
                seen.add(id(array))
                for parent in array.parents:
                    visit(parent)
                order.append(array)

        visit(self)
        self.grad = np.ones_like(self.data)
        for array in reversed(order):
            for parent, back in zip(array.parents, array.backs, strict=True):
                parent.grad = parent.grad + unbroadcast(back(array.grad), parent.data.shape)


def wrapped(x):
    return x if isinstance(x, Array) else Array(x)


def at(rows, g, shape):
    table = np.zeros(shape, np.float32)
    np.add.at(table, rows, g)
    return table


# %% [markdown]
# Those are all the operations that a transformer needs. Here is the model in terms of them, without a single line for its way
# back. The tape pays for that: it keeps **every** array in between until the end. The last lines count what each way keeps.


# %%
def norm(x, w):
    return x * ((x * x).sum() * (1 / x.data.shape[-1]) + EPS) ** -0.5 * w


def shares(x):
    e = (x + -x.data.max(-1, keepdims=True)).exp()
    return e * e.sum() ** -1


def turned_pairs(x, angles):
    """x (H,L,D): a + ib becomes (a cos - b sin) + i(a sin + b cos); `swap` exchanges each a and b"""
    cos, sin = np.cos(angles).repeat(2, -1), np.sin(angles).repeat(2, -1)
    sign = np.tile([-1, 1], x.data.shape[-1] // 2)
    swapped = x.T[np.arange(x.data.shape[0])[:, None], np.arange(x.data.shape[-1]) ^ 1].T
    return x * cos + swapped * (sign * sin)


def by_tape(weights, ids, labels):
    w = {name: Array(weight) for name, weight in weights.items()}
    length, hidden = len(ids), np.where(np.tri(len(ids), dtype=bool), 0, -1e9)
    angles = np.outer(np.arange(length), config.rope_theta ** -(np.arange(0, D, 2) / D))
    x = w["embed"][ids]
    for layer in range(config.num_layers):
        own = of_layer(w, layer)
        n = norm(x, own["attn_norm"])
        q, k, v = ((n @ own[f"w{c}"].T).reshape(length, -1, D).swap(0, 1) for c in "qkv")
        q, k = turned_pairs(q, angles), turned_pairs(k, angles)
        k, v = (t[np.arange(H) // (H // K)] for t in (k, v))  # each for its group of query heads
        z = shares(q @ k.T * SCALE + hidden) @ v
        x = x + z.swap(0, 1).reshape(length, -1) @ own["wo"].T
        n = norm(x, own["mlp_norm"])
        gate, up = n @ own["gate"].T, n @ own["up"].T
        silu = gate * ((gate * -1).exp() + 1) ** -1
        x = x + silu * up @ own["down"].T
    z = norm(x, w["final_norm"]) @ w["lm_head"].T
    keep = np.flatnonzero(labels != -100)
    p = shares(z)[keep, labels[keep]]
    loss = (p.log() * (-1 / len(keep))).reshape(1, -1).sum()
    loss.backward()
    return loss, {name: one.grad for name, one in w.items()}


loss_of_tape, taped = by_tape(weights, ids, labels)
sf.check_gradients(taped, model, ids).raise_if_wrong()
print(f"the loss: {loss_of_tape.data.item():.4f}, by hand {value:.4f}; all gradients agree")

held = sum(one.nbytes for layer in range(config.num_layers)
           for one in block(of_layer(weights, layer), weights["embed"][ids])[1])  # fmt: skip


def on_tape(array, seen):
    """The bytes of an array and of all that it was made of, but the weights"""
    if id(array) in seen or not array.parents:
        return 0
    seen.add(id(array))
    return array.data.nbytes + sum(on_tape(parent, seen) for parent in array.parents)


print(
    f"kept by hand: {held / 2**20:.1f} MB   on the tape: {on_tape(loss_of_tape, set()) / 2**20:.1f} MB"
)

# %% [markdown]
# ### Break it yourself: the `+=` of section 10
#
# `at` adds up where an index occurs more than once. Here it is written with `+=`: the loss is the same, and the check finds the
# first place on the way back where an array was indexed so.

# %%
added = at


def at(rows, g, shape):
    table = np.zeros(shape, np.float32)
    table[rows] += g
    return table


report = sf.check_gradients(by_tape(weights, ids, labels)[1], model, ids)
at = added
report

# %% [markdown]
# ## What you have now
#
# * the gradient of every operation of a transformer, each in a few lines, each with the law that it obeys;
# * a whole model's backward by hand, and a framework in a hundred lines that finds the same;
# * a check that says where a gradient goes wrong first, and which of the classic mistakes it was.
#
# `sf.backward` has all of these as kernels, `simdformer.training` the whole step, and
# [docs/training.md](../docs/training.md) says how to train with it. The formulas of the kernels are the ones above:
# `sf.reference.backward` is this notebook in float64.
#
# The idea of learning backprop by doing it once by hand is Andrej Karpathy's: the tape follows his *micrograd*, with
# arrays in place of numbers, and the exercise stands in his series "Neural Networks: Zero to Hero". Thanks to him.
