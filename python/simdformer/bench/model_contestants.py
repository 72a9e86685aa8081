"""Who runs a whole model: ours, transformers on PyTorch, and llama.cpp; with the same weights."""

from collections.abc import Callable
from copy import copy
from typing import Any

from simdformer.bench import llama_cpp_peer, ours, torch_peer
from simdformer.bench.contestants import Contestant, Missing, Way, optional
from simdformer.bench.models import ModelRun
from simdformer.bench.work import Inputs, numpy_dtype
from simdformer.models import KVCache, ModelConfig, Transformer
from simdformer.models.config import TENSOR_ALIASES
from simdformer.runtime import get_num_threads
from simdformer.types import Array

__all__ = ["TRANSFORMERS", "contestants", "forget_models"]

TRANSFORMERS = "transformers"
CACHE_DTYPE = "bfloat16"

# The models made last, by what made them: cases of one model follow each other.
_made: dict[str, tuple[ModelConfig, Any]] = {}


def contestants(work: ModelRun, inputs: Inputs) -> list[Contestant | Missing]:
    return [
        ours_contestant(work, inputs),
        transformers_contestant(work, inputs),
        llama_cpp_contestant(work, inputs),
    ]


def forget_models() -> None:
    """Lets the memory of the models go."""
    _made.clear()


def made(by: str, config: ModelConfig, make: Callable[[], Any]) -> Any:
    """The model that `by` made last, if it has that config, else a new one in its place."""
    if by not in _made or _made[by][0] != config:
        _made.pop(by, None)  # before the next one is made
        _made[by] = (config, make())
    return _made[by][1]


def ours_contestant(work: ModelRun, inputs: Inputs) -> Contestant:
    packed: Transformer = made(
        ours.NAME, work.config, lambda: Transformer(work.config, inputs["weights"])
    )
    model = copy(packed)  # another arithmetic on the same packed weights
    model.activations = numpy_dtype(work.dtype)
    ids, first = inputs["ids"], work.in_cache
    cache = model.new_cache(first + work.new, dtype=CACHE_DTYPE)
    if first:
        model(ids[:first], cache, 1)
    new = ids[first:]

    def call() -> Array:
        cache.truncate(first)
        return model(new, cache, 1)

    def checked(_: Array) -> Array:
        few = work.checked_ids(inputs)
        short: KVCache = model.new_cache(len(few), dtype=CACHE_DTYPE)
        model(few[:-1], short, 1)
        logits: Array = model(few[-1:], short, 1)[-1]
        return logits

    return Contestant(ours.NAME, (Way(f"activations {work.dtype}", call, checked),))


def llama_cpp_contestant(work: ModelRun, inputs: Inputs) -> Contestant | Missing:
    if missing := llama_cpp_peer.missing():
        return missing
    try:
        model = made(
            llama_cpp_peer.NAME,
            work.config,
            lambda: llama_cpp_peer.Model(work.config, inputs["weights"]),
        )
        return llama_cpp_peer.contestant(work, inputs, model, get_num_threads())
    except (OSError, RuntimeError) as error:  # no room for its file, or a library that is too new
        return Missing(llama_cpp_peer.NAME, f"could not be given the model: {error}")


def transformers_contestant(work: ModelRun, inputs: Inputs) -> Contestant | Missing:
    torch: Any = optional("torch")
    library: Any = optional("transformers")
    if torch is None or library is None:
        return Missing(TRANSFORMERS, "transformers or PyTorch is not installed")
    model = made(
        TRANSFORMERS,
        work.config,
        lambda: transformers_model(torch, library, work.config, inputs["weights"]),
    )
    ids = torch.from_numpy(inputs["ids"])[None]
    first = work.in_cache

    def step(new: Any, cache: Any) -> Any:
        return model(new, past_key_values=cache, use_cache=True, logits_to_keep=1).logits

    kept = library.DynamicCache()
    with torch.inference_mode():
        if first:
            step(ids[:, :first], kept)

    def decode() -> Any:
        logits = step(ids[:, first:], kept)
        kept.crop(-work.new)  # what a step added
        return logits

    def prefill() -> Any:
        return step(ids, library.DynamicCache())

    def checked(_: Any) -> Array:
        few, cache = torch.from_numpy(work.checked_ids(inputs))[None], library.DynamicCache()
        step(few[:, :-1], cache)
        logits: Array = step(few[:, -1:], cache)[0, -1].float().numpy()
        return logits

    call = decode if first else prefill
    return Contestant(TRANSFORMERS, (Way("bfloat16", call, checked, torch.inference_mode),))


def transformers_model(
    torch: Any, library: Any, config: ModelConfig, weights: dict[str, Array]
) -> Any:
    """Its own class for the architecture, with our tensors in it: no memory of its own."""
    shape = {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_seq_len,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "rope_parameters": {"rope_type": "default", **(config.rope_scaling or {})}
        | {"rope_theta": config.rope_theta},
    }
    make = library.Qwen3Config if config.qk_norm else library.LlamaConfig
    theirs = make(**shape)
    with torch.device("meta"):
        model = library.AutoModelForCausalLM.from_config(theirs, dtype=torch.bfloat16)
    names = {ours: name for name, ours in TENSOR_ALIASES["huggingface"].items()}
    tensors = {their_name(names, name): torch_peer.tensor(weights[name]) for name in weights}
    model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    rotary = model.model.rotary_emb  # its frequencies are computed, not loaded
    model.model.rotary_emb = type(rotary)(theirs)
    return model.eval()


def their_name(names: dict[str, str], name: str) -> str:
    """layers.3.wq -> model.layers.3.self_attn.q_proj.weight"""
    parts = name.split(".")
    if parts[0] != "layers":
        return names[name]
    return names[f"layers.{{}}.{parts[2]}"].replace("{}", parts[1])
