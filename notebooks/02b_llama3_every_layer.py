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
# # 02b · Llama 3 from scratch: every layer, and the answer
#
# [Notebook 02](02_llama3_from_scratch.ipynb) opened the three files of Llama 3 and computed its first layer by hand, each step checked. This part
# runs every layer, finds the answer, looks inside the model, and lets it write and talk. The chapters count on from there.
#
# It uses what you wrote in notebook 02. The tokenizer of the package gives the same ids as yours, and stands in for it. The steps of a layer are in the
# next cell once more, so that this notebook runs alone.
#
# [The same as an exercise](exercises/02b_llama3_every_layer.ipynb): what you write is left out there, and checked.

# %% tags=["given"]
import json
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import simdformer as sf
from simdformer.checkpoints.torch_file import read_tensors

FOLDER = Path(os.environ.get("SIMDFORMER_LLAMA3") or sf.demo_path())
PROMPT = "the answer to the ultimate question of life, the universe, and everything is "

tokenizer = sf.tokenizer.load(FOLDER / "tokenizer.model")
encode, decode = tokenizer.encode, tokenizer.decode
BEGIN, END = tokenizer.bos_id, tokenizer.bos_id + 1
ids = np.array(encode(PROMPT))
tokens = [decode([id]) for id in ids]
L = len(ids)

tensors = read_tensors(FOLDER / "consolidated.00.pth")
params = json.loads((FOLDER / "params.json").read_text())
E, H, V = params["dim"], params["n_heads"], params["vocab_size"]
K, layers = params["n_kv_heads"], params["n_layers"]
eps, theta = params["norm_eps"], params["rope_theta"]
D, group = E // H, H // K  # numbers per head, query heads per key head
inv_freq = theta ** (-np.arange(0, D, 2) / D)
last = "output.weight" if "output.weight" in tensors else "tok_embeddings.weight"


def weight(name):
    return np.asarray(tensors[name]).astype(np.float32)


def rms_norm(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight


def rope(x, freqs_cis):
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * freqs_cis
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape).astype(x.dtype)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


def loss(mine, exact):
    """The error as a part of the whole: RMS of the difference over RMS of the right array."""
    return np.sqrt(np.mean((np.float64(mine) - exact) ** 2) / np.mean(exact**2))


print(tokens)
print(f"{layers} layers of {H} query heads, {K} key/value heads; {E} numbers per token")

# %% [markdown]
# ## 8 · Every layer
#
# One layer is done. The others do the same with their own weights. So put the steps into a function, keep every array under a name, and run through all of them.
# The names are those of the package, which `sf.check_trace` knows: `embed`; in layer 0 `layers.0.resid_pre`, `layers.0.attn_norm`, `layers.0.attn.q` and so on;
# `final_norm`, `logits`. You need not keep them all.


# %%
def forward(ids, weight=weight, causal=True):
    """ids (L,) → logits (L, V), and everything on the way by name"""
    trace = {}
    freqs_cis = np.exp(1j * np.outer(np.arange(len(ids)), inv_freq))
    hidden = np.triu(np.full((len(ids), len(ids)), -np.inf, np.float32), k=1) if causal else 0
    x = trace["embed"] = weight("tok_embeddings.weight")[ids]
    for layer in range(layers):
        at = f"layers.{layer}."
        t = {"resid_pre": x}
        t["attn_norm"] = rms_norm(x, weight(at + "attention_norm.weight"))
        for letter in "qkv":
            w = weight(at + f"attention.w{letter}.weight")
            t[f"attn.{letter}"] = (t["attn_norm"] @ w.T).reshape(len(ids), -1, D)
        q, k, v = (t[f"attn.{letter}"].swapaxes(0, 1) for letter in "qkv")
        q, k = rope(q, freqs_cis), rope(k, freqs_cis)
        t["attn.q_rot"], t["attn.k_rot"] = q.swapaxes(0, 1), k.swapaxes(0, 1)
        k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
        t["attn.scores"] = q @ k.swapaxes(1, 2) / np.float32(np.sqrt(D)) + hidden
        t["attn.pattern"] = softmax(t["attn.scores"])
        t["attn.z"] = (t["attn.pattern"] @ v).swapaxes(0, 1)
        merged = t["attn.z"].reshape(len(ids), -1)
        t["attn.out"] = merged @ weight(at + "attention.wo.weight").T
        h = t["resid_mid"] = x + t["attn.out"]
        t["mlp_norm"] = rms_norm(h, weight(at + "ffn_norm.weight"))
        t["mlp.gate"] = t["mlp_norm"] @ weight(at + "feed_forward.w1.weight").T
        t["mlp.up"] = t["mlp_norm"] @ weight(at + "feed_forward.w3.weight").T
        t["mlp.act"] = silu(t["mlp.gate"]) * t["mlp.up"]
        t["mlp.out"] = t["mlp.act"] @ weight(at + "feed_forward.w2.weight").T
        x = t["resid_post"] = h + t["mlp.out"]
        trace |= {at + name: array for name, array in t.items()}
    trace["final_norm"] = rms_norm(x, weight("norm.weight"))
    logits = trace["logits"] = trace["final_norm"] @ weight(last).T
    return logits, trace


