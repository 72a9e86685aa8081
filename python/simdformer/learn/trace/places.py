"""Where an array of a learner's belongs, by what he calls it.

One layer's names may leave the layer out: it is layer 0 then. One head alone is named with its
number, as in "q_layer0_head3", or with a tuple: ("attn.q", 3).
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from simdformer.arguments import shown
from simdformer.learn.trace.aliases import (
    FUSED,
    INSTEAD,
    LAYER_ALIASES,
    MODEL_ALIASES,
    OTHER_MEANINGS,
)
from simdformer.models.activation_table import activation_of, activations
from simdformer.models.config import ModelConfig

__all__ = [
    "Place",
    "heads_of",
    "known_names",
    "near",
    "none_known",
    "other_meanings",
    "parts_of",
    "place",
    "read_aliases",
]

PREFIXES = re.compile(
    r"(?:model\.|transformer\.)?(?:layers|blocks|layer|h)\.(\d+)(?:\.|$)|layer_?(\d+)(?:[._]|$)"
)
SUFFIXES = re.compile(r"_layer_?(\d+)(?=_|$)")
HEADS = re.compile(r"[._]?head_?(\d+)$")


@dataclass(frozen=True)
class Place:
    """Where an array belongs: the name of a trace, and the head if it is of one head alone."""

    name: str
    head: int | None = None

    def __str__(self) -> str:
        return self.name if self.head is None else f"{self.name}, head {self.head}"


def known_names(config: ModelConfig) -> list[str]:
    """The names of a trace in the order of computation, and what a learner has on the way."""
    return list(activations(config, without=("on request",)))


def parts_of(name: str) -> tuple[str, ...]:
    """Which activations lie side by side in one."""
    short = name.split(".", 2)[-1]
    return tuple(name.removesuffix(short) + part for part in FUSED.get(short, ()))


def fused_names(config: ModelConfig) -> set[str]:
    """Those of matrices that make several activations of a layer."""
    names = set(known_names(config))
    every = (f"layers.{layer}.{name}" for layer in range(config.num_layers) for name in FUSED)
    mixed = {f"layers.{i}.mlp.gate_up" for i in range(config.num_layers) if config.has_experts(i)}
    return {name for name in every if names.issuperset(parts_of(name))} - mixed


def place(key: Any, config: ModelConfig, aliases: Mapping[Any, Any] | None = None) -> Place | None:
    """Where what the learner calls `key` belongs; None when nobody knows."""
    known = fused_names(config).union(known_names(config))
    return understood((aliases or {}).get(key, key), config, known)


def understood(key: Any, config: ModelConfig, known: set[str]) -> Place | None:
    head: int | None = None
    if isinstance(key, tuple):
        numbers = [int(part) for part in key if isinstance(part, int) or str(part).isdigit()]
        names = [part for part in key if isinstance(part, str) and not part.isdigit()]
        if len(names) != 1 or len(numbers) > 2:
            return None
        # ("attn.q", head), or ("attn.q", layer, head)
        if len(numbers) == 2 or (numbers and not takes_head(names[0], config, known)):
            names[0] = f"layers.{numbers.pop(0)}.{names[0]}"
        head = numbers[0] if numbers else None
        key = names[0]
    if not isinstance(key, str):
        return None
    key = key.strip()
    if head is None and (at := HEADS.search(key)):
        head, key = int(at[1]), key[: at.start()]
    name = trace_name(key, known)
    if name is None or (head is not None and head >= heads_of(name, config)):
        return None
    return Place(name, head)


def without_layer(key: str) -> tuple[str, str]:
    """The layer that a name says, and the name without it."""
    if at := PREFIXES.match(key):
        return at[1] or at[2], key[at.end() :]
    if at := SUFFIXES.search(key):
        return at[1], key[: at.start()] + key[at.end() :]
    return "0", key


def other_meanings(key: Any) -> tuple[str, ...]:
    """What else such a name is used for, as names within a layer."""
    words = [part for part in key if isinstance(part, str)] if isinstance(key, tuple) else [key]
    if not words or not isinstance(words[0], str):
        return ()
    return OTHER_MEANINGS.get(without_layer(words[0].strip())[1], ())


def takes_head(name: str, config: ModelConfig, known: set[str]) -> bool:
    found = trace_name(name, known)
    return found is not None and heads_of(found, config) > 0


def trace_name(key: str, known: set[str]) -> str | None:
    """The name in a trace that is meant, if one is."""
    candidates = [key, MODEL_ALIASES.get(key), MODEL_ALIASES.get(key.removeprefix("transformer."))]
    layer, rest = without_layer(key)
    layer, rest = str(int(layer)), rest or "output"
    meant = LAYER_ALIASES.get(rest, rest)
    for name in (rest, rest.removesuffix(".weight"), meant, INSTEAD.get(meant)):
        candidates.append(f"layers.{layer}.{name}")
    return next((name for name in candidates if name in known), None)


def heads_of(name: str, config: ModelConfig) -> int:
    """How many heads such an array has; 0 where it has none."""
    row = activation_of(config, name)
    return 0 if row is None else row.heads(config)


def read_aliases(function: str, aliases: Any) -> Mapping[Any, Any]:
    if aliases is not None and not isinstance(aliases, Mapping):
        raise TypeError(
            f"{function}: aliases is {shown(aliases)}, needs a dict of your own names: "
            '{"x_after_attention": "layers.0.resid_mid"}'
        )
    return aliases or {}


def none_known(function: str, mine: Mapping[Any, Any], ours: Iterable[str]) -> ValueError:
    """For a dict none of whose names a check knows."""
    names = ", ".join([*ours][:6])
    if not mine:
        return ValueError(
            f"{function}: mine is empty, needs arrays under the model's names: {names} ..."
        )
    return ValueError(
        f"{function}: no name in mine is known: {', '.join(map(repr, mine))[:300]}; the model's "
        f"own are {names} ..., and aliases= says which is which"
    )


def near(key: Any, config: ModelConfig) -> list[str]:
    """Names that an unknown one may have meant."""
    layer = re.search(r"\d+", str(key))
    index = min(int(layer[0]), config.num_layers - 1) if layer and len(layer[0]) < 6 else 0
    ours: Iterable[str] = (
        name
        for name in known_names(config)
        if not name.startswith("layers.") or name.startswith(f"layers.{index}.")
    )
    choices = {name.rpartition("layers.")[2].partition(".")[2] or name: name for name in ours}
    found = difflib.get_close_matches(str(key), [*choices, *choices.values()], n=3, cutoff=0.5)
    return [choices.get(name, name) for name in found]
