"""Models with experts: what each layer does against a formula, the trace, edits, what is counted.
That whole models compute the same as transformers stands in test_checkpoints.py."""

import json
import math

import numpy as np
import pytest
import torch

import simdformer as sf
import tiny_models
from checkpoints import MIXED, random_model, tiny_config, told
from conftest import same_bits
from simdformer import cli
from simdformer.checkpoints import read_checkpoint
from simdformer.models import Trace, Transformer, trace_names, transformer
from simdformer.models.budget import active_parameters, decode_bytes, parameter_budget
from simdformer.models.observer import unseen
from simdformer.training import TrainableModel

IDS = np.array([7, 0, 299, 12, 12, 45, 101, 250, 3, 77, 5, 64, 128])
SHARED = {"shared_intermediate_size": 12, "shared_router": True}


def make(activations="float32", **changes):
    return random_model(dtype=activations, activations=activations, **MIXED | SHARED | changes)


def silu(x):
    return x / (1 + np.exp(-x))


def mlp(x, w, at):
    gate, up, down = (np.asarray(w[at + name], np.float64) for name in ("gate", "up", "down"))
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


# ---- one layer -----------------------------------------------------------------------------------


def test_all_experts_of_a_step_are_called_at_once(monkeypatch, rng):
    """gate and up of all tokens in one call, and the bits are those of a token alone."""
    model, _ = make(shared_intermediate_size=0, shared_router=False)
    weights, x = model.weights.layers[0].mlp, rng.standard_normal((1, 9, model.config.hidden_size))
    x, calls = x.astype(np.float32), []

    def counted(x, ids, weights, *arguments, **options):
        calls.append((ids.size, len(weights)))
        return expert_linear(x, ids, weights, *arguments, **options)

    expert_linear = transformer.expert_linear
    monkeypatch.setattr(transformer, "expert_linear", counted)
    together = model.mixture(weights, x, unseen)
    for at in range(9):
        assert same_bits(
            model.mixture(weights, x[:, at : at + 1], unseen), together[:, at : at + 1]
        )
    assert calls == [(27, 2), (27, 1)] + 9 * [(3, 2), (3, 1)]  # gate and up; down


@pytest.mark.parametrize("normalize", [True, False])
def test_a_layer_with_experts_is_the_formula(normalize):
    """Weights that are not normalised count less."""
    model, w = make(normalize_expert_weights=normalize)
    _, trace = model.run_with_cache(IDS)
    layer, at = trace[2], "layers.2."
    x = layer["mlp_norm"].astype(np.float64)
    logits = x @ w[at + "router"].astype(np.float64).T
    close = {"rtol": 2e-5, "atol": 2e-5}
    np.testing.assert_allclose(layer["mlp.router"], logits, **close)
    experts, shares = layer["mlp.experts"], layer["mlp.expert_weights"]
    assert (experts == np.argsort(-logits, axis=-1)[:, :3]).all()
    exps = np.exp(logits)
    chosen = np.take_along_axis(exps, experts, -1)
    total = (chosen if normalize else exps).sum(-1, keepdims=True)
    np.testing.assert_allclose(shares, chosen / total, **close)
    out = np.zeros(x.shape)
    for token, slot in np.ndindex(experts.shape):
        wrote = mlp(x[token], w, f"{at}experts.{experts[token, slot]}.")
        np.testing.assert_allclose(layer["mlp.expert_out"][token, slot], wrote, **close)
        out[token] += shares[token, slot] * wrote
    beside = mlp(x, w, at + "shared.")
    beside /= 1 + np.exp(-x @ w[at + "shared.router"].astype(np.float64).T)
    np.testing.assert_allclose(layer["mlp.shared.out"], beside, **close)
    np.testing.assert_allclose(layer["mlp.out"], out + beside, **close)


@pytest.mark.parametrize("activations", ["float32", "bfloat16", "float16"])
def test_token_by_token_through_a_cache(activations):
    """What an expert computes does not depend on how many tokens it sees: bits as one by one."""
    model, _ = make(activations)
    whole, one = model.new_cache(), model.new_cache()
    model(IDS[:-1], whole)
    for id in IDS[:-1]:
        model([id], one)
    last, alone = model(IDS[-1:], whole), model(IDS[-1:], one)
    tolerance = {"float32": 1e-5, "bfloat16": 0.1, "float16": 0.02}[activations]
    np.testing.assert_allclose(last, alone, atol=tolerance, rtol=tolerance)
    batch = model(np.stack([IDS, IDS[::-1]]))
    assert same_bits(batch[0], model(IDS))
    assert same_bits(batch[1], model(IDS[::-1]))


