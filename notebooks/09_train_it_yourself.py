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
# # 09 · Train it yourself in five minutes
#
# A model of 1.4 million numbers, all of them random. Five minutes later it tells stories. In between lies nothing but one
# loop: **measure how wrong the model is, find out which way each number would have to move, move it a little.**
#
# You choose the data, look at a batch, write the optimizer, train, break the training in four ways, kill a run and go on
# with it, and ask your model questions.
#
# | letter | meaning |
# |---|---|
# | `B`, `L` | rows of a batch, tokens of a row |
# | `V` | tokens of the vocabulary |
#
# The long run takes a few minutes on two cores. If you are in a hurry, set `SIMDFORMER_STEPS=50` before you start Jupyter.

# %%
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display

import simdformer as sf
from simdformer.data.corpus import ask, documents, facts, state
from simdformer.training import TrainableModel
from simdformer.training.work import flops_of_token

STEPS = int(os.environ.get("SIMDFORMER_STEPS", "700"))
work = Path(mkdtemp(prefix="train-it-yourself-"))

# %% [markdown]
# ## 1 · The data
#
# The package brings a generator of small English texts, the one that its own model learned from: stories, facts to look
# up, lists to repeat, sums. It never ends, so no text is seen twice.

# %%
for text in islice(documents(seed=2), 3):
    print(text, "\n")

# %% [markdown]
# A model reads numbers. The tokenizer of the package knows 1,024 pieces of text, and two of them mark where a text begins
# and ends. All texts stand in one long line of ids, and each row of a batch is the next piece of it.
#
# What is to be learned stands one place further on: the **label** of each token is the token that follows.

# %%
demo = sf.from_pretrained(sf.demo_path())
tokenizer, V = demo.tokenizer, demo.config.vocab_size


def stream(seed):
    """Ids without end."""
    for text in documents(seed):
        yield from [tokenizer.bos_id, *tokenizer.encode(text, bos=False), tokenizer.eos_ids[0]]


def batches(rows, length, seed):
    """Batches without end: ids (B,L) and labels (B,L)."""
    ids = stream(seed)
    while True:
        some = np.fromiter(islice(ids, rows * (length + 1)), np.int64).reshape(rows, length + 1)
        yield some[:, :-1], some[:, 1:]


ids, labels = next(batches(16, 128, seed=1))
print("shape", ids.shape)
for name, row in (("ids", ids[0, :10]), ("labels", labels[0, :10])):
    print(f"{name:<7}", *(f"{token!r:>9}" for token in tokenizer.to_str_tokens(row)))

# %% [markdown]
# ## 2 · A model that knows nothing
#
# New weights are small random numbers. Such a model finds every token about equally likely, and the loss of guessing among
# `V` tokens is $\ln V$. If the first loss is another one, something is wrong before anything was learned: print it, always.


# %%
def new_model(seed=0):
    """As large as the model of the package, with new weights."""
    model = TrainableModel.from_config(demo.config, seed=seed)
    for weight in model.parameters().values():
        if weight.ndim == 2:
            weight *= 2  # a narrow model takes larger numbers than GPT-2's 0.02
    return model


model = new_model()
first_loss = model.loss(ids, labels)
print(f"numbers    {sum(weight.size for weight in model.parameters().values()):,}")
print(f"first loss {first_loss:.2f}, ln {V} = {math.log(V):.2f}")

# %% [markdown]
# ## 3 · AdamW, by hand
#
# A gradient says which way is up. AdamW (Loshchilov and Hutter 2019) steps down, and keeps two running means for each
# number: of the gradient (which way it went lately) and of its square (how much it shakes). The step is the one divided by
# the root of the other, so every number moves by about `lr`, however large its gradient is. And each matrix shrinks a
# little in every step: the decay.


# %%
def adamw(weight, gradient, m, v, *, step, lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1):
    """One step, in place."""
    m[...] = betas[0] * m + (1 - betas[0]) * gradient
    v[...] = betas[1] * v + (1 - betas[1]) * gradient**2
    m_hat = m / (1 - betas[0] ** step)  # both begin at 0, and are too small at first
    v_hat = v / (1 - betas[1] ** step)
    weight *= 1 - lr * weight_decay
    weight -= lr * m_hat / (np.sqrt(v_hat) + eps)


