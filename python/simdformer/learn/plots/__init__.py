"""`simdformer.plots`: pictures of what happens inside a transformer.

    attention_map(pattern, tokens)    score_map(scores, tokens)    attention_heads(pattern, tokens)
    rope_circle(row)                  rope_turns(inv_freq)         rope_bands(inv_freq)
    residual_norms(trace)             logit_lens(model, trace)     parameter_budget(config)
    all_heads(trace)                  attribution(found)           patching(restored, tokens)
    token_losses(losses, tokens)      trace_errors(mine, right)    error_map(mine, right)
    attention_stages(scores, mask)    activations(functions)       roofline(work, ...)
    lines(x, curves, ...)             loss_curve(log)                style()

Each draws on the Axes given as `ax=`, or on a new figure as wide as a notebook, and returns the
Axes (those with several: an array of them). They share one look, which `style()` lends to your own
pictures too; matplotlib's settings stay yours. Colours can be told apart with any colour vision, or
by lightness alone. Drawing needs matplotlib: `pip install "simdformer[notebook]"`.
"""

from simdformer.learn.plots.attention import (
    attention_heads,
    attention_map,
    error_map,
    score_map,
)
from simdformer.learn.plots.curves import activations, lines, roofline
from simdformer.learn.plots.interpret import (
    all_heads,
    attribution,
    patching,
    token_losses,
    trace_errors,
)
from simdformer.learn.plots.look import COLOURS, style
from simdformer.learn.plots.model import logit_lens, parameter_budget, residual_norms
from simdformer.learn.plots.rope import rope_bands, rope_circle, rope_turns
from simdformer.learn.plots.stages import attention_stages
from simdformer.learn.plots.training import loss_curve

__all__ = [
    "COLOURS",
    "activations",
    "all_heads",
    "attention_heads",
    "attention_map",
    "attention_stages",
    "attribution",
    "error_map",
    "lines",
    "logit_lens",
    "loss_curve",
    "parameter_budget",
    "patching",
    "residual_norms",
    "roofline",
    "rope_bands",
    "rope_circle",
    "rope_turns",
    "score_map",
    "style",
    "token_losses",
    "trace_errors",
]
__dir__ = __all__.copy  # what dir() and completion show
