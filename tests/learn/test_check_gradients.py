"""check_gradients finds the first wrong gradient of a learner's own model, and says why."""

from functools import cache

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import simdformer as sf
from checkpoints import GEMMA, GPT2, OLMO2, random_weights, tiny_config
from mistake_examples import names
from simdformer.learn.catalogue import CATALOGUE
from simdformer.learn.gradients.steps import WEIGHT, BackwardSteps
from simdformer.learn.mistakes.model import variable
from simdformer.learn.mistakes.model_backward import layer_backward
from simdformer.learn.program import Run
from simdformer.training import TrainableModel
from test_check_trace import CONFIGS, raw_weights

IDS = np.random.default_rng(0).integers(0, 50, (2, 9))
IDS[:, 3] = IDS[:, 6]  # ids that come again
LABELS = np.concatenate([IDS[:, 1:], np.full((2, 1), -100)], axis=1)
LABELS[0, :2] = -100  # a prompt


HALF = {"rope_layout": "half"}
OTHERS = {"gemma": GEMMA | HALF, "gpt2": GPT2 | {"num_kv_heads": 4}, "olmo2": OLMO2 | HALF}


@cache
def made(name):
    """A model, and its right gradients."""
    if name in OTHERS:
        config = tiny_config(**OTHERS[name])
        weights = random_weights(np.random.default_rng(5), config)
    else:
        config = CONFIGS[name]
        weights = raw_weights(config)
    model = TrainableModel(config, weights)
    return model, model.loss_and_gradients(IDS, LABELS)[1]


def checked(mine, model, **options):
    return sf.check_gradients(mine, model, IDS, LABELS, **options)


# ---- right ---------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", ["llama", "qwen3", "qwen2", "mistral", "biased", "clamped", "mixture", *OTHERS]
)
def test_what_is_right_is_right(name):
    model, gradients = made(name)
    report = checked(gradients, model)
    assert report.ok, report
    assert set(report.checked) == set(gradients)
    assert report.missing == ()
    assert checked(gradients, model.language_model()), "a LanguageModel of the same weights"
    for dtype in (np.float64, np.float16) if name in OTHERS else ():
        assert checked({n: g.astype(dtype) for n, g in gradients.items()}, model)
    wrong = gradients | {"layers.1.wv": gradients["layers.1.wv"] * 3}
    assert checked(wrong, model).first_wrong == "layers.1.wv"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gpt2"])
def test_gradients_of_transformers_modules_are_right(kind, dtype, tmp_path):
    """By PyTorch's autograd; Hugging Face's names, and its order of the rows that RoPE turns."""
    transformers = pytest.importorskip("transformers")
    model, _ = made(kind)
    model.save(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=dtype, attn_implementation="eager"
    )
    labels = torch.from_numpy(LABELS)
    logits = theirs(torch.from_numpy(IDS)).logits
    F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()).backward()
    report = checked(theirs, model)
    assert report.ok, report
    name, parameter = next(one for one in theirs.named_parameters() if "1.mlp." in one[0])
    parameter.grad *= 1.5
    report = checked(theirs, model)
    assert report.first_wrong.endswith(f"({name})"), report


def test_matrices_may_lie_as_in_out():
    model, gradients = made("llama")
    mine = {k: g.T if k != "embed" else g for k, g in gradients.items()}
    report = checked(mine, model)
    assert report.ok, report
    assert report.remarks == ("your matrices lie as (in, out), for x @ w",)


def test_a_head_of_its_own_beside_a_tied_embedding():
    model, gradients = made("qwen3")
    head = np.random.default_rng(1).standard_normal(gradients["embed"].shape, np.float32)
    parts = gradients | {"embed": gradients["embed"] - head, "lm_head": head}
    report = checked(parts, model)
    assert report.ok, report
    assert "yours are added" in report.remarks[0]


def test_gradients_of_activations():
    model, _ = made("llama")
    seen = {}
    model.loss_and_gradients(IDS, LABELS, see=lambda name, g: seen.update({name: g.copy()}))
    assert checked(seen, model), "as a step shows them"
    heads_first = seen | {"layers.1.attn.q": seen["layers.1.attn.q"].swapaxes(1, 2)}
    assert checked(heads_first, model)
    report = checked(seen | {"layers.1.attn.q": seen["layers.1.attn.q_rot"]}, model)
    assert report.first_wrong == "layers.1.attn.q"
    assert "layer_backward.q_not_turned_back" in names(report)


