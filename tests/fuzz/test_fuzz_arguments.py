"""Every public function with arguments at random, right and wrong ones together.

A call gives what the reference gives, in the promised shape and dtype, and writes nothing but its
result; or it is refused by an exception of the documented kinds whose message begins with the
function's name. SIMDFORMER_FUZZ_EXAMPLES=100000 makes it longer.
"""

import inspect
import os

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import simdformer as sf
from conftest import epsilon
from hostile import FLOATS, OWN_ERROR, good_array, hostile, hostile_array
from simdformer import reference

EXAMPLES = int(os.environ.get("SIMDFORMER_FUZZ_EXAMPLES", "60"))
REFUSALS = (TypeError, ValueError, IndexError, BufferError, MemoryError)
PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
size = st.integers(0, 5)


# ---- calls that are right ------------------------------------------------------------------------


@st.composite
def element_wise(draw, dtype):
    return {"x": draw(good_array((*draw(leading()), draw(size)), dtype))}


def leading():
    return st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def gelu(draw, dtype):
    return draw(element_wise(dtype)) | {"approximate": draw(st.sampled_from(["none", "tanh"]))}


@st.composite
def swiglu(draw, dtype):
    shape = (*draw(leading()), draw(size))
    return {"gate": draw(good_array(shape, dtype)), "up": draw(good_array(shape, dtype))}


@st.composite
def softmax(draw, dtype):
    x = draw(good_array((*draw(leading()), draw(st.integers(1, 5))), dtype))
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    return {"x": x, "axis": axis, "temperature": draw(st.floats(0.1, 10))}


@st.composite
def rms_norm(draw, dtype):
    x = draw(element_wise(dtype))["x"]
    weight = draw(st.none() | good_array(x.shape[-1:], dtype))
    return {"x": x, "weight": weight, "eps": draw(st.floats(1e-6, 1))}


@st.composite
def layer_norm(draw, dtype):
    call = draw(rms_norm(dtype))
    return call | {"bias": draw(st.none() | good_array(call["x"].shape[-1:], dtype))}


@st.composite
def rope(draw, dtype):
    turned, rest = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    length = draw(size)
    x = draw(good_array((*draw(leading()), length, 2 * turned + (rest if turned else 0)), dtype))
    call = {"x": x, "layout": draw(st.sampled_from(["half", "interleaved"]))}
    if turned and rest:
        call["rotary_dim"] = 2 * turned
    if draw(st.booleans()):
        call["positions"] = np.arange(length) * draw(st.integers(-9, 9))
    else:
        call["offset"] = draw(st.integers(-99, 99))
    call["theta"] = draw(st.floats(1, 1e6))
    return call | {"attention_factor": draw(st.floats(-2, 2))}


@st.composite
def linear(draw, dtype):
    inner, outer = draw(size), draw(size)
    x, weight = (*draw(leading()), inner), (outer, inner)
    bias = draw(st.none() | good_array((outer,), dtype))
    return {
        "x": draw(good_array(x, dtype)),
        "weight": draw(good_array(weight, dtype)),
        "bias": bias,
    }


@st.composite
def embedding(draw, dtype):
    rows = draw(st.integers(1, 5))
    ids = draw(st.lists(st.integers(0, rows - 1), max_size=4))
    weight = draw(good_array((rows, draw(size)), dtype))
    return {"ids": np.array(ids, np.int64), "weight": weight}


@st.composite
def repeat_kv(draw, dtype):
    x = draw(good_array((*draw(leading()), draw(size), draw(size), draw(size)), dtype))
    return {"x": x, "n": draw(st.integers(1, 4)), "axis": draw(st.integers(-x.ndim, x.ndim - 1))}


@st.composite
def causal_mask(draw, dtype):
    return {"L": draw(size), "S": draw(size), "offset": draw(st.integers(-9, 9)), "dtype": dtype}


@st.composite
def scaled_dot_product_attention(draw, dtype):
    heads, groups, queries, keys, width = (draw(st.integers(1, 4)) for _ in range(5))
    batch = draw(st.integers(1, 3))
    call = {"query": draw(good_array((batch, heads * groups, queries, width), dtype))}
    call |= {
        name: draw(good_array((batch, heads, keys, width), dtype)) for name in ("key", "value")
    }
    if draw(st.booleans()):
        call |= {"is_causal": True, "causal_offset": draw(st.integers(-5, 5))}
        call["window"] = draw(st.none() | st.integers(1, 5) | st.just((2, None)))
        call["chunk"] = draw(st.none() | st.integers(1, 5))
    if draw(st.booleans()):
        call["attn_mask"] = draw(
            good_array((batch, 1, queries, keys), draw(st.sampled_from([dtype, bool])))
        )
    if draw(st.booleans()):
        number = st.lists(st.integers(0, keys), min_size=batch, max_size=batch)
        call |= {"key_starts": draw(number), "key_lengths": draw(number)}
    if draw(st.booleans()):
        call["segment_ids"] = tuple(
            np.arange(n) // draw(st.integers(1, 5)) for n in (queries, keys)
        )
    if draw(st.booleans()):
        call |= {"softcap": draw(st.floats(1, 50)), "scale": draw(st.floats(-1, 1))}
    if draw(st.booleans()):
        call["sinks"] = draw(good_array((heads * groups,), dtype))
    return call


