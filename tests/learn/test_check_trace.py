"""check_trace finds the first wrong activation of a learner's own model, names and explains it."""

import dataclasses
import re
from functools import cache

import numpy as np
import pytest
import torch

import simdformer as sf
import tiny_models
from cases import llama3_scaling
from checkpoints import GEMMA, GPT2, OLMO2, random_weights, tiny_config
from conftest import bfloat16
from learners import learner
from simdformer.learn.catalogue import CATALOGUE
from simdformer.learn.check.problem import evaluate
from simdformer.learn.check.report import YELLOW
from simdformer.learn.check.rounding import Noise
from simdformer.learn.mistakes.model import variable
from simdformer.learn.program import Run
from simdformer.learn.trace.report import TraceReport
from simdformer.learn.trace.steps import ModelSteps
from simdformer.learn.trace.tensors import Held
from simdformer.models import Transformer, weight_shapes
from simdformer.text import LanguageModel

SIZES = {
    "hidden_size": 24,
    "num_layers": 3,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 4,
    "intermediate_size": 40,
    "vocab_size": 50,
    "max_seq_len": 32,
    "rope_theta": 500000.0,
    "rope_layout": "half",
}
# For mistakes of every kind: norms of q and k, as many KV heads, an lm_head of its own.
EVERY = {"qk_norm": True, "num_kv_heads": 6, "tie_embeddings": False}
DIFFERENCES = {
    "llama": {"rope_layout": "interleaved", "tie_embeddings": False},
    "qwen3": {"head_dim": 8, "qk_norm": True},
    "qwen2": {"qkv_bias": True, "wo_bias": True},
    "mistral": {"tie_embeddings": False, "sliding_window": (None, 3, 3)},
    "llama3.1": {"tie_embeddings": False, "rope_scaling": llama3_scaling(32)},
    "all": EVERY,
    "biased": EVERY | {"positions": "learned", "qkv_bias": True, "wo_bias": True, "mlp_bias": True},
    "clamped": EVERY | {"activation": "clamped_swiglu", "swiglu_limit": 1.0},
    "mixture": EVERY
    | {
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "expert_intermediate_size": 20,
        "shared_intermediate_size": 40,
        "shared_router": True,
        "mlp_bias": True,
    },
}
CONFIGS = {name: tiny_config(**SIZES | changes) for name, changes in DIFFERENCES.items()}
SPECIAL = ("all", "biased", "clamped", "mixture")  # for mistakes of every kind
IDS = [3, 14, 15, 9, 2, 6, 5]


def raw_weights(config):
    """Random, and large enough for attention that is far from uniform."""
    rng = np.random.default_rng(11)
    weights = {}
    for name, shape in weight_shapes(config).items():
        values = rng.standard_normal(shape)
        if "norm" in name:
            values = 1 + values / 4
        elif len(shape) == 2 and name != "embed":
            values = values * 1.5 / shape[1] ** 0.5
        weights[name] = values.astype(np.float32)
    return weights


@pytest.fixture(scope="module", params=[name for name in CONFIGS if name not in SPECIAL])
def config(request):
    return CONFIGS[request.param]


@cache
def made(name):
    """A model of one of the configs, and its weights."""
    weights = raw_weights(CONFIGS[name])
    return Transformer(CONFIGS[name], weights), weights


@pytest.fixture
def llama():
    return made("llama")


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# ---- right is right ------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, bfloat16], ids=str)
def test_a_right_model_is_right_and_its_rounding_is_not_blamed(config, kind):
    weights = raw_weights(config)
    if np.dtype(kind).itemsize == 2:
        weights = {name: w.astype(kind).astype(np.float32) for name, w in weights.items()}
    model = Transformer(config, weights)
    mine = learner(config, weights, IDS, dtype=kind)
    report = sf.check_trace(mine, model, IDS)
    assert report.ok, report
    assert report
    assert report.raise_if_wrong() is report
    assert set(report.checked) == set(mine)
    assert (report.unknown, report.missing, report.first_wrong) == ({}, (), None)
    wide = {name: array.astype(np.float32) for name, array in mine.items()}
    assert sf.check_trace(wide, model, IDS).ok  # rounded to 16 bits, then widened
    for few in (["logits"], [name for name in mine if name.endswith(("resid_post", "attn.z"))]):
        assert sf.check_trace({name: wide[name] for name in few}, model, IDS).ok


def test_the_models_own_trace_is_right(config):
    model = Transformer(config, raw_weights(config))
    for ids in (IDS, [IDS], [IDS, IDS[::-1]], [7], np.array([[1], [2]])):
        _, trace = model.run_with_cache(ids)
        report = sf.check_trace(trace, model, ids)
        assert report.ok, report
        assert list(report.checked) == list(trace)


def test_the_drift_of_float16_really_is_larger_than_what_one_step_may_be_off():
    """Or the tests above would show nothing."""
    config = CONFIGS["llama"]
    weights = {n: w.astype(np.float16).astype(np.float32) for n, w in raw_weights(config).items()}
    model = Transformer(config, weights)
    mine = learner(config, weights, IDS, dtype=np.float16)
    _, right = model.run_with_cache(IDS)
    with pytest.raises(AssertionError, match="is not close"):
        sf.testing.assert_close(mine["logits"], right["logits"])


