"""Experts that a file keeps in one tensor: those of gpt-oss, in MXFP4 too, and of GGUF."""

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import gguf_files
import simdformer as sf
import tiny_models
from checkpoints import agree, tiny_config, told
from simdformer import cli
from simdformer.checkpoints import read_checkpoint
from simdformer.checkpoints.stacked import MXFP4Tensor
from simdformer.models.config import FieldError
from simdformer.text.quantizing import quantize_checkpoint
from test_experts import IDS, make

WIDE = {"hidden_size": 64, "intermediate_size": 96}  # whole blocks of 32
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
FP4 = np.concatenate([FP4, -FP4])


def mxfp4(rng, *shape):
    """Random bytes and exponents as gpt-oss stores them, and the values that they stand for."""
    rows, width = shape[:-1], shape[-1]
    pairs = rng.integers(0, 256, (*rows, width // 32, 16)).astype(np.uint8)
    exponents = rng.integers(121, 126, (*rows, width // 32)).astype(np.uint8)
    numbers = FP4[np.stack([pairs & 15, pairs >> 4], -1)].reshape(*rows, width // 32, 32)
    values = numbers * np.exp2(exponents.astype(np.float32) - 127)[..., None]
    return map(torch.from_numpy, (pairs, exponents, values.reshape(shape)))


@pytest.fixture
def few_bits(tmp_path, rng):
    """A directory with a gpt-oss whose experts have four bits, and the same model in transformers,
    with the values in its float32."""
    model = tiny_models.make("gpt-oss", **WIDE)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name.endswith(("gate_up_proj", "down_proj")):
            pairs, exponents, values = mxfp4(rng, *tensor.mT.shape)
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = pairs, exponents
            tensor.copy_(values.mT)
        else:
            tensors[name] = tensor.clone()
    model.config.save_pretrained(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    said = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    tiny_models.edit_json(
        tmp_path / "config.json",
        lambda found: found | {"quantization_config": said, "architectures": ["GptOssForCausalLM"]},
    )
    return tmp_path, model


def test_mxfp4_of_gpt_oss_is_the_model_of_its_values(few_bits):
    folder, theirs = few_bits
    needed = tiny_models.logits(theirs, IDS % 96)[0]
    exact = sf.from_pretrained(folder, arithmetic="float32")
    agree(exact(IDS % 96), needed)
    agree(sf.from_pretrained(folder, dtype="float32")(IDS % 96), needed)
    agree(sf.from_pretrained(folder)(IDS % 96), needed, 3e-4)
    expert = exact.transformer.weights.layers[1].mlp.experts[3]
    stored = theirs.model.layers[1].mlp.experts
    assert [weight.type for weight in (*expert.gate_up, expert.down)] == ["mxfp4"] * 3
    gate, up, down = (weight.dequantize() for weight in (*expert.gate_up, expert.down))
    gate_up = stored.gate_up_proj[3].detach().numpy()
    np.testing.assert_array_equal(gate, gate_up[:, ::2].T)
    np.testing.assert_array_equal(up, gate_up[:, 1::2].T)
    np.testing.assert_array_equal(down, stored.down_proj[3].detach().numpy().T)


def test_rows_of_mxfp4_are_read_one_by_one(few_bits):
    tensor = read_checkpoint(few_bits[0]).weights["layers.0.experts.2.up"]
    assert isinstance(tensor, MXFP4Tensor)
    whole = np.asarray(tensor)
    assert whole.shape == tensor.shape == (96, 64)
    np.testing.assert_array_equal(np.asarray(tensor.rows(5, 17)), whole[5:17])
    assert [part.nbytes for part in tensor.parts] == [96 * 64 // 2, 96 * 64 // 32]
    assert tensor.nbytes == whole.nbytes


BLOCKS, NUMBERS = "model.layers.1.mlp.experts.down_proj_blocks", "layers.1.experts.4.down"
SCALES = BLOCKS.replace("blocks", "scales")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.update({BLOCKS: t[BLOCKS][:4]}),
            f"{BLOCKS!r}: found shape (4, 64, 3, 16), needs 4 axes, the first of them 5 exp",
        ),
        (
            lambda t: t.update({BLOCKS: t[BLOCKS][..., :15]}),
            f"{BLOCKS!r}: found uint8 (64, 3, 15) of an expert beside scales (64, 3), needs",
        ),
        (
            lambda t: t.update({SCALES: t[SCALES].float()}),
            f"{SCALES!r}: found float32 (64, 3) of an expert beside",
        ),
        (
            lambda t: t.pop(SCALES),
            f"misshapen: {BLOCKS} (64, 3, 16) [layers.1.experts.0.down]",
        ),
        (lambda t: t.pop(BLOCKS), "missing: model.layers.1.mlp.experts.down_proj"),
        (
            lambda t: t.update({BLOCKS: t[BLOCKS][:, :32], SCALES: t[SCALES][:, :32]}),
            "needs (64, 96) = (hidden_size, intermediate_size)",
        ),
    ],
)
def test_mxfp4_that_does_not_fit_is_named(few_bits, change, message):
    folder, _ = few_bits
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    found = told(folder)
    assert message in found
    assert "model.safetensors" in found


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "gpt-oss",
            {"quantization_config": {"quant_method": "fp8"}},
            "quant_method = 'fp8', needs 'awq' or 'gptq' or 'mxfp4'",
        ),
        ("gpt-oss", {"rope_parameters": None}, "rope_scaling = None, needs an object"),
        ("gpt-oss", {"swiglu_limit": 0}, "swiglu_limit = 0, needs finite and > 0"),
        ("gpt-oss", {"num_local_experts": None}, "found no num_local_experts, needs"),
        (
            "mixtral",
            {"quantization_config": {"quant_method": "mxfp4"}},
            "needs 'awq' or 'gptq'",
        ),
    ],
)
def test_configs_that_ask_for_something_else_are_refused(tmp_path, name, changes, message):
    assert message in told(tiny_models.save_changed(tmp_path, name, **changes))


# ---- GGUF ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "type"), [("qwen3-moe", "q4_k"), ("mixtral", "q8_0"), ("gpt-oss", "mxfp4")]
)
def test_quantised_experts_of_gguf(tmp_path, name, type):
    widths = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}
    widths |= {"moe_intermediate_size": 256} if name == "qwen3-moe" else {}
    widths |= {"layer_types": None} if name == "gpt-oss" else {}
    theirs, file = tiny_models.make(name, **widths), tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, gguf_files.architecture(theirs.config))
    gguf_files.describe(writer, theirs.config)
    stored, kind = {}, gguf.GGMLQuantizationType[type.upper()]
    for tensor, values in gguf_files.converted(theirs).items():
        values = values.contiguous().numpy()
        if tensor.endswith("_exps.weight"):
            rows = sf.quantize(values.reshape(-1, values.shape[-1]), type)
            blocks = rows.blocks().reshape(*values.shape[:-1], -1)
            stored[tensor] = rows.dequantize().reshape(values.shape)
            writer.add_tensor(tensor, blocks, raw_dtype=kind)
        else:
            writer.add_tensor(tensor, values)
    gguf_files.close(writer)
    model = sf.from_pretrained(file, arithmetic="float32")
    expert = model.transformer.weights.layers[1].mlp.experts[2]
    parts = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
    for weight, part in zip((*expert.gate_up, expert.down), parts, strict=True):
        assert weight.type == type
        np.testing.assert_array_equal(weight.dequantize(), stored[f"blk.1.{part}.weight"][2])
    floats = sf.from_pretrained(file, dtype="float32")
    agree(model(IDS % 96), floats(IDS % 96))
    agree(sf.from_pretrained(file)(IDS % 96), floats(IDS % 96), 3e-4)


