"""Models whose weights stay in few bits: they say what the values of those bits say, and everything
that looks into a model looks into them."""

import dataclasses
from functools import partial

import numpy as np
import pytest

import simdformer as sf
from checkpoints import agree as agree_within
from simdformer.checkpoints import read_checkpoint
from simdformer.models import Transformer
from simdformer.models.budget import decode_bytes, weight_bytes
from simdformer.text.language_model import LanguageModel

TEXT = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"
agree = partial(agree_within, tolerance=3e-4)  # activations are rounded to 16 bits
TALK = [{"role": "user", "content": "What colour is the boat?"}]


def quantized(type, *, tied=True, **options):
    """The demonstration model with all matrices in a type, and the same model of their values."""
    demo, checkpoint = sf.from_pretrained("demo"), read_checkpoint(sf.demo_path())
    config = dataclasses.replace(checkpoint.config, tie_embeddings=tied)
    tensors = {name: np.asarray(tensor, np.float32) for name, tensor in checkpoint.weights.items()}
    if tied:
        del tensors["lm_head"]
    few = {n: sf.quantize(t, type) if t.ndim == 2 else t for n, t in tensors.items()}
    floats = {n: t.dequantize() if tensors[n].ndim == 2 else t for n, t in few.items()}
    models = Transformer(config, few, **options), Transformer(config, floats)
    return [LanguageModel(one, demo.tokenizer, chat_template=demo.chat_template) for one in models]


@pytest.fixture(scope="module", params=["tied", "untied"])
def pair(request):
    return quantized("q8_0", tied=request.param == "tied")


@pytest.mark.parametrize("type", ["q8_0", "q5_1", "q4_0"])
def test_a_model_of_quantised_weights_is_that_of_their_values(type):
    few, floats = quantized(type)
    assert few.transformer.weights.embed is few.transformer.weights.lm_head
    agree(few(TEXT), floats(TEXT))
    assert few.generate(TEXT, max_new_tokens=12) == floats.generate(TEXT, max_new_tokens=12)


def test_exact_arithmetic_reaches_every_matrix():
    few, floats = quantized("q4_0", arithmetic="float32")
    np.testing.assert_array_equal(few(TEXT), floats(TEXT))
    rounded, _ = quantized("q4_0")
    found, exact = (model.run_with_cache(TEXT)[1] for model in (rounded, few))
    for name in ("attn.q", "attn.k", "attn.v", "attn.out", "mlp.gate", "mlp.up", "mlp.out"):
        assert (found["layers.0." + name] != exact["layers.0." + name]).any()
    assert (found["logits"] != exact["logits"]).any()
    with pytest.raises(ValueError, match="arithmetic is 'int8', needs int16 or float32"):
        quantized("q4_0", arithmetic="int8")


def test_weights_become_floats_where_a_dtype_is_asked_for():
    few, _ = quantized("q8_0", dtype="bfloat16")
    _, floats = quantized("q8_0")
    assert few.transformer.weights.layers[0].mlp.down.dtype.name == "bfloat16"
    agree(few(TEXT), floats(TEXT), tolerance=0.05)


def test_activations_of_64_bits_need_floats():
    with pytest.raises(TypeError) as caught:
        quantized("q8_0", activations="float64")
    assert str(caught.value) == (
        "model: weights are float32 and q8_0, needs float64 beside activations of float64; say "
        "which with dtype="
    )
    few, _ = quantized("q8_0", activations="float64", dtype="float64")
    assert few(TEXT).dtype == np.float32


def test_a_quantised_matrix_of_another_shape_is_named():
    checkpoint = read_checkpoint(sf.demo_path())
    weights = dict(checkpoint.weights) | {
        "embed": sf.quantize(np.ones((3, 32), np.float32), "q4_0")
    }
    with pytest.raises(ValueError, match=r"misshapen: embed \(3, 32\), needs \(1024, 128\)"):
        Transformer(checkpoint.config, weights)


# ---- looking in ----------------------------------------------------------------------------------


def test_a_trace_and_an_edit(pair):
    traces = [model.run_with_cache(TEXT) for model in pair]
    for (logits, trace), (same, other) in [traces]:
        agree(logits, same)
        assert trace.keys() == other.keys()
        for name in trace:
            if not name.endswith("scores"):
                agree(trace[name], other[name])
    edited = [model(TEXT, edit={"layers.2.mlp.out": 0.0}) for model in pair]
    agree(*edited)
    assert np.abs(edited[0] - traces[0][0]).max() > 0.1


def test_attribution_adds_up_and_is_that_of_the_values(pair):
    found, needed = (sf.attribute(model, TEXT, " blue", " red") for model in pair)
    rounding = 1e-3 * sum(map(abs, found.parts.values()))
    assert abs(sum(found.parts.values()) - found.difference) < rounding
    for name, part in needed.parts.items():
        assert abs(found.parts[name] - part) < rounding


def test_the_lens_and_patching(pair):
    lens, same = (sf.logit_lens(model, TEXT, target=" blue") for model in pair)
    agree(lens.probability, same.probability, tolerance=2e-3)
    metric = (" blue", " red")
    other = TEXT.replace("blue", "green")
    found, needed = (sf.patch(model, TEXT, other, metric, "layers.*.attn.out") for model in pair)
    agree(found, needed, tolerance=2e-2)


def test_loss_chat_and_the_page(pair, tmp_path):
    few, floats = pair
    agree(few.loss(TEXT), floats.loss(TEXT), tolerance=1e-3)
    assert few.chat(TALK, max_new_tokens=8) == floats.chat(TALK, max_new_tokens=8)
    sf.look(few, "Mia has a red kite.").save(tmp_path / "look.html")
    assert (tmp_path / "look.html").stat().st_size > 10_000


def test_a_learners_trace_of_a_quantised_model_is_judged_by_its_values(pair):
    few, floats = pair
    names = ["embed", "layers.0.attn.q_rot", "layers.1.mlp.out", "final_norm", "logits"]
    ids = few.tokenizer.encode(TEXT)
    _, trace = floats.run_with_cache(ids, names)
    assert sf.check_trace(dict(trace), few, ids).ok


def test_what_is_read_for_a_token_is_what_lies_in_memory(pair):
    few, _ = pair
    config, weights = few.config, few.transformer.weights
    matrices = {"embed": weights.embed, "lm_head": weights.lm_head}
    held = {f"layers.{i}.down": layer.mlp.down for i, layer in enumerate(weights.layers)}
    assert all(matrix.type == "q8_0" for matrix in (matrices | held).values())
    tensors = read_checkpoint(sf.demo_path()).weights
    plain = {name: np.asarray(t, np.float32) for name, t in tensors.items()}
    if config.tie_embeddings:
        del plain["lm_head"]
    stored = {n: sf.quantize(t, "q8_0") if t.ndim == 2 else t for n, t in plain.items()}
    everything = weight_bytes(config, stored, None)
    looked_up = 0 if config.tie_embeddings else weights.embed.nbytes  # but for one row
    read = everything - looked_up + 128 // 32 * 34
    assert decode_bytes(config, weights, 0, 4) == read