def test_a_language_model_is_taken_as_well(llama):
    model, _ = llama
    _, trace = model.run_with_cache(IDS)
    assert sf.check_trace(trace, LanguageModel(model), IDS).ok


# ---- mistakes ------------------------------------------------------------------------------------

# model, slip, where it shows first, words of the diagnosis
MISTAKES = [
    ("llama", "cut without transpose", "layers.0.attn.q", "split without a transpose"),
    ("llama", "wq not transposed", "layers.0.attn.q", "not transposed"),
    ("llama", "wq of layer 0", "layers.1.attn.q", "layer 0's wq"),
    ("llama", "attn_norm of layer 0", "layers.1.attn_norm", "layer 0's attn_norm"),
    ("llama", "mlp_norm for attn_norm in layer 1", "layers.1.attn_norm", "mlp_norm"),
    ("llama", "k for v", "layers.0.attn.v", "k for v: this is what wk gives"),
    ("llama", "v of the stream", "layers.0.attn.v", "from the stream, not from its norm"),
    ("llama", "layout swapped", "layers.0.attn.q_rot", "half and interleaved are swapped"),
    ("llama", "rope before split", "layers.0.attn.q_rot", "before the heads are split"),
    ("qwen2", "rope before split", "layers.0.attn.q_rot", "before the heads are split"),
    ("llama", "rope backwards", "layers.0.attn.q_rot", "turned the other way round"),
    ("llama", "theta of llama 2", "layers.0.attn.q_rot", "theta is 10,000"),
    ("llama", "positions from 1", "layers.0.attn.q_rot", "one too high"),
    ("llama", "k not rotated", "layers.0.attn.k_rot", "not turned at all"),
    ("llama", "no scale", "layers.0.attn.scores_unmasked", "not scaled"),
    ("llama", "scaled twice", "layers.0.attn.scores_unmasked", "scaled twice"),
    ("llama", "heads tiled", "layers.0.attn.scores_unmasked", "tiled"),
    ("llama", "no mask", "layers.0.attn.scores", "mask is forgotten"),
    ("llama", "mask off by one", "layers.0.attn.scores", "one key too many"),
    ("llama", "softmax over queries", "layers.0.attn.pattern", "over the queries"),
    ("llama", "keys as values", "layers.0.attn.z", "key is used as the value"),
    ("llama", "merged without transpose", "layers.0.attn.out", "merged without a transpose"),
    ("llama", "wo of layer 2", "layers.0.attn.out", "layer 2's wo"),
    ("llama", "no residual in layers.1.", "layers.1.resid_mid", "residual is forgotten"),
    ("llama", "residual of the norm", "layers.0.resid_mid", "normed value, not to the stream"),
    ("llama", "parallel blocks", "layers.0.mlp_norm", "attention is lost"),
    ("llama", "mlp_norm of layer 2", "layers.0.mlp_norm", "layer 2's mlp_norm"),
    ("llama", "mlp of layer 0", "layers.1.mlp.gate", "layer 0's gate (w1)"),
    ("llama", "up of layer 2", "layers.0.mlp.up", "layer 2's up (w3)"),
    ("llama", "gate and up swapped", "layers.0.mlp.gate", "what up (w3) gives"),
    ("llama", "relu for silu", "layers.0.mlp.act", "relu instead of silu"),
    ("llama", "down of layer 0", "layers.1.mlp.out", "layer 0's down (w2)"),
    ("llama", "mlp residual from the input", "layers.0.resid_post", "attention is lost"),
    ("llama", "mlp residual from the embedding", "layers.0.resid_post", "layer's input"),
    ("llama", "no final norm", "final_norm", "final norm is forgotten"),
    ("llama", "head tied", "logits", "but there is an lm_head"),
    ("qwen3", "k_norm for q", "layers.0.attn.q_normed", "normalised with k_norm"),
    ("qwen3", "layout swapped", "layers.0.attn.q_rot", "half and interleaved are swapped"),
    ("qwen3", "q_norm forgotten", "layers.0.attn.q_rot", "without its norm"),
    ("qwen3", "k for v", "layers.0.attn.v", "k for v"),
    ("qwen3", "no final norm", "final_norm", "final norm is forgotten"),
    ("qwen2", "bias forgotten", "layers.0.attn.q", "bias is forgotten"),
    ("qwen2", "k for v", "layers.0.attn.v", "k for v"),
    ("mistral", "window forgotten", "layers.1.attn.scores", "window"),
    ("llama3.1", "rope scaling forgotten", "layers.0.attn.q_rot", "scaling"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "slip", "first", "words"), MISTAKES)
