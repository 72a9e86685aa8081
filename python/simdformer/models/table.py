"""What the tables of activations and of weights are written in: axes, and what a model has."""

from collections.abc import Callable, Iterator

from simdformer.models.config import ModelConfig

__all__ = ["AXES", "FEATURES", "features", "rows_of"]

# A letter for each axis, and the field of a ModelConfig that says how long it is.
AXES = {
    "E": "hidden_size",
    "H": "num_heads",
    "K": "num_kv_heads",
    "D": "head_dim",
    "I": "intermediate_size",
    "M": "expert_intermediate_size",
    "J": "shared_intermediate_size",
    "X": "num_experts",
    "k": "num_experts_per_tok",
    "V": "vocab_size",
    "P": "max_seq_len",
}
FEATURES: dict[str, Callable[[ModelConfig], bool]] = {
    "norms before": lambda config: config.norm_placement != "after",
    "norms after": lambda config: config.norm_placement != "before",
    "layer norms": lambda config: config.norm == "layer_norm",
    "qk norms": lambda config: config.qk_norm,
    "qk norms by head": lambda config: config.qk_norm and config.qk_norm_over == "head",
    "qk norms over all": lambda config: config.qk_norm and config.qk_norm_over == "all_heads",
    "qkv biases": lambda config: config.qkv_bias,
    "wo bias": lambda config: config.wo_bias,
    "sinks": lambda config: config.attention_sinks,
    "learned positions": lambda config: config.positions == "learned",
    "gate": lambda config: config.gated_mlp,
    "plain gate": lambda config: config.gated_mlp and config.activation != "clamped_swiglu",
    "mlp biases": lambda config: config.mlp_bias,
    "own lm_head": lambda config: not config.tie_embeddings,
    "shared": lambda config: config.shared_intermediate_size > 0,
    "shared router": lambda config: config.shared_router,
}
OF_MIXTURES = {"shared", "shared router"}  # which other layers do not have


def features(config: ModelConfig, *, mixed: bool) -> frozenset[str]:
    """What a model has in its layers with experts (`mixed`), or in the others."""
    found = {name for name, has in FEATURES.items() if has(config)}
    return frozenset(found | {"experts"} if mixed else found - OF_MIXTURES | {"one mlp"})


def rows_of(text: str, columns: int) -> Iterator[list[str]]:
    """The cells of a table whose columns stand between bars; a row may end early."""
    for line in text.strip().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        yield cells + [""] * (columns - len(cells))
