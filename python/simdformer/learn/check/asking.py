"""Mistakes of the call itself: other libraries' names, what is missing, another order."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

__all__ = ["as_named", "by_our_names", "nearest", "refuse"]

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
RESULTS = {  # what learners call results and gradients, and which of ours that may be
    "w": ("weight",),
    "kernel": ("weight",),
    "param": ("weight",),
    **dict.fromkeys(("input", "inp", "h", "hidden_states"), ("x",)),
    **dict.fromkeys(("gate_proj", "w1", "a"), ("gate",)),
    **dict.fromkeys(("up_proj", "w3"), ("up",)),
    "g": ("weight", "gate"),
    "gamma": ("weight",),
    "b": ("bias", "up"),
    "beta": ("bias",),
    "u": ("up",),
    "q": ("query",),
    "k": ("key",),
    "v": ("value", "exp_avg_sq"),
    "m": ("exp_avg",),
    **dict.fromkeys(("mask", "bias", "attn_bias"), ("attn_mask",)),
    "sink": ("sinks",),
}
WHY = {
    "out": "the forward's result; out, lse = sf.scaled_dot_product_attention(..., return_lse=True)",
    "eps": "each model has its own, as norm_eps or rms_norm_eps in its config.json: 1e-5 in Llama, "
    "1e-6 in Qwen3",
    "layout": '"half" pairs element i with i + D/2, as checkpoints of Hugging Face do, and '
    '"interleaved" 2i with 2i + 1, as those of Meta do',
}


def refuse(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """A TypeError that says what was meant, for arguments that the operation does not have."""
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
    in_order = [one for one, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) > len(in_order) and not any(
        p.kind is p.VAR_POSITIONAL for p in parameters.values()
    ):
        raise TypeError(
            f"{name}: has {len(args)} arguments without a name, needs at most {len(in_order)}: "
            f"{', '.join(in_order)}; give the others as name=value"
        )
    taken = {*in_order[: len(args)], *kwargs}
    for missing, p in parameters.items():
        if p.default is p.empty and missing not in taken and p.kind in (
            p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY
        ):  # fmt: skip
            why = f": {WHY[missing]}" if missing in WHY else ""
            how = f"{missing}=" if p.kind is p.KEYWORD_ONLY else missing
            raise TypeError(f"{name}: {missing} is missing, needs a value; give {how}{why}")


def by_our_names(given: Mapping[Any, Any], names: Iterable[str]) -> dict[Any, Any]:
    """A learner's results by our names: dW and grad_w are those of weight, where there is one. What
    is called otherwise stays as it is."""
    known, found, first = [*names], dict[Any, Any](), dict[Any, Any]()
    for called, x in given.items():
        short = re.sub(r"^(grad_|d_?)|[_.]grad$", "", str(called), flags=re.I).lower()
        meant = [name for name in (short, *RESULTS.get(short, ())) if name in known]
        name = called if called in known or len(meant) != 1 else meant[0]
        if name in found:
            raise TypeError(
                f"check: mine has {first[name]!r} and {called!r}, needs one {name}; leave one out"
            )
        found[name], first[name] = x, called
    return found


def as_named(mine: Any, names: Iterable[str]) -> dict[Any, Any]:
    """A learner's results by our names, where he has several: a tuple or list has them in order."""
    if isinstance(mine, Mapping):
        return by_our_names(mine, names)
    return dict(zip(names, mine, strict=False)) if isinstance(mine, list | tuple) else {}


def nearest(wanted: str, names: Iterable[str]) -> list[str]:
    """Up to three names that are like one of another library, as silu_backward or LayerNormGrad."""
    known = {name: name.rpartition(".")[2].strip("_").lower() for name in names}
    short = re.sub(r"_?(backward|grad|_)$", "", wanted.rpartition(".")[2], flags=re.I).lower()
    near = get_close_matches(short, {*known.values()}, 3, cutoff=0.6) if short else []
    inside = [one for one in known.values() if len(short) > 3 and (short in one or one in short)]
    ranks = list(dict.fromkeys([short, *near, *inside]))
    found = sorted((x for x in known if known[x] in ranks), key=lambda x: ranks.index(known[x]))
    if re.search("backward|grad", wanted, re.I):
        found.sort(key=lambda x: not x.startswith("backward."))
    return found[:3]
