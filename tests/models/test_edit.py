"""Activations changed on their way: ablation, patching, and what follows from another pattern."""

import numpy as np
import pytest

from checkpoints import GEMMA, GPT2, OLMO2, random_model
from conftest import same_bits
from simdformer.models import Transformer, trace_names

IDS = np.array([7, 0, 299, 12, 12, 45, 101, 250, 3, 77, 5, 64, 128])
OTHERS = np.array([9, 9, 1, 200, 31, 45, 6, 250, 3, 70, 5, 63, 127])

# Two ways to the same logits, which are of the order of 3: float32 sums in another order. In 16
# bits every kernel rounds its result, and so does every edit.
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.15, "float16": 0.02}

MODELS = {
    "plain": {},
    "mqa": {"num_kv_heads": 1},
    "qwen3": {"qk_norm": True, "num_kv_heads": 4, "head_dim": 12},
    "biases": {"qkv_bias": True, "wo_bias": True, "rope_layout": "half"},
    "window": {"sliding_window": 4, "tie_embeddings": False},
    "gemma": GEMMA,
    "olmo2": OLMO2,
    "gpt2": GPT2,
}


def make(name="plain", activations="float32"):
    return random_model(dtype=activations, activations=activations, **MODELS[name])[0]


def close(found, needed, tolerance=2e-5):
    found, needed = np.asarray(found, np.float64), np.asarray(needed, np.float64)
    assert found.shape == needed.shape
    assert np.abs(found - needed).max() <= tolerance * max(1, np.abs(needed).max())


# ---- nothing changed -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("activations", TOLERANCE)
@pytest.mark.parametrize("ids", [IDS, np.stack([IDS, OTHERS])], ids=["alone", "batch"])
def test_edits_that_change_nothing_change_no_bit(name, activations, ids):
    model = make(name, activations)
    expected, trace = model.run_with_cache(ids)
    for nothing in (lambda x: None, lambda x: x, lambda x: x.copy()):
        assert same_bits(model(ids, edit={"*": nothing}), expected)
        logits, edited = model.run_with_cache(ids, edit={"*": nothing})
        assert same_bits(logits, expected)
        assert list(edited) == list(trace)
        assert all(same_bits(edited[key], trace[key]) for key in trace)


@pytest.mark.parametrize("ids", [[], np.zeros((2, 0), int), np.zeros((0, 3), int)])
def test_nothing_may_be_edited_too(ids):
    model = make("mqa")
    edit = {"*": lambda x: x + 1, "layers.*.attn.pattern": lambda x: x * 2}
    logits, trace = model.run_with_cache(ids, edit=edit)
    assert logits.shape == (*np.shape(ids), 300)
    assert trace.keys() == set(trace_names(model.config))


def test_models_of_float64_are_edited_in_float64():
    model, dtypes = make("plain", "float64"), set()
    edited = model(IDS, edit={"layers.*": lambda x: dtypes.add(x.dtype), "embed": lambda x: x})
    assert same_bits(edited, model(IDS))
    assert dtypes == {np.dtype(np.float64)}


def test_functions_are_given_what_the_trace_holds():
    for model, ids in ((make("qwen3"), IDS), (make("mqa", "bfloat16"), np.stack([IDS, OTHERS]))):
        names = trace_names(model.config, on_request=True)
        _, trace = model.run_with_cache(ids, names)
        for name in names:
            seen = []
            model(ids, edit={name: lambda x, seen=seen: seen.append(x.copy())})
            assert same_bits(seen[0], trace[name])


# ---- what follows from a change ------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_every_activation_can_be_changed_and_is_used_from_there_on(name, rng):
    model = make(name)
    names = trace_names(model.config, on_request=True)
    before, trace = model.run_with_cache(IDS, names)
    for changed in names:
        by = rng.normal(size=trace[changed].shape).astype(np.float32)
        if changed.endswith("pattern"):
            by = np.abs(by)
        if changed.endswith("scale"):
            by = np.abs(by)
        logits, after = model.run_with_cache(IDS, names, edit={changed: lambda x, by=by: x + by})
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(after[changed], trace[changed] + by)
        assert np.abs(logits - before).max() > 1e-3, changed
        for key in names[: names.index(changed)]:
            assert same_bits(after[key], trace[key]), f"{key} is computed before {changed}"
        # Whoever writes into the copy and returns nothing gets the same.
        assert same_bits(logits, model(IDS, edit={changed: lambda x, by=by: add_to(x, by)}))