def test_a_mistake_is_found_where_it_is_made_and_named(name, slip, first, words):
    config, (model, weights) = CONFIGS[name], made(name)
    mine = learner(config, weights, IDS, slip)
    report = sf.check_trace(mine, model, IDS)
    assert not report
    assert report.first_wrong == first, report
    assert any(words in mistake.title for mistake in report.diagnosis), report
    # What comes before it in the order of computation is right, what comes after is left alone.
    order = [n for n in learner(config, weights, IDS) if n in (*report.checked, first)]
    assert order[-1] == first
    assert set(report.checked) | {first} | set(report.not_checked) == set(mine)
    assert all(name in report.checked for name in report.after)
    assert report.after
    with pytest.raises(sf.CheckError, match="is wrong while"):
        report.raise_if_wrong()


SPARSE = [  # names that are left, slip, where it shows, words
    ("resid_post", "mlp of layer 0", "layers.1.resid_post", "gate, up and down (w1, w3, w2)"),
    ("resid_post", "k for v", "layers.0.resid_post", "k for v"),
    ("resid_post", "layout swapped", "layers.0.resid_post", "half and interleaved are swapped"),
    ("resid_post", "rope before split", "layers.0.resid_post", "before the heads are split"),
    ("resid_post", "heads tiled", "layers.0.resid_post", "tiled"),
    ("resid_post", "no residual in layers.1.", "layers.1.resid_post", "residual is forgotten"),
    ("attn.out", "mlp of layer 0", "layers.2.attn.out", "of layer 0"),
    ("attn.out", "gate and up swapped", "layers.1.attn.out", "swapped"),
    ("logits", "no final norm", "logits", "final norm is forgotten"),
    ("logits", "mlp of layer 0", "logits", "gate, up and down (w1, w3, w2)"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("left", "slip", "first", "words"), SPARSE)
def test_a_mistake_is_found_when_the_steps_around_it_are_not_there(llama, left, slip, first, words):
    model, weights = llama
    mine = learner(CONFIGS["llama"], weights, IDS, slip)
    mine = {name: array for name, array in mine.items() if name.endswith(left)}
    report = sf.check_trace(mine, model, IDS)
    assert report.first_wrong == first
    assert any(words in mistake.title for mistake in report.diagnosis), report


def test_two_mistakes_one_after_the_other(llama):
    """The second shows once the first is mended; a step is judged by the learner's own values."""
    model, weights = llama
    mine = learner(CONFIGS["llama"], weights, IDS, "no scale", "no final norm")
    assert sf.check_trace(mine, model, IDS).first_wrong == "layers.0.attn.scores_unmasked"
    mine = learner(CONFIGS["llama"], weights, IDS, "no final norm")
    assert sf.check_trace(mine, model, IDS).first_wrong == "final_norm"


def test_few_bits_on_the_way_are_no_mistake(llama):
    model, weights = llama
    mine = learner(CONFIGS["llama"], weights, IDS)
    x = mine["layers.0.resid_pre"].astype(np.float16)
    eps = np.float16(CONFIGS["llama"].norm_eps)
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    mine["layers.0.attn_norm"] = normed.astype(np.float32) * weights["layers.0.attn_norm"]
    mine = {name: mine[name] for name in ("layers.0.resid_pre", "layers.0.attn_norm")}
    report = sf.check_trace(mine, model, IDS)
    assert report.ok, report
    assert "layers.0.attn_norm: right to float16" in repr(report)


def test_an_activation_that_16_bits_alone_would_excuse_is_nearly_right(llama):
    """One per mille is too much for float32 and little for bfloat16; larger is no better."""
    model, weights = llama
    name = "layers.1.attn.pattern"
    for share, verdict in ((1e-3, "nearly right"), (1e-2, "nearly right"), (0.3, "wrong")):
        mine = learner(CONFIGS["llama"], weights, IDS)
        mine[name] = mine[name] / (1 + np.float32(share))
        report = sf.check_trace(mine, model, IDS)
        assert not report.ok
        assert report.sentence.startswith(f"{name} is {verdict} while layers.1.attn"), report
        if verdict == "wrong":
            assert report.nearly == ""
            continue
        assert report.nearly == "bfloat16" or report.nearly == "float16"
        assert repr(report).startswith(f"≈ {name} is nearly right while")
        assert f"if it is: hand it over in {report.nearly}, as it is computed" in repr(report)
        assert "dtype=" not in repr(report)
        assert YELLOW in report._repr_html_()


def test_what_nothing_explains_is_described_and_not_guessed(llama):
    model, weights = llama
    mine = learner(CONFIGS["llama"], weights, IDS)
    mine["layers.1.attn.z"] = mine["layers.1.attn.z"].copy()
    mine["layers.1.attn.z"][3, 2] = np.sin(mine["layers.1.attn.z"][3, 2] * 9)
    report = sf.check_trace(mine, model, IDS)
    assert report.first_wrong == "layers.1.attn.z"
    assert report.diagnosis == ()
    assert "position 3" in repr(report)
    assert "head 2" in repr(report)


def test_a_search_that_takes_too_long_is_given_up(llama, monkeypatch):
    monkeypatch.setattr("simdformer.learn.trace.judge.SECONDS", 0.0)
    model, weights = llama
    mine = learner(CONFIGS["llama"], weights, IDS, "no scale")
    report = sf.check_trace({"logits": mine["logits"]}, model, IDS)
    assert report.first_wrong == "logits"
    assert report.diagnosis == ()
    assert re.search(r"(\d+) of \1 known mistakes were not tried", repr(report))


def test_a_factor_of_all_logits_is_no_rounding_and_takes_no_time(llama, monkeypatch):
    """No rounding of a single step is measured for it: it would take longer than the search."""
    model, weights = llama
    right = learner(CONFIGS["llama"], weights, IDS)["logits"]

    def measured(self, dtype):
        raise AssertionError("each step is rounded")

    monkeypatch.setattr(Noise, "_of_single_steps", measured)
    report = sf.check_trace({"logits": right * np.float32(1.005)}, model, IDS)
    assert report.report.nearly == "float16"


@cache
def with_many_ids(tied):
    """A model with a large vocabulary, and its weights."""
    config = dataclasses.replace(CONFIGS["qwen3"], vocab_size=3000, tie_embeddings=tied)
    weights = raw_weights(config)
    return Transformer(config, weights), weights


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("slip", "name"),
    [
        ("theta of llama 2", "rope_frequencies.theta_10000"),
        ("k for v", "layer.wk_for_wv"),
        ("mlp of layer 0", "layer.mlp_of_layer_0"),
        ("no final norm", "model.no_final_norm"),
        ("no mask", "attention.no_causal"),
    ],
)
def test_mistakes_are_told_from_logits_without_copies_of_the_weights(slip, name, tied, monkeypatch):
    model, weights = with_many_ids(tied)
    mine = learner(model.config, weights, IDS, slip)
    seen = []
    multiply = Held.__rmatmul__

    def watched(self, x):
        seen.append(self.shape)
        return multiply(self, x)

    monkeypatch.setattr(Held, "__rmatmul__", watched)
    monkeypatch.setattr("simdformer.learn.trace.tensors.MOST", 40 * 24)
    report = sf.check_trace({"logits": mine["logits"]}, model, IDS)
    assert name in [mistake.name for mistake in report.diagnosis], report
    assert report.report.shape == (7, 3000)
    assert 3000 not in [n for shape in seen for n in shape], "all of the vocabulary is multiplied"