logits, trace = forward(ids)
print(f"{len(trace)} arrays, from embed {trace['embed'].shape} to logits {trace['logits'].shape}")

# %% [markdown]
# A hundred arrays to compare. `sf.check_trace` takes them all. It runs the model of the package on the same ids and goes through the names in the order of computation.

# %%
model = sf.from_pretrained(FOLDER)
sf.check_trace(trace, model, ids).raise_if_wrong()

# %% [markdown]
# ### What grows from layer to layer
#
# Each layer adds to the stream, so vectors get longer on the way. And the heads of later layers look elsewhere than those of layer 0.

# %%
sf.plots.residual_norms(trace)
plt.show()
middle = layers // 2
sf.plots.attention_heads(
    trace[f"layers.{middle}.attn.pattern"], tokens, heads=range(min(H, 8)), title=f"layer {middle}"
)
plt.show()

# %% [markdown]
# ## 9 · The answer
#
# After the last layer comes one more norm, then a matrix with a row per token of the vocabulary. Each row is compared with the last vector: that is a **logit**. Softmax would make
# probabilities of them; for the winner alone, the largest logit is enough.

# %%
next_id = int(logits[-1].argmax())
probability = softmax(logits[-1].astype(np.float64))
sf.check(sf.softmax, probability, np.float64(logits[-1])).raise_if_wrong()
for id in np.argsort(-probability)[:10]:
    print(f"{probability[id]:7.2%}  {decode([id])!r}  (id {id})")

# %%
print(PROMPT + decode([next_id]))

# %% [markdown]
# There it is. From base64 to the answer, with nothing but numpy, and every step checked.
#
# ### In 16 bits throughout
#
# The kernels can also compute in bfloat16 from end to end, rounding between all steps as the guide does (norms and softmax are float32 inside). How far do the logits move?

# %%
in_16_bits = sf.from_pretrained(FOLDER, activations="bfloat16")(ids)
for name, other in {"your float32": logits, "bfloat16 activations": in_16_bits}.items():
    print(f"{name:<22} differs from the model by {loss(other, np.float64(model(ids))):.0e}")

# %% [markdown]
# ## 10 · Looking further
#
# ### What does every position think?
#
# You computed 17 predictions and used one. Each position predicts its own next token. Below each token, the ten most probable to follow:

# %%
for position in range(L):
    best = np.argsort(-logits[position])[:10]
    print(f"{tokens[position]!r:<20}", " ".join(repr(decode([id])) for id in best))

# %% [markdown]
# How well did it predict *this* text? Take the probability of the token that came, at every position, and of that the negative logarithm: the **loss**. The mean over a text needs no training and no second
# model, and tells at once whether a model has been put together correctly: a model that knows nothing has a loss of log V.

# %%
text = "Once upon a time there was a small fox named Ada."
text_ids = np.array(encode(text))
predicted, _ = forward(text_ids)
shares = softmax(predicted[:-1].astype(np.float64))  # the last row predicts what nobody has written
losses = -np.log(shares[np.arange(len(text_ids) - 1), text_ids[1:]])  # (tokens - 1,)
sf.testing.assert_close(losses, model.loss(text), rtol=1e-4)
print(
    f"mean loss {losses.mean():.3f}, of the package {model.loss(text).mean():.3f}; knowing nothing: {np.log(V):.3f}"
)
sf.plots.token_losses(losses, [decode([id]) for id in text_ids])
plt.show()

# %% [markdown]
# And you can ask earlier: put the stream after *each layer* through the last norm and the last matrix. This is the **logit lens**. From below, the embedding knows only the token itself; layer by layer
# the prediction takes shape.

