"""What a forward pass leaves behind: activations by name, and the ids and tokens that it read."""

import difflib
import fnmatch
import html
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simdformer.arguments import shown
from simdformer.models.activation_table import every_activation
from simdformer.types import Array

__all__ = ["Trace", "matching_names", "transformer_lens_name"]

# TransformerLens' names for ours; {} is a layer.
TRANSFORMER_LENS = {
    f"blocks.{{}}.{row.lens}" if row.in_layer else row.lens: (
        f"layers.{{}}.{row.name}" if row.in_layer else row.name
    )
    for row in every_activation()
    if row.lens
}
LAYER = re.compile(r"(?<=^blocks\.)(\d+|\*)(?=\.)")
OF_A_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
IDS, TOKENS, MODEL = "ids", "tokens", "model"  # beside the activations in a file


def transformer_lens_name(name: str) -> str:
    """Our name (or glob) for one of TransformerLens; any other as it is.

    >>> transformer_lens_name("blocks.4.attn.hook_pattern")
    'layers.4.attn.pattern'
    """
    layer = LAYER.search(name)
    general = name if layer is None else name[: layer.start()] + "{}" + name[layer.end() :]
    ours = TRANSFORMER_LENS.get(general)
    return name if ours is None else ours.format("" if layer is None else layer[0])


def matching_names(glob: str, known: Sequence[str], who: str) -> list[str]:
    """Those of the known names that a name or a glob means; KeyError, with near ones, if none."""
    ours = transformer_lens_name(glob)
    found = fnmatch.filter(known, ours)
    if not found and ours != glob:  # what goes into the activation: without a gate that is mlp.up
        found = fnmatch.filter(known, ours.replace("mlp.gate", "mlp.up"))
    if not found:
        near = difflib.get_close_matches(glob, known, n=4, cutoff=0.4)
        raise KeyError(
            f"{who}: no activation is called {shown(glob)}; near are {', '.join(near or known[:4])}"
        )
    return found