@pytest.mark.slow
def test_some_of_a_large_vocabulary_answer_for_all_of_it(monkeypatch):
    model, weights = with_many_ids(True)
    right = learner(model.config, weights, IDS)["logits"]
    assert sf.check_trace({"logits": right.astype(np.float16)}, model, IDS).ok
    with monkeypatch.context() as patch:  # no known mistake gives these, which takes long to learn
        patch.setattr("simdformer.learn.trace.judge.SECONDS", 0.01)
        for column in (0, 1234, 2999):  # one that is not among those that are looked at anyway, too
            wrong = right.copy()
            wrong[3, column] += 1
            report = sf.check_trace({"logits": wrong}, model, IDS)
            assert report.report.where.worst == (3, column)
            assert report.report.where.wrong == 1
    for name, shares in (
        ("model.probabilities", softmax(right)),
        ("model.log_probabilities", np.log(softmax(right))),
    ):
        report = sf.check_trace({"logits": shares}, model, IDS)
        assert [mistake.name for mistake in report.diagnosis] == [name], report


def test_a_long_text_is_looked_at_from_its_beginning(monkeypatch):
    """Up to the first position that is wrong; mistakes in seeing later tokens need all of it."""
    model, weights = made("llama")
    ids = np.random.default_rng(0).integers(0, 50, 30)
    lengths = []

    def watched(run, problem):
        lengths.append(problem.variables["ids"].shape[1])
        return evaluate(run, problem)

    monkeypatch.setattr("simdformer.learn.check.search.evaluate", watched)
    monkeypatch.setattr("simdformer.learn.check.search.SAMPLE", 24 * 5)
    for slip, name, most in (
        ("theta of llama 2", "rope_frequencies.theta_10000", 5),
        ("mask off by one", "attention.causal_loose", 1000),
    ):
        lengths.clear()
        mine = learner(model.config, weights, ids, slip)
        report = sf.check_trace({"logits": mine["logits"]}, model, ids)
        assert name in [mistake.name for mistake in report.diagnosis], report
        assert lengths.count(16) > 100
        assert 0 < lengths.count(30) <= most


def test_nan_and_shapes_and_no_numbers(llama):
    model, weights = llama
    right = learner(CONFIGS["llama"], weights, IDS)
    report = sf.check_trace(right | {"final_norm": right["final_norm"] * np.nan}, model, IDS)
    assert report.first_wrong == "final_norm"
    assert "NaN" in repr(report)
    report = sf.check_trace(right | {"final_norm": right["final_norm"][:-1]}, model, IDS)
    assert report.first_wrong == "final_norm"
    assert report.report.expected == (7, 24)
    assert "needs (7, 24)" in repr(report)
    report = sf.check_trace(right | {"embed": "text"}, model, IDS)
    assert report.first_wrong == "embed"


