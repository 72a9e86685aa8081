"""`simdformer.check`: is this array right, and if not, which mistake was made?"""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from simdformer.arguments import read_float_dtype
from simdformer.learn.catalogue import Mistake
from simdformer.learn.check.asking import as_named, by_our_names
from simdformer.learn.check.blas import one_thread
from simdformer.learn.check.compare import TOLERANCE, read_rtol
from simdformer.learn.check.constants import is_fitted
from simdformer.learn.check.judge import Check
from simdformer.learn.check.meant import (
    REFUSALS,
    in_another_order,
    meant,
    of_some_weights,
    same_result,
)
from simdformer.learn.check.operation import Call, as_array, bind, joined, takes
from simdformer.learn.check.optimizers import CALLED, as_function, as_results, nothing_changed
from simdformer.learn.check.report import Report, together
from simdformer.learn.check.search import Budget
from simdformer.learn.check.twice import answer, check_takes, gives_two, is_coarse
from simdformer.types import DTypeLike

__all__ = ["check"]

SECONDS = 3.0  # of work, after which no more mistakes are tried where no sample of the rows will do


@one_thread()
def check(
    op: Any,
    mine: Any,
    *args: Any,
    rtol: float | None = None,
    dtype: DTypeLike | None = None,
    **kwargs: Any,
) -> Report:
    """Is `mine` what this operation gives for these arguments, and if not, which mistake was made?

    Parameters
    ----------
    op : function, str or layer
        An operation of the package, `sf.rope` or its name, "rope": causal_mask, embedding, gelu,
        layer_norm, linear, relu, repeat_kv, rms_norm, rope, rope_frequencies,
        scaled_dot_product_attention, silu, softmax, swiglu, cross_entropy, log_softmax,
        linear_cross_entropy. A gradient,
        `sf.backward.rope` or "backward.rope": of cross_entropy, embedding, gelu, layer_norm,
        linear, log_softmax, relu, repeat_kv, rms_norm, rope, scaled_dot_product_attention, silu,
        softmax, swiglu. `sf.optim.adamw_`, `sf.optim.clip_grad_norm_`, `sf.optim.cosine_lr`. Or a
        layer made from `sf.nn.MLP`, Embedding, GroupedQueryAttention, LayerNorm, MixtureOfExperts,
        MultiHeadAttention, RMSNorm or TransformerBlock.
    mine : array, a tuple or list of arrays, a dict, or a function
        Your result: a numpy array, a list, or a tensor of torch or another library, on the CPU. A
        tuple or list of them where the call has several results (`return_weights=True`, a list of
        weights). Gradients of several arguments may be a dict by their names, too, a tuple with
        None for those that you leave out, or the only one of its shape. For `sf.optim.adamw_` it is
        the weight after the last step, with the moments or without; gradient may be a list of those
        of several steps, and a function of yours makes one of them, in place or not. A function is
        called with the same arguments, twice: two answers for one call (dropout left on) and
        changed arguments are mistakes too. Where only 16 bits would make its result right, it is
        called with slightly other arrays, to see whether it computes in them.
    *args, **kwargs
        The arguments of the call that you meant to make: `sf.check(sf.rope, mine, q,
        layout="half")`. They are checked as the operation itself checks them.
    rtol : float, optional
        How large an error may be, relative to the root mean square of its row (what lies along the
        last axis). Without it: 1e-4, where float32 is the coarsest dtype among inputs and `mine`,
        1e-9 for float64, 5e-3 for float16, 4e-2 for bfloat16; 3e-4 beside a quantised weight, where
        `linear` rounds x to 16 bits; and what rounding every step of this call may do, measured.
        An error that rounding to a coarser dtype explains is right, with a remark that names it,
        if float32 is that dtype, or one of 16 bits that takes part; else it is nearly right.
    dtype : dtype, optional
        In which your code computes, where no array shows it, such as bfloat16 under autocast. (It
        is `embedding`'s own argument too.) A function is tried out.

    Returns
    -------
    Report
        True when the result is right, not when it is only nearly right. `.diagnosis` names the
        mistakes that give exactly this array, with cause and fix; it is empty when none of those
        that are known does, and then `.observations` say what can be said. See `Report`.

    Raises
    ------
    TypeError
        op is nothing that can be checked; `mine` holds no numbers, or another number of results
        than the call has; dtype is no float dtype; `out` is given.
    ValueError
        rtol is negative, or no number.
    ValueError, TypeError, IndexError, BufferError
        What the operation itself raises for these arguments.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> x = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
    >>> mine = np.exp(x) / np.exp(x).sum(axis=0, keepdims=True)
    >>> report = sf.check(sf.softmax, mine, x)
    >>> report.ok
    False
    >>> report.diagnosis[0].title
    'the softmax runs over another axis'
    """
    rtol = read_rtol("check", rtol)
    declared = None if dtype is None else read_float_dtype("check", "dtype", dtype)
    if declared is not None and takes(op, "dtype"):
        kwargs["dtype"] = declared
    try:
        one_args, one_kwargs = joined(op, args, kwargs)
        call = bind(op, one_args, one_kwargs)
    except REFUSALS as error:
        if said := in_another_order(error, op, mine, args, kwargs):
            raise type(error)(said) from None
        raise
    impure: tuple[Mistake, ...] = ()
    function = None
    if callable(mine) and not hasattr(mine, "__dlpack__"):
        function = as_function(call.operation, mine)
        check_takes(mine, function, call.operation, args, kwargs)
        mine, impure = answer(function, args, kwargs)

    def in_16_bits() -> bool:
        if declared is not None:
            return declared.itemsize == 2
        if function is None or gives_two(impure):  # which looks like jumps
            return False
        return is_coarse(function, args, kwargs)

    coarse = cache(in_16_bits)
    mine = as_results(call.operation, mine, call)
    if one_args is not args and isinstance(mine, Mapping | tuple | list):
        mine = in_one(mine)
    if more := not_asked_for(mine, call):
        needs = (*call.variables["needs"], *more)
        call = bind(op, one_args, {**one_kwargs, "needs": needs})
    if call.names:
        budget = Budget()
        until = time.thread_time() + SECONDS if call.is_whole else float("inf")
        asked = {
            call.names[i]: Check(
                replace(call, only=i),
                [as_numbers(x)],
                rtol,
                in_16_bits=coarse,
                budget=budget,
                until=until,
                typed=has_dtype(x),
            )
            for i, x in gradients(mine, call).items()
        }
        judged = agreed({name: one.report() for name, one in asked.items()}, asked)
        judged = exchanged(judged, asked, call)
        of_several = one_args is not args and "x" in judged and not judged["x"].ok
        if of_several and (some := of_some_weights(call, args, kwargs, asked["x"].mine[0])):
            judged["x"] = explained(judged["x"], some)
        given = {name: one.mine[0] for name, one in asked.items()}
        judged |= {
            name: explained(judged[name], found)
            for name, found in otherwise(call, judged, given, function is not None).items()
        }
        there = zip(call.names, call.results, strict=True)
        left = [name for name, x in there if x is not None and name not in judged]
        report = together(call.name, judged, left, CALLED.get(call.operation, {}))
    else:
        arrays, typed = results(mine, call), has_dtype(mine)
        report = Check(call, arrays, rtol, in_16_bits=coarse, typed=typed).report()
        if not (report.ok or report.explanations):
            by_number = dict(enumerate(arrays))
            if found := meant(call, by_number, by_number.keys(), function is not None):
                report = explained(report, found)
    if impure:
        reasons = tuple((mistake,) for mistake in impure)
        report = replace(
            report, ok=False, explanations=reasons, observations=(), nearly="", parts=()
        )
        if gives_two(impure):  # rounding does not explain how they differ
            report = replace(report, remarks=())
    return report


