"""Small random models to look into, and plain float64 ways to what is found in them."""

import numpy as np

from checkpoints import GPT2, random_model

IDS = [7, 0, 299, 12, 12, 45, 101, 250, 3, 77, 12, 45, 128]
OTHERS = [9, 0, 299, 12, 33, 45, 101, 250, 4, 77, 12, 45, 128]

VARIANTS = {
    "plain": {},
    "mqa": {"num_kv_heads": 1},
    "qk_norm": {"qk_norm": True, "num_kv_heads": 4, "head_dim": 12},
    "biases": {"qkv_bias": True, "wo_bias": True, "rope_layout": "half"},
    "gpt2": GPT2,
    "untied window": {"sliding_window": 4, "tie_embeddings": False},
}


def make(name="plain", **changes):
    return random_model(**VARIANTS[name] | changes)


def unembedded(model, weights, stream):
    """The residual stream (...,E) through the final norm and the last matrix."""
    x = np.asarray(stream, np.float64)
    if model.config.norm == "layer_norm":
        x = x - x.mean(-1, keepdims=True)
    scale = np.sqrt(np.mean(x * x, -1, keepdims=True) + model.config.norm_eps)
    last = weights["embed" if model.config.tie_embeddings else "lm_head"]
    normed = x / scale * weights["final_norm"] + weights.get("final_norm_bias", 0)
    return normed @ np.asarray(last, np.float64).T


def softmax(x):
    x = np.asarray(x, np.float64)
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)
