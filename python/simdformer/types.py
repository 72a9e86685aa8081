"""What the operations take and give, for type checkers; and, in short, for who asks help().

numpy's own aliases are unions of a dozen types, and help(sf.rope) would print all of them for every
argument. Where a program runs, the aliases are therefore objects that print as their names.
"""

import inspect
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

__all__ = ["Alias", "Array", "ArrayLike", "DTypeLike", "NumpyArrayLike", "Out", "SupportsDLPack"]


class SupportsDLPack(Protocol):
    """A tensor of another library: torch, jax, mlx ..."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class Alias:
    """A type under a name; what it stands for is its `__value__`, as typing.TypeAliasType has it.

    >>> from simdformer.types import Alias
    >>> Alias("Whole", int) | None
    Whole | None
    """

    def __init__(self, name: str, value: Any) -> None:
        self.__name__ = name
        self.__value__ = value

    def __repr__(self) -> str:
        return self.__name__

    def __or__(self, other: Any) -> "Alias":
        return Alias(f"{self} | {spelled(other)}", self.__value__ | value_of(other))

    def __ror__(self, other: Any) -> "Alias":
        return Alias(f"{spelled(other)} | {self}", value_of(other) | self.__value__)


def spelled(annotation: Any) -> str:
    """As one writes it, without the module."""
    if annotation is None:
        return "None"
    if isinstance(annotation, type):
        return annotation.__name__
    return inspect.formatannotation(annotation)


def value_of(annotation: Any) -> Any:
    return annotation.__value__ if isinstance(annotation, Alias) else annotation


if TYPE_CHECKING:
    Array = npt.NDArray[Any]
    ArrayLike = npt.ArrayLike | SupportsDLPack
    Out = npt.NDArray[Any] | SupportsDLPack
    NumpyArrayLike = npt.ArrayLike
    DTypeLike = npt.DTypeLike
else:
    Array = Alias("Array", npt.NDArray[Any])
    ArrayLike = Alias("ArrayLike", npt.ArrayLike | SupportsDLPack)
    Out = Alias("Out", npt.NDArray[Any] | SupportsDLPack)
    NumpyArrayLike = Alias("ArrayLike", npt.ArrayLike)
    DTypeLike = Alias("DTypeLike", npt.DTypeLike)
