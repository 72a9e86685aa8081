"""Which gradients a learner's arrays are, by what he calls them, and how they lie."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.fused import FUSED
from simdformer.checkpoints.huggingface_architectures import ARCHITECTURES
from simdformer.checkpoints.names import renamed
from simdformer.checkpoints.rope_rows import TURNED, in_layout
from simdformer.checkpoints.tensor_names import LLAMA
from simdformer.learn.gradients.steps import WEIGHT, BackwardSteps
from simdformer.learn.trace.axes import View, array_of, as_it_is, views
from simdformer.learn.trace.entry import in_few_bits
from simdformer.learn.trace.places import Place, none_known, place
from simdformer.models.weights import weight_shapes
from simdformer.training.export import config_json, with_halves

__all__ = ["Gradient", "Names", "gradients_of"]

Array = np.ndarray[Any, Any]
ORDERED = tuple(f".{name}" for name in TURNED)
EMBED, HEAD = f"{WEIGHT}embed", f"{WEIGHT}lm_head"


@dataclass(frozen=True)
class Gradient:
    """One gradient of a learner's.

    key : what he calls it
    name : what it is called in steps.py
    array : None where his parameter has none
    """

    key: Any
    name: str
    array: Array | None

    @property
    def short(self) -> str:
        """The weight or the activation."""
        return self.name.removeprefix(WEIGHT)

    @property
    def called(self) -> str:
        """The same, and the learner's own name where it is another one."""
        return self.short if self.key == self.short else f"{self.short} ({self.key})"

    @property
    def is_matrix(self) -> bool:
        is_weight = self.name.startswith(WEIGHT) and self.name != EMBED
        return is_weight and self.array is not None and self.array.ndim == 2


def gradients_of(function: str, mine: Any) -> Mapping[Any, Any]:
    """The gradients of a module by the names of its parameters; a dict as it is."""
    if isinstance(mine, Mapping):
        found = mine
    elif hasattr(mine, "named_parameters"):
        found = {name: parameter.grad for name, parameter in mine.named_parameters()}
    else:
        raise TypeError(
            f"{function}: mine is a {type(mine).__name__}, needs a dict of gradients, or a module "
            "of PyTorch"
        )
    if found and all(gradient is None for gradient in found.values()):
        raise ValueError(
            f"{function}: mine has no gradient for any of its parameters, needs gradients; call "
            "loss.backward() first, and zero_grad() after the check"
        )
    return found


