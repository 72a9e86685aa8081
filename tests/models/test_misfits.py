"""What somebody is told whose files do not fit: which file, which tensor under which name, which
field of the config."""

import json
import pickle
import struct
import zipfile
from functools import partial

import numpy as np
import pytest

import seeds
import simdformer as sf
from checkpoints import tiny_config, told
from simdformer.checkpoints import Checkpoint, CheckpointError, Format, formats, read_checkpoint
from simdformer.models import weight_shapes

SAFETENSORS, PTH = "model.safetensors", "consolidated.00.pth"
refusal = partial(told, read=sf.from_pretrained)
UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def huggingface(tmp_path):
    """huggingface(change) is a directory with a small model whose tensors went through
    `change`."""

    def huggingface(change=lambda tensors: None, **config):
        tensors = dict(seeds.named_weights("huggingface"))
        change(tensors)
        (tmp_path / SAFETENSORS).write_bytes(seeds.safetensors_bytes(tensors))
        (tmp_path / "config.json").write_text(json.dumps(seeds.HUGGINGFACE | config))
        return tmp_path

    return huggingface


@pytest.fixture
def meta(tmp_path):
    """meta(change) is the same in Meta's format."""

    def meta(change=lambda tensors: None, **params):
        tensors = dict(seeds.named_weights("meta"))
        change(tensors)
        whole = seeds.pth_bytes(seeds.pickle_bytes(tensors), tensors)
        (tmp_path / PTH).write_bytes(whole)
        (tmp_path / "params.json").write_text(json.dumps(seeds.META | params))
        return tmp_path

    return meta


# ---- tensors under the names of their files ------------------------------------------------------


def test_a_missing_tensor_has_the_name_that_it_would_have_in_the_file(huggingface):
    folder = huggingface(lambda tensors: tensors.pop(UP))
    assert refusal(folder) == (
        f"{folder}/config.json: found tensors that do not fit it: missing: {UP} (8, 8) "
        "[layers.0.up] in model.safetensors"
    )


def test_a_tensor_of_another_shape_names_the_fields_that_ask_for_it(huggingface):
    folder = huggingface(intermediate_size=9)
    assert refusal(folder).startswith(
        f"{folder}/config.json: found tensors that do not fit it: misshapen: "
        "model.layers.0.mlp.gate_proj.weight (8, 8) [layers.0.gate] in model.safetensors, "
        f"needs (9, 8) = (intermediate_size, hidden_size); {UP} (8, 8) [layers.0.up] in"
    )
    assert "needs (12, 8) = (num_attention_heads * head_dim, hidden_size)" in refusal(
        huggingface(num_attention_heads=3, num_key_value_heads=1)
    )


def test_each_tensor_is_named_with_its_own_file(huggingface):
    folder = huggingface(intermediate_size=9)
    tensors = seeds.named_weights("huggingface")
    parts = {"a.safetensors": {UP: tensors.pop(UP)}, "b.safetensors": tensors}
    (folder / SAFETENSORS).unlink()
    for name, part in parts.items():
        (folder / name).write_bytes(seeds.safetensors_bytes(part))
    for index in (False, True):
        if index:
            placed = {tensor: name for name, part in parts.items() for tensor in part}
            (folder / f"{SAFETENSORS}.index.json").write_text(json.dumps({"weight_map": placed}))
        message = refusal(folder)
        assert f"{UP} (8, 8) [layers.0.up] in a.safetensors, needs" in message
        assert "[layers.0.gate] in b.safetensors, needs" in message
    tensors.pop("model.norm.weight")
    (folder / "b.safetensors").write_bytes(seeds.safetensors_bytes(tensors))
    placed.pop("model.norm.weight")
    (folder / f"{SAFETENSORS}.index.json").write_text(json.dumps({"weight_map": placed}))
    assert (
        "missing: model.norm.weight (8,) [final_norm] in model.safetensors.index.json"
    ) in refusal(folder)


def test_metas_tensors_and_fields_have_metas_names(meta):
    folder = meta(lambda tensors: tensors.pop("layers.0.feed_forward.w3.weight"))
    assert refusal(folder) == (
        f"{folder}/params.json: found tensors that do not fit it: missing: "
        "layers.0.feed_forward.w3.weight (8, 8) [layers.0.up] in consolidated.00.pth"
    )
    message = refusal(meta(n_heads=4, n_kv_heads=1))
    assert message == (
        f"{folder}/params.json: found tensors that do not fit it: misshapen: "
        "layers.0.attention.wk.weight (4, 8) [layers.0.wk] in consolidated.00.pth, needs (2, 8) = "
        "(n_kv_heads * (dim / n_heads), dim); layers.0.attention.wv.weight (4, 8) [layers.0.wv] in "
        "consolidated.00.pth, needs (2, 8) = (n_kv_heads * (dim / n_heads), dim)"
    )


