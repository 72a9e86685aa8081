"""Slips: formulas that differ from the right one in one place are named, whatever the place."""

import numpy as np
import pytest

import simdformer as sf
from by_hand import CALLS, Draw
from simdformer import optim
from simdformer.learn.check.operation import bind
from simdformer.learn.program import Run
from simdformer.learn.slips import slips

TRIED = [2, pytest.param(8, marks=pytest.mark.slow)]  # of each operation's
SWITCHES = {
    "attention": ("gqa", "softcap", "bias", "sinks"),
    "cross_entropy_backward": ("smooth", "zloss", "softcap", "none"),
    "rope": ("factor", "partial"),
}
CASES = [(op, switch) for op in CALLS for switch in ("", *SWITCHES.get(op, ()))]


def results(call, steps):
    """What these steps give, by name; None where they crash."""
    try:
        with np.errstate(all="ignore"):
            out = Run(np.float64, steps)(call.program, **call.asked).out
    except (ValueError, IndexError, TypeError, AttributeError, KeyError):
        return None
    out = dict(zip(call.names, out, strict=True)) if call.names else {"": out}
    return {name: np.asarray(x) for name, x in out.items() if x is not None}


def differs(a, b):
    return np.shape(a) != np.shape(b) or not np.allclose(a, b, 1e-6, 1e-9)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("most", TRIED)
@pytest.mark.parametrize(
    ("op", "switch"), CASES, ids=["-".join(filter(None, case)) for case in CASES]
)
def test_a_slip_is_named(op, switch, most):
    """By itself, or as the mistake of the catalogue that gives the same array."""
    rng = np.random.default_rng(3)
    function, _, args, kwargs = CALLS[op](frozenset({switch} - {""}), Draw(rng, "float64"))
    call = bind(function, args, kwargs)
    run = Run(np.float64)
    run(call.program, **call.asked)
    right, made = results(call, {}), list(slips(run.tape))
    given = {name for name, x in zip(call.names, call.results, strict=False) if x is not None}
    tried = 0
    for number in rng.permutation(len(made)):
        wrong = results(call, made[number].replaces)
        if wrong is None or wrong.keys() != right.keys():
            continue
        if not all(np.isfinite(x).all() for x in wrong.values()):
            continue
        if not any(differs(wrong[name], right[name]) for name in given or right):
            continue
        mine = {name: x for name, x in wrong.items() if name in given} or wrong[""]
        if function is optim.adamw_:
            mine["weight"] = mine["weight"] + args[0]
        report = sf.check(function, mine, *args, **kwargs)
        assert not report.ok, made[number].mistake
        assert report.diagnosis, made[number].mistake
        tried += 1
        if tried == most:
            break
    assert tried
