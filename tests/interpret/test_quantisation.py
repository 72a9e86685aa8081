"""What notebook 06 says of the demonstration model in few bits."""

import numpy as np
import pytest

import simdformer as sf
from simdformer.checkpoints import read_checkpoint
from simdformer.models import Transformer

TEXT = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"


@pytest.fixture(scope="module")
def models():
    """The model in float32, and with all of its matrices in q4_0."""
    checkpoint = read_checkpoint(sf.demo_path())
    tokenizer = sf.from_pretrained(sf.demo_path()).tokenizer
    exact = {name: np.asarray(tensor, np.float32) for name, tensor in checkpoint.weights.items()}
    few = {n: sf.quantize(w, "q4_0") if w.ndim == 2 else w for n, w in exact.items()}
    return [
        sf.LanguageModel(Transformer(checkpoint.config, weights), tokenizer)
        for weights in (exact, few)
    ]


def further(models, text):
    """How far what they expect is apart behind each token, in nats."""
    exact, few = (sf.softmax(model(text)).astype(np.float64) for model in models)
    return (exact * np.log(exact / few)).sum(-1)


def test_both_give_the_answer(models):
    assert [model.generate(TEXT, max_new_tokens=1) for model in models] == [" blue", " blue"]


def test_four_bits_decide_in_a_sentence_about_a_name_that_the_model_never_met(models):
    apart = further(models, TEXT)
    tokens = models[0].tokenizer.to_str_tokens(TEXT)
    first, last = tokens.index(" T"), tokens.index(" What")
    assert all(first <= at <= last for at in np.argsort(apart)[-4:])
    assert apart.max() > 0.5
    assert np.sort(apart)[:-4].mean() < 0.02
    assert further(models, TEXT.replace("Tom", "Ben")).max() < 0.05


def test_errors_do_not_pile_up_at_most_tokens(models):
    right, few = (model.run_with_cache(TEXT)[1] for model in models)

    def off(name, layer, axis=None):
        needed = right[f"layers.{layer}.{name}"]
        apart = few[f"layers.{layer}.{name}"] - needed
        return np.linalg.norm(apart, axis=axis) / np.linalg.norm(needed, axis=axis)

    assert np.median(off("resid_post", 5, -1) / off("resid_post", 0, -1)) < 2
    assert off("resid_post", 5, -1).max() > 4 * off("resid_post", 0, -1).max()
    for name in ("attn.q", "attn.pattern", "attn.out", "mlp.out"):
        assert off(name, 5) > 1.4 * off(name, 0)
        assert off(name, 5) <= off("attn.out", 5)


def test_wv_moves_the_logits_most_of_all_kinds(models):
    exact, _ = models
    needed = exact(TEXT)
    weights = read_checkpoint(sf.demo_path()).weights
    arrays = {name: np.asarray(tensor, np.float32) for name, tensor in weights.items()}

    def off(*kinds):
        few = {
            name: sf.quantize(w, "q4_0") if w.ndim == 2 and name.split(".")[-1] in kinds else w
            for name, w in arrays.items()
        }
        found = Transformer(exact.config, few)(exact.encode(TEXT))
        return np.linalg.norm(found - needed) / np.linalg.norm(needed)

    kinds = ["embed"], ["wq", "wk"], ["wv"], ["wo"], ["gate", "up"], ["down"], ["lm_head"]
    assert max(kinds, key=lambda kind: off(*kind)) == ["wv"]
