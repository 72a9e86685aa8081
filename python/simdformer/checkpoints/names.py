"""What a format calls our tensors and our config's fields, and whether the two fit each other."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from simdformer.arguments import is_whole, shown
from simdformer.checkpoints.error import CheckpointError, file_name
from simdformer.checkpoints.fused import FUSED
from simdformer.checkpoints.stacked import STACKED
from simdformer.functional import rope_frequencies
from simdformer.models.config import FieldError, ModelConfig
from simdformer.models.tensors import LazyTensor
from simdformer.models.weights import Misfit, listed, misfits, too_few, weight_axes

__all__ = [
    "Names",
    "check_present",
    "check_rope",
    "printable",
    "require",
    "width_of_heads",
    "wrong",
]

LONGEST_CONTEXT = 1 << 24  # no file proves it by its length
MOST_EXPERTS = 1 << 12  # a layer; no model comes near
# A number as "03" would be a second layer 3.
LAYER = re.compile(r"((?:(?:[^.]+\.)?(?:layers|h)|blk)\.)(0|[1-9][0-9]*)(\..+)")
EXPERT = re.compile(r"(.+\.experts\.)(0|[1-9][0-9]*)(\..+)")


T = TypeVar("T", bound=LazyTensor)


@dataclass(frozen=True)
class Names:
    """Names of a format.

    fields : theirs -> those of ModelConfig
    tensors : theirs -> those of `weight_shapes`, or of FUSED and STACKED; {} is the number of a
        layer, and a second one that of an expert
    derived : fields of ModelConfig that are none of theirs -> what they follow from
    """

    fields: Mapping[str, str]
    tensors: Mapping[str, str]
    derived: Mapping[str, str] = field(default_factory=dict)

    def ours(self, name: str) -> str | None:
        """A tensor's name in ours; None when the format has no such tensor.

        >>> from simdformer.checkpoints.huggingface_architectures import ARCHITECTURES
        >>> names = ARCHITECTURES["llama"].names
        >>> names.ours("model.layers.3.self_attn.q_proj.weight")
        'layers.3.wq'
        >>> names.theirs("layers.3.wq")
        'model.layers.3.self_attn.q_proj.weight'
        """
        return renamed(name, self.tensors)

    def theirs(self, name: str) -> str:
        """The name that a tensor of ours has in a file."""
        return renamed(name, self._in_file) or name

    @cached_property
    def _in_file(self) -> dict[str, str]:
        """Ours -> theirs, of parts too."""
        theirs: dict[str, str] = {}
        for in_file, ours in self.tensors.items():
            layer, _, kind = ours.rpartition(".")
            parts = [f"{layer}.{part}" for part in FUSED.get(kind, ())]
            if layer.endswith(".experts"):  # all of them in one tensor
                parts = [f"{layer}.{{}}.{part}" for part in STACKED[kind][1]]
            theirs |= dict.fromkeys([ours, *parts], in_file)
        return theirs

    def under_ours(self, tensors: Mapping[str, T]) -> dict[str, T]:
        """Tensors under our names; those that the format does not know in quotes, so that they are
        none of ours."""
        return {self.ours(name) or repr(name): tensor for name, tensor in tensors.items()}

    def config(self, fields: Mapping[str, Any], **canonical: Any) -> ModelConfig:
        """The config of a format's own fields, completed by canonical ones; CheckpointError in the
        format's own words."""
        try:
            config = ModelConfig(
                **{self.fields[name]: value for name, value in fields.items()}, **canonical
            )
        except FieldError as error:
            raise wrong(self.told(error.name), error.value, self.told(error.needed)) from None
        longest, at_most = config.max_seq_len, f"at most {LONGEST_CONTEXT}"
        require(longest <= LONGEST_CONTEXT, self.told("max_seq_len"), longest, at_most)
        experts, at_most = config.num_experts, f"at most {MOST_EXPERTS}"
        require(experts <= MOST_EXPERTS, self.told("num_experts"), experts, at_most)
        return config

    def told(self, text: str) -> str:
        """A text with our fields in the format's words."""
        words = dict(self.derived) | {ours: theirs for theirs, ours in self.fields.items()}
        return re.sub(r"\w+", lambda match: words.get(match[0], match[0]), text)

    def check(
        self,
        config: ModelConfig,
        weights: Mapping[str, LazyTensor],
        config_file: str | Path,
        weights_file: str | Path,
    ) -> None:
        """CheckpointError that lists what does not fit, each tensor under the name that it has in
        its file. `weights_file`: where one that is missing is looked for."""
        if too_few(config, weights):
            counts = [f"{self.told('num_layers')} = {config.num_layers}"]
            if config.num_experts:
                counts.append(f"{self.told('num_experts')} = {config.num_experts}")
            raise CheckpointError(
                f"{' and '.join(counts)}, but {len(weights)} tensors in {file_name(weights_file)}",
                f"several tensors for each layer{' and expert' if config.num_experts else ''}",
                file=config_file,
            )
        found = misfits(config, weights)
        if not found:
            return
        axes = weight_axes(config)

        def told(misfit: Misfit) -> str:
            if misfit.what == "missing":
                name, file = self.theirs(misfit.name), file_name(weights_file)
            else:
                name, file = weights[misfit.name].name, file_name(weights[misfit.name].path)
            ours = f" [{misfit.name}]" if self.ours(name) else ""
            shape = misfit.needed if misfit.found is None else misfit.found
            what = misfit.dtype or shape
            text = f"{printable(name)} {what}{ours} in {file}"
            if misfit.what == "misshapen":
                asked = ", ".join(map(self.told, axes[misfit.name]))
                text += f", needs {misfit.needed} = ({asked})"
            return text

        raise CheckpointError(
            f"tensors that do not fit it: {listed(found, told)}", file=config_file
        )


