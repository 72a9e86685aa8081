"""Mixtures of experts as people write them, in two idioms, right and with mistakes in them."""

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import simdformer as sf
import tiny_models
from checkpoints import random_weights, tiny_config
from conftest import bfloat16
from learners import Learner, hidden_states
from simdformer.models import Transformer

IDS = [4, 14, 15, 9, 2, 6, 5, 35, 8, 9, 21, 30]
MIXTRAL = tiny_config(
    num_layers=2,
    intermediate_size=48,
    vocab_size=50,
    max_seq_len=40,
    rope_layout="half",
    tie_embeddings=False,
    num_experts=6,
    num_experts_per_tok=3,
    expert_intermediate_size=24,
)
CONFIGS = {
    "mixtral": MIXTRAL,
    "qwen2_moe": dataclasses.replace(
        MIXTRAL,
        normalize_expert_weights=False,
        shared_intermediate_size=40,
        shared_router=True,
    ),
    "gpt-oss": dataclasses.replace(
        MIXTRAL, activation="clamped_swiglu", mlp_bias=True, swiglu_limit=1.0
    ),
}


@cache
def made(kind, dtype=np.float32):
    weights = random_weights(np.random.default_rng(3), CONFIGS[kind])
    weights = {name: w.astype(dtype).astype(np.float32) for name, w in weights.items()}
    return Transformer(CONFIGS[kind], weights), weights


DTYPES = [  # in `make test` one of 32 bits and one of 16
    "float32",
    "bfloat16",
    pytest.param("float64", marks=pytest.mark.slow),
    pytest.param("float16", marks=pytest.mark.slow),
]


class Mixture(Learner):
    """With experts in place of the MLP."""

    def __init__(self, kind, *slips, dtype=torch.float32, weights=None, by_token=False):
        weights = made(kind)[1] if weights is None else weights
        super().__init__(CONFIGS[kind], weights, *slips, ids=IDS, dtype=dtype)
        self.by_token = by_token

    def expert(self, x, at):
        """(n,E) -> (n,E), for one expert or the one beside them"""
        w, slips = self.w, self.slips
        if "experts of layer 0" in slips:
            at = at.replace("layers.1", "layers.0")
        if not self.config.mlp_bias:
            gate, up = x @ w[at + "gate"].T, x @ w[at + "up"].T
            return (F.silu(gate) * up) @ w[at + "down"].T
        fused = torch.stack([w[at + "gate"], w[at + "up"]], 1).flatten(0, 1)  # alternating rows
        bias = torch.stack([w[at + "gate_bias"], w[at + "up_bias"]], 1).flatten()
        both = x @ fused.T + bias
        halved = "gate_up in halves" in slips
        gate, up = both.chunk(2, -1) if halved else (both[..., ::2], both[..., 1::2])
        if "no clamp" not in slips:
            gate = gate.clamp(None if "clamped below" not in slips else -1.0, 1.0)
            up = up.clamp(-1.0, 1.0)
        act = gate * torch.sigmoid((1.0 if "no alpha" in slips else 1.702) * gate)
        act = act * (up if "no one" in slips else up + 1)
        return act @ w[at + "down"].T + w[at + "down_bias"]

    def route(self, x, at):
        """The ids (L,k) and weights (L,k) of x (L,E)."""
        w, slips, k = self.w, self.slips, self.config.num_experts_per_tok
        k += ("one more" in slips) - ("one fewer" in slips)
        logits = x @ w[at + "router"].T
        if at + "router_bias" in w and "router without bias" not in slips:
            logits = logits + w[at + "router_bias"]
        probs = logits.float().softmax(-1)
        values, ids = torch.topk(-probs if "the smallest" in slips else probs, k)
        if "by numpy" in slips:  # right: the likeliest is the last
            ids = torch.from_numpy(np.argsort(probs.numpy(), kind="stable")[:, -k:].copy())
        values = probs.gather(1, ids)
        normalize = self.config.normalize_expert_weights != ("normalised otherwise" in slips)
        if normalize:
            values = values / values.sum(-1, keepdim=True)
        if "softmax twice" in slips:
            values = probs.gather(1, ids).softmax(-1)
        if "sigmoid" in slips:
            values = logits.gather(1, ids).sigmoid()
        if "ids sorted" in slips:
            ids = ids.sort(-1).values
        values = values.to(x.dtype)
        self.seen |= {at + "router_logits": logits, at + "selected_experts": ids}
        self.seen[at + "topk_weights"] = values
        return ids, torch.ones_like(values) if "weights forgotten" in slips else values

    def mlp(self, x, stream, at, of):
        ids, values = self.route(stream if "router reads the stream" in self.slips else x, at)
        out, each = torch.zeros_like(x), torch.zeros(*ids.shape, x.shape[1], dtype=x.dtype)
        if self.by_token:
            for t in range(len(x)):
                for slot, number in enumerate(ids[t].tolist()):
                    each[t, slot] = self.expert(x[t : t + 1], f"{at}experts.{number}.")[0]
            out = (values[..., None] * each).sum(1)
        else:
            for number in ids.unique().tolist():  # as in Mixtral
                rows, slots = torch.where(ids == number)
                each[rows, slots] = y = self.expert(x[rows], f"{at}experts.{number}.")
                out.index_add_(0, rows, y * values[rows, slots, None])
        self.seen[at + "expert_outputs"] = each
        if self.config.shared_router and "no shared expert" not in self.slips:
            shared = self.expert(x, at + "shared.")
            self.seen[at + "mlp.shared_expert"] = shared
            if "no shared gate" not in self.slips:
                logit = x @ self.w[at + "shared.router"].T
                self.seen[at + "mlp.shared_expert_gate"] = logit
                shared = torch.sigmoid(logit) * shared
            out = out + shared
        return out


