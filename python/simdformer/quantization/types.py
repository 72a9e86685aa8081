"""The table of the quantised types. Their names are those of ggml, which made them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["QuantizationType", "quantization_types"]


class QuantizationType(NamedTuple):
    """A way to hold weights in few bits: `block` successive inputs of one output in `nbytes` bytes.

    `group` of them share a scale; `has_minimum` says whether a number is subtracted from all of
    them, too: value = scale · code - minimum. `writable` types are those that `quantize` can make.
    """

    name: str
    block: int
    nbytes: int
    group: int
    has_minimum: bool
    writable: bool

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / self.block

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields[1:])
        return (
            f"QuantizationType({self.name!r}, bits_per_weight={self.bits_per_weight:g}, {fields})"
        )


# name, block, bytes, group, minimum, writable
_TYPES = (
    QuantizationType("q8_0", 32, 34, 32, False, True),
    QuantizationType("q6_k", 256, 210, 16, False, True),
    QuantizationType("q5_1", 32, 24, 32, True, True),
    QuantizationType("q5_0", 32, 22, 32, False, True),
    QuantizationType("q5_k", 256, 176, 32, True, True),
    QuantizationType("q4_1", 32, 20, 32, True, True),
    QuantizationType("q4_0", 32, 18, 32, False, True),
    QuantizationType("q4_k", 256, 144, 32, True, True),
    QuantizationType("iq4_nl", 32, 18, 32, False, False),
    QuantizationType("mxfp4", 32, 17, 32, False, True),
    QuantizationType("iq4_xs", 256, 136, 32, False, False),
    QuantizationType("q3_k", 256, 110, 16, False, False),
    QuantizationType("q2_k", 256, 84, 16, True, False),
)
_BY_NAME = MappingProxyType({kind.name: kind for kind in _TYPES})


def quantization_types() -> Mapping[str, QuantizationType]:
    """The types by name, those of many bits first.

    >>> from simdformer import quantization_types
    >>> quantization_types()["q4_k"].bits_per_weight
    4.5
    >>> quantization_types()["q8_0"]
    QuantizationType('q8_0', bits_per_weight=8.5, block=32, nbytes=34, group=32, has_minimum=False,
                     writable=True)
    >>> [name for name, kind in quantization_types().items() if not kind.writable]
    ['iq4_nl', 'iq4_xs', 'q3_k', 'q2_k']
    """
    return _BY_NAME