# ---- names and axes ------------------------------------------------------------------------------


def test_the_names_of_the_walkthrough(llama):
    """Its variables after the chapters on layer 0, with v = k as it is printed there."""
    model, weights = llama
    config = CONFIGS["llama"]
    right = learner(config, weights, IDS)
    wrong = learner(config, weights, IDS, "k for v")
    names = {
        "token_embeddings_unnormalized": "embed",
        "token_embeddings": "layers.0.attn_norm",
        "embedding_delta": "layers.0.attn.out",
        "embedding_after_edit": "layers.0.resid_mid",
        "embedding_after_edit_normalized": "layers.0.mlp_norm",
        "fc_up": "layers.0.mlp.up",
        "output_after_feedforward": "layers.0.mlp.out",
        "layer_0_embedding": "layers.0.resid_post",
        "final_embedding": "final_norm",
    }
    heads = {  # of head 0 alone, positions first
        "q_per_token": "attn.q",
        "q_per_token_rotated": "attn.q_rot",
        "k_per_token": "attn.k",
        "k_per_token_rotated": "attn.k_rot",
        "v_per_token": "attn.v",
        "qkv_attention": "attn.z",
    }
    squares = {
        "qk_per_token": "attn.scores_unmasked",
        "qk_per_token_after_masking": "attn.scores",
        "qk_per_token_after_masking_after_softmax": "attn.pattern",
    }

    def walk(trace):
        mine = {own: trace[name] for own, name in names.items()}
        mine |= {own: trace[f"layers.0.{name}"][:, 0] for own, name in heads.items()}
        mine |= {own: trace[f"layers.0.{name}"][0] for own, name in squares.items()}
        mine["stacked_qkv_attention"] = trace["layers.0.attn.z"].reshape(7, -1)
        mine["qkv_attention_store"] = list(trace["layers.0.attn.z"].swapaxes(0, 1))
        mine["logits"] = trace["logits"][-1]
        return {own: torch.tensor(np.asarray(x)) if own != "qkv_attention_store" else x
                for own, x in mine.items()}  # fmt: skip

    report = sf.check_trace(walk(right), model, IDS)
    assert report.ok, report
    assert len(report.checked) == len(walk(right))
    report = sf.check_trace(walk(wrong), model, IDS)
    assert report.first_wrong == "layers.0.attn.v (v_per_token)"
    assert [mistake.name for mistake in report.diagnosis] == ["layer.wk_for_wv"]


def test_the_loop_of_the_walkthrough_has_the_mlp_of_layer_0(llama):
    model, weights = llama
    wrong = learner(CONFIGS["llama"], weights, IDS, "mlp of layer 0")
    mine = {f"layer_{i}_embedding": wrong[f"layers.{i}.resid_post"] for i in range(3)}
    report = sf.check_trace(mine | {"logits": wrong["logits"]}, model, IDS)
    assert report.first_wrong == "layers.1.resid_post (layer_1_embedding)"
    (found,) = report.diagnosis
    assert found.name == "layer.mlp_of_layer_0"


def heads_first(x):
    return x.swapaxes(0, 1)


@pytest.mark.parametrize("slip", ["", "layout swapped"])
@pytest.mark.parametrize(
    ("own", "name", "change"),
    [
        ("blocks.1.attn.hook_rot_q", "layers.1.attn.q_rot", lambda x: x[None]),
        ("model.layers.1.q_embed", "layers.1.attn.q_rot", heads_first),
        ("q_rot_layer1", "layers.1.attn.q_rot", lambda x: heads_first(x)[None]),
        ("layers.1.attn.q_rot", "layers.1.attn.q_rot", lambda x: x.reshape(7, -1)),
        (("attn.q_rot", 1, 3), "layers.1.attn.q_rot", lambda x: x[:, 3]),
        ("layers.1.attn.q_rot.head4", "layers.1.attn.q_rot", lambda x: x[None, :, 4]),
        ("layers.1.attn.k_rot", "layers.1.attn.k_rot", lambda x: np.repeat(x, 3, axis=1)),
        ("layers.1.attn.k_rot", "layers.1.attn.k_rot", lambda x: heads_first(np.repeat(x, 3, 1))),
    ],
)
def test_names_and_axes_of_others(llama, slip, own, name, change):
    model, weights = llama
    before = learner(CONFIGS["llama"], weights, IDS)["layers.0.resid_post"]
    mine = learner(CONFIGS["llama"], weights, IDS)
    wrong = learner(CONFIGS["llama"], weights, IDS, slip) if slip else mine
    if slip:  # only the step in question is wrong
        x = sf.rope(
            heads_first(mine[name.replace("_rot", "")]).copy(), layout="half", theta=500000.0
        )
        wrong = {name: x.swapaxes(0, 1)}
    report = sf.check_trace({"layers.0.resid_post": before, own: change(wrong[name])}, model, IDS)
    assert report.ok == (not slip), report
    if slip:
        assert report.diagnosis[0].name == "rope.layout_swapped", report


