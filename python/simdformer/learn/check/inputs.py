"""What a wrong result is made of in place of the arguments: other labels, memory read in order."""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistake
from simdformer.learn.check.compare import Float64, numbers
from simdformer.learn.program import STEPS, Step

__all__ = ["labels_of", "of_other_labels", "read_in_memory"]

OWN_IDS = (
    "Each row is compared with its own input token, the ids without a shift, or the labels were "
    "shifted in the other direction."
)
FAR = 3  # places that labels are looked for before and behind
SOME = 3  # labels that agree, at least


# ---- views ---------------------------------------------------------------------------------------


def read_in_memory(
    variables: Mapping[str, Any], gives: Callable[[dict[str, Any]], bool]
) -> Mistake | None:
    """Whether arrays that do not lie in memory in the order of their axes were read as if they did.

    gives : whether other arrays in place of these give the results
    """
    views = {name: x for name, given in variables.items() if (x := in_memory(given)) is not None}
    for count in dict.fromkeys((1, len(views))):
        for names in combinations(views, count):
            if names and gives({name: views[name] for name in names}):
                both = " and ".join(names)
                return Mistake(
                    "call.strides_ignored",
                    f"the strides of {both} are ignored: the memory was read in order",
                    "A view, such as x.T or x[..., ::2], does not lie in memory in the order of "
                    "its axes: a loop over its pointer meets other numbers.",
                    "Take a copy first, np.ascontiguousarray(x) or x.contiguous(), or step by the "
                    "strides.",
                    "",
                )
    return None


def in_memory(x: Any) -> Any:
    """The numbers that lie where an array begins; None for an array that has them itself."""
    if not isinstance(x, np.ndarray) or x.ndim < 2 or x.flags.c_contiguous or x.size == 0:
        return None
    along = [(n, step) for n, step in zip(x.shape, x.strides, strict=True) if n > 1]
    reach = sum((n - 1) * step for n, step in along) + x.itemsize
    if any(step <= 0 for _, step in along) or reach < x.nbytes:
        return None  # some of them lie outside of the array
    steps = np.cumprod([x.itemsize, *x.shape[:0:-1]])[::-1]
    return np.lib.stride_tricks.as_strided(x, x.shape, tuple(map(int, steps)), writeable=False)


# ---- labels --------------------------------------------------------------------------------------


def labels_of(variables: Mapping[str, Any], mine: Any) -> Any:
    """The labels that a gradient of the cross entropy was made with, of logits (...,V) or of x
    (...,E) beside weight (V,E), or the loss of each row; None where that does not show. Rows of
    zeros are ignored."""
    of_logits = "logits" in variables
    x = numbers(np.asarray(variables["logits" if of_logits else "x"]))
    is_loss = of_logits and np.shape(mine) == x.shape[:-1] != ()
    if x.ndim < 2 or not (is_loss or np.shape(mine) == x.shape):
        return None
    w = None if of_logits else numbers(np.asarray(variables["weight"]))
    rows = x.reshape(-1, x.shape[-1])
    z = rows if w is None else rows @ w.T
    cap, smooth = variables["softcap"], variables["label_smoothing"]
    z = z if cap is None else cap * np.tanh(z / cap)
    slope = np.ones_like(z) if cap is None else 1 - (z / cap) ** 2
    if z.shape[-1] < 3:
        return None
    highest = z.max(axis=-1, keepdims=True)
    lse = highest + np.log(np.exp(z - highest).sum(axis=-1, keepdims=True))
    found = numbers(np.asarray(mine)).reshape(len(rows), 1 if is_loss else x.shape[-1])
    if is_loss:
        plain = (1 - smooth) * (lse - z) + smooth * (lse - z.mean(axis=-1, keepdims=True))
        fit = -np.abs(plain + variables["z_loss"] * np.square(lse) - found)
    else:
        own = (1 - smooth) * slope
        others = np.exp(z - lse) * (1 + 2 * variables["z_loss"] * lse) - smooth / z.shape[-1]
        others = others * slope
        fit = of_columns(found, others) if w is None else of_rows(found, others, own, w)
    label = np.where(found.any(axis=-1), np.argmax(fit, axis=-1), variables["ignore_index"])
    return label.reshape(x.shape[:-1]) if np.isfinite(fit).all() else None


