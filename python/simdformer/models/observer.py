"""Looking on while a model runs: activations are kept, or changed on their way, by name.

What is kept is what the kernels computed, no second computation. Here is computed what follows a
change of `attn.scores` or `attn.pattern`, because inside the kernel there is nothing to change, and
what no kernel computes: what each head writes, and the scale of the final norm.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from simdformer.arguments import as_array, read_several, shown
from simdformer.functional import softmax
from simdformer.models.activation_table import Activation, activations, trace_names
from simdformer.models.config import ModelConfig
from simdformer.models.ranks import Ranks, Split
from simdformer.models.trace import matching_names
from simdformer.reference import repeat_kv
from simdformer.reference.forward import float64, weighted_sum
from simdformer.types import Array

__all__ = [
    "Edit",
    "Observer",
    "See",
    "meant_names",
    "see_attention",
    "see_experts",
    "see_results",
    "see_scale",
    "unseen",
]

Edit = Array | Callable[[Array], Array | None]

# Where several ranks hold a model, each sees its part along one of these axes.
SPLIT: dict[str, Split] = {"H": "heads", "K": "kv_heads", "I": "inner", "J": "shared_inner"}


def meant_names(config: ModelConfig, glob: str, who: str) -> list[str]:
    """What a name or a glob means in this model: what is there on request is meant only where
    nothing else is. KeyError, with near names, if there is none."""
    found = matching_names(glob, trace_names(config, on_request=True), who)
    usual = set(trace_names(config))
    return [name for name in found if name in usual] or found


class Observer:
    """Sees the activations (B, ...) of a forward pass one after the other; whole ones,
    where several ranks hold the model.

    names : globs, or None for all
        What to keep in `activations`, as float32, or ids as they are.
    edit : dict of name or glob -> array or function
        What to change: see `Transformer.__call__`.
    batched : bool
        Whether a batch axis stands in front of what is kept and of what functions get.
    start : (layer, (B,L,E)), optional
        The layer that the pass starts with, and the residual stream in front of it.

    An unknown name or a glob that fits nothing: KeyError that lists near ones.
    """

    def __init__(
        self,
        ranks: Ranks,
        config: ModelConfig,
        names: str | Iterable[str] | None,
        edit: Mapping[str, Edit] | None,
        *,
        batched: bool,
        start: tuple[int, Array] | None = None,
    ) -> None:
        self._ranks, self._config = ranks, config
        self._batched, self.start = batched, start
        self._rows = activations(config, without=("untraced",))
        self._edits: dict[str, list[Callable[[Array], Array | None]]] = {}
        self._kept: dict[str, Array] = {}
        self._wanted: set[str] = set(trace_names(config)) if names is None else set()
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
        return {name: self._kept[name] for name in self._rows if name in self._kept}

    def wants(self, name: str) -> bool:
        return name in self._wanted or name in self._edits

    def see(self, name: str, value: Array) -> Array:
        if not self.wants(name):
            return value
        seen, changed = self._joined(name, value), None
        if name in self._edits:  # by rank 0
            changed = self._ranks.communicator.broadcast(lambda: self._edited(name, seen))
        seen = seen if changed is None else changed
        if name in self._wanted:
            kind = np.float32 if seen.dtype.kind != "i" else seen.dtype
            self._kept[name] = np.array(self._inside(seen), kind)
        return value if changed is None else self._own(name, changed)

    def _joined(self, name: str, value: Array) -> Array:
        """The whole of what each rank has its part of."""
        row = self._rows[name]
        if row.mark in ("by expert", "added"):
            return self._ranks.all_reduce(value)
        split = split_of(row)
        return self._ranks.all_gather(value, *split) if split else value

    def _own(self, name: str, whole: Array) -> Array:
        """The part of a whole one that is this rank's; a sum is all rank 0's."""
        row = self._rows[name]
        if row.mark == "added":
            return whole if self._ranks.communicator.rank == 0 else np.zeros_like(whole)
        split = split_of(row)
        return self._ranks.part(whole, *split) if split else whole

    def _edited(self, name: str, value: Array) -> Array | None:
        """None when nothing has changed, so that nothing need be computed anew."""
        as_is = value.dtype == np.float64 or value.dtype.kind == "i"
        now = np.array(self._inside(value), value.dtype if as_is else np.float32)
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
                    f"edit: the function for {name!r} gave {found} {np.shape(given)}, needs "
                    f"{now.dtype} {now.shape}, or None"
                )
            now = given
        changed = now.astype(value.dtype)
        if changed.tobytes() == self._inside(value).tobytes():
            return None
        return changed if self._batched else changed[None]

    def _inside(self, value: Array) -> Array:
        return value if self._batched else value[0]

    def _matching(self, glob: str, who: str) -> list[str]:
        if not isinstance(glob, str):
            raise TypeError(f"{who}: {shown(glob)} among the names, needs names or globs")
        return meant_names(self._config, glob, who)


def split_of(row: Activation) -> tuple[Split, int] | None:
    """Along which axis of (B, ...) ranks have parts of it; None: all have all of it."""
    for at, axis in enumerate(row.axes):
        if axis in SPLIT:
            return SPLIT[axis], at + 1
    return None


@dataclass(frozen=True, slots=True)
class See:
    """`value = see(name, value)` lets whoever looks on keep the value, or change it.

    The names are those of one layer, or those outside of layers (None)."""

    observer: Observer | None = None
    layer: int | None = None

    def __call__(self, name: str, value: Array) -> Array:
        return value if self.observer is None else self.observer.see(self._full(name), value)

    def wants(self, *names: str) -> bool:
        """Whether anybody looks at one of these."""
        observer = self.observer
        return observer is not None and any(observer.wants(self._full(name)) for name in names)

    def _full(self, name: str) -> str:
        return name if self.layer is None else f"layers.{self.layer}.{name}"


unseen = See()  # when nobody looks


def constant(glob: str, given: object) -> Callable[[Array], Array]:
    """An edit that puts an array in the place of whatever comes."""
    array = as_array("edit", repr(glob), given)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise TypeError(f"edit: {glob!r} is {shown(given)}, needs an array, or a function of one")

    def put(value: Array) -> Array:
        try:
            return np.broadcast_to(array, value.shape).astype(value.dtype)
        except ValueError:
            raise ValueError(
                f"edit: the array for {glob!r} has shape {array.shape}, needs {value.shape}"
            ) from None

    return put


def see_experts(see: See, ids: Array, num_experts: int) -> Array:
    """Shows which experts (B,L,k) each position goes through; checks what they are changed to."""
    seen = see("mlp.experts", ids)
    if seen is not ids:
        inside = (seen >= 0) & (seen < num_experts)
        ordered = np.sort(seen, axis=-1)
        if not inside.all() or (ordered[..., 1:] == ordered[..., :-1]).any():
            raise ValueError(
                "edit: mlp.experts became something else than experts, needs for each position"
                f" {ids.shape[-1]} different numbers from 0 to {num_experts - 1}"
            )
    return seen


def see_attention(
    see: See, scores: Array, pattern: Array, values: Array, z: Array, sinks: Array | None
) -> Array:
    """Shows scores and pattern (B,H,L,S); gives z (B,L,H,D), or what follows from their changes.
    A sink (H,) takes its share of a row of the softmax, which no key gets."""
    seen_scores = see("attn.scores", scores)
    if seen_scores is not scores:
        pattern = pattern_of(seen_scores, sinks)
    seen_pattern = see("attn.pattern", pattern)
    if seen_scores is scores and seen_pattern is pattern:
        return z
    shares = float64(seen_pattern)
    every_head = repeat_kv(values, shares.shape[1] // values.shape[1])  # (B,H,S,D)
    # Behind the end of a sequence a cache holds garbage: a share of 0 must not make it count.
    return weighted_sum(shares, every_head, shares != 0).swapaxes(1, 2).astype(z.dtype)


def pattern_of(scores: Array, sinks: Array | None) -> Array:
    """The softmax over scores (B,H,L,S), and over the sink of each head."""
    if sinks is not None:
        column = sinks.astype(scores.dtype).reshape(-1, 1, 1)
        column = np.broadcast_to(column, (*scores.shape[:-1], 1))
        return softmax(np.concatenate([scores, column], axis=-1))[..., :-1]
    nothing = np.isneginf(scores).all(axis=-1, keepdims=True)  # to look at: shares of 0
    return np.where(nothing, 0, softmax(np.where(nothing, 0, scores)))


def see_results(see: See, z: Array, out: Array, project: Callable[[Array], Array]) -> Array:
    """Shows what each head writes (B,L,H,E), its z (B,L,H,D) alone through `project` (...,H·D) ->
    (...,E); gives out (B,L,E), or what follows from their changes."""
    heads = range(z.shape[2])
    alone = np.zeros((*z.shape[:3], *z.shape[2:]), z.dtype)  # (B,L,H,H,D)
    alone[:, :, heads, heads] = z
    results = project(alone.reshape(*z.shape[:3], -1))
    seen = see("attn.result", results)
    if seen is results:
        return out
    by: Array = (float64(seen) - float64(results)).sum(axis=2)
    changed: Array = (float64(out) + by).astype(out.dtype)
    return changed


def see_scale(see: See, x: Array, normed: Array, bias: Array | None, config: ModelConfig) -> Array:
    """Shows what the final norm divides x by (B,L,1), or x less its mean where it is a LayerNorm;
    gives its output, or what follows from a change."""
    wide = float64(x)
    if config.norm == "layer_norm":
        wide = wide - wide.mean(axis=-1, keepdims=True)
    squares = np.square(wide).mean(axis=-1, keepdims=True)
    scale = np.sqrt(squares + config.norm_eps).astype(np.promote_types(x.dtype, np.float32))
    seen = see("final_norm_scale", scale)
    if seen is scale:
        return normed
    added = 0 if bias is None else bias
    changed: Array = ((normed - added) * (scale / seen) + added).astype(normed.dtype)
    return changed
