"""GGUF files: floats and configs are those of the model that was written, quantised weights are the
values that the gguf package reads, and what is no good is refused. That the models in them compute
what transformers computes stands in test_gguf_writer.py."""

import struct

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch

import gguf_files
import simdformer as sf
import tiny_models
from checkpoints import agree, refusal
from gguf_files import ARRAY, STRING, key_bytes, small_arrays, small_file, small_keys, tensor_bytes
from simdformer.checkpoints import CheckpointError, read_checkpoint
from simdformer.checkpoints.gguf_file import StoredArray, read_gguf
from simdformer.quantization.types import quantization_types

IDS = np.random.default_rng(11).integers(0, 96, (2, 40))
DTYPES = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
}


# ---- the same as transformers --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_floats_are_kept_as_they_are(dtype, tmp_path):
    theirs, file = tiny_models.rounded(tiny_models.make("qwen3"), dtype), tmp_path / "model.gguf"
    gguf_files.write_model(file, theirs, dtype)
    weights = read_checkpoint(file).weights
    assert {t.dtype for t in weights.values() if t.ndim == 2} == {DTYPES[dtype]}
    assert weights["final_norm"].dtype == np.float32
    agree(sf.from_pretrained(file)(IDS), tiny_models.logits(theirs, IDS))


def test_the_config_is_that_of_the_original(tmp_path):
    theirs, file = tiny_models.make("llama3.1"), tmp_path / "model.gguf"
    gguf_files.write_model(file, theirs)
    theirs.save_pretrained(tmp_path / "original")
    found, original = (read_checkpoint(p).config for p in (file, tmp_path / "original"))
    different = {name for name, value in vars(found).items() if value != vars(original)[name]}
    assert different == {"rope_layout", "rope_scaling"}
    assert found.rope_layout == "interleaved"
    frequencies = [
        sf.rope_frequencies(c.head_dim, theta=c.rope_theta, scaling=c.rope_scaling).inv_freq
        for c in (found, original)
    ]
    np.testing.assert_allclose(*frequencies, rtol=2e-7)


