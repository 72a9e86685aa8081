"""Inputs that are right, of a few hundred bytes where the format allows it: what is fuzzed starts
from them. They are written down independently of the readers."""

import base64
import functools
import io
import json
import struct
import tempfile
import zipfile
from pathlib import Path

import numpy as np

import gguf_files
from cases import llama3_scaling
from checkpoints import llama2c_bytes, random_weights, tiny_config, tiny_tokenizer, tokenizer_bytes
from simdformer.checkpoints import meta
from simdformer.checkpoints.huggingface_architectures import ARCHITECTURES
from simdformer.training.checkpoint import Checkpoint, save_checkpoint

SMALL = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 4}
SMALL |= {"intermediate_size": 8, "vocab_size": 12, "max_seq_len": 16}

# ---- checkpoints ---------------------------------------------------------------------------------


def small_weights(config):
    return random_weights(np.random.default_rng(1), config)


def named_weights(dialect):
    """A small model under the names of a format."""
    names = {"huggingface": ARCHITECTURES["llama"].names, "meta": meta.NAMES}[dialect]
    weights = small_weights(tiny_config(**SMALL))
    return {names.theirs(name): tensor for name, tensor in weights.items()}


def header_of(tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": tensor.shape,
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    return json.dumps(header).encode()


def with_length(header):
    return struct.pack("<Q", len(header)) + header


def safetensors_bytes(tensors):
    data = b"".join(tensor.tobytes() for tensor in tensors.values())
    return with_length(header_of(tensors)) + data


def few_tensors():
    return {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3, np.float32)}


def pickle_bytes(tensors):
    """What torch.save writes about a state dict, each tensor on a storage of its own."""

    def text(value):
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    def numbers(values):
        return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"

    entries = b""
    for key, (name, tensor) in enumerate(tensors.items()):
        storage = text("storage") + b"ctorch\nFloatStorage\n" + text(str(key)) + text("cpu")
        count = b"J" + struct.pack("<i", tensor.size)
        strides = [stride // 4 for stride in tensor.strides]
        entries += (
            text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n((" + storage + count + b"tQK\0"
        )
        entries += numbers(tensor.shape) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)RtR"
    return b"\x80\2}q\0(" + entries + b"u."


def pth_bytes(pickled, tensors):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in (("data.pkl", pickled), ("byteorder", b"little"), ("version", b"3\n")):
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), content)
        for key, tensor in enumerate(tensors.values()):
            archive.writestr(zipfile.ZipInfo(f"archive/data/{key}"), tensor.tobytes())
    return made.getvalue()


HUGGINGFACE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": 12,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 1,
    "layer_types": ["full_attention"],
    "eos_token_id": [2, 3],
}
YARN = {"type": "yarn", "factor": 4.0, "beta_fast": 32, "mscale": 1.0, "truncate": True}
SCALED = [llama3_scaling(8), YARN | {"original_max_position_embeddings": 8}]
META = {"dim": 8, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "multiple_of": 8, "norm_eps": 1e-5}
META |= {"vocab_size": -1, "ffn_dim_multiplier": 0.37, "rope_theta": 5e5, "use_scaled_rope": True}
META |= {"max_seq_len": 16, "rope_scaling_factor": 32.0}


def dumped(*documents):
    return [json.dumps(document).encode() for document in documents]


def configs():
    mistral = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    mistral |= {"sliding_window": 4, "layer_types": None}
    scaled = [HUGGINGFACE | {"rope_scaling": scaling} for scaling in SCALED]
    return dumped(HUGGINGFACE, HUGGINGFACE | mistral, *scaled)


def params():
    few = (*[*META][:6], "ffn_dim_multiplier")
    return dumped(META, {name: META[name] for name in few})


def huggingface_files():
    return {"model.safetensors": safetensors_bytes(named_weights("huggingface"))}


def minimind_files():
    weights = named_weights("huggingface")
    return {"model.pth": pth_bytes(pickle_bytes(weights), weights)}


def meta_files():
    weights = named_weights("meta")
    return {"consolidated.00.pth": pth_bytes(pickle_bytes(weights), weights)}


def llama2c_seeds():
    config = tiny_config(**SMALL)
    return [llama2c_bytes(config, small_weights(config), version) for version in (0, 1)]


ADAPTER = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "use_rslora": False}
ADAPTER |= {"target_modules": ["q_proj"], "rank_pattern": {}, "modules_to_save": None}


def adapter_tensors():
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    shapes = {"A.weight": (2, 8), "B.weight": (8, 2)}
    return {name + part: np.ones(shape, np.float32) for part, shape in shapes.items()}


INDEX = {"metadata": {"total_size": 36}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}


def indexed_files():
    (a, first), (b, second) = few_tensors().items()
    parts = {"1.safetensors": {a: first}, "2.safetensors": {b: second}}
    return {name: safetensors_bytes(part) for name, part in parts.items()}


# ---- tokenizers ----------------------------------------------------------------------------------


def added(id, content, special=True):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id, "content": content, "special": special, **flags}


def byte_level():
    characters = sorted(map(chr, BYTE_CHARACTERS))
    return {token: id for id, token in enumerate([*characters, "hi", "ab", "<s>", "</s>"])}


BYTE_CHARACTERS = [
    *range(0x21, 0x7F),
    *range(0xA1, 0xAD),
    *range(0xAE, 0x100),
    *range(0x100, 0x144),
]


