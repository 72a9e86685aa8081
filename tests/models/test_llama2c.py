"""Reading llama2.c checkpoints: what is in them comes out, and no file, however broken, does
harm."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from checkpoints import llama2c_bytes, random_weights, refusal, tiny_config
from simdformer.checkpoints import CheckpointError, read_checkpoint

SIZES = ["dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len"]


@pytest.fixture(params=[0, 1], ids=["legacy", "v1"])
def version(request):
    return request.param


@pytest.fixture
def write(write):
    return lambda data, name="model.bin": write(data, name)


def a_model(version=0, **changes):
    config = tiny_config(**changes)
    weights = random_weights(np.random.default_rng(5), config)
    return config, weights, llama2c_bytes(config, weights, version)


def field(data, name, value, version):
    """The file with another number in its header."""
    at = 4 * SIZES.index(name) + (8 if version else 0)
    return data[:at] + struct.pack("<i", value) + data[at + 4 :]


# ---- good files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_what_was_written_is_read(write, version, tied):
    config, weights, data = a_model(version, tie_embeddings=tied)
    checkpoint = read_checkpoint(write(data))
    assert checkpoint.config == config
    assert checkpoint.weights.keys() == weights.keys()
    for name, tensor in weights.items():
        np.testing.assert_array_equal(checkpoint.weights[name], tensor, err_msg=name)


def test_a_directory_with_one_checkpoint_is_enough(write, tmp_path):
    config, _, data = a_model()
    write(data)
    write(b"", name="tok300.bin")
    assert read_checkpoint(tmp_path).config == config


def test_both_headers_of_the_stories_hold_the_same_model(shared):
    legacy, v1 = (
        read_checkpoint(shared / "data" / "stories260K" / name)
        for name in ("stories260K.bin", "stories260K_v1.bin")
    )
    assert legacy.config == v1.config
    assert (legacy.config.num_layers, legacy.config.num_heads, legacy.config.num_kv_heads) == (
        5,
        8,
        4,
    )
    assert legacy.weights.keys() == v1.weights.keys()
    for name, tensor in legacy.weights.items():
        np.testing.assert_array_equal(tensor, v1.weights[name], err_msg=name)


def test_a_loaded_model_does_not_need_its_file_any_more(write):
    _, _, data = a_model()
    path = write(data)
    model = sf.from_pretrained(path)
    before = model([1, 2, 3])
    path.write_bytes(b"\xff" * len(data))  # the same inode: a mapping would see it
    np.testing.assert_array_equal(model([1, 2, 3]), before)


# ---- bad files -----------------------------------------------------------------------------------


def test_a_cut_file_says_which_tensor_is_incomplete(write):
    _, _, data = a_model(version=0)
    message = refusal(write(data[:5000]))
    assert message.startswith(
        "found 5000 bytes: the file ends in tensor embed of shape (300, 32), "
        f"needs {len(data)} (llama2.c, legacy header"
    )
    assert message.endswith("the file is damaged or of another format, download or export it again")


def test_bytes_after_the_last_tensor_are_refused(write, version):
    _, _, data = a_model(version)
    message = refusal(write(data + b"\0\0\0"))
    assert message.startswith(
        f"found {len(data) + 3} bytes: 3 are left over after the last tensor, needs {len(data)}"
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dim", 0, "found dim = 0, needs a number > 0; is this a llama2.c checkpoint?"),
        ("dim", -32, "found dim = -32, needs a number > 0; is this a llama2.c checkpoint?"),
        ("hidden_dim", 0, "found hidden_dim = 0, needs a number > 0"),
        ("n_layers", -1, "found n_layers = -1, needs a number > 0"),
        ("n_layers", 2**31 - 1, "bytes: the file ends in tensor"),
        ("hidden_dim", 2**31 - 1, "bytes: the file ends in tensor"),
        ("n_heads", 0, "found n_heads = 0, needs a number > 0"),
        ("n_heads", 5, "found n_heads = 5, needs a divisor of dim = 32"),
        ("n_heads", 32, "dim / n_heads = 1, needs an even number"),
        ("n_kv_heads", 0, "found n_kv_heads = 0, needs a number > 0"),
        ("n_kv_heads", 3, "n_kv_heads = 3, needs a divisor of n_heads = 4"),
        ("n_kv_heads", 8, "n_kv_heads = 8, needs a divisor of n_heads = 4"),
        ("vocab_size", 0, "found vocab_size = 0, needs a number > 0"),
        ("vocab_size", 2**31 - 1, "bytes: the file ends in tensor"),
        ("max_seq_len", 0, "found max_seq_len = 0, needs a number > 0"),
        ("max_seq_len", 2**31 - 1, "found max_seq_len = 2147483647, needs at most 16777216"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(write, version, name, value, message):
    _, _, data = a_model(version)
    assert message in refusal(write(field(data, name, value, version)))


def test_the_least_of_all_numbers_is_no_vocabulary(write):
    _, _, data = a_model()
    assert "bytes: the file ends in tensor embed" in refusal(
        write(field(data, "vocab_size", -(2**31), 0))
    )


@given(
    version=st.sampled_from([0, 1]),
    name=st.sampled_from(SIZES),
    value=st.integers(-(2**31), 2**31 - 1),
)
def test_any_number_in_the_header_is_refused_or_harmless(tmp_path_factory, version, name, value):
    config, _, data = a_model(version)
    path = tmp_path_factory.mktemp("header") / "model.bin"
    path.write_bytes(field(data, name, value, version))
    try:
        found = read_checkpoint(path)
    except CheckpointError:
        return
    # The file's length proves everything but max_seq_len in version 1, and what only regroups the
    # same numbers.
    assert sum(tensor.nbytes for tensor in found.weights.values()) <= len(data)
    assert found.config == config or name in ("max_seq_len", "n_heads", "vocab_size")


def test_other_versions_are_refused_by_name(write):
    _, _, data = a_model(1)
    message = refusal(write(data[:4] + struct.pack("<i", 2) + data[8:]))
    assert message == (
        "found a llama2.c file of version 2, quantised to int8, which is not supported, needs "
        "an export as version 0 or 1"
    )
    message = refusal(write(data[:4] + struct.pack("<i", 7) + data[8:]))
    assert message == (
        "found a llama2.c file of version 7, needs one with the legacy header or of version 1"
    )


def test_the_classifier_flag_is_0_or_1(write):
    _, _, data = a_model(1)
    assert (
        refusal(write(data[:36] + b"\2" + data[37:])) == "found shared_classifier = 2, needs 0 or 1"
    )


def test_a_directory_without_or_with_several_checkpoints_is_refused(write, tmp_path):
    write(b"", name="tokenizer.bin")
    message = "found no checkpoint among ['tokenizer.bin'], needs "
    assert refusal(tmp_path).startswith(message)
    assert refusal(tmp_path).endswith("or a .bin of llama2.c")
    with pytest.raises(CheckpointError, match=r"needs one \.bin file of llama2\.c"):
        read_checkpoint(tmp_path, format="llama2.c")
    for name in ("a.bin", "b.bin"):
        write(a_model()[2], name=name)
    assert (
        refusal(tmp_path) == "found 2 checkpoints (a.bin, b.bin), needs one .bin file of llama2.c; "
        "give the path of one"
    )