@pytest.mark.parametrize(("name", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemma_scales_scores_by_its_width(name, layers, tmp_path):
    for count, needed in ((layers, 32 / 4), (3, 12)):
        model = tiny_models.make(name, num_hidden_layers=count, layer_types=None)
        gguf_files.write_model(tmp_path / "model.gguf", model)
        config = read_checkpoint(tmp_path / "model.gguf").config
        assert config.attention_scale == needed**-0.5


def test_a_pattern_says_which_layers_have_the_window(tmp_path):
    pattern = "gemma3.attention.sliding_window_pattern"
    model, found = tiny_models.make("gemma3"), {}
    for name, value in {"unsaid": None, "period": (4, 2), "flags": (ARRAY, [0, 1, 1], 7)}.items():
        writer = gguf.GGUFWriter(tmp_path / "model.gguf", "gemma3")
        gguf_files.describe(writer, model.config)
        if value is not None:
            kinds = [gguf.GGUFValueType(kind) for kind in (value[0], *value[2:])]
            writer.add_key_value(pattern, value[1], *kinds)
        for tensor, values in gguf_files.converted(model).items():
            writer.add_tensor(tensor, values.numpy())
        gguf_files.close(writer)
        found[name] = read_checkpoint(tmp_path / "model.gguf").config.sliding_window
    assert found == {"unsaid": 6, "period": (6, None, 6), "flags": (None, 6, 6)}


# ---- quantised weights ---------------------------------------------------------------------------

WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "head_dim": 64}


def matrices(model):
    weights, layers = model.transformer.weights, model.transformer.weights.layers
    found = [weights.embed, weights.lm_head]
    for one in layers:
        found += [*one.wq_wk_wv, one.wo, *one.mlp.gate_up, one.mlp.down]
    return found


def random_blocks(rng, name, rows, columns):
    """Small bytes, so that every number of 16 bits, wherever it stands, is at most an eighth."""
    kind = quantization_types()[name]
    nbytes = columns // kind.block * kind.nbytes
    return rng.integers(0, 0x30, (rows, nbytes), dtype=np.uint8)


@pytest.mark.parametrize("name", quantization_types())
def test_a_quantised_model_is_the_model_of_its_values(name, rng, tmp_path):
    model, kind = tiny_models.make("qwen3", **WIDE), gguf.GGMLQuantizationType[name.upper()]
    writers = [gguf.GGUFWriter(tmp_path / file, "qwen3") for file in ("few.gguf", "plain.gguf")]
    for writer in writers:
        gguf_files.describe(writer, model.config)
    few, plain = writers
    stored = {}
    for tensor, values in gguf_files.converted(model).items():
        if values.ndim == 1:
            few.add_tensor(tensor, values.numpy())
            plain.add_tensor(tensor, values.numpy())
            continue
        blocks = stored[tensor] = random_blocks(rng, name, *values.shape)
        few.add_tensor(tensor, blocks, raw_dtype=kind)
        plain.add_tensor(tensor, gguf.quants.dequantize(blocks, kind))
    for writer in writers:
        gguf_files.close(writer)
    few_bits, same = tmp_path / "few.gguf", sf.from_pretrained(tmp_path / "plain.gguf")(IDS)
    ours = sf.from_pretrained(few_bits)
    assert {matrix.type for matrix in matrices(ours)} == {name}
    if np.abs(same).max() > 1e-30:  # random scales of mxfp4 lie near 2^-104
        agree(ours(IDS), same, 3e-4)
    for exact in ({"dtype": "float32"}, {"arithmetic": "float32"}):
        np.testing.assert_array_equal(sf.from_pretrained(few_bits, **exact)(IDS), same)

    weights = read_checkpoint(tmp_path / "few.gguf").weights
    for tensor, blocks in stored.items():
        found = next(weight for weight in weights.values() if weight.name == tensor)
        assert found.type == name
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found.blocks(), blocks)
        np.testing.assert_array_equal(np.asarray(found.rows(1, 3)), np.asarray(found)[1:3])
        half = np.asarray(found, np.float16)
        np.testing.assert_array_equal(half, np.asarray(found).astype(np.float16))


# ---- files in parts ------------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path):
    """The files of a model in parts, and its logits."""
    model = tiny_models.make("llama3.1")
    gguf_files.write_model(tmp_path / "model.gguf", model, split_max_tensors=9)
    files = sorted(tmp_path.iterdir())
    assert len(files) > 2
    return files, tiny_models.logits(model, IDS)


def test_any_part_and_the_directory_stand_for_the_whole(parts):
    files, logits = parts
    for path in (files[0], files[1], files[0].parent):
        checkpoint = read_checkpoint(path)
        assert checkpoint.path == files[0]
        assert checkpoint.format.name == "gguf"
    agree(sf.from_pretrained(files[-1])(IDS), logits)


def test_parts_that_are_missing_or_another_models(parts, tmp_path):
    files, _ = parts
    away = files[1].rename(tmp_path / "away")
    assert refusal(files[0]) == (
        f"found no file {files[1].name!r} beside it, needs all parts; download it too"
    )
    files[1].write_bytes(files[2].read_bytes())
    with pytest.raises(CheckpointError, match=f"{files[1].name}: found split.no = 2 and "):
        read_checkpoint(files[0])
    away.rename(files[1])
    first = files[0].rename(tmp_path / "away")
    assert refusal(files[1]).startswith(f"found no file {files[0].name!r} beside it")
    whole = first.rename(tmp_path / "whole.gguf")
    assert "under another name, needs NAME-00001-of-0000" in refusal(whole)