# %%
sf.plots.logit_lens(model, trace, tokens)
plt.show()

# %% [markdown]
# ### Without the mask
#
# What if every token may see what follows? The model was trained never to. Two things happen. The logits of all rows move, those of the last one too, because its keys and values come from tokens that looked ahead (here, not enough to say another word). And to
# train such a model would be pointless: the next token can simply be read off.

# %%
unmasked, _ = forward(ids, causal=False)
for position in (4, 10, L - 1):
    said, instead = decode([logits[position].argmax()]), decode([unmasked[position].argmax()])
    moved = loss(unmasked[position], np.float64(logits[position]))
    print(f"after {tokens[position]!r:<12} logits move by {moved:4.0%}: {said!r:<12} → {instead!r}")
report = sf.check_trace(forward(ids, causal=False)[1], model, ids)
report

# %% [markdown]
# ### The KV cache
#
# To write the next word, do all 17 tokens have to be computed again? No. A token never sees what comes later, so its keys and values stay as they are. Keep them. A new token then needs only its own query, and
# asks all keys that are there. No mask is needed: everything in the cache is the past.


# %%
def step(id, position, cache):
    """One token → its logits (V,). The cache, (keys, values) of every layer, grows by one."""
    turn = np.exp(1j * position * inv_freq)
    x = np.asarray(tensors["tok_embeddings.weight"][id]).astype(np.float32)
    for layer in range(layers):
        at = f"layers.{layer}."
        normed = rms_norm(x, weight(at + "attention_norm.weight"))
        q, k, v = (
            (weight(at + f"attention.w{letter}.weight") @ normed).reshape(-1, 1, D)
            for letter in "qkv"
        )
        q, k = rope(q, turn), rope(k, turn)
        keys, values = cache[layer] = [
            np.concatenate([old, new], axis=1)
            for old, new in zip(cache[layer], (k, v), strict=True)
        ]
        keys, values = np.repeat(keys, group, axis=0), np.repeat(values, group, axis=0)
        z = softmax(q @ keys.swapaxes(1, 2) / np.float32(np.sqrt(D))) @ values
        h = x + weight(at + "attention.wo.weight") @ z.ravel()
        normed = rms_norm(h, weight(at + "ffn_norm.weight"))
        w1, w2, w3 = (weight(at + f"feed_forward.w{n}.weight") for n in (1, 2, 3))
        x = h + w2 @ (silu(w1 @ normed) * (w3 @ normed))
    return weight(last) @ rms_norm(x, weight("norm.weight"))


cache = [[np.zeros((K, 0, D), np.float32)] * 2 for _ in range(layers)]
one_by_one = np.stack([step(id, position, cache) for position, id in enumerate(ids)])
sf.check_trace({"logits": one_by_one}, model, ids).raise_if_wrong()
kept = sum(array.size for pair in cache for array in pair)
print(
    f"token by token: logits differ by {loss(one_by_one, np.float64(logits)):.0e}. The cache holds {kept:,} numbers,"
)
print(
    f"{2 * layers * K * D:,} per token; without shared key heads it would be {2 * layers * H * D:,}"
)

# %% [markdown]
# The model of the package keeps such a cache too. Read the prompt at once, then continue token by token:

# %%
kv_cache = model.new_cache(max_seq_len=L + 1)
read = model(ids, kv_cache)
more = model([next_id], kv_cache)
print("after the answer comes", repr(decode([more[-1].argmax()])))

# %% [markdown]
# ### Break it yourself: forget where you are
#
# The cache makes one mistake very easy: every call sees one new token, so its position is 0, 0, 0 …

# %%
new_key = trace["layers.0.attn.k"].swapaxes(0, 1)[:, -1:]
at_0 = np.exp(1j * 0 * inv_freq)
report = sf.check(
    sf.rope, rope(new_key, at_0), new_key, layout="interleaved", theta=theta, offset=L - 1
)
report

# %% [markdown]
# ### Without which head is the answer lost?
#
# A model that can be looked into can also be changed. `edit=` replaces any array in the middle of a run. Here the results of one head are set to zero: an **ablation**. `sf.ablate` does the same with one head after the
# other, and says how much of a number is lost. Take for the number the probability of the answer.
#
# Ask two questions: the famous one, whose answer a model can only know by heart, and one whose answer stands in the text and has to be looked up there.

# %%
FACTS = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"
by, results = (
    ("head", "attn.z") if layers * H <= 64 else ("layer", "attn.out")
)  # of a large model whole layers


