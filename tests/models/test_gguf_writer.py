"""GGUF files that are written here: as the gguf package reads them, as llama.cpp's converter makes
them, and without a trace where something goes wrong."""

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

import gguf_files
import simdformer as sf
import tiny_models
from checkpoints import agree, tiny_config
from simdformer.checkpoints import CheckpointError, read_checkpoint
from simdformer.checkpoints.gguf_architectures import ARCHITECTURES
from simdformer.checkpoints.gguf_file import StoredArray, read_gguf
from simdformer.checkpoints.gguf_mixtures import MIXTURES, type_of
from simdformer.models import weight_shapes
from simdformer.models.budget import active_parameters, parameter_budget
from simdformer.quantization.types import quantization_types
from simdformer.text import tokenizer as tokenizers
from simdformer.text.gguf_vocabulary import vocabulary_keys
from simdformer.text.quantizing import quantize_checkpoint
from subprocesses import finish, run_python, start_python

# What no file can hold: the closest architecture, and a field that keeps the model from being it.
NOT_HELD = {
    "qwen2-window": ("qwen2", "sliding_window = (None, 5, 5)"),
    "qwen3-bias-window": ("llama", "qk_norm = True"),
    "llama-mlp-bias": ("llama", "mlp_bias = True"),
    "smollm3-window": ("llama", "rope_layers = (True, False, True)"),
    "gemma2-even": ("gemma2", "attention_softcap = None"),
    "qwen2-moe-window": ("qwen2moe", "expert_layers = (False, True, False)"),
    "qwen3-moe-dense-window": ("qwen3moe", "expert_layers = (True, False, True)"),
}
# What no key says, and llama.cpp knows of the architecture.
FIXED = {
    "smollm3": {"no_rope_layer_interval": 4, "num_hidden_layers": 5},
    "gemma2": {"query_pre_attn_scalar": 12},
    "gemma3": {"query_pre_attn_scalar": 12, "num_hidden_layers": 7, "layer_types": None},
}
MODELS = [name for name in tiny_models.MODELS if name not in NOT_HELD]
IDS = np.random.default_rng(11).integers(0, 96, (2, 40))
TEXT = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"
OTHER_TEXTS = (
    "The lighthouse keeper's daughter counted 1,234,567 stars -- didn't she?",
    "  if (a<b && c[0] != '\\n') { return x_1 + 3.14e-10; }  // größer als 5°",
    "Ça va? Größe Привет мир 東京 は 大きい 🚀🚀 \t\r\n end",
)


def loaded(reader):
    return {tensor.name: tensor for tensor in reader.tensors}


# ---- against the gguf package --------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("type", MIXTURES)
def test_the_gguf_package_reads_what_we_read(type, tmp_path):
    file = tmp_path / "demo.gguf"
    made = quantize_checkpoint("demo", file, type)
    reader, ours = gguf.GGUFReader(file), read_gguf(file)
    assert made.nbytes == file.stat().st_size
    assert os.listdir(tmp_path) == ["demo.gguf"]
    theirs = loaded(reader)
    assert theirs.keys() == ours.tensors.keys()
    for name, tensor in ours.tensors.items():
        assert getattr(tensor, "bytes", tensor).offset == theirs[name].data_offset
        kind = getattr(tensor, "type", {4: "f32", 2: type}[tensor.dtype.itemsize])
        assert theirs[name].tensor_type.name.lower() == kind
        values = gguf.quants.dequantize(theirs[name].data, theirs[name].tensor_type)
        np.testing.assert_array_equal(np.asarray(tensor, np.float32), values)
    for key, value in ours.metadata.items():
        field = reader.fields[key].contents()
        if isinstance(value, StoredArray):
            value = value.texts() if value.kind == 8 else value.numbers().tolist()
        assert field == value
    model = sf.from_pretrained(file)
    assert model.tokenizer.encode(TEXT) == sf.from_pretrained("demo").tokenizer.encode(TEXT)
    assert len(model.generate("Once upon a time", max_new_tokens=8)) > 8