def test_a_shard_that_was_left_behind_is_asked_for(meta):
    split = {"wq": 0, "wk": 0, "wv": 0, "w1": 0, "w3": 0, "output": 0, "tok_embeddings": 1}
    split |= {"wo": 1, "w2": 1}

    def half(tensors):
        for name, tensor in tensors.items():
            axis = split.get(name.split(".")[-2])
            if axis is not None:
                tensors[name] = np.ascontiguousarray(np.split(tensor, 2, axis)[0])

    folder = meta(half)
    assert refusal(folder) == (
        f"{folder}: found 1 of 2 shards: layers.0.attention.wo.weight in consolidated.00.pth is "
        "(8, 4), and params.json asks for 8 columns, needs consolidated.01.pth; download the "
        "others too"
    )


# ---- files without tensors, numbers, bytes -------------------------------------------------------


def test_what_has_no_tensors_blames_itself(huggingface, meta):
    folder = huggingface(lambda tensors: tensors.clear())
    file = folder / SAFETENSORS
    assert refusal(folder) == (f"{file}: found a header without tensors, needs at least one tensor")
    index = folder / f"{SAFETENSORS}.index.json"
    index.write_text('{"weight_map": {}}')
    assert refusal(folder) == (
        f"{index}: found a weight_map without tensors, needs at least one tensor"
    )
    index.unlink()
    file.unlink()
    assert refusal(folder, format="huggingface") == (
        f"{folder}: found no .safetensors file, needs at least one"
    )
    folder = meta(lambda tensors: tensors.clear())
    assert refusal(folder, format="meta").startswith(
        f"{folder / PTH}: found a state dict without tensors"
    )


@pytest.mark.parametrize("name", ["n_layers", "norm_eps", "dim", "n_heads", "multiple_of"])
def test_null_is_no_number(meta, name):
    folder = meta(**{name: None})
    assert refusal(folder) == (f"{folder}/params.json: found no {name}, needs a value for each")


def test_a_pickle_whose_checksum_is_wrong_is_refused(meta):
    folder = meta()
    file = folder / PTH
    with zipfile.ZipFile(file) as archive:
        [crc] = [info.CRC for info in archive.infolist() if info.filename.endswith("data.pkl")]
    data = file.read_bytes()
    file.write_bytes(data.replace(struct.pack("<I", crc), struct.pack("<I", crc ^ 1)))
    message = refusal(folder)
    assert message.startswith(f"{file}: found the checksum {crc:08x} at byte ")
    assert message.endswith(
        f", needs {crc ^ 1:08x}, which the archive has of it; the file is damaged, download it "
        "again"
    )


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2**70, 0, -1, 1.5, True, "9"])
def test_a_longest_text_that_makes_no_sense_is_refused_by_name(huggingface, value):
    message = "from_pretrained: max_seq_len is .*, needs a whole number > 0"
    with pytest.raises(ValueError, match=message):
        sf.from_pretrained(huggingface(), max_seq_len=value)


# ---- how it is made ------------------------------------------------------------------------------


def test_an_error_is_composed_of_its_parts():
    error = CheckpointError("3 bytes", "4", file="a/b", tensor="w\n", advice="try again")
    told = "a/b: tensor 'w\\n': found 3 bytes, needs 4; try again"
    assert str(error) == told
    assert (error.file, error.tensor, error.found, error.needed) == ("a/b", "w\n", "3 bytes", "4")
    assert str(pickle.loads(pickle.dumps(error))) == told
    assert str(CheckpointError("nothing")) == "found nothing"


def test_what_a_reader_has_checked_is_not_checked_again(huggingface, monkeypatch):
    def again(*_):
        raise AssertionError("checked twice")

    monkeypatch.setattr("simdformer.models.decoder.check_weights", again)
    assert sf.from_pretrained(huggingface())([1, 2]).shape == (2, 12)


def test_a_new_format_is_an_object_and_a_line(tmp_path, monkeypatch):
    """Everything that reads, describes or talks asks the object, and nothing else."""
    config = tiny_config()
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape) for name, shape in weight_shapes(config).items()}
    new = Format(
        name="new",
        files="a .new",
        found_in=lambda directory: (directory / "model.new").exists(),
        has_file=lambda file: file.suffix == ".new",
        read=lambda path, given: Checkpoint(path, new, config, weights),
        tokenizer_files=lambda checkpoint: [],
    )
    (tmp_path / "model.new").touch()
    monkeypatch.setattr(formats, "FORMATS", (new, *formats.FORMATS))
    for path in (tmp_path, tmp_path / "model.new"):
        for name in (None, "new"):
            assert str(read_checkpoint(path, name).format) == "new"
        model = sf.from_pretrained(path, dtype="float32")
        assert model([1, 2]).shape == (2, config.vocab_size)
        assert model.tokenizer is model.chat_template is None
