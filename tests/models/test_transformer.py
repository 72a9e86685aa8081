"""The transformer: equal with and without a cache, and every activation open to the eye. That it
computes the same as transformers stands in test_checkpoints.py."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from checkpoints import GEMMA, GPT2, MIXED, OLMO2, TINY, random_model, random_weights, tiny_config
from conftest import assert_threads_change_no_bit, same_bits
from simdformer.models import KVCache, ModelConfig, Transformer
from simdformer.text import LanguageModel

# Logits are of the order of 3, float32 arithmetic all the way: a few hundred roundings of 6e-8,
# relative to the largest.
FLOAT32 = 2e-5
IDS = np.array([7, 0, 299, 12, 12, 45, 101, 250, 3, 77, 5, 64, 128])


def make(**how):
    return random_model(**how)[0]


def assert_logits(got, want, tolerance=FLOAT32):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    worst = np.abs(got - want).max(initial=0) / np.abs(want).max(initial=1)
    assert worst <= tolerance, f"off by {worst:.2e} of the largest logit, more than {tolerance:g}"


def test_interleaved_rope_is_half_rope_on_permuted_rows():
    """Row pairs (i, i + D/2) of wq and wk put side by side: what conversion between the formats
    does."""
    half = tiny_config(rope_layout="half")
    weights = random_weights(np.random.default_rng(2), half)
    permuted = dict(weights)
    for name, tensor in weights.items():
        if name.endswith(("wq", "wk")):
            heads = tensor.reshape(-1, 2, half.head_dim // 2, half.hidden_size)
            permuted[name] = heads.swapaxes(1, 2).reshape(tensor.shape)
    interleaved = dataclasses.replace(half, rope_layout="interleaved")
    assert_logits(Transformer(interleaved, permuted)(IDS), Transformer(half, weights)(IDS))
    assert (
        np.abs(Transformer(interleaved, weights)(IDS) - Transformer(half, weights)(IDS)).max() > 0.1
    )


# ---- with and without a cache --------------------------------------------------------------------


@pytest.fixture(
    params=[{}, {"sliding_window": 4}, {"qkv_bias": True, "qk_norm": True}, GEMMA, OLMO2, GPT2],
    ids=["plain", "window", "qwen", "gemma", "olmo2", "gpt2"],
)
def model(request):
    return make(**request.param)


@pytest.mark.parametrize("chunk", [1, 2, 5, 12, 13])
def test_reading_in_pieces_gives_the_same_logits(isa, model, chunk):
    cache = model.new_cache(len(IDS))
    cache.data[...] = np.nan
    pieces = [model(IDS[start : start + chunk], cache) for start in range(0, len(IDS), chunk)]
    assert_logits(np.concatenate(pieces), model(IDS))
    assert cache.length == len(IDS)


def test_a_batch_gives_what_each_sequence_gives_alone(isa, model):
    ids = np.stack([IDS, IDS[::-1], (IDS * 7) % 300])
    together = model(ids)
    for alone, row in zip(ids, together, strict=True):
        assert_logits(row, model(alone))


def test_sequences_of_a_cache_may_differ_in_length(isa, model):
    prompts = [IDS[:5], IDS[3:4], IDS[2:10]]
    following = np.stack([IDS[-3:], IDS[:3], IDS[4:7]])
    cache = model.new_cache(16, batch=3)
    cache.data[...] = np.nan  # what is behind the end must not leak
    for index, prompt in enumerate(prompts):
        model(prompt, cache.sequence(index))
    assert cache.lengths.tolist() == [5, 1, 8]
    together = np.concatenate(
        [model(following[:, :2], cache), model(following[:, 2:], cache)], axis=1
    )
    assert cache.lengths.tolist() == [8, 4, 11]
    for prompt, more, logits in zip(prompts, following, together, strict=True):
        assert_logits(logits, model(np.concatenate([prompt, more]))[-3:])


def test_only_the_last_logits_on_request(model):
    everything = model(IDS)
    for n in (1, 4, 13, 100):
        np.testing.assert_array_equal(model(IDS, logits_to_keep=n), everything[-n:])
    assert model(IDS[None], logits_to_keep=2).shape == (1, 2, 300)
    with pytest.raises(ValueError, match="model: logits_to_keep is 0, needs None"):
        model(IDS, logits_to_keep=0)


def test_bits_do_not_depend_on_the_number_of_threads(isa, model):
    assert_threads_change_no_bit(lambda: model(np.stack([IDS] * 4)), (2, 3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_cache_of_16_bits_is_close(model, dtype):
    """Keys and values are rounded once: 2^-9 for bfloat16, 2^-11 for float16, relative to each."""
    cache = model.new_cache(16, dtype=dtype)
    assert cache.nbytes * 2 == model.new_cache(16).nbytes
    logits = np.concatenate([model(IDS[:6], cache), model(IDS[6:], cache)])
    assert_logits(logits, model(IDS), tolerance=3e-2 if dtype == "bfloat16" else 4e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_of_16_bits_are_rounded_once(isa, dtype):
    """The same as rounding the weights first: arithmetic stays float32."""
    model, weights = random_model()
    config = model.config
    rounded = {name: w.astype(dtype).astype(np.float32) for name, w in weights.items()}
    assert_logits(Transformer(config, weights, dtype=dtype)(IDS), Transformer(config, rounded)(IDS))
    stored = {name: w.astype(dtype) for name, w in weights.items()}
    assert same_bits(
        Transformer(config, stored)(IDS), Transformer(config, weights, dtype=dtype)(IDS)
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_activations_of_16_bits(dtype):
    """Every kernel rounds its result to 16 bits; logits come out as float32 all the same."""
    logits = make(dtype=dtype, activations=dtype)(IDS)
    assert logits.dtype == np.float32
    assert_logits(logits, make()(IDS), tolerance=0.15 if dtype == "bfloat16" else 0.02)
    assert np.array_equal(logits, logits.astype(dtype).astype(np.float32))


def test_rows_of_different_lengths_are_several_texts(model):
    ragged = [[1, 5, 6], [1, 2]]
    for ids in (ragged, [tuple(row) for row in ragged], [[], [1]]):
        with pytest.raises(ValueError, match=r"model: ids have rows of \d, \d ids, needs"):
            model(ids)
    whole = LanguageModel(model)
    for row, logits in zip(ragged, whole(ragged), strict=True):
        assert same_bits(logits, model(row))
    logits, traces = whole.run_with_cache(ragged, "embed")
    assert [len(trace["embed"]) for trace in traces] == [len(row) for row in logits] == [3, 2]
    with pytest.raises(ValueError, match="model: cache holds one text that goes on"):
        whole(ragged, model.new_cache())


def test_no_ids_give_no_logits(model):
    assert model([]).shape == model([], model.new_cache()).shape == (0, 300)
    assert model(np.zeros((2, 0), np.int64)).shape == (2, 0, 300)


# ---- the cache -----------------------------------------------------------------------------------


def test_the_cache_is_head_major(model):
    cache = model.new_cache(10, batch=2, dtype=ml_dtypes.bfloat16)
    assert cache.data.shape == (3, 2, 2, 2, 32, 8)  # a page for each
    assert repr(cache) == "KVCache(0 of 10 positions, batch=2, bfloat16)"
    assert (cache.batch, cache.max_seq_len, cache.length) == (2, 10, 0)
    assert model.new_cache().max_seq_len == 64


def test_truncate_forgets_the_end(model):
    cache = model.new_cache(20)
    model(IDS[:9], cache)
    cache.truncate(6)
    assert cache.length == 6
    assert_logits(model(IDS[6:], cache), model(IDS)[6:])
    for wrong in (14, -1, 2.5):
        with pytest.raises(ValueError, match=r"KVCache.truncate: length is .*, needs 0 to \[13\]"):
            cache.truncate(wrong)
    cache.reset()
    assert_logits(model(IDS, cache), model(IDS))


def test_a_full_cache_says_what_to_do(model):
    cache = model.new_cache(14)
    model(IDS, cache)
    message = r"KVCache: 2 more positions do not fit, 13 of 14 are filled; make room with"
    with pytest.raises(ValueError, match=message):
        model([1, 2], cache)
    assert cache.length == 13
    model([1], cache)


def test_a_cache_of_another_model_is_refused(model):
    with pytest.raises(
        ValueError, match=r"model: cache has .* = \(3, 2, 8, 2\), needs \(3, 2, 8, 1\)"
    ):
        model(IDS, model.new_cache(20, batch=2))
    with pytest.raises(ValueError, match="make one with new_cache"):
        model(IDS, make(num_layers=2).new_cache(20))


def test_caches_that_make_no_sense_are_refused(model):
    with pytest.raises(ValueError, match="KVCache: max_seq_len is 0, needs a whole number > 0"):
        model.new_cache(0)
    with pytest.raises(ValueError, match="KVCache: batch is -1"):
        model.new_cache(4, batch=-1)
    with pytest.raises(TypeError, match="KVCache: dtype is 'int8', needs one of"):
        model.new_cache(4, dtype="int8")


# ---- the trace -----------------------------------------------------------------------------------

SHAPES = {
    "resid_pre": (13, 32),
    "attn_norm": (13, 32),
    "attn.q": (13, 4, 8),
    "attn.k": (13, 2, 8),
    "attn.v": (13, 2, 8),
    "attn.q_rot": (13, 4, 8),
    "attn.k_rot": (13, 2, 8),
    "attn.scores": (4, 13, 13),
    "attn.pattern": (4, 13, 13),
    "attn.z": (13, 4, 8),
    "attn.out": (13, 32),
    "resid_mid": (13, 32),
    "mlp_norm": (13, 32),
    "mlp.gate": (13, 44),
    "mlp.up": (13, 44),
    "mlp.act": (13, 44),
    "mlp.out": (13, 32),
    "resid_post": (13, 32),
}


def test_names_and_shapes_of_a_trace():
    model = make()
    logits, trace = model.run_with_cache(IDS)
    expected = {"embed": (13, 32)}
    expected |= {f"layers.{i}.{name}": shape for i in range(3) for name, shape in SHAPES.items()}
    expected |= {"final_norm": (13, 32), "logits": (13, 300)}
    assert {name: activation.shape for name, activation in trace.items()} == expected
    assert list(trace) == list(expected)  # in the order of computation
    assert all(activation.dtype == np.float32 for activation in trace.values())
    assert same_bits(trace["logits"], logits)

    _, batched = model.run_with_cache(IDS[None])
    assert all(same_bits(batched[name], activation[None]) for name, activation in trace.items())


def test_a_trace_holds_what_was_computed(isa, model):
    logits, trace = model.run_with_cache(IDS)
    assert same_bits(logits, model(IDS))
    for i in range(3):
        layer = {
            name.removeprefix(f"layers.{i}."): x
            for name, x in trace.items()
            if name.startswith(f"layers.{i}.")
        }
        assert same_bits(layer["resid_mid"], layer["resid_pre"] + layer["attn.out"])
        assert same_bits(layer["resid_post"], layer["resid_mid"] + layer["mlp.out"])
        config, up = model.config, layer["mlp.up"]
        assert ("mlp.gate" in layer) == config.gated_mlp
        if not config.gated_mlp:
            assert same_bits(layer["mlp.act"], sf.gelu(up, approximate="tanh"))
        elif config.activation == "silu":
            assert same_bits(layer["mlp.act"], sf.swiglu(layer["mlp.gate"], up))
        else:
            gelu = sf.gelu(layer["mlp.gate"], approximate="tanh")
            np.testing.assert_allclose(layer["mlp.act"], gelu * up, rtol=1e-6)
        rotated = layer.get("attn.q_normed", layer["attn.q"]).swapaxes(0, 1)
        if config.turns(i):
            local = config.local_rope_theta is not None and config.window(i) is not None
            rotated = sf.rope(
                rotated,
                layout="interleaved",
                theta=config.local_rope_theta if local else config.rope_theta,
                rotary_dim=config.rotary_dim,
            )
        np.testing.assert_allclose(layer["attn.q_rot"], rotated.swapaxes(0, 1), rtol=0, atol=1e-6)
        np.testing.assert_allclose(
            layer["attn.pattern"], sf.softmax(layer["attn.scores"]), rtol=0, atol=1e-6
        )
        values = sf.repeat_kv(layer["attn.v"].swapaxes(0, 1), 2)
        np.testing.assert_allclose(
            layer["attn.z"].swapaxes(0, 1), layer["attn.pattern"] @ values, rtol=0, atol=1e-5
        )
        hidden = np.isneginf(layer["attn.scores"])
        window = model.config.window(i) or 13
        j, at = np.arange(13), np.arange(13)[:, None]
        np.testing.assert_array_equal(
            hidden, np.broadcast_to((j > at) | (j <= at - window), hidden.shape)
        )
    assert same_bits(trace["layers.1.resid_pre"], trace["layers.0.resid_post"])


def test_names_choose_what_is_kept():
    model = make()
    _, trace = model.run_with_cache(IDS, names="layers.1.mlp.up")
    assert list(trace) == ["layers.1.mlp.up"]
    _, trace = model.run_with_cache(IDS, names=["layers.*.attn.pattern", "embed"])
    assert list(trace) == ["embed", *(f"layers.{i}.attn.pattern" for i in range(3))]
    assert model.run_with_cache(IDS, names=[])[1] == {}
    with pytest.raises(
        KeyError, match=r"no activation is called 'layers.1.attn.queries'; near are .*layers.1.attn"
    ):
        model.run_with_cache(IDS, names=["embed", "layers.1.attn.queries"])
    with pytest.raises(KeyError, match="q_normed"):
        model.run_with_cache(IDS, names="layers.0.attn.q_normed")
    assert "layers.0.attn.k_normed" in make(qk_norm=True).run_with_cache(IDS)[1]


# ---- refusals ------------------------------------------------------------------------------------


def test_ids_that_are_none():
    model = make()
    with pytest.raises(TypeError, match="model: ids are float64, needs integers"):
        model([1.0, 2.0])
    with pytest.raises(TypeError, match="model: ids are <U5"):
        model(["hello"])
    with pytest.raises(ValueError, match=r"model: ids have shape \(\), needs \(L,\) or \(B,L\)"):
        model(3)
    for outside in (300, -1):
        with pytest.raises(IndexError, match=f"{outside}"):
            model([1, outside])
    with pytest.raises(ValueError, match="model: 65 ids are more than max_seq_len = 64"):
        model(np.zeros(65, np.int64))


def test_weights_that_do_not_fit_are_listed():
    config = tiny_config()
    weights = random_weights(np.random.default_rng(0), config)
    weights["layers.0.wv"] = weights["layers.0.wv"].T
    weights["layers.9.wq"] = weights.pop("layers.2.wq")
    with pytest.raises(ValueError, match="the weights do not fit the config") as caught:
        Transformer(config, weights)
    assert str(caught.value) == (
        "model: the weights do not fit the config: missing: layers.2.wq (32, 32), left over: "
        "layers.9.wq (32, 32), "
        "misshapen: layers.0.wv (32, 16), needs (16, 32)"
    )


@pytest.mark.parametrize(
    ("field", "value", "needed"),
    [
        ("hidden_size", 0, "a whole number > 0"),
        ("num_layers", -1, "a whole number > 0"),
        ("vocab_size", 3.0, "a whole number > 0"),
        ("max_seq_len", True, "a whole number > 0"),
        ("num_kv_heads", 3, "a divisor of num_heads = 4"),
        ("head_dim", 7, "an even number"),
        ("norm_eps", -1e-6, "finite and >= 0"),
        ("norm_eps", float("nan"), "finite and >= 0"),
        ("rope_theta", 0.0, "finite and > 0"),
        ("rope_theta", float("inf"), "finite and > 0"),
        ("rope_layout", "neox", "'half' or 'interleaved'"),
        ("rope_scaling", "yarn", "None or a dict"),
        ("tie_embeddings", 1, "True or False"),
        ("qk_norm", None, "True or False"),
        ("qk_norm_over", "heads", "'head' or 'all_heads'"),
        ("norm_placement", "pre", "'before' or 'after' or 'both'"),
        ("norm_offset", float("inf"), "finite"),
        ("activation", "gelu", "'silu' or 'gelu_tanh'"),
        ("attention_scale", 0, "None, or finite and > 0"),
        ("attention_softcap", -1.0, "None, or finite and > 0"),
        ("logit_softcap", float("nan"), "None, or finite and > 0"),
        ("local_rope_theta", 0, "None, or finite and > 0"),
        ("embed_scale", None, "finite and > 0"),
        ("residual_scale", 0.0, "finite and > 0"),
        ("logit_divisor", "2", "finite and > 0"),
        ("rotary_dim", 10, "None, or an even number from 2 to head_dim = 8"),
        ("rotary_dim", 3, "None, or an even number from 2 to head_dim = 8"),
        ("rope_layers", (True, False), "None, or a tuple of True and False for 3 layers"),
        ("rope_layers", (1, 0, 1), "None, or a tuple of True and False for 3 layers"),
        ("sliding_window", 0, "None, a whole number > 0, or a tuple of 3 such"),
        ("sliding_window", (4, None), "None, a whole number > 0, or a tuple of 3 such"),
        ("num_experts_per_tok", 7, "from 1 to num_experts"),
        ("num_experts_per_tok", 0, "from 1 to num_experts"),
        ("expert_intermediate_size", 0, "a whole number"),
        ("num_experts", -1, "a whole number >= 0"),
        ("expert_layers", (True,), "None, or a tuple of"),
    ],
)
def test_a_config_that_makes_no_sense_names_the_field(field, value, needed):
    experts = MIXED if "expert" in field else {}
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        ModelConfig(**TINY | experts | {field: value})
    assert str(caught.value).startswith(f"ModelConfig: {field} is {value!r}, needs {needed}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": 0}, "num_experts_per_tok is 3, needs nothing without num_experts"),
        ({"shared_router": True}, "shared_router is True, needs False without"),
    ],
)
def test_fields_of_a_config_that_contradict_each_other(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(**MIXED | changes)


def test_a_config_is_frozen_and_its_windows_go_by_layer():
    config = tiny_config(sliding_window=(None, 4, 8))
    assert [config.window(i) for i in range(3)] == [None, 4, 8]
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_layers = 4


@given(
    kv_heads=st.sampled_from([1, 2, 4]),
    tied=st.booleans(),
    bias=st.booleans(),
    norm=st.booleans(),
    layout=st.sampled_from(["half", "interleaved"]),
    window=st.sampled_from([None, 1, 3]),
    split=st.integers(1, 12),
)
def test_every_combination_of_switches_caches(kv_heads, tied, bias, norm, layout, window, split):
    model = make(
        num_kv_heads=kv_heads,
        tie_embeddings=tied,
        qkv_bias=bias,
        wo_bias=bias,
        qk_norm=norm,
        rope_layout=layout,
        sliding_window=window,
    )
    cache = model.new_cache(13)
    assert_logits(
        np.concatenate([model(IDS[:split], cache), model(IDS[split:], cache)]), model(IDS)
    )


def test_the_cache_needs_no_model():
    cache = KVCache(num_layers=1, num_kv_heads=1, head_dim=2, max_seq_len=3)
    assert (cache.data.dtype, cache.data.shape) == (np.float32, (1, 2, 1, 1, 32, 2))


def test_a_cache_that_no_memory_holds_is_refused():
    with pytest.raises(MemoryError, match=r"KVCache: there is no memory for 9.01e\+15 bytes"):
        KVCache(num_layers=1, num_kv_heads=1, head_dim=1024, max_seq_len=1 << 40)