@pytest.mark.sampled(3)
@pytest.mark.parametrize("slip", ["", "by numpy"], ids=["torch.topk", "np.argsort"])
@pytest.mark.parametrize(
    "by_token", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["by expert", "by token"]
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_right_mixture_is_right_in_every_dtype_and_idiom(kind, dtype, by_token, slip):
    model, weights = made(kind, np.dtype(bfloat16 if dtype == "bfloat16" else dtype))
    learner = Mixture(kind, slip, dtype=getattr(torch, dtype), weights=weights, by_token=by_token)
    seen = learner()
    without_ids = {n: x for n, x in seen.items() if not n.endswith("selected_experts")}
    for some in (seen, without_ids, hidden_states(seen), {"logits": seen["logits"]}):
        report = sf.check_trace(some, model, IDS)
        assert report.ok, report
        assert not report.unknown
        assert len(report.checked) == len(some)


def activations(kind, slip):
    return Mixture(kind, slip)()


# Which model, the slip, where it shows first, and the names that it may be given.
PLANTED = [
    ("mixtral", "normalised otherwise", "mlp.expert_weights", "experts.normalised_otherwise"),
    ("mixtral", "softmax twice", "mlp.expert_weights", "experts.softmax_twice"),
    ("mixtral", "sigmoid", "mlp.expert_weights", "experts.sigmoid_as_weights"),
    ("mixtral", "one more", "mlp.experts", "experts.one_more_chosen"),
    ("mixtral", "one fewer", "mlp.experts", "experts.one_fewer_chosen"),
    ("mixtral", "the smallest", "mlp.experts", "experts.smallest_chosen"),
    (
        "mixtral",
        "ids sorted",
        "mlp.expert_weights",
        "experts.weights_sorted_otherwise",
        "experts.sorted_without_weights",
    ),
    ("mixtral", "weights forgotten", "mlp.out", "experts.weights_forgotten"),
    ("mixtral", "router reads the stream", "mlp.router", "experts.router_of_unnormed"),
    ("mixtral", "experts of layer 0", "layers.1.mlp.expert_out", "layer.experts_of_layer_0"),
    ("qwen2_moe", "normalised otherwise", "mlp.expert_weights", "experts.normalised_otherwise"),
    ("qwen2_moe", "no shared expert", "mlp.out", "experts.shared_forgotten"),
    ("qwen2_moe", "no shared gate", "mlp.out", "experts.shared_gate_forgotten"),
    ("gpt-oss", "router without bias", "mlp.router", "linear.no_bias", "layer.no_bias_of_router"),
    ("gpt-oss", "gate_up in halves", "mlp.expert_out", "layer.gate_and_up_by_halves"),
    ("gpt-oss", "no clamp", "mlp.expert_out", "clamped_swiglu.not_clamped"),
    ("gpt-oss", "clamped below", "mlp.expert_out", "clamped_swiglu.gate_clamped_below"),
    ("gpt-oss", "no alpha", "mlp.expert_out", "clamped_swiglu.alpha_forgotten"),
    ("gpt-oss", "no one", "mlp.expert_out", "clamped_swiglu.one_forgotten"),
]


# ---- near ties -----------------------------------------------------------------------------------


def near_tie(gap):
    """A model whose router has, for one position in layer 0, experts that are nearly as good: the
    last of those that are asked, and the next. Their difference is `gap`. The position is the one
    where the last counts most."""
    model, weights = made("mixtral")
    _, trace = model.run_with_cache(IDS)
    at = int(trace["layers.0.mlp.expert_weights"][:, -1].argmax())
    x, logits = (trace[f"layers.0.mlp{name}"][at].astype(float) for name in ("_norm", ".router"))
    _, _, last, other, *_ = np.argsort(-logits).tolist()
    router = weights["layers.0.router"].astype(np.float64)
    router[other] += (logits[last] - gap - logits[other]) * x / (x @ x)
    weights = {**weights, "layers.0.router": router.astype(np.float32)}
    return Transformer(CONFIGS["mixtral"], weights), weights, (at, last, other)


class Exchanged(Mixture):
    """For one position another expert is asked than the router says."""

    def __init__(self, exchange, dtype, weights):
        super().__init__("mixtral", dtype=dtype, weights=weights)
        self.exchange = exchange

    def route(self, x, at):
        ids, values = super().route(x, at)
        if at == "layers.0.":
            position, last, other = self.exchange
            probs = self.seen[at + "router_logits"][position].float().softmax(-1)
            chosen = torch.where(ids[position] == last, other, ids[position])
            ids[position] = chosen
            values[position] = (probs[chosen] / probs[chosen].sum()).to(x.dtype)
        return ids, values


@pytest.mark.parametrize("told", ["everything", "without ids", "what layers leave", "logits"])
@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_rounding_may_decide_between_experts_that_are_as_good(dtype, told):
    gap = {"float16": 2e-4, "bfloat16": 2e-3}[dtype]
    model, weights, exchange = near_tie(gap)
    seen = Exchanged(exchange, getattr(torch, dtype), weights)()
    some = {
        "everything": seen,
        "without ids": {n: x for n, x in seen.items() if not n.endswith("selected_experts")},
        "what layers leave": hidden_states(seen),
        "logits": {"logits": seen["logits"]},
    }[told]
    report = sf.check_trace(some, model, IDS)
    assert report.ok, report
    if told in ("what layers leave", "logits"):  # else the learner's own router says the same
        said = f"layers.0.mlp.experts: at position {exchange[0]} another expert is asked than in"
        assert said in " ".join(repr(report).split()), report


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_another_expert_that_is_not_as_good_is_wrong(dtype):
    model, weights, exchange = near_tie(0.3)
    seen = Exchanged(exchange, dtype, weights)()
    assert sf.check_trace(seen, model, IDS).first_wrong.startswith("layers.0.mlp.experts")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_nor_is_what_the_layers_leave_behind_it(dtype):
    model, weights, exchange = near_tie(0.3)
    seen = Exchanged(exchange, dtype, weights)()
    report = sf.check_trace(hidden_states(seen), model, IDS)
    assert report.first_wrong == "layers.0.resid_post"


def test_experts_are_compared_as_sets():
    seen = Mixture("mixtral", "the smallest")()
    report = sf.check_trace(seen, made("mixtral")[0], IDS)
    assert "(12, 3) int64: wrong" in repr(report)
    assert "in the order of their numbers" in " ".join(repr(report).split())


def test_names_of_single_experts_take_one_line():
    """Older modules have a list of experts, each of which sees some of the tokens."""
    model, _ = made("mixtral")
    mine = {"embed": model.run_with_cache(IDS)[1]["embed"]}
    for layer in range(2):
        mine |= {f"model.layers.{layer}.mlp.experts.{n}.w1": np.ones((3, 24)) for n in range(6)}
    report = sf.check_trace(mine, model, IDS)
    assert len(report.unknown) == 12
    said = " ".join(repr(report).split())
    assert said.count("unknown name 'model.layers.0.mlp.experts.*.w1'") == 1
    assert said.count("unknown name") == 1


@pytest.mark.parametrize("name", ["mixtral-window-all", "qwen2-moe-window"])
def test_the_models_own_trace_is_right(name, tmp_path):
    """All experts asked; layers with experts and without."""
    theirs = tiny_models.make(name)
    theirs.save_pretrained(tmp_path)
    model = sf.from_pretrained(tmp_path)
    _, trace = model.run_with_cache(IDS)
    report = sf.check_trace(trace, model, IDS)
    assert report.ok, report
    assert list(report.checked) == list(trace)
    assert sf.check_trace({"logits": trace["logits"]}, model, IDS).ok


def test_a_wrong_number_of_experts_has_a_shape():
    seen = Mixture("mixtral", "one more")()
    report = sf.check_trace(seen, made("mixtral")[0], IDS)
    assert (report.report.shape, report.report.expected) == ((12, 4), (12, 3))


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "qwen3-moe-dense-window", "gpt-oss"])
def test_hooks_on_the_modules_of_transformers(name, tmp_path):
    """Their mlp.gate is the router, mlp.experts what the chosen ones write; positions of a batch
    lie in a row."""
    theirs = tiny_models.make(name)
    theirs.save_pretrained(tmp_path)
    model = sf.from_pretrained(tmp_path)
    seen = tiny_models.watched(theirs, lambda name: ".mlp" in name or name == "model.norm")
    ids = [IDS, IDS[::-1]]
    tiny_models.logits(theirs, ids)
    report = sf.check_trace(seen, model, ids)
    assert report.ok, report
    assert all(key.endswith("act_fn") for key in report.unknown)
    assert "layers.0.mlp.router" in report.checked
    assert "layers.0.mlp.routed" in report.checked
    assert sf.check_trace(model.run_with_cache(ids)[1], model, ids).ok
