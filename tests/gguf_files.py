"""GGUF files: small ones byte by byte, independently of the reader, and models as the gguf package
writes them."""

import struct

import gguf
import numpy as np
import torch

# ---- byte by byte --------------------------------------------------------------------------------

PACKED = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<B",
    10: "<Q",
    11: "<q",
}
PACKED[12] = "<d"
STRING, ARRAY = 8, 9


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def value_bytes(kind, value):
    return text(value) if kind == STRING else struct.pack(PACKED[kind], value)


def key_bytes(name, kind, value, element=None):
    """One key; `element` is the type of the elements of an array."""
    head = text(name) + struct.pack("<I", kind)
    if kind != ARRAY:
        return head + value_bytes(kind, value)
    head += struct.pack("<IQ", element, len(value))
    return head + b"".join(value_bytes(element, one) for one in value)


def tensor_bytes(name, shape, offset, kind=0):
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return text(name) + axes + struct.pack("<IQ", kind, offset)


def file_bytes(keys, tensors, data, *, version=3, counts=None, align=32):
    """A file of keys and tensors that are bytes already, and the data behind them."""
    counts = (len(tensors), len(keys)) if counts is None else counts
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join([*keys, *tensors])
    return head.ljust(-(-len(head) // align) * align, b"\0") + data


def of_arrays(keys, arrays, **options):
    """A file of float32 tensors."""
    entries, data = [], b""
    for name, array in arrays.items():
        entries.append(tensor_bytes(name, array.shape, len(data)))
        data += array.tobytes().ljust(-(-array.nbytes // 32) * 32, b"\0")
    return file_bytes(keys, entries, data, **options)


def of_shapes(keys, tensors):
    """A file of zeros: name -> shape and number of the type."""
    entries, data = [], b""
    for name, (shape, kind) in tensors.items():
        entries.append(tensor_bytes(name, shape, len(data), kind))
        block, nbytes = gguf.GGML_QUANT_SIZES[kind]
        data += bytes(-(-(int(np.prod(shape)) // block * nbytes) // 32) * 32)
    return file_bytes(keys, entries, data)


SIZES = {"block_count": 1, "embedding_length": 8, "feed_forward_length": 8, "context_length": 16}
SIZES |= {"attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 4}
SIZES |= {"attention.value_length": 4, "rope.dimension_count": 4, "vocab_size": 12}
NUMBERS = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0}


def small_keys(arch="llama", **changes):
    """The keys of a small model by name; `changes` are whole keys, or None."""
    keys = {"general.architecture": (STRING, arch)}
    keys |= {f"{arch}.{name}": (4, value) for name, value in SIZES.items()}
    keys |= {f"{arch}.{name}": (6, value) for name, value in NUMBERS.items()}
    keys |= changes
    return [key_bytes(name, *value) for name, value in keys.items() if value is not None]


LAYER = {
    "attn_norm": (8,),
    "attn_q": (8, 8),
    "attn_k": (4, 8),
    "attn_v": (4, 8),
    "attn_output": (8, 8),
    "ffn_norm": (8,),
    "ffn_gate": (8, 8),
    "ffn_up": (8, 8),
    "ffn_down": (8, 8),
}


def small_arrays():
    """The tensors of that model."""
    shapes = {"token_embd": (12, 8), "output_norm": (8,)}
    shapes |= {f"blk.0.{name}": shape for name, shape in LAYER.items()}
    random = np.random.default_rng(1)
    return {
        f"{name}.weight": random.standard_normal(shape).astype("<f4")
        for name, shape in shapes.items()
    }


def small_file(arch="llama", **changes):
    return of_arrays(small_keys(arch, **changes), small_arrays())


def tokenizer_keys(tokens, types, kind, **others):
    at = "tokenizer.ggml."
    keys = {f"{at}model": (STRING, kind), f"{at}tokens": (ARRAY, tokens, STRING)}
    keys[f"{at}token_type"] = (ARRAY, types, 5)
    return keys | {f"{at}{name}": value for name, value in others.items()}


def named_ids(**ids):
    """Keys of bos, eos, ..."""
    return {f"tokenizer.ggml.{name}_token_id": (4, id) for name, id in ids.items()}


def with_tokenizer(keys):
    """The small model with a vocabulary as large as that of its tokenizer."""
    size = len(keys["tokenizer.ggml.tokens"][1])
    embed = np.resize(small_arrays()["token_embd.weight"], (size, 8))
    arrays = small_arrays() | {"token_embd.weight": embed}
    return of_arrays(small_keys(**keys | {"llama.vocab_size": (4, size)}), arrays)


# ---- models, as the gguf package writes them -----------------------------------------------------

ARCHITECTURES = {
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
    "gemma3_text": "gemma3",
    "olmo3": "olmo2",
}  # others: as they are
PAIRED = ("llama", "granite", "smollm3")


def architecture(config):
    return ARCHITECTURES.get(config.model_type, config.model_type)


def converted(model):
    """The state dict of a transformers model as llama.cpp's converter stores it: for some
    architectures the rows of q and k with pairs side by side, Gemma's norms with 1 added, the
    divisors of Llama 3.1's RoPE."""
    config, tensors, arch = model.config, {}, architecture(model.config)
    kind = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for name, tensor in published(model).items():
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        if arch in PAIRED and (".q_proj." in name or ".k_proj." in name):
            head_dim = model.model.layers[0].self_attn.head_dim
            halves = tensor.view(-1, 2, head_dim // 2, *tensor.shape[1:])
            tensor = halves.transpose(1, 2).reshape(tensor.shape)
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor + 1
        if arch == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            tensor = tensor.T
        if arch == "gpt-oss" and ".post_attention_layernorm." in name:
            tensors[f"blk.{name.split('.')[2]}.post_attention_norm.weight"] = tensor
            continue
        if name.endswith(".shared_expert_gate.weight"):
            tensor = tensor[0]
        tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))] = tensor
    rope = getattr(config, "rope_parameters", {})
    if rope.get("rope_type") == "longrope":
        for length in ("long", "short"):
            factors = torch.tensor(rope[f"{length}_factor"])
            tensors[f"rope_factors_{length}.weight"] = factors
    if rope.get("rope_type") == "llama3":
        turned = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        plain = config.rope_parameters["rope_theta"] ** -turned
        tensors["rope_freqs.weight"] = plain / model.model.rotary_emb.inv_freq.double()
    return tensors


def published(model):
    """The state dict with gate and up of the experts apart, as they are in files of GGUF."""
    tensors, own = {}, model.config.model_type
    for name, tensor in model.state_dict().items():
        if name.endswith(".sinks"):
            name += ".weight"
        at, _, kind = name.rpartition(".")
        end = ".bias" if kind.endswith("_bias") else ".weight"
        kind = kind.removesuffix("_bias")
        if not at.endswith(".experts"):
            tensors[name] = tensor
            continue
        if own == "gpt_oss" and tensor.ndim == 3:
            tensor = tensor.mT
        if kind == "down_proj":
            tensors[f"{at}.down_proj{end}"] = tensor
        elif own == "gpt_oss":
            tensors[f"{at}.gate_proj{end}"] = tensor[:, ::2]
            tensors[f"{at}.up_proj{end}"] = tensor[:, 1::2]
        else:
            tensors[f"{at}.gate_proj{end}"], tensors[f"{at}.up_proj{end}"] = tensor.chunk(2, 1)
    return tensors


def describe(writer, config):
    """What a config of transformers says, as keys; ids go in and come out."""
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config.vocab_size)
    if config.model_type == "gpt2":
        describe_gpt2(writer, config)
        return
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None)
    if head_dim is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    describe_rope(writer, config)
    describe_windows(writer, config)
    if getattr(config, "num_experts", None):
        describe_experts(writer, config)
    own = {
        "attn_logit_softcapping": writer.add_attn_logit_softcapping,
        "final_logit_softcapping": writer.add_final_logit_softcapping,
        "attention_multiplier": writer.add_attention_scale,
        "embedding_multiplier": writer.add_embedding_scale,
        "residual_multiplier": writer.add_residual_scale,
        "logits_scaling": writer.add_logit_scale,
    }
    for name, add in own.items():
        if getattr(config, name, None) is not None:
            add(getattr(config, name))


def describe_experts(writer, config):
    kind = config.model_type
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if kind == "gpt_oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    elif kind != "mixtral":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if kind == "qwen2_moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def describe_gpt2(writer, config):
    writer.add_block_count(config.n_layer)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
    writer.add_context_length(config.n_positions)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


def describe_rope(writer, config):
    parts = config.rope_parameters
    rope, local = parts.get("full_attention", parts), parts.get("sliding_attention")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    if config.model_type != "gemma2":
        writer.add_rope_freq_base(rope["rope_theta"])
    if local is not None:
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if rope["rope_type"] == "longrope":  # as Phi-3's converter does, which names no type
        context = rope["original_max_position_embeddings"]
        factor = config.max_position_embeddings / context
        writer.add_rope_scaling_orig_ctx_len(context)
        writer.add_rope_scaling_attn_factors(np.sqrt(1 + np.log(factor) / np.log(context)))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        if "attention_factor" in rope:  # ggml multiplies it with 1 + ln(factor) / 10
            sharpness = 1 + 0.1 * np.log(rope["factor"])
            writer.add_rope_scaling_attn_factors(rope["attention_factor"] / sharpness)


def describe_windows(writer, config):
    if config.model_type in ("mistral", "gemma2", "gemma3_text", "olmo3", "phi3", "gpt_oss"):
        writer.add_sliding_window(config.sliding_window or 0)
    if config.model_type == "olmo3":
        types = config.layer_types
        writer.add_sliding_window_pattern([one == "sliding_attention" for one in types])


EXACT = ("position_embd.weight", "ffn_gate_inp.weight", ".bias")  # how names end


def write_model(path, model, dtype=torch.float32, **options):
    """A transformers model; vectors and some others stay in float32, as in published files."""
    writer = gguf.GGUFWriter(path, architecture(model.config), **options)
    describe(writer, model.config)
    for name, tensor in converted(model).items():
        exact = tensor.ndim == 1 or name.endswith(EXACT)
        tensor = tensor.contiguous().to(torch.float32 if exact else dtype)
        if tensor.dtype == torch.bfloat16:
            raw = tensor.view(torch.uint8).numpy()
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, tensor.numpy())
    close(writer)


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
