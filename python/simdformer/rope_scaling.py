"""rope_frequencies: the frequencies of RoPE, and how long-context models stretch them.

The arithmetic is float64 numpy in `simdformer.reference`; here a config's dict is checked first,
because whoever wrote it is far away and a key that is passed over in silence changes every token.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from simdformer import reference
from simdformer.arguments import read_whole, shown
from simdformer.reference import RopeFrequencies

__all__ = ["rope_frequencies"]

# What a type needs, and what else it may have.
_NEEDED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings", "factor"),
    "divided": ("divisors",),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "longrope": ("attention_factor",),
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
}
_MINIMUM = {"factor": 1.0, "mscale": 0.0, "mscale_all_dim": 0.0}  # of the others: more than 0
_REFUSED = {
    "dynamic": "depends on the length of each call, so that no one set of frequencies exists",
    "mrope": "has positions in three dimensions",
}
_LISTS = ("divisors", "short_factor", "long_factor")  # a number for each frequency
_MOST = 1 << 24  # of head_dim: what no model comes near, and what memory holds without notice
_NO_MEANING_HERE = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned")


def rope_frequencies(
    head_dim: int,
    *,
    theta: float,
    scaling: Mapping[str, Any] | None = None,
    length: int | None = None,
) -> RopeFrequencies:
    """The frequencies theta^(-2i/D) of RoPE, stretched as a long-context model's config says.

    Parameters
    ----------
    head_dim : int
        D, even; for a model that rotates only a part of each head, that part (its rotary_dim).
    theta : float
        The config's rope_theta: 10000 in Llama 2, 500000 in Llama 3, 1e6 in Qwen3.
    scaling : dict, optional
        The rope_scaling (or rope_parameters) of a Hugging Face config, with its "rope_type" or
        "type": "default"; "linear" (factor); "llama3" (factor, low_freq_factor, high_freq_factor,
        original_max_position_embeddings) of Llama 3.1; "yarn" (factor,
        original_max_position_embeddings; attention_factor, beta_fast, beta_slow, mscale,
        mscale_all_dim, truncate) of Qwen and DeepSeek; "longrope" (short_factor, long_factor,
        original_max_position_embeddings, factor; attention_factor) of Phi-3: D/2 divisors for short
        texts and D/2 for long ones, where configs that say no factor mean max_position_embeddings /
        original_max_position_embeddings. And "divided" (divisors), which no such config has: D/2
        numbers > 0, one for each frequency, as GGUF files hold them.
    length : int, optional
        How many positions the text has: with "longrope" it decides. None: a short one.

    Returns
    -------
    A named tuple (inv_freq, attention_factor) for `rope`: (D/2,) float64 and a float.

    TypeError: kinds. ValueError: a head_dim that is odd or above 2**24, theta not > 0, a key that
    is missing, unknown or out of range, and the type that cannot be had as one set of frequencies
    ("dynamic").

    >>> import simdformer as sf
    >>> sf.rope_frequencies(8, theta=10000.0).inv_freq
    array([1.   , 0.1  , 0.01 , 0.001])
    >>> scaling = {"rope_type": "linear", "factor": 4.0}
    >>> sf.rope_frequencies(8, theta=10000.0, scaling=scaling).inv_freq
    array([0.25   , 0.025  , 0.0025 , 0.00025])
    """
    dim = _head_dim(head_dim)
    base = _number("theta", theta)
    if length is not None:
        length = read_whole("rope_frequencies", "length", length)
    if scaling is None:
        return reference.rope_frequencies(dim, theta=base)
    checked = _checked(scaling, base, dim)
    return reference.rope_frequencies(dim, theta=base, scaling=checked, length=length)


def _head_dim(head_dim: Any) -> int:
    try:
        dim = None if isinstance(head_dim, bool) else operator.index(head_dim)
    except TypeError:
        dim = None
    if dim is None:
        raise TypeError(
            f"rope_frequencies: head_dim is of type {type(head_dim).__name__}, needs an integer"
        )
    if dim < 2 or dim % 2:
        raise ValueError(f"rope_frequencies: head_dim is {shown(dim)}, needs an even number >= 2")
    if dim > _MOST:
        raise ValueError(f"rope_frequencies: head_dim is {shown(dim)}, needs at most {_MOST}")
    return dim


def _number(name: str, value: Any, *, minimum: float | None = None) -> float:
    """A finite number > 0, or >= minimum."""
    needed = "a finite number " + ("> 0" if minimum is None else f">= {minimum:g}")
    try:
        number = float("nan") if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if math.isnan(number) and not isinstance(value, float):
        raise TypeError(
            f"rope_frequencies: {name} is of type {type(value).__name__}, needs {needed}"
        )
    in_range = number > 0 if minimum is None else number >= minimum
    if not (in_range and math.isfinite(number)):
        raise ValueError(f"rope_frequencies: {name} is {value!r:.60}, needs {needed}")
    return number


def _checked(scaling: Any, theta: float, dim: int) -> dict[str, Any]:
    """The entries that the type reads, as numbers."""
    if not isinstance(scaling, Mapping):
        raise TypeError(
            f"rope_frequencies: scaling is of type {type(scaling).__name__}, "
            "needs a dict as in Hugging Face configs, or None"
        )
    kind = _kind(scaling)
    known = (*_NEEDED[kind], *_OPTIONAL.get(kind, ()))
    if missing := [name for name in _NEEDED[kind] if scaling.get(name) is None]:
        raise ValueError(
            f'rope_frequencies: scaling of type "{kind}" has no {", ".join(missing)}, '
            f"needs {', '.join(_NEEDED[kind])}"
        )
    if unknown := [name for name in scaling if name not in known and name not in _NO_MEANING_HERE]:
        raise ValueError(
            f'rope_frequencies: scaling of type "{kind}" has {", ".join(map(_key, unknown[:8]))}, '
            f"needs {'nothing' if not known else 'no other keys than ' + ', '.join(known)}; "
            "take out what has no meaning for it"
        )
    if kind == "yarn" and theta <= 1:
        raise ValueError(
            f'rope_frequencies: theta is {theta!r}, needs a number > 1 for scaling of type "yarn"'
        )
    given = scaling.get("rope_theta")
    if given is not None and _number("scaling['rope_theta']", given) != theta:
        raise ValueError(
            f"rope_frequencies: scaling['rope_theta'] is {given!r:.60}, needs to be theta, "
            f"{theta!r}"
        )
    part = scaling.get("partial_rotary_factor")
    if part is not None and part != 1:
        raise ValueError(
            f"rope_frequencies: scaling['partial_rotary_factor'] is {part!r:.60}, needs to be "
            "1 or left out; give the number of elements that are turned as head_dim"
        )
    checked: dict[str, Any] = {"rope_type": kind}
    for name in known:
        value = scaling.get(name)
        if name == "truncate":
            checked[name] = _flag(value)
        elif name in _LISTS:
            checked[name] = _divisors(name, value, dim // 2)
        elif value is not None:
            checked[name] = _number(f"scaling[{name!r}]", value, minimum=_MINIMUM.get(name))
    if kind == "llama3" and checked["high_freq_factor"] <= checked["low_freq_factor"]:
        raise ValueError(
            f"rope_frequencies: scaling['high_freq_factor'] is {checked['high_freq_factor']:g}, "
            f"needs more than low_freq_factor, {checked['low_freq_factor']:g}"
        )
    return checked


def _divisors(name: str, values: Any, count: int) -> list[float]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError(
            f"rope_frequencies: scaling[{name!r}] is of type {type(values).__name__}, "
            f"needs a list of {count} numbers > 0"
        )
    if len(values) != count:
        raise ValueError(
            f"rope_frequencies: scaling[{name!r}] are {len(values)} numbers, needs {count}, one "
            "for each pair of a head"
        )
    return [_number(f"scaling[{name!r}][{at}]", value) for at, value in enumerate(values)]


def _key(name: Any) -> str:
    """A key that a stranger wrote, in one short line."""
    return f"{name if str(name).isidentifier() else repr(name):.60}"


def _kind(scaling: Mapping[str, Any]) -> str:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if isinstance(kind, str) and kind in _NEEDED:
        return kind
    why = _REFUSED.get(kind) if isinstance(kind, str) else None
    raise ValueError(
        f"rope_frequencies: scaling is of type {kind!r:.60}, needs one of "
        + ", ".join(_NEEDED)
        + (f"; {kind} {why}" if why else "")
    )


def _flag(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, bool):
        raise TypeError(
            f"rope_frequencies: scaling['truncate'] is of type {type(value).__name__}, "
            "needs True or False"
        )
    return value
