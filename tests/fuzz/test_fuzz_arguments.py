"""Every public function, and every one of the compiled module, with arguments at random, right and
wrong ones together.

A call gives what the reference gives, in the promised shape and dtype, and writes nothing but its
result; or it is refused by an exception of the documented kinds whose message begins with the
function's name. SIMDFORMER_FUZZ_EXAMPLES=100000 makes it longer.
"""

import ast
import inspect
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import simdformer as sf
from cases import llama3_scaling
from conftest import epsilon
from hostile import FLOATS, NUMBERS, OWN_ERROR, WEIGHTS, good_array, hostile, hostile_array
from simdformer import _core, reference

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
    yarn = {"type": "yarn", "factor": draw(st.floats(1, 64))}
    long = [llama3_scaling(64), yarn | {"original_max_position_embeddings": 64}]
    scaling = draw(st.sampled_from([None, {"type": "linear", "factor": 2.0}, *long]))
    return {
        "head_dim": 2 * draw(st.integers(1, 8)),
        "theta": draw(st.floats(2, 1e6)),
        "scaling": scaling,
    }


@st.composite
def pack(draw, dtype):
    return {"weight": draw(good_array((draw(size), draw(size)), dtype))}


def without(name):
    return lambda call: {key: value for key, value in call.items() if key != name}


def with_grad(forward, renamed=None):
    """The backward's call: the forward's, and the gradient of what has the shape of its first."""

    @st.composite
    def backward(draw, dtype):
        call = draw(forward(dtype))
        first = next(iter(call))
        call["grad"] = draw(good_array(call[first].shape, dtype))
        return {(renamed or {}).get(name, name): value for name, value in call.items()}

    return backward


@st.composite
def backward_rope(draw, dtype):
    call = draw(rope(dtype))
    return call | {"grad": call.pop("x")}


@st.composite
def backward_linear(draw, dtype):
    call = draw(linear(dtype))
    del call["bias"]
    shape = (*call["x"].shape[:-1], len(call["weight"]))
    needs = st.lists(st.sampled_from(["x", "weight", "bias"]), unique=True)
    return call | {"grad": draw(good_array(shape, dtype)), "needs": draw(needs)}


@st.composite
def backward_embedding(draw, dtype):
    call = draw(embedding(dtype))
    rows, width = call.pop("weight").shape
    shape = (*call["ids"].shape, width)
    return call | {"num_embeddings": rows, "grad": draw(good_array(shape, dtype))}


@st.composite
def backward_repeat_kv(draw, dtype):
    call = draw(repeat_kv(dtype))
    grad = np.repeat(call.pop("x"), call["n"], call["axis"])
    return {"grad": grad, "n_rep": call["n"], "axis": call["axis"]}


@st.composite
def cross_entropy(draw, dtype):
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    labels = draw(st.lists(st.integers(0, columns - 1), min_size=rows, max_size=rows))
    ignored = draw(st.sampled_from([-100, 0, 9]))
    counts = any(label != ignored for label in labels)
    return {
        "logits": draw(good_array((rows, columns), dtype)),
        "labels": np.array(labels),
        "ignore_index": ignored,
        "reduction": draw(st.sampled_from(["sum", "none", *["mean"] * counts])),
        "label_smoothing": draw(st.floats(0, 1)),
        "z_loss": draw(st.floats(0, 0.1)),
        "softcap": draw(st.none() | st.floats(1, 50)),
    }


