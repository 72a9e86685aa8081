"""The tensors of a model: canonical names and shapes, the check against a config, packing."""

import math
from collections.abc import Callable, Mapping
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

WIDTH, INNER, HEAD, VOCABULARY = "hidden_size", "intermediate_size", "head_dim", "vocab_size"
POSITIONS = "max_seq_len"
Q_WIDTH, KV_WIDTH = f"num_heads * {HEAD}", f"num_kv_heads * {HEAD}"
EXPERTS, HEADS, ONE = "num_experts", "num_heads", "1"
EXPERT_INNER, SHARED_INNER = "expert_intermediate_size", "shared_intermediate_size"


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
    the MLP that stands beside them with its router (1, E); None for what the model has not."""

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
    matrices (out, in), packed or quantised, biases (out,), sinks (H,); None for what the model has
    not."""

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


@dataclass(frozen=True, slots=True)
class Weights:
    """The whole model, in memory of its own: what it was made from is not looked at again."""

    embed: Matrix  # (V, E)
    pos_embed: Array | None  # (max_seq_len, E)
    layers: list[LayerWeights]
    final_norm: Array  # (E,)
    final_norm_bias: Array | None
    lm_head: Matrix  # (V, E); the embedding itself where the two are tied

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

        def array(name: str) -> Array:
            return packing.array(tensors[name])

        def matrix(name: str) -> Matrix:
            return packing.matrix(tensors[name])

        def norm(name: str) -> Array:
            if config.norm_offset == 0:
                return array(name)
            wide = np.promote_types(kind or tensors[name].dtype, np.float32)
            shifted: Array = packing.array(tensors[name], wide) + wide.type(config.norm_offset)
            return shifted

        def norm_if_any(name: str) -> Array | None:
            return norm(name) if name in tensors else None

        def array_if_any(name: str) -> Array | None:
            return array(name) if name in tensors else None

        held = range(config.num_experts) if own_experts is None else own_experts
        two = ("gate", "up") if config.gated_mlp else ("up",)

        def mlp(at: str) -> MLPWeights:
            return MLPWeights(
                gate_up=[matrix(at + name) for name in two],
                gate_up_bias=[array(f"{at}{name}_bias") for name in two]
                if config.mlp_bias
                else None,
                down=matrix(at + "down"),
                down_bias=array_if_any(at + "down_bias"),
            )

        def experts(at: str) -> ExpertWeights:
            return ExpertWeights(
                router=matrix(at + "router"),
                router_bias=array_if_any(at + "router_bias"),
                experts=[mlp(f"{at}experts.{number}.") for number in held],
                shared=mlp(at + "shared.") if config.shared_intermediate_size else None,
                shared_router=matrix(at + "shared.router") if config.shared_router else None,
            )

        def layer(index: int) -> LayerWeights:
            at = f"layers.{index}."
            return LayerWeights(
                attn_norm=norm_if_any(at + "attn_norm"),
                attn_norm_bias=array_if_any(at + "attn_norm_bias"),
                wq_wk_wv=[matrix(at + name) for name in ("wq", "wk", "wv")],
                qkv_bias=[array(at + name) for name in ("bq", "bk", "bv")]
                if config.qkv_bias
                else None,
                q_norm=norm_if_any(at + "q_norm"),
                k_norm=norm_if_any(at + "k_norm"),
                wo=matrix(at + "wo"),
                wo_bias=array_if_any(at + "bo"),
                sinks=array_if_any(at + "sinks"),
                attn_out_norm=norm_if_any(at + "attn_out_norm"),
                attn_out_norm_bias=array_if_any(at + "attn_out_norm_bias"),
                mlp_norm=norm_if_any(at + "mlp_norm"),
                mlp_norm_bias=array_if_any(at + "mlp_norm_bias"),
                mlp=experts(at) if config.has_experts(index) else mlp(at),
                mlp_out_norm=norm_if_any(at + "mlp_out_norm"),
                mlp_out_norm_bias=array_if_any(at + "mlp_out_norm_bias"),
            )

        with progress:
            embed = matrix("embed")
            weights = cls(
                embed=embed,
                pos_embed=array_if_any("pos_embed"),
                layers=[layer(index) for index in range(config.num_layers)],
                final_norm=norm("final_norm"),
                final_norm_bias=array_if_any("final_norm_bias"),
                lm_head=embed if config.tie_embeddings else matrix("lm_head"),
            )
            packing.finish()
        return weights


