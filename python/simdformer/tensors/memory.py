"""The memory of a tensor as an array, and of an array as a tensor: nothing is copied."""

from typing import Any

import ml_dtypes
import numpy as np
import torch

from simdformer.arguments import as_array
from simdformer.types import Array

__all__ = ["array_of", "dtype_of", "no_gradient", "refuse_gradients", "tensor_of"]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {
    torch.float32: np.dtype("float32"),
    torch.float64: np.dtype("float64"),
    torch.float16: np.dtype("float16"),
    torch.bfloat16: BFLOAT16,
    torch.bool: np.dtype("bool"),
}


def array_of(tensor: torch.Tensor, function: str = "array_of", name: str = "tensor") -> Array:
    """A view (...) of a tensor on the CPU, in bfloat16 too.

    RuntimeError: it requires a gradient, and they are recorded. BufferError: it lies elsewhere, or
    hands out no memory. Messages begin with `function`.
    """
    if tensor.requires_grad:
        refuse_gradients(function, tensor)
        tensor = tensor.detach()
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        return as_array(function, name, tensor)  # which says what is wrong with it
    try:
        if tensor.dtype is torch.bfloat16:
            bits: Array = tensor.view(torch.int16).numpy()
            return bits.view(BFLOAT16)
        array: Array = tensor.numpy()
        return array
    except (RuntimeError, TypeError):  # those of a dtype, or a way of lying, that numpy has not
        return as_array(function, name, tensor.resolve_neg())


def tensor_of(array: Array) -> torch.Tensor:
    """A tensor (...) in the memory of a writable array."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def dtype_of(dtype: torch.dtype) -> Any:
    """numpy's name for a dtype; one that numpy has not stays what it is, to be refused by name."""
    return DTYPES.get(dtype, dtype)


def refuse_gradients(function: str, *tensors: Any) -> None:
    """RuntimeError where autograd would want a gradient: a kernel would be a silent constant."""
    if torch.is_grad_enabled() and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors
    ):
        raise no_gradient(function)


def no_gradient(function: str, why: str = "it has a forward only") -> RuntimeError:
    return RuntimeError(
        f"{function}: no gradient: {why}; call it under torch.no_grad() or torch.inference_mode()"
    )
