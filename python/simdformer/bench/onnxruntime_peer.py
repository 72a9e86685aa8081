"""onnxruntime as a contestant: fused operators, prepacked weights, inputs and outputs bound.

Every model is one operator (or two), made with `onnx`. Only float32: its CPU kernels for 16 bits
convert back and forth, or do not exist.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from simdformer.bench import numpy_peer
from simdformer.bench.contestants import Contestant, Missing, Way, optional
from simdformer.bench.operations import (
    EPS,
    POSITION,
    Attention,
    Linear,
    RMSNorm,
    RoPE,
    Softmax,
    SwiGLU,
)
from simdformer.bench.work import Inputs, Work
from simdformer.types import Array

__all__ = ["NAME", "contestant"]

NAME = "onnxruntime"
MICROSOFT = "com.microsoft"  # the domain of the fused operators
OPSETS = (("", 23), (MICROSOFT, 1))
Node = tuple[str, list[str], list[str], dict[str, Any]]  # operator, inputs, outputs, attributes
IR_VERSION = 10  # what an onnxruntime of the last years reads, whichever onnx writes it


def contestant(work: Work, inputs: Inputs, threads: int) -> Contestant | Missing:
    """Those of the operators below that this onnxruntime has."""
    for module, what in (("onnxruntime", "onnxruntime"), ("onnx", "onnx (it makes the models)")):
        if optional(module) is None:
            return Missing(NAME, f"{what} is not installed")
    if work.dtype != "float32" or (isinstance(work, Linear) and work.weight_dtype != "float32"):
        return Missing(NAME, "has no CPU kernels for 16 bits")
    found, refused = [], []
    for make in ways(work, inputs, threads):
        try:
            found.append(make())
        except Exception as error:  # of classes of its own, which say nothing better
            refused.append(str(error).strip().splitlines()[0])
    return Contestant(NAME, tuple(found)) if found else Missing(NAME, "; ".join(refused))


def ways(work: Work, inputs: Inputs, threads: int) -> Iterator[partial[Way]]:
    make = partial(partial, way, threads=threads)
    match work:
        case Attention(causal=True):
            yield make(**grouped(work, inputs))
            yield make(**multi_head(work, inputs))
            yield make(**standard_attention(work, inputs))
        case Attention():
            yield make(**grouped(work, inputs))
        case Linear():
            columns = np.ascontiguousarray(inputs["weight"].T)
            yield make(
                nodes=[("MatMul", ["x", "weight"], ["out"], {})],
                inputs={"x": inputs["x"]},
                constants={"weight": columns},
                out=(work.rows, work.width_out),
            )
        case RMSNorm():
            attributes = {"axis": -1, "epsilon": EPS}
            for operator in ("SimplifiedLayerNormalization", "RMSNormalization"):
                nodes: list[Node] = [(operator, ["x", "weight"], ["out"], attributes)]
                yield make(nodes=nodes, inputs=inputs, out=(work.rows, work.width))
        case Softmax():
            nodes = [("Softmax", ["x"], ["out"], {"axis": -1})]
            yield make(nodes=nodes, inputs=inputs, out=(work.rows, work.width))
        case SwiGLU():
            silu = {"alpha": 1.0, "domain": MICROSOFT}
            nodes = [
                ("QuickGelu", ["gate"], ["silu"], silu),
                ("Mul", ["silu", "up"], ["out"], {}),
            ]
            yield make(nodes=nodes, inputs=inputs, out=(work.rows, work.width))
        case RoPE():
            yield make(**rotary(work, inputs["x"]))


# ---- operators with inputs of their own layout ---------------------------------------------------


def tokens_first(x: Array) -> Array:
    """(H, L, D) -> (1, L, H·D), as the fused attention operators want it."""
    return np.ascontiguousarray(x.swapaxes(0, 1)).reshape(1, x.shape[1], -1)


def heads_first(work: Attention, result: Array) -> Array:
    return result.reshape(work.queries, work.heads, work.head_dim).swapaxes(0, 1)


def grouped(work: Attention, inputs: Inputs) -> dict[str, Any]:
    """GroupQueryAttention. To decode, all keys but the newest lie in a cache that it shares with
    its output, so that it appends and does not copy; a prompt starts without a cache."""
    heads, width = work.kv_heads, work.kv_heads * work.head_dim
    in_cache, new = (0, work.keys) if work.causal else (work.keys - 1, 1)
    lengths = {"last": np.array([work.keys - 1], np.int32), "all": np.array([work.keys], np.int32)}
    newest = {name: tokens_first(inputs[name][:, in_cache:]) for name in "kv"}
    assert newest["k"].shape == (1, new, width)
    cache_shape = (1, heads, work.keys, work.head_dim)
    caches: dict[str, Array] = {}
    past = ["", ""]
    if in_cache:
        past = ["past_k", "past_v"]
        caches = {f"past_{name}": inputs[name][None].copy() for name in "kv"}
    attributes = {"num_heads": work.heads, "kv_num_heads": heads, "domain": MICROSOFT}
    names = ["q", "k", "v", *past, "last", "all"]
    return {
        "nodes": [("GroupQueryAttention", names, ["out", "present_k", "present_v"], attributes)],
        "inputs": {"q": tokens_first(inputs["q"]), **newest, **caches, **lengths},
        "out": (1, work.queries, work.heads * work.head_dim),
        "others": {f"present_{name}": (cache_shape, caches.get(f"past_{name}")) for name in "kv"},
        "array": partial(heads_first, work),
    }


def multi_head(work: Attention, inputs: Inputs) -> dict[str, Any]:
    attributes = {"num_heads": work.heads, "unidirectional": 1, "domain": MICROSOFT}
    return {
        "nodes": [("MultiHeadAttention", ["q", "k", "v"], ["out"], attributes)],
        "inputs": {name: tokens_first(inputs[name]) for name in "qkv"},
        "out": (1, work.queries, work.heads * work.head_dim),
        "array": partial(heads_first, work),
    }


def standard_attention(work: Attention, inputs: Inputs) -> dict[str, Any]:
    return {
        "nodes": [("Attention", ["q", "k", "v"], ["out"], {"is_causal": 1})],
        "inputs": {name: inputs[name][None] for name in "qkv"},
        "out": (1, work.heads, work.queries, work.head_dim),
        "array": lambda result: result[0],
    }


def rotary(work: RoPE, x: Array) -> dict[str, Any]:
    """cos and sin of every position up to the last are constants."""
    cos, sin = (
        np.concatenate([np.zeros((POSITION, work.head_dim // 2), np.float32), table])
        for table in numpy_peer.cos_and_sin(work)
    )
    attributes = {"interleaved": int(work.layout == "interleaved"), "domain": MICROSOFT}
    return {
        "nodes": [("RotaryEmbedding", ["x", "positions", "cos", "sin"], ["out"], attributes)],
        "inputs": {"x": x[None], "positions": POSITION + np.arange(work.tokens)[None]},
        "constants": {"cos": cos, "sin": sin},
        "out": (1, work.heads, work.tokens, work.head_dim),
        "array": lambda result: result[0],
    }


# ---- a session with everything bound -------------------------------------------------------------


def way(
    *,
    nodes: list[Node],
    inputs: Mapping[str, Array],
    out: tuple[int, ...],
    threads: int,
    constants: Mapping[str, Array] | None = None,
    others: Mapping[str, tuple[tuple[int, ...], Array | None]] | None = None,
    array: Any = lambda result: result,
) -> Way:
    """A session of `nodes`. `others`: further outputs, with the array to share if there is one."""
    runtime: Any = optional("onnxruntime")
    outputs = {"out": np.empty(out, np.float32)}
    for name, (shape, shared) in (others or {}).items():
        outputs[name] = np.empty(shape, np.float32) if shared is None else shared
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = runtime.InferenceSession(
        model(nodes, inputs, outputs, constants or {}),
        options,
        providers=["CPUExecutionProvider"],
    )
    binding = session.io_binding()
    for bind, arrays in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, bound in arrays.items():
            bind(name, "cpu", 0, bound.dtype.type, bound.shape, bound.ctypes.data)
    kept = (dict(inputs), outputs)  # the binding holds addresses, somebody must hold the memory

    def call() -> Array:
        session.run_with_iobinding(binding)
        return kept[1]["out"]

    return Way("IO binding, " + " and ".join(node[0] for node in nodes), call, array)


def model(
    nodes: list[Node],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    constants: Mapping[str, Array],
) -> bytes:
    """The serialised model of a few nodes with fixed shapes."""
    onnx: Any = optional("onnx.helper")

    def info(name: str, array: Array) -> Any:
        kind = onnx.np_dtype_to_tensor_dtype(array.dtype)
        return onnx.make_tensor_value_info(name, kind, array.shape)

    def constant(name: str, array: Array) -> Any:
        kind = onnx.np_dtype_to_tensor_dtype(array.dtype)
        return onnx.make_tensor(name, kind, array.shape, array.tobytes(), raw=True)

    graph = onnx.make_graph(
        [
            onnx.make_node(operator, takes, gives, **attributes)
            for operator, takes, gives, attributes in nodes
        ],
        "bench",
        [info(name, array) for name, array in inputs.items()],
        [info(name, array) for name, array in outputs.items()],
        initializer=[constant(name, array) for name, array in constants.items()],
    )
    opsets = [onnx.make_opsetid(domain, version) for domain, version in OPSETS]
    made = onnx.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    return bytes(made.SerializeToString())