# ---- one mistake in all layers -------------------------------------------------------------------


def planted(name, mistake):
    """The gradients that a model's way back gives with a mistake in it."""
    model, gradients = made(name)
    steps = BackwardSteps(model, IDS, LABELS)
    program, variables = steps.part(f"{WEIGHT}embed", set(), lambda x: x)
    layers = {}
    for _, part, _ in variables["plan"]:
        part.steps = dict(layer_backward.steps)
        part.steps["layer_backward.end"] = lambda s: layers.update({s.index: s})
    program.steps["model_backward.end"] = lambda s: setattr(s, "out", s)
    whole = Run(np.float32, CATALOGUE[mistake].replaces, record=False)(program, **variables)
    mine = {}
    for one in gradients:
        of = layers[int(one.split(".")[1])] if one.startswith("layers.") else whole
        mine[one] = getattr(of, f"dw_{variable(one)}", gradients[one])
    return mine


BETWEEN = [
    name for name in CATALOGUE.variations if name.startswith(("layer_backward.", "model_backward."))
]
WHERE = {
    "model_backward.rows_alone": "qwen3",
    "model_backward.head_alone": "qwen3",
    "layer_backward.q_norm_skipped": "qwen3",
    "layer_backward.k_norm_skipped": "qwen3",
}


@pytest.mark.parametrize("mistake", BETWEEN)
def test_mistakes_between_the_operations_are_named(mistake):
    name = WHERE.get(mistake, "llama")
    report = checked(planted(name, mistake), made(name)[0])
    assert mistake in names(report), report
    assert len(names(report)) <= 3, report


SOME = {
    "rms_norm_backward.second_term_missing": "layers.2.down is wrong while final_norm is right",
    "swiglu_backward.up_missing_in_gate": "layers.2.gate is wrong while layers.2.up is right",
    "attention_backward.delta_missing": "layers.2.wq is wrong while layers.2.wo is right",
    "attention_backward.groups_averaged": "layers.2.wk is wrong while layers.2.wq is right",
    "rope_backward.turned_forwards": "layers.2.wq is wrong while layers.2.wo is right",
    "linear_backward.weight_averaged": "lm_head is wrong",
    "embedding_backward.overwritten": "embed is wrong while layers.0.attn_norm is right",
    "cross_entropy_backward.ignored_not_zero": "lm_head is wrong",
}


@pytest.mark.parametrize("mistake", [name for name in SOME if name in CATALOGUE.variations])
def test_mistakes_inside_of_operations_are_named_and_located(mistake):
    report = checked(planted("llama", mistake), made("llama")[0])
    assert mistake in names(report), report
    assert report.sentence == SOME[mistake]


# ---- one mistake in one layer of the learner's own model -----------------------------------------


