"""Adapters: their gradients, also beside quantised weights, and their files, beside the package
peft's."""

import json

import numpy as np
import pytest

import simdformer as sf
import tiny_models
from conftest import normal, same_bits
from simdformer.checkpoints import CheckpointError
from simdformer.text.quantizing import quantize_checkpoint
from simdformer.training import LoRAModel, TrainableModel
from tiny import made

TARGETS = ("wq", "wk", "wv", "wo", "gate", "up", "down")


@pytest.fixture
def batch(rng):
    return rng.integers(1, 96, (2, 19)), rng.integers(1, 96, (2, 19))


def with_noise(model, seed=0):
    """An adapter that does something: its b begins as zeros."""
    rng = np.random.default_rng(seed)
    for array in model.parameters().values():
        array[...] = normal(rng, *array.shape) / 4
    return model


def quantized(tmp_path, kind="q8_0"):
    """The package's model in a GGUF file of few bits."""
    file = tmp_path / f"{kind}.gguf"
    quantize_checkpoint(sf.demo_path(), file, kind)
    return file


@pytest.mark.parametrize(
    "name", ["llama3.1", "qwen2", "qwen3", "gemma2", "olmo2", "smollm3", "mixtral", "qwen2-moe"]
)
def test_gradients_are_those_of_the_merged_matrices(name, batch, tmp_path):
    """With M = W + s b a the gradient of b is s dM aᵀ, and that of a is s bᵀ dM."""
    made(name, tmp_path)
    model = with_noise(LoRAModel.from_pretrained(tmp_path, rank=3, alpha=5.0))
    loss, gradients = model.loss_and_gradients(*batch)
    want, whole = model.merged().loss_and_gradients(*batch)
    assert loss == pytest.approx(want, abs=1e-5)
    assert model.loss(*batch) == pytest.approx(want, abs=1e-5)
    assert gradients.keys() == model.parameters().keys()
    for key, adapter in model.adapters.items():
        dm = whole[key].astype(np.float64)
        for part, right in (("a", adapter.b.T @ dm), ("b", dm @ adapter.a.T)):
            right = right * 5 / 3
            atol = 1e-4 * np.abs(right).max()
            np.testing.assert_allclose(gradients[f"{key}.lora_{part}"], right, rtol=0, atol=atol)


def test_gradients_beside_quantised_weights(tmp_path, rng):
    model = with_noise(LoRAModel.from_pretrained(quantized(tmp_path), rank=4))
    assert isinstance(model.weights["layers.0.wq"], sf.QuantizedWeight)
    ids = rng.integers(0, 1000, (2, 40))
    loss, gradients = model.loss_and_gradients(ids)
    want, whole = model.merged().loss_and_gradients(ids)
    assert loss == pytest.approx(want, rel=1e-5)
    for key, adapter in model.adapters.items():
        right = 2 * adapter.b.T @ whole[key]
        atol = 1e-3 * np.abs(right).max()  # 6 layers of such noise make float32's errors large
        np.testing.assert_allclose(gradients[f"{key}.lora_a"], right, rtol=0, atol=atol)


def test_the_same_bits_where_parts_are_computed_again_and_for_every_number_of_threads(
    tmp_path, batch
):
    made("qwen3", tmp_path)
    model = with_noise(LoRAModel.from_pretrained(tmp_path, rank=3))
    results = []
    for threads, checkpoint in ((1, "none"), (2, "none"), (2, "mlp"), (3, "layer")):
        with sf.num_threads(threads):
            results.append(model.loss_and_gradients(*batch, checkpoint=checkpoint))
    for loss, gradients in results[1:]:
        assert loss == results[0][0]
        assert all(same_bits(gradient, results[0][1][key]) for key, gradient in gradients.items())