def in_one(mine: Any) -> Any:
    """Gradients of which some are lists, one array for each weight, as one array each."""

    def whole(x: Any) -> Any:
        return np.concatenate([*map(as_array, x)]) if isinstance(x, list | tuple) else x

    if isinstance(mine, Mapping):
        return {name: whole(x) for name, x in mine.items()}
    return tuple(map(whole, mine))


def explained(report: Report, mistake: Mistake) -> Report:
    """With this mistake for its explanation."""
    return replace(report, explanations=((mistake,),), observations=(), nearly="")


def otherwise(
    call: Call, reports: Mapping[str, Report], mine: Mapping[str, Any], is_function: bool
) -> dict[str, Mistake]:
    """What explains wrong results, by name, where no mistake in the operation does."""
    wrong = {name for name, report in reports.items() if not report.ok}
    if found := nothing_changed(call, mine, wrong, is_function):
        return found
    if not wrong or any(reports[name].explanations for name in wrong):
        return {}
    number = call.names.index
    arrays = {number(name): x for name, x in mine.items()}
    one = meant(call, arrays, {*map(number, wrong)}, is_function)
    return dict.fromkeys(wrong, one) if one else {}


def agreed(reports: dict[str, Report], asked: Mapping[str, Check]) -> dict[str, Report]:
    """What explains all of them is said of each that is wrong. Else the explanations of a gradient
    are kept that explain the others, too, or leave them alone."""

    def explains(group: tuple[Mistake, ...]) -> bool:
        return all(
            asked[name].agrees_with(group, report.right)
            if report.ok
            else asked[name].has_made(group)
            if report.right is not None
            else group in report.explanations
            for name, report in reports.items()
            if report.right is not None or not report.ok
        )

    def agrees(group: tuple[Mistake, ...]) -> bool:
        return all(
            asked[name].agrees_with(group, report.right)
            for name, report in reports.items()
            if report.right is not None
        )

    def contradicts(group: tuple[Mistake, ...]) -> bool:
        """Whether an array that is wrong, and has no explanation, is not what it gives."""
        return any(
            not (report.ok or report.explanations or asked[name].agrees_with(group, report.right))
            for name, report in reports.items()
            if report.right is not None
        )

    def is_chance(group: tuple[Mistake, ...], mine: Any) -> bool:
        """One number is easily fitted to one gradient, and many mistakes give zeros."""
        if not np.any(mine):
            return not agrees(group)
        return is_fitted(group) and contradicts(group)

    def leaves(group: tuple[Mistake, ...]) -> bool:
        """Whether all that is right would be right with it, too."""
        return all(
            asked[name].has_made(group, [report.right])
            for name, report in reports.items()
            if report.ok and report.right is not None
        )

    for name, report in reports.items():
        one, right = asked[name], report.right
        left = tuple(group for group in report.explanations if not is_chance(group, one.mine[0]))
        if right is not None and left:
            # What is made on the way to all of them would show in those that are right.
            fitted = all(map(is_fitted, left))
            plain = one.by_itself(right) if fitted else one.done_to_one([right])
            likely = tuple(filter(leaves, left)) or plain
            left = likely or tuple(group for group in left if len(group) == 1)
        if left != report.explanations:
            seen = () if left or right is None else tuple(one.describe(0, right))
            reports[name] = replace(report, explanations=left, observations=seen)
    several = sum(not report.ok for report in reports.values()) > 1
    found = dict.fromkeys(group for report in reports.values() for group in report.explanations)
    shared = tuple(group for group in found if explains(group)) if several else ()
    for name, report in reports.items():
        if shared and not report.ok:
            reports[name] = replace(report, explanations=shared, observations=(), nearly="")
        elif len(report.explanations) > 1 and (left := tuple(filter(agrees, report.explanations))):
            reports[name] = replace(report, explanations=left)
    return reports


