"""The tensors of a model: canonical names and shapes, the check against a config, packing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from simdformer.functional import PackedWeight, pack
from simdformer.models.checkpoint import CheckpointError, Tensor
from simdformer.models.config import ModelConfig
from simdformer.models.progress import Progress
from simdformer.types import Array, DTypeLike

__all__ = ["LayerWeights", "Weights", "check_dtypes", "check_weights", "weight_shapes"]

BF16, F16, F32, F64 = FLOATS = tuple(
    np.dtype(kind) for kind in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64)
)
# What the kernels take beside activations of a dtype.
BESIDE = {F32: (F32, BF16, F16), BF16: (BF16, F32), F16: (F16, F32), F64: (F64,)}
LISTED = 4  # of each kind of complaint


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer: norms (E,), q_norm and k_norm (D,), packed matrices (out, in), biases (out,)."""

    attn_norm: Array
    wq_wk_wv: list[PackedWeight]
    qkv_bias: list[Array] | None
    q_norm: Array | None
    k_norm: Array | None
    wo: PackedWeight
    wo_bias: Array | None
    mlp_norm: Array
    gate_up: list[PackedWeight]
    down: PackedWeight


@dataclass(frozen=True, slots=True)
class Weights:
    """The whole model, in memory of its own: what it was made from is not looked at again."""

    embed: Array  # (V, E)
    layers: list[LayerWeights]
    final_norm: Array  # (E,)
    lm_head: PackedWeight  # (V, E)

    @classmethod
    def prepare(
        cls, config: ModelConfig, tensors: Mapping[str, Tensor], dtype: DTypeLike | None
    ) -> "Weights":
        """Converts tensors that fit the config to `dtype` (None: not) and packs them.

        One tensor at a time, so that not much more memory is needed than the result takes."""
        twice = tensors["embed"].nbytes if config.tie_embeddings else 0
        total = sum(tensor.nbytes for tensor in tensors.values()) + twice
        progress = Progress("loading", total)

        def array(name: str) -> Array:
            progress.advance(tensors[name].nbytes)
            return np.array(tensors[name], dtype or tensors[name].dtype, order="C")

        def packed(name: str) -> PackedWeight:
            progress.advance(tensors[name].nbytes)
            return pack(np.asarray(tensors[name], dtype or tensors[name].dtype))

        def layer(at: str) -> LayerWeights:
            return LayerWeights(
                attn_norm=array(at + "attn_norm"),
                wq_wk_wv=[packed(at + name) for name in ("wq", "wk", "wv")],
                qkv_bias=[array(at + name) for name in ("bq", "bk", "bv")]
                if config.qkv_bias
                else None,
                q_norm=array(at + "q_norm") if config.qk_norm else None,
                k_norm=array(at + "k_norm") if config.qk_norm else None,
                wo=packed(at + "wo"),
                wo_bias=array(at + "bo") if config.wo_bias else None,
                mlp_norm=array(at + "mlp_norm"),
                gate_up=[packed(at + name) for name in ("gate", "up")],
                down=packed(at + "down"),
            )

        with progress:
            return cls(
                embed=array("embed"),
                layers=[layer(f"layers.{index}.") for index in range(config.num_layers)],
                final_norm=array("final_norm"),
                lm_head=packed("embed" if config.tie_embeddings else "lm_head"),
            )


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a model of this config, in the order of computation."""
    width, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    q_width, kv_width = config.num_heads * head, config.num_kv_heads * head
    layer: dict[str, tuple[int, ...]] = {"attn_norm": (width,)}
    layer |= {"wq": (q_width, width), "wk": (kv_width, width), "wv": (kv_width, width)}
    if config.qkv_bias:
        layer |= {"bq": (q_width,), "bk": (kv_width,), "bv": (kv_width,)}
    if config.qk_norm:
        layer |= {"q_norm": (head,), "k_norm": (head,)}
    layer |= {"wo": (width, q_width)}
    if config.wo_bias:
        layer |= {"bo": (width,)}
    layer |= {
        "mlp_norm": (width,),
        "gate": (inner, width),
        "up": (inner, width),
        "down": (width, inner),
    }

    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, width)}
    for index in range(config.num_layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["final_norm"] = (width,)
    if not config.tie_embeddings:
        shapes["lm_head"] = (config.vocab_size, width)
    return shapes


def check_dtypes(
    tensors: Mapping[str, Tensor], dtype: DTypeLike | None, activations: np.dtype[Any]
) -> None:
    """TypeError when the kernels could not compute with such weights and activations."""
    if activations not in BESIDE:
        raise TypeError(
            f"model: activations is {activations}, needed is float32, bfloat16 or float16"
        )
    kinds = {t.dtype for t in tensors.values()} if dtype is None else {np.dtype(dtype)}
    if wrong := sorted(str(kind) for kind in kinds if kind not in BESIDE[activations]):
        raise TypeError(
            f"model: weights are {' and '.join(wrong)}, needed beside activations of {activations} "
            f"is {' or '.join(map(str, BESIDE[activations]))}; say which with dtype="
        )


def check_weights(config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """CheckpointError that lists every tensor missing, left over, of a wrong shape or no floats
    (the first few of each)."""
    if config.num_layers > len(tensors):  # or the list of what is missing could be endless
        found, needed = f"{len(tensors)} tensors", f"several for each of {config.num_layers} layers"
        raise CheckpointError(
            f"the tensors do not fit the config: found {found}, needed are {needed}",
            found=found,
            needed=needed,
        )
    shapes = weight_shapes(config)
    missing = [f"{name} {shape}" for name, shape in shapes.items() if name not in tensors]
    left_over = [
        f"{name[:120]} {np.shape(tensor)}" for name, tensor in tensors.items() if name not in shapes
    ]
    misshapen = [
        f"{name} found {np.shape(tensors[name])}, needed {shape}"
        for name, shape in shapes.items()
        if name in tensors and np.shape(tensors[name]) != shape
    ]
    no_floats = [
        f"{name} {tensors[name].dtype}"
        for name in shapes
        if name in tensors and tensors[name].dtype not in FLOATS
    ]
    wrong = [
        f"{what}: {'; '.join(names[:LISTED])}"
        + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
        for what, names in (
            ("missing", missing),
            ("left over", left_over),
            ("misshapen", misshapen),
            ("no floats", no_floats),
        )
        if names
    ]
    if wrong:
        found = ", ".join(wrong)
        raise CheckpointError(f"the tensors do not fit the config: {found}", found=found)