def test_it_begins_as_the_model_and_learns_with_its_weights_frozen(tmp_path):
    file = quantized(tmp_path, "q4_0")
    model = LoRAModel.from_pretrained(file, rank=8, seed=1)
    ids = np.arange(40).reshape(2, 20)
    before = sf.from_pretrained(file)
    np.testing.assert_array_equal(model.language_model()(ids), before(ids))
    optimizer = sf.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    losses = []
    for _ in range(20):
        loss, gradients = model.loss_and_gradients(ids)
        optimizer.step(gradients)
        losses.append(loss)
    assert losses[-1] < losses[0] - 2
    np.testing.assert_array_equal(before(ids), sf.from_pretrained(file)(ids))
    assert not np.array_equal(model.language_model()(ids), before(ids))


@pytest.mark.parametrize("base", ["demo", "quantised", "llama-bias", "gemma3", "bfloat16"])
def test_what_is_saved_is_read_beside_its_model(base, tmp_path, batch):
    if base == "demo":
        path = sf.demo_path()  # RoPE of neighbours, which files of adapters do not have
    elif base == "quantised":
        path = quantized(tmp_path)
    elif base == "bfloat16":
        path = tmp_path / "model"
        tiny_models.make("llama3.2").bfloat16().save_pretrained(path)
    else:
        path = tmp_path / "model"
        made(base, path)
    model = with_noise(LoRAModel.from_pretrained(path, rank=3, targets=("wq", "wk", "wo", "down")))
    model.save(tmp_path / "adapter")
    want = model.language_model()(batch[0])
    ours = sf.from_pretrained(path, adapter=tmp_path / "adapter")
    np.testing.assert_array_equal(ours(batch[0]), want)
    assert np.abs(want - sf.from_pretrained(path)(batch[0])).max() > 0.1
    merged = model.merged().language_model()(batch[0])
    np.testing.assert_allclose(want, merged, rtol=0, atol=2e-3 * np.abs(merged).max())
    text = ours.transformer.weights["layers.0.wq"]
    np.testing.assert_allclose(text, model.merged().weights["layers.0.wq"], rtol=0, atol=1e-6)


def test_generating_with_an_adapter_is_that_of_the_merged_model(tmp_path):
    model = with_noise(LoRAModel.from_pretrained(sf.demo_path(), rank=2))
    model.save(tmp_path)
    ours = sf.from_pretrained(sf.demo_path(), adapter=tmp_path, dtype="float32")
    whole = model.merged().language_model(ours.tokenizer)
    text = ["Tom has", "Once upon a time", "Mia"]
    assert ours.generate(text, max_new_tokens=20) == whole.generate(text, max_new_tokens=20)


@pytest.mark.parametrize("name", ["llama3", "qwen2", "qwen3", "mistral", "gemma2"])
def test_peft_opens_it_with_the_same_logits(name, batch, tmp_path):
    peft = pytest.importorskip("peft", reason="the package peft is not installed")
    transformers = pytest.importorskip("transformers")
    made(name, tmp_path / "model")
    model = with_noise(LoRAModel.from_pretrained(tmp_path / "model", rank=3, alpha=4.0))
    model.save(tmp_path / "adapter")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter")
    want = model.language_model()(batch[0])
    np.testing.assert_allclose(tiny_models.logits(theirs, batch[0]), want, rtol=0, atol=2e-4)