def test_only_chosen_experts_are_read():
    model, weights = make(num_experts=40)
    expected, trace = model.run_with_cache(IDS[:4])
    for layer in (0, 2):
        unused = set(range(40)) - set(trace[layer]["mlp.experts"].ravel().tolist())
        assert unused
        for expert in unused:
            for part in ("gate", "up", "down"):
                weights[f"layers.{layer}.experts.{expert}.{part}"][:] = np.nan
    assert same_bits(Transformer(model.config, weights, dtype="float32")(IDS[:4]), expected)


def test_no_ids_at_all():
    model, _ = make()
    assert model(np.zeros(0, int)).shape == (0, model.config.vocab_size)


# ---- MiniMind ------------------------------------------------------------------------------------

MINIMIND = {
    "model_type": "minimind",
    "architectures": ["MiniMindForCausalLM"],
    "hidden_act": "silu",
    "rope_theta": 1e6,
    "use_moe": True,
    "norm_topk_prob": True,
}


@pytest.fixture
def minimind(tmp_path):
    """minimind(**config) is the .pth file of a small MiniMind with experts."""

    def minimind(shared=False, **changes):
        model = tiny_models.make("qwen3-moe", num_experts_per_tok=1)
        tensors = dict(model.state_dict())
        for name in [name for name in tensors if "experts" in name]:
            stacked, at = tensors.pop(name), name.rpartition(".")[0]
            for expert, one in enumerate(stacked):
                parts = ("gate", "up") if "gate_up" in name else ("down",)
                for part, matrix in zip(parts, one.chunk(len(parts)), strict=True):
                    tensors[f"{at}.{expert}.{part}_proj.weight"] = matrix.clone()
                    if shared and expert == 0:
                        beside = f"{at.replace('experts', 'shared_experts')}.0.{part}_proj.weight"
                        tensors[beside] = -matrix
        torch.save(tensors, tmp_path / "moe.pth")
        config = tiny_models.SIZES | MINIMIND | {"rms_norm_eps": 1e-6, "head_dim": 16}
        config |= {"intermediate_size": 24, "tie_word_embeddings": False} | changes
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return minimind


def shares_of(trace):
    return trace["layers.1.mlp.expert_weights"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_minimind_with_experts_is_saved_as_it_is(minimind, shared, tmp_path):
    folder = minimind(
        shared=shared, n_routed_experts=5, num_experts_per_tok=2, n_shared_experts=int(shared)
    )
    TrainableModel.from_pretrained(folder).save(tmp_path / "saved")
    saved = sf.from_pretrained(tmp_path / "saved")
    assert (saved(IDS % 96) == sf.from_pretrained(folder)(IDS % 96)).all()
    found = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert found["model_type"] == ("minimind" if shared else "qwen3_moe")


def test_minimind_with_experts(minimind):
    """As in transformers' model of the same layers: softmax over all experts, the weights of the
    chosen ones divided by their sum."""
    folder = minimind(
        num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, rope_theta=1e4
    )
    theirs = tiny_models.make("qwen3-moe", num_experts_per_tok=2, norm_topk_prob=True)
    with torch.no_grad():
        want = theirs(torch.from_numpy(IDS % 96)[None]).logits[0].numpy()
    np.testing.assert_allclose(sf.from_pretrained(folder)(IDS % 96), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("earlier", [False, True])
def test_minimind_with_one_expert_a_token(minimind, earlier):
    """Its earlier generation does not normalise the weight of a single expert; the later one
    does, which makes it 1."""
    count = {"n_routed_experts" if earlier else "num_experts": 5, "num_experts_per_tok": 1}
    own = {"n_shared_experts": 1, "scoring_func": "softmax"} if earlier else {}
    model = sf.from_pretrained(minimind(shared=earlier, **count, **own))
    _, trace = model.run_with_cache(IDS % 96)
    shares = shares_of(trace)
    assert (shares < 1).all() if earlier else (shares == 1).all()
    assert ("layers.0.mlp.shared.out" in trace) == earlier
    if earlier:
        layer = trace[1]
        total = shares[..., None] * layer["mlp.expert_out"]
        total = total.sum(-2) + layer["mlp.shared.out"]
        np.testing.assert_allclose(layer["mlp.out"], total, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "num_experts = None, needs a whole number > 0"),
        ({"num_experts": 5}, "num_experts_per_tok = None, needs a whole number > 0"),
        ({"num_experts": 5, "num_experts_per_tok": 9}, "num_experts_per_tok = 9, needs from 1"),
        ({"use_moe": "yes"}, "use_moe = 'yes', needs true or false"),
        (
            {"n_routed_experts": 5, "num_experts_per_tok": 1, "n_shared_experts": 2},
            "n_shared_experts = 2, needs 0 or 1",
        ),
        (
            {"n_routed_experts": 5, "num_experts_per_tok": 1, "scoring_func": "sigmoid"},
            "scoring_func = 'sigmoid', needs 'softmax'",
        ),
    ],
)
def test_minimind_experts_that_make_no_sense_are_refused(minimind, changes, message):
    assert message in told(minimind(**changes))


