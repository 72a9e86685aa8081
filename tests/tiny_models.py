"""Tiny random models made with transformers, each architecture in each of its variants, and copies
of them in the formats of others."""

import json
from functools import partial

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from cases import llama3_scaling

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
LLAMA3 = {"rope_theta": 500000.0, **llama3_scaling(32)}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

GLOBAL, LOCAL = "full_attention", "sliding_attention"
LOCAL_ROPE = {
    GLOBAL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    LOCAL: {"rope_type": "default", "rope_theta": 5000.0},
}
GEMMA = {"head_dim": 12, "sliding_window": 6}
SOFTCAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0}

EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

# Name -> the model's type and what differs from SIZES.
MODELS = {
    "llama2": ("llama", {"num_key_value_heads": 4}),
    "llama2-linear": ("llama", {"rope_parameters": LINEAR}),
    "llama3": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "llama3.1": ("llama", {"rope_parameters": LLAMA3}),
    "llama3.2": ("llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama-bias": ("llama", {"attention_bias": True, "head_dim": 12}),
    "qwen2": ("qwen2", {"rms_norm_eps": 1e-5}),
    "qwen2-tied-yarn": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen2-window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3-mqa-tied-yarn": (
        "qwen3",
        {
            "head_dim": 8,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "rope_parameters": YARN | {"attention_factor": 1.25, "beta_fast": 16.0},
        },
    ),
    "qwen3-bias-window": (
        "qwen3",
        {
            "head_dim": 8,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "llama-mlp-bias": ("llama", {"mlp_bias": True}),
    "gpt2": ("gpt2", {"n_inner": 48}),
    "gpt2-untied": ("gpt2", {"tie_word_embeddings": False}),
    "mistral": ("mistral", {"sliding_window": 6}),
    "mistral-no-window": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "smollm3-window": (
        "smollm3",
        {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 5},
    ),
    "olmo2": ("olmo2", {}),
    "olmo3": (
        "olmo3",
        {
            "sliding_window": 5,
            "layer_types": [LOCAL, GLOBAL, LOCAL],
            "rope_parameters": {GLOBAL: YARN | {"rope_theta": 2e4}, LOCAL: LOCAL_ROPE[LOCAL]},
        },
    ),
    "gemma2": ("gemma2", GEMMA | {"query_pre_attn_scalar": 5} | SOFTCAPS),
    "gemma2-even": ("gemma2", GEMMA | {"attn_logit_softcapping": None}),
    "gemma3": (
        "gemma3_text",
        GEMMA | {"rope_parameters": LOCAL_ROPE, "layer_types": [LOCAL, GLOBAL, LOCAL]},
    ),
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral-window-all": (
        "mixtral",
        {"num_local_experts": 3, "num_experts_per_tok": 3, "sliding_window": 6},
    ),
    "qwen2-moe": ("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 40}),
    "qwen2-moe-window": (
        "qwen2_moe",
        EXPERTS
        | {
            "shared_expert_intermediate_size": 16,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": 5,
        },
    ),
    "qwen3-moe": ("qwen3_moe", EXPERTS | {"head_dim": 16, "norm_topk_prob": True}),
    "qwen3-moe-dense-window": (
        "qwen3_moe",
        EXPERTS
        | {
            "head_dim": 8,
            "num_experts_per_tok": 1,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 6,
        },
    ),
    "gpt-oss": (
        "gpt_oss",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "head_dim": 8,
            "sliding_window": 6,
            "rope_parameters": YARN | {"rope_theta": 150000.0, "truncate": False, "beta_fast": 2.0},
        },
    ),
    "phi3": ("phi3", {}),
    "phi3-longrope": (
        "phi3",
        {
            "original_max_position_embeddings": 16,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0, 1.5, 2.0],
                "long_factor": [2.0, 5.0, 9.0],
                "partial_rotary_factor": 0.75,
            },
        },
    ),
    "phi3-partial-window": (
        "phi3",
        {
            "sliding_window": 6,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
            },
        },
    ),
}