def test_heads_one_by_one(llama):
    model, weights = llama
    right = learner(CONFIGS["llama"], weights, IDS)
    mine = {("layers.0.attn.z", head): right["layers.0.attn.z"][:, head] for head in range(6)}
    assert sf.check_trace(mine, model, IDS).ok
    wrong = learner(CONFIGS["llama"], weights, IDS, "keys as values")
    mine["layers.0.attn.z", 4] = wrong["layers.0.attn.z"][:, 4]
    report = sf.check_trace(mine, model, IDS)
    assert report.first_wrong == "layers.0.attn.z, head 4 (('layers.0.attn.z', 4))"
    assert report.checked == tuple(f"layers.0.attn.z, head {head}" for head in range(4))


def test_own_names_and_unknown_ones(llama):
    model, weights = llama
    right = learner(CONFIGS["llama"], weights, IDS)
    mine = {"after_attention": right["layers.0.resid_mid"], "layers.0.mlp_nrm": 1, "loss": 2.5}
    report = sf.check_trace(mine, model, IDS, aliases={"after_attention": "layers.0.resid_mid"})
    assert report.ok
    assert report.checked == ("layers.0.resid_mid",)
    assert set(report.unknown) == {"layers.0.mlp_nrm", "loss"}
    assert "layers.0.mlp_norm" in report.unknown["layers.0.mlp_nrm"]
    assert "layers.0.mlp_norm" in repr(report)
    assert "layers.0.resid_mid" not in report.missing
    assert "layers.0.mlp_norm" in report.missing
    with pytest.raises(ValueError, match=r"no name in mine is known: 'loss'; the model's own are"):
        sf.check_trace({"loss": 2.5}, model, IDS)
    with pytest.raises(ValueError, match="check_trace: mine is empty, needs arrays under the mod"):
        sf.check_trace({}, model, IDS)
    with pytest.raises(TypeError, match="check_trace: aliases is 5, needs a dict"):
        sf.check_trace(mine, model, IDS, 5)
    with pytest.raises(ValueError, match="check_trace: ids is empty, needs at least one id"):
        sf.check_trace(mine, model, [])


def test_weights_among_the_activations_are_left_out(llama):
    """One walkthrough calls wq of layer 0, cut into heads, q_layer0."""
    model, weights = llama
    right = learner(CONFIGS["llama"], weights, IDS)
    mine = {
        "q_layer0": weights["layers.0.wq"].reshape(6, 4, 24),
        "k_layer0_head0": weights["layers.0.wk"][:4],
        "v_layer0": weights["layers.0.wv"],
    }
    report = sf.check_trace(mine | {"embed": right["embed"]}, model, IDS)
    assert report.ok, report
    assert report.checked == ("embed",)
    assert "'q_layer0' is a weight, no activation" in repr(report)
    assert len(report.remarks) == 3


@pytest.mark.parametrize("name", ["llama3.1", "qwen2", "qwen3", "mistral"])
def test_hooks_on_the_modules_of_transformers(name, tmp_path):
    """What every module gives, under the module's own name, is right; and a broken one is found."""
    theirs = tiny_models.make(name)
    theirs.save_pretrained(tmp_path)
    model = sf.from_pretrained(tmp_path)
    kept = ("model.layers", "model.embed", "model.norm", "lm_head")
    seen = tiny_models.watched(theirs, lambda name: name.startswith(kept))
    tiny_models.logits(theirs, IDS)
    report = sf.check_trace(seen, model, IDS)
    assert report.ok, report
    assert len(report.checked) > 30
    assert all(
        key.endswith(("act_fn", "layers.0", "layers.1", "layers.2")) for key in report.unknown
    )

    with torch.no_grad():
        up = theirs.model.layers[1].mlp.up_proj.weight
        up.copy_(theirs.model.layers[0].mlp.up_proj.weight)
    tiny_models.logits(theirs, IDS)
    report = sf.check_trace(seen, model, IDS)
    assert report.first_wrong == "layers.1.mlp.up (model.layers.1.mlp.up_proj)"
    assert report.diagnosis[0].title == "this is what layer 0's up (w3) gives"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16], ids=str)
def test_what_transformer_lens_calls_normalized_has_no_weight(dtype):
    """Of an RMSNorm; and a wrong one is wrong still."""
    model, weights = made("qwen3")
    right = learner(CONFIGS["qwen3"], weights, IDS)
    rows = {"blocks.1.ln1": "layers.1.attn_norm", "blocks.0.ln2": "layers.0.mlp_norm"}
    rows |= {"ln_final": "final_norm"}
    mine = {
        f"{theirs}.hook_normalized": (right[ours] / weights[ours]).astype(dtype)
        for theirs, ours in rows.items()
    }
    report = sf.check_trace(mine, model, IDS)
    assert report.ok, report
    assert len(report.checked) == 3
    assert "'ln_final.hook_normalized' is what the norm gives before its weight" in report.remarks
    with_weight = {f"{theirs}.hook_normalized": right[ours] for theirs, ours in rows.items()}
    assert sf.check_trace(with_weight, model, IDS).remarks == ()
    mine["blocks.1.ln1.hook_normalized"] = 1.5 * mine["blocks.1.ln1.hook_normalized"]
    assert sf.check_trace(mine, model, IDS).first_wrong.startswith("layers.1.attn_norm")


