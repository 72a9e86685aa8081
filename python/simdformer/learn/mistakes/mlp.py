"""The MLP of a layer in steps, and what goes wrong in it.

x (...,E), gate and up (I,E), down (E,I); the meaning is that of `nn.MLP`. What goes wrong between
gate and up is in activation_formulas.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simdformer import nn
from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.activations import swiglu
from simdformer.learn.mistakes.linear import SQUARE, linear
from simdformer.learn.mistakes.sampling import rows_of
from simdformer.learn.program import Program


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


mlp = Program(
    "mlp",
    """
    project_gate: g = run(linear, x=x, weight=gate).out
    project_up: u = run(linear, x=x, weight=up).out
    activate: act = run(swiglu, gate=g, up=u).out
    project_down: out = run(linear, x=act, weight=down).out
    """,
    calls=(linear, swiglu),
    of=nn.MLP,
    axes=("position", "channel"),
    thin=some_rows,
)

for name, result, source in (("gate", "g", "x"), ("up", "u", "x"), ("down", "out", "act")):
    mistakes(
        f"""
        mlp.project_{name} (02 §7) > Write x @ {name}.T.

        {name}_not_transposed: {name} is not transposed
            {SQUARE}
            | {result} = run(linear, x={source}, weight=array({name}).T).out
        """
    )

mistakes(
    """
    mlp.project_down (02 §7)

    down_forgotten: down is forgotten
        The product of gate and up is returned as it is.
        > End with (silu(gate) * up) @ down.T.
        | out = act
    residual_added: x is added to the result: that is the block's task
        The residual belongs around the layer: h + mlp(norm(h)).
        > Return the product with down alone, and add h where the layer is called.
        | ...; out = out + array(x)
    """
)
