"""What the explorer changes in a model: a head, an MLP or a position, taken away or taken from a
second text. A change is a dict, so that it can be sent, kept and typed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from simdformer.arguments import is_whole, shown
from simdformer.models.config import ModelConfig
from simdformer.types import Array

__all__ = ["Change", "edit_of", "read_changes"]

# part: the activation that it is in, as for `sf.ablate` and `sf.patch`
ACTIVATION = {"head": "attn.z", "mlp": "mlp.out", "position": "resid_pre"}
VALUES = {"zero": "→ 0", "mean": "→ its mean", "other": "← the second text"}


@dataclass(frozen=True)
class Change:
    """One change of a model that reads a text.

    part : "head", "mlp", or "position" of the residual stream in front of the layer
    layer : int
    at : which head or position; None for the MLP
    value : "zero", "mean" over the positions of this text, or "other": what the second text has
    """

    part: str
    layer: int
    at: int | None
    value: str

    @classmethod
    def read(cls, who: str, given: Any, config: ModelConfig, length: int) -> Self:
        if not isinstance(given, Mapping):
            raise TypeError(f"explore: {who} is {shown(given)}, needs a dict")
        part = read_choice(who, "part", given.get("part"), ACTIVATION)
        needed = ("part", "layer", "value") if part == "mlp" else ("part", "layer", "at", "value")
        if set(given) != set(needed):
            raise ValueError(
                f"explore: {who} has the keys {', '.join(map(str, given))}, needs "
                f"{', '.join(needed)}, because its part is {part!r}"
            )
        layer = read_number(who, "layer", given["layer"], config.num_layers)
        count = config.num_heads if part == "head" else length
        at = None if part == "mlp" else read_number(who, "at", given["at"], count)
        return cls(part, layer, at, read_choice(who, "value", given["value"], VALUES))

    @property
    def given(self) -> dict[str, Any]:
        """The dict that it was read from."""
        named = {"part": self.part, "layer": self.layer, "at": self.at, "value": self.value}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def name(self) -> str:
        """The activation that is changed."""
        return f"layers.{self.layer}.{ACTIVATION[self.part]}"

    @property
    def index(self) -> Any:
        """The place in it."""
        if self.part == "head":
            return slice(None), self.at
        return slice(None) if self.at is None else self.at

    def make(self, x: Array, other: Mapping[str, Array]) -> None:
        """Makes it in the activation x (L,...); `other` has that of the second text."""
        if self.value == "other":
            x[self.index] = other[self.name][self.index]
        elif self.value == "mean":
            x[self.index] = x.mean(0)[self.at if self.part == "head" else ...]
        else:
            x[self.index] = 0

    @property
    def line(self) -> str:
        """`make` as a line of Python."""
        place = ":" if self.at is None else self.at
        index = f"[:, {place}]" if self.part == "head" else f"[{place}]"
        values = {
            "zero": "0",
            "mean": f"x.mean(0)[{self.at}]" if self.part == "head" else "x.mean(0)",
            "other": f'other["{self.name}"]{index}',
        }
        return f"x{index} = {values[self.value]}"

    def label(self, tokens: Sequence[str]) -> str:
        """It in a few words, for tokens of the text."""
        if self.part == "head":
            what = f"head {self.layer}.{self.at}"
        elif self.at is None:
            what = f"MLP of layer {self.layer}"
        else:
            what = f"token {self.at} {tokens[self.at]!r} before layer {self.layer}"
        return f"{what} {VALUES[self.value]}"


def read_changes(given: Any, config: ModelConfig, length: int) -> tuple[Change, ...]:
    """A list of dicts. TypeError, ValueError: one of them is no change of this model and text."""
    if not isinstance(given, list | tuple):
        raise TypeError(f"explore: edits is {shown(given)}, needs a list of dicts")
    return tuple(Change.read(f"edits[{at}]", one, config, length) for at, one in enumerate(given))


def read_choice(who: str, key: str, value: Any, known: Iterable[str]) -> str:
    if not isinstance(value, str) or value not in known:
        raise ValueError(
            f"explore: {who} has {key} {shown(value)}, needs one of {', '.join(known)}"
        )
    return value


def read_number(who: str, key: str, value: Any, count: int) -> int:
    if not is_whole(value, 0) or value >= count:
        raise ValueError(f"explore: {who} has {key} {shown(value)}, needs 0 to {count - 1}")
    return int(value)


def edit_of(
    changes: Iterable[Change], other: Mapping[str, Array]
) -> dict[str, Callable[[Array], None]]:
    """The changes as `edit=` takes them: one function for each activation, which makes its changes
    in their order."""
    by_name: dict[str, list[Change]] = {}
    for change in changes:
        by_name.setdefault(change.name, []).append(change)

    def making(some: list[Change]) -> Callable[[Array], None]:
        def edit(x: Array) -> None:
            for change in some:
                change.make(x, other)

        return edit

    return {name: making(some) for name, some in by_name.items()}
