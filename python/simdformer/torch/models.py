"""Models that take ids as tensors, and give logits, losses and activations as tensors."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, ParamSpec

import torch

from simdformer import models, text
from simdformer.models import KVCache, ModelConfig
from simdformer.quantization.weight import QuantizedWeight
from simdformer.tensors.wrapping import documented, on_arrays, tensors_of
from simdformer.types import ArrayLike, DTypeLike

__all__ = ["LanguageModel", "Trace", "Transformer", "from_pretrained"]

P = ParamSpec("P")
Edits = Mapping[str, Any] | None  # tensors, or functions of one that give one or None


class Trace(models.Trace):
    """A `simdformer.models.Trace` whose activations are tensors."""

    def __getitem__(self, key: Any) -> Any:
        return tensors_of(super().__getitem__(key))


class LanguageModel(text.LanguageModel):
    """A `simdformer.text.LanguageModel` that gives tensors: logits, losses, activations. Ids are
    taken as tensors too, edits are tensors or functions of one."""

    def __call__(
        self,
        ids: Any,
        cache: KVCache | None = None,
        logits_to_keep: int | None = None,
        *,
        edit: Edits = None,
    ) -> Any:
        return tensors_of(super().__call__(ids, cache, logits_to_keep, edit=of_arrays(edit)))

    def run_with_cache(
        self, ids: Any, names: str | Iterable[str] | None = None, *, edit: Edits = None
    ) -> tuple[Any, Any]:
        logits, trace = super().run_with_cache(ids, names, edit=of_arrays(edit))
        return tensors_of(logits), traces_of(trace)

    def loss(self, text: Any) -> Any:
        return tensors_of(super().loss(text))


class Transformer(LanguageModel):
    """A `simdformer.models.Transformer` of a config and a dict of tensors, under the names and in
    the shapes of `simdformer.models.weight_shapes(config)`; a model without a tokenizer."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, ArrayLike | QuantizedWeight],
        *,
        dtype: torch.dtype | DTypeLike | None = None,
        activations: torch.dtype | DTypeLike = "float32",
        arithmetic: Literal["int16", "float32"] = "int16",
    ) -> None:
        kinds = [on_arrays(kind, "model", "dtype") for kind in (dtype, activations)]
        super().__init__(
            models.Transformer(
                config, weights, dtype=kinds[0], activations=kinds[1], arithmetic=arithmetic
            )
        )


def loading(load: Callable[P, text.LanguageModel]) -> Callable[P, LanguageModel]:
    """What loads a model, as what loads one on tensors; a dtype may be one of PyTorch's."""

    def from_pretrained(*args: P.args, **kwargs: P.kwargs) -> LanguageModel:
        options: Any = {
            name: on_arrays(value, "from_pretrained", name) for name, value in kwargs.items()
        }
        places: Any = [on_arrays(value, "from_pretrained", "dtype") for value in args]
        model = object.__new__(LanguageModel)
        vars(model).update(vars(load(*places, **options)))
        return model

    shown: Any = from_pretrained
    shown.__module__ = "simdformer.torch"
    shown.__doc__ = documented(load.__doc__, "`simdformer.from_pretrained`")
    shown.__signature__ = inspect.signature(load).replace(return_annotation=LanguageModel)
    return from_pretrained


from_pretrained = loading(text.from_pretrained)


def traces_of(traces: Any) -> Any:
    if isinstance(traces, list):
        return [traces_of(trace) for trace in traces]
    return Trace(dict(traces), ids=traces.ids, tokens=traces.tokens, model=traces.model)


def of_arrays(edit: Edits) -> Any:
    """Edits of tensors as edits of arrays."""

    def on_an_array(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda array: on_arrays(function(tensors_of(array)), "edit", "what a function gave")

    return edit and {name: on_an_array(one) if callable(one) else one for name, one in edit.items()}
