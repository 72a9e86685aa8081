"""What the operations take and give, for type checkers."""

from typing import Any, Protocol

import numpy.typing as npt

__all__ = ["Array", "ArrayLike", "SupportsDLPack"]


class SupportsDLPack(Protocol):
    """A tensor of another library: torch, jax, mlx ..."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...


Array = npt.NDArray[Any]
ArrayLike = npt.ArrayLike | SupportsDLPack
