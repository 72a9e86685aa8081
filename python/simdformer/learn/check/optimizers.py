"""A learner's optimizer, clipping, schedule or loss with gradients: called step by step, in place
or not, and what it leaves behind as the results of a call."""

import copy
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from simdformer import loss, optim
from simdformer.learn.catalogue import Mistake
from simdformer.learn.check.asking import by_our_names
from simdformer.learn.check.operation import Call, as_array
from simdformer.learn.mistakes.optimizers import arrays_of, steps_of

__all__ = ["CALLED", "as_function", "as_results", "nothing_changed"]

STATE = ("weight", "exp_avg", "exp_avg_sq")
LISTED = (list, tuple)
LOSS_AND_GRADIENTS = {3: ("loss", "x", "weight"), 4: loss.LossAndGradients._fields}
# What reports call a result that is judged by something else.
CALLED = {optim.adamw_: {"weight": "change of weight"}}


# ---- functions -----------------------------------------------------------------------------------


def as_function(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The learner's function of one step as one of all steps, which changes no argument."""
    wrap = {
        optim.adamw_: by_steps,
        optim.clip_grad_norm_: of_copies,
        optim.cosine_lr: of_each_step,
    }.get(op)
    return function if wrap is None else wrap(function)


def by_steps(function: Callable[..., Any]) -> Callable[..., Any]:
    """It may change weight and moments, or return the new ones."""

    def mine(
        weight: Any, gradient: Any, exp_avg: Any, exp_avg_sq: Any, *, step: int, **kwargs: Any
    ) -> Any:
        state = [copy.deepcopy(x) for x in (weight, exp_avg, exp_avg_sq)]
        for number, one in enumerate(steps_of(gradient)):
            w, m, v = state
            given = function(w, copy.deepcopy(one), m, v, step=step + number, **kwargs)
            if isinstance(given, Mapping):
                given = [by_our_names(given, STATE).get(name) for name in STATE]
            if given is not None:
                given = [*given] if isinstance(given, LISTED) else [given]
                given += [None] * (len(state) - len(given))
                state = [old if new is None else new for new, old in zip(given, state, strict=True)]
        return dict(zip(STATE, state, strict=True))

    return mine


def of_copies(function: Callable[..., Any]) -> Callable[..., Any]:
    """It may change the gradients, or return new ones, with their norm or without."""

    def mine(gradients: Any, *args: Any, **kwargs: Any) -> Any:
        after = copy.deepcopy(gradients)
        given = function(after, *args, **kwargs)
        if given is None:
            return {"gradients": after}
        if isinstance(given, (*LISTED, Mapping)) or np.ndim(as_array(given)):
            return given
        return {"norm": given, "gradients": after}

    return mine


def of_each_step(function: Callable[..., Any]) -> Callable[..., Any]:
    def mine(step: Any, *args: Any, **kwargs: Any) -> Any:
        each = [float(as_array(function(int(one), *args, **kwargs))) for one in np.ravel(step)]
        return np.reshape(each, np.shape(step))

    return mine


# ---- results -------------------------------------------------------------------------------------


def as_results(op: Any, mine: Any, call: Call) -> Any:
    """What a learner has after the call, by the names of the results."""
    if op is optim.adamw_:
        return state(mine, call)
    if op is optim.clip_grad_norm_:
        return clipped(mine, call)
    if op is loss.linear_cross_entropy:
        return without_count(mine)
    return mine


def state(mine: Any, call: Call) -> Any:
    """The weight after the last step, which becomes how far it has moved, and the moments."""
    if isinstance(mine, Mapping):
        found = by_our_names(mine, STATE)
    elif isinstance(mine, LISTED) and any(np.ndim(as_array(x)) for x in mine if x is not None):
        found = dict(zip(STATE, mine, strict=False))
    else:
        found = {"weight": mine}
    if found.get("weight") is not None:
        after, before = (
            np.asarray(as_array(x)) for x in (found["weight"], call.variables["weight"])
        )
        if after.shape == before.shape and after.dtype.kind not in "biucOUS":
            moved = after.astype(np.float64) - before.astype(np.float64)
            found["weight"] = moved.astype(after.dtype)
    return found


def nothing_changed(
    call: Call, mine: Mapping[str, Any], wrong: Set[str], is_function: bool
) -> dict[str, Mistake]:
    """That a wrong result is the argument as it was, for each that is, if the weight is one."""
    if call.operation is not optim.adamw_ or "weight" not in wrong or mine["weight"].any():
        return {}
    before = call.variables | {"weight": 0 * mine["weight"]}  # its change is judged
    same = {name for name in wrong if np.array_equal(mine[name], before[name])}
    cause = "The step was not taken, or its result was not kept."
    fix = "Give the weight that the last step has made."
    title = "the weight is that of before the step"
    if is_function:
        none = same == {*mine}
        title = f"your function {'changes nothing' if none else 'does not change the weight'}"
        cause = "w = w - ... gives a name to a new array: the caller's stays as it was."
        fix = "Write into the array, w -= ... or w[...] = ..., or return weight and moments."
    return dict.fromkeys(same, Mistake("optimizer.nothing_changed", title, cause, fix, ""))


def without_count(mine: Any) -> Any:
    """Loss, gradient of x, gradient of weight; or the loss alone, which the package gives in
    float64: that is no mark of a float64 on the way."""
    if isinstance(mine, LISTED):
        if len(mine) in LOSS_AND_GRADIENTS:
            mine = dict(zip(LOSS_AND_GRADIENTS[len(mine)], mine, strict=True))
    elif not isinstance(mine, Mapping) and np.ndim(as_array(mine)) == 0:
        mine = {"loss": mine}
    if not isinstance(mine, Mapping):
        return mine
    found = {name: as_array(x) for name, x in mine.items() if name != "count"}
    if getattr(found.get("loss"), "dtype", None) == np.float64 and np.size(found["loss"]) == 1:
        found["loss"] = found["loss"].item()
    return found


def own_names(mine: Mapping[str, Any], names: Sequence[str]) -> set[str]:
    """Which of a learner's names are those of arrays among the gradients that he was given: one of
    a layer may be called "norm"."""
    return {
        name for name in mine if f"gradients[{name!r}]" in names and np.ndim(as_array(mine[name]))
    }


def clipped(mine: Any, call: Call) -> Any:
    """The norm, the gradients, or both."""
    names = call.names[1:]
    own = own_names(mine, names) if isinstance(mine, Mapping) else set()
    if isinstance(mine, Mapping) and not own and {*mine} <= {*call.names}:
        return mine
    if isinstance(mine, LISTED) and len(mine) == 2 and not np.ndim(as_array(mine[0])):
        mine = {"norm": mine[0], "gradients": mine[1]}
    if isinstance(mine, Mapping) and not {"norm", "gradients"} & set(mine) - own:
        mine = {"gradients": mine}
    if not isinstance(mine, Mapping):
        many = isinstance(mine, LISTED) or np.ndim(as_array(mine)) > 0
        mine = {"gradients": mine} if many else {"norm": mine}
    found = {"norm": mine["norm"]} if "norm" in mine else {}
    if (gradients := mine.get("gradients")) is not None:
        if isinstance(gradients, Mapping):
            found |= {f"gradients[{name!r}]": x for name, x in gradients.items()}
        else:
            found |= dict(zip(names, arrays_of(gradients), strict=False))
    return found