def exchanged(
    reports: dict[str, Report], asked: Mapping[str, Check], call: Call
) -> dict[str, Report]:
    """Says of a wrong result that it is the right one of another argument."""
    mine = {name: one.mine[0] for name, one in asked.items()}
    results = dict(zip(call.names, call.results, strict=True))

    def same(a: str, b: str) -> bool:
        there = results.get(b)
        return there is not None and same_result(mine[a], there, call)

    for name, report in reports.items():
        for other in () if report.ok else call.names:
            both = other in mine and same(other, name)
            if other == name or not same(name, other) or (report.explanations and not both):
                continue
            two = [one for one in call.names if one in (name, other)]
            found = Mistake(
                "gradient.of_another",
                f"{two[0]} and {two[1]} are swapped" if both else f"this is {other}, not {name}",
                "The results stand in another order.",
                f"The order is {', '.join(call.names)}; a dict by name needs none.",
                "",
            )
            if all("swapped" not in one.name for group in report.explanations for one in group):
                reports[name] = explained(report, found)
    return reports


def not_asked_for(mine: Any, call: Call) -> list[str]:
    """Gradients that the learner has though the call names only others in `needs`: those of a mask
    or of sinks."""
    if "needs" not in call.variables:
        return []
    results = dict(zip(call.names, call.results, strict=True))
    return [
        name
        for name, gradient in as_named(mine, call.names).items()
        if gradient is not None
        and results.get(name, gradient) is None
        and call.variables.get(name) is not None
    ]


