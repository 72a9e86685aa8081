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
text = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"
print(f"{text}{model.generate(text, max_new_tokens=1)}")

# %% [markdown]
# `run_with_cache` gives the logits, and a **trace**: every activation by name, and the tokens it belongs to. (This model cuts
# `Tom` in two. That is how its tokenizer was trained.)

# %%
logits, trace = model.run_with_cache(text)
print(trace)
print(trace.tokens)
blue, red = trace.tokens.index(" blue"), trace.tokens.index(" red")

# %% [markdown]
# ## 1 · When does it know?
#
# Before *who*, ask *where*. The **logit lens** cuts the model off after each layer and lets it speak. Above the last token,
# `blue` leads from layer 2 on, but only as one of many colours. In layer 5 it becomes certain.

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
# Head 4.2 (layer 4, head 2) looks harder at `blue` than any other, and it does not even glance at `red`. A clear case? It is
# tempting to stop here and to say "head 4.2 looks the colour up". Many pictures of attention on the web say no more than
# that. But looking is not doing. Ask on.

# %% [markdown]
# ## 3 · Who writes?
#
# The residual stream is a *sum*: the embedding, plus what every head writes, plus what every MLP writes. The last step is
# linear, but for a norm whose scale we keep as it is. So the logit of `blue` is a sum too, and each part has its share.
# `sf.attribute` tells the shares of *logit of blue minus logit of another colour*.
#
# First against a colour that does not occur in the text:

# %%
found = sf.attribute(model, text, " blue", " green")
print(found)
print(f"\nall parts together: {sum(found.parts.values()):.4f}")
sf.plots.attribution(found)
plt.show()

# %% [markdown]
# Head 4.2 wrote next to nothing. Heads 5.3 and 5.0 wrote most; the largest part by far comes from the **MLP** of
# layer 5, which cannot look anywhere. It must have been told by the heads in front of it.
#
# Now against the colour of the other thing:

# %%
against_red = sf.attribute(model, text, " blue", " red")
for layer, head in ((4, 2), (5, 0), (5, 1), (5, 2), (5, 3)):
    print(
        f"head {layer}.{head}: {found.heads[layer, head]:+.2f} against ' green', "
        f"{against_red.heads[layer, head]:+.2f} against ' red'"
    )

# %% [markdown]
# Head 5.0 seems to work *against* the answer: it writes more for `red` than for `blue`. That fits its pattern, 49 % to one
# and 40 % to the other: it brings both colours along. So is it useless, or even harmful? Attribution counts only what goes
# **straight** to the output. What a head tells the MLP behind it is counted as the MLP's. To see that, something has to be
# *changed*.

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
# The colour stays where it was read: up to layer 5, putting back the stream above `blue` brings everything back, and nothing
# has reached the last token. So it is carried over **in layer 5**. By which head?

# %%
by_head = sf.patch(model, text, spoilt, (" blue", " green"), by="head")
sf.plots.patching(by_head, title="each head's z")
plt.show()

attention = sf.patch(model, text, spoilt, (" blue", " green"), "layers.*.attn.out", by="layer")
print(f"head 4.2 alone:             {by_head[4, 2]:.2f}")
print(f"head 5.0 alone:             {by_head[5, 0]:.2f}")
print(f"the heads of layer 5, each: {np.round(by_head[5], 2)}, sum {by_head[5].sum():.2f}")
print(f"all of layer 5 together:    {attention[5]:.2f}")

# %% [markdown]
# **Head 4.2, which looks hardest, brings 5 % back. Head 5.0 brings more than a third**, and the attention of layer 5 as a whole
# nearly all. (The single ones do not add up to the whole: an MLP follows, and it is not linear.) Looking and doing are two
# things.
#
# Do they bring the colour by *looking elsewhere*, or by what they *find* there? Put back only the pattern, then only the
# values:

# %%
for name in ("attn.pattern", "attn.v"):
    restored = sf.patch(model, text, spoilt, (" blue", " green"), f"layers.*.{name}", by="layer")
    print(f"{name:13s} of layer 5: {restored[5]:+.2f}")

# %% [markdown]
# They look at the same place either way. *What* lies there makes the difference.
#
# ## 5 · Then what is head 4.2 for?
#
# The question of section 4 was: **which colour** stands there? Another one is: **whose** colour is asked for? Swap the two
# colours, so that both texts hold the same words, and only *where* they stand differs:

# %%
swapped = "Mia has a blue kite. Tom has a red boat. What colour is the boat of Tom? It is"
print("the model says", repr(model.generate(swapped, max_new_tokens=1)))
whose = sf.patch(model, text, swapped, (" blue", " red"), by="head")
sf.plots.patching(whose, title="colours swapped: each head's z")
plt.show()
print(
    f"head 4.2: {by_head[4, 2]:.2f} when a colour is new, {whose[4, 2]:.2f} when colours are swapped"
)

# %% [markdown]
# Here head 4.2 does count. A head that has nothing to say about *which colours there are* can have a part in saying *which of
# them is meant*. "What does this head do?" has no answer without "in which comparison?".
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

sf.plots.patching(
    lost, title="what is lost without each head: logit of ' blue' minus logit of ' red'"
)
plt.show()

# %% [markdown]
# Three heads of early layers change most, and none of them gives `blue` a tenth of its attention; without head 0.1 the answer
# even gains. Everything later is built on what they write: without them the model does not read the text as it was trained
# to. *Needed* is not the same as *responsible*. (And a head that is missing altogether is a state that the model has never
# seen. `value="mean"` puts the head's average there instead.)
#
# ## What you have now
#
# | | head 4.2 | head 5.0 |
# |---|---|---|
# | looks at `blue` | hardest of all | second, and at `red` nearly as hard |
# | writes `blue` against `green` | little | more |
# | writes `blue` against `red` | a little | against it |
# | brings `blue` back (patching) | hardly | most of all heads |
# | tells whose colour is meant | has a part | most of all heads |
#
# * A pattern shows where a head *may* take something from. It is a place to begin, and no answer.
# * Attribution is exact and cheap, and blind to everything that takes a detour.
# * Patching answers precisely the question that your pair of texts asks. Choose the pair with care, and say which it was.
# * Ablation finds what is needed, which is more than what is responsible.
#
# All of it on one page that you can click through: `sf.look(model, text, target=" blue", against=" red").save("look.html")`.
# Here in the notebook the page also answers. Below, head 5.0 takes what it wrote for the spoilt text; every view shows now
# beside before. Choose what a click does, click on other heads, type in the text. (It needs a running kernel, and
# `pip install "simdformer[notebook]"`. What it looks like, with one change more, stands under it.)

# %%
explorer = sf.explore(model, text, spoilt)
explorer.edits = [{"part": "head", "layer": 5, "at": 0, "value": "other"}]
explorer

# %% [markdown]
# ![The explorer: a text to type in, what a click does, two changes, now beside before](../docs/pictures/explore.png)
#
# `explorer.code()` is the Python that computes what you see. It is the same `edit=` that `sf.patch` uses:

# %%
explorer.code()