def add_to(x, by):
    x += by


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("activations", TOLERANCE)
@pytest.mark.parametrize("layer", [0, 2])
def test_ablating_a_head_is_zeroing_its_columns_of_wo(name, activations, layer):
    how = {"dtype": activations, "activations": activations}
    model, weights = random_model(**how, **MODELS[name])
    config, head = model.config, 1
    columns = slice(head * config.head_dim, (head + 1) * config.head_dim)
    zeroed = dict(weights)
    zeroed[f"layers.{layer}.wo"] = weights[f"layers.{layer}.wo"].copy()
    zeroed[f"layers.{layer}.wo"][:, columns] = 0
    expected = Transformer(config, zeroed, **how)(IDS)

    def ablate(z):
        z[..., head, :] = 0

    def ablate_pattern(pattern):
        pattern[..., head, :, :] = 0

    for edit in (
        {f"layers.{layer}.attn.z": ablate},
        {f"layers.{layer}.attn.result": ablate},
        {f"layers.{layer}.attn.pattern": ablate_pattern},
    ):
        close(model(IDS, edit=edit), expected, TOLERANCE[activations])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("activations", TOLERANCE)
def test_patching_the_last_residual_gives_the_other_prompts_logits(name, activations):
    model = make(name, activations)
    expected, other = model.run_with_cache(OTHERS)
    assert same_bits(
        model(IDS, edit={"layers.2.resid_post": lambda x: other["layers.2.resid_post"]}), expected
    )
    patched = model(IDS, edit={"embed": lambda x: other["embed"]})
    assert same_bits(patched, expected)
    assert not same_bits(model(IDS), expected)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ids", [IDS, np.stack([IDS, OTHERS])], ids=["alone", "batch"])