def renamed(name: str, names: Mapping[str, str]) -> str | None:
    """A tensor's name, looked up with {} in the place of the number of its layer, and of that of
    its expert."""
    numbers = []
    for pattern in (LAYER, EXPERT):
        if found := pattern.fullmatch(name):
            name = f"{found[1]}{{}}{found[3]}"
            numbers.append(found[2])
    other = names.get(name)
    if other is not None:
        for number in numbers:
            other = other.replace("{}", number, 1)
    return other


def printable(name: str) -> str:
    """A name that a stranger gave, in one short line."""
    return name[:120] if name.isprintable() else repr(name)[:120]


def check_rope(theta: Any, scaling: Mapping[str, Any] | None, head_dim: int = 2) -> None:
    """CheckpointError for frequencies that cannot be had."""
    try:
        rope_frequencies(head_dim, theta=theta, scaling=scaling)
    except (TypeError, ValueError, ArithmeticError) as error:
        text = str(error).removeprefix("rope_frequencies: ")
        raise CheckpointError(f"RoPE without frequencies: {text}") from None


def check_present(found: Mapping[str, Any], names: Iterable[str], prefix: str = "") -> None:
    """CheckpointError that lists the fields without a value."""
    missing = [prefix + name for name in names if found.get(name) is None]
    if missing:
        raise CheckpointError(f"no {', no '.join(missing)}", "a value for each")


def width_of_heads(width: Any, heads: Any, names: tuple[str, str], instead: str = "") -> int:
    """The head_dim of heads that are as wide as the model together; `names` are those of both
    fields."""
    divides = is_whole(heads) and is_whole(width) and width % heads == 0
    require(divides, names[1], heads, f"a divisor of {names[0]} = {shown(width)}{instead}")
    return int(width // heads)


def wrong(name: str, value: object, needed: str) -> CheckpointError:
    """That a field has a value that makes no sense."""
    return CheckpointError(f"{name} = {shown(value)}", needed)


def require(right: bool, name: str, value: object, needed: str) -> None:
    """`wrong` unless it is right."""
    if not right:
        raise wrong(name, value, needed)