rng = np.random.default_rng(9)
weight = rng.standard_normal((4, 6), dtype=np.float32)
gradients = [rng.standard_normal((4, 6), dtype=np.float32) for _ in range(5)]
zeros = np.zeros_like(weight), np.zeros_like(weight)
report = sf.check(sf.optim.adamw_, adamw, weight, gradients, *zeros, step=1, lr=0.01)
report.raise_if_wrong()
print(report)

# %% [markdown]
# **Break it yourself.** Leave the two corrections out, or add `eps` inside the root. After a single step one can hardly
# tell; over five steps the check names it.


# %%
def without_corrections(weight, gradient, m, v, *, step, lr, betas=(0.9, 0.95), eps=1e-8):
    m[...] = betas[0] * m + (1 - betas[0]) * gradient
    v[...] = betas[1] * v + (1 - betas[1]) * gradient**2
    weight *= 1 - lr * 0.1
    weight -= lr * m / (np.sqrt(v) + eps)


wrong = sf.check(sf.optim.adamw_, without_corrections, weight, gradients, *zeros, step=1, lr=0.01)
print(wrong)

# %% [markdown]
# From here on `sf.optim.AdamW` does the same for all weights, in one pass over the memory.
#
# ## 4 · Learn one batch by heart
#
# Before hours are spent: can the model learn **one** batch? If it cannot, the gradients are wrong (`sf.check_gradients`
# says where), and no amount of data will help.


# %%
def train(model, data, steps, *, lr=2e-3, warmup=50, clip=1.0, decay=0.1, change=None, watch=None):
    """The whole of training. -> the losses of all steps; `watch` is told those so far."""
    optimizer = sf.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)
    losses = []
    for step in range(steps):
        ids, labels = next(data)
        loss, gradients = model.loss_and_gradients(ids, labels)
        if change is not None:
            gradients = change(gradients)
        sf.optim.clip_grad_norm_(gradients, clip)
        warm = min(warmup, steps)
        now = sf.optim.cosine_lr(step, lr=lr, warmup=warm, total=steps, min_lr=0.02 * lr)
        optimizer.step(gradients, lr=now)
        losses.append(loss)
        if watch is not None and step % 20 == 19:
            watch(losses)
    return losses


def again_and_again(ids, labels):
    while True:
        yield ids, labels


by_heart = train(new_model(), again_and_again(ids[:2], labels[:2]), 100, lr=3e-3, warmup=10)
print(f"loss of one batch: {by_heart[0]:.2f} at first, {by_heart[-1]:.3f} after 100 steps")

# %% [markdown]
# ## 5 · Go
#
# The learning rate rises over the first 50 steps, while the running means fill, and then falls along a cosine. Each step
# sees 16 rows of 128 tokens that it has never seen. Beside it stands a text from another seed, which it is never trained on.
#
# `sf.explore` shows the model while it learns: the curve so far and, every 20 steps, how the model reads a text by now.
# Watch what a head attends to, and what the last layer would say. (It needs a running kernel; below the cell is a picture.)

# %%
held_out = next(batches(32, 128, seed=99))
model, data = new_model(), batches(16, 128, seed=1)
model.tokenizer = tokenizer  # so that its texts are words
explorer = sf.explore(
    model, "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is blue."
)
display(explorer)
losses = train(model, data, STEPS, watch=explorer.update)
sf.plots.loss_curve({"this run": losses}, title="the loss of each step")
plt.show()
print(f"loss {losses[0]:.2f} at first, {np.mean(losses[-20:]):.2f} at the end")
print(f"held out: {model.loss(*held_out):.2f}")

# %% [markdown]
# ![The explorer after 120 steps of a run: its curve, the text, all heads, one head, the logit lens](../docs/pictures/explore_run.png)
#
# The curve falls fast (which words there are), then slowly (which word goes with which). $e^{\text{loss}}$ is the
# *perplexity*: among how many tokens the model still hesitates. It began with 1,024 of them.
#
# And what does it write?

# %%
mine = model.language_model(tokenizer)
for prompt in ("Once upon a time", "Count by 5: 10,", "The opposite of hot is"):
    print(prompt + mine.generate(prompt, max_new_tokens=40, temperature=0.0), "\n")

# %% [markdown]
# Stories come first: they are the next word, again and again. Looking something up is harder: the model has to find, for
# the kite of Mia, the sentence in which it stands. That skill comes late and suddenly. The model in the package had more than
# ten times as many steps, and longer rows.


