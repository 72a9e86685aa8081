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


def test_four_bits_decide_behind_a_name_that_the_model_never_met(models):
    apart = further(models, TEXT)
    tokens = models[0].tokenizer.to_str_tokens(TEXT)
    worst = int(apart.argmax())
    assert (tokens[worst], worst) == (" T", len(tokens) - 5)
    assert apart[worst] > 1
    assert np.sort(apart)[:-4].mean() < 0.01
    assert further(models, TEXT.replace("Tom", "Ben")).max() < 0.05


def test_errors_do_not_pile_up_in_the_stream_but_in_attention(models):
    right, few = (model.run_with_cache(TEXT)[1] for model in models)

    def off(name, layer):
        needed = right[f"layers.{layer}.{name}"]
        return np.linalg.norm(few[f"layers.{layer}.{name}"] - needed) / np.linalg.norm(needed)

    assert off("resid_post", 5) < 1.2 * off("resid_post", 0)
    assert off("attn.out", 5) > 1.4 * off("attn.out", 0)
    assert off("mlp.out", 5) < 1.2 * off("mlp.out", 0)