def sure_of(answer):
    return lambda logits: softmax(np.float64(logits[-1]))[answer]


for prompt in (PROMPT, FACTS):
    answer = int(model(encode(prompt))[-1].argmax())
    whole = sure_of(answer)(model(encode(prompt)))
    lost = sf.ablate(model, encode(prompt), sure_of(answer), f"layers.*.{results}", by=by)
    lost = lost.reshape(layers, -1)
    print(f"…{prompt[-30:]}{decode([answer])}")
    print(
        f"   {whole:.1%} sure; without one {by} {whole - lost.max():.0%} to {whole - lost.min():.0%}"
    )
    sf.plots.patching(lost, title=f"probability lost: …{prompt[-22:]}{decode([answer])}")
    plt.show()


def silence(z):
    z[..., 0, :] = 0


edited = model(encode(FACTS), edit={"layers.0.attn.z": silence})
by_hand = whole - sure_of(answer)(edited)
print(f"by hand, without head 0 of layer 0: {by_hand:.3f} lost")

# %% [markdown]
# A map of one colour means that no single head matters: the answer can be had in many ways. Dark cells are heads without which it is lost. Which one does the second question miss most, and what does the last token
# attend to there?

# %%
layer, head = np.unravel_index(lost.argmax(), lost.shape)
facts = np.array(encode(FACTS))
fact_tokens = [decode([id]) for id in facts]
_, fact_trace = forward(facts)
shares = fact_trace[f"layers.{layer}.attn.pattern"][head, -1]
print(
    f"layer {layer}, head {head}: {shares[fact_tokens.index(' blue')]:.0%} of the last token's attention goes to ' blue'"
)
sf.plots.attention_map(
    fact_trace[f"layers.{layer}.attn.pattern"][head],
    fact_tokens,
    title=f"layer {layer}, head {head}",
)
plt.show()

# %% [markdown]
# So the head that is *needed* most does not look at the answer at all: later layers build on what it writes. Needed is not responsible, and looking is not doing either. Notebook 07 takes these apart.

# %% [markdown]
# The trace that comes with an edited run holds what was used. So you can follow the damage down the layers:


# %%
def silence_it(z):
    z[..., head, :] = 0


_, edited_trace = model.run_with_cache(facts, edit={f"layers.{layer}.attn.z": silence_it})
for after in range(layers):
    name = f"layers.{after}.resid_post"
    moved = loss(edited_trace[name], np.float64(fact_trace[name]))
    print(f"after layer {after}: all vectors together have moved by {moved:.2%}")

# %% [markdown]
# ## 11 · Writing, and talking
#
# ### The loop
#
# A model gives one row of logits. To turn that into a text takes a loop: read the prompt, take the most probable token, give it back, and so on, until it says *end of text* (`eos`) or until you have had enough. With the cache, every
# turn of the loop reads one token.


# %%
def write(prompt, at_most):
    """The new ids, without the end"""
    cache = [[np.zeros((K, 0, D), np.float32)] * 2 for _ in range(layers)]
    text = encode(prompt)  # begins with begin_of_text, the bos
    for position, id in enumerate(text):
        logits = step(id, position, cache)
    new = []
    while len(new) < at_most and (id := int(logits.argmax())) != END:
        new.append(id)
        logits = step(id, len(text) + len(new) - 1, cache)
    return new


START = "Once upon a time there was"
written = write(START, at_most=60)
print(START + decode(written))
sf.testing.assert_close(written, model.generate(encode(START), max_new_tokens=60))
print("the answer, and where it ends:", decode(write(PROMPT, at_most=60)))

# %% [markdown]
# ### A conversation is a text, too
#
# A model that chats is the same model, trained on texts of a certain format. In Llama 3's every message has a **header**, and its end is a token of its own, `eot_id` (end of turn), which is not the end of the text. The words between
# angle brackets are *special tokens*: one id each, behind the ids of the file. Nobody can type them, because the tokenizer never makes them out of a user's text.
#
# At the end stands the header of the assistant, and nothing behind it: this is where the model goes on.

# %%
names = {
    0: "begin_of_text",
    1: "end_of_text",
    6: "start_header_id",
    7: "end_header_id",
    9: "eot_id",
}
special = {f"<|{name}|>": BEGIN + number for number, name in names.items()}


def header(role):
    start, end = special["<|start_header_id|>"], special["<|end_header_id|>"]
    return [start, *encode(role)[1:], end, *encode("\n\n")[1:]]  # [1:]: without another bos


