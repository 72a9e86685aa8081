"""Every activation of a forward pass by name: what the kernels computed, no second computation."""

import difflib
import fnmatch
from collections.abc import Iterable, Mapping

import numpy as np

from simdformer.models.config import ModelConfig
from simdformer.types import Array

__all__ = ["Trace", "trace_names"]


LAYER_NAMES = (
    "resid_pre",
    "attn_norm",
    "attn.q",
    "attn.k",
    "attn.v",
    "attn.q_normed",
    "attn.k_normed",
    "attn.q_rot",
    "attn.k_rot",
    "attn.scores",
    "attn.pattern",
    "attn.z",
    "attn.out",
    "resid_mid",
    "mlp_norm",
    "mlp.gate",
    "mlp.up",
    "mlp.act",
    "mlp.out",
    "resid_post",
)


def trace_names(config: ModelConfig) -> list[str]:
    """The names that a trace of this model has, in the order of computation."""
    layer = [name for name in LAYER_NAMES if config.qk_norm or not name.endswith("_normed")]
    layers = [f"layers.{index}.{name}" for index in range(config.num_layers) for name in layer]
    return ["embed", *layers, "final_norm", "logits"]


class Trace:
    """Collects the activations whose names were asked for (globs; None: all) in `activations`, as
    float32.

    An unknown name or a glob that fits nothing: KeyError that lists near ones.
    """

    def __init__(
        self, config: ModelConfig, names: str | Iterable[str] | None, *, batched: bool
    ) -> None:
        known = trace_names(config)
        self.activations: dict[str, Array] = {}
        self._batched = batched
        self._wanted: set[str] = set(known) if names is None else set()
        for pattern in [names] if isinstance(names, str) else names or ():
            found = fnmatch.filter(known, pattern)
            if not found:
                near = difflib.get_close_matches(pattern, known, n=4, cutoff=0.4) or known[:4]
                raise KeyError(
                    f"trace: no activation is called {pattern!r}; near are {', '.join(near)}"
                )
            self._wanted.update(found)

    def wants(self, layer: int, *names: str) -> bool:
        return any(f"layers.{layer}.{name}" in self._wanted for name in names)

    def record(self, layer: int | None, values: Mapping[str, Array]) -> None:
        """Keeps those of the arrays (B, ...) that are wanted."""
        for name, value in values.items():
            key = name if layer is None else f"layers.{layer}.{name}"
            if key in self._wanted:
                self.activations[key] = np.array(value if self._batched else value[0], np.float32)

    def in_order(self, config: ModelConfig) -> dict[str, Array]:
        return {
            name: self.activations[name] for name in trace_names(config) if name in self.activations
        }
