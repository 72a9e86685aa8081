"""The MLP of a layer in steps, and what goes wrong in it.

x (...,E), gate and up (I,E), down (E,I); the meaning is that of `nn.MLP`. What goes wrong between
gate and up is in activation_formulas.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import nn
from simdformer.learn.catalogue import Change, Mistakes, instead, then
from simdformer.learn.mistakes.activations import MLP, swiglu
from simdformer.learn.mistakes.linear import linear
from simdformer.learn.mistakes.sampling import rows_of
from simdformer.learn.program import Program, State

mlp = Program("mlp", of=nn.MLP, axes=("position", "channel"))


@mlp.step
def project_gate(s: State) -> None:
    s.g = s.run(linear, x=s.x, weight=s.gate).out


@mlp.step
def project_up(s: State) -> None:
    s.u = s.run(linear, x=s.x, weight=s.up).out


@mlp.step
def activate(s: State) -> None:
    s.act = s.run(swiglu, gate=s.g, up=s.u).out


@mlp.step
def project_down(s: State) -> None:
    s.out = s.run(linear, x=s.act, weight=s.down).out


@mlp.thin
def some_rows(
    variables: dict[str, Any], limit: int
) -> tuple[dict[str, Any], Callable[[Any], Any]] | None:
    """Some tokens, and some of the channels that come out."""
    x, gate, down = np.asarray(variables["x"]), variables["gate"], variables["down"]
    inner = gate.shape[0] if hasattr(gate, "shape") else len(gate)
    index = rows_of((*x.shape[:-1], max(x.shape[-1], inner)), limit)
    if index is None:
        return None
    down = down.unpack() if hasattr(down, "unpack") else np.asarray(down)
    channels = slice(None, None, max(1, down.size // max(limit, down.shape[1])))
    fewer = variables | {"x": x[index], "down": down[channels]}
    return fewer, lambda out: out[index][..., channels]


def not_transposed(name: str, result: str, source: str) -> Change:
    return instead(
        **{
            result: lambda s: (
                s.run(linear, x=getattr(s, source), weight=s.run.array(getattr(s, name)).T).out
            )
        }
    )


for name, result, source in (("gate", "g", "x"), ("up", "u", "x"), ("down", "out", "act")):
    Mistakes(f"mlp.project_{name}", see=MLP).add(
        f"{name}_not_transposed",
        not_transposed(name, result, source),
        f"{name} is not transposed",
        "x @ W runs without a word when W is square, but the rows of W are the outputs.",
        f"Write x @ {name}.T.",
    )

Mistakes("mlp.project_down", see=MLP)(
    """
    down_forgotten: down is forgotten
        The product of gate and up is returned as it is.
        > End with (silu(gate) * up) @ down.T.
    residual_added: x is added to the result: that is the block's task
        The residual belongs around the layer: h + mlp(norm(h)).
        > Return the product with down alone, and add h where the layer is called.
    """,
    down_forgotten=instead(out=lambda s: s.act),
    residual_added=then(out=lambda s: s.out + s.run.array(s.x)),
)
