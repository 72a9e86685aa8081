"""A model dealt to ranks: who holds what, what cannot be dealt, and tensors of every kind in parts
that make the whole again. That models in parts compute the same stands in tests/parallel."""

import numpy as np
import pytest

import simdformer as sf
import tiny_models
from checkpoints import random_weights, tiny_config
from simdformer.checkpoints import read_checkpoint
from simdformer.checkpoints.files import InputFile
from simdformer.checkpoints.stacked import MXFP4Tensor, every_second
from simdformer.checkpoints.stored_tensor import BlockTensor, StoredTensor
from simdformer.models.ranks import deal, tensors_of
from simdformer.models.tensors import Quantized, block_of, cut, kind_of
from simdformer.models.weights import weight_axes
from simdformer.text.quantizing import quantize_checkpoint
from test_groups import SCHEMES, save

SPLITS = ("heads", "inner", "shared_inner", "vocabulary", "experts")


def dealt(size, types=lambda name: None, **changes):
    """The parts of a model, some of whose matrices are quantised."""
    config = tiny_config(**changes)
    weights = random_weights(np.random.default_rng(1), config)
    for name, weight in weights.items():
        if (type := types(name)) and weight.ndim == 2:
            weights[name] = sf.quantize(weight, type)
    return config, weights, deal(config, lambda name: block_of(kind_of(weights[name])), size)


# ---- who holds what ------------------------------------------------------------------------------

MIXED = {"num_experts": 5, "num_experts_per_tok": 2, "expert_intermediate_size": 20}


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"),
    [
        *((4, 2, 1), (4, 2, 2), (4, 2, 4), (4, 4, 3), (12, 4, 3), (12, 4, 4), (12, 4, 5)),
        *((12, 1, 5), (14, 7, 4), (14, 2, 2), (14, 2, 5), (32, 8, 5), (64, 8, 24)),
    ],
)
def test_everything_is_dealt_once_and_evenly(heads, kv_heads, size):
    changes = {"num_heads": heads, "num_kv_heads": kv_heads, "intermediate_size": 47}
    mixed = MIXED if size <= 5 else {}
    _, _, parts = dealt(size, **changes | mixed | {"head_dim": 2})
    assert len(parts) == size
    for split in SPLITS:
        held = [getattr(part, split) for part in parts]
        every = [number for one in held for number in one]
        assert every == list(range(len(every)))
        assert held[-1].stop == sum(map(len, held))
    assert len(parts[0].vocabulary) - len(parts[-1].vocabulary) <= 16 + 15
    group = heads // kv_heads
    for part in parts:
        own = len(part.heads) // len(part.kv_heads)  # of each key/value head, in order
        assert [head // group for head in part.heads] == [
            kv for kv in part.kv_heads for _ in range(own)
        ]
    most, least = (f(len(part.heads) for part in parts) for f in (max, min))
    assert least >= 1
    assert most <= 2 * least + group - 1


@pytest.mark.parametrize(
    ("size", "changes", "message"),
    [
        (5, {}, "found 5 ranks, needs at most 4: 4 heads, in 2 groups that share keys and"),
        (
            6,
            MIXED | {"num_heads": 8},
            "found 6 ranks, needs at most 5, the experts of",
        ),
    ],
)
def test_more_ranks_than_there_is_to_deal(size, changes, message):
    with pytest.raises(ValueError, match=message):
        dealt(size, **changes)


def test_quantised_matrices_are_cut_between_blocks():
    types = {"wo": "q4_k", "down": "q4_0"}
    changes = {"num_heads": 16, "num_kv_heads": 4, "head_dim": 64, "intermediate_size": 160}

    def of(name):
        return types.get(name.rpartition(".")[2])

    _, _, parts = dealt(4, of, **changes)
    assert [len(part.heads) for part in parts] == [4] * 4
    assert [len(part.inner) for part in parts] == [64, 32, 32, 32]
    with pytest.raises(ValueError, match=r"at most 4: 16 heads.*wo is quantised in blocks of 256"):
        dealt(5, of, **changes)
    _, _, parts = dealt(3, of, **changes | {"num_heads": 12, "num_kv_heads": 6})
    assert [len(part.heads) for part in parts] == [4] * 3