@st.composite
def rope_frequencies(draw, dtype):
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    yarn = {"type": "yarn", "factor": draw(st.floats(1, 64))}
    long = [part | {"original_max_position_embeddings": 64} for part in (llama3, yarn)]
    scaling = draw(st.sampled_from([None, {"type": "linear", "factor": 2.0}, *long]))
    return {
        "head_dim": 2 * draw(st.integers(1, 8)),
        "theta": draw(st.floats(2, 1e6)),
        "scaling": scaling,
    }


@st.composite
def pack(draw, dtype):
    return {"weight": draw(good_array((draw(size), draw(size)), dtype))}


CALLS = {
    "silu": element_wise,
    "relu": element_wise,
    "gelu": gelu,
    "swiglu": swiglu,
    "softmax": softmax,
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "rope": rope,
    "linear": linear,
    "embedding": embedding,
    "repeat_kv": repeat_kv,
    "causal_mask": causal_mask,
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "rope_frequencies": rope_frequencies,
    "pack": pack,
}
FIRST = ("x", "gate", "query", "weight")


# ---- calls with something wrong ------------------------------------------------------------------


def is_small(value):
    return not isinstance(value, np.ndarray) or value.size < 10_000


@st.composite
def outputs(draw, call, shape, dtype):
    """Arrays to take a result: good ones, and parts of the inputs, moved, turned, read-only."""
    arrays = [value for value in call.values() if isinstance(value, np.ndarray) and is_small(value)]
    kind = draw(st.sampled_from(["new", "input", "moved", "turned", "zero", "hostile"]))
    if kind == "new" or not arrays:
        return draw(good_array(shape, dtype))
    x = draw(st.sampled_from(arrays))
    if kind == "moved":  # the memory of an input and one row, column or element beside it
        memory = np.zeros(x.size + 3, x.dtype)
        at = draw(st.integers(0, 3))
        name = next(name for name, value in call.items() if value is x)
        call[name] = memory[at : at + x.size].reshape(x.shape)
        call[name][...] = x
        return memory[: x.size].reshape(x.shape)
    if kind == "turned" and x.ndim:
        return x[::-1]
    if kind == "zero":
        return np.broadcast_to(np.zeros((), dtype), shape)
    return x if kind == "input" else draw(hostile)


@st.composite
def calls(draw, name):
    dtype = draw(st.sampled_from(FLOATS))
    call = draw(CALLS[name](dtype))
    shape = next((call[argument].shape for argument in FIRST if argument in call), ())
    signature = inspect.signature(getattr(sf, name)).parameters
    wrong = draw(st.sets(st.sampled_from([*signature]), max_size=3))
    for argument in sorted(wrong - {"out"}):
        call[argument] = draw(
            hostile_array() if argument in call and draw(st.booleans()) else hostile
        )
    if "out" in wrong:
        call["out"] = draw(outputs(call, shape, dtype))
    return call


def refused(name, function, call):
    """The result, or None when the call is refused as it should be."""
    try:
        return function(**call)
    except RuntimeError as error:
        if str(error) != OWN_ERROR:
            raise
        return None
    except REFUSALS as error:
        refusal = error
    message = str(refusal)
    assert message.startswith(f"{name}: ") or isinstance(refusal, MemoryError), repr(refusal)
    assert "\n" not in message
    return None


def tolerance(dtype):
    return 1e-4 if dtype.itemsize > 2 else 8 * epsilon(dtype)


def copied(value):
    return value.copy() if isinstance(value, np.ndarray) and is_small(value) else value


@pytest.mark.parametrize("name", CALLS)
def test_any_call_is_right_or_refused(name):
    function = getattr(sf, name)
    oracle = getattr(reference, name, None)

    @settings(max_examples=EXAMPLES, phases=PHASES, report_multiple_bugs=False)
    @given(call=calls(name))
    def check(call):
        before = {key: copied(value) for key, value in call.items() if key != "out"}
        with np.errstate(all="ignore"):
            got = refused(name, function, call)
            if got is None:
                return
            out = call.get("out")
            if out is not None:
                assert got is out
            if name == "pack":
                assert np.array_equal(got.unpack(), np.asarray(before["weight"]), equal_nan=True)
                return
            if not all(map(is_small, before.values())):
                return
            want = oracle(**before)
        if name == "rope_frequencies":
            got, want = got.inv_freq, want.inv_freq
        results = zip(got, want, strict=True) if isinstance(got, tuple | list) else [(got, want)]
        for mine, right in results:
            assert mine.shape == np.shape(right)
            if np.abs(np.nan_to_num(right, posinf=0, neginf=0)).max(initial=0) < 1e3:
                rtol = tolerance(mine.dtype)
                np.testing.assert_allclose(
                    mine.astype(np.float64), np.asarray(right, np.float64), rtol, rtol
                )

    check()