@st.composite
def linear_cross_entropy(draw, dtype):
    call = draw(cross_entropy(dtype))
    rows, columns = call.pop("logits").shape
    call["reduction"] = "sum"
    width = draw(st.integers(1, 4))
    x, weight = draw(good_array((rows, width), dtype)), draw(good_array((columns, width), dtype))
    return {"x": x, "weight": weight} | call


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
    "log_softmax": lambda dtype: softmax(dtype).map(without("temperature")),
    "cross_entropy": cross_entropy,
    "linear_cross_entropy": linear_cross_entropy,
    "backward.silu": with_grad(element_wise),
    "backward.relu": with_grad(element_wise),
    "backward.gelu": with_grad(gelu),
    "backward.swiglu": with_grad(swiglu),
    "backward.softmax": with_grad(softmax, {"x": "output"}),
    "backward.log_softmax": with_grad(
        lambda dtype: softmax(dtype).map(without("temperature")), {"x": "output"}
    ),
    "backward.rms_norm": with_grad(rms_norm),
    "backward.layer_norm": with_grad(layer_norm),
    "backward.rope": backward_rope,
    "backward.linear": backward_linear,
    "backward.embedding": backward_embedding,
    "backward.repeat_kv": backward_repeat_kv,
    "backward.cross_entropy": cross_entropy,
}
FIRST = ("x", "gate", "query", "weight", "output", "grad", "logits")
# Whose reference stands elsewhere than its function.
ORACLES = {
    "log_softmax": reference.loss.log_softmax,
    "cross_entropy": reference.loss.cross_entropy,
    "linear_cross_entropy": reference.backward.linear_cross_entropy,
}


def named(module, name):
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


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
    signature = inspect.signature(named(sf, name)).parameters
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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CALLS)
def test_any_call_is_right_or_refused(name):
    function = named(sf, name)
    oracle = ORACLES.get(name) or named(reference, name)

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
                assert (got[0] if isinstance(got, tuple) else got) is out
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
            if right is None or (np.ndim(right) == 0 and not isinstance(mine, np.ndarray)):
                assert mine is None or np.isclose(mine, right, 1e-3, 1e-3, equal_nan=True)
                continue
            assert mine.shape == np.shape(right)
            if np.abs(np.nan_to_num(right, posinf=0, neginf=0)).max(initial=0) < 1e3:
                # the head's gradients are made of logits' gradients in 16 bits where all else is
                dtypes = [before["x"]] if name == "linear_cross_entropy" else []
                rtol = max(tolerance(np.asarray(one).dtype) for one in (mine, *dtypes))
                np.testing.assert_allclose(
                    mine.astype(np.float64), np.asarray(right, np.float64), rtol, rtol
                )

    check()


# ---- the compiled module -------------------------------------------------------------------------

# runtime.py has checked their numbers and names; what array_of_tensor is told are our own names.
CHECKED_BEFORE = {
    "set_isa", "set_num_threads", "cgroup_cpus", "array_of_tensor", "keep_all_results",
}  # fmt: skip
ENDLESS = {"fma_chains"}  # with a large number
OBJECTS = {
    "PackedWeight": [weight for weight in WEIGHTS if isinstance(weight, _core.PackedWeight)],
    "QuantizedPanels": [weight for weight in WEIGHTS if isinstance(weight, _core.QuantizedPanels)],
    "OpenFile": [_core.OpenFile(__file__), _core.OpenFile.__new__(_core.OpenFile)],
}
NAMES = {
    "arithmetic": ["int16", "float32"],
    "layout": ["half", "interleaved"],
    "approximate": ["none", "tanh"],
    "type": ["q4_0", "q8_0", "mxfp4", "q4_k", "q2_k", "q9_0", "Q4_0"],
    "dtype": FLOATS,
    "bits": [4, 8],
}
# Sizes between what is computed at once and what no memory holds.
small = st.sampled_from([n for n in NUMBERS if not 2**12 < abs(n) < 2**50])


def stub():
    """The arguments of everything that the compiled module has, as its types say."""

    def names(function):
        given = [*function.args.posonlyargs, *function.args.args]
        return [one.arg for one in given if one.arg != "self"]

    tree = ast.parse(Path(sf.__file__).with_name("_core.pyi").read_text(encoding="utf-8"))
    found = {}
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else []
        for one in inner if inner else [node]:
            if isinstance(one, ast.FunctionDef):
                label = f"{node.name}.{one.name}" if inner else one.name
                found.setdefault(label, []).append(names(one))
    return found


def targets():
    """Every function, method and property that the module has, by name."""
    for name, value in vars(_core).items():
        if isinstance(value, type):
            for member, inner in vars(value).items():
                own = callable(inner) or isinstance(inner, property | staticmethod)
                own = own and not member.startswith("_pybind11")
                if own and (not member.startswith("__") or member in ("__init__", "__reduce__")):
                    yield f"{name}.{member}"
        elif callable(value):
            yield name