@pytest.mark.parametrize("rslora", [False, True])
def test_what_peft_saves_is_read(rslora, batch, tmp_path):
    peft = pytest.importorskip("peft", reason="the package peft is not installed")
    torch = pytest.importorskip("torch")
    theirs = tiny_models.make("llama3.1")
    theirs.save_pretrained(tmp_path / "model")
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"], use_rslora=rslora,
        rank_pattern={"down_proj": 2}, task_type="CAUSAL_LM",
    )  # fmt: skip
    theirs = peft.get_peft_model(theirs, config)
    with torch.no_grad():
        for key, parameter in theirs.named_parameters():
            if "lora_B" in key:
                parameter.normal_()
    theirs.save_pretrained(tmp_path / "adapter")
    ours = sf.from_pretrained(tmp_path / "model", adapter=tmp_path / "adapter")
    want = tiny_models.logits(theirs, batch[0])
    np.testing.assert_allclose(ours(batch[0]), want, rtol=0, atol=2e-4)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    LoRAModel.from_pretrained(sf.demo_path(), rank=2, targets=("wq",)).save(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"peft_type": "IA3"}, "found peft_type = 'IA3', needs LORA"),
        ({"r": 3}, r"found the shape \(2, 128\), needs the r = 3 of adapter_config.json"),
        ({"r": None}, "found no r, needs a value"),
        ({"r": 2.0}, "found r = 2.0, needs a whole number"),
        ({"lora_alpha": -1}, "found lora_alpha = -1, needs a number > 0"),
        ({"lora_alpha": True}, "found lora_alpha = True, needs a number > 0"),
        ({"use_dora": True}, "found use_dora = True, which is not supported"),
        ({"bias": "all"}, "found bias = 'all', which is not supported, needs 'none'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save = .*, which is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa', which is not supported"),
    ],
)
def test_configs_that_ask_for_something_else(saved, changed, message):
    file = saved / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(CheckpointError, match=message):
        sf.from_pretrained(sf.demo_path(), adapter=saved)


NAME = "base_model.model.model.layers.0.self_attn.q_proj.lora_"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({NAME + "A.weight": (2, 128)}, "found it alone, needs lora_A and lora_B"),
        ({NAME + "C.weight": (2, 128)}, "found a tensor '.*lora_C.weight', needs lora_A and"),
        ({"x": (2,)}, "found a tensor 'x', needs lora_A and lora_B of q_proj"),
        (
            {NAME.replace(".0.", ".9.") + part + ".weight": (2, 2) for part in "AB"},
            "found no such matrix in the model",
        ),
        (
            {NAME + "A.weight": (2, 128), NAME + "B.weight": (64, 2)},
            r"lora_B.weight': found float32 \(64, 2\), needs floats \(128, 2\)",
        ),
        (
            {NAME + "A.weight": (2, 128, 1), NAME + "B.weight": (128, 2)},
            r"found the shape \(2, 128, 1\)",
        ),
    ],
)
def test_tensors_that_do_not_fit(saved, tensors, message):
    from safetensors.numpy import save_file

    arrays = {name: np.zeros(shape, np.float32) for name, shape in tensors.items()}
    save_file(arrays, saved / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        sf.from_pretrained(sf.demo_path(), adapter=saved)


def test_an_adapter_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        sf.from_pretrained(sf.demo_path(), adapter=tmp_path)
    with pytest.raises(FileNotFoundError, match="an adapter is a directory with adapter_conf"):
        sf.from_pretrained(sf.demo_path(), adapter="mine")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rank": 0}, "rank is 0, needs a whole number > 0"),
        ({"alpha": 0.0}, "alpha is 0.0, needs a number > 0"),
        ({"targets": ("wq", "embed")}, "targets has 'embed', needs wq, wk, wv, wo, gate, up, down"),
        ({"targets": ()}, "targets is empty, needs some of wq"),
    ],
)
def test_options_that_make_no_sense(given, message):
    with pytest.raises(ValueError, match=message):
        LoRAModel.from_pretrained(sf.demo_path(), **given)


@pytest.mark.parametrize("name", ["phi3", "gpt2"])
def test_matrices_that_are_stored_together(name, tmp_path):
    made(name, tmp_path)
    with pytest.raises(ValueError, match=r"have layers.0.wq in .*, needs model.layers.0.self_attn"):
        LoRAModel.from_pretrained(tmp_path)


def test_the_merged_model_is_one_that_is_saved(tmp_path, batch):
    made("llama3.2", tmp_path / "model")
    model = with_noise(LoRAModel.from_pretrained(tmp_path / "model", rank=2))
    model.merged().save(tmp_path / "merged")
    np.testing.assert_allclose(
        sf.from_pretrained(tmp_path / "merged")(batch[0]), model.language_model()(batch[0]),
        rtol=0, atol=2e-4,
    )  # fmt: skip
    assert isinstance(model.merged(), TrainableModel)