def tokenizer_jsons():
    """The two usual kinds: bytes as characters, and sentencepiece's."""
    split = {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?\\p{L}+"}, "behavior": "Isolated"}
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    model = {"type": "BPE", "vocab": byte_level(), "merges": [["h", "i"], ["a", "b"]]}
    model |= {"dropout": None, "unk_token": None, "byte_fallback": False, "ignore_merges": True}
    front = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": front, "pair": front[1:]}
    template["special_tokens"] = {"<s>": {"id": "<s>", "ids": [258], "tokens": ["<s>"]}}
    of_bytes = {"version": "1.0", "added_tokens": [added(258, "<s>"), added(259, "</s>", False)]}
    of_bytes |= {"normalizer": {"type": "NFC"}, "decoder": level, "model": model}
    of_bytes["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [split | {"invert": False}, level],
    }
    of_bytes["post_processor"] = {"type": "Sequence", "processors": [level, template]}

    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "h",
        "i",
        "hi",
    ]
    model = {
        "type": "BPE",
        "vocab": {token: id for id, token in enumerate(tokens)},
        "unk_token": "<unk>",
    }
    model |= {"merges": ["h i"], "byte_fallback": True, "fuse_unk": True, "dropout": None}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    steps = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    of_pieces = {"version": "1.0", "added_tokens": [added(1, "<s>")], "model": model}
    of_pieces["normalizer"] = {
        "type": "Sequence",
        "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces],
    }
    of_pieces["decoder"] = {"type": "Sequence", "decoders": steps}
    scores = {
        "type": "Unigram",
        "unk_id": 0,
        "vocab": [[token, -1.0] for token in tokens[:1] + tokens[-4:]],
    }
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    of_scores = {"version": "1.0", "added_tokens": [], "model": scores | {"byte_fallback": False}}
    of_scores |= {"pre_tokenizer": metaspace, "decoder": metaspace}
    return dumped(of_bytes, of_pieces, of_scores)


TOKENIZER_CONFIG = {
    "tokenizer_class": "Qwen2Tokenizer",
    "add_bos_token": True,
    "add_prefix_space": False,
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "lstrip": False},
    "added_tokens_decoder": {"260": {"content": "<x>", "special": True}},
    "chat_template": [{"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"}],
}


def tiktoken_seed():
    tokens = [bytes([byte]) for byte in range(256)] + [b"hi", b" a", b"ab"]
    return [b"".join(base64.b64encode(t) + b" %d\n" % rank for rank, t in enumerate(tokens))]


def sentencepiece_seed():
    import sentencepiece

    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world how are you"] * 9),
        model_writer=made,
        vocab_size=277,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=3,
    )
    return [made.getvalue()]


MERGES = b"#version: 0.2\nh i\na b\n"


def vocab_files():
    config = {"tokenizer_class": "GPT2Tokenizer"}
    return {"merges.txt": MERGES, "tokenizer_config.json": json.dumps(config).encode()}


def merges_files():
    config, vocabulary = dumped(TOKENIZER_CONFIG, byte_level())
    return {"vocab.json": vocabulary, "tokenizer_config.json": config}


def llama2c_tokenizer_seed():
    return [tokenizer_bytes(*tiny_tokenizer(290))]


# ---- GGUF ----------------------------------------------------------------------------------------


def gguf_seeds():
    """Models with a tokenizer of each kind."""
    return [gguf_files.with_tokenizer(keys) for keys in (gguf_byte_level(), gguf_scored())]


def gguf_tokenizer_seeds():
    """The same tokenizers without tensors."""
    tokenizers = (gguf_byte_level(), gguf_scored())
    keys = [[gguf_files.key_bytes(name, *key) for name, key in keys.items()] for keys in tokenizers]
    return [gguf_files.file_bytes(entries, [], b"") for entries in keys]


def gguf_byte_level():
    tokens = [*byte_level()]
    keys = gguf_files.tokenizer_keys(tokens, [1] * 258 + [3, 4], "gpt2", pre=(8, "llama-bpe"))
    keys |= gguf_files.named_ids(bos=258, eos=259)
    keys["tokenizer.chat_template"] = (8, "{{ messages[0].content }}")
    return keys | {"tokenizer.ggml.merges": (9, ["h i", "a b"], 8)}


def gguf_scored():
    pieces, scores = tiny_tokenizer(290)
    tokens = [piece.decode().strip().replace(" ", "▁") for piece in pieces]
    tokens = [token or "▁" for token in tokens]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    keys = gguf_files.tokenizer_keys(tokens, types, "llama", scores=(9, scores, 6))
    return keys | gguf_files.named_ids(bos=1, eos=2)


# ---- training ------------------------------------------------------------------------------------


@functools.cache
def saved_run():
    """The files of a checkpoint that a run has left."""
    arrays = {"weights": {"embed": np.arange(3, dtype=np.float32)}}
    with tempfile.TemporaryDirectory() as folder:
        made = save_checkpoint(Path(folder), Checkpoint(3, {"norms": [0.5]}, arrays))
        return {file.name: file.read_bytes() for file in made.iterdir()}


def json_lines():
    """A file of each kind."""
    turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me: Ä."}]
    pair = {"prompt": "1 + 1 =", "chosen": " 2", "rejected": " 3"}
    kinds = [{"text": "One."}, {"messages": turns}, {"prompt": "a", "completion": "b"}, pair]
    return [b"\n".join(dumped(kind, kind)) for kind in kinds]