def weight_axes(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Every tensor of a model of this config in the order of computation: its name, and for each
    axis the field of the config, or the product of two, that says how long it is."""
    axes: dict[str, tuple[str, ...]] = {"embed": (VOCABULARY, WIDTH)}
    if config.positions == "learned":
        axes["pos_embed"] = (POSITIONS, WIDTH)
    for index in range(config.num_layers):
        of_layer = layer_axes(config, mixed=config.has_experts(index))
        axes |= {f"layers.{index}.{name}": of_one for name, of_one in of_layer.items()}
    axes |= norm_axes(config, "final_norm")
    if not config.tie_embeddings:
        axes["lm_head"] = (VOCABULARY, WIDTH)
    return axes


def layer_axes(config: ModelConfig, *, mixed: bool) -> dict[str, tuple[str, ...]]:
    """The tensors of one layer, which has experts or not."""
    before, after = config.norm_placement != "after", config.norm_placement != "before"
    layer = norm_axes(config, "attn_norm") if before else {}
    layer |= {"wq": (Q_WIDTH, WIDTH), "wk": (KV_WIDTH, WIDTH), "wv": (KV_WIDTH, WIDTH)}
    if config.qkv_bias:
        layer |= {"bq": (Q_WIDTH,), "bk": (KV_WIDTH,), "bv": (KV_WIDTH,)}
    if config.qk_norm:
        each = config.qk_norm_over == "head"
        layer |= {"q_norm": (HEAD if each else Q_WIDTH,), "k_norm": (HEAD if each else KV_WIDTH,)}
    layer |= {"wo": (WIDTH, Q_WIDTH)}
    if config.wo_bias:
        layer |= {"bo": (WIDTH,)}
    if config.attention_sinks:
        layer |= {"sinks": (HEADS,)}
    if after:
        layer |= norm_axes(config, "attn_out_norm")
    if before:
        layer |= norm_axes(config, "mlp_norm")
    layer |= expert_axes(config) if mixed else mlp_axes(config, "", INNER)
    if after:
        layer |= norm_axes(config, "mlp_out_norm")
    return layer


def norm_axes(config: ModelConfig, name: str) -> dict[str, tuple[str, ...]]:
    """A norm's weight, and its bias where it has one."""
    names = (name,) if config.norm == "rms_norm" else (name, f"{name}_bias")
    return dict.fromkeys(names, (WIDTH,))


def mlp_axes(config: ModelConfig, at: str, inner: str) -> dict[str, tuple[str, ...]]:
    """The tensors of an MLP, whose names begin with `at`."""
    axes: dict[str, tuple[str, ...]] = {f"{at}gate": (inner, WIDTH)} if config.gated_mlp else {}
    axes |= {f"{at}up": (inner, WIDTH), f"{at}down": (WIDTH, inner)}
    if config.mlp_bias:
        axes |= {f"{name}_bias": of_matrix[:1] for name, of_matrix in axes.items()}
    return axes


def expert_axes(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """The tensors of a layer that has experts."""
    axes: dict[str, tuple[str, ...]] = {"router": (EXPERTS, WIDTH)}
    if config.mlp_bias:
        axes |= {"router_bias": (EXPERTS,)}
    for number in range(config.num_experts):
        axes |= mlp_axes(config, f"experts.{number}.", EXPERT_INNER)
    if config.shared_intermediate_size:
        axes |= mlp_axes(config, "shared.", SHARED_INNER)
    if config.shared_router:
        axes |= {"shared.router": (ONE, WIDTH)}
    return axes


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a model of this config, in the order of computation."""

    @cache
    def size(axis: str) -> int:
        return 1 if axis == ONE else math.prod(getattr(config, of) for of in axis.split(" * "))

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
        raise TypeError(
            f"model: activations is {activations}, needed is float32, bfloat16 or float16"
        )

    def fits(tensor: AnyTensor) -> bool:
        if isinstance(tensor, Quantized):
            return activations != F64
        return tensor.dtype in BESIDE[activations]

    if dtype is None:
        wrong = sorted({kind_of(tensor) for tensor in tensors.values() if not fits(tensor)})
    else:
        wrong = [str(np.dtype(dtype))] if np.dtype(dtype) not in BESIDE[activations] else []
    if wrong:
        raise TypeError(
            f"model: weights are {' and '.join(wrong)}, needed beside activations of {activations} "
            f"is {' or '.join(map(str, BESIDE[activations]))}; say which with dtype="
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
            return f"{self.name} {self.found}, needed {self.needed}"
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
            f"model: weights are {len(tensors)} tensors, needed are several for each of "
            f"{config.num_layers} layers{experts}"
        )
    if not (found := misfits(config, tensors)):
        return
    names = weight_shapes(config)
    if tensors and not names.keys() & tensors.keys():
        raise ValueError(
            f"model: weights are called {shown(next(iter(tensors)))} ..., needed are the names of "
            f"weight_shapes(config): {', '.join(list(names)[:LISTED])} ...; those of a checkpoint "
            "are read by from_pretrained"
        )
    raise ValueError(f"model: the weights do not fit the config: {listed(found)}")