# %%
def recall(model, count=96):
    """How many questions about facts that stand before them are answered right."""
    dice, right = Random(7), 0
    for _ in range(count):
        known = facts(dice)
        question, answer = ask(dice, known)
        logits = model(tokenizer.encode(f"{state(known)} {question}"))
        right += int(logits[-1].argmax()) == tokenizer.encode(answer, bos=False)[0]
    return right / count


theirs = TrainableModel.from_pretrained(sf.demo_path())
for name, one, generates in (("yours", model, mine), ("the package's", theirs, demo)):
    loss = one.loss(*held_out)
    print(
        f"{name:<14} held out {loss:.2f}, perplexity {math.exp(loss):.2f}, "
        f"looked up {recall(generates):.0%}"
    )

# %% [markdown]
# ## 6 · Where the time goes
#
# A step is products of matrices, and a little more. The forward pass takes two operations for each weight and token (a product
# and a sum), the way back twice as many: once for the gradient of the weight, once for that of what came in. Divide what your
# machine does in a second by what a token takes, and you know how long a run will be before it begins. `simdformer train --plan`
# does just that, and measures five steps too.

# %%
each = flops_of_token(demo.config, model.parameters(), length=128)
used = sum(weight.size for name, weight in model.parameters().items() if name != "embed")
print(
    f"a token  {each / 1e6:.1f} million operations, of them 6 for each weight: {6 * used / each:.0%}"
)
print(f"a step   {each * ids.size / 1e9:.1f} billion")
print(f"700 of them on a machine with 100 GFLOPS: {700 * each * ids.size / 1e11 / 60:.1f} minutes")

# %% [markdown]
# ## 7 · Break it yourself
#
# Four mistakes that people make. Look at the curves first, and guess which of these runs is worth anything.


# %%
def unshifted(data):
    """The label of each token is the token itself."""
    for ids, _ in data:
        yield ids, ids


def never_zeroed():
    """`optimizer.zero_grad()` forgotten: gradients of all steps add up."""
    total = {}

    def change(gradients):
        for name, gradient in gradients.items():
            total[name] = total.get(name, 0) + gradient
        return {name: gradient.copy() for name, gradient in total.items()}

    return change


short = min(STEPS, 120)
runs = {}
for name, way, options in (
    ("no decay", iter, {"decay": 0.0}),
    ("right", iter, {}),
    ("labels not shifted", unshifted, {}),
    ("zeroing forgotten", iter, {"change": never_zeroed()}),
    ("lr times 20, no warm-up", iter, {"lr": 4e-2, "warmup": 0}),
):
    broken = new_model()
    runs[name] = train(broken, way(batches(8, 128, seed=1)), short, **options)
    if name == "labels not shifted":
        parrot = broken.language_model(tokenizer)
axes = sf.plots.loss_curve(runs, title="five runs")
axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
plt.show()

# %% [markdown]
# * **Labels not shifted**: the best curve of all. A loss that goes to 0 is no success but a warning: the model copies the
#   token that it sees, and has learned nothing about the next one.
# * **Zeroing forgotten**: each step walks on along all gradients that there ever were.
# * **A learning rate that is too large**: it falls, and then stays where it is.
# * **No decay**: it lies under the right one. In so few steps it hardly matters, and *no curve would have told you*. That is
#   what checks are for.

# %%
print(
    "labels not shifted:", repr(parrot.generate("Once upon a", max_new_tokens=12, temperature=0.0))
)

# %% [markdown]
# ## 8 · Kill it
#
# All of the above is also one command, `simdformer train`. It keeps checkpoints, and a run that was killed, at any moment,
# goes on with **the same bits**. Let us see: one run in peace, and one that gets `kill -9`.

# %%
text = "\n\n".join(islice(documents(seed=3), 2000))
(work / "stories.txt").write_text(text)
command = [
    sys.executable,
    "-m",
    "simdformer",
    "train",
    str(work / "stories.txt"),
    "--model",
    "demo",
]
command += ["--steps", "40", "--context", "64", "--batch-tokens", "256", "--save-minutes", "0"]