def results(mine: Any, call: Call) -> list[Any]:
    """The learner's results as arrays, as many as the call has."""
    count = len(call.results)
    if call.name == "rope_frequencies" and not isinstance(mine, tuple | list):
        mine = (mine, call.results[1])  # the frequencies alone will do
    if call.several:
        if not isinstance(mine, tuple | list) or len(mine) != count:
            found = len(mine) if isinstance(mine, tuple | list) else type(mine).__name__
            raise TypeError(
                f"check: mine is {found}, needs a tuple or list of {count} results, in the order "
                f"in which {call.name} gives them"
            )
        return [as_numbers(x) for x in mine]
    if isinstance(mine, tuple | Mapping) and len(mine) == 1:  # a dict of gradients with one entry
        (mine,) = mine.values() if isinstance(mine, Mapping) else mine
    if isinstance(mine, tuple) and any(np.ndim(as_array(x)) for x in mine):
        raise TypeError(
            f"check: mine is a tuple of {len(mine)}, needs one array: this call has one result; "
            "pass the part that is meant"
        )
    return [as_numbers(mine)]


def gradients(mine: Any, call: Call) -> dict[int, Any]:
    """The learner's gradients, by the number of the result that each of them is."""
    names, several = call.names, "gradients" if call.name.startswith("backward.") else "results"
    if isinstance(mine, Mapping):
        mine = by_our_names(mine, names)
        if others := [name for name in mine if name not in names]:
            raise TypeError(
                f"check: mine has {others[0]!r}, needs one of {', '.join(names)}; rename it"
            )
        mine = tuple(mine.get(name) for name in names)
    if not isinstance(mine, tuple | list):
        mine = alone(mine, call)
    if len(mine) > len(names) or all(x is None for x in mine):
        raise TypeError(
            f"check: mine is no set of {several}, needs those of {', '.join(names)}; pass a tuple "
            "in this order with None for what you leave out, or a dict by these names"
        )
    found = {i: x for i, x in enumerate(mine) if x is not None}
    if nothing := [names[i] for i in found if call.results[i] is None]:
        raise TypeError(
            f"check: mine has a gradient of {nothing[0]}, needs None: this call has none; give "
            f"{nothing[0]} or leave its gradient out"
        )
    return found


def alone(mine: Any, call: Call) -> tuple[Any, ...]:
    """One array as a set of gradients: the only one there is, or the only one of its shape."""
    some = [i for i, x in enumerate(call.results) if x is not None]
    alike = [i for i in some if np.shape(call.results[i]) == np.shape(as_array(mine))]
    if len(some) == 1 or len(alike) == 1:
        meant = (some if len(some) == 1 else alike)[0]
        return tuple(mine if i == meant else None for i in range(len(call.results)))
    if len(alike) > 1:
        which = [call.names[i] for i in alike]
        raise TypeError(
            f"check: mine is one array, which may be that of {' or '.join(which)}; pass a dict, "
            f"{{{which[0]!r}: ...}}"
        )
    return ()


def has_dtype(mine: Any) -> bool:
    """Whether anything in it has one: a number of Python's, and a list of those, has none."""
    if isinstance(mine, list | tuple):
        return any(map(has_dtype, mine))
    return hasattr(mine, "dtype") or hasattr(mine, "__dlpack__")


def as_numbers(mine: Any) -> Any:
    if mine is None:
        raise TypeError("check: mine is None, needs an array; does your function end with return?")
    if mine is ...:
        raise TypeError("check: mine is `...`, needs an array; write your code in its place")
    try:
        x = np.asarray(as_array(mine))
    except ValueError as error:
        raise TypeError(f"check: mine is no array of numbers: {error}") from None
    if x.dtype not in TOLERANCE and x.dtype.kind not in "biufc":
        raise TypeError(
            f"check: mine is {type(mine).__name__} of dtype {x.dtype}, needs an array of numbers"
        )
    if x.dtype.kind == "c":
        raise TypeError(
            "check: mine is complex, needs real numbers; np.stack([z.real, z.imag], axis=-1) "
            "takes pairs apart"
        )
    return x if x.dtype in TOLERANCE or x.dtype == bool else x.astype(np.float64)