class Trace(Mapping[str, Array]):
    """The activations of one forward pass: names and arrays, in the order of computation.

    `trace["layers.4.attn.pattern"]` is one of them, `trace["pattern", 4]` the same, `trace[4]`
    those of layer 4 under their short names, `trace["layers.*.mlp.out"]` those that a glob fits,
    as a trace again. TransformerLens' names are understood. What does not exist is a KeyError that
    lists near names.

    ids : ndarray (L,) or (B,L)
        What the model read.
    tokens : list of str, or None
        The same as text, a piece for each id (a list of lists for a batch); None without a
        tokenizer.
    model : str
        What computed it, in a few words.

    >>> import simdformer as sf
    >>> model = sf.from_pretrained(sf.demo_path())
    >>> logits, trace = model.run_with_cache("Mia has a red kite.")
    >>> trace["pattern", 4] is trace["layers.4.attn.pattern"] is trace[4]["attn.pattern"]
    True
    >>> trace["blocks.4.attn.hook_pattern"] is trace["pattern", 4]
    True
    """

    def __init__(
        self,
        activations: Mapping[str, Array],
        *,
        ids: Array,
        tokens: list[Any] | None = None,
        model: str = "",
    ) -> None:
        self._activations = dict(activations)
        self.ids, self.tokens, self.model = ids, tokens, model

    # ---- a mapping -------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        found = self._activations.get(key) if isinstance(key, str) else None
        if found is not None:
            return found
        if isinstance(key, tuple):
            return self._of_layer(*key)
        if isinstance(key, int | np.integer) and not isinstance(key, bool):
            return self._layer(int(key))
        if not isinstance(key, str):
            raise KeyError(f"trace: {shown(key)} is no name, needs a name, a glob or a layer")
        names = matching_names(key, list(self), "trace")
        if any(character in key for character in "*?["):
            return self._with({name: self._activations[name] for name in names})
        return self._activations[names[0]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._activations)

    def __len__(self) -> int:
        return len(self._activations)

    def _ipython_key_completions_(self) -> list[str]:
        """What a notebook offers behind `trace["`."""
        return list(self)

    def __or__(self, other: Mapping[str, Array]) -> "Trace":
        return self._with(self._activations | dict(other))

    @property
    def num_layers(self) -> int:
        """One more than the last layer that something is known of."""
        layers = [int(found[1]) for name in self if (found := OF_A_LAYER.fullmatch(name))]
        return max(layers, default=-1) + 1

    def _of_layer(self, *key: Any) -> Any:
        """trace["pattern", 4]: the short name, or its last part, in a layer."""
        names = [part for part in key if isinstance(part, str)]
        numbers = [part for part in key if isinstance(part, int | np.integer)]
        if len(key) != 2 or len(names) != 1 or len(numbers) != 1:
            raise KeyError(f"trace: {shown(key)} is no place, needs (name, layer)")
        layer = self._layer(int(numbers[0]))
        for name, array in layer.items():
            if names[0] in (name, name.rpartition(".")[2]):
                return array
        return layer[names[0]]  # with near names

    def _layer(self, layer: int) -> "Trace":
        count = self.num_layers
        index = layer + count if layer < 0 else layer
        start = f"layers.{index}."
        inside = {
            name[len(start) :]: array
            for name, array in self._activations.items()
            if name.startswith(start)
        }
        if not inside:
            raise KeyError(f"trace: nothing is known of layer {layer}, needs 0 to {count - 1}")
        return self._with(inside)

    def _with(self, activations: Mapping[str, Array]) -> "Trace":
        return type(self)(activations, ids=self.ids, tokens=self.tokens, model=self.model)

    # ---- files -----------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything to an .npz file, under exactly this name."""
        told: dict[str, Any] = {IDS: self.ids, MODEL: np.array(self.model)}
        if self.tokens is not None:
            told[TOKENS] = np.array(json.dumps(self.tokens))  # numpy's text ends before a NUL
        with Path(path).open("wb") as file:  # a name would get a suffix
            np.savez(file, allow_pickle=False, **told, **self._activations)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """Reads what `save` wrote. ValueError for a file of another kind."""
        try:
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as found:
                arrays = {name: found[name] for name in found.files}
            ids, model = arrays.pop(IDS), str(arrays.pop(MODEL))
            tokens = json.loads(str(arrays.pop(TOKENS, "null")))
        except (FileNotFoundError, IsADirectoryError, PermissionError, MemoryError):
            raise
        except Exception as error:  # damage shows in many ways
            reason = " ".join(str(error).split())[:120]
            raise ValueError(
                f"Trace.load: {os.fspath(path)} is no file that Trace.save wrote ({reason})"
            ) from None
        return cls(arrays, ids=ids, tokens=tokens, model=model)

    # ---- for people ------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._activations.values())

    def __repr__(self) -> str:
        shape = " x ".join(map(str, np.shape(self.ids)))
        of = f"{self.model}, " if self.model else ""
        return f"Trace({of}{shape} tokens, {len(self)} names, {self.nbytes / 1e6:.1f} MB)"

    def _repr_html_(self) -> str:
        """A row for each name of a layer: its shape, and its size (RMS) layer by layer."""
        layers = range(self.num_layers)
        table: dict[str, list[Array | None]] = {}  # in the order of computation
        for name, array in self._activations.items():
            if (found := OF_A_LAYER.fullmatch(name)) is None:
                table[name] = [array]
            else:
                row = table.setdefault(found[2], [None] * len(layers))
                row[int(found[1])] = array
        head = "".join(f"<th>{layer}</th>" for layer in layers)
        rows = "".join(row_of(name, arrays, len(layers)) for name, arrays in table.items())
        return (
            f"<p>{html.escape(repr(self))}</p><table><thead><tr><th>name</th><th>shape</th>{head}"
            f"</tr></thead><tbody>{rows}</tbody></table>"
            "<p>Under a layer: the root mean square of the array, infinities left out.</p>"
        )


def row_of(name: str, arrays: Sequence[Array | None], layers: int) -> str:
    """One number a layer, or one for all of them."""
    span = 1 if len(arrays) == layers else max(layers, 1)
    sizes = ["" if array is None else f"{rms(array):.3g}" for array in arrays]
    cells = "".join(f'<td colspan="{span}" style="text-align: center">{n}</td>' for n in sizes)
    shapes = dict.fromkeys(array.shape for array in arrays if array is not None)
    shown = ", ".join(" × ".join(map(str, shape)) for shape in shapes)  # layers may differ
    return f"<tr><td><code>{html.escape(name)}</code></td><td>{shown}</td>{cells}</tr>"


def rms(array: Array) -> float:
    numbers = array[np.isfinite(array)].astype(np.float64)
    return float(np.sqrt(np.mean(numbers**2))) if numbers.size else float("nan")
