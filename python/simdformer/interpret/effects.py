"""Numbers by layer and place, as `patch` and `ablate` give them: an array that knows its labels."""

import html
from typing import Any

import numpy as np

from simdformer.types import Array

__all__ = ["Effects"]


class Effects(np.ndarray[Any, Any]):
    """A float64 array (layers, places) or (layers,), with what its numbers are of.

    title : str
        What they say.
    names : list of str
        The activation of each row.
    places : list of str
        The head or the position of each column; [] where there is one number a layer.

    Whatever is computed from it is a plain array.
    """

    title: str
    names: list[str]
    places: list[str]

    @classmethod
    def of(cls, numbers: Array, title: str, names: list[str], places: list[str]) -> "Effects":
        found = np.asarray(numbers).view(cls)
        found.title, found.names, found.places = title, names, places
        return found

    def __array_finalize__(self, other: Any) -> None:
        """Parts have no labels that would fit."""
        self.title, self.names, self.places = "", [], []

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar or array.ndim == 0 else np.asarray(array)

    def __reduce__(self) -> Any:
        return Effects.of, (np.asarray(self), self.title, self.names, self.places)

    def _repr_html_(self) -> str | None:
        """A table with its labels, shaded by size: blue where positive, red where negative."""
        if not self.names:
            return None
        most = float(np.abs(np.asarray(self)).max(initial=1e-12))
        head = "".join(f"<th>{html.escape(place)}</th>" for place in self.places or [""])
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th>{''.join(cell(x, most) for x in row)}</tr>"
            for name, row in zip(self.names, np.asarray(self).reshape(len(self), -1), strict=True)
        )
        return (
            f"<p>{html.escape(self.title)}</p><table><thead><tr><th></th>{head}</tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )


def cell(number: float, most: float) -> str:
    colour = "45, 105, 210" if number >= 0 else "200, 70, 50"
    shade = f"background: rgba({colour}, {0.7 * abs(number) / most:.2f})"
    return f'<td style="{shade}; text-align: right">{number:.2f}</td>'