def test_errors_are_those_of_the_tensors(tmp_path):
    made = quantize_checkpoint("demo", tmp_path / "demo.gguf", "q4_0")
    plain = read_checkpoint(sf.demo_path()).weights
    few = read_checkpoint(tmp_path / "demo.gguf").weights
    for kind, ours in {"attn_q": "wq", "ffn_down": "down", "token_embd": "embed"}.items():
        names = [name for name in plain if name.split(".")[-1] == ours]
        exact = np.stack([np.asarray(plain[name], np.float64) for name in names])
        found = np.stack([np.asarray(few[name], np.float64) for name in names])
        error = np.sqrt(np.sum((found - exact) ** 2) / np.sum(exact**2))
        assert made.losses[kind] == (("q4_0",), pytest.approx(error, rel=1e-4))


# ---- as llama.cpp's converter makes them ---------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_tensors_and_keys_are_those_of_the_converter(name, tmp_path):
    model = tiny_models.rounded(tiny_models.make(name, **FIXED.get(name, {})), torch.float16)
    model.save_pretrained(tmp_path / "folder")
    gguf_files.write_model(tmp_path / "theirs.gguf", model, torch.float16)
    quantize_checkpoint(tmp_path / "folder", tmp_path / "ours.gguf", "f16")
    ours, theirs = (gguf.GGUFReader(tmp_path / f"{who}.gguf") for who in ("ours", "theirs"))
    found, needed = loaded(ours), loaded(theirs)
    assert found.keys() == needed.keys()
    for tensor in needed:
        assert found[tensor].tensor_type == needed[tensor].tensor_type or tensor.startswith("rope")
        if tensor == "rope_freqs.weight":
            np.testing.assert_allclose(found[tensor].data, needed[tensor].data, rtol=1e-6)
        else:
            np.testing.assert_array_equal(found[tensor].data, needed[tensor].data)
    for key, field in theirs.fields.items():
        value = field.contents()
        nothing = key.startswith("GGUF.") or (key.endswith(".sliding_window") and value == 0)
        if not nothing:
            assert ours.fields[key].types == field.types, key
            found_value = ours.fields[key].contents()
            if isinstance(value, float):
                assert found_value == pytest.approx(value, rel=1e-6), key
            elif key not in ("general.name",):
                assert found_value == value, key
    logits, prompt = tiny_models.logits(model, IDS), IDS[0, :9]
    ids = tiny_models.greedy(model, prompt, 24)
    complete = ("ours",) if name == "mixtral-window-all" else ("ours", "theirs")
    for who in complete:
        again = sf.from_pretrained(tmp_path / f"{who}.gguf")
        agree(again(IDS), logits)
        assert again.generate(prompt, max_new_tokens=24) == ids


def check_refused(model, closest, field, tmp_path):
    model.save_pretrained(tmp_path / "folder")
    with pytest.raises(CheckpointError) as caught:
        quantize_checkpoint(tmp_path / "folder", tmp_path / "out.gguf", "q8_0")
    assert caught.value.file == str(tmp_path / "folder")
    assert caught.value.found.startswith("a model with ")
    assert field in caught.value.found
    assert caught.value.needed.endswith(f"the closest, of {closest}, cannot")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("name", NOT_HELD)
def test_a_model_that_no_file_can_hold_is_refused_before_work_starts(name, tmp_path):
    check_refused(tiny_models.make(name), *NOT_HELD[name], tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("olmo2", {"tie_word_embeddings": True}, "tie_embeddings = True"),
        ("gemma2", {"tie_word_embeddings": False} | FIXED["gemma2"], "tie_embeddings = False"),
        ("gpt-oss", {"swiglu_limit": 6.0}, "swiglu_limit = 6.0"),
    ],
)
def test_what_llama_cpp_takes_for_granted_is_checked(name, changes, field, tmp_path):
    check_refused(tiny_models.make(name, **changes), name, field, tmp_path)


def test_a_type_or_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(ValueError, match="type is 'q3_x', needs one of f16, bf16, q8_0"):
        quantize_checkpoint("demo", tmp_path / "out.gguf", "q3_x")
    with pytest.raises(FileNotFoundError):
        quantize_checkpoint("demo", tmp_path / "missing" / "out.gguf")


# ---- from GGUF to GGUF ---------------------------------------------------------------------------


