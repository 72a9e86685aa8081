"""Mistakes planted in a whole model: a program of its own in PyTorch, as one writes it who follows
a walkthrough, keeps its activations, and `check_trace` says where it went wrong, and why."""

import math
from functools import partial

import numpy as np
import pytest

import simdformer as sf
import test_traces_of_gpt2 as gpt2
import test_traces_of_mixtures as mixtures
from checkpoints import tiny_config
from learners import Learner, hidden_states
from simdformer.models import Transformer, weight_shapes

IDS = [1, 14, 15, 9, 2, 6, 5, 35, 8, 9]  # bos is 1
CONFIG = tiny_config(
    intermediate_size=48,
    vocab_size=50,
    max_seq_len=32,
    norm_eps=1e-6,
    rope_theta=1e6,
    rope_layout="half",
    tie_embeddings=False,
    qk_norm=True,
)


def made():
    """A model, and its weights. As in real ones the stream is small, but for one channel
    of the first token, whose square float16 cannot hold."""
    rng = np.random.default_rng(5)
    weights = {}
    for name, shape in weight_shapes(CONFIG).items():
        scale = 0.02 if name == "embed" else 1.5 / math.sqrt(shape[-1])
        values = rng.standard_normal(shape)
        weights[name] = (1 + values / 4 if "norm" in name else scale * values).astype(np.float32)
    weights["embed"][1, 3] = 300
    return Transformer(CONFIG, weights), weights


MODEL, WEIGHTS = made()


def run(*slips, **constants):
    seen = Learner(CONFIG, WEIGHTS, *slips, ids=IDS, **constants)()
    return {name: x for name, x in seen.items() if not name.endswith(".scores")}


# Where each one shows first, and the names that it may be given.
PLANTED = {
    "theta of llama 2": ("attn.q_rot", "rope_frequencies.theta_10000"),
    "eps of llama": ("attn_norm", "rms_norm.eps_1e-05"),
    "eps outside of the root": ("attn_norm", "rms_norm.eps_outside_root"),
    "norm subtracts the mean": ("attn_norm", "rms_norm.mean_subtracted"),
    "layout swapped": ("attn.q_rot", "rope.layout_swapped"),
    "positions from 1": ("attn.q_rot", "rope.positions_from_one"),
    "k not rotated": ("attn.k_rot", "rope.not_turned", "layer.scores_of_unturned_keys"),
    "v rotated too": ("attn.v", "layer.v_turned"),
    "q_norm forgotten": ("attn.q_rot", "layer.q_turned_without_norm", "layer.no_qk_norms"),
    "wq not transposed": ("attn.q", "linear.not_transposed", "layer.wq_not_transposed"),
    "heads tiled": ("attn.scores", "attention.heads_tiled"),
    "no scale": ("attn.scores", "attention.no_scale"),
    "scale of the hidden size": ("attn.scores", "attention.scale_by_hidden_size"),
    "no mask": ("attn.scores", "attention.no_causal"),
    "mask off by one": ("attn.scores", "attention.causal_loose"),
    "diagonal hidden": (
        "attn.scores",
        "attention.causal_strict",
        "attention.causal_strict_uniform",
    ),
    "softmax over queries": ("attn.pattern", "attention.softmax_over_queries"),
    "dropout left on": ("attn.out", "array.dropout"),
    "no residual": ("resid_mid", "layer.no_residual_around_attention"),
    "post-norm": ("attn_norm", "layer.no_attn_norm", "layer.post_norm"),
    "gate and up swapped": ("mlp.gate", "layer.up_for_gate", "layer.gate_and_up_swapped"),
    "gelu for silu": ("mlp.act", "silu.gelu_instead"),
    "layers in another order": (
        "layers.1.attn_norm",
        "layer.attn_norm_of_layer_2",
        "layer.layer_2_instead",
    ),
    "a layer is left out": ("layers.2.resid_pre", "layer.left_out"),
    "the last layer is left out": ("final_norm", "layer.left_out"),
    "no final norm": ("final_norm", "model.no_final_norm"),
    "head tied": ("logits", "model.embedding_for_lm_head"),
    "ids without bos": ("embed", "model.without_bos"),
}