def start(out, *more):
    """The command in a process of its own."""
    return subprocess.Popen(
        [*command, "--out", str(work / out), *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def lines(out):
    log = work / out / "log.jsonl"
    return log.read_text().splitlines() if log.exists() else []


def digest(out):
    return hashlib.sha256((work / out / "model.safetensors").read_bytes()).hexdigest()[:16]


start("peace").wait()
victim = start("war")
while len(lines("war")) < 15 and victim.poll() is None:
    time.sleep(0.02)
victim.send_signal(signal.SIGKILL)
print("ended by signal", -victim.wait())
start("war", "--resume").wait()
print("steps in the log:", len(lines("peace")), len(lines("war")))
print(
    "the same losses:",
    [
        json.loads(a)["loss"] == json.loads(b)["loss"]
        for a, b in zip(lines("peace"), lines("war"), strict=True)
    ].count(True),
)
print("the same weights:", digest("peace") == digest("war"))

# %% [markdown]
# The same holds for the number of threads. Work is cut by sizes alone, so that no bit depends on how many there are:

# %%
bits = set()
for threads in (1, 2, 3):
    with sf.num_threads(threads):
        _, gradients = model.loss_and_gradients(ids, labels)
        bits.add(b"".join(gradient.tobytes() for gradient in gradients.values()))
print("different gradients with 1, 2 and 3 threads:", len(bits) - 1)

# %% [markdown]
# ## 9 · Teach it something new
#
# A model that is trained can be taught more without touching its weights: beside each matrix $W$ stand two small ones, and
# what is computed is $(W + \tfrac{\alpha}{r} B A)\,x$ (LoRA, Hu et al. 2021). Only $A$ and $B$ are trained, here 8 numbers wide.
#
# The lesson: in this village everybody's favourite colour is purple. Only the answers count for the loss; what stands between
# `[[` and `]]` is learned.

# %%
names = ["Ada", "Ben", "Cleo", "Dora", "Emil", "Finn", "Gus", "Hana", "Ida", "Jon"]
lesson = [
    {"prompt": f"What is the best colour of {name}?", "completion": " It is purple."}
    for name in names
]
(work / "lesson.jsonl").write_text("\n".join(map(json.dumps, lesson)))
command = [sys.executable, "-m", "simdformer", "train", str(work / "lesson.jsonl")]
command += ["--model", "demo", "--lora", "8", "--context", "32", "--out", str(work / "lesson")]
shown = subprocess.run([*command, "--show-mask"], capture_output=True, text=True, check=True)
print(shown.stdout)
command += ["--steps", "40", "--batch-tokens", "256", "--lr", "5e-3", "--warmup", "5"]
subprocess.run(command, capture_output=True, check=True)

taught = sf.from_pretrained(sf.demo_path(), adapter=work / "lesson")
question = "What is the best colour of Zoe?"  # not among the ten
for name, one in (("before", demo), ("after", taught)):
    print(f"{name:<6}", question + one.generate(question, max_new_tokens=6, temperature=0.0))
print("adapters:", f"{(work / 'lesson' / 'adapter_model.safetensors').stat().st_size / 1e3:.0f} kB")

# %% [markdown]
# ## 10 · Take it elsewhere
#
# What is saved is what Hugging Face's libraries read: `config.json` and `model.safetensors`. transformers computes the same
# logits, but for rounding.

# %%
import torch
import transformers

transformers.utils.logging.disable_progress_bar()
model.save(work / "mine")
elsewhere = transformers.AutoModelForCausalLM.from_pretrained(work / "mine", dtype="float32")
with torch.inference_mode():
    their_logits = elsewhere(torch.from_numpy(ids[:1].copy())).logits[0].numpy()
our_logits = mine(ids[0])
print(sorted(path.name for path in (work / "mine").iterdir()))
print(
    f"largest difference {np.abs(their_logits - our_logits).max():.0e}, logits up to {np.abs(our_logits).max():.0f}"
)

# %% [markdown]
# ## What you have now
#
# * Training is a loop of five lines: batch, loss, gradients, clipping, step. Everything else is care.
# * The first loss is $\ln V$, one batch can be learned by heart, and a loss near 0 is a warning. Look at these before you wait.
# * A curve shows some mistakes and hides others; checks show those.
# * Same data, same options, same bits: after a kill, and with every number of threads.
#
# From here: your own texts, with `simdformer train mine.txt --init config.json --vocab 4096 --out mine`. First
# `--plan`, which says how long it will take. [Training](../docs/training.md) has the rest.
