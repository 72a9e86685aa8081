"""`accelerate(model)`: the modules of a PyTorch model compute with our kernels, until `restore`.

Modules stay where they are, with their names, parameters and hooks, and so do `state_dict` and
`generate`. Only their `forward` is another one.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from simdformer.functional import pack, quantization_types
from simdformer.functional import quantize as quantized
from simdformer.tensors.forwards import (
    Embedding,
    Held,
    Linear,
    RMSNorm,
    SwiGLU,
    Weight,
    is_ours,
    ours,
    shared,
)
from simdformer.tensors.memory import array_of, tensor_of

__all__ = ["Acceleration", "accelerate", "restore"]

# Architectures of transformers whose modules are written alike, each under its own name; those of
# them whose layers add what attention and MLP give as it is; and the modules inside others that are
# computed together with them.
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "Granite", "Mixtral", "Qwen2Moe", "Qwen3Moe")
PLAIN_LAYERS = FAMILIES[:4]
PARTS = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"),
    *("gate_proj", "up_proj", "down_proj"),
    *("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"),
)


@dataclass(kw_only=True)
class Acceleration:
    """What `accelerate` did: `print` it."""

    replaced: dict[str, int] = field(default_factory=dict)  # class -> modules that are ours now
    left: dict[str, str] = field(default_factory=dict)  # module -> its class, and why it is left
    nbytes: int = 0  # of the weights that were packed or quantised
    released: bool = False  # and the model's own ones are gone
    exact: bool = True  # whether those can be had back
    hollow: list["Hollow"] = field(default_factory=list, repr=False)
    attention: dict[str, str] = field(default_factory=dict, repr=False)  # model -> implementation

    def __str__(self) -> str:
        modules = ", ".join(f"{count} {kind}" for kind, count in sorted(self.replaced.items()))
        weights = f"{self.nbytes / 1e6:,.1f} MB of weights"
        where = "in place of" if self.released else "beside"
        made = f"; {weights} {where} the model's own" if self.nbytes else ""
        layers = Counter((re.sub(r"\.\d+\.", ".*.", name), why) for name, why in self.left.items())
        left = [
            f"  {name}: {why}" + (f" ({number} of them)" if number > 1 else "")
            for (name, why), number in layers.items()
        ]
        return "\n".join([f"ours: {modules or 'nothing'}{made}", "left to PyTorch:", *left])


@dataclass
class Hollow:
    """A parameter whose memory was released, in all modules that share it."""

    modules: list[Any]
    weight: Any
    requires_grad: bool

    def fill(self) -> None:
        """Gives the modules the weight back; another one that they were given since stays."""
        whole = torch.nn.Parameter(tensor_of(self.weight.unpack()), self.requires_grad)
        for module in self.modules:
            if module.weight.is_meta:
                module.weight = whole


def accelerate(
    model: torch.nn.Module,
    *,
    weights: Literal["packed", "shared"] = "packed",
    dtype: torch.dtype | None = None,
    quantize: str | None = None,
    originals: Literal["keep", "release"] = "keep",
    training: bool = False,
) -> Acceleration:
    """Gives the modules of a model on the CPU our kernels, in place.

    Every `torch.nn.Linear` and `torch.nn.RMSNorm`, any model. In Llama, Mistral, Qwen2 and Qwen3
    of transformers the norms, the MLP and attention with RoPE as a whole, too; in every other
    model of transformers the attention, see `simdformer.transformers`. What is not known stays as
    it is, and the report lists it.

    Parameters
    ----------
    weights : "packed" or "shared"
        Whether linear layers get weights repacked for speed, a copy as large as the original, or
        read the model's own where they lie.
    dtype : torch.dtype, optional
        What floats are rounded to as they are packed: bfloat16 beside float32 activations, say.
    quantize : str, optional
        The type of few bits to pack them in, "q8_0" or "q4_k" (see `simdformer.quantize`).
    originals : "keep" or "release"
        Whether the model's own weights stay in memory. Released ones become tensors on the device
        "meta": no memory, nothing to save. `restore` unpacks them; with a dtype or quantize
        that rounds it cannot, and says so.
    training : bool
        Whether autograd may record: then every forward has a gradient, and weights that require one
        are read where they lie. What `weights`, `dtype`, `quantize` and `originals` say holds for
        the frozen ones, those beside an adapter for instance.

    Returns
    -------
    Acceleration
        .replaced, a number for each class of modules; .left, the modules that PyTorch still
        computes, and why; .nbytes of the packed weights. `print` it.

    Weights that change later are packed again at the next call: by load_state_dict, in place, or as
    a whole through `.data`. (Single numbers written through `.data` are not seen.) Modules that
    are put in the place of others later, adapters for instance, are used. Released weights can only
    be replaced, load_state_dict(..., assign=True); a call after another load_state_dict is a
    RuntimeError. So is one under autograd without training=True, "no gradient", and dropout while
    it is recorded. ValueError: options that contradict each other, a model that is accelerated
    already or not on the CPU, rows that are no whole number of blocks.
    """
    check_options(weights, dtype, quantize, originals)
    check_model(model, quantize, training)
    report = Acceleration(released=originals == "release", exact=not quantize and not dtype)
    pack_one = packer(weights, dtype, quantize, training)
    for modules in owners_of_weights(model):
        replace_linears(modules, pack_one, report)
    for module in model.modules():
        replace_norm(module)
    for module in model.modules():
        replace_mlp(module)
    if hasattr(model, "set_attn_implementation"):
        replace_attention(model, report)
    for module in filter(is_ours, model.modules()):
        ours(module).trains = training
    count(model, report)
    model.__dict__["acceleration"] = report
    return report


def restore(model: torch.nn.Module) -> None:
    """Undoes `accelerate`: the modules compute as before, with the same bits in the same places.

    Weights that were released are unpacked; the modules are the same, those parameters are new.
    ValueError: the model is not accelerated, or its released weights were rounded.
    """
    report = model.__dict__.get("acceleration")
    if report is None:
        raise ValueError("restore: the model is not accelerated")
    if report.released and not report.exact:
        raise ValueError(
            "restore: the model's weights were released and those that are left are rounded; "
            "load it again, or keep the originals: accelerate(..., originals='keep')"
        )
    for hollow in report.hollow:
        hollow.fill()
    for module in model.modules():
        if is_ours(module):
            del module.__dict__["forward"]
    for name, implementation in report.attention.items():  # outer models first
        part: Any = model.get_submodule(name)
        part.set_attn_implementation(implementation)
    del model.__dict__["acceleration"]


# ---- what is asked for ---------------------------------------------------------------------------


def check_options(weights: str, dtype: Any, quantize: Any, originals: str) -> None:
    for name, given, known in (
        ("weights", weights, ("packed", "shared")),
        ("originals", originals, ("keep", "release")),
    ):
        if given not in known:
            raise ValueError(f"accelerate: {name} is {given!r}, needs {known[0]!r} or {known[1]!r}")
    if dtype is not None and quantize is not None:
        raise ValueError("accelerate: dtype and quantize exclude each other")
    if weights == "shared" and (dtype or quantize or originals == "release"):
        raise ValueError(
            "accelerate: weights='shared' reads the model's own: no dtype, no quantize, no release"
        )


def check_model(model: torch.nn.Module, quantize: str | None, training: bool) -> None:
    """Before anything is changed."""
    if any(map(is_ours, model.modules())):
        raise ValueError("accelerate: the model is accelerated already; restore(model) first")
    for name, parameter in model.named_parameters():
        if parameter.device.type != "cpu":
            raise ValueError(
                f"accelerate: {name} is on {parameter.device}, needs the CPU; call model.cpu()"
            )
    if quantize is None:
        return
    blocks = {name: kind.block for name, kind in quantization_types().items() if kind.writable}
    if quantize not in blocks:
        raise ValueError(f"accelerate: quantize is {quantize!r}, needs one of {', '.join(blocks)}")
    for name, module in model.named_modules():
        if type(module) is not torch.nn.Linear or (training and module.weight.requires_grad):
            continue
        if module.in_features % blocks[quantize]:
            raise ValueError(
                f"accelerate: {name} has {module.in_features} inputs, {quantize} needs a multiple "
                f"of {blocks[quantize]}; q8_0 and q4_0 need one of 32"
            )


def packer(
    weights: str, dtype: torch.dtype | None, quantize: str | None, training: bool
) -> Callable[[torch.Tensor], Weight]:
    """(O,I) tensor -> what `linear` multiplies with"""

    def one(weight: torch.Tensor) -> Weight:
        if weights == "shared" or (training and weight.requires_grad):
            return shared(weight)
        array = array_of(weight.detach() if dtype is None else weight.detach().to(dtype))
        return pack(array) if quantize is None else quantized(array, quantize)

    return one


# ---- module by module ----------------------------------------------------------------------------


def owners_of_weights(model: torch.nn.Module) -> list[list[Any]]:
    """The modules with a weight, those that share one together: lm_head and a tied embedding."""
    owners: dict[int, list[Any]] = {}
    for module in model.modules():
        if (weight := module._parameters.get("weight")) is not None:
            owners.setdefault(id(weight), []).append(module)
    return list(owners.values())


def replace_linears(
    modules: list[Any],
    pack_one: Callable[[torch.Tensor], Any],
    report: Acceleration,
) -> None:
    """The linear ones of modules that share a weight; all of them if it is to be released."""
    linears: list[Any] = [m for m in modules if type(m) is torch.nn.Linear and is_plain(m)]
    if not linears:
        return
    parameter = linears[0].weight
    weight = pack_one(parameter)
    for module in linears:
        module.forward = Linear(module, Held(module, "weight", pack_one, weight))
    if isinstance(weight, np.ndarray):
        return
    report.nbytes += weight.nbytes
    if report.released and all(map(can_be_released, modules)):
        embeddings: list[Any] = [m for m in modules if type(m) is torch.nn.Embedding]
        for module in embeddings:
            module.forward = Embedding(module, Held(module, "weight", shared, weight))
        report.hollow.append(Hollow(modules, weight, parameter.requires_grad))
        nothing = torch.nn.Parameter(torch.empty_like(parameter, device="meta"), False)
        for module in modules:
            module.weight = nothing
            module.forward.held_weight.watch()


def can_be_released(module: torch.nn.Module) -> bool:
    """Whether nobody but ours would read its weight."""
    if type(module) is torch.nn.Embedding:
        return module.max_norm is None and is_plain(module)
    return is_ours(module)


def replace_norm(module: Any) -> None:
    """Replaces transformers' and torch's, if it is told an eps and has a weight for one axis."""
    eps = "variance_epsilon" if is_of(module, "RMSNorm") else None
    if type(module) is torch.nn.RMSNorm and len(module.normalized_shape) == 1:
        eps = "eps" if module.eps is not None else None
    if eps is not None and module.weight is not None and is_plain(module):
        module.forward = RMSNorm(module, eps)


def replace_mlp(module: Any) -> None:
    if is_of(module, "MLP") and not why_not(module):
        module.forward = SwiGLU(module)


def replace_attention(model: torch.nn.Module, report: Acceleration) -> None:
    """All of it by the kernel, through transformers' own interface; where known, with what stands
    around it, and the layers that consist of nothing else."""
    from simdformer.transformers import NAME, register
    from simdformer.transformers.forwards import Attention, Layer, Rotary

    register()
    for name, part in model.named_modules():
        if hasattr(part, "set_attn_implementation"):
            report.attention[name] = part.config._attn_implementation
    known: Any = model
    known.set_attn_implementation(NAME)
    for decoder in model.modules():
        rotary: Any = getattr(decoder, "rotary_emb", None)
        if is_of(rotary, "RotaryEmbedding"):
            rotary.forward = Rotary(rotary)
            for module in decoder.modules():
                if is_of(module, "Attention") and not why_not(module):
                    module.forward = Attention(module)
    layer: Any
    for layer in model.modules():
        if is_of(layer, "DecoderLayer", PLAIN_LAYERS) and not why_not(layer):
            layer.forward = Layer(layer)


def is_of(module: Any, kind: str, families: tuple[str, ...] = FAMILIES) -> bool:
    """Whether it is the Attention, MLP, RMSNorm ... of one of the families."""
    known = type(module)
    return known.__module__.startswith("transformers.models.") and known.__name__ in {
        family + kind for family in families
    }


def is_plain(module: torch.nn.Module) -> bool:
    """Whether its class says what it computes."""
    return "forward" not in module.__dict__


def why_not(module: torch.nn.Module) -> str | None:
    """Why a module cannot be computed as a whole; None where it can."""
    if not is_plain(module):
        return "has a forward of its own"
    for name, part in module.named_children():
        if name in PARTS and not is_ours(part):
            return f"{name} is not ours"
        if name == "act_fn" and type(part).__name__ not in ("SiLU", "SiLUActivation"):
            return f"its activation is {type(part).__name__}"
    return None


def count(model: torch.nn.Module, report: Acceleration) -> None:
    """What is ours now, and what with a weight of its own, or of a known kind, is not."""
    ours: Counter[str] = Counter()
    for name, module in model.named_modules():
        kind = type(module).__name__
        if is_ours(module):
            ours[kind] += 1
        elif (is_of(module, "Attention") or is_of(module, "MLP")) and (why := why_not(module)):
            report.left[name] = f"{kind}, {why}"
        elif any(True for _ in module.parameters(recurse=False)):
            known = kind.endswith("Attention") and report.attention
            report.left[name] = kind + ", all but the attention itself" * bool(known)
    report.replaced = dict(ours)