def test_several_models_in_a_directory(tmp_path):
    (tmp_path / "a.gguf").write_bytes(small_file())
    (tmp_path / "mmproj-a.gguf").write_bytes(b"a projector, which nobody reads")
    assert read_checkpoint(tmp_path).path == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(small_file())
    assert refusal(tmp_path) == (
        "found 2 models (a.gguf, b.gguf), needs one .gguf file, or all parts of one; "
        "give the path of one"
    )


# ---- metadata ------------------------------------------------------------------------------------

VALUES = {
    "u8": (0, 255),
    "i8": (1, -128),
    "u16": (2, 65535),
    "i16": (3, -32768),
    "u32": (4, 2**32 - 1),
    "i32": (5, -(2**31)),
    "f32": (6, 0.5),
    "bool": (7, 1),
    "u64": (10, 2**64 - 1),
    "i64": (11, -(2**63)),
    "f64": (12, 1e-300),
}


@pytest.mark.parametrize("version", [2, 3])
def test_every_type_of_metadata(version, tmp_path):
    keys = [key_bytes(name, *value) for name, value in VALUES.items()]
    keys += [key_bytes(f"{n}s", ARRAY, [v, v], kind) for n, (kind, v) in VALUES.items()]
    keys += [key_bytes("text", STRING, "häß"), key_bytes("texts", ARRAY, ["a", "", "é"], STRING)]
    file = tmp_path / "x.gguf"
    file.write_bytes(gguf_files.of_arrays(keys, {"a": np.ones(3, "<f4")}, version=version))
    found = read_gguf(file).metadata
    for name, (_, value) in VALUES.items():
        assert found[name] == value
        assert isinstance(found[name], bool) == (name == "bool")
        assert found[f"{name}s"].numbers().tolist() == [value, value]
    assert found["text"] == "häß"
    assert isinstance(found["texts"], StoredArray)
    assert found["texts"].texts() == ["a", "", "é"]


def test_alignment_is_a_key(tmp_path):
    keys = [key_bytes("general.alignment", 4, 64)]
    tensors = [tensor_bytes("a", (2,), 0), tensor_bytes("b", (2,), 64)]
    data = struct.pack("<2f", 1, 2).ljust(64, b"\0") + struct.pack("<2f", 3, 4)
    (tmp_path / "x.gguf").write_bytes(gguf_files.file_bytes(keys, tensors, data, align=64))
    found = read_gguf(tmp_path / "x.gguf").tensors
    assert [np.asarray(found[name]).tolist() for name in "ab"] == [[1, 2], [3, 4]]


def test_divisors_of_rope(tmp_path):
    file, name = tmp_path / "model.gguf", "rope_freqs.weight"
    long, short = "rope_factors_long.weight", "rope_factors_short.weight"

    def refused(divisors, **changes):
        arrays = small_arrays() | {name: np.array(divisors, "<f4")}
        file.write_bytes(gguf_files.of_arrays(small_keys(**changes), arrays))
        return refusal(file)

    assert "shape (3,), float32, needs half of llama.attention.key_length = 4" in refused([1, 1, 1])
    file.write_bytes(gguf_files.of_arrays(small_keys(), small_arrays() | {long: np.ones(2, "<f4")}))
    assert refusal(file) == f"found no tensor {short}, needs both {long} and {short}"
    two = small_arrays() | {long: np.ones(2, "<f4"), short: np.ones(2, "<f4")}
    file.write_bytes(gguf_files.of_arrays(small_keys(), two))
    assert "llama.rope.scaling.original_context_length = 0, needs a whole num" in refusal(file)
    assert "scaling['divisors'][1] is 0.0, needs a finite number > 0" in refused([1, 0])
    linear = {"llama.rope.scaling.type": (STRING, "linear"), "llama.rope.scaling.factor": (6, 2.0)}
    assert refused([1, 2], **linear).startswith(
        "found rope_freqs.weight beside llama.rope.scaling.type = 'linear', needs one of both"
    )