def test_a_file_is_written_again_in_another_type(tmp_path):
    quantize_checkpoint("demo", tmp_path / "bf16.gguf", "bf16")
    quantize_checkpoint(tmp_path / "bf16.gguf", tmp_path / "few.gguf", "q8_0")
    quantize_checkpoint("demo", tmp_path / "direct.gguf", "q8_0")
    again, direct = (read_gguf(tmp_path / f"{name}.gguf") for name in ("few", "direct"))
    for name, tensor in direct.tensors.items():
        np.testing.assert_array_equal(np.asarray(again.tensors[name]), np.asarray(tensor))
    assert again.metadata.keys() == direct.metadata.keys()
    assert again.metadata["general.file_type"] == 7
    quantize_checkpoint(tmp_path / "few.gguf", tmp_path / "same.gguf", "q8_0")
    same = read_gguf(tmp_path / "same.gguf").tensors["blk.3.attn_q.weight"]
    np.testing.assert_array_equal(same.blocks(), again.tensors["blk.3.attn_q.weight"].blocks())
    model = sf.from_pretrained(tmp_path / "same.gguf")
    assert model.tokenizer.encode(TEXT) == sf.from_pretrained("demo").tokenizer.encode(TEXT)


def test_a_model_may_be_written_without_its_tokenizer(tmp_path):
    quantize_checkpoint("demo", tmp_path / "ids.gguf", "q8_0", tokenizer=False)
    assert sf.from_pretrained(tmp_path / "ids.gguf").tokenizer is None
    assert read_gguf(tmp_path / "ids.gguf").metadata["tokenizer.ggml.model"] == "no_vocab"
    quantize_checkpoint(tmp_path / "ids.gguf", tmp_path / "again.gguf", "q4_0")
    again = read_gguf(tmp_path / "again.gguf").metadata
    assert [name for name in again if name.startswith("tokenizer.")] == ["tokenizer.ggml.model"]


# ---- mixtures ------------------------------------------------------------------------------------


def layers_with(type, mixture, kind, layers=32):
    return [
        layer
        for layer in range(layers)
        if type
        == type_of(
            MIXTURES[mixture], f"blk.{layer}.{kind}.weight", (64, 512), layers=layers, is_last=False
        )
    ]


