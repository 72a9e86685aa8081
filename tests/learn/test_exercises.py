"""The exercises: right solutions are right, wrong ones are told why, and nothing that a file does
disturbs the list."""

import inspect
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import simdformer as sf
from simdformer.learn.exercises import EXERCISES, solutions, starter

NUMPY = Path(solutions.__file__).read_text()
IDIOMS = sorted(Path(__file__).parent.glob("solutions/*.py"))

TORCH = """
def rope_interleaved(x, positions, theta):
    freqs = 1 / theta ** (torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
    angles = torch.outer(positions.double(), freqs)
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)

def rms_norm(x, weight, eps):
    layer = torch.nn.RMSNorm(x.shape[-1], eps=eps, dtype=x.dtype)
    layer.weight.data = weight
    return layer(x)  # which needs a gradient

def silu(x):
    return F.silu(x).bfloat16()

def mlp(x, gate, up, down):
    g, u = x.numpy() @ gate.numpy().T, x @ up.T  # both kinds in one function
    return F.silu(torch.as_tensor(g)) * u @ down.T
"""


def functions(code):
    names = {}
    exec(textwrap.dedent(code), names)
    return names


@pytest.fixture
def write(write):
    return lambda data, name="my_attention.py": write(data, name)


def status(results):
    return {outcome.name: outcome.status for outcome in results if outcome.status != "missing"}


# ---- right ---------------------------------------------------------------------------------------


def test_a_solution_of_every_exercise_is_right(write):
    results = sf.exercises.check(write(NUMPY))
    assert results.ok, results
    assert [outcome.name for outcome in results] == list(EXERCISES)
    assert results.summary == f"my_attention.py: {len(EXERCISES)} right"


SLOW = ("meta", "huggingface")  # as PyTorch's, which is imported for them too


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=[pytest.mark.slow] if file.stem in SLOW else []) for file in IDIOMS],
    ids=lambda file: file.stem,
)
def test_every_ordinary_idiom_is_right(file):
    results = sf.exercises.check(file)
    written = [one for one in results if one.status != "missing"]
    assert all(one.ok for one in written), results
    assert len(results) == len(EXERCISES)
    exact = ("embedding", "generate", "bpe_merges", "chat_ids")  # nothing is rounded
    there = [n for n, one in EXERCISES.items() if one.chapter < "7" and n not in exact]
    assert [one.name for one in written] == there if file.stem in SLOW else results.ok


def test_the_same_in_a_notebook():
    results = sf.exercises.check(functions(NUMPY))
    assert results, results
    assert len(results) == len(EXERCISES)
    one = sf.exercises.check(functions(NUMPY)["softmax"])
    assert one.ok
    assert one["softmax"].note == "6 calls are right"


@pytest.mark.slow
def test_tensors_are_understood(write):
    torchs = (Path(__file__).parent / "solutions/pytorch.py").read_text() + TORCH
    written = functions(torchs)
    expected = {name: "right" for name in EXERCISES if name in written}
    assert status(sf.exercises.check(write(torchs))) == expected
    assert status(sf.exercises.check(functions(torchs))) == expected


def shape_of(argument):
    listed = isinstance(argument, list) and isinstance(argument[0], list | np.ndarray)
    return tuple(map(np.shape, argument)) if listed else np.shape(argument)


def test_every_exercise_is_asked_about_in_many_ways():
    for exercise in EXERCISES.values():
        cases = exercise.cases()
        again = exercise.cases()
        for one, other in zip(cases, again, strict=True):  # the same numbers every time
            np.testing.assert_equal(one.arguments, other.arguments)
        shapes = {tuple(map(shape_of, case.arguments)) for case in cases}
        takes_arrays = any(shape_of(one) for case in cases for one in case.arguments)
        assert len(shapes) >= 2 or not takes_arrays
        assert len(set(map(exercise.label, cases))) >= 3 or takes_arrays
        assert not any(" at 0x" in exercise.label(case) for case in cases)  # a function by its name
        parameters = list(inspect.signature(getattr(starter, exercise.name)).parameters)
        assert all(len(case.arguments) <= len(parameters) for case in cases)
    labels = [case.special for case in EXERCISES["scaled_dot_product_attention"].cases()]
    assert {"query 1 sees nothing", "large scores", "a mask of numbers"} <= set(labels)