class Names:
    """The names of a model's weights: ours, Hugging Face's, Meta's; and those of activations."""

    def __init__(self, function: str, steps: BackwardSteps, aliases: Mapping[Any, Any]) -> None:
        self.function, self.aliases = function, aliases
        self.steps, self.config = steps, steps.config
        self.shapes = weight_shapes(self.config)
        self.hugging, self.transposed = LLAMA.huggingface, frozenset[str]()
        try:
            tensors = {name: np.empty(0) for name in self.shapes}
            kind, _ = config_json(with_halves(self.config, {})[0], tensors, ())
            self.hugging = dict(ARCHITECTURES[kind].names.tensors)
            self.transposed = frozenset(ARCHITECTURES[kind].transposed)
        except CheckpointError:  # no model of theirs is like this one
            pass

    def read(self, mine: Mapping[Any, Any]) -> tuple[list[Gradient], dict[Any, list[str]]]:
        """What is known by name, from the logits back to the embedding; unknown names with near
        ones."""
        entries: list[Gradient] = []
        unknown: dict[Any, list[str]] = {}
        for key, value in mine.items():
            array = None if value is None else in_few_bits(array_of(value), "")
            found = list(self.meant(key, array))
            entries += found
            if not found:
                unknown[key] = difflib.get_close_matches(str(key), [*self.shapes], n=3, cutoff=0.5)
        if not entries:
            raise none_known(self.function, mine, self.shapes)
        order = {name: number for number, name in enumerate(self.steps.steps)}
        return sorted(entries, key=lambda one: order.get(one.name, -1)), unknown

    def meant(self, key: Any, array: Array | None) -> Iterator[Gradient]:
        """What a name means: a weight, several in one, or an activation."""
        named = self.aliases.get(key, key)
        if isinstance(named, str):
            named = named.strip().removesuffix(".grad")
            if self.is_weight(named, array):
                yield Gradient(key, WEIGHT + named, array)
                return
            for theirs in (named, f"model.{named}", named.removeprefix("transformer.")):
                for names in (self.hugging, LLAMA.meta):
                    if ours := renamed(theirs, names):
                        yield from self.parts(key, ours, array, names is self.hugging)
                        return
        activation = place(key, self.config, self.aliases)
        if activation is not None and activation.head is None:
            name = self.steps.stream(activation.name)
            if name in self.steps.right:
                yield Gradient(key, name, array)

    def is_weight(self, name: str, array: Array | None) -> bool:
        """Whether a name of ours means the weight: some activations have the same."""
        if name not in self.shapes:
            return name == "lm_head"  # a tied one
        if array is None or array.shape == self.shapes[name]:
            return True
        meant = place(name, self.config)
        return meant is None or self.view(Gradient(name, meant.name, array)) is None

    def parts(self, key: Any, ours: str, array: Array | None, hugging: bool) -> Iterator[Gradient]:
        """One weight of ours, or several that others keep in one."""
        at, _, kind = ours.rpartition(".")
        names = [f"{at}.{part}" for part in FUSED.get(kind, ())] or [ours]
        if not self.shapes.keys() | {"lm_head"} >= set(names):
            return
        if array is None:
            yield from (Gradient(key, WEIGHT + name, None) for name in names)
            return
        array = array.T if hugging and kind in self.transposed else array
        ends = np.cumsum([self.shapes[name][0] for name in names if name in self.shapes])
        for name, piece in zip(names, np.split(array, ends[:-1]), strict=True):
            ordered = hugging and name.endswith(ORDERED)
            yield Gradient(key, WEIGHT + name, self.in_order(piece) if ordered else piece)

    def in_order(self, rows: Array) -> Array:
        """Hugging Face's rows of wq and wk in the order that this model has."""
        size = self.config.head_dim
        if self.config.rope_layout == "half" or rows.ndim == 0 or len(rows) % size:
            return rows
        return in_layout(rows, head_dim=size, wanted="interleaved")

    # ---- how they lie ----------------------------------------------------------------------------

    def turned(self, entries: list[Gradient]) -> tuple[list[Gradient], list[str]]:
        """Matrices as (out, in), with a remark where they lie as (in, out)."""
        if not self.are_turned(entries):
            return entries, []
        ours = [
            replace(one, array=one.array.T) if one.is_matrix and one.array is not None else one
            for one in entries
        ]
        return ours, ["your matrices lie as (in, out), for x @ w"]

    def tied(self, entries: list[Gradient]) -> tuple[list[Gradient], list[str]]:
        """The sum of both halves, with a remark, where a tied embedding has a head beside it."""
        remarks: list[str] = []
        if "lm_head" in self.shapes:
            return entries, remarks
        of_head = next((one.array for one in entries if one.name == HEAD), None)
        entries = [one for one in entries if one.name != HEAD]
        for number, one in enumerate(entries):
            if one.name != EMBED or one.array is None or of_head is None:
                continue
            if one.array.shape == of_head.shape and not np.array_equal(one.array, of_head):
                remarks.append("embedding and lm_head are one matrix here: yours are added")
                entries[number] = replace(one, array=one.array + of_head)
        return entries, remarks

    def are_turned(self, entries: list[Gradient]) -> bool:
        """Whether all matrices that are not square, of two or more, lie as (in, out)."""
        shapes = [
            (one.array.shape, self.shapes.get(one.short, ()))
            for one in entries
            if one.is_matrix and one.array is not None
        ]
        oblong = [(found, needed) for found, needed in shapes if len(set(needed)) == 2]
        return len(oblong) > 1 and all(found == needed[::-1] for found, needed in oblong)

    def view(self, entry: Gradient) -> View | None:
        """How the right gradient is brought into the learner's axes; None where it cannot be."""
        shape = () if entry.array is None else entry.array.shape
        if not entry.name.startswith(WEIGHT):
            return next(views(shape, Place(entry.name), self.config, self.steps.ids), None)
        axes: tuple[str, ...] = ("channel",)
        if len(shape) == 2:
            axes = ("id", "channel") if entry.name in (EMBED, HEAD) else ("output", "input")
        fits = shape == self.shapes[entry.short]
        return View(as_it_is, as_it_is, axes) if fits else None