@pytest.mark.parametrize("mixture", ["q4_k_m", "q5_k_m"])
def test_half_of_the_layers_get_more_bits(mixture):
    more = [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    for kind in ("attn_v", "ffn_down"):
        assert layers_with("q6_k", mixture, kind) == more
    assert layers_with(mixture[:4], mixture, "attn_q") == list(range(32))
    assert layers_with("q5_k", "q4_k_s", "attn_v") == [0, 1, 2, 3]
    assert layers_with("q5_k", "q4_k_s", "ffn_down") == [0, 1, 2, 3]
    assert layers_with("q6_k", mixture, "ffn_down_exps") == more


@pytest.mark.parametrize(
    ("name", "mixture", "experts", "type"),
    [
        ("attn_q", "mxfp4", 0, "mxfp4"),
        ("attn_q", "mxfp4", 4, "q8_0"),
        ("ffn_down_shexp", "mxfp4", 4, "q8_0"),
        ("ffn_up_exps", "mxfp4", 4, "mxfp4"),
        ("attn_k", "q4_k_m", 4, "q4_k"),
        ("attn_k", "q4_k_m", 8, "q8_0"),
        ("attn_v", "q4_0", 8, "q8_0"),
        ("attn_v", "f16", 8, "f16"),
    ],
)
def test_what_stands_beside_experts_has_more_bits(name, mixture, experts, type):
    tensor = f"blk.9.{name}.weight"
    made = type_of(MIXTURES[mixture], tensor, (64, 512), layers=32, experts=experts, is_last=False)
    assert made == type


@pytest.mark.parametrize(
    "name", ["position_embd.weight", "blk.1.ffn_gate_inp.weight", "blk.1.ffn_gate_exps.bias"]
)
def test_what_errors_would_break_stays_as_it_is(name):
    assert type_of(MIXTURES["q4_0"], name, (8, 256), layers=2, is_last=False) == "f32"


@pytest.mark.parametrize(
    ("mixture", "last"), [("q4_k_m", "q6_k"), ("q8_0", "q8_0"), ("q4_0", "q6_k")]
)
def test_the_last_matrix_has_more_bits(mixture, last):
    for name in ("output.weight", "token_embd.weight"):
        shape = (64, 512)
        assert type_of(MIXTURES[mixture], name, shape, layers=4, is_last=True) == last


@pytest.mark.parametrize(("width", "type"), [(256, "q4_k"), (96, "q5_0"), (40, "f16")])
def test_rows_that_blocks_do_not_divide_get_another_type(width, type):
    name = "blk.0.attn_q.weight"
    assert type_of(MIXTURES["q4_k_m"], name, (8, width), layers=1, is_last=False) == type
    norm = "blk.0.attn_norm.weight"
    assert type_of(MIXTURES["q4_k_m"], norm, (width,), layers=1, is_last=False) == "f32"


PUBLISHED = {  # layers, width, heads, heads of keys, inner width, vocabulary, tied
    "Qwen3 0.6B": (28, 1024, 16, 8, 3072, 151936, True),
    "Llama 3.2 3B": (28, 3072, 24, 8, 8192, 128256, True),
    "Llama 3.1 8B": (32, 4096, 32, 8, 14336, 128256, False),
    "Qwen3 14B": (40, 5120, 40, 8, 17408, 151936, False),
    "Qwen3 32B": (64, 5120, 64, 8, 25600, 151936, False),
}


PUBLISHED_MIXTURES = {  # the same; head_dim, experts, of them a token, their inner width
    "Qwen3-30B-A3B": (48, 2048, 32, 4, 6144, 151936, False, 128, 128, 8, 768),
    "gpt-oss-20b": (24, 2880, 64, 8, 2880, 201088, False, 64, 32, 4, 2880),
    "Mixtral 8x7B": (32, 4096, 32, 8, 14336, 32000, False, 128, 8, 2, 14336),
}


def published(model):
    sizes = PUBLISHED.get(model) or PUBLISHED_MIXTURES[model]
    layers, width, heads, kv_heads, inner, vocabulary, tied, *others = sizes
    head_dim, experts, chosen, expert_inner = others or (128, 0, 0, 0)
    biased = model == "gpt-oss-20b"
    return tiny_config(
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=inner,
        vocab_size=vocabulary,
        tie_embeddings=tied,
        qkv_bias=biased,
        wo_bias=biased,
        mlp_bias=biased,
        attention_sinks=biased,
        num_experts=experts,
        num_experts_per_tok=chosen,
        expert_intermediate_size=expert_inner,
    )


def gigabytes(model, mixture):
    """What the weights take in memory, and what of them a token reads."""
    config = published(model)
    table = ARCHITECTURES["gpt-oss" if config.attention_sinks else "llama"]
    names, total, read = table.names("x"), 0.0, 0.0
    last = "token_embd.weight" if config.tie_embeddings else "output.weight"
    for ours, shape in weight_shapes(config).items():
        name, is_expert = names.theirs(ours), ".experts." in ours
        type = type_of(
            MIXTURES[mixture],
            name,
            shape,
            layers=config.num_layers,
            experts=config.num_experts,
            is_last=name == last,
        )
        if config.attention_sinks and is_expert and len(shape) == 2:
            type = "mxfp4"  # in which they were trained
        if type in quantization_types():
            size = sf.QuantizedWeight._size_of(type, *shape)
        else:
            size = int(np.prod(shape)) * (4 if type == "f32" else 2)
        total += size
        if ours != "embed" or config.tie_embeddings:  # of which it is a row
            read += size * (config.num_experts_per_tok / config.num_experts if is_expert else 1)
    return total / 1e9, read / 1e9


def table_of_memory(first):
    """Of docs/models.md, the one that begins with a cell: its models, and its rows."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    start = next(at for at, line in enumerate(lines) if line[0] == first)
    rows = itertools.takewhile(lambda row: row[0] in MIXTURES, lines[start + 1 :])
    return lines[start], list(rows)


def test_the_table_of_memory_is_what_the_types_take():
    (_, _, *models), rows = table_of_memory("type")
    assert models == list(PUBLISHED)
    for mixture, _, *found in rows:
        assert found == [f"{gigabytes(model, mixture)[0]:.2f}" for model in models]
    assert [row[0] for row in rows] == ["bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0"]


def test_so_is_that_of_mixtures():
    (_, *models), rows = table_of_memory("mixture of experts")
    assert models == list(PUBLISHED_MIXTURES)
    for mixture, *found in rows:
        for model, cell in zip(models, found, strict=True):
            if cell != "":
                assert cell == "{:.2f} ({:.2f})".format(*gigabytes(model, mixture))
    assert [row[0] for row in rows] == ["q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0", "mxfp4"]
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    for model in models:
        config = published(model)
        counts = sum(parameter_budget(config).values()), active_parameters(config)
        assert "{} has {:.1f} billion parameters, {:.1f} of them".format(
            model, *(count / 1e9 for count in counts)
        ) in page.replace("\n", " ")


# ---- tokenizers ----------------------------------------------------------------------------------

VOCABULARIES = {
    "llama3": ("llama3/tokenizer.model", 128256),
    "qwen2": ("qwen2/vocab.json", 151936),
    "minimind": ("minimind/tokenizer.json", 6400),
    "stories": ("stories260K/tok512.bin", 520),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "llama3" else [])
        for name in VOCABULARIES
    ],
)
def test_a_tokenizer_is_the_same_in_a_file(name, shared, tmp_path):
    path, size = VOCABULARIES[name]
    original = tokenizers.load(shared / "data" / path)
    keys = vocabulary_keys(original, size, (), tmp_path)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")  # the package writes the same keys
    for key, value in keys.items():
        writer.add_key_value(key, *typed(value))
    gguf_files.close(writer)
    again = tokenizers.load(tmp_path / "x.gguf")
    assert again.vocab_size == size
    assert set(again.eos_ids) >= set(original.eos_ids)
    for text in (TEXT, *OTHER_TEXTS):
        assert again.encode(text) == original.encode(text)
        assert again.decode(again.encode(text)) == original.decode(original.encode(text))


def typed(value):
    kinds = gguf.GGUFValueType
    if isinstance(value, np.ndarray):
        kind = kinds.FLOAT32 if value.dtype.kind == "f" else kinds.INT32
        return value.tolist(), kinds.ARRAY, kind
    if isinstance(value, list):
        return value, kinds.ARRAY, kinds.STRING
    return value, kinds.UINT32 if type(value) is int else kinds.get_type(value)


CONVERSATIONS = [
    [{"role": "user", "content": "hi"}],
    [
        {"role": "system", "content": " Tom and Mia.\n"},
        {"role": "user", "content": "\n What has Tom?\n\nSay it. "},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "{{ bos_token }} 'é\\n' 🐱"},
    ],
]


def test_the_chat_format_of_a_meta_checkpoint_is_a_template_in_the_file(tmp_path):
    """Which this format does not hold: there it is code."""
    demo = sf.from_pretrained("demo")
    quantize_checkpoint("demo", tmp_path / "demo.gguf", "q8_0")
    written = sf.from_pretrained(tmp_path / "demo.gguf")
    for messages in CONVERSATIONS:
        assert written.chat_ids(messages) == demo.chat_ids(messages)


@pytest.mark.parametrize("spaced", [True, False])
def test_gemmas_like_put_no_space_in_front(spaced, tmp_path):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "n", "▁a", "▁an", "an"]
    merges = [("a", "n"), ("▁", "an"), ("▁", "a")]
    state = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        "model": {
            "type": "BPE",
            "vocab": {piece: id for id, piece in enumerate(pieces)},
            "merges": merges,
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
        },
    }
    if spaced:
        steps = [{"type": "Prepend", "prepend": "▁"}, state["normalizer"]]
        state["normalizer"] = {"type": "Sequence", "normalizers": steps}
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    original = tokenizers.load(tmp_path)
    assert original.encode("an an") == [263 if spaced else 264, 263]
    keys = vocabulary_keys(original, 265, (), tmp_path)
    assert keys.get("tokenizer.ggml.add_space_prefix", True) == spaced


def test_a_tokenizer_that_cuts_otherwise_is_refused(shared, tmp_path):
    state = (shared / "data" / "minimind" / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(
        state.replace('"use_regex": true', '"use_regex": false').replace(
            '"use_regex":true', '"use_regex":false'
        )
    )
    with pytest.raises(CheckpointError) as caught:
        vocabulary_keys(tokenizers.load(tmp_path), 6400, (), tmp_path)
    assert "found a tokenizer that cuts texts by nothing" in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


# ---- when something goes wrong -------------------------------------------------------------------


def test_ctrl_c_leaves_no_file(tmp_path, monkeypatch):
    calls = []

    def interrupted(values, type):
        calls.append(type)
        if len(calls) == 5:
            assert len(os.listdir(tmp_path)) == 1  # the part that is written
            raise KeyboardInterrupt
        return sf.quantize(values, type)

    monkeypatch.setattr("simdformer.checkpoints.gguf_encode.quantize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint("demo", tmp_path / "out.gguf", "q8_0")
    assert os.listdir(tmp_path) == []


INTERRUPTED = """
    from simdformer import cli
    from simdformer.checkpoints import gguf_encode

    quantize, calls = gguf_encode.quantize, []

    def interrupted(values, type):
        calls.append(type)
        if len(calls) == 5:
            assert [name.endswith(".part") for name in os.listdir({folder!r})] == [True]
            print("writing", flush=True)
            {then}
        return quantize(values, type)

    gguf_encode.quantize = interrupted
    try:
        cli.main(["quantize", "demo", {folder!r} + "/out.gguf"])
    except SystemExit as ended:
        print(ended.code, len(calls), signal.getsignal(ended.code - 128) is signal.SIG_DFL)
"""


def interrupted_by(then, folder):
    """A process that writes out.gguf, with a line that it runs in the middle."""
    return INTERRUPTED.format(then=then, folder=str(folder))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_process_that_is_asked_to_end_leaves_no_file(name, tmp_path):
    printed = run_python(interrupted_by(f"os.kill(os.getpid(), signal.{name})", tmp_path))
    assert printed.split() == ["writing", str(128 + getattr(signal, name)), "5", "True"]
    assert os.listdir(tmp_path) == []


def parts(folder):
    return [name for name in os.listdir(folder) if name.endswith(".part")]


def test_what_a_killed_process_left_is_taken_away_by_the_next(tmp_path, command, monkeypatch):
    """Before room for the new file is asked for; files that are none of its parts stay."""
    out, kill = tmp_path / "out.gguf", "os.kill(os.getpid(), signal.SIGKILL)"
    status, printed, _ = finish(start_python(interrupted_by(kill, tmp_path)))
    assert (status, printed) == (-signal.SIGKILL, "writing\n")
    (left,) = parts(tmp_path)
    assert (tmp_path / left).stat().st_size > 0
    others = {".other.gguf.12.part", ".out.gguf.x.part", "out.gguf.12.part"}
    for name in others:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".out.gguf.12.part").symlink_to(tmp_path / ".other.gguf.12.part")
    usage, seen = shutil.disk_usage, {}
    monkeypatch.setattr(
        "shutil.disk_usage",
        lambda path: seen.update({path: left in parts(tmp_path)}) or usage(path),
    )
    assert command("quantize", "demo", out)[0] == 0
    assert seen[tmp_path] is False
    assert set(os.listdir(tmp_path)) == others | {"out.gguf", ".out.gguf.12.part"}
    assert sf.from_pretrained(out).generate(TEXT, max_new_tokens=1)


def test_what_another_process_writes_is_not_taken_away(tmp_path):
    out, wait = tmp_path / "out.gguf", "sys.stdin.read()"
    process = start_python(interrupted_by(wait, tmp_path), stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "writing\n"
        (living,) = parts(tmp_path)
        quantize_checkpoint("demo", out, "q8_0")
        assert sorted(os.listdir(tmp_path)) == [living, "out.gguf"]
        ours = out.read_bytes()
    finally:
        status, _, err = finish(process)  # closes its standard input
    assert (status, err) == (0, "")
    assert os.listdir(tmp_path) == ["out.gguf"]
    assert len(out.read_bytes()) < len(ours)  # q4_k_m, which ended last


def test_a_disk_without_room_is_told_before_and_while_writing(tmp_path, monkeypatch):
    out = tmp_path / "out.gguf"
    usage = shutil.disk_usage

    def nearly_full(path):
        found = usage(path)
        return found._replace(free=1000) if path == tmp_path else found

    monkeypatch.setattr("shutil.disk_usage", nearly_full)
    with pytest.raises(OSError, match=r"bytes are needed, 1000 are free: No space left") as caught:
        quantize_checkpoint("demo", out, "q8_0")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(out)
    monkeypatch.undo()

    def full(values, type):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("simdformer.checkpoints.gguf_encode.quantize", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        quantize_checkpoint("demo", out, "q8_0")
    assert caught.value.filename == str(out)
    assert os.listdir(tmp_path) == []