# ---- wrong ---------------------------------------------------------------------------------------

WRONG = {  # words of the diagnosis, and what the function returns
    "softmax": ("exp overflows", "np.exp(x) / np.exp(x).sum(axis, keepdims=True)"),
    "causal_mask": ("offset is forgotten", "np.triu(np.full((L, S), -np.inf), 1)"),
    "linear": ("bias is forgotten", "x @ weight.T"),
    "split_heads": (
        "without a transpose",
        "x.reshape(*x.shape[:-2], num_heads, x.shape[-2], -1)",
    ),
    "merge_heads": ("without a transpose", "x.reshape(*x.shape[:-3], x.shape[-2], -1)"),
    "repeat_kv": ("tiled", "np.tile(x, (n, 1, 1))"),
    "rope_frequencies": ("i/D instead of 2i/D", "theta ** (-np.arange(head_dim // 2) / head_dim)"),
    "rope_half": ("half and interleaved are swapped", "rope_interleaved(x, positions, theta)"),
    "rope_interleaved": (
        "theta is 10,000",
        "turned(x, positions, 10000.0, np.s_[::2], np.s_[1::2])",
    ),
    "embedding": ("counted from 1", "weight[ids - 1]"),
    "rms_norm": (
        "outside the root",
        "x / (np.sqrt((x * x).mean(-1, keepdims=True)) + eps) * weight",
    ),
    "layer_norm": ("mean is not subtracted", "rms_norm(x, weight, eps) + bias"),
    "silu": ("relu instead of silu", "np.maximum(x, 0)"),
    "mlp": ("silu is on the wrong side", "((x @ gate.T) * silu(x @ up.T)) @ down.T"),
    "attend_with_cache": (
        "in front of the old ones",
        (
            "[good(query, key, value, cached_keys, cached_values)[0]]"
            " + [np.concatenate([key, cached_keys], 1), np.concatenate([value, cached_values], 1)]"
        ),
    ),
}


