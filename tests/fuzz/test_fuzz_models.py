"""Layers, caches, models and generation with arguments at random: a result of the promised shape,
or an exception of the documented kinds with a message that says where."""

import re

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import seeds
import simdformer as sf
from hostile import OWN_ERROR, hostile, scalars
from simdformer import nn
from simdformer.models import KVCache
from simdformer.text import Sampler
from test_fuzz_arguments import EXAMPLES, REFUSALS

PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
HEADING = re.compile(r"[\w.]+(\[\d+\]|\(\))?: ")
weight = np.eye(8, dtype=np.float32)
x = np.ones((3, 8), np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    file = tmp_path_factory.mktemp("model") / "model.bin"
    file.write_bytes(seeds.llama2c_seeds()[0])
    return sf.from_pretrained(file)


def attempt(call, *arguments, **keywords):
    """The result, or None for a good refusal."""
    try:
        return call(*arguments, **keywords)
    except (*REFUSALS, KeyError) as error:
        refusal = error
    except RuntimeError as error:
        if str(error) != OWN_ERROR:
            raise
        return None
    assert HEADING.match(str(refusal).strip("'\"")) or isinstance(refusal, MemoryError), repr(
        refusal
    )
    return None


def changed(right):
    """Calls: the right arguments, up to three of them in the place of others."""
    return st.dictionaries(st.sampled_from([*right]), hostile, max_size=3).map(lambda c: right | c)


# Name -> what makes it, right arguments, what is done with it and the shape that comes out.
GQA = {"hidden_size": 8, "num_heads": 4, "num_kv_heads": 2, "wq": weight, "wo": weight}
GQA |= {"wk": weight[:4], "wv": weight[:4], "q_norm": None, "k_norm": None, "norm_eps": None}
GQA |= {"rope_layout": None, "theta": None, "inv_freq": None}
MHA = {"hidden_size": 8, "num_heads": 2} | dict.fromkeys(("wq", "wk", "wv", "wo"), weight)
attention = nn.MultiHeadAttention(**MHA)
norm = nn.RMSNorm(weight[0], 1e-5)
mlp = nn.MLP(weight, weight, weight)
LAYERS = {
    "MultiHeadAttention": (MHA, lambda layer: layer(x, x, x), (3, 8)),
    "GroupedQueryAttention": (GQA, lambda layer: layer(x), (3, 8)),
    "MLP": (dict.fromkeys(("gate", "up", "down"), weight), lambda layer: layer(x), None),
    "RMSNorm": ({"weight": weight[0], "eps": 1e-5}, lambda layer: layer(x), (3, 8)),
    "LayerNorm": ({"weight": x[0], "bias": x[0], "eps": 1e-5}, lambda layer: layer(x), (3, 8)),
    "Embedding": ({"weight": weight}, lambda layer: layer([0, 1]), None),
}


@pytest.mark.parametrize("name", LAYERS)
def test_any_layer_is_right_or_refused(name):
    right, use, shape = LAYERS[name]

    @settings(max_examples=EXAMPLES, phases=PHASES)
    @given(call=changed(right))
    def check(call):
        layer = attempt(getattr(nn, name), **call)
        result = None if layer is None else attempt(use, layer)
        assert result is None or isinstance(result, np.ndarray)
        assert result is None or shape is None or result.shape == shape

    check()


CALLS = {
    "MultiHeadAttention": (attention, {"query": x, "key": x, "value": x, "mask": None}),
    "GroupedQueryAttention": (
        nn.GroupedQueryAttention(**GQA | {"rope_layout": "half"}),
        {"x": x, "mask": None, "positions": None},
    ),
    "MLP": (mlp, {"x": x}),
    "RMSNorm": (norm, {"x": x}),
    "Embedding": (nn.Embedding(weight), {"ids": [1, 2]}),
    "KVCache": (
        KVCache,
        {"num_layers": 1, "num_kv_heads": 1, "head_dim": 4, "max_seq_len": 8, "batch": 1}
        | {"dtype": "float32"},
    ),
    "Sampler": (
        lambda **call: Sampler(**call)(np.linspace(0, 1, 7), [1]),
        {"temperature": 1.0, "top_k": 2, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.1}
        | {"seed": 1},
    ),
    "truncate": (
        KVCache(num_layers=1, num_kv_heads=1, head_dim=4, max_seq_len=8).truncate,
        {"length": 0},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_any_call_is_right_or_refused(name):
    function, right = CALLS[name]

    @settings(max_examples=EXAMPLES, phases=PHASES)
    @given(call=changed(right))
    def check(call):
        attempt(function, **call)

    check()


@settings(max_examples=EXAMPLES, phases=PHASES)
@given(data=st.data())
def test_any_question_to_a_model_is_answered_or_refused(model, data):
    cache = attempt(model.new_cache, **data.draw(changed({"max_seq_len": 8, "batch": 1})))
    right = {"ids": [1, 2, 3], "cache": cache, "logits_to_keep": None}
    logits = attempt(model, **data.draw(changed(right)))
    assert logits is None or (logits.shape[-1] == 12 and logits.dtype == np.float32)
    names = {"ids": [1, 2, 3], "names": ["layers.0.attn.q"]}
    attempt(model.run_with_cache, **data.draw(changed(names)))


GENERATE = {"prompt": [1, 2], "max_new_tokens": 3, "temperature": 1.0, "top_k": 3, "top_p": 0.9}
GENERATE |= {"min_p": 0.1, "repetition_penalty": 1.1, "seed": 1, "stop": None, "streamer": None}


@settings(max_examples=EXAMPLES, phases=PHASES)
@given(call=changed(GENERATE))
def test_any_generation_gives_ids_or_is_refused(model, call):
    new = attempt(model.generate, **call)
    if new is not None:
        flat = np.concatenate([np.ravel(part) for part in new]) if len(new) else []
        assert all(0 <= id < 12 for id in flat)


@settings(max_examples=EXAMPLES, phases=PHASES)
@given(value=scalars)
def test_any_setting_is_taken_or_refused(value):
    for take in (sf.set_num_threads, sf.set_isa, sf.num_threads, sf.use_isa):
        threads, isa = sf.get_num_threads(), sf.isa()
        try:
            if not isinstance(value, int) or value < 10_000:  # or there would be as many threads
                attempt(take, value)
        finally:
            sf.set_num_threads(threads)
            sf.set_isa(isa)
