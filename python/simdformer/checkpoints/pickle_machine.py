"""The pickle inside a `.pth` file, walked by a small machine of our own.

It knows the opcodes that torch.save writes and the few names that tensors need, and it builds
nothing but dicts, lists, tuples, text, numbers and descriptions of tensors. Everything else is
refused by name: nothing is imported, nothing of the file is called, no object's own method runs.
"""

import itertools
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from simdformer.checkpoints.error import CheckpointError

__all__ = ["Storage", "TensorView", "run_pickle"]

MAX_STACK = 1 << 16  # a state dict of a thousand tensors needs a few thousand
MAX_RANK = 16
MARK = object()

STORAGES: dict[str, np.dtype[Any]] = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}


@dataclass(frozen=True, slots=True)
class Storage:
    """One member `data/KEY` of the archive: `count` elements of `dtype`."""

    key: str
    dtype: np.dtype[Any]
    count: int


@dataclass(frozen=True, slots=True)
class TensorView:
    """What a pickle says about a tensor; offset and strides count elements of the storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def run_pickle(data: bytes) -> Any:
    """What the pickle describes. CheckpointError when it needs anything but tensors and containers;
    it names the entry that was being made."""
    machine = PickleMachine(data)
    try:
        return machine.run()
    except CheckpointError as error:
        error.tensor = machine.entry()
        raise


# ---- the names -----------------------------------------------------------------------------------


def ordered_dict(*arguments: Any) -> dict[Any, Any]:
    if arguments:
        raise CheckpointError("an OrderedDict with arguments")
    return {}


def rebuild_tensor(*arguments: Any) -> TensorView:
    """(storage, offset, shape, strides, requires_grad, backward_hooks[, metadata])"""
    if len(arguments) not in (6, 7):
        raise CheckpointError(f"a tensor described by {len(arguments)} values")
    storage, offset, shape, strides = arguments[:4]
    if not isinstance(storage, Storage):
        raise CheckpointError("a tensor without a storage")
    for numbers in ((offset,), shape, strides):
        if not isinstance(numbers, tuple) or any(type(n) is not int or n < 0 for n in numbers):
            raise CheckpointError(
                "a tensor whose offset, shape or strides are not whole numbers >= 0"
            )
    if len(shape) != len(strides) or len(shape) > MAX_RANK:
        raise CheckpointError(f"a tensor of {len(shape)} sizes and {len(strides)} strides")
    elements = math.prod(shape)
    if elements == 0:
        raise CheckpointError("a tensor without elements")
    # The stride of an axis of length 1 leads nowhere and may be any number.
    strides = tuple(0 if n == 1 else stride for n, stride in zip(shape, strides, strict=True))
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if last >= storage.count or elements > storage.count:
        raise CheckpointError(
            f"a tensor of {elements} elements that reaches element {last} of a storage of "
            f"{storage.count}"
        )
    return TensorView(storage, offset, shape, strides)


def rebuild_parameter(*arguments: Any) -> TensorView:
    """(tensor, requires_grad, backward_hooks)"""
    if len(arguments) != 3 or not isinstance(arguments[0], TensorView):
        raise CheckpointError("a parameter without a tensor")
    return arguments[0]


@dataclass(frozen=True, slots=True)
class Name:
    """A name that a pickle may call."""

    make: Callable[..., Any]


NAMES = {
    ("collections", "OrderedDict"): Name(ordered_dict),
    ("torch._utils", "_rebuild_tensor_v2"): Name(rebuild_tensor),
    ("torch._utils", "_rebuild_parameter"): Name(rebuild_parameter),
}


def find_name(module: str, name: str) -> Any:
    if (module, name) in NAMES:
        return NAMES[module, name]
    if module == "torch" and name in STORAGES:
        return STORAGES[name]
    raise CheckpointError(f"the name {f'{module}.{name}'[:80]!r}, which no tensor needs")


def find_storage(reference: Any) -> Storage:
    """('storage', type, key, device, count)"""
    if not isinstance(reference, tuple) or len(reference) != 5:
        raise CheckpointError("a reference that is not to a storage")
    kind, dtype, key, _, count = reference
    if type(kind) is not str or kind != "storage":
        raise CheckpointError("a reference that is not to a storage")
    if not isinstance(dtype, np.dtype) or type(key) is not str:
        raise CheckpointError("a storage that is not (type, key, device, count)")
    if type(count) is not int or count < 0:
        raise CheckpointError("a storage whose count is not a whole number >= 0")
    return Storage(key, dtype, count)


# ---- the machine ---------------------------------------------------------------------------------


class PickleMachine:
    """A stack and a memo over `data`, one method an opcode (see OPCODES)."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            opcode = self.take(1)
            if opcode == b".":
                return self.pop()
            if opcode not in OPCODES:
                raise CheckpointError(
                    f"the pickle opcode {opcode!r}, which torch.save does not write"
                )
            OPCODES[opcode](self)

    def entry(self) -> str | None:
        """The key in the outermost dict whose value is being made; None outside of one. The stack
        is dict, mark, key, value, key, value, ..., key and what its value is made of."""
        start = next((at for at, value in enumerate(self.stack) if type(value) is dict), None)
        if start is None:
            return None
        items = [value for value in self.stack[start + 1 : start + 2] if value is not MARK]
        items += self.stack[start + 2 :]
        for key, value in itertools.zip_longest(items[::2], items[1::2]):
            if not isinstance(value, TensorView):
                return key if type(key) is str else None
        return None

    # ---- reading

    def take(self, count: int) -> bytes:
        start, end = self.position, self.position + count
        if end > len(self.data):
            raise CheckpointError("a pickle that ends too early")
        self.position = end
        return self.data[start:end]

    def number(self, kind: str) -> int:
        kind = "<" + kind
        return int(struct.unpack(kind, self.take(struct.calcsize(kind)))[0])

    def text(self, count: int) -> str:
        try:
            return self.take(count).decode("utf-8")
        except UnicodeDecodeError:
            raise CheckpointError("text that is not UTF-8 in the pickle") from None

    def line(self) -> str:
        end = self.data.find(b"\n", self.position, self.position + 256)
        if end < 0:
            raise CheckpointError("a name without an end in the pickle")
        text = self.text(end - self.position)
        self.position = end + 1
        return text

    # ---- the stack

    def push(self, value: Any) -> None:
        if len(self.stack) >= MAX_STACK:
            raise CheckpointError(f"a pickle that piles up more than {MAX_STACK} values")
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is MARK:
            raise CheckpointError("a pickle that takes what is not there")
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        for start in range(len(self.stack) - 1, -1, -1):
            if self.stack[start] is MARK:
                items = self.stack[start + 1 :]
                del self.stack[start:]
                return items
        raise CheckpointError("a pickle that takes what is not there")

    def top(self, kind: type) -> Any:
        if not self.stack or type(self.stack[-1]) is not kind:
            raise CheckpointError(f"a pickle that adds to something other than a {kind.__name__}")
        return self.stack[-1]

    # ---- opcodes

    def protocol(self) -> None:
        version = self.number("B")
        if not 2 <= version <= 5:
            raise CheckpointError(f"a pickle of protocol {version}")

    def long(self) -> None:
        count = self.number("B")
        if count > 8:
            raise CheckpointError("a number of more than 64 bits in the pickle")
        self.push(int.from_bytes(self.take(count), "little", signed=True))

    def tuple_of(self, count: int) -> None:
        items = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(items)))

    def append(self, values: list[Any]) -> None:
        self.top(list).extend(values)

    def set_items(self, items: list[Any]) -> None:
        target = self.top(dict)
        if len(items) % 2:
            raise CheckpointError("a key without a value in the pickle")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, int):  # hashing anything deeper could take for ever
                raise CheckpointError("a key that is neither text nor a number in the pickle")
            target[key] = value

    def remember(self, index: int) -> None:
        if not self.stack or self.stack[-1] is MARK:
            raise CheckpointError("a pickle that remembers what is not there")
        self.memo[index] = self.stack[-1]

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise CheckpointError("a pickle that recalls what it never remembered")
        self.push(self.memo[index])

    def name(self) -> None:
        module = self.line()
        self.push(find_name(module, self.line()))

    def name_on_stack(self) -> None:
        name, module = self.pop(), self.pop()
        if type(name) is not str or type(module) is not str:
            raise CheckpointError("a name that is not text in the pickle")
        self.push(find_name(module, name))

    def call(self) -> None:
        arguments, name = self.pop(), self.pop()
        if type(arguments) is not tuple or not isinstance(name, Name):
            raise CheckpointError("a call of something other than a name")
        self.push(name.make(*arguments))

    def build(self) -> None:
        """A state for an OrderedDict: `_metadata` of a state dict. No tensor is in it, it goes."""
        self.pop()
        self.top(dict)