# ---- tensors in parts ----------------------------------------------------------------------------


def checkpoint(folder, kind):
    if kind in SCHEMES:
        save(folder, scheme=SCHEMES[kind])
        return folder
    if kind == "meta":
        model = tiny_models.make("llama3")
        return tiny_models.save_meta(folder, model, tiny_models.meta_params(), shards=2)
    name, _, type = kind.partition(" ")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 128} if type else {}
    tiny_models.make(name, **sizes).save_pretrained(folder / "model")
    if type:
        quantize_checkpoint(folder / "model", folder / "x.gguf", type, tokenizer=False)
        return folder / "x.gguf"
    return folder / "model"


@pytest.mark.parametrize(
    "kind",
    [
        *("llama3", "gpt2", "phi3", "gpt-oss", "qwen2-moe", "meta"),
        *("awq-32", "gptq-v2", "gptq-8", "llama3 q4_k_m", "qwen3 q5_0"),
    ],
)
def test_the_parts_of_a_checkpoint_are_the_whole(tmp_path, kind):
    found = read_checkpoint(checkpoint(tmp_path, kind))
    config = found.config
    parts = deal(config, lambda name: block_of(kind_of(found.weights[name])), 2)
    every = [
        tensors_of(part, config, found.weights, is_first=rank == 0)
        for rank, part in enumerate(parts)
    ]
    for name, axes in weight_axes(config).items():
        whole = np.asarray(found.weights[name])
        there = [np.asarray(own[name]) for own in every if name in own]
        split = [parts[0].along(axis, config.head_dim) is not None for axis in axes]
        if not any(split) or len(there) < 2 or there[0].shape == whole.shape:
            assert (there[0] == whole).all()
        else:
            np.testing.assert_array_equal(np.concatenate(there, split.index(True)), whole)
        if isinstance(found.weights[name], Quantized):
            assert isinstance(every[0][name] if name in every[0] else every[1][name], Quantized)


@pytest.fixture
def stored(tmp_path):
    """stored(array): the same in a file."""

    def make(array):
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        path.write_bytes(array.tobytes())
        return StoredTensor.dense(InputFile(path), "x", 0, array.shape, array.dtype)

    return make


def values_of(tensor):
    return tensor.dequantize() if isinstance(tensor, sf.QuantizedWeight) else np.asarray(tensor)


@pytest.mark.parametrize("part", [range(32), range(32, 96), range(96, 128), range(64, 64)])
@pytest.mark.parametrize("columns", [128, 4096])  # rows that are read whole, and in part
def test_a_part_of_a_matrix_of_any_kind(stored, rng, part, columns):
    floats = rng.standard_normal((128, columns)).astype(np.float32)
    codes = rng.integers(0, 15, (128, columns))
    scales, minimums = rng.random((2, 128, columns // 32), np.float32)
    q8_0 = sf.quantize(floats, "q8_0")
    pairs, exponents = rng.integers(121, 126, (2, 256, columns // 32, 16)).astype(np.uint8)
    kinds = {
        "array": floats,
        "quantised": q8_0,
        "groups with minimums": sf.QuantizedWeight.from_groups(codes, scales, minimums=minimums),
        "groups": sf.QuantizedWeight.from_groups(codes, scales),
        "stored": stored(floats),
        "stored transposed": stored(np.ascontiguousarray(floats.T)).T,
        "every second row": every_second(stored(np.repeat(floats, 2, axis=0)), 1),
        "blocks": BlockTensor(stored(q8_0.blocks()), "q8_0"),
        "mxfp4": MXFP4Tensor(
            every_second(stored(pairs), 0), every_second(stored(exponents[..., 0].copy()), 1)
        ),
    }
    for name, tensor in kinds.items():
        for axis in (0, 1):
            needed = np.take(values_of(tensor), list(part), axis)
            found = values_of(cut(tensor, axis, part))
            np.testing.assert_array_equal(found, needed, err_msg=f"{name}, axis {axis}")
