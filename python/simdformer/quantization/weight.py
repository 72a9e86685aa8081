"""`quantize` and what it gives: a weight in few bits, which `linear` and `embedding` take."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from simdformer import _core
from simdformer.arguments import as_array, is_whole, shown
from simdformer.quantization.types import QuantizationType, quantization_types
from simdformer.types import Array, ArrayLike, DTypeLike

__all__ = ["QuantizedWeight", "quantize"]

GROUPS = (32, 64, 128)


class QuantizedWeight(_core.QuantizedPanels):
    """A weight (O, I) in few bits: integers, and for each group of 16 to 128 inputs of an output a
    scale and perhaps a minimum: value = scale · code - minimum.

    Made by `quantize` from floats, by `from_blocks` from the bytes of a GGUF file, by `from_groups`
    from the integers of other formats. `linear`, `embedding` and the layers take it as they take an
    array. It lies in memory as the kernels read it, cannot be changed, and its pickle (the blocks)
    can be read on any machine.

    `error` is the relative RMS error that quantising made, |values - weight| / |weight|; None where
    the weight itself was never seen.
    """

    error: float | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError(
            "QuantizedWeight: is called, needs to be made from something; use quantize(weight, "
            "type), QuantizedWeight.from_blocks or QuantizedWeight.from_groups"
        )

    @classmethod
    def _made(cls, error: float | None, *parts: Any) -> Self:
        """What _core.QuantizedPanels makes of the parts."""
        weight = cls.__new__(cls)
        _core.QuantizedPanels.__init__(weight, *parts)
        weight.error = error
        return weight

    @classmethod
    def _empty(cls, type: str, outputs: int, inputs: int) -> Self:
        """One of a type of `quantization_types` whose rows `_fill` fills in."""
        return cls._made(None, type, outputs, inputs)

    @classmethod
    def from_blocks(
        cls,
        blocks: ArrayLike | bytes,
        type: str,
        shape: tuple[int, int],
        *,
        error: float | None = None,
    ) -> Self:
        """From the bytes of GGUF: for each of O rows, I / block · nbytes of them.

        blocks : uint8 of any shape, or bytes
        type : a name of `quantization_types`
        shape : (O, I), I a multiple of the type's block

        ValueError: an unknown type, an I that blocks do not divide, another number of bytes.

        >>> import numpy as np
        >>> import simdformer as sf
        >>> q = sf.quantize(np.eye(32, dtype=np.float32), "q4_0")
        >>> sf.QuantizedWeight.from_blocks(q.blocks(), "q4_0", (32, 32)).dequantize()[0, 0]
        np.float32(1.0)
        """
        name = "QuantizedWeight.from_blocks"
        kind = read_type(name, type)
        outputs, inputs = read_shape(name, shape)
        check_divides(name, kind, inputs)
        data: npt.NDArray[Any]
        if isinstance(blocks, bytes | bytearray | memoryview):
            data = np.frombuffer(blocks, np.uint8)
        else:
            data = as_array(name, "blocks", blocks)
        if data.dtype != np.uint8:
            raise TypeError(f"{name}: blocks has dtype {data.dtype}, needs bytes (uint8)")
        row = inputs // kind.block * kind.nbytes
        if data.size != outputs * row:
            raise ValueError(
                f"{name}: blocks has {data.size} bytes, needs {outputs * row} for a weight "
                f"{(outputs, inputs)} in {kind.name} ({kind.nbytes} for {kind.block} inputs)"
            )
        weight = cls._made(error, kind.name, outputs, inputs)
        weight._fill(0, data.reshape(outputs, row))
        return weight

    @classmethod
    def from_groups(
        cls,
        codes: ArrayLike,
        scales: ArrayLike,
        zeros: ArrayLike | None = None,
        minimums: ArrayLike | None = None,
    ) -> Self:
        """From unsigned integers with a scale for each group of 32, 64 or 128 inputs, as AWQ, GPTQ,
        MLX and ONNX have them.

        codes : (O, I) integers 0 to 255; up to 15 they are held in four bits
        scales : (O, I / group) floats
        zeros : (O, I / group) integers, optional
            value = scale · (code - zero): AWQ, GPTQ, ONNX
        minimums : (O, I / group) floats, optional
            value = scale · code - minimum: MLX, whose biases are -minimums

        TypeError: codes or zeros that are no integers. ValueError: shapes, groups of another size,
        both zeros and minimums, numbers that are not finite or too large.

        >>> import numpy as np
        >>> import simdformer as sf
        >>> codes = np.arange(32).reshape(1, 32) % 16
        >>> q = sf.QuantizedWeight.from_groups(codes, [[0.5]], zeros=[[8]])
        >>> q.dequantize()[0, :4]
        array([-4. , -3.5, -3. , -2.5], dtype=float32)
        >>> q.type, q.bits_per_weight
        ('int4_g32', 6.0)
        """
        name = "QuantizedWeight.from_groups"
        integers = read_integers(name, "codes", codes, 255)
        if integers.ndim != 2:
            raise ValueError(f"{name}: codes has shape {integers.shape}, needs (O, I)")
        scale = read_floats(name, "scales", scales)
        outputs, inputs = integers.shape
        group = inputs // scale.shape[-1] if scale.ndim == 2 and scale.shape[-1] else 0
        if group not in GROUPS or scale.shape != (outputs, inputs / group):
            raise ValueError(
                f"{name}: scales has shape {scale.shape} beside codes of shape {integers.shape}, "
                "needs one for each 32, 64 or 128 inputs: (O, I / group)"
            )
        if zeros is not None and minimums is not None:
            raise ValueError(f"{name}: zeros and minimums are both given, needs one of them")
        minimum: npt.NDArray[np.float32] | None = None
        if zeros is not None:
            minimum = read_integers(name, "zeros", zeros, 255).astype(np.float32)
        elif minimums is not None:
            minimum = read_floats(name, "minimums", minimums)
        if minimum is not None and minimum.shape != scale.shape:
            given = "zeros" if zeros is not None else "minimums"
            raise ValueError(
                f"{name}: {given} has shape {minimum.shape}, needs that of scales, {scale.shape}"
            )
        if minimum is not None and zeros is not None:
            minimum *= scale
        bits = 4 if not integers.size or integers.max() < 16 else 8
        return cls._made(
            None,
            np.ascontiguousarray(integers, np.uint8),
            np.ascontiguousarray(scale),
            None if minimum is None else np.ascontiguousarray(minimum),
            bits,
        )

    @property
    def type(self) -> str:
        """Its name in `quantization_types`; what is made from groups is int4_g64 and the like."""
        return self._type or f"int{self._bits}_g{self._group}"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its values: float32."""
        return np.dtype(np.float32)

    @property
    def bits_per_weight(self) -> float:
        """The bits of one weight, with its share of the scales and minimums."""
        if self._type:
            return quantization_types()[self._type].bits_per_weight
        scales = 1 if self.minimums is None else 2
        return self._bits + 32 * scales / self._group

    @property
    def codes(self) -> Array:
        """(O, I) small integers: int8, or the uint8 that `from_groups` was given."""
        codes = self._groups()[0]
        return codes.view(np.int8) if self._type else codes

    @property
    def scales(self) -> Array:
        """(O, I / group)"""
        return self._groups()[1]

    @property
    def minimums(self) -> Array | None:
        """(O, I / group), or None where there are none"""
        return self._groups()[2]

    def dequantize(self, dtype: DTypeLike = np.float32) -> Array:
        """The values (O, I) as a new array: in float32 the bits that ggml gives."""
        values = self._values()
        try:
            wanted = np.dtype(dtype)
        except TypeError:
            raise TypeError(f"dequantize: dtype is {shown(dtype)}, needs a float dtype") from None
        check_float("dequantize", "dtype is", wanted)
        return values.astype(wanted, copy=False)

    def unpack(self) -> Array:
        """dequantize(), under the name that `PackedWeight` has for it."""
        return self.dequantize()

    def blocks(self) -> Array:
        """The bytes as GGUF has them: (O, bytes of a row). ValueError: made from groups."""
        if not self._type:
            raise ValueError(
                f"blocks: the weight is of type {self.type}, made from groups, which GGUF does not "
                "have; use .codes, .scales and .minimums"
            )
        return self._blocks()

    def __repr__(self) -> str:
        text = f"shape={self.shape}, type={self.type!r}"  # of one without contents a TypeError
        error = "" if self.error is None else f", error={self.error:.2g}"
        return f"QuantizedWeight({text}{error})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._type:
            return restore_blocks, (self._blocks(), self._type, self.shape, self.error)
        codes, scales, minimums = self._groups()
        return QuantizedWeight.from_groups, (codes, scales, None, minimums)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self


