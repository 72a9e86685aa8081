"""Who runs a piece of work: one library's way, or ways, of doing it; and how libraries are asked.

Nothing here imports a library before it is wanted.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np

from simdformer.types import Array

__all__ = [
    "EAGER",
    "LLAMA_CPP",
    "MICROSOFT",
    "NUMPY",
    "ONNXRUNTIME",
    "OURS",
    "REGISTERED",
    "SDPA",
    "TORCH",
    "TRANSFORMERS",
    "Contestant",
    "Graph",
    "Missing",
    "Node",
    "Way",
    "optional",
    "tensor",
    "torch_threads",
    "torch_way",
]

OURS = "simdformer"
TORCH = "torch"
ONNXRUNTIME = "onnxruntime"
NUMPY = "numpy"
TRANSFORMERS = "transformers"
LLAMA_CPP = "llama.cpp"
# A model of transformers with its attention computed by PyTorch, in two ways, or by ours.
EAGER = "eager"
SDPA = "sdpa"
REGISTERED = "our attention"

MICROSOFT = "com.microsoft"  # the domain of onnxruntime's fused operators
OPSETS = (("", 23), (MICROSOFT, 1))
IR_VERSION = 10  # what an onnxruntime of the last years reads, whichever onnx writes it


def same(result: Any) -> Any:
    return result


@dataclass(frozen=True)
class Way:
    """One call that does the work, its inputs and outputs in place.

    `array` makes of what the call returns a numpy array in the shape that the work speaks of; it
    is not timed. `context` is entered around many calls, and is not timed either.
    """

    name: str
    call: Callable[[], Any]
    array: Callable[[Any], Array] = same
    context: Callable[[], AbstractContextManager[Any]] = nullcontext

    def result(self) -> Array:
        with self.context():
            return self.array(self.call())


@dataclass(frozen=True)
class Contestant:
    """A library. The fastest of its ways counts, so that it appears at its best.

    `peer`: goals compare with it. Others (numpy, a variant of ours) are there to be looked at.
    """

    name: str
    ways: tuple[Way, ...]
    peer: bool = True


@dataclass(frozen=True)
class Missing:
    """Why a library does not take part."""

    name: str
    why: str


def optional(name: str) -> Any | None:
    """The module of that name, or None where it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        return None


# ---- PyTorch -------------------------------------------------------------------------------------


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """As many threads for torch as ours have, and afterwards as many as before."""
    torch = optional("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def tensor(array: Array) -> Any:
    """A tensor in the memory of an array."""
    from simdformer.tensors.memory import tensor_of  # imports torch

    return tensor_of(array)


def torch_way(torch: Any, way: Way) -> Way:
    """In inference mode, and with an array made of the tensor that comes out: float32, which holds
    what any of the three dtypes does.
    """

    def array(result: Any) -> Array:
        shaped: Any = way.array(result)
        numbers: Array = shaped.float().numpy()
        return numbers

    return replace(way, array=array, context=torch.inference_mode)


# ---- onnxruntime ---------------------------------------------------------------------------------

Node = tuple[str, list[str], list[str], dict[str, Any]]  # operator, inputs, outputs, attributes


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A few operators of onnx, float32, with the arrays that they read and the shape of `out`.

    `others`: outputs besides `out`, each with its shape and the array to share if there is one.
    """

    nodes: list[Node]
    inputs: Mapping[str, Array]
    out: tuple[int, ...]
    constants: Mapping[str, Array] = field(default_factory=dict)
    others: Mapping[str, tuple[tuple[int, ...], Array | None]] = field(default_factory=dict)
    array: Callable[[Any], Array] = same

    def way(self, threads: int) -> Way:
        """A session with everything bound: inputs and outputs stay where they are."""
        runtime: Any = optional("onnxruntime")
        outputs = {"out": np.empty(self.out, np.float32)}
        for name, (shape, shared) in self.others.items():
            outputs[name] = np.empty(shape, np.float32) if shared is None else shared
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = runtime.InferenceSession(
            self.serialised(outputs), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        for bind, arrays in ((binding.bind_input, self.inputs), (binding.bind_output, outputs)):
            for name, bound in arrays.items():
                bind(name, "cpu", 0, bound.dtype.type, bound.shape, bound.ctypes.data)
        # The binding holds addresses, so that somebody must hold the memory: the call does.
        kept = (dict(self.inputs), outputs)

        def call() -> Array:
            session.run_with_iobinding(binding)
            return kept[1]["out"]

        return Way("IO binding, " + " and ".join(node[0] for node in self.nodes), call, self.array)

    def serialised(self, outputs: Mapping[str, Array]) -> bytes:
        """The model as onnx writes it, with fixed shapes."""
        onnx: Any = optional("onnx.helper")
        from_array = optional("onnx.numpy_helper").from_array  # type: ignore[union-attr]

        def infos(arrays: Mapping[str, Array]) -> list[Any]:
            return [
                onnx.make_tensor_value_info(
                    name, onnx.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in arrays.items()
            ]

        nodes = [
            onnx.make_node(operator, takes, gives, **attributes)
            for operator, takes, gives, attributes in self.nodes
        ]
        constants = [from_array(array, name) for name, array in self.constants.items()]
        graph = onnx.make_graph(
            nodes, "bench", infos(self.inputs), infos(outputs), initializer=constants
        )
        opsets = [onnx.make_opsetid(domain, version) for domain, version in OPSETS]
        model = onnx.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        return bytes(model.SerializeToString())
