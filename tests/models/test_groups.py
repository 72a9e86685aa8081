"""AWQ and GPTQ checkpoints of Hugging Face: the values of their integers, worked out here once
more, and everything that is not supported refused by name."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import simdformer as sf
import tiny_models
from checkpoints import told
from simdformer.checkpoints import read_checkpoint
from simdformer.models.budget import weight_bytes

IDS = np.random.default_rng(11).integers(0, 96, (2, 24))
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 32}
ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
SCHEMES = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"},
    "awq-32": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
    "gptq-v2": {"quant_method": "gptq", "bits": 4, "group_size": 64},
    "gptq-8": {"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": True},
}
SCHEMES["gptq-v2"]["checkpoint_format"] = "gptq_v2"


def words(codes, bits):
    """Codes (..., n) in 32-bit words, the first in the low bits."""
    per_word = 32 // bits
    codes = codes.astype(np.uint64).reshape(*codes.shape[:-1], -1, per_word)
    shifts = np.arange(per_word, dtype=np.uint64) * np.uint64(bits)
    joined = (codes << shifts).sum(axis=-1).astype(np.uint32).view(np.int32)
    return np.ascontiguousarray(joined)  # save_file writes memory as it lies


def as_stored(weight, scheme):
    """A weight (O, I) as the three or four tensors of a scheme, and the values that they mean."""
    bits, group = scheme["bits"], scheme["group_size"]
    outputs, inputs = weight.shape
    grouped = weight.reshape(outputs, inputs // group, group)
    low, high = grouped.min(-1), grouped.max(-1)
    scales = ((high - low) / (2**bits - 1)).astype(np.float16)
    zeros = np.clip(np.round(-low / scales), 1, 2**bits - 1).astype(np.int64)
    codes = np.clip(np.round(grouped / scales[..., None]) + zeros[..., None], 0, 2**bits - 1)
    values = scales.astype(np.float64)[..., None] * (codes - zeros[..., None])
    codes = codes.reshape(outputs, inputs).astype(np.int64).T  # (I, O)
    zeros = zeros.T  # (groups, O)
    tensors = {"scales": np.ascontiguousarray(scales.T)}
    if scheme["quant_method"] == "awq":
        for name, array in (("qweight", codes), ("qzeros", zeros)):
            eights = array.reshape(len(array), -1, 8)[..., ORDER]
            tensors[name] = words(eights.reshape(array.shape), 4)
    else:
        stored = zeros if scheme.get("checkpoint_format") == "gptq_v2" else zeros - 1
        tensors["qweight"] = np.ascontiguousarray(words(np.ascontiguousarray(codes.T), bits).T)
        tensors["qzeros"] = words(stored, bits)
        tensors["g_idx"] = (np.arange(inputs) // group).astype(np.int32)
    return tensors, values.reshape(outputs, inputs).astype(np.float32)


def save(folder, name="qwen2", change=lambda scheme, tensors: None, scheme=SCHEMES["awq"]):
    """A tiny checkpoint whose linear layers are quantised, and the model of the values."""
    model = tiny_models.make(name, **SIZES)
    model.save_pretrained(folder)
    tensors, floats = {}, {}
    for key, tensor in model.state_dict().items():
        floats[key] = tensors[key] = tensor.numpy()
        if "_proj.weight" in key:
            stored, floats[key] = as_stored(tensors.pop(key), scheme)
            stem = key.removesuffix("weight")
            tensors |= {stem + part: array for part, array in stored.items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight")
    scheme = dict(scheme)
    change(scheme, tensors)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": scheme}))
    model.load_state_dict({name: torch_of(array) for name, array in floats.items()})
    return model, floats


def torch_of(array):
    import torch

    return torch.from_numpy(np.array(array))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_values_and_logits_are_those_of_the_integers(scheme, tmp_path):
    scheme = SCHEMES[scheme]
    theirs, floats = save(tmp_path, scheme=scheme)
    checkpoint = read_checkpoint(tmp_path)
    names = {"wq": "self_attn.q_proj", "wo": "self_attn.o_proj", "down": "mlp.down_proj"}
    for ours, name in names.items():
        tensor = checkpoint.weights[f"layers.1.{ours}"]
        assert tensor.type == f"int{scheme['bits']}_g{scheme['group_size']}"
        needed = floats[f"model.layers.1.{name}.weight"]
        np.testing.assert_allclose(np.asarray(tensor), needed, rtol=3e-7, atol=1e-7)
        np.testing.assert_array_equal(np.asarray(tensor.rows(8, 24)), np.asarray(tensor)[8:24])
        assert tensor.packed_nbytes == tensor.quantized().nbytes
    needed = tiny_models.logits(theirs, IDS)
    for options, tolerance in (
        ({}, 3e-4),
        ({"arithmetic": "float32"}, 2e-5),
        ({"dtype": "float32"}, 2e-5),
    ):
        model = sf.from_pretrained(tmp_path, **options)
        assert np.abs(model(IDS) - needed).max() <= tolerance * np.abs(needed).max()
    weights = sf.from_pretrained(tmp_path).transformer.weights
    assert isinstance(weights.layers[0].mlp.down, sf.QuantizedWeight)
    quantised = sum(
        matrix.nbytes for layer in weights.layers for matrix in (layer.mlp.down, layer.wo)
    )
    assert weight_bytes(checkpoint.config, checkpoint.weights, None) > quantised > 0


def changed(**fields):
    return lambda scheme, tensors: scheme.update(fields)


def without(part):
    def change(scheme, tensors):
        del tensors[f"model.layers.0.mlp.up_proj.{part}"]

    return change


def act_order(scheme, tensors):
    tensors["model.layers.0.mlp.up_proj.g_idx"][[0, -1]] = [1, 0]


def short(scheme, tensors):
    name = "model.layers.0.mlp.up_proj.scales"
    tensors[name] = tensors[name][:, :-8].copy()


REFUSED = {
    "bitsandbytes": (
        changed(quant_method="bitsandbytes"),
        "quantization_config.quant_method = 'bitsandbytes', needs 'awq' or 'gptq'",
    ),
    "fp8": (changed(quant_method="fp8"), "quantization_config.quant_method = 'fp8', needs "),
    "3 bits": (changed(bits=3), "quantization_config.bits = 3, needs 4 or 8"),
    "a group a row": (
        changed(group_size=-1),
        "quantization_config.group_size = -1, needs 32 or 64 or 128",
    ),
    "act-order": (changed(desc_act=True), "quantization_config.desc_act = True, needs False"),
    "marlin": (
        changed(checkpoint_format="marlin"),
        "quantization_config.checkpoint_format = 'marlin', needs 'gptq' or 'gptq_v2'",
    ),
    "bits by module": (changed(dynamic={"a": {}}), "quantization_config.dynamic = {'a': {}}"),
    "bits that are true": (changed(bits=True), "quantization_config.bits = True, needs 4"),
    "groups out of order": (act_order, "up_proj.g_idx': found groups in another order (act-order)"),
    "no scales": (
        without("scales"),
        "found no model.layers.0.mlp.up_proj.scales beside it, needs qweight, qzeros, scales",
    ),
    "scales of another shape": (
        short,
        "up_proj.scales': found shape (2, 248), needs (2, 256) beside model.layers.0.mlp.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_by_name(name, tmp_path):
    change, message = REFUSED[name]
    save(tmp_path, change=change, scheme=SCHEMES["gptq-v2"])
    assert message in told(tmp_path)


def test_awq_of_another_version(tmp_path):
    save(tmp_path, change=changed(version="gemv"))
    assert "quantization_config.version = 'gemv', needs 'gemm'" in told(tmp_path)