# ---- trace and edits -----------------------------------------------------------------------------


def test_the_trace_of_experts(tmp_path):
    model, _ = make()
    _, trace = model.run_with_cache(np.stack([IDS, IDS[::-1]]))
    shapes = {name.removeprefix("mlp."): array.shape[2:] for name, array in trace[0].items()}
    sizes = {"router": (6,), "experts": (3,), "expert_weights": (3,), "expert_out": (3, 32)}
    sizes |= dict.fromkeys(("gate", "up", "act"), (3, 20))
    sizes |= dict.fromkeys(("shared.gate", "shared.up", "shared.act"), (12,))
    sizes |= {"shared.weight": (1,), "shared.out": (32,)}
    width = model.config.hidden_size
    sizes = {name: tuple(width if n == 32 else n for n in shape) for name, shape in sizes.items()}
    assert {name: shapes[name] for name in sizes} == sizes
    assert trace["layers.0.mlp.experts"].dtype == np.int64
    assert list(trace) == trace_names(model.config)
    assert not [name for name in trace[1] if "expert" in name or "shared" in name]
    trace.save(tmp_path / "t.npz")
    again = Trace.load(tmp_path / "t.npz")
    assert all(same_bits(again[name], trace[name]) for name in trace)
    assert "2 × 13 × 3 × 20, 2 × 13 × 44" in trace._repr_html_()  # with experts, and without


@pytest.mark.parametrize("changes", [{}, {"shared_router": False}, dict.fromkeys(SHARED, 0)])
def test_names_are_those_that_the_model_has(changes):
    changes = {name: bool(v) if name == "shared_router" else v for name, v in changes.items()}
    model, _ = make(**changes)
    _, trace = model.run_with_cache(IDS)
    assert list(trace) == trace_names(model.config)


def test_an_expert_that_the_router_is_not_to_choose():
    model, _ = make()
    _, before = model.run_with_cache(IDS)
    knocked = before["layers.0.mlp.experts"][-1, 0]

    def without(logits):
        logits[:, knocked] = -np.inf

    _, trace = model.run_with_cache(IDS, edit={"layers.0.mlp.router": without})
    assert not (trace["layers.0.mlp.experts"] == knocked).any()
    second = before["layers.0.mlp.experts"][-1, 1]
    assert trace["layers.0.mlp.experts"][-1, 0] == second
    assert not same_bits(trace["layers.0.mlp.out"][-1], before["layers.0.mlp.out"][-1])


def test_experts_that_are_chosen_by_hand():
    model, _ = make()
    logits, before = model.run_with_cache(IDS)
    order = before["layers.0.mlp.experts"][:, ::-1]  # the same ones in another order
    swapped = model(IDS, edit={"layers.0.mlp.experts": order})
    np.testing.assert_allclose(swapped, logits, rtol=1e-5, atol=1e-5)
    _, trace = model.run_with_cache(IDS, edit={"layers.0.mlp.experts": np.array([5, 0, 3])})
    assert (trace["layers.0.mlp.experts"] == [5, 0, 3]).all()
    chosen = trace["layers.0.mlp.router"][:, [5, 0, 3]].astype(np.float64)
    shares = np.exp(chosen) / np.exp(chosen).sum(-1, keepdims=True)
    np.testing.assert_allclose(trace["layers.0.mlp.expert_weights"], shares, rtol=1e-5)


@pytest.mark.parametrize("ids", [[0, 1, 6], [-1, 1, 2], [2, 2, 3]])
def test_numbers_of_no_experts_are_refused(ids):
    model, _ = make()
    with pytest.raises(ValueError, match="needs for each position 3 different numbers from 0"):
        model(IDS, edit={"layers.0.mlp.experts": np.array(ids)})