def restore_blocks(
    blocks: Array, type: str, shape: tuple[int, int], error: float | None
) -> QuantizedWeight:
    return QuantizedWeight.from_blocks(blocks, type, shape, error=error)


def quantize(weight: ArrayLike, type: str) -> QuantizedWeight:
    """A weight (O, I) in fewer bits: `linear` reads fewer bytes and says nearly the same.

    A block is 32 or 256 successive inputs of one output. Its numbers become small integers with a
    common scale, and in some types with a minimum too: value = scale · code - minimum.
    Blocks of 256 (the types ..._k) hold eight or sixteen groups, whose scales are small integers
    themselves: those that make the RMS error small are searched for, which takes a tenth of a
    second for 16 million weights. The bytes are those of llama.cpp's files; q8_0, q4_0, q4_1,
    q5_0, q5_1 and mxfp4 are made as `gguf.quants.quantize` makes them, bit for bit.

    Parameters
    ----------
    weight : (O, I) of a float dtype; I a multiple of the type's block
    type : str
        One that can be written, see `quantization_types`. They lose of a bell-shaped weight (RMS):
        q8_0 0.5 %, q6_k 1.7 %, q5_k 3.5 %, q5_0 4.3 %, q4_k 7.0 %, q4_0 8.6 %, mxfp4 11.5 %.

    TypeError: not of a float dtype. ValueError: an unknown type or one that is only read, an I that
    blocks do not divide, numbers that are not finite or too large for the scale of a block.

    >>> import numpy as np
    >>> import simdformer as sf
    >>> w = np.random.default_rng(0).standard_normal((64, 256), np.float32)
    >>> q = sf.quantize(w, "q4_k")
    >>> q.shape, q.bits_per_weight, round(q.error, 3)
    ((64, 256), 4.5, 0.07)
    >>> q.codes[0, :4], q.scales.shape
    (array([12,  1,  5,  3], dtype=int8), (64, 8))
    >>> sf.linear(np.ones(256, np.float32), q).shape
    (64,)
    """
    kind = read_type("quantize", type)
    if not kind.writable:
        writable = [name for name, one in quantization_types().items() if one.writable]
        raise ValueError(
            f"quantize: type is {kind.name!r}, which is only read, needs one of "
            + ", ".join(writable)
        )
    matrix = as_array("quantize", "weight", weight)
    check_float("quantize", "weight has dtype", matrix.dtype)
    if matrix.ndim != 2:
        raise ValueError(
            f"quantize: weight has shape {matrix.shape}, needs (O, I): a row for each output"
        )
    check_divides("quantize", kind, matrix.shape[1])
    made = QuantizedWeight._made(None, kind.name, matrix)
    made.error = made._error
    return made


