"""The tensors of a model: canonical names and shapes, the check against a config, packing."""

import difflib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import ml_dtypes
import numpy as np

from simdformer.arguments import as_array, shown
from simdformer.functional import QuantizedWeight
from simdformer.models.config import ModelConfig
from simdformer.models.packing import Matrix, Packing
from simdformer.models.progress import Progress
from simdformer.models.tensors import AnyTensor, Quantized, Tensor, kind_of
from simdformer.models.weight_table import LENGTH_ONE, WeightRow, expert_of, weight_rows
from simdformer.types import Array, ArrayLike, DTypeLike

__all__ = [
    "LayerWeights",
    "Misfit",
    "Weights",
    "arrays_of",
    "check_dtypes",
    "check_weights",
    "listed",
    "misfits",
    "too_few",
    "weight_axes",
    "weight_shapes",
]

BF16, F16, F32, F64 = FLOATS = tuple(
    np.dtype(kind) for kind in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64)
)
# What the kernels take beside activations of a dtype.
BESIDE = {F32: (F32, BF16, F16), BF16: (BF16, F32), F16: (F16, F32), F64: (F64,)}
LISTED = 4  # of each kind of complaint


@dataclass(frozen=True, slots=True)
class MLPWeights:
    """One MLP, or one expert: matrices (out, in), biases (out,) or None. Without a gate gate_up is
    up alone."""

    gate_up: list[Matrix]
    gate_up_bias: list[Array] | None
    down: Matrix
    down_bias: Array | None