def whole(call, n=4):
    """Numbers of a shape that fits, for what is called so."""
    return {
        "x": np.ones((n, 2, 32), np.float32), "ids": np.zeros((n, 2), np.int64) + 1,
        "weight": np.ones((3, 32), np.float32), "weights": [[np.ones((3, 32), np.float32)] * 2],
        "logits": np.ones((n, 8), np.float32), "k": 2, "axis": -1, "temperature": 1.0, "eps": 1e-5,
        "rows": np.ones((2, 4), np.float32) if "_fill" in call else 2, "cols": 32, "inputs": 32,
        "first": 0, "blocks": np.ones((2, 18), np.uint8), "codes": np.ones((2, 64), np.uint8),
        "scales": np.ones((2, 1), np.float32), "gate": np.ones((2, 4)), "up": np.ones((2, 4)),
        "query": np.ones((1, 2, n, 8)), "key": np.ones((1, 2, n, 8)),
        "value": np.ones((1, 2, n, 8)), "dropout_p": 0, "is_causal": True, "enable_gqa": True,
        "return_weights": True, "return_scores": False, "return_lse": True, "L": 3, "S": 3,
        "n": 2, "positions": [1, 2], "offset": 0, "attention_factor": 1.0, "step": 8, "start": 0,
        "memory": np.zeros((3, 8), np.uint8), "y": np.ones((n, 2, 32), np.float32),
        "steps": 3, "array": np.ones(8, np.float32), "path": __file__, "function": "f",
        "name": "x", "root": "", "tensor": np.ones(3),
    }  # fmt: skip


@st.composite
def arguments(draw, label, overloads):
    """For each parameter what fits, None, or anything."""
    parameters = draw(st.sampled_from(overloads))
    fitting = whole(label)
    if label == "combine_experts":
        fitting["weights"] = np.ones((4, 2), np.float32)
    if label == "set_isa":
        fitting["name"] = sf.isa()
    wrong = draw(st.sets(st.integers(0, max(len(parameters) - 1, 0)), max_size=3))
    values = []
    for place, name in enumerate(parameters):
        fits = st.sampled_from(NAMES[name]) if name in NAMES else st.just(fitting.get(name))
        anything = st.sampled_from([0, -1, 2.5, 7]) if label in ENDLESS else hostile | small
        values.append(draw(anything if place in wrong else fits))
    return values


def ends_well(label, function, values):
    """A result, or an exception that is not one of pybind11's own."""
    try:
        function(*values)
    except RuntimeError as error:
        if str(error) != OWN_ERROR:
            raise
    except (*REFUSALS, OSError) as error:
        if "incompatible" in str(error) and label not in CHECKED_BEFORE:
            raise AssertionError(f"{label}: pybind11 refused {values}") from error


@pytest.mark.sampled(3)
@pytest.mark.parametrize("label", [*targets()])
def test_the_compiled_module_refuses_what_it_cannot_take(label):
    """Whatever it is given: its callers may have checked less than they think."""
    owner, _, member = label.partition(".")
    value = getattr(_core, owner)
    of_class = isinstance(value, type)
    inner = vars(value)[member] if of_class else None
    is_property, is_static = isinstance(inner, property), isinstance(inner, staticmethod)
    needs_self = of_class and not is_static and member != "__init__"
    objects = st.sampled_from(OBJECTS[owner]) if needs_self else st.none()

    def function(self, *values):
        if not of_class:
            return value(*values)
        if is_property:
            return getattr(self, member)
        if member == "__init__":
            return value(*values)
        return inner.__func__(*values) if is_static else getattr(self, member)(*values)

    @settings(max_examples=EXAMPLES, phases=PHASES, report_multiple_bugs=False)
    @given(self=objects, values=arguments(label, [[]] if is_property else stub()[label]))
    def check(self, values):
        with np.errstate(all="ignore"):
            ends_well(label, lambda *values: function(self, *values), values)

    with sf.num_threads(sf.get_num_threads()), sf.use_isa(sf.isa()):
        check()
        _core.end_pass()  # as many as there were beginnings, or more


def test_every_function_of_the_compiled_module_is_tried():
    tried = set(targets())
    assert {"linear", "expert_linear", "QuantizedPanels._fill", "OpenFile.descriptor"} <= tried
    assert {name for name in tried if "." not in name} <= set(stub())
