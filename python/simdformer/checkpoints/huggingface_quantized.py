"""Weights of Hugging Face checkpoints in groups of integers: AWQ and GPTQ.

    value = scale · (code - zero), a scale and a zero for each group of inputs of an output

For a linear layer NAME the files hold NAME.qweight, NAME.qzeros (32-bit words of codes) and
NAME.scales, all with the outputs on their last axis, and for GPTQ NAME.g_idx, the group of each
input. With 4 bits, code i of a word is

    AWQ       qweight (I, O/8), qzeros (I/group, O/8)    output 8j + (0 2 4 6 1 3 5 7)[i]
    GPTQ      qweight (I/8, O)                           input 8r + i
              qzeros (I/group, O/8)                      output 8j + i; version 1 holds zero - 1

Lin et al. 2023, arXiv:2306.00978; Frantar et al. 2022, arXiv:2210.17323.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simdformer.checkpoints.error import misfit
from simdformer.checkpoints.names import require
from simdformer.checkpoints.stored_tensor import StoredTensor
from simdformer.models.tensors import QuantizedTensor
from simdformer.quantization.weight import QuantizedWeight
from simdformer.types import Array

__all__ = ["GroupTensor", "Scheme", "joined", "read_scheme"]

CONFIG = "quantization_config"
GROUPS = (32, 64, 128)
WORD = 32  # bits
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of the outputs in a word
PARTS = ("qweight", "qzeros", "scales")


@dataclass(frozen=True)
class Scheme:
    """method: "awq" or "gptq"; zero_offset: what is added to the zeros of the file."""

    method: str
    bits: int
    group: int
    zero_offset: int


def read_scheme(found: Mapping[str, Any], own_method: str | None = None) -> Scheme | None:
    """What a config says under quantization_config; None: nothing, or the method that its
    architecture has for tensors of its own. CheckpointError names what is not supported."""
    given = found.get(CONFIG)
    if given is None:
        return None
    require(isinstance(given, Mapping), CONFIG, given, "an object")
    method = given.get("quant_method")
    check(given, "quant_method", ("awq", "gptq", *([own_method] if own_method else [])))
    if method == own_method:
        return None
    check(given, "bits", (4,) if method == "awq" else (4, 8))
    check(given, "group_size", GROUPS)
    if method == "awq":
        check(given, "version", ("gemm",), "gemm")
        check(given, "zero_point", (True,), True)
        return Scheme(method, given["bits"], given["group_size"], 0)
    check(given, "desc_act", (False,), False)
    check(given, "is_marlin_format", (False,), False)
    check(given, "dynamic", ({}, None))
    check(given, "checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    old = given.get("checkpoint_format", "gptq") == "gptq"
    return Scheme(method, given["bits"], given["group_size"], 1 if old else 0)


def check(
    given: Mapping[str, Any], name: str, supported: tuple[Any, ...], unsaid: Any = None
) -> None:
    """CheckpointError unless a field has one of these values."""
    value = given.get(name, unsaid)
    value = value.lower() if isinstance(value, str) else value
    right = any(type(value) is type(one) and value == one for one in supported)
    require(right, f"{CONFIG}.{name}", value, " or ".join(map(repr, supported)))


def joined(tensors: Mapping[str, StoredTensor], scheme: Scheme) -> dict[str, Any]:
    """The tensors with those of a quantised layer as one, NAME.weight."""
    found: dict[str, Any] = dict(tensors)
    for name in tensors:
        stem, _, kind = name.rpartition(".")
        if kind != "qweight":
            continue
        missing = [part for part in PARTS if f"{stem}.{part}" not in tensors]
        if missing:
            raise misfit(tensors[name], f"no {stem}.{missing[0]} beside it", f"{', '.join(PARTS)}")
        qweight, qzeros, scales = (found.pop(f"{stem}.{part}") for part in PARTS)
        whole = GroupTensor(scheme, qweight, qzeros, scales)
        check_shapes(whole)
        check_order(found.pop(f"{stem}.g_idx", None), scheme, whole.shape[1])
        found[f"{stem}.weight"] = whole
    return found


def check_shapes(whole: "GroupTensor") -> None:
    """CheckpointError when the three do not fit each other."""
    for tensor in (whole.qweight, whole.qzeros):
        if tensor.dtype != np.int32 or tensor.ndim != 2:
            raise misfit(tensor, f"{tensor.dtype} {tensor.shape}", "int32 with two axes")
    outputs, inputs = whole.shape
    groups, per_word = inputs // whole.scheme.group, WORD // whole.scheme.bits
    if inputs % whole.scheme.group or outputs % per_word:
        needed = f"inputs in groups of {whole.scheme.group}, outputs in words of {per_word}"
        raise misfit(whole.qweight, f"a weight {whole.shape}", needed)
    for tensor, needed_shape in (
        (whole.qzeros, (groups, outputs // per_word)),
        (whole.scales, (groups, outputs)),
    ):
        if tensor.shape != needed_shape:
            beside = f"{needed_shape} beside {whole.qweight.name} {whole.qweight.shape}"
            raise misfit(tensor, f"shape {tensor.shape}", beside)
    if whole.scales.dtype.kind != "f" and whole.scales.dtype.name != "bfloat16":
        raise misfit(whole.scales, str(whole.scales.dtype), "floats")


def check_order(order: StoredTensor | None, scheme: Scheme, inputs: int) -> None:
    """CheckpointError where the inputs of a group do not follow each other (act-order)."""
    if order is None:
        return
    right = order.shape == (inputs,) and order.dtype.kind == "i"
    if not right or (np.asarray(order) != np.arange(inputs) // scheme.group).any():
        raise misfit(order, "groups in another order (act-order)", "successive inputs in each")


@dataclass(frozen=True, slots=True)
class GroupTensor(QuantizedTensor):
    """A weight (O, I) in groups of integers, as its three tensors hold it; rows [start:stop]."""

    scheme: Scheme
    qweight: StoredTensor
    qzeros: StoredTensor
    scales: StoredTensor
    start: int = 0
    stop: int | None = None

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return self.qweight, self.qzeros, self.scales

    @property
    def shape(self) -> tuple[int, int]:
        first, last = self.qweight.shape
        per_word = WORD // self.scheme.bits
        awq = self.scheme.method == "awq"
        outputs, inputs = (last * per_word, first) if awq else (last, first * per_word)
        return len(range(*slice(self.start, self.stop).indices(outputs))), inputs

    @property
    def type(self) -> str:
        return f"int{self.scheme.bits}_g{self.scheme.group}"

    def rows(self, start: int, stop: int) -> "GroupTensor":
        return replace(self, start=self.start + start, stop=self.start + min(stop, len(self)))

    def columns(self, start: int, stop: int) -> "GroupTensor":
        per_row = 1 if self.scheme.method == "awq" else WORD // self.scheme.bits
        groups = start // self.scheme.group, stop // self.scheme.group
        return replace(
            self,
            qweight=self.qweight.rows(start // per_row, stop // per_row),
            qzeros=self.qzeros.rows(*groups),
            scales=self.scales.rows(*groups),
        )

    def quantized(self) -> QuantizedWeight:
        scheme, bits = self.scheme, self.scheme.bits
        start, stop, _ = slice(self.start, self.stop).indices(self.scales.shape[1])
        words = start // (WORD // bits), -(-stop // (WORD // bits))  # that hold these outputs
        outputs = words[0] * WORD // bits, words[1] * WORD // bits
        part = slice(start - outputs[0], stop - outputs[0])
        zeros = np.asarray(self.qzeros.columns(*words))
        if scheme.method == "awq":
            codes = along_outputs(np.asarray(self.qweight.columns(*words)), bits, AWQ_ORDER)
            zeros = along_outputs(zeros, bits, AWQ_ORDER)
        else:
            codes = along_outputs(np.asarray(self.qweight.columns(*outputs)).T, bits).T
            zeros = along_outputs(zeros, bits)
        scales = np.asarray(self.scales.columns(*outputs), np.float32)
        return QuantizedWeight.from_groups(
            codes.T[part],
            scales.T[part],
            zeros=(zeros.astype(np.int16) + scheme.zero_offset).T[part],
        )


def along_outputs(words: Array, bits: int, order: tuple[int, ...] | None = None) -> Array:
    """(n, words) -> (n, codes): each word's codes side by side, from its low bits on, or at the
    places that `order` gives.

    >>> along_outputs(np.array([[0x76543210]], np.int32), 4)
    array([[0, 1, 2, 3, 4, 5, 6, 7]], dtype=uint8)
    """
    per_word = WORD // bits
    codes = np.empty((*words.shape, per_word), np.uint8)
    for place, to in enumerate(order or range(per_word)):
        codes[..., to] = words.view(np.uint32) >> place * bits & (1 << bits) - 1
    return codes.reshape(len(words), -1)
