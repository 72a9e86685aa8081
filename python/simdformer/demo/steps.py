"""One attention step and one gradient, written in numpy and computed by the kernels, line by
line."""

import math
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np

import simdformer as sf
from simdformer.demo.printing import SHADES, check, difference, show
from simdformer.types import Array

__all__ = ["BACK", "STEPS", "DemoStep", "attention_step", "gradient_step"]

WORDS = ["once", "upon", "a", "time", "there", "was"]
TOLERANCE = 1e-5  # float32 numbers of the order of 1, sums of up to 32 products


@dataclass(frozen=True)
class DemoStep:
    """One step of the computation, twice: as one would write it in numpy, and as a call of a
    kernel."""

    title: str
    numpy: str
    kernel: str
    results: str  # the names in which both leave their results


STEPS = [
    DemoStep(
        "RMSNorm: every token's numbers are scaled to a root mean square of 1, then weighted",
        "h = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * g",
        "h = sf.rms_norm(x, g, eps=1e-6)",
        "h",
    ),
    DemoStep(
        "Three views of each token: what it looks for, what it offers, what it says",
        "q, k, v = h @ wq.T, h @ wk.T, h @ wv.T",
        "q, k, v = sf.linear(h, [wq, wk, wv])",
        "q k v",
    ),
    DemoStep(
        "Heads: the numbers of a token are dealt out to H query heads and K key/value heads",
        "q, k, v = (np.stack(np.split(y, y.shape[-1] // D, axis=-1)) for y in (q, k, v))",
        "q, k, v = (y.reshape(L, -1, D).swapaxes(0, 1) for y in (q, k, v))   # no copies: views",
        "q k v",
    ),
    DemoStep(
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
    DemoStep(
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
    DemoStep(
        "Softmax: scores become shares that sum up to 1",
        """
        pattern = np.exp(scores - scores.max(axis=-1, keepdims=True))
        pattern /= pattern.sum(axis=-1, keepdims=True)
        """,
        "pattern                                  # from the call above; or sf.softmax(scores)",
        "pattern",
    ),
    DemoStep(
        "The answer: everybody's values, in those shares",
        "z = pattern @ np.repeat(v, H // K, axis=0)",
        "z                                        # from the call above",
        "z",
    ),
    DemoStep(
        "Heads together, one more linear layer, and added to where we came from",
        "out = x + np.concatenate(list(z), axis=-1) @ wo.T",
        "out = x + sf.linear(z.swapaxes(0, 1).reshape(L, H * D), wo)",
        "out",
    ),
]


BACK = DemoStep(
    "RMSNorm: dh says how the loss changes with h; dx and dg say how it changes with x and g",
    """
    r = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    dx = r * (dh * g - x * r * np.mean(dh * g * x * r, axis=-1, keepdims=True))
    dg = np.sum(dh * x * r, axis=0)
    """,
    "dx, dg = sf.backward.rms_norm(dh, x, g, eps=1e-6)",
    "dx dg",
)


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
        right = both(f"{number}  {step.title}", step, mine, kernels) and right
        print()
        if step.results == "pattern":
            picture(kernels["pattern"][0])
    return right


def gradient_step() -> bool:
    """The same of one step of the way back, from which training is made."""
    given = example()
    print("\nAnd the way back, as in training: one gradient, in numpy and as a kernel.\n")
    return both(BACK.title, BACK, {"np": np, **given}, {"sf": sf, **given})


def both(title: str, step: DemoStep, mine: dict[str, Any], kernels: dict[str, Any]) -> bool:
    """Shows, runs and compares the two sides of a step."""
    print(title)
    show("numpy ", step.numpy)
    show("kernel", step.kernel)
    exec(textwrap.dedent(step.numpy), mine)
    exec(textwrap.dedent(step.kernel), kernels)
    names = step.results.split()
    shapes = "  ".join(f"{name} {kernels[name].shape}" for name in names)
    worst = max(difference(mine[name], kernels[name]) for name in names)
    return check(worst <= TOLERANCE, f"{shapes}   largest difference {worst:.1e}")


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
        "dh": normal(length, width),
    }


def picture(pattern: Array) -> None:
    """An attention pattern (L,L), in shades and per cent: queries down, keys across."""
    print("   Head 0 as a picture. Each row is a token: how much it attends to each.")
    print(" " * 12 + "".join(f"{word:<8}" for word in WORDS).rstrip())
    for index, (word, row) in enumerate(zip(WORDS, pattern, strict=True)):
        cells = [f"{SHADES[math.ceil(4 * share)] * 2}{share:4.0%}" for share in row[: index + 1]]
        print(f"   {word:<9}{'  '.join(cells)}")
    print()
