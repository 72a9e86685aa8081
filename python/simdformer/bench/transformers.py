"""transformers on PyTorch as a contestant for whole models, in bfloat16 and on the same weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simdformer.bench.contestants import TRANSFORMERS, Contestant, Missing, Way, optional, tensor
from simdformer.models import ModelConfig
from simdformer.training.export import config_json, stored
from simdformer.types import Array

__all__ = ["NAME", "contestant", "missing", "model_of", "open_model"]

NAME = TRANSFORMERS

MORE = 32  # steps of decoding


def missing() -> Missing | None:
    """Why transformers cannot take part; None when it can."""
    if optional("torch") is None or optional("transformers") is None:
        return Missing(TRANSFORMERS, "transformers or PyTorch is not installed")
    return None


def model_of(config: ModelConfig, weights: Mapping[str, Array], dtype: str = "bfloat16") -> Any:
    """Its own class for the architecture, with our tensors in it: memory of its own only for those
    that lie otherwise there."""
    torch: Any = optional("torch")
    library: Any = optional("transformers")
    kind, found = config_json(config, weights, ())
    theirs = library.AutoConfig.for_model(**found)
    with torch.device("meta"):
        model = library.AutoModelForCausalLM.from_config(theirs, dtype=getattr(torch, dtype))
    arrays = {name: np.ascontiguousarray(x) for name, x in stored(kind, weights).items()}
    tensors = {name: tensor(array) for name, array in arrays.items()}
    model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    if rotary := getattr(model.base_model, "rotary_emb", None):  # computed, not loaded
        model.base_model.rotary_emb = type(rotary)(theirs)
    return model.eval()


def open_model(path: Path, config: ModelConfig) -> Any:
    """Its own class for a directory of Hugging Face's, with the weights in bfloat16."""
    if not path.is_dir():
        raise NotADirectoryError("it opens directories")
    torch: Any = optional("torch")
    library: Any = optional("transformers")
    return library.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()


def contestant(model: Any, ids: Array, in_cache: int, checked_ids: Array) -> Contestant:
    """All of `ids` behind the first `in_cache` at once; what is compared are the logits after
    `checked_ids`. A step of decoding leaves what it adds, as `generate` does, and every MORE steps
    the cache is what it was.
    """
    torch: Any = optional("torch")
    library: Any = optional("transformers")
    all_ids, few = torch.from_numpy(ids)[None], torch.from_numpy(checked_ids)[None]

    def step(new: Any, cache: Any) -> Any:
        return model(new, past_key_values=cache, use_cache=True, logits_to_keep=1).logits

    kept = library.DynamicCache()
    with torch.inference_mode():
        if in_cache:
            step(all_ids[:, :in_cache], kept)

    def decode() -> Any:
        if (added := kept.get_seq_length() - in_cache) >= MORE * (len(ids) - in_cache):
            kept.crop(-added)
        return step(all_ids[:, in_cache:], kept)

    def prefill() -> Any:
        return step(all_ids, library.DynamicCache())

    def checked(_: Any) -> Array:
        cache = library.DynamicCache()
        step(few[:, :-1], cache)
        logits: Array = step(few[:, -1:], cache)[0, -1].float().numpy()
        return logits

    call = decode if in_cache else prefill
    return Contestant(TRANSFORMERS, (Way("bfloat16", call, checked, torch.inference_mode),))