def of_columns(mine: Float64, others: Float64) -> Float64:
    """How far below the others' factor each column is; all but the label's have the same."""
    with np.errstate(all="ignore"):
        factor = np.nanmedian(np.where(others == 0, np.nan, mine / others), axis=-1, keepdims=True)
    below: Float64 = np.sign(factor) * (factor * others - mine)
    return below


def of_rows(mine: Float64, others: Float64, own: Float64, w: Float64) -> Float64:
    """How well some factor brings the gradient that x would have with each label to this one."""
    of_others = others @ w
    along = (mine * of_others).sum(axis=-1, keepdims=True) - own * (mine @ w.T)
    squares = np.square(of_others).sum(axis=-1, keepdims=True) - 2 * own * (of_others @ w.T)
    squares = squares + np.square(own) * np.square(w).sum(axis=-1)
    fit: Float64 = np.abs(along) / np.sqrt(np.maximum(squares, np.finfo(float).tiny))
    return fit


def of_other_labels(name: str, variables: Mapping[str, Any], found: Any) -> Mistake | None:
    """A mistake that puts these labels in place of those of the call; None if they are the same.

    name : of the program
    """
    label, ignored = np.asarray(variables["labels"]), variables["ignore_index"]
    counts = (label != ignored) & (found != ignored)
    differ = int((label != found)[counts].sum())
    if not differ:
        return None
    first = f"{name}.inputs"

    def with_these(s: Any) -> None:
        s.labels = found
        right(s)

    right: Step = STEPS[first]
    said = next(pattern(label, found, ignored, variables), None)
    title, cause = said or (
        f"{differ} of {int(counts.sum())} rows are compared with other labels than the call's",
        "The labels were taken from another array, or in another order.",
    )
    return Mistake(
        f"{name}.other_labels",
        title,
        cause,
        "Row t is compared with the token that comes next; shift once, where the labels are made.",
        "08 §3",
        {first: with_these},
    )


def pattern(
    label: Any, found: Any, ignored: int, variables: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """What labels have to do with those of the call, and how one comes to that."""

    def alike(a: Any, b: Any) -> bool:
        both = (a != ignored) & (b != ignored)
        return int(both.sum()) >= SOME and bool((a[both] == b[both]).all())

    flat, other = label.ravel(), found.ravel()
    for by in range(1, FAR + 1):
        before = "the position before" if by == 1 else f"{by} positions before"
        after = "the next position" if by == 1 else f"{by} positions after"
        for a, b in ((label, found), (flat, other)):
            if a.shape[-1] <= by:
                continue
            if alike(a[..., :-by], b[..., by:]):
                yield (
                    f"the labels are those of {before}",
                    OWN_IDS,
                )
            if alike(a[..., by:], b[..., :-by]):
                yield (
                    f"the labels are those of {after}: they are shifted once more",
                    "Data and model both shift: two tokens ahead is learnt.",
                )
    for by, what in ((1, "high"), (-1, "low")):
        if alike(label + by, found):
            yield f"every label is one too {what}", "Tokens count from 0."
    if label.ndim > 1 and alike(label.T.ravel(), other):
        yield (
            "labels and logits are flattened in different orders: axes are swapped",
            "A transpose before the reshape of one of the two.",
        )
    if alike(label[..., ::-1], found):
        yield "the labels are in reverse order", "They were reversed, [::-1]."
    if label.ndim > 1 and len(label) > 1:
        for by in (1, -1):
            if alike(np.roll(label, by, axis=0), found):
                yield "the labels are those of another sequence", "The batch was rolled or sorted."
    if alike(np.broadcast_to(flat[0], label.shape), found):
        yield "every row has the first row's label", "An index 0 where each row has its own."
    if "logits" in variables:
        best = np.argmax(np.asarray(variables["logits"]), axis=-1)
        if alike(best, found):
            yield (
                "the label of each row is its largest logit",
                "argmax is what the model would say, not what it should.",
            )