def test_the_model_without_slips_is_right():
    assert sf.check_trace(run(), MODEL, IDS).ok
    assert sf.check_trace(hidden_states(run()), MODEL, IDS).ok


# What cannot be told from these: attention depends on the difference of two positions; zeros of
# dropout are lost in sums.
NOT_THERE = ("positions from 1", "dropout left on")


def planted():
    """Of each model and slip: what makes its activations, the model, the ids, what of them is left
    behind the layers, and where the mistake shows first, and as what."""
    for slip, found in PLANTED.items():
        yield pytest.param(partial(run, slip), MODEL, IDS, hidden_states, found, id=slip)
    for slip, found in gpt2.PLANTED.items():
        learner, left = partial(gpt2.nano, slip), gpt2.what_layers_leave
        yield pytest.param(learner, gpt2.MODEL, gpt2.IDS, left, found, id=f"gpt2 {slip}")
    for kind, slip, *found in mixtures.PLANTED:
        learner, model = partial(mixtures.activations, kind, slip), mixtures.made(kind)[0]
        yield pytest.param(learner, model, mixtures.IDS, hidden_states, found, id=f"{kind} {slip}")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("learner", "model", "ids", "left", "found"), [*planted()])
def test_a_planted_mistake_is_named_where_it_shows_first(learner, model, ids, left, found):
    where, *names = found
    report = sf.check_trace(learner(), model, ids)
    assert report.first_wrong.split()[0] in (where, f"layers.0.{where}"), report
    assert {mistake.name for mistake in report.diagnosis} & set(names), report
    assert max(map(len, repr(report).splitlines())) <= 80


def enough():
    for case in planted():
        if case.id not in NOT_THERE:
            quick = case.id in PLANTED
            yield case if quick else pytest.param(*case.values, id=case.id, marks=pytest.mark.slow)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("learner", "model", "ids", "left", "found"), [*enough()])
def test_what_the_layers_leave_is_enough_to_name_it(learner, model, ids, left, found):
    report = sf.check_trace(left(learner()), model, ids)
    assert {mistake.name for mistake in report.diagnosis} & set(found[1:]), report


def test_what_cannot_be_named_still_has_its_layer():
    report = sf.check_trace(hidden_states(run("dropout left on")), MODEL, IDS)
    assert report.first_wrong == "layers.0.resid_post"
    assert sf.check_trace(hidden_states(run("positions from 1")), MODEL, IDS).ok


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kept", [dict, hidden_states], ids=["all", "hidden states"])
@pytest.mark.parametrize(
    ("constant", "title"),
    [
        ({"theta": 7e4}, "theta is 70,000, needs 1,000,000"),
        ({"eps": 3e-4}, "eps is 0.0003, needs 1e-06"),
        ({"head_dim": 50}, "the scores are divided by sqrt(50), needs sqrt(8)"),
    ],
    ids=str,
)
def test_a_wrong_constant_is_fitted(constant, title, kept):
    report = sf.check_trace(kept(run(**constant)), MODEL, IDS)
    assert title in [mistake.title for mistake in report.diagnosis], report


def test_an_overflow_has_its_place():
    """In float16 the square of 300 is infinite: the norm of the first token is 0."""
    seen = run("norm in float16")
    assert not seen["layers.0.input_layernorm"][0].any()
    report = sf.check_trace(seen, MODEL, IDS)
    assert report.first_wrong == "layers.0.attn_norm (layers.0.input_layernorm)"
    assert [mistake.name for mistake in report.diagnosis] == ["rms_norm.squares_overflow"], report


@pytest.mark.parametrize("slip", ["theta of llama 2", "layout swapped"])
def test_a_name_that_is_overwritten_is_explained_by_what_it_holds(slip):
    """xq = rope(xq): it is called q, and turned wrongly it is neither q nor what it should be."""
    seen = {key.replace("q_rot", "xq"): x for key, x in run(slip).items() if "k_rot" not in key}
    _, *names = PLANTED[slip]
    report = sf.check_trace(seen, MODEL, IDS)
    assert report.first_wrong == "layers.0.attn.q_rot (layers.0.xq)"
    assert {mistake.name for mistake in report.diagnosis} & set(names), report
    right = sf.check_trace({key.replace("q_rot", "xq"): x for key, x in run().items()}, MODEL, IDS)
    assert right.ok