def test_gguf_experts_that_do_not_fit_are_named(tmp_path):
    theirs, file = tiny_models.make("qwen3-moe"), tmp_path / "model.gguf"

    def refusal(change):
        writer = gguf.GGUFWriter(file, "qwen3moe")
        gguf_files.describe(writer, theirs.config)
        tensors = {n: t.contiguous().numpy() for n, t in gguf_files.converted(theirs).items()}
        change(tensors)
        for name, tensor in tensors.items():
            writer.add_tensor(name, np.ascontiguousarray(tensor))
        gguf_files.close(writer)
        return told(file)

    name = "blk.2.ffn_down_exps.weight"
    assert refusal(lambda t: t.update({name: t[name][:4]})) == (
        f"{file}: tensor {name!r}: found shape (4, 32, 24), needs 3 axes, the first of them 5 "
        "experts long"
    )
    assert f"missing: {name} (32, 24) [layers.2.experts.0.down] in model.gguf" in refusal(
        lambda t: t.pop(name)
    )
    assert (
        f"misshapen: {name} (32, 20) [layers.2.experts.0.down] in model.gguf, needs (32, 24) = "
        "(qwen3moe.embedding_length, qwen3moe.expert_feed_forward_length)"
    ) in refusal(lambda t: t.update({name: t[name][..., :20]}))


