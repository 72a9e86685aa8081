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
# # 07 · Who does it?
#
# A model reads two sentences and a question, and gives the right answer. **Which part of it looked the answer up?**
#
# There are several ways to ask, and they do not always agree. This notebook asks one small trained model in four ways, and
# shows what each answer means:
#
# | way | asks | here |
# |---|---|---|
# | pattern | who *looks* at the right word? | `trace["pattern", layer]` |
# | attribution | who *writes* the answer into the output? | `sf.attribute` |
# | patching | whose work alone *brings the answer back* after it was spoilt? | `sf.patch` |
# | ablation | without whom is the answer *lost*? | `sf.ablate` |
#
# The model is the demonstration checkpoint that comes with the package: six layers of four heads. Everything works the same
# way with any model that `sf.from_pretrained` reads.

# %%
import matplotlib.pyplot as plt
import numpy as np

import simdformer as sf

model = sf.from_pretrained(sf.demo_path())
text = "Mia has a red kite. Ben has a blue boat. What colour is the boat of Ben? It is"
print(f"{text}{model.generate(text, max_new_tokens=1)}")

# %% [markdown]
# `run_with_cache` gives the logits, and a **trace**: every activation by name, and the tokens it belongs to.

# %%
logits, trace = model.run_with_cache(text)
print(trace)
print(trace.tokens)
blue, red = trace.tokens.index(" blue"), trace.tokens.index(" red")

# %% [markdown]
# ## 1 · When does it know?
#
# Before *who*, ask *where*. The **logit lens** cuts the model off after each layer and lets it speak. Above the last token,
# `blue` is one word of many up to layer 2. After layer 3 it is nearly certain.

# %%
lens = sf.logit_lens(model, text, target=" blue")
for layer, rank, probability in zip(
    lens.layers, lens.rank[:, -1], lens.probability[:, -1], strict=True
):
    print(f"after layer {layer:2d}: ' blue' has rank {rank:3d}, probability {probability:6.1%}")

sf.plots.logit_lens(model, trace)
plt.show()

# %% [markdown]
# ## 2 · Who looks?
#
# The answer has to be fetched from another token, and only attention moves anything between tokens. So look at the patterns:
# how much of its attention does the **last token** give to `blue`?

# %%
looks = np.stack([trace["pattern", layer][:, -1, blue] for layer in range(6)])
also = np.stack([trace["pattern", layer][:, -1, red] for layer in range(6)])
for layer, head in np.argwhere(looks > 0.25):
    print(
        f"head {layer}.{head}: {looks[layer, head]:4.0%} to ' blue', {also[layer, head]:4.0%} to ' red'"
    )

sf.plots.all_heads(trace)
plt.show()

# %% [markdown]
# All four heads of layer 3 give `blue` most of their attention, and so does head 4.1 (layer 4, head 1). None of the five so
# much as glances at `red`. A clear case? It is tempting to stop here and to say "these five look the colour up". Many
# pictures of attention on the web say no more than that. But looking is not doing. Ask on.

# %% [markdown]
# ## 3 · Who writes?
#
# The residual stream is a *sum*: the embedding, plus what every head writes, plus what every MLP writes. The last step is
# linear, but for a norm whose scale we keep as it is. So the logit of `blue` is a sum too, and each part has its share.
# `sf.attribute` tells the shares of *logit of blue minus logit of another colour*. Here is one that does not occur in the text:

# %%
found = sf.attribute(model, text, " blue", " green")
print(found)
print(f"\nall parts together: {sum(found.parts.values()):.4f}")
print(f"head 4.1: {found.heads[4, 1]:+.2f}")
sf.plots.attribution(found)
plt.show()

# %% [markdown]
# The heads of layer 3 write for `blue`. Head 4.1, which looks as well, writes a little *against* it. And the largest parts
# come from the **MLPs** of layers 5 and 4, which cannot look anywhere: they must have been told by the heads in front of
# them. Attribution counts only what goes **straight** to the output. What a head tells an MLP behind it is counted as the
# MLP's. To see that, something has to be *changed*.