WRONG |= {
    "softmax_backward": ("row sum is missing", "output * grad"),
    "cross_entropy_backward": (
        "divided by all rows",
        "good(logits, labels) * np.float32((labels != -100).mean())",
    ),
    "linear_backward": (
        "a mean, not a sum",
        "(grad @ weight, good(grad, x, weight)[1], grad.reshape(-1, len(weight)).mean(0))",
    ),
    "rms_norm_backward": (
        "second term is missing",
        (
            "grad * weight / np.sqrt((x * x).mean(-1, keepdims=True) + eps),"
            " good(grad, x, weight, eps)[1]"
        ),
    ),
    "rope_backward": ("turned forwards", "rope_half(grad, positions, theta)"),
    "swiglu_backward": ("swapped", "good(grad, gate, up)[::-1]"),
    "attention_backward": (
        "scale is missing",
        (
            "tuple(x * (np.float32(6**0.5) if i < 2 else 1)"
            " for i, x in enumerate(good(grad, query, key, value)))"
        ),
    ),
    "clip_gradients": (
        "its own norm",
        "[g * min(1, max_norm / np.linalg.norm(g)) for g in gradients]",
    ),
    "cosine_lr": (
        "min_lr is left out",
        "lr * step / warmup if step < warmup else good(step, lr, warmup, total, 0)",
    ),
    "adamw_step": (
        "bias correction is missing",
        "good(weight, gradient, m, v, 10**6, lr, beta1, beta2, eps, weight_decay)",
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("name", WRONG)
def test_a_classic_mistake_is_named(name):
    words, body = WRONG[name]
    parameters = str(inspect.signature(getattr(starter, name)))
    code = f"{NUMPY}\ngood = {name}\ndef {name}{parameters}:\n    return {body}\n"
    outcome = sf.exercises.check(functions(code)[name])[name]
    assert outcome.status == "wrong"
    assert outcome.report.diagnosis, outcome
    assert any(words in mistake.title for mistake in outcome.report.diagnosis), outcome
    assert outcome.report.diagnosis[0].title in repr(outcome)
    assert "called with " in repr(outcome)
    assert "fix: " in repr(outcome)


def test_a_scale_of_zero_is_no_missing_scale():
    code = NUMPY.replace(
        "(query.shape[-1] ** -0.5 if scale is None else scale)",
        "(scale or query.shape[-1] ** -0.5)",
    )
    outcome = sf.exercises.check(functions(code)["scaled_dot_product_attention"])
    (found,) = outcome["scaled_dot_product_attention"].report.diagnosis
    assert "scale of 0" in found.title
    assert "scale=0.0" in outcome["scaled_dot_product_attention"].case


def test_an_unknown_mistake_is_described_and_not_guessed():
    def silu(x):
        return np.sin(17 * x)

    outcome = sf.exercises.check(silu)["silu"]
    assert outcome.report.diagnosis == ()
    assert "gives a wrong result" in outcome.note
    assert "numbers are off" in repr(outcome)


# A constant that is off, in the exercises that take it; the inputs make it larger than rounding.
CONSTANTS = [
    *(("rms_norm", "eps", eps) for eps in ("1e-5", "1e-6", "1e-8", "2 * eps", "0")),
    *(("layer_norm", "eps", eps) for eps in ("1e-5", "1e-6", "1e-8", "2 * eps", "0")),
    *(("transformer_block", "eps", eps) for eps in ("1e-5", "1e-6", "1e-8", "2 * eps", "0")),
    *(
        (name, "theta", theta)
        for name in ("rope_interleaved", "rope_half", "grouped_query_attention")
        for theta in ("10000.0", "500000.0", "1e6")
    ),
    ("rope_interleaved", "theta", "1.001 * theta"),
    ("rope_half", "theta", "1.001 * theta"),
    *(
        ("scaled_dot_product_attention", "scale", f"{scale} if scale is None else scale")
        for scale in ("1", "1 / query.shape[-1]", "query.shape[-1] ** 0.5", "0.45")
    ),
    ("scaled_dot_product_attention", "scale", "query.shape[-1] ** -0.5"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "constant", "wrong"), CONSTANTS)
def test_a_wrong_constant_is_many_times_as_large_as_rounding(name, constant, wrong):
    parameters = str(inspect.signature(getattr(starter, name)))
    given = ", ".join(inspect.signature(getattr(starter, name)).parameters)
    code = (
        f"{NUMPY}\ngood = {name}\ndef {name}{parameters}:\n"
        f"    {constant} = {wrong}\n    return good({given})\n"
    )
    exercise, worst = EXERCISES[name], 0.0
    wrongly, right = functions(code)[name], getattr(solutions, name)
    for case in exercise.cases():
        mine, wanted = (np.float64(function(*case.arguments)) for function in (wrongly, right))
        size = np.sqrt((wanted**2).mean(-1, keepdims=True))
        with np.errstate(invalid="ignore"):  # rows of zeros
            worst = max(worst, float(np.nanmax(np.abs(mine - wanted) / size)))
    assert worst > 1e-3  # where float32 rounds by 1e-7, and check allows 1e-4
    if name != "transformer_block":  # where looking for a reason takes long
        assert sf.exercises.check(functions(code)[name])[name].status == "wrong"


IMPURE = {
    "dropout": (
        (
            "import torch\ntorch.manual_seed(1)\n"  # few numbers may be dropped alike by chance
            "def softmax(x, axis=-1):\n"
            "    return torch.nn.functional.dropout(torch.softmax(x, axis), 0.5)"
        ),
        "softmax",
    ),
    "random": (
        (
            "import numpy as np\ndef silu(x):\n"
            "    return x / (1 + np.exp(-x)) + np.random.default_rng().normal(size=x.shape)"
        ),
        "silu",
    ),
    "kept": (
        (
            "kept = []\ndef embedding(ids, weight):\n"
            "    kept.append(ids)\n    return weight[ids] * len(kept)"
        ),
        "embedding",
    ),
    "longer": (
        (
            "import numpy as np\nkept = np.zeros((0, 4), 'f')\ndef embedding(ids, weight):\n"
            "    global kept\n    kept = np.concatenate([kept, weight[ids]])\n    return kept"
        ),
        "embedding",
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", IMPURE)
def test_two_answers_for_one_call_are_told(name, write):
    code, function = IMPURE[name]
    outcome = sf.exercises.check(write(code))[function]
    assert outcome.status == "raised"
    assert outcome.note.startswith("gives two answers for one call: ")
    if name == "longer":
        assert "shape (4, 4), then (8, 4)" in outcome.note


def test_a_second_call_that_fails_is_told(write):
    code = """
    calls = []
    def embedding(ids, weight):
        calls.append(1)
        return weight[ids] if len(calls) == 1 else None
    """
    outcome = sf.exercises.check(write(code))["embedding"]
    assert outcome.note.startswith("the second time it is called, it returned None")


def test_a_mistake_shows_what_the_function_printed(write):
    results = sf.exercises.check(
        write("def silu(x):\n    for i in range(9):\n        print('step', i)\n    return x\n")
    )
    assert "| step 0" in repr(results)
    assert "more lines" in repr(results)
    assert "| step 8" not in repr(results["silu"])


# ---- files that misbehave ------------------------------------------------------------------------

NASTY = """
import os, sys, time
import numpy as np
print("printed when it is imported")

def softmax(x, axis=-1):
    while True:
        time.sleep(1)

def causal_mask(L, S):
    sys.exit("enough")

def scaled_dot_product_attention(query, key, value, mask=None, scale=None):
    os._exit(7)

def linear(x, weight, bias=None):
    x += 1
    return x @ weight.T

def split_heads(x, num_heads):
    pass

def merge_heads(x):
    return "text"

def multi_head_attention(query, key, value, num_heads, wq, wk, wv, wo, mask=None):
    return undefined + 1

def repeat_kv(x):
    return x

def rope_frequencies(head_dim, theta):
    os.abort()

def rope_interleaved(x, positions, theta):
    raise NotImplementedError

def rope_half(x, positions, theta):
    return rope_interleaved(x, positions, theta)

def embedding(ids, weight):
    return [weight, weight[:1]]

def rms_norm(x, weight, eps):
    return np.full(x.shape, np.nan)

def layer_norm(x, weight, bias, eps):
    return x.astype(complex)

silu = 5

def mlp(x, gate, up, down):
    return input("which? ")

def grouped_query_attention(*arguments):
    return arguments[0][0]

def transformer_block(x, weights, num_heads, num_kv_heads, eps, theta):
    weights["wq"] *= 0
    return x

def attend_with_cache(query, key, value, cached_keys, cached_values):
    return query
"""


@pytest.mark.slow
def test_whatever_a_function_does_the_others_are_checked(write):
    results = sf.exercises.check_file(write(NASTY + "\ndef embed():\n    pass\n"), seconds=1)
    notes = {outcome.name: outcome.note for outcome in results}
    expected = {
        "softmax": "did not come back within 1 seconds",
        "causal_mask": 'raised SystemExit: enough\nline 11: sys.exit("enough")',
        "scaled_dot_product_attention": "ended the whole process with exit status 7",
        "linear": "changed its input x: compute on a copy",
        "split_heads": "returned None: is there a `return` at its end?",
        "merge_heads": "returned a str",
        "multi_head_attention": "name 'undefined' is not defined\nline 27: return undefined + 1",
        "repeat_kv": "takes (x), needs 2 arguments",
        "rope_frequencies": "crashed (SIGABRT)",
        "rope_interleaved": "not written yet",
        "rope_half": "waits for rope_interleaved, which is not written yet",
        "embedding": "returned a list that is no array of numbers",
        "rms_norm": "gives a wrong result",
        "layer_norm": "returned an array of complex128",
        "silu": "not in the file",
        "mlp": "raised EOFError",
        "grouped_query_attention": "gives a wrong result: shape",
        "transformer_block": "changed its input weights",
        "attend_with_cache": "returned an array, needs 3 arrays",
        "sampling_probabilities": "not in the file",
        "generate": "not in the file",
        "bpe_merges": "not in the file",
        "chat_ids": "not in the file",
        "text_loss": "not in the file",
        **{name: "not in the file" for name, one in EXERCISES.items() if one.chapter > "7"},
    }
    assert list(notes) == list(expected)
    for name, text in expected.items():
        assert text in notes[name], (name, notes[name])
    assert "NaN" in repr(results["rms_norm"])
    assert not results.ok
    assert results.summary == "my_attention.py: 16 wrong, 22 not written yet"


def test_a_process_that_hangs_is_gone_afterwards(write, tmp_path):
    pid = tmp_path / "pid"
    code = f"""
    import os, time
    def silu(x):
        open({str(pid)!r}, "w").write(str(os.getpid()))
        time.sleep(1000)
    """
    sf.exercises.check_file(write(code), seconds=0.5)
    with pytest.raises(ProcessLookupError):
        __import__("os").kill(int(pid.read_text()), 0)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(:", "my_attention.py: it cannot be imported: SyntaxError: .*line 1"),
        ("import sys\nsys.exit('bye')", "it cannot be imported: SystemExit: bye, line 2: sys.exit"),
        ("1 / 0", "it cannot be imported: ZeroDivisionError: division by zero, line 1: 1 / 0"),
        ("import os\nos._exit(3)", "it ended the process when it was imported"),
        ("def other(x):\n    return x", "none of the exercises is in it; `simdformer learn`"),
    ],
)
def test_a_file_that_cannot_be_checked_is_an_error(write, code, message):
    with pytest.raises(ValueError, match=message):
        sf.exercises.check(write(code))


def test_a_file_beside_it_is_found_and_nothing_is_left_there(write, tmp_path):
    write("def helper(x):\n    return x\n", "my_helper.py")
    file = write(
        "from my_helper import helper\ndef embedding(ids, weight):\n    return weight[ids]"
    )
    assert status(sf.exercises.check(file)) == {"embedding": "right"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my_attention.py", "my_helper.py"]


def test_a_file_may_be_called_like_a_module(write):
    file = write("import json\ndef embedding(ids, weight):\n    return weight[ids]", "json.py")
    assert status(sf.exercises.check(file)) == {"embedding": "right"}
    file = write("import json\ndef embedding(ids, weight):\n    return weight[ids]", "numpy.py")
    assert status(sf.exercises.check(file)) == {"embedding": "right"}


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_names_that_are_no_exercise_are_refused():
    with pytest.raises(ValueError, match="my_function is no exercise; they are called softmax"):
        sf.exercises.check(lambda x: x, name="my_function")

    def mine(x):
        return x / (1 + np.exp(-x))

    with pytest.raises(ValueError, match="mine is no exercise"):
        sf.exercises.check(mine)
    assert sf.exercises.check(mine, name="silu")["silu"].status in ("right", "wrong")
    with pytest.raises(KeyError, match="no exercise is called 'rope'"):
        sf.exercises.check(functions(NUMPY)["silu"])["rope"]


def test_results_are_shown_in_a_notebook():
    def silu(x):
        return np.where(x < 0, 0, x)

    html = sf.exercises.check(silu)._repr_html_()
    assert "<code>silu</code>" in html
    assert "relu" in html
    assert "x &lt; " not in html


def test_torch_is_not_imported_for_files_that_do_without(write):
    assert torch  # this process has it, so that nothing but a process of its own could be without
    code = "import sys\ndef silu(x):\n    assert 'torch' not in sys.modules\n    return x"
    assert "raised" not in sf.exercises.check(write(code))["silu"].note