OPCODES: dict[bytes, Callable[[PickleMachine], Any]] = {
    b"\x80": PickleMachine.protocol,
    b"\x95": lambda m: m.take(8),  # the length of a frame
    b"(": lambda m: m.push(MARK),
    b"}": lambda m: m.push({}),
    b"]": lambda m: m.push([]),
    b")": lambda m: m.push(()),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"J": lambda m: m.push(m.number("i")),
    b"K": lambda m: m.push(m.number("B")),
    b"M": lambda m: m.push(m.number("H")),
    b"\x8a": PickleMachine.long,
    b"G": lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    b"X": lambda m: m.push(m.text(m.number("I"))),
    b"\x8c": lambda m: m.push(m.text(m.number("B"))),
    b"t": lambda m: m.push(tuple(m.pop_to_mark())),
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"e": lambda m: m.append(m.pop_to_mark()),
    b"a": lambda m: m.append([m.pop()]),
    b"u": lambda m: m.set_items(m.pop_to_mark()),
    b"s": lambda m: m.set_items([m.pop(), m.pop()][::-1]),
    b"q": lambda m: m.remember(m.number("B")),
    b"r": lambda m: m.remember(m.number("I")),
    b"\x94": lambda m: m.remember(len(m.memo)),
    b"h": lambda m: m.recall(m.number("B")),
    b"j": lambda m: m.recall(m.number("I")),
    b"c": PickleMachine.name,
    b"\x93": PickleMachine.name_on_stack,
    b"Q": lambda m: m.push(find_storage(m.pop())),
    b"R": PickleMachine.call,
    b"b": PickleMachine.build,
}