# %% [markdown]
# ## 4 · Whose work brings the answer back?
#
# **Patching** is an experiment. Spoil the text: `green` for `blue`. Now the model says `green`. Read the spoilt text again,
# with *one* activation from the good run put in its place. How much of the answer comes back? 0 is nothing, 1 is all.

# %%
spoilt = text.replace("blue", "green")
print("the model now says", repr(model.generate(spoilt, max_new_tokens=1)))

by_position = sf.patch(model, text, spoilt, (" blue", " green"))
sf.plots.patching(by_position, trace.tokens, title="the residual stream in front of each layer")
plt.show()

# %% [markdown]
# The colour stays where it was read: up to layer 3, putting back the stream above `blue` brings everything back, and nothing
# has reached the last token. From layer 4 on it is the other way round. So it is carried over **in layer 3**. By which head?

# %%
by_head = sf.patch(model, text, spoilt, (" blue", " green"), by="head")
sf.plots.patching(by_head, title="each head's z")
plt.show()

attention = sf.patch(model, text, spoilt, (" blue", " green"), "layers.*.attn.out", by="layer")
print(f"head 4.1 alone:             {by_head[4, 1]:.2f}")
print(f"the heads of layer 3, each: {np.round(by_head[3], 2)}, sum {by_head[3].sum():.2f}")
print(f"all of layer 3 together:    {attention[3]:.2f}")

# %% [markdown]
# **Head 4.1 brings nothing back**: where it looks, there is nothing new any more. The attention of layer 3 brings everything
# back. But each of its heads alone brings only a tenth or so, and all four do not add up to the whole. They do the same work
# at the same time, and behind them stand MLPs, which are not linear: against three heads that say `green` one cannot win.
#
# Do they bring the colour by *looking elsewhere*, or by what they *find* there? Put back only the pattern, then only the
# values:

# %%
for name in ("attn.pattern", "attn.v"):
    restored = sf.patch(model, text, spoilt, (" blue", " green"), f"layers.*.{name}", by="layer")
    print(f"{name:13s} of layer 3: {restored[3]:+.2f}")

# %% [markdown]
# They look at the same place either way. *What* lies there makes the difference.
#
# ## 5 · How do they know where to look?
#
# The question of section 4 was: **which colour** stands there? A head of layer 3 can only look at the right place if somebody
# has told it which place that is. So ask the next question: **whose** thing is asked about? Leave the two sentences as they
# are and ask about the other one:

# %%
other = "Mia has a red kite. Ben has a blue boat. What colour is the kite of Mia? It is"
print("the model says", repr(model.generate(other, max_new_tokens=1)))
asked = sf.patch(model, text, other, (" blue", " red"), by="head")
sf.plots.patching(asked, title="another question: each head's z")
plt.show()
for name in ("attn.q", "attn.k", "attn.v", "attn.pattern"):
    restored = sf.patch(model, text, other, (" blue", " red"), f"layers.*.{name}", by="layer")
    print(f"{name:13s} of layer 3: {restored[3]:+.2f}")

# %% [markdown]
# **One** head brings everything back: head 2.0, which never looks at `blue`. And layer 3 now differs in its *queries*, not in
# its values. What does head 2.0 look at?

# %%
last = trace["pattern", 2][0, -1]
name = int(last.argmax())
print(f"head 2.0 gives token {name}, {trace.tokens[name]!r}, {last[name]:.0%} of its attention")

# %% [markdown]
# At the name in the question. It carries `Ben` to the last token, and with that the queries of layer 3 search.
#
# What do they search *in*? Their keys must say to whom each colour belongs. One more question: swap the **owners**.