def test_what_each_expert_writes_can_be_changed():
    model, _ = make(**dict.fromkeys(SHARED, 0) | {"shared_router": False})
    silent = {"layers.0.mlp.expert_out": np.float32(0)}
    _, trace = model.run_with_cache(IDS, edit=silent)
    assert not trace["layers.0.mlp.out"].any()
    same = {"layers.*.mlp.*": lambda x: x.copy()}
    assert same_bits(model(IDS, edit=same), model(IDS))


# ---- what there is -------------------------------------------------------------------------------


def test_parameters_of_a_token_and_of_all():
    """Qwen3-30B-A3B: 30.5 billion parameters, 3.3 of them for a token."""
    config = tiny_config(
        hidden_size=2048,
        num_layers=48,
        num_heads=32,
        num_kv_heads=4,
        head_dim=128,
        intermediate_size=6144,
        vocab_size=151936,
        tie_embeddings=False,
        qk_norm=True,
        num_experts=128,
        num_experts_per_tok=8,
        expert_intermediate_size=768,
    )
    budget = parameter_budget(config)
    assert sum(budget.values()) == 30_532_122_624
    assert budget["experts"] == 48 * 128 * 3 * 2048 * 768
    assert active_parameters(config) == 3_353_032_704
    assert budget["mlp"] == 48 * 128 * 2048  # the routers


def test_what_a_token_reads():
    model, _ = make()
    all_of_them, _ = make(num_experts_per_tok=6)
    one = 3 * 20 * model.config.hidden_size * 4
    panels = 3 * 32 * model.config.hidden_size * 4  # 20 rows are packed as 32
    read, most = (decode_bytes(m.config, m.weights, 5, 4) for m in (model, all_of_them))
    assert 2 * 3 * one <= most - read <= 2 * 3 * panels


def test_info_counts_experts(tmp_path, capsys):
    tiny_models.make("qwen2-moe").save_pretrained(tmp_path)
    assert cli.main(["info", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "num_experts        5\n" in shown
    checkpoint = read_checkpoint(tmp_path)
    experts = 3 * 5 * 3 * 24 * 32
    total = sum(math.prod(tensor.shape) for tensor in checkpoint.weights.values())
    assert f"experts            {experts:,} parameters" in shown
    active = total - experts * 3 // 5
    assert f"all                {total:,} parameters, {active:,} of them for a token\n" in shown


# ---- what does not fit ---------------------------------------------------------------------------


GATE = "model.layers.1.mlp.experts.3.gate_proj.weight"


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        (
            lambda t: t.pop(GATE),
            {},
            f"missing: {GATE} (24, 32) [layers.1.experts.3.gate] in model.safetensors",
        ),
        (
            lambda t: t.update({GATE: torch.zeros(25, 32)}),
            {},
            f"misshapen: {GATE} (25, 32) [layers.1.experts.3.gate] in model.safetensors, needs (2",
        ),
        (
            lambda t: None,
            {"num_local_experts": 4},
            "misshapen: model.layers.0.mlp.gate.weight (5, 32) [layers.0.router] in model.saf",
        ),
        (
            lambda t: t.update({GATE.replace(".3.", ".03."): torch.zeros(24, 32)}),
            {},
            "left over: model.layers.1.mlp.experts.03.gate_proj.weight (24, 32) in model.safe",
        ),
        (lambda t: None, {"num_experts_per_tok": 6}, "num_experts_per_tok = 6, needs from 1"),
        (lambda t: None, {"num_experts": 4}, "num_local_experts and num_experts that disagree"),
        (lambda t: None, {"num_experts_per_tok": None}, "found no num_experts_per_tok, needs"),
        (lambda t: None, {"mlp_only_layers": [-1]}, "mlp_only_layers = [-1], needs a list"),
        (lambda t: None, {"decoder_sparse_step": 0}, "decoder_sparse_step = 0, needs a who"),
        (lambda t: None, {"norm_topk_prob": 1}, "norm_topk_prob = 1, needs True or False"),
        (
            lambda t: None,
            {"num_local_experts": 4000},
            "num_experts = 4000, but 75 tensors in model.safetensors, needs several tensors",
        ),
        (lambda t: None, {"num_local_experts": 5000}, "num_experts = 5000, needs at most 4096"),
    ],
)
def test_experts_that_do_not_fit_are_told_as_in_the_file(tmp_path, change, config, message):
    assert message in told(tiny_models.save_changed(tmp_path, "qwen3-moe", change, **config))
