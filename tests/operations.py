"""The operations as functions of one array and of `out`, for tests that hold for all of them."""

import tracemalloc

import numpy as np

import simdformer as sf
from simdformer.arguments import as_array

ROWS, WIDTH = 6, 16
SHARES = r"out(\[\d\])? shares memory with"  # what the refusal of an overlap says


def parameter(x, first=1):
    """(WIDTH,) beside x, in its dtype: numbers that every dtype has."""
    x = as_array("test", "x", x)
    return ((first + np.arange(x.shape[-1]) % 16) / 8).astype(x.dtype)


# Operations on one array (..., ROWS, WIDTH); their other arguments are fixed.
ROW_WISE = {
    "silu": lambda x, **out: sf.silu(x, **out),
    "gelu": lambda x, **out: sf.gelu(x, **out),
    "gelu_tanh": lambda x, **out: sf.gelu(x, approximate="tanh", **out),
    "relu": lambda x, **out: sf.relu(x, **out),
    "swiglu": lambda x, **out: sf.swiglu(x, x, **out),
    "softmax": lambda x, **out: sf.softmax(x, **out),
    "softmax_axis_0": lambda x, **out: sf.softmax(x, 0, **out),
    "softmax_tempered": lambda x, **out: sf.softmax(x, temperature=0.7, **out),
    "log_softmax": lambda x, **out: sf.log_softmax(x, **out),
    "rms_norm": lambda x, **out: sf.rms_norm(x, eps=1e-5, **out),
    "rms_norm_weighted": lambda x, **out: sf.rms_norm(x, parameter(x), eps=1e-5, **out),
    "layer_norm": lambda x, **out: sf.layer_norm(x, eps=1e-5, **out),
    "layer_norm_weighted": lambda x, **out: sf.layer_norm(
        x, parameter(x), parameter(x, -7), eps=1e-5, **out
    ),
    "rope_half": lambda x, **out: sf.rope(x, layout="half", **out),
    "rope_interleaved": lambda x, **out: sf.rope(x, layout="interleaved", offset=3, **out),
}
# The same of x as the gradient of the output, and as the input or the output itself.
GRADIENTS = {
    "backward_silu": lambda x, **out: sf.backward.silu(x, x, **out),
    "backward_gelu": lambda x, **out: sf.backward.gelu(x, x, **out),
    "backward_relu": lambda x, **out: sf.backward.relu(x, x, **out),
    "backward_swiglu": lambda x, out=None: sf.backward.swiglu(x, x, x, out=(out, None)).gate,
    "backward_swiglu_up": lambda x, out=None: sf.backward.swiglu(x, x, x, out=(None, out)).up,
    "backward_softmax": lambda x, **out: sf.backward.softmax(x, x, **out),
    "backward_log_softmax": lambda x, **out: sf.backward.log_softmax(x, x, **out),
    "backward_rms_norm": lambda x, **out: sf.backward.rms_norm(x, x, eps=1e-5, **out).x,
    "backward_layer_norm": lambda x, **out: sf.backward.layer_norm(x, x, eps=1e-5, **out).x,
    "backward_rope": lambda x, **out: sf.backward.rope(x, layout="half", offset=3, **out),
}
ROW_WISE |= GRADIENTS
# How often a call reads x, where that is not once, and what else it makes beside `out`.
READS = dict.fromkeys(GRADIENTS.keys() - {"backward_rope"}, 2)
READS |= {"swiglu": 2, "backward_swiglu": 3, "backward_swiglu_up": 3}
SECOND_RESULT = ("backward_swiglu", "backward_swiglu_up")
MIXING = {
    "linear": lambda x, **out: sf.linear(x, x.reshape(-1, x.shape[-1])[:WIDTH].copy(), **out),
    "attention": lambda x, **out: sf.scaled_dot_product_attention(x, x, x, **out),
}
OPERATIONS = ROW_WISE | MIXING


def traced_peak(call):
    """The bytes of numpy arrays that a call holds at its height: the least of three times, because
    another thread of the process may make something meanwhile."""
    call()  # what is made once
    return min(once_traced(call) for _ in range(3))


def once_traced(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def softmax_and_text(seed):
    """A call and a model, for processes of other ways to start: this module imports little."""
    x = np.random.default_rng(seed).standard_normal((512, 1024), dtype=np.float32)
    model = sf.from_pretrained(sf.demo_path())
    return sf.softmax(x), model.generate("Once upon a time", max_new_tokens=6)