# ---- arguments -----------------------------------------------------------------------------------


def read_type(function: str, name: Any) -> QuantizationType:
    types = quantization_types()
    kind = types.get(name.lower()) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"{function}: type is {shown(name)}, needs one of " + ", ".join(types))
    return kind


def read_shape(function: str, shape: Any) -> tuple[int, int]:
    try:
        outputs, inputs = shape
    except (TypeError, ValueError):
        outputs = inputs = None
    if not (is_whole(outputs, 0) and is_whole(inputs, 0)):
        raise ValueError(f"{function}: shape is {shown(shape)}, needs (O, I)")
    return int(outputs), int(inputs)


def check_divides(function: str, kind: QuantizationType, inputs: int) -> None:
    if inputs % kind.block:
        others = "; of 32, as q4_0, may do" if kind.block > 32 and inputs % 32 == 0 else ""
        raise ValueError(
            f"{function}: a row has {inputs} inputs, needs a multiple of {kind.block}, the "
            f"block of {kind.name}{others}"
        )


def check_float(function: str, found: str, dtype: np.dtype[Any]) -> None:
    if dtype.name not in ("float32", "float64", "float16", "bfloat16"):
        raise TypeError(f"{function}: {found} {dtype}, needs float32, float64, float16 or bfloat16")


def read_integers(function: str, name: str, value: Any, most: int) -> npt.NDArray[Any]:
    array = as_array(function, name, value)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{function}: {name} has dtype {array.dtype}, needs integers")
    if array.size and (array.min() < 0 or array.max() > most):
        raise ValueError(
            f"{function}: {name} holds numbers from {array.min()} to {array.max()}, needs 0 to "
            f"{most}"
        )
    return array


def read_floats(function: str, name: str, value: Any) -> npt.NDArray[np.float32]:
    array = as_array(function, name, value)
    check_float(function, f"{name} has dtype", array.dtype)
    with np.errstate(over="ignore"):
        floats = array.astype(np.float32)
    if not np.isfinite(floats).all():
        raise ValueError(f"{function}: {name} holds NaN or infinity, needs finite numbers")
    return floats
