"""Mistakes of the call itself: other libraries' names, what is missing, another order."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistake
from simdformer.learn.check.compare import compare

__all__ = ["SWAPPED", "refuse", "same_array"]

# Names of PyTorch, transformers and walkthroughs, and ours.
OTHERS = {
    "dim": "axis",
    "input": "x",
    "attn_bias": "attn_mask",
    "mask": "attn_mask",
    "base": "theta",
    "rope_theta": "theta",
    "position_ids": "positions",
    "variance_epsilon": "eps",
    "norm_eps": "eps",
    "rms_norm_eps": "eps",
    "n_rep": "n",
}
NOTHING = {"dropout_p": "nothing is dropped here", "inplace": "out= takes an array to write to"}
WHY = {
    "eps": "each model has its own, as norm_eps or rms_norm_eps in its config.json: 1e-5 in Llama, "
    "1e-6 in Qwen3",
    "layout": '"half" pairs element i with i + D/2, as checkpoints of Hugging Face do, and '
    '"interleaved" 2i with 2i + 1, as those of Meta do',
}
SWAPPED = Mistake(
    "call.swapped",
    "your result and the argument are swapped in the call of check",
    "What the operation gives for the array that is called `mine` is the array behind it.",
    "Your result comes first: sf.check(operation, mine, x).",
    "",
)


def refuse(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """A TypeError that says what was meant, for arguments that the operation does not have."""
    name = getattr(function, "__name__", type(function).__name__)
    parameters = inspect.signature(function).parameters
    for given in kwargs:
        if given in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            continue
        if given in NOTHING:
            raise TypeError(f"{name}: has no {given}, needs none: {NOTHING[given]}; leave it out")
        ours = OTHERS.get(given, given)
        found = get_close_matches(given, parameters, 1, cutoff=0.7)
        meant = f"; did you mean {found[0]}?" if found else ""
        if ours in parameters:
            meant = f"; here it is called {ours}"
        raise TypeError(f"{name}: has no {given}, needs one of {', '.join(parameters)}{meant}")
    taken = set(list(parameters)[: len(args)]) | set(kwargs)
    for missing, parameter in parameters.items():
        required = parameter.default is parameter.empty
        if required and missing not in taken and parameter.kind is parameter.KEYWORD_ONLY:
            why = f": {WHY[missing]}" if missing in WHY else ""
            raise TypeError(f"{name}: {missing} is missing, needs a value; give {missing}={why}")


def same_array(a: Any, b: Any, rtol: float, dtype: np.dtype[Any]) -> bool:
    """Whether two arrays are as good as equal."""
    return np.shape(a) == np.shape(b) and compare(np.asarray(a), np.asarray(b), rtol, dtype).ok