# %%
swapped = "Ben has a red kite. Mia has a blue boat. What colour is the boat of Ben? It is"
print("the model says", repr(model.generate(swapped, max_new_tokens=1)))
owned = sf.patch(model, text, swapped, (" blue", " red"), by="head")
sf.plots.patching(owned, title="owners swapped: each head's z")
plt.show()
for name in ("attn.q", "attn.k", "attn.v"):
    restored = sf.patch(model, text, swapped, (" blue", " red"), f"layers.*.{name}", by="layer")
    print(f"{name:13s} of layer 3: {restored[3]:+.2f}")
for colour in (red, blue):
    row = trace["pattern", 2][1, colour]
    print(
        f"head 2.1 at {trace.tokens[colour]!r}: {row.max():.0%} to {trace.tokens[row.argmax()]!r}"
    )

# %% [markdown]
# Again one head brings everything back, and it is another one: head 2.1. Above each colour it reads the name in front of it
# and writes it down there. Now layer 3 differs in its *keys*. (And the model goes by the name alone: Ben has no boat in the
# swapped text, and it tells the colour of his kite.)
#
# That is the whole machine. Head 2.1 writes beside each colour *whose* it is, head 2.0 brings *who is asked about* to the
# last token, and the heads of layer 3 fetch the colour where the two agree: a **key**, a **query** and a **value**, as the
# formula of attention has them. "What does this head do?" has no answer without "in which comparison?".
#
# ## 6 · Without whom is it lost?
#
# **Ablation** takes a head away and looks what is lost (positive: the answer needed it).

# %%
lost = sf.ablate(model, text, (" blue", " red"))
for layer, head in np.argwhere(np.abs(lost) > 5):
    print(
        f"head {layer}.{head}: {lost[layer, head]:+.1f} lost; it gives ' blue' {looks[layer, head]:.0%} of its attention"
    )
print(f"the heads of layer 3, each: {np.round(lost[3], 1)}")

sf.plots.patching(
    lost, title="what is lost without each head: logit of ' blue' minus logit of ' red'"
)
plt.show()

# %% [markdown]
# The answer is lost without either of the two heads that never look at it. Without any *one* of the heads that fetch it,
# little is lost: the other three do its work. So "needed" and "responsible" are two things, in both directions. (A head that
# is missing altogether is a state that the model has never seen. `value="mean"` puts the head's average there instead.)
#
# ## What you have now
#
# | | heads of layer 3 | head 2.0 | head 2.1 | head 4.1 |
# |---|---|---|---|---|
# | looks at `blue` from the last token | hard | no | no | yes |
# | writes `blue` against `green` | yes | no | no | no |
# | brings `blue` back when the colour is new | together, all of it | no | no | no |
# | ... when the question is another | together, all of it | alone, all of it | no | no |
# | ... when the owners are swapped | together, all of it | no | alone, all of it | no |
# | the answer is lost without it | not without one of them | yes | yes | no |
#
# * A pattern shows where a head *may* take something from. It is a place to begin, and no answer.
# * Attribution is exact and cheap, and blind to everything that takes a detour.
# * Patching answers precisely the question that your pair of texts asks. Choose the pair with care, and say which it was.
# * Ablation finds what nothing else replaces. What is done twice it does not find.
#
# All of it on one page that you can click through: `sf.look(model, text, target=" blue", against=" red").save("look.html")`.
# Here in the notebook the page also answers. Below, head 2.0 takes what it wrote for the other question; every view shows now
# beside before. Choose what a click does, click on other heads, type in the text. (It needs a running kernel, and
# `pip install "simdformer[notebook]"`. What it looks like, with one change more, stands under it.)

# %%
explorer = sf.explore(model, text, other)
explorer.edits = [{"part": "head", "layer": 2, "at": 0, "value": "other"}]
explorer

# %% [markdown]
# ![The explorer: a text to type in, what a click does, two changes, now beside before](../docs/pictures/explore.png)
#
# `explorer.code()` is the Python that computes what you see. It is the same `edit=` that `sf.patch` uses:

# %%
explorer.code()
