"""Looking on while a model runs: activations are kept, or changed on their way, by name.

What is kept is what the kernels computed, no second computation. Only what follows a change of
`attn.scores` or `attn.pattern` is computed here, because inside the kernel there is nothing to
change.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from simdformer.arguments import as_array, read_several, shown
from simdformer.functional import softmax
from simdformer.models.config import ModelConfig
from simdformer.models.trace import matching_names
from simdformer.reference import float64, repeat_kv, weighted_sum
from simdformer.types import Array

__all__ = ["Edit", "Observer", "See", "see_attention", "trace_names", "unseen"]

Edit = Array | Callable[[Array], Array | None]
See = Callable[[str, Array], Array]  # see(name, value) -> the value, or what it was changed to

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
    absent = set() if config.qk_norm else {"attn.q_normed", "attn.k_normed"}
    absent |= {"attn_norm", "mlp_norm"} if config.norm_placement == "after" else set()
    layer = [name for name in LAYER_NAMES if name not in absent]
    layers = [f"layers.{index}.{name}" for index in range(config.num_layers) for name in layer]
    return ["embed", *layers, "final_norm", "logits"]


def unseen(name: str, value: Array) -> Array:
    """What `see` is when nobody looks."""
    return value


class Observer:
    """Sees the activations (B, ...) of a forward pass one after the other.

    names : globs, or None for all
        What to keep in `activations`, as float32.
    edit : dict of name or glob -> array or function
        What to change: see `Transformer.__call__`.
    batched : bool
        Whether a batch axis stands in front of what is kept and of what functions get.

    An unknown name or a glob that fits nothing: KeyError that lists near ones.
    """

    def __init__(
        self,
        config: ModelConfig,
        names: str | Iterable[str] | None,
        edit: Mapping[str, Edit] | None,
        *,
        batched: bool,
    ) -> None:
        self._known = trace_names(config)
        self._batched = batched
        self._edits: dict[str, list[Callable[[Array], Array | None]]] = {}
        self._kept: dict[str, Array] = {}
        self._wanted: set[str] = set(self._known) if names is None else set()
        for glob in read_several("trace", "names", names, "names or globs, or None"):
            self._wanted.update(self._matching(glob, "trace"))
        for glob, function in (edit or {}).items():
            if not callable(function):
                function = constant(glob, function)
            for name in self._matching(glob, "edit"):
                self._edits.setdefault(name, []).append(function)

    @property
    def activations(self) -> dict[str, Array]:
        """What was kept, in the order of computation."""
        return {name: self._kept[name] for name in self._known if name in self._kept}

    def at(self, layer: int | None) -> See:
        """`see` for the names of one layer, or for those outside of layers (None)."""
        prefix = "" if layer is None else f"layers.{layer}."
        return lambda name, value: self._see(prefix + name, value)

    def wants(self, layer: int, *names: str) -> bool:
        full = {f"layers.{layer}.{name}" for name in names}
        return not full.isdisjoint(self._wanted) or not full.isdisjoint(self._edits)

    def _see(self, name: str, value: Array) -> Array:
        if name in self._edits:
            value = self._edited(name, value)
        if name in self._wanted:
            self._kept[name] = np.array(self._inside(value), np.float32)
        return value

    def _edited(self, name: str, value: Array) -> Array:
        """The value itself when nothing has changed, so that nothing need be computed anew."""
        wide = np.float64 if value.dtype == np.float64 else np.float32
        now = np.array(self._inside(value), wide)
        for function in self._edits[name]:
            given = function(now)
            if given is None:
                continue
            if not isinstance(given, np.ndarray) or (given.shape, given.dtype) != (
                now.shape,
                now.dtype,
            ):
                found = getattr(given, "dtype", type(given).__name__)
                raise ValueError(
                    f"edit: the function for {name!r} gave {found} {np.shape(given)}, needed is "
                    f"{now.dtype} {now.shape}, or None"
                )
            now = given
        changed = now.astype(value.dtype)
        if changed.tobytes() == self._inside(value).tobytes():
            return value
        return changed if self._batched else changed[None]

    def _inside(self, value: Array) -> Array:
        return value if self._batched else value[0]

    def _matching(self, glob: str, who: str) -> list[str]:
        if not isinstance(glob, str):
            raise TypeError(f"{who}: {shown(glob)} among the names, needed are names or globs")
        return matching_names(glob, self._known, who)


def constant(glob: str, given: object) -> Callable[[Array], Array]:
    """An edit that puts an array in the place of whatever comes."""
    array = as_array("edit", repr(glob), given)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise TypeError(
            f"edit: {glob!r} is {shown(given)}, needed is an array, or a function of one"
        )

    def put(value: Array) -> Array:
        try:
            return np.broadcast_to(array, value.shape).astype(value.dtype)
        except ValueError:
            raise ValueError(
                f"edit: the array for {glob!r} has shape {array.shape}, needed is {value.shape}"
            ) from None

    return put


def see_attention(see: See, scores: Array, pattern: Array, values: Array, z: Array) -> Array:
    """Shows scores and pattern (B,H,L,S); gives z (B,L,H,D), or what follows from their changes."""
    seen_scores = see("attn.scores", scores)
    if seen_scores is not scores:
        nothing = np.isneginf(seen_scores).all(axis=-1, keepdims=True)  # to look at: shares of 0
        pattern = np.where(nothing, 0, softmax(np.where(nothing, 0, seen_scores)))
    seen_pattern = see("attn.pattern", pattern)
    if seen_scores is scores and seen_pattern is pattern:
        return z
    shares = float64(seen_pattern)
    every_head = repeat_kv(values, shares.shape[1] // values.shape[1])  # (B,H,S,D)
    # Behind the end of a sequence a cache holds garbage: a share of 0 must not make it count.
    return weighted_sum(shares, every_head, shares != 0).swapaxes(1, 2).astype(z.dtype)
