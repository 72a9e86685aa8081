"""What others call the activations of a transformer, and how their axes lie.

A learner's dict may use the names of a trace ("layers.0.attn.q"), those of the walkthroughs
("embedding_after_edit"), those of Hugging Face ("model.layers.0.input_layernorm"), of
TransformerLens ("blocks.0.hook_resid_pre"), or of his own with `aliases=`. One layer's names may
leave the layer out: it is layer 0 then. One head alone is named with its number, as in
"q_layer0_head3", or with a tuple: ("attn.q", 3).
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from simdformer.models.config import ModelConfig
from simdformer.models.observer import trace_names

__all__ = [
    "SILU",
    "UNMASKED",
    "Place",
    "heads_of",
    "known_names",
    "near",
    "other_meanings",
    "place",
]

# What a learner has on the way and no trace has: scores before the mask, silu(gate).
UNMASKED, SILU = "attn.scores_unmasked", "mlp.silu"

# Of one layer. A name may stand alone, or behind a prefix that says which layer.
LAYER_ALIASES = {
    # Llama 3 step by step
    "token_embeddings": "attn_norm",
    "layer_embedding_norm": "attn_norm",
    "q_per_token": "attn.q",
    "k_per_token": "attn.k",
    "v_per_token": "attn.v",
    "q_per_token_rotated": "attn.q_rot",
    "k_per_token_rotated": "attn.k_rot",
    "qk_per_token": UNMASKED,
    "qk_per_token_after_masking": "attn.scores",
    "qk_per_token_after_masking_after_softmax": "attn.pattern",
    "qkv_attention": "attn.z",
    "qkv_attention_store": "attn.z",
    "stacked_qkv_attention": "attn.z",
    "embedding_delta": "attn.out",
    "embedding_after_edit": "resid_mid",
    "embedding_after_edit_normalized": "mlp_norm",
    "fc_up": "mlp.up",
    "fc_gate": SILU,
    "output_after_feedforward": "mlp.out",
    "embedding": "resid_post",
    # MiniMind, and Llama's own code
    "xq": "attn.q",
    "xk": "attn.k",
    "xv": "attn.v",
    "q": "attn.q",
    "k": "attn.k",
    "v": "attn.v",
    "q_embed": "attn.q_rot",
    "k_embed": "attn.k_rot",
    "q_rot": "attn.q_rot",
    "k_rot": "attn.k_rot",
    "attn.scores_unmasked": UNMASKED,
    "scores": "attn.scores",
    "attn_scores": "attn.scores",
    "attn_weights": "attn.pattern",
    "attention_weights": "attn.pattern",
    "pattern": "attn.pattern",
    "z": "attn.z",
    "attn_output": "attn.out",
    "h": "resid_mid",
    # As many write it
    "hidden_states": "resid_pre",
    "x_norm": "attn_norm",
    "x_normed": "attn_norm",
    "normed": "attn_norm",
    "normed_x": "attn_norm",
    "queries": "attn.q",
    "keys": "attn.k",
    "values": "attn.v",
    "query": "attn.q",
    "key": "attn.k",
    "value": "attn.v",
    "query_states": "attn.q",
    "key_states": "attn.k",
    "value_states": "attn.v",
    "q_proj": "attn.q",
    "k_proj": "attn.k",
    "v_proj": "attn.v",
    "o_proj": "attn.out",
    "q_rotated": "attn.q_rot",
    "k_rotated": "attn.k_rot",
    "q_rope": "attn.q_rot",
    "k_rope": "attn.k_rot",
    "xq_rot": "attn.q_rot",
    "xk_rot": "attn.k_rot",
    "rotated_q": "attn.q_rot",
    "rotated_k": "attn.k_rot",
    "attention_scores": "attn.scores",
    "masked_scores": "attn.scores",
    "attn": "attn.pattern",
    "attn_probs": "attn.pattern",
    "attention_probs": "attn.pattern",
    "attn_pattern": "attn.pattern",
    "probs": "attn.pattern",
    "context": "attn.z",
    "context_layer": "attn.z",
    "heads": "attn.z",
    "attention_output": "attn.out",
    "attn_out": "attn.out",
    "attention_out": "attn.out",
    "self_attn_output": "attn.out",
    "residual": "resid_mid",
    "after_attention": "resid_mid",
    "h_norm": "mlp_norm",
    "ffn_normed": "mlp_norm",
    "gate": "mlp.gate",
    "up": "mlp.up",
    "gate_proj": "mlp.gate",
    "up_proj": "mlp.up",
    "down_proj": "mlp.out",
    "gate_act": SILU,
    "mlp.act_fn": SILU,
    "hidden": "mlp.act",
    "act": "mlp.act",
    "swiglu": "mlp.act",
    "down": "mlp.out",
    "mlp_out": "mlp.out",
    "mlp_output": "mlp.out",
    "ffn_out": "mlp.out",
    "ffn_output": "mlp.out",
    "feed_forward_output": "mlp.out",
    "out": "resid_post",
    "output": "resid_post",
    "layer_output": "resid_post",
    "block_output": "resid_post",
    "after_mlp": "resid_post",
    # Hugging Face's modules
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn.q",
    "self_attn.k_proj": "attn.k",
    "self_attn.v_proj": "attn.v",
    "self_attn.q_norm": "attn.q_normed",
    "self_attn.k_norm": "attn.k_normed",
    "self_attn.o_proj": "attn.out",
    "self_attn": "attn.out",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.out",
    "mlp": "mlp.out",
    # Meta's modules
    "attention_norm": "attn_norm",
    "attention.wq": "attn.q",
    "attention.wk": "attn.k",
    "attention.wv": "attn.v",
    "attention.wo": "attn.out",
    "attention": "attn.out",
    "ffn_norm": "mlp_norm",
    "feed_forward.w1": "mlp.gate",
    "feed_forward.w3": "mlp.up",
    "feed_forward.w2": "mlp.out",
    "feed_forward": "mlp.out",
    # TransformerLens
    "hook_resid_pre": "resid_pre",
    "attn.hook_q": "attn.q",
    "attn.hook_k": "attn.k",
    "attn.hook_v": "attn.v",
    "attn.hook_rot_q": "attn.q_rot",
    "attn.hook_rot_k": "attn.k_rot",
    "attn.hook_attn_scores": "attn.scores",
    "attn.hook_pattern": "attn.pattern",
    "attn.hook_z": "attn.z",
    "hook_attn_out": "attn.out",
    "hook_resid_mid": "resid_mid",
    "mlp.hook_pre": "mlp.gate",
    "mlp.hook_pre_linear": "mlp.up",
    "mlp.hook_post": "mlp.act",
    "hook_mlp_out": "mlp.out",
    "hook_resid_post": "resid_post",
}

# Words that are used for several things; the first meaning stands above.
OTHER_MEANINGS = {
    "attn_output": ("attn.z",),
    "attention_output": ("attn.z",),
    "attn_out": ("attn.z",),
    "attention_out": ("attn.z",),
    "scores": (UNMASKED, "attn.pattern"),
    "attn_scores": (UNMASKED, "attn.pattern"),
    "attention_scores": (UNMASKED, "attn.pattern"),
    "attn_weights": (UNMASKED, "attn.scores"),
    "attention_weights": (UNMASKED, "attn.scores"),
    "attn": ("attn.scores", "attn.z", "attn.out"),
    "qkv_attention": ("attn.out",),
    "h": ("resid_pre", "resid_post", "attn.out"),
    "hidden": ("resid_pre", "resid_mid", "resid_post", SILU),
    "hidden_states": ("resid_mid", "resid_post", "attn_norm", "mlp_norm"),
    "residual": ("resid_pre", "resid_post"),
    "normed": ("mlp_norm",),
    "x_norm": ("mlp_norm",),
    "x_normed": ("mlp_norm",),
    "normed_x": ("mlp_norm",),
    "gate": (SILU,),
    "out": ("attn.out", "mlp.out", "attn.z"),
    "output": ("attn.out", "mlp.out", "attn.z"),
    "layer_output": ("mlp.out",),
    "block_output": ("mlp.out",),
    "query_states": ("attn.q_normed", "attn.q_rot"),
    "key_states": ("attn.k_normed", "attn.k_rot"),
}

# Of the whole model.
MODEL_ALIASES = {
    "token_embeddings_unnormalized": "embed",
    "embedding": "embed",
    "embeddings": "embed",
    "tok_embeddings": "embed",
    "embed_tokens": "embed",
    "model.embed_tokens": "embed",
    "hook_embed": "embed",
    "x0": "embed",
    "wte": "embed",
    "final_embedding": "final_norm",
    "norm": "final_norm",
    "final_normed": "final_norm",
    "normed_final": "final_norm",
    "model.norm": "final_norm",
    "lm_head": "logits",
    "output": "logits",
    "hook_logits": "logits",
}

PREFIXES = re.compile(
    r"(?:model\.)?(?:layers|blocks|layer|h)\.(\d+)(?:\.|$)|layer_?(\d+)(?:[._]|$)"
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
    """The names of a trace in the order of computation, and the scores before the mask."""
    names: list[str] = []
    for name in trace_names(config):
        if name.endswith("attn.scores"):
            names.append(name.replace("attn.scores", UNMASKED))
        if name.endswith("mlp.act"):
            names.append(name.replace("mlp.act", SILU))
        names.append(name)
    return names


def place(key: Any, config: ModelConfig, aliases: Mapping[Any, Any] | None = None) -> Place | None:
    """Where what the learner calls `key` belongs; None when nobody knows."""
    return understood((aliases or {}).get(key, key), config, set(known_names(config)))


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
    candidates = [key, MODEL_ALIASES.get(key)]
    layer, rest = without_layer(key)
    layer, rest = str(int(layer)), rest or "output"
    for name in (rest, rest.removesuffix(".weight"), LAYER_ALIASES.get(rest)):
        candidates.append(f"layers.{layer}.{name}")
    return next((name for name in candidates if name in known), None)


def heads_of(name: str, config: ModelConfig) -> int:
    """How many heads such an array has; 0 where it has none."""
    part = name.split(".", 2)[-1]
    if part in ("attn.k", "attn.v", "attn.k_normed", "attn.k_rot"):
        return config.num_kv_heads
    if part in ("attn.q", "attn.q_normed", "attn.q_rot", "attn.z", "attn.pattern", "attn.scores"):
        return config.num_heads
    return config.num_heads if part == UNMASKED else 0


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
