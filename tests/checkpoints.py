"""Small random models and tokenizers, and the files that hold them, written down independently of
the readers."""

import struct

import numpy as np
import pytest

from simdformer.checkpoints import CheckpointError, read_checkpoint
from simdformer.models import Transformer
from simdformer.models.config import ModelConfig
from simdformer.models.weights import weight_shapes

TINY = {
    "hidden_size": 32,
    "num_layers": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "intermediate_size": 44,
    "vocab_size": 300,
    "max_seq_len": 64,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_layout": "interleaved",
    "tie_embeddings": True,
}
# What makes a model differ from Llama, in two handfuls.
GEMMA = {
    "qk_norm": True,
    "norm_placement": "both",
    "norm_offset": 1.0,
    "activation": "gelu_tanh",
    "attention_scale": 0.2,
    "attention_softcap": 3.0,
    "logit_softcap": 9.0,
    "embed_scale": 2.0,
    "sliding_window": (None, 4, None),
    "rope_theta": 3e4,
    "local_rope_theta": 5e3,
}
OLMO2 = {
    "qk_norm": True,
    "qk_norm_over": "all_heads",
    "norm_placement": "after",
    "residual_scale": 0.4,
    "logit_divisor": 2.0,
    "rope_layers": (True, False, True),
    "rotary_dim": 6,
}
GPT2 = {
    "positions": "learned",
    "norm": "layer_norm",
    "activation": "gelu_tanh",
    "gated_mlp": False,
    "qkv_bias": True,
    "wo_bias": True,
    "mlp_bias": True,
}
MIXED = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "expert_intermediate_size": 20,
    "expert_layers": (True, False, True),
}


def tiny_config(**changes):
    return ModelConfig(**TINY | changes)


def random_weights(rng, config, dtype=np.float32):
    """Large enough for attention patterns and logits that are far from uniform."""
    weights = {}
    for name, shape in weight_shapes(config).items():
        values = rng.standard_normal(shape)
        if name.endswith("norm"):
            values = 1 + values / 4 - config.norm_offset
        elif name != "embed":
            values = values * (0.5 if len(shape) == 1 else 1.5 / np.sqrt(shape[-1]))
        weights[name] = values.astype(dtype)
    return weights


def random_model(seed=3, *, dtype="float32", activations="float32", **changes):
    """A small model, and the weights that it was made of."""
    config = tiny_config(**changes)
    weights = random_weights(np.random.default_rng(seed), config)
    return Transformer(config, weights, dtype=dtype, activations=activations), weights


def llama2c_bytes(config, weights, version):
    """A llama2.c checkpoint of version 0 (legacy) or 1, in the order that its export.py
    documents."""

    def all_layers(*names):
        return [weights[f"layers.{i}.{name}"] for name in names for i in range(config.num_layers)]

    sizes = [config.hidden_size, config.intermediate_size, config.num_layers, config.num_heads]
    sizes += [config.num_kv_heads, config.vocab_size, config.max_seq_len]
    lm_head = [] if config.tie_embeddings else [weights["lm_head"]]
    if version == 0:
        sizes[5] *= 1 if config.tie_embeddings else -1
        header = struct.pack("<7i", *sizes)
        freqs = 1 / config.rope_theta ** (np.arange(0, config.head_dim, 2) / config.head_dim)
        angles = np.arange(config.max_seq_len)[:, None] * freqs
        tensors = [
            weights["embed"],
            *all_layers("attn_norm", "wq", "wk", "wv", "wo", "mlp_norm", "gate", "down", "up"),
        ]
        tensors += [weights["final_norm"], np.cos(angles), np.sin(angles), *lm_head]
    else:
        header = struct.pack("<4si7iB", b"24ka", 1, *sizes, config.tie_embeddings).ljust(256, b"\0")
        tensors = [*all_layers("attn_norm", "mlp_norm"), weights["final_norm"], weights["embed"]]
        tensors += [*all_layers("wq", "wk", "wv", "wo", "gate", "down", "up"), *lm_head]
    return header + b"".join(tensor.astype("<f4").tobytes() for tensor in tensors)


def tokenizer_bytes(pieces, scores):
    """A tokenizer file of llama2.c."""
    entries = [
        struct.pack("<fi", score, len(piece)) + piece
        for piece, score in zip(pieces, scores, strict=True)
    ]
    return struct.pack("<i", max(map(len, pieces))) + b"".join(entries)


def tiny_tokenizer(vocab_size):
    """Pieces and scores: the fixed 259 ids, then single characters, then some of their unions."""
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % byte for byte in range(256))]
    pieces += [c.encode() for c in " abcdefgéß€"] + [
        b"ab",
        b"bc",
        b" a",
        b"abc",
        b" ab",
        b"de",
        b"cd",
    ]
    pieces += [b"token%d" % i for i in range(vocab_size - len(pieces))]
    return pieces, [0.0] * 259 + [-float(i) for i in range(vocab_size - 259)]


def told(path, read=read_checkpoint, **options):
    """What is said of a file that is refused: one line that names it."""
    with pytest.raises(CheckpointError) as caught:
        read(path, **options)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert len(message) < 1500
    return message


def refusal(path, read=read_checkpoint, **options):
    """The same behind the name of the file."""
    return told(path, read, **options).removeprefix(f"{path}: ")


def agree(found, needed, tolerance=1e-5):
    """Relative to the largest. Both sides compute in float32 and add up in another order, three
    layers deep; measured against transformers: at most 3.4e-6."""
    found, needed = np.asarray(found, np.float64), np.asarray(needed, np.float64)
    assert found.shape == needed.shape
    assert np.abs(found - needed).max() <= tolerance * np.abs(needed).max()