def test_a_text_stands_for_its_ids():
    model = sf.from_pretrained(sf.demo_path())
    _, trace = model.run_with_cache("Mia has a red kite.")
    mine = {"resid_post": trace["layers.0.resid_post"]}
    assert sf.check_trace(mine, model, "Mia has a red kite.").ok
    assert not sf.check_trace(mine, model, "Mia has a red boat.").ok
    with pytest.raises(ValueError, match="ids is a text, and this model has no tokenizer"):
        sf.check_trace(mine, model.transformer, "Mia has a red kite.")


def test_what_is_no_trace_is_refused(llama):
    model, _ = llama
    with pytest.raises(TypeError, match="mine is a list, needs a dict of arrays"):
        sf.check_trace([1], model, IDS)
    with pytest.raises(TypeError, match="model is a dict, needs what from_pretrained gives"):
        sf.check_trace({}, {}, IDS)
    with pytest.raises(TypeError, match="ids are float64"):
        sf.check_trace({"embed": 1}, model, [0.5])
    with pytest.raises(IndexError, match="999"):
        sf.check_trace({"embed": 1}, model, [999])


SINKS = {"attention_sinks": True}


SWITCHED = {"gemma": GEMMA, "olmo2": OLMO2, "sinks": SINKS, "gpt2": GPT2}


@pytest.fixture(scope="module", params=SWITCHED)
def switched(request):
    """Models with norms behind, factors, caps, two thetas, layers and channels without RoPE."""
    config = tiny_config(**SWITCHED[request.param])
    return Transformer(config, random_weights(np.random.default_rng(3), config), dtype="float32")


def test_every_step_of_a_model_with_switches_is_what_the_model_computes(switched):
    steps = ModelSteps(switched, np.array([IDS]))
    for name in steps.names:
        before = {other: x for other, x in steps.right.items() if other != name}
        np.testing.assert_allclose(
            steps.value(name, before), steps.right[name], rtol=1e-4, atol=1e-4, err_msg=name
        )
    _, trace = switched.run_with_cache(IDS)
    assert sf.check_trace(trace, switched, IDS).ok
    assert sf.check_trace({"logits": trace["logits"]}, switched, IDS).ok


LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "short_factor": [1.4, 1.7, 2.0, 3.0],
    "long_factor": [2.0, 4.0, 6.0, 9.0],
    "original_max_position_embeddings": 6,
}


@pytest.mark.parametrize("length", [5, 7], ids=["short", "long"])
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_longrope_has_two_tables_and_a_factor(length, kind):
    """Of Phi-3: which of the tables counts is a matter of how long the text is."""
    config = dataclasses.replace(CONFIGS["llama"], rope_scaling=LONGROPE, rope_layout="half")
    config = dataclasses.replace(config, head_dim=8, rope_theta=100.0)
    model = Transformer(config, raw_weights(config))
    ids = IDS[:length]
    q = model.run_with_cache(ids)[1]["layers.1.attn.q"]
    right = LONGROPE["long_factor" if length > 6 else "short_factor"]
    wrong = LONGROPE["short_factor" if length > 6 else "long_factor"]
    sharper = (1 + np.log(4) / np.log(6)) ** 0.5
    for factors, factor, name in (
        (right, sharper, None),
        (wrong, sharper, "rope_scaling.factors_of_the_other_length"),
        (right, 1.0, "rope_scaling.attention_factor_forgotten"),
        ([1.0] * 4, 1.0, "rope_scaling.ignored"),
    ):
        # In Hugging Face's idiom: cos and sin of both halves, scaled, then rounded to the model's
        x = torch.tensor(q, dtype=getattr(torch, kind))
        freqs = 100.0 ** -(torch.arange(0, 8, 2) / 8) / torch.tensor(factors)
        angles = torch.outer(torch.arange(length).float(), freqs).repeat(1, 2)[:, None]
        cos, sin = ((f(angles) * factor).to(x.dtype) for f in (torch.cos, torch.sin))
        turned = x * cos + torch.cat([-x[..., 4:], x[..., :4]], -1) * sin
        report = sf.check_trace({"blocks.1.attn.hook_q": x, "q_rot_layer1": turned}, model, ids)
        names = [mistake.name for mistake in report.diagnosis]
        assert names == ([] if name is None else [name]), report
        # In Meta's: pairs as complex numbers, in float32, and back
        turns = torch.polar(torch.full(angles.shape, float(factor))[..., :4], angles[..., :4])
        y = torch.complex(x[..., :4].float(), x[..., 4:].float()) * turns
        turned = torch.cat([y.real, y.imag], -1).to(x.dtype)
        report = sf.check_trace({"blocks.1.attn.hook_q": x, "q_rot_layer1": turned}, model, ids)
        assert [mistake.name for mistake in report.diagnosis] == names, report