def make(name, **changes):
    """A model of MODELS, float32: weights large enough for attention that is far from uniform."""
    kind, own = MODELS[name]
    config = transformers.AutoConfig.for_model(kind, **SIZES | own | changes)
    return randomise(transformers.AutoModelForCausalLM.from_config(config))


def randomise(model):
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if name.endswith(("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")):
                values = 1 + values / 4
            elif parameter.ndim == 1:
                values = values / 2
            elif "embed" not in name:
                values = values * 1.5 / parameter.shape[-1] ** 0.5
            parameter.copy_(values)
    return model.eval()


def rounded(model, dtype):
    """The same model with parameters that a file in `dtype` holds exactly. (Not model.to(dtype):
    that would round the frequencies of RoPE too.)"""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
    return model


def logits(model, ids):
    with torch.no_grad():
        return model(torch.as_tensor(np.atleast_2d(ids))).logits.numpy()


def greedy(model, ids, count):
    with torch.no_grad():
        out = model.generate(
            torch.as_tensor(ids)[None],
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
        )
    return out[0, len(ids) :].tolist()


def watched(model, keeps):
    """What the modules give whose names keeps(name) says, from now on, by these names."""
    seen = {}

    def hook(module, inputs, output, *, name):
        seen[name] = (output[0] if isinstance(output, tuple) else output).detach()

    for name, module in model.named_modules():
        if keeps(name):
            module.register_forward_hook(partial(hook, name=name))
    return seen


def edit_json(file, change):
    """change(object) gives the new content, or changes it in place."""
    content = json.loads(file.read_text())
    file.write_text(json.dumps(change(content) or content))


def save_changed(folder, name, change=lambda tensors: None, **config):
    """A directory with a model of MODELS whose tensors went through `change`, and whose config says
    something else."""
    make(name).save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    edit_json(folder / "config.json", lambda found: found | config)
    return folder


# ---- Meta's format -------------------------------------------------------------------------------

META_NAMES = {
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "model.layers": "layers",
}
SPLIT_ROWS = ("wq", "wk", "wv", "w1", "w3", "output")
SPLIT_COLUMNS = ("wo", "w2")


def meta_tensors(model):
    """The state dict under Meta's names, the rows of wq and wk in Meta's order (pairs together)."""
    head_dim, tensors = model.config.head_dim, {}
    for name, tensor in model.state_dict().items():
        for ours, metas in META_NAMES.items():
            name = name.replace(ours, metas)
        if ".wq." in name or ".wk." in name:
            halves = tensor.view(-1, 2, head_dim // 2, tensor.shape[1])
            tensor = halves.transpose(1, 2).reshape(tensor.shape)
        tensors[name] = tensor
    return tensors


def save_meta(folder, model, params, shards=1, embed_axis=0, dtype=torch.float32):
    """params.json and as many consolidated.NN.pth as asked for."""
    folder.mkdir(exist_ok=True)
    (folder / "params.json").write_text(json.dumps(params))
    axes = dict.fromkeys(SPLIT_ROWS, 0) | dict.fromkeys(SPLIT_COLUMNS, 1)
    axes["tok_embeddings"] = embed_axis
    parts = [{} for _ in range(shards)]
    for name, tensor in meta_tensors(model).items():
        axis = axes.get(name.split(".")[-2])
        pieces = [tensor] * shards if axis is None else tensor.chunk(shards, axis)
        for part, piece in zip(parts, pieces, strict=True):
            part[name] = piece.to(dtype, copy=True)
    for number, part in enumerate(parts):
        part["rope.freqs"] = torch.ones(4)
        torch.save(part, folder / f"consolidated.{number:02d}.pth")
    return folder


def meta_params(**changes):
    """What params.json says about SIZES."""
    params = {
        "dim": 32,
        "n_layers": 3,
        "n_heads": 4,
        "n_kv_heads": 2,
        "vocab_size": 96,
        "multiple_of": 16,
        "ffn_dim_multiplier": 0.5,  # 8/3 x 32 = 85, half of it 42, rounded up to 48
        "norm_eps": 1e-6,
        "rope_theta": 500000.0,
    }
    return {name: value for name, value in (params | changes).items() if value is not None}
