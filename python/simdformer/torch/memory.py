"""The memory of a tensor as an array, and of an array as a tensor: nothing is copied."""

from typing import Any

import ml_dtypes
import numpy as np
import torch

from simdformer.types import Array

__all__ = ["array_of", "refuse_gradients", "tensor_of"]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def array_of(tensor: torch.Tensor) -> Array:
    """A view (...) of a tensor on the CPU. numpy has no bfloat16 of torch's; it gets the bits.

    TypeError: the tensor lies elsewhere. RuntimeError: it requires gradients.
    """
    if tensor.dtype is torch.bfloat16:
        bits: Array = tensor.view(torch.int16).numpy()
        return bits.view(BFLOAT16)
    array: Array = tensor.numpy()
    return array


def tensor_of(array: Array) -> torch.Tensor:
    """A tensor (...) in the memory of a writable array."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def refuse_gradients(function: str, *tensors: Any) -> None:
    """RuntimeError where autograd would want a gradient: a kernel would be a silent constant."""
    if torch.is_grad_enabled() and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors
    ):
        raise RuntimeError(
            f"{function}: no gradient: the kernels only compute forwards; call it under "
            "torch.no_grad() or torch.inference_mode()"
        )
