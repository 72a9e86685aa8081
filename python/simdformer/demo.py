"""The demonstration: one attention step, written in numpy and computed by the kernels, then a story
by a real model.

Every line of code that it shows is the code that it runs.
"""

import math
import os
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import simdformer as sf
from simdformer.text import LanguageModel, Report, from_pretrained
from simdformer.types import Array

__all__ = ["DEFAULT_MODEL", "STEPS", "VARIABLE", "run"]


VARIABLE = "SIMDFORMER_STORIES"
DEFAULT_MODEL = Path("../shared/data/stories260K/stories260K.bin")
WORDS = ["once", "upon", "a", "time", "there", "was"]
TOLERANCE = 1e-5  # float32 numbers of the order of 1, sums of up to 32 products
LOGITS_TOLERANCE = 1e-3  # logits up to 20 behind 5 layers, sums in another order
STORY_TOKENS = 256


@dataclass(frozen=True)
class Step:
    """One step of the computation, twice: as one would write it in numpy, and as a call of a
    kernel."""

    title: str
    numpy: str
    kernel: str
    results: str  # the names in which both leave their results


STEPS = [
    Step(
        "RMSNorm: every token's numbers are scaled to a root mean square of 1, then weighted",
        "h = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * g",
        "h = sf.rms_norm(x, g, eps=1e-6)",
        "h",
    ),
    Step(
        "Three views of each token: what it looks for, what it offers, what it says",
        "q, k, v = h @ wq.T, h @ wk.T, h @ wv.T",
        "q, k, v = sf.linear(h, [wq, wk, wv])",
        "q k v",
    ),
    Step(
        "Heads: the numbers of a token are dealt out to H query heads and K key/value heads",
        "q, k, v = (np.stack(np.split(y, y.shape[-1] // D, axis=-1)) for y in (q, k, v))",
        "q, k, v = (y.reshape(L, -1, D).swapaxes(0, 1) for y in (q, k, v))   # no copies: views",
        "q k v",
    ),
    Step(
        "RoPE: pairs of numbers are turned by an angle that grows with the position",
        """
        angle = np.arange(L)[:, None] * 10000.0 ** (-np.arange(0, D, 2) / D)
        def turn(y):
            a, b = y[..., : D // 2], y[..., D // 2 :]
            return np.concatenate([a * np.cos(angle) - b * np.sin(angle),
                                   b * np.cos(angle) + a * np.sin(angle)], axis=-1)
        q, k = turn(q), turn(k)
        """,
        'q, k = (sf.rope(y, layout="half", theta=10000.0) for y in (q, k))',
        "q k",
    ),
    Step(
        "Scores: how well does what a token looks for fit what others offer? The future is hidden",
        """
        scores = q @ np.repeat(k, H // K, axis=0).swapaxes(1, 2) / np.sqrt(D)
        scores[:, np.triu(np.ones((L, L), bool), 1)] = -np.inf
        """,
        """
        z, pattern, scores = sf.scaled_dot_product_attention(
            q, k, v, is_causal=True, return_weights=True, return_scores=True)
        """,
        "scores",
    ),
    Step(
        "Softmax: scores become shares that sum up to 1",
        """
        pattern = np.exp(scores - scores.max(axis=-1, keepdims=True))
        pattern /= pattern.sum(axis=-1, keepdims=True)
        """,
        "pattern                                  # from the call above; or sf.softmax(scores)",
        "pattern",
    ),
    Step(
        "The answer: everybody's values, in those shares",
        "z = pattern @ np.repeat(v, H // K, axis=0)",
        "z                                        # from the call above",
        "z",
    ),
    Step(
        "Heads together, one more linear layer, and added to where we came from",
        "out = x + np.concatenate(list(z), axis=-1) @ wo.T",
        "out = x + sf.linear(z.swapaxes(0, 1).reshape(L, H * D), wo)",
        "out",
    ),
]


def run(model: Path | None = None) -> int:
    """Prints the demonstration; 0, or 1 when a check failed."""
    right = attention_step()
    path = find_model(model)
    if path is None:
        print(
            "A real model: none found. Get stories260K.bin and tok512.bin (one megabyte; folder\n"
            "stories260K of karpathy/tinyllamas on the Hugging Face hub), put them into one\n"
            "directory and run\n\n"
            "    simdformer demo DIRECTORY\n\n"
            f"or name the directory in {VARIABLE}. The checks above are complete without it."
        )
    else:
        right = story(path) and right
    print("\nAll checks agree." if right else "\nA CHECK FAILED: look for ✗ above.")
    return 0 if right else 1


# ---- one attention step --------------------------------------------------------------------------


def attention_step() -> bool:
    """Runs both sides of every step, each on its own results, and compares them."""
    given = example()
    mine, kernels = {"np": np, **given}, {"np": np, "sf": sf, **given}
    length, width, heads, kv_heads, head_dim = (given[name] for name in "LEHKD")
    print(
        f"One attention step of a transformer, on L={length} tokens of E={width} numbers each;\n"
        f"H={heads} query heads share K={kv_heads} key/value heads of D={head_dim} numbers.\n"
        f"Every step twice: in numpy, and as a kernel of simdformer ({sf.isa()}, float32).\n"
    )
    right = True
    for number, step in enumerate(STEPS, start=1):
        print(f"{number}  {step.title}")
        show("numpy ", step.numpy)
        show("kernel", step.kernel)
        exec(textwrap.dedent(step.numpy), mine)
        exec(textwrap.dedent(step.kernel), kernels)
        names = step.results.split()
        shapes = "  ".join(f"{name} {kernels[name].shape}" for name in names)
        worst = max(difference(mine[name], kernels[name]) for name in names)
        right = check(worst <= TOLERANCE, f"{shapes}   largest difference {worst:.1e}") and right
        print()
        if step.results == "pattern":
            picture(kernels["pattern"][0])
    return right