class Wrong(torch.autograd.Function):
    """y = f(*inputs), with a way back of one's own."""

    @staticmethod
    def forward(ctx, f, back, *inputs):
        ctx.back = back
        ctx.save_for_backward(*inputs)
        return f(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return None, None, *ctx.back(grad, *ctx.saved_tensors)


def norm(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w


def norm_back(dy, x, w):
    """Without the second term."""
    r = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    return dy * w * r, (dy * x * r).flatten(0, -2).sum(0)


def softmax_back(dy, scores):
    """Without the row sum."""
    return (scores.softmax(-1) * dy,)


def activation_back(dy, gate, up):
    """silu's slope is taken for the sigmoid."""
    s = gate.sigmoid()
    return dy * up * s, dy * gate * s


def linear_back(dy, x, w):
    """The weight's gradient is a mean over the rows."""
    rows = dy.flatten(0, -2)
    return dy @ w, rows.T @ x.flatten(0, -2) / len(rows)


SLIPS = {
    "mlp_norm": (norm_back, "layers.1.wo", "rms_norm_backward.second_term_missing"),
    "attn_norm": (norm_back, "layers.0.down", "rms_norm_backward.second_term_missing"),
    "softmax": (softmax_back, "layers.1.wq", "attention_backward.delta_missing"),
    "activation": (activation_back, "layers.1.gate", "swiglu_backward.first_term_only"),
    "wo": (linear_back, "layers.1.wo", "linear_backward.weight_averaged"),
}


OF_LAYER = ("attn_norm", "wq", "wk", "wv", "wo", "mlp_norm", "gate", "up", "down")


class Llama(torch.nn.Module):
    """As one writes it; in layer 1 one operation has a way back of one's own."""

    def __init__(self, config, weights, slip=""):
        super().__init__()
        self.config, self.slip = config, slip
        for name, weight in weights.items():
            parameter = torch.nn.Parameter(torch.from_numpy(weight.copy()))
            self.register_parameter(name.replace(".", "_"), parameter)

    def run(self, layer, op, f, *inputs):
        if (layer, op) != (1, self.slip):
            return f(*inputs)
        return Wrong.apply(f, SLIPS[op][0], *inputs)

    def forward(self, ids):
        w, config = dict(self.named_parameters()), self.config
        x = w["embed"][ids]
        for i in range(config.num_layers):
            own = {name: w[f"layers_{i}_{name}"] for name in OF_LAYER}
            x = x + self.attention(i, self.run(i, "attn_norm", norm, x, own["attn_norm"]), own)
            h = self.run(i, "mlp_norm", norm, x, own["mlp_norm"])
            act = self.run(i, "activation", lambda g, u: F.silu(g) * u,
                           h @ own["gate"].T, h @ own["up"].T)  # fmt: skip
            x = x + act @ own["down"].T
        return norm(x, w["final_norm"]) @ w["lm_head"].T

    def attention(self, i, x, own):
        size = self.config.head_dim
        q, k, v = ((x @ own[n].T).unflatten(-1, (-1, size)).transpose(1, 2)
                   for n in ("wq", "wk", "wv"))  # fmt: skip
        q, k = self.turned(q), self.turned(k)
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / size**0.5
        scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
        z = self.run(i, "softmax", lambda s: s.softmax(-1), scores) @ v
        return self.run(i, "wo", lambda x, w: x @ w.T, z.transpose(1, 2).flatten(2), own["wo"])

    def turned(self, x):
        size, theta = x.shape[-1], self.config.rope_theta
        angles = torch.outer(torch.arange(x.shape[-2]), theta ** -(torch.arange(0, size, 2) / size))
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(z * torch.polar(torch.ones(()), angles)).flatten(-2)


ALIASES = {name.replace(".", "_"): name for name in raw_weights(CONFIGS["llama"])}


@pytest.mark.parametrize("slip", ["", *SLIPS])
def test_one_wrong_backward_in_one_layer_is_located_and_named(slip):
    model, _ = made("llama")
    own = Llama(model.config, model.parameters(), slip)
    logits = own(torch.from_numpy(IDS))
    F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(LABELS).flatten()).backward()
    report = checked(own, model, aliases=ALIASES)
    if not slip:
        assert report.ok, report
        return
    _, first, mistake = SLIPS[slip]
    assert report.first_wrong.partition(" ")[0] == first, report
    assert mistake in names(report), report


# ---- what is done to all of them -----------------------------------------------------------------

COUNT = int((LABELS != -100).sum())
FACTORS = {
    "gradients.accumulated": 2.0,
    "gradients.of_the_sum": COUNT,
    "gradients.averaged_twice": 1 / COUNT,
    "gradients.ignored_counted": COUNT / LABELS.size,
    "gradients.averaged_over_batch": 1 / len(IDS),
    "gradients.negative": -1.0,
    "gradients.loss_scaled": 65536.0,
    "gradients.factor": 0.3,
}


@pytest.mark.parametrize("mistake", FACTORS)
def test_a_factor_that_all_have_is_named(mistake):
    model, gradients = made("llama")
    report = checked({k: FACTORS[mistake] * g for k, g in gradients.items()}, model)
    assert mistake in names(report), report


def test_a_gradient_that_is_doubled_alone():
    model, gradients = made("llama")
    report = checked(gradients | {"layers.1.down": 2 * gradients["layers.1.down"]}, model)
    assert names(report) == ["gradients.added_twice"], report


def test_clipped_gradients_are_named():
    model, gradients = made("llama")
    mine = {name: g.copy() for name, g in gradients.items()}
    assert sf.optim.clip_grad_norm_(mine, 1.0) > 1
    assert names(checked(mine, model)) == ["gradients.clipped"]
    mine = {name: g.copy() for name, g in gradients.items()}
    for g in mine.values():
        sf.optim.clip_grad_norm_([g], 0.5)
    assert names(checked(mine, model)) == ["gradients.clipped_one_by_one"]


@pytest.mark.parametrize(
    ("mistake", "labels"),
    [
        ("labels_not_shifted", IDS),
        ("labels_shifted_twice", np.concatenate([LABELS[:, 1:], LABELS[:, :1] * 0 - 100], 1)),
        ("ignored_learnt", np.concatenate([IDS[:, 1:], IDS[:, :1]], 1)),
    ],
)
def test_other_labels_are_named(mistake, labels):
    model, _ = made("llama")
    _, mine = model.loss_and_gradients(IDS, labels)
    assert names(checked(mine, model)) == [f"gradients.{mistake}"]


def test_swapped_missing_none_unknown_and_misshapen_ones_are_named():
    model, gradients = made("llama")
    up, gate = gradients["layers.1.up"], gradients["layers.1.gate"]
    report = checked(gradients | {"layers.1.up": gate, "layers.1.gate": up}, model)
    assert report.diagnosis[0].title == "this is the gradient of layers.1.gate"
    report = checked(gradients | {"layers.2.wk": None}, model)
    assert report.report._head() == "✗ layers.2.wk: None, needs (8, 24)"
    assert names(report) == ["gradients.none"]
    some = {name: g for name, g in gradients.items() if ".wq" not in name} | {"layer_1_wv": up}
    report = checked(some, model)
    assert report.ok
    assert report.missing == tuple(f"layers.{i}.wq" for i in range(3))
    assert "? unknown name 'layer_1_wv' (do you mean layers.1.wv" in repr(report)
    report = checked(gradients | {"layers.1.down": gradients["layers.1.down"].T}, model)
    assert names(report) == ["linear_backward.transposed"]
    assert report.sentence == "layers.1.down is wrong while layers.2.attn_norm is right"


def test_what_no_mistake_explains_is_located():
    model, gradients = made("llama")
    noise = np.random.default_rng(3).standard_normal(gradients["layers.0.wv"].shape, np.float32)
    report = checked(gradients | {"layers.0.wv": noise}, model)
    assert not report.ok
    assert report.diagnosis == ()
    assert "· on the way to it: attention, wv" in repr(report)
    assert max(map(len, repr(report).splitlines())) <= 80
    assert "<div" in report._repr_html_()


@pytest.mark.parametrize(
    ("mine", "error", "said"),
    [
        ({}, ValueError, "mine is empty, needs arrays under the model's names: embed, "),
        ({"a": np.ones(3)}, ValueError, "no name in mine is known: 'a'; the model's own are embed"),
        ([np.ones(3)], TypeError, "mine is a list, needs a dict of gradients, or a module"),
        (
            {"embed": None},
            ValueError,
            r"mine has no gradient for any of its parameters, .* call loss",
        ),
    ],
)
def test_refusals(mine, error, said):
    with pytest.raises(error, match=f"^check_gradients: .*{said}"):
        checked(mine, made("llama")[0])


def test_models_and_texts_that_are_none_are_refused():
    model, gradients = made("llama")
    with pytest.raises(TypeError, match="check_gradients: model is a str, needs what"):
        checked(gradients, "demo")
    with pytest.raises(ValueError, match="check_gradients: ids is a text, and this model has no"):
        sf.check_gradients(gradients, model, "once")
    with pytest.raises(ValueError, match=r"check_gradients: ids have shape \(0,\), needs at least"):
        sf.check_gradients(gradients, model, [])
    with pytest.raises(TypeError, match="check_gradients: aliases is 5, needs a dict"):
        sf.check_gradients(gradients, model, [1, 2], aliases=5)


@pytest.mark.parametrize(
    ("weight", "factor", "name"),
    [
        ("lm_head", 0, "gradient.zero"),
        ("layers.1.wk", 0, "gradient.zero"),
        ("layers.1.wk", np.nan, "gradient.not_finite"),
        ("layers.1.wk", 1.02, "array.in_proportion"),
    ],
)
def test_zeros_nan_and_a_factor_are_called_so(weight, factor, name):
    """Many mistakes give zeros, or NaN; a scale of the scores would be in the gradient of wq."""
    model, gradients = made("llama")
    mine = gradients | {weight: gradients[weight] * np.float32(factor)}
    report = checked(mine, model)
    assert report.first_wrong == weight
    assert [one.name for one in report.diagnosis] == [name]
    assert report.report.dtype == "float32"
