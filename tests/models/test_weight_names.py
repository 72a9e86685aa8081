"""`model.weights`: every tensor by name, whatever it became in memory."""

import numpy as np
import pytest

import simdformer as sf
import tiny_models
from checkpoints import random_model, random_weights, tiny_config
from conftest import same_bits
from simdformer.checkpoints import read_checkpoint
from simdformer.models import ModelConfig, Transformer, weight_shapes
from simdformer.models.table import FEATURES
from simdformer.models.weight_table import IN_LAYERS, OUTSIDE


@pytest.mark.parametrize("name", tiny_models.MODELS)
def test_every_tensor_is_there_under_its_name(name, tmp_path):
    tiny_models.make(name).save_pretrained(tmp_path)
    checkpoint, model = read_checkpoint(tmp_path), sf.from_pretrained(tmp_path)
    weights = model.weights
    shapes = weight_shapes(model.config)
    assert list(weights) == list(shapes)
    assert len(weights) == len(shapes)
    for name, shape in shapes.items():
        found = weights[name]
        assert found.shape == shape
        right = np.asarray(checkpoint.weights[name])
        if name.endswith("norm"):
            right = right + np.float32(model.config.norm_offset)
        assert same_bits(found, right), name
    assert weights._ipython_key_completions_() == list(shapes)


def test_a_quantised_matrix_is_given_as_floats():
    config = tiny_config(hidden_size=32)
    tensors = random_weights(np.random.default_rng(1), config)
    few = sf.quantize(tensors["layers.1.wk"], "q8_0")
    weights = Transformer(config, tensors | {"layers.1.wk": few}, dtype=None).weights
    assert same_bits(weights["layers.1.wk"], few.dequantize())
    assert same_bits(weights["layers.1.wv"], tensors["layers.1.wv"])
    assert repr(weights) == f"Weights(3 layers, {len(tensors)} tensors: 28 in float32, 1 in q8_0)"


@pytest.mark.parametrize("name", ["layers.0.wz", "layers.9.wq", "layers.x.wq", "wq", 3, None])
def test_a_name_that_is_none_is_a_key_error_with_near_ones(name):
    weights = random_model()[0].weights
    with pytest.raises(KeyError, match=r"weights: no tensor is called .*; near are \w+"):
        weights[name]
    assert name not in weights


def test_what_a_row_needs_is_a_feature():
    rows = [*IN_LAYERS, *(row for some in OUTSIDE for row in some)]
    assert {need for row in rows for need in row.needs} <= {*FEATURES, "experts", "one mlp"}
    assert {row.mark for row in rows} == {"", "looked up", "whole", "once"}
    fields = set(ModelConfig.__dataclass_fields__)
    assert {part for row in rows for axis in row.axes for part in axis.split(" * ")} <= {
        "1",
        *fields,
    }