@dataclass(frozen=True)
class ExpertWeights:
    """A layer's experts (those that this rank holds), their router (X, E) with its bias (X,), and
    the MLP that stands beside them with its router (1, E); None for what the model lacks."""

    router: Matrix
    router_bias: Array | None
    experts: list[MLPWeights]
    shared: MLPWeights | None
    shared_router: Matrix | None

    @cached_property
    def gate_up(self) -> tuple[list[Any], list[Any] | None]:
        """gate of all experts and up of all (or up alone), and their biases likewise."""
        matrices = zip(*(one.gate_up for one in self.experts), strict=True)
        biases = zip(*(one.gate_up_bias or () for one in self.experts), strict=True)
        return list(matrices), list(biases) or None

    @cached_property
    def down(self) -> tuple[list[Any], list[Any] | None]:
        """The same for what leads back."""
        return [[one.down for one in self.experts]], [[one.down_bias for one in self.experts]]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer: norms and their biases (E,), q_norm and k_norm (D,) or all their heads long,
    matrices (out, in), packed or quantised, biases (out,), sinks (H,); None for what the model
    lacks."""

    attn_norm: Array | None
    attn_norm_bias: Array | None
    wq_wk_wv: list[Matrix]
    qkv_bias: list[Array] | None
    q_norm: Array | None
    k_norm: Array | None
    wo: Matrix
    wo_bias: Array | None
    sinks: Array | None
    attn_out_norm: Array | None
    attn_out_norm_bias: Array | None
    mlp_norm: Array | None
    mlp_norm_bias: Array | None
    mlp: MLPWeights | ExpertWeights
    mlp_out_norm: Array | None
    mlp_out_norm_bias: Array | None


QKV, QKV_BIAS = ("wq", "wk", "wv"), ("bq", "bk", "bv")
ALONE = (
    *("attn_norm", "attn_norm_bias", "q_norm", "k_norm", "wo", "sinks", "attn_out_norm"),
    *("attn_out_norm_bias", "mlp_norm", "mlp_norm_bias", "mlp_out_norm", "mlp_out_norm_bias"),
)
# Where a tensor is kept that has no field of its name.
PLACES: dict[str, tuple[str, int | None]] = {
    **{name: ("wq_wk_wv", at) for at, name in enumerate(QKV)},
    **{name: ("qkv_bias", at) for at, name in enumerate(QKV_BIAS)},
    "bo": ("wo_bias", None),
    "shared.router": ("shared_router", None),
    "gate": ("gate_up", 0),
    "up": ("gate_up", -1),
    "gate_bias": ("gate_up_bias", 0),
    "up_bias": ("gate_up_bias", -1),
}


@dataclass(frozen=True, slots=True, repr=False)
class Weights(Mapping[str, Array]):
    """The whole model, in memory of its own: what it was made from is not looked at again.

    `weights["layers.0.wq"]` is one tensor as an array, unpacked when it is asked for; the names are
    those of `weight_shapes`.
    """

    embed: Matrix  # (V, E)
    pos_embed: Array | None  # (max_seq_len, E)
    layers: list[LayerWeights]
    final_norm: Array  # (E,)
    final_norm_bias: Array | None
    lm_head: Matrix  # (V, E); the embedding itself where the two are tied
    rows: Mapping[str, WeightRow]  # of the tensors that are here, by name
    own_experts: range

    @classmethod
    def prepare(
        cls,
        config: ModelConfig,
        tensors: Mapping[str, AnyTensor],
        dtype: DTypeLike | None,
        own_experts: range | None = None,
    ) -> "Weights":
        """Packs tensors that fit the config, or parts of them; `dtype` is what they are converted
        to, quantised ones too (None: they stay as they are). `own_experts`: which of all.

        A few rows at a time, so that not much more memory is needed than the result takes."""
        kind = None if dtype is None else np.dtype(dtype)
        progress = Progress("loading", sum(tensor.nbytes for tensor in tensors.values()))
        packing = Packing(kind, progress)
        rows = weight_rows(config)

        def held(name: str) -> Any:
            """A tensor as it is kept; None where the model, or this rank, does not have it."""
            if name not in tensors:
                return None
            tensor, row = tensors[name], rows[name]
            if row.is_matrix:
                return packing.matrix(tensor)
            if not row.is_norm or config.norm_offset == 0:
                return packing.array(tensor)
            wide = np.promote_types(kind or tensor.dtype, np.float32)
            return packing.array(tensor, wide) + wide.type(config.norm_offset)

        def several(at: str, *names: str) -> list[Any] | None:
            return [held(at + name) for name in names] if at + names[0] in tensors else None

        own = range(config.num_experts) if own_experts is None else own_experts
        gate_up = ("gate", "up") if config.gated_mlp else ("up",)

        def mlp(at: str) -> MLPWeights:
            return MLPWeights(
                gate_up=several(at, *gate_up) or [],
                gate_up_bias=several(at, *(f"{name}_bias" for name in gate_up)),
                down=held(at + "down"),
                down_bias=held(at + "down_bias"),
            )

        def experts(at: str) -> ExpertWeights:
            return ExpertWeights(
                router=held(at + "router"),
                router_bias=held(at + "router_bias"),
                experts=[mlp(f"{at}experts.{number}.") for number in own],
                shared=mlp(at + "shared.") if config.shared_intermediate_size else None,
                shared_router=held(at + "shared.router"),
            )

        def layer(index: int) -> LayerWeights:
            at = f"layers.{index}."
            return LayerWeights(
                wq_wk_wv=several(at, *QKV) or [],
                qkv_bias=several(at, *QKV_BIAS),
                mlp=experts(at) if config.has_experts(index) else mlp(at),
                wo_bias=held(at + "bo"),
                **{field: held(at + field) for field in ALONE},
            )

        with progress:
            embed = held("embed")
            weights = cls(
                embed=embed,
                pos_embed=held("pos_embed"),
                layers=[layer(index) for index in range(config.num_layers)],
                final_norm=held("final_norm"),
                final_norm_bias=held("final_norm_bias"),
                lm_head=embed if config.tie_embeddings else held("lm_head"),
                rows={name: row for name, row in rows.items() if name in tensors},
                own_experts=own,
            )
            packing.finish()
        return weights

    # ---- a mapping of names ----------------------------------------------------------------------

    def held(self, name: str) -> Array | Matrix | None:
        """The tensor of a name of `weight_shapes` as it is kept: packed, or quantised; None where
        the model, or this rank, does not have it."""
        if name not in self.rows:
            return None
        part: Any = self
        short = name
        if name.startswith("layers."):
            _, index, short = name.split(".", 2)
            part = self.layers[int(index)]
            if self.rows[name].part in ("mlp", "experts"):
                part = part.mlp
            if (number := expert_of(short)) is not None:
                part, short = part.experts[number - self.own_experts.start], short.split(".")[-1]
            elif short.startswith("shared.") and short not in PLACES:
                part, short = part.shared, short.removeprefix("shared.")
        field, at = PLACES.get(short, (short, None))
        found: Any = getattr(part, field)
        kept: Array | Matrix = found if at is None else found[at]
        return kept

    def __getitem__(self, name: str) -> Array:
        """A tensor as an array of the shape that `weight_shapes` says: a matrix is unpacked, a
        quantised one becomes float32. KeyError, with near names, for one that is not here."""
        found = self.held(name)
        if found is None:
            near = difflib.get_close_matches(str(name), list(self.rows), n=3, cutoff=0.4)
            raise KeyError(
                f"weights: no tensor is called {shown(name)}; near are "
                f"{', '.join(near or list(self.rows)[:3])}"
            )
        if isinstance(found, QuantizedWeight):
            return found.dequantize()
        return found if isinstance(found, np.ndarray) else found.unpack()

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.rows)

    def __repr__(self) -> str:
        kinds = Counter(kind_of_held(self.held(name)) for name in self.rows)
        told = ", ".join(f"{count} in {kind}" for kind, count in kinds.most_common())
        return f"Weights({len(self.layers)} layers, {len(self)} tensors: {told})"


def kind_of_held(tensor: Any) -> str:
    """What its numbers are: "float32", or "q4_k"; those of the matrix where it has an adapter."""
    tensor = getattr(tensor, "matrix", tensor)
    return tensor.type if isinstance(tensor, QuantizedWeight) else str(tensor.dtype)


def weight_axes(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Every tensor of a model of this config in the order of computation: its name, and for each
    axis the field of the config, or the product of two, that says how long it is."""
    return {name: row.axes for name, row in weight_rows(config).items()}


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a model of this config, in the order of computation."""

    @cache
    def size(axis: str) -> int:
        lengths = (getattr(config, of) for of in axis.split(" * "))
        return 1 if axis == LENGTH_ONE else math.prod(lengths)

    return {name: tuple(map(size, axes)) for name, axes in weight_axes(config).items()}


def arrays_of(tensors: Mapping[str, ArrayLike | QuantizedWeight]) -> dict[str, AnyTensor]:
    """Tensors of other libraries as arrays over their memory, lists as arrays, what lies in a file
    or is quantised as it is. BufferError for a tensor that is not on the CPU."""

    def array(name: str, tensor: Any) -> AnyTensor:
        stored = isinstance(tensor, Tensor | QuantizedWeight) and not hasattr(tensor, "__dlpack__")
        return tensor if stored else as_array("model", name, tensor)

    return {name: array(name, tensor) for name, tensor in tensors.items()}


def check_dtypes(
    tensors: Mapping[str, AnyTensor], dtype: DTypeLike | None, activations: np.dtype[Any]
) -> None:
    """TypeError when the kernels could not compute with such weights and activations."""
    if activations not in BESIDE:
        raise TypeError(f"model: activations is {activations}, needs float32, bfloat16 or float16")

    def fits(tensor: AnyTensor) -> bool:
        if isinstance(tensor, Quantized):
            return activations != F64
        return tensor.dtype in BESIDE[activations]

    if dtype is None:
        wrong = sorted({kind_of(tensor) for tensor in tensors.values() if not fits(tensor)})
    else:
        wrong = [str(np.dtype(dtype))] if np.dtype(dtype) not in BESIDE[activations] else []
    if wrong:
        may = " or ".join(map(str, BESIDE[activations]))
        raise TypeError(
            f"model: weights are {' and '.join(wrong)}, needs {may} "
            f"beside activations of {activations}; say which with dtype="
        )


@dataclass(frozen=True, slots=True)
class Misfit:
    """A tensor that is not as the config asks for: `what` is wrong, the shape found (None: there is
    none), the shape needed (None: no such tensor is), and the dtype found."""

    what: Literal["missing", "left over", "misshapen", "no floats"]
    name: str
    found: tuple[int, ...] | None = None
    needed: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None

    def __str__(self) -> str:
        if self.what == "misshapen":
            return f"{self.name} {self.found}, needs {self.needed}"
        return f"{self.name} {self.dtype or self.found or self.needed}"


def too_few(config: ModelConfig, tensors: Mapping[str, AnyTensor]) -> bool:
    """Whether there is not even one tensor for each layer and each of its experts."""
    layers = config.num_layers
    if layers > len(tensors):
        return True
    mixed = sum(config.has_experts(layer) for layer in range(layers))
    return mixed * config.num_experts > len(tensors)


def misfits(config: ModelConfig, tensors: Mapping[str, AnyTensor]) -> list[Misfit]:
    """Every tensor missing, left over, of a wrong shape or no floats. They must not be `too_few`:
    the list could be endless."""
    shapes = weight_shapes(config)
    found: list[Misfit] = []
    for name, shape in shapes.items():
        if name not in tensors:
            found.append(Misfit("missing", name, needed=shape))
            continue
        if np.shape(tensors[name]) != shape:
            found.append(Misfit("misshapen", name, np.shape(tensors[name]), shape))
        if not isinstance(tensors[name], Quantized) and tensors[name].dtype not in FLOATS:
            found.append(Misfit("no floats", name, dtype=tensors[name].dtype))
    for name, tensor in tensors.items():
        if name not in shapes:
            found.append(Misfit("left over", name, np.shape(tensor)))
    return found


def listed(found: list[Misfit], told: Callable[[Misfit], str] = str) -> str:
    """The misfits in one line, by kind; the first few of each."""
    kinds = []
    for what in ("missing", "left over", "misshapen", "no floats"):
        of_kind = [misfit for misfit in found if misfit.what == what]
        more = f" and {len(of_kind) - LISTED} more" if len(of_kind) > LISTED else ""
        if of_kind:
            kinds.append(f"{what}: {'; '.join(map(told, of_kind[:LISTED]))}{more}")
    return ", ".join(kinds)


def check_weights(config: ModelConfig, tensors: Mapping[str, AnyTensor]) -> None:
    """ValueError that lists what does not fit."""
    if too_few(config, tensors):
        experts = f" and {config.num_experts} experts" if config.num_experts else ""
        raise ValueError(
            f"model: weights are {len(tensors)} tensors, needs several for each of "
            f"{config.num_layers} layers{experts}"
        )
    if not (found := misfits(config, tensors)):
        return
    names = weight_shapes(config)
    if tensors and not names.keys() & tensors.keys():
        raise ValueError(
            f"model: weights are called {shown(next(iter(tensors)))} ..., needs the names of "
            f"weight_shapes(config): {', '.join(list(names)[:LISTED])} ...; those of a checkpoint "
            "are read by from_pretrained"
        )
    raise ValueError(f"model: the weights do not fit the config: {listed(found)}")