def example() -> dict[str, Any]:
    """Sizes, activations and weights of the step, always the same."""
    length, heads, kv_heads, head_dim = len(WORDS), 4, 2, 8
    width = heads * head_dim
    random = np.random.default_rng(42)

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape, dtype=np.float32)

    return {
        "L": length,
        "E": width,
        "H": heads,
        "K": kv_heads,
        "D": head_dim,
        "x": normal(length, width),
        "g": 1 + normal(width) / 8,
        "wq": normal(heads * head_dim, width) / 6,
        "wk": normal(kv_heads * head_dim, width) / 6,
        "wv": normal(kv_heads * head_dim, width) / 4,
        "wo": normal(width, heads * head_dim) / 4,
    }


def difference(mine: Array, kernel: Array) -> float:
    """The largest; infinite for other shapes, a NaN, or infinities in other places."""
    mine, kernel = np.asarray(mine), np.asarray(kernel)
    if mine.shape != kernel.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):
        differences = np.where(mine == kernel, 0, np.abs(mine - kernel))
    return float(np.max(np.where(np.isnan(differences), np.inf, differences), initial=0))


# ---- a real model --------------------------------------------------------------------------------


def find_model(given: Path | None) -> Path | None:
    """The path given, else that of the environment, else the default where it exists."""
    path = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if path is None:
        return DEFAULT_MODEL if DEFAULT_MODEL.exists() else None
    usual = path / DEFAULT_MODEL.name
    return usual if usual.exists() else path


def story(path: Path) -> bool:
    """Lets the model write, then computes every token again without the cache."""
    model = from_pretrained(path)
    print(f"A real model\n    model = sf.from_pretrained({path.name!r})\n    {model}")
    if model.tokenizer is None or model.tokenizer.bos_id is None:
        raise ValueError(
            f"{path}: no tokenizer (tok*.bin) beside it; the demonstration needs one for its story"
        )
    start = model.tokenizer.encode("")
    wanted = min(STORY_TOKENS, model.config.max_seq_len - len(start))
    print(f"    model.generate({start}, max_new_tokens={wanted})\n")

    report = Report()
    ids = model.generate(start, max_new_tokens=wanted, report=report)
    for line in model.tokenizer.decode([*start, *ids], skip_special=True).splitlines():
        print(textwrap.fill(line, 96, initial_indent="    | ", subsequent_indent="    | "))

    with_cache = report.prefill_seconds + report.decode_seconds
    started = time.perf_counter()
    again = greedy_without_cache(model, start, len(ids))
    without = time.perf_counter() - started
    print()
    same_ids = check(
        again == ids,
        f"{len(ids)} tokens, the same without the KV cache "
        f"({with_cache:.2f} s with it, {without:.2f} s without)",
    )
    worst = difference(*both_logits(model, start + ids))
    same_logits = check(
        worst <= LOGITS_TOLERANCE, f"logits with and without it   largest difference {worst:.1e}"
    )
    return same_ids and same_logits


def greedy_without_cache(model: LanguageModel, start: list[int], count: int) -> list[int]:
    """What the model writes when it reads the whole text again for every token."""
    text = list(start)
    for _ in range(count):
        text.append(int(np.argmax(model(text, logits_to_keep=1)[-1])))
    return text[len(start) :]


def both_logits(model: LanguageModel, text: list[int]) -> tuple[Array, Array]:
    """The logits of a text read token by token into a cache, and read at once."""
    cache = model.new_cache(len(text))
    return np.concatenate([model([id], cache) for id in text]), model(text)


# ---- printing ------------------------------------------------------------------------------------


def show(who: str, code: str) -> None:
    lines = textwrap.dedent(code).strip("\n").splitlines()
    for index, line in enumerate(lines):
        print(f"   {who if index == 0 else ' ' * len(who)}  {line}")


def check(right: bool, what: str) -> bool:
    """Prints the verdict, in colour on a terminal, and gives it back."""
    mark, colour = ("✓ agree ", 32) if right else ("✗ DIFFER", 31)
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        mark = f"\x1b[{colour}m{mark}\x1b[0m"
    print(f"   {mark}  {what}")
    return right


def picture(pattern: Array) -> None:
    """An attention pattern (L,L), in shades and per cent: who listens (rows) to whom (columns)."""
    shades = " ░▒▓█"
    print("   Head 0 as a picture. Each row is a token: how much it listens to whom.")
    print(" " * 12 + "".join(f"{word:<8}" for word in WORDS).rstrip())
    for index, (word, row) in enumerate(zip(WORDS, pattern, strict=True)):
        cells = [f"{shades[math.ceil(4 * share)] * 2}{share:4.0%}" for share in row[: index + 1]]
        print(f"   {word:<9}{'  '.join(cells)}")
    print()