def test_another_pattern_is_computed_with_as_numpy_does(name, ids, rng):
    model = make(name)
    heads, kv_heads = model.config.num_heads, model.config.num_kv_heads
    pattern = rng.random((*ids.shape[:-1], heads, 13, 13), np.float32)
    _, trace = model.run_with_cache(ids, edit={"layers.1.attn.pattern": lambda x: pattern})
    assert same_bits(trace["layers.1.attn.pattern"], pattern)
    values = np.repeat(trace["layers.1.attn.v"].swapaxes(-2, -3), heads // kv_heads, axis=-3)
    close(trace["layers.1.attn.z"], (pattern @ values).swapaxes(-2, -3))


@pytest.mark.parametrize("name", MODELS)
def test_other_scores_go_through_softmax(name, rng):
    model = make(name)
    scores = rng.normal(size=(4, 13, 13)).astype(np.float32)
    scores[0, 5] = -np.inf  # sees nothing
    scores[1, :, 3] = -np.inf
    _, trace = model.run_with_cache(IDS, edit={"layers.0.attn.scores": lambda x: scores})
    exponentials = np.exp(np.float64(scores) - scores.max(-1, keepdims=True, initial=-1e9))
    with np.errstate(invalid="ignore"):
        expected = exponentials / exponentials.sum(-1, keepdims=True)
    expected[0, 5] = 0
    close(trace["layers.0.attn.pattern"], expected)
    assert not trace["layers.0.attn.z"][5, 0].any()
    # Scores as they are and one of them gone: as if the key had been hidden.
    hide = hide_key(2)
    _, trace = model.run_with_cache(IDS, edit={"layers.0.attn.scores": hide})
    assert not trace["layers.0.attn.pattern"][:, 3:, 2].any()
    rows = trace["layers.0.attn.pattern"].sum(-1)
    np.testing.assert_allclose(rows[:, 3:], 1, atol=1e-6)


def hide_key(key):
    def edit(scores):
        scores[..., key] = -np.inf

    return edit


def test_scores_and_pattern_and_z_are_changed_in_this_order():
    model, seen = make(), []
    _, trace = model.run_with_cache(
        IDS,
        edit={
            "layers.0.attn.z": lambda z: seen.append(z.copy()),
            "layers.0.attn.pattern": lambda pattern: pattern * np.float32(0.5),
            "layers.0.attn.scores": lambda scores: np.where(scores > -1e30, 0, scores),
        },
    )
    counts = np.arange(1, 14, dtype=np.float32)
    close(trace["layers.0.attn.pattern"][0, :, 0], 0.5 / counts)
    values = trace["layers.0.attn.v"].cumsum(0) / counts[:, None, None] / 2
    close(seen[0], np.repeat(values, 2, axis=1))


def test_several_edits_of_one_activation_follow_each_other():
    model = make()
    expected = model(IDS, edit={"layers.1.mlp.out": lambda x: (x + 1) * 2})
    edit = {"layers.1.mlp.ou?": lambda x: x + 1, "layers.1.mlp.out": lambda x: x * 2}
    assert same_bits(model(IDS, edit=edit), expected)


# ---- with a cache, in generation -----------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_edits_reach_the_cache(name, dtype):
    """Keys and values of the first piece are edited; the second reads them as they were left."""
    model = make(name)

    def double(x):
        return x * 2

    edit = {"layers.*.attn.v": double, "layers.*.attn.k_rot": double}
    cache = model.new_cache(13, dtype=dtype)
    pieces = [model(IDS[:8], cache, edit=edit), model(IDS[8:], cache, edit=edit)]
    close(np.concatenate(pieces), model(IDS, edit=edit), 3e-2 if dtype == "bfloat16" else 2e-5)
    cache.reset()
    model(IDS[:8], cache, edit=edit)
    assert np.abs(model(IDS[8:], cache) - pieces[1]).max() > 1e-2


def test_the_pattern_of_sequences_of_different_length_sees_no_garbage():
    model = make("mqa")
    prompts = [IDS[:5], IDS[:2]]
    cache = model.new_cache(16, batch=2)
    cache.data[...] = np.nan
    for index, prompt in enumerate(prompts):
        model(prompt, cache.sequence(index))
    scale = np.float32(0.5)
    edit = {"layers.*.attn.pattern": lambda pattern: pattern * scale}
    together = model(OTHERS[:6].reshape(2, 3), cache, edit=edit)
    for index, prompt in enumerate(prompts):
        alone = model.new_cache(16)
        model(prompt, alone)
        close(together[index], model(OTHERS[3 * index :][:3], alone, edit=edit))


def test_logits_to_keep_is_what_the_last_edits_see():
    model, shapes = make(), []
    names = ("layers.2.resid_post", "final_norm", "logits")
    edit = {name: lambda x: shapes.append(x.shape) for name in names}
    model(IDS, logits_to_keep=2, edit=edit)
    assert shapes == [(13, 32), (2, 32), (2, 300)]


def test_generation_takes_edits(demo):
    prompt = "Once upon a time"
    plain = demo.generate(prompt, max_new_tokens=8)
    assert demo.generate(prompt, max_new_tokens=8, edit={"*": lambda x: None}) == plain
    ids = demo.tokenizer.encode(prompt)
    shapes = []
    demo.generate(ids, max_new_tokens=3, edit={"embed": lambda x: shapes.append(x.shape)})
    assert shapes == [(len(ids), 128), (1, 128), (1, 128)]
    del shapes[:]
    demo.generate(
        [ids, ids[:2]], max_new_tokens=2, edit={"embed": lambda x: shapes.append(x.shape)}
    )
    assert shapes == [(len(ids), 128), (1, 128), (2, 128), (1, 128)]
    only = 300

    def favour(logits):
        logits[..., only] = 1e9

    assert demo.generate(ids, max_new_tokens=3, edit={"logits": favour}) == [only] * 3
    assert demo.generate([ids, ids], max_new_tokens=2, edit={"logits": favour}) == [[only] * 2] * 2


# ---- what is no edit -----------------------------------------------------------------------------


def test_unknown_names_are_refused_with_near_ones():
    model = make()
    cache = model.new_cache(20)
    for name, near in (
        ("layers.1.attn.patern", "layers.1.attn.pattern"),
        ("layers.9.mlp.out", "layers.0.mlp.out"),
        ("layers.0.attn.q_normed", "q_rot"),
        ("blocks.*", ""),
    ):
        with pytest.raises(KeyError) as caught:
            model(IDS, cache, edit={name: lambda x: x})
        message = caught.value.args[0]
        assert message.startswith(f"edit: no activation is called {name!r}; near are ")
        assert near in message
    assert cache.length == 0


def test_what_comes_back_must_fit():
    model = make()
    cache = model.new_cache(20)
    for wrong, found in (
        (lambda x: x[:3], r"float32 \(3, 4, 8\)"),
        (lambda x: x.astype(np.float64), r"float64 \(13, 4, 8\)"),
        (lambda x: x.tolist(), r"list \(13, 4, 8\)"),
        (lambda x: 0.0, r"float \(\)"),
    ):
        with pytest.raises(
            ValueError,
            match=r"edit: the function for 'layers.1.attn.z' gave " + found + ", needs float32 "
            r"\(13, 4, 8\), or None",
        ):
            model(IDS, cache, edit={"layers.1.attn.z": wrong})
    assert cache.length == 0
    assert same_bits(model(IDS, cache), model(IDS))
    with pytest.raises(TypeError, match="edit: 'embed' is 'x', needs an array, or a f"):
        model(IDS, edit={"embed": "x"})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_an_error_on_the_way_leaves_the_cache_as_it_was(name, layer):
    model = make(name)
    cache = model.new_cache(20)
    model(IDS[:4], cache)

    def fail(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model(IDS[::-1], cache, edit={f"layers.{layer}.mlp.up": fail})
    assert cache.length == 4
    close(model(IDS[4:], cache), model(IDS)[4:])