def test_forgotten_sinks_are_named():
    config = tiny_config(**SINKS)
    model = Transformer(config, random_weights(np.random.default_rng(3), config), dtype="float32")
    _, trace = model.run_with_cache(IDS)
    name = "layers.1.attn.pattern"
    pattern = softmax(trace["layers.1.attn.scores"])
    report = sf.check_trace({**trace, name: pattern}, model, IDS)
    assert report.first_wrong == name
    assert [mistake.name for mistake in report.diagnosis] == ["attention.no_sinks"], report


def test_forgotten_factors_and_caps_are_named(switched):
    config, (_, trace) = switched.config, switched.run_with_cache(IDS)
    forgotten = {
        "embed": config.embed_scale,
        "layers.1.attn.out": config.residual_scale,
        "layers.1.mlp.out": config.residual_scale,
        "logits": 1 / config.logit_divisor,
    }
    for name, factor in forgotten.items():
        if factor != 1:
            wrong = {**trace, name: trace[name] / np.float32(factor)}
            report = sf.check_trace(wrong, switched, IDS)
            assert report.first_wrong == name
            assert "scaling.forgotten" in [mistake.name for mistake in report.diagnosis], report
    if config.logit_softcap is not None:
        product = trace["final_norm"] @ ModelSteps(switched, np.array([IDS])).tensors("lm_head").T
        report = sf.check_trace({**trace, "logits": product}, switched, IDS)
        assert [mistake.name for mistake in report.diagnosis] == ["softcapping.forgotten"], report


# ---- how it is shown -----------------------------------------------------------------------------


def test_the_report_reads_well(llama):
    model, weights = llama
    wrong = learner(CONFIGS["llama"], weights, IDS, "mlp of layer 0")
    report = sf.check_trace(wrong, model, IDS)
    lines = repr(report).splitlines()
    assert lines[0] == "✗ layers.1.mlp.gate is wrong while layers.1.mlp_norm is right"
    assert lines[1] == "  ✓ embed"
    assert lines[2].startswith("  ✓ layers.0: resid_pre attn_norm attn.q ")
    assert any("this is what layer 0's gate (w1) gives" in line for line in lines)
    assert any("not looked at, for it comes after: layers.1.mlp.up" in line for line in lines)
    html = report._repr_html_()
    assert "layers.1.mlp.gate is wrong while" in html
    assert "layer 0&#x27;s gate (w1)" in html
    right = sf.check_trace(learner(CONFIGS["llama"], weights, IDS), model, IDS)
    assert "layers.0 to 2: resid_pre" in repr(right)
    assert right._repr_html_().count("✓") == 4


# ---- every mistake of the catalogue --------------------------------------------------------------


PROGRAMS = ("layer.", "model.", "experts.", "clamped_swiglu.")
CACHE = "layer.cache_"  # mistakes of the exercise with a cache: they have examples of their own
WHOLE = sorted(
    name
    for name in CATALOGUE.variations
    if name.startswith(PROGRAMS) and not name.startswith(CACHE)
)
LATER = ["experts.sorted_without_weights"]  # its step is right, what follows is not
OTHERWISE = ["experts.weights_sorted_otherwise"]  # needs another order: test_traces_of_mixtures


@cache
def every_step(name):
    return ModelSteps(made(name)[0], np.array([IDS]))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in WHOLE if name not in OTHERWISE])
def test_every_mistake_of_whole_models_is_found(name):
    """In the second layer, or at an end; where it is the only one or named among others."""
    kind = "biased" if "bias" in name or "position" in name else "all"
    kind = "clamped" if name.startswith("clamped_swiglu.") else kind
    kind = "mixture" if "experts" in name or "router" in name else kind
    variation, steps = CATALOGUE[name], every_step(kind)
    target, *others = (step.partition(".")[2] for step in variation.replaces)
    target = target.replace("stream", "layers.0.resid_pre")
    if name.startswith("clamped_swiglu."):
        target, others = "layers.1.mlp.act", []
    elif not name.startswith("model."):
        others = others or [one for one in LATER if one == name]
        target = "resid_post" if others else target
        target = next(n for n in steps.names if n.startswith("layers.1.") and variable(n) == target)
    mine = {n: steps.right[n][0] for n in steps.names[: steps.names.index(target)]}
    if others:  # nothing in between is there
        mine = {n: x for n, x in mine.items() if n == "layers.1.resid_pre"}
    program, variables = steps.part(target, {n: x[None] for n, x in mine.items()}, lambda x: x)
    out = Run(np.float32, variation.replaces)(program, **variables).out
    report = sf.check_trace(mine | {target: np.asarray(out)[0]}, made(kind)[0], IDS)
    assert report.first_wrong == target
    found = {mistake.name for mistake in report.diagnosis}
    assert name in found or variation.unless in found, report


def test_several_that_are_right_are_listed_with_commas():
    report = TraceReport((), first_wrong="d", after=("a", "b", "c"))
    assert report.sentence == "d is wrong while a, b and c are right"