def chat_ids(messages):
    """The ids of a conversation, up to where the assistant has to answer"""
    ids = [BEGIN]
    for message in messages:
        ids += header(message["role"])
        ids += encode(message["content"].strip())[1:]
        ids += [special["<|eot_id|>"]]
    return ids + header("assistant")


dialog = chat_ids(
    [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "  What colour is the sky? "},
    ]
)
as_text = """\
<|begin_of_text|><|start_header_id|>system<|end_header_id|>

Answer in one word.<|eot_id|><|start_header_id|>user<|end_header_id|>

What colour is the sky?<|eot_id|><|start_header_id|>assistant<|end_header_id|>

"""
sf.testing.assert_close(dialog, tokenizer.encode(as_text, bos=False, special=True))
print(decode(dialog))
typed = tokenizer.encode("<|eot_id|>", bos=False)
print("the same words typed by a user:", typed, "not", special["<|eot_id|>"])

# %% [markdown]
# (The small model of this notebook has never seen such a format, so there is no point in asking it.)
#
# ### Texts of different length
#
# An array has no ragged edge. To read two texts in one call the shorter one is filled up with some token, the **pad**; Llama 3 has none of its own, any will do. Where does it go? Behind the text it is harmless: nobody looks ahead. Only mind
# *which row* is the last of the text. In front of it, it moves all positions, and is attended to, unless it is masked.

# %%
short, long = encode("Ada has a"), encode("Once upon a time there was a")
pads = [END] * (len(long) - len(short))
alone = model(short)[-1]
padded_behind = model([short + pads, long])[0, len(short) - 1]
padded_in_front = model([pads + short, long])[0, -1]
behind, in_front = (loss(row, np.float64(alone)) for row in (padded_behind, padded_in_front))
print(f"padded behind, the logits after the last word move by {behind:.1%}")
print(f"padded in front, by {in_front:.1%}")

# %% [markdown]
# ## 12 · The same in a few lines
#
# The whole model with its tokenizer is one line, `model = sf.from_pretrained(FOLDER)`. You did that in chapter 8, to have something to check against. It reads files of Meta, Hugging Face, MiniMind,
# llama2.c and GGUF.

# %%
print(model)
print(PROMPT + model.generate(PROMPT, max_new_tokens=1))

start = "Once upon a time there was"
print("\n" + start + model.generate(start, max_new_tokens=60))

# %% [markdown]
# ## What you have now
#
# * the whole model on raw tensors, its answer, and a cache that gives the same answer with a fraction of the work;
# * the loop that writes, the format of a conversation, and what bos, eos and pad are for;
# * ways to look inside: patterns, the logit lens, ablations.
#
# Change a line above and run the notebook again. It stops at the line that you broke, and says what you did.

# %% [markdown]
# ## Appendix · Errata
#
# ### The loop that cannot have said 42
#
# The guide that notebook 02 follows has, in its loop over the layers, `w1 = model["layers.0.feed_forward.w1.weight"]`, and so for `w2` and `w3`: every layer gets the MLP of layer 0. The printed answer cannot come from that
# code. Together with the key for a value, that makes two mistakes in one program. Run it like that, and look for them as you would in life: only knowing that the end is wrong.


# %%
def weight_as_in_the_guide(name):
    parts = name.split(".")
    if parts[2:3] == ["feed_forward"]:
        parts[1] = "0"  # always layer 0
    if parts[:4] == ["layers", "0", "attention", "wv"]:
        parts[3] = "wk"  # v_layer0 = k_layer0
    return weight(".".join(parts))


wrong_logits, wrong_trace = forward(ids, weight=weight_as_in_the_guide)
print(
    "right:",
    repr(decode([logits[-1].argmax()])),
    "  as printed:",
    repr(decode([wrong_logits[-1].argmax()])),
)
first = sf.check_trace(wrong_trace, model, ids)
first

# %% [markdown]
# That was the first. Mend it, look again:


# %%
def weight_half_mended(name):
    parts = name.split(".")
    if parts[2:3] == ["feed_forward"]:
        parts[1] = "0"
    return weight(".".join(parts))


second = sf.check_trace(forward(ids, weight=weight_half_mended)[1], model, ids)
second

# %% [markdown]
# Both found, each at the array where it happened. Layer 0 itself is right, because there layer 0's MLP is the right one: the damage begins in layer 1.