def test_info_of_a_file_with_experts(tmp_path, capsys):
    file = tmp_path / "model.gguf"
    gguf_files.write_model(file, tiny_models.make("qwen2-moe"))
    assert cli.main(["info", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "of them for a token" in shown
    assert "shared_router      True\n" in shown


def test_quantize_keeps_experts_of_gguf(tmp_path):
    model, out = tiny_models.make("mixtral", **WIDE), tmp_path / "out.gguf"
    gguf_files.write_model(tmp_path / "in.gguf", model)
    order = ["quantize", str(tmp_path / "in.gguf"), str(out), "--type", "q8_0"]
    assert cli.main(order) == 0
    before, after = (sf.from_pretrained(file) for file in (tmp_path / "in.gguf", out))
    one, two = (model.transformer.weights.layers[2].mlp for model in (before, after))
    np.testing.assert_array_equal(one.router.unpack(), two.router.unpack())
    for expert, few in zip(one.experts, two.experts, strict=True):
        assert few.down.type == "q8_0"
        agree(few.down.dequantize(), expert.down.unpack(), 0.01)


@pytest.mark.parametrize("type", ["mxfp4", "q4_k_m", "bf16"])
def test_experts_in_mxfp4_stay_so_in_files_of_every_type(few_bits, type):
    folder, _ = few_bits
    out = folder / "few" / "out.gguf"
    out.parent.mkdir()
    quantize_checkpoint(folder, out, type)
    before, after = (read_checkpoint(path).weights for path in (folder, out))
    of_experts = [name for name in before if ".experts." in name and "_bias" not in name]
    assert len(of_experts) == 3 * 5 * 3
    for name in of_experts:
        assert after[name].type == "mxfp4"
        np.testing.assert_array_equal(after[name].blocks(), before[name].blocks())
    beside = {"mxfp4": "q8_0", "q4_k_m": "q5_0", "bf16": np.dtype(ml_dtypes.bfloat16)}[type]
    assert getattr(after["layers.0.wq"], "type", after["layers.0.wq"].dtype) == beside
    assert after["layers.0.router"].dtype == np.float32


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss"])
def test_experts_of_hugging_face_are_quantised_each_by_itself(name, tmp_path):
    widths = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
    tiny_models.make(name, **WIDE | widths).save_pretrained(tmp_path / "folder")
    quantize_checkpoint(tmp_path / "folder", tmp_path / "out.gguf", "q8_0")
    before, after = (read_checkpoint(tmp_path / at).weights for at in ("folder", "out.gguf"))
    assert before.keys() == after.keys()
    for kind in ("gate", "up", "down"):
        tensor = f"layers.2.experts.4.{kind}"
        few = sf.quantize(np.asarray(before[tensor], np.float32), "q8_0")
        np.testing.assert_array_equal(after[tensor].blocks(), few.blocks())
    router = "layers.2.router"
    np.testing.assert_array_equal(np.asarray(after[router]), np.asarray(before[router], np.float32))


# ---- what gpt-oss does otherwise -----------------------------------------------------------------


def test_sinks_take_their_share():
    sinks, _ = make(attention_sinks=True)
    _, trace = sinks.run_with_cache(IDS)
    scores, pattern = (
        trace["layers.1.attn." + name].astype(np.float64) for name in ("scores", "pattern")
    )
    sink = sinks.weights.layers[1].sinks.astype(np.float64)[:, None, None]
    total = np.exp(scores).sum(-1, keepdims=True) + np.exp(sink)
    np.testing.assert_allclose(pattern, np.exp(scores) / total, rtol=1e-5, atol=1e-7)
    same = {"layers.1.attn.scores": lambda x: x + np.float32(0)}
    agree(sinks(IDS, edit=same), sinks(IDS))
    higher = {"layers.1.attn.scores": lambda x: x + np.float32(2)}  # than the sink
    _, after = sinks.run_with_cache(IDS, edit=higher)
    total = np.exp(scores + 2).sum(-1, keepdims=True) + np.exp(sink)
    np.testing.assert_allclose(
        after["layers.1.attn.pattern"], np.exp(scores + 2) / total, rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("activations", [np.float32, ml_dtypes.bfloat16])
def test_the_clamped_swiglu(activations):
    model, _ = make(activations, activation="clamped_swiglu", swiglu_limit=0.5, swiglu_alpha=2.0)
    _, trace = model.run_with_cache(IDS)
    gate, up = (trace["layers.1.mlp." + name].astype(np.float64) for name in ("gate", "up"))
    assert gate.max() > 0.5 > -0.5 > up.min()
    gate, up = np.minimum(gate, 0.5), np.clip(up, -0.5, 0.5)
    needed = gate / (1 + np.exp(-2 * gate)) * (up + 1)
    tolerance = 1e-6 if activations == np.float32 else 1e-2
    np.testing.assert_allclose(trace["layers.1.mlp.act"], needed, rtol=tolerance, atol=tolerance)


def test_the_clamped_swiglu_needs_a_gate():
    with pytest.raises(FieldError, match="activation is 'clamped_swiglu', needs silu or gelu"):
        tiny_config(activation="clamped_swiglu", gated_mlp=False)
