"""llama.cpp beside us: the file that it gets holds the same model, and it is asked as it should be.

llama-cpp-python is compiled for each machine, and rarely there: what it is given and how it is
called is tested without it, what it computes only where it is installed.
"""

import ctypes
import errno
import gc
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import simdformer as sf
from bench_cases import CASES, LIMITS, MACHINE, a_result, hurry, smaller
from simdformer import bench
from simdformer.bench import llama_cpp, models, report
from simdformer.bench.contestants import LLAMA_CPP, OURS, Missing
from simdformer.bench.runner import run_case
from simdformer.checkpoints import gguf_export, read_checkpoint

each_shape = pytest.mark.parametrize("shape", bench.SHAPES)


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    hurry(monkeypatch)


def small(shape):
    """Config and weights of two layers."""
    config = smaller(CASES[f"{shape}/decode"]).work.config
    return config, bench.random_weights(config)


# ---- the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@each_shape
def test_the_file_is_the_same_model_in_the_layout_of_llama_cpp(shape, layout, rng, tmp_path):
    """What llama.cpp gets is our model when RoPE turns its pairs, and only then, in the same bits;
    tied or not."""
    config, _ = small(shape)
    config = replace(config, rope_layout=layout, tie_embeddings=layout == "half")
    weights = bench.random_weights(config)
    path = tmp_path / "model.gguf"
    llama_cpp.write_model(path, config, weights)
    found = read_checkpoint(path)
    for name, array in weights.items():
        dtype = "float32" if array.ndim == 1 else "bfloat16"
        assert np.asarray(found.weights[name]).dtype.name == dtype
    theirs = {"Qwen3-0.6B": "half", "Llama-3.2-1B": "interleaved"}[shape]
    assert found.config.rope_layout == theirs
    ids = rng.integers(config.vocab_size, size=12)
    given, got = (
        {name: np.asarray(array, np.float64) for name, array in some.items()}
        for some in (weights, found.weights)
    )
    expected = sf.models.Transformer(config, given, activations="float64")(ids)
    logits = sf.models.Transformer(found.config, got, activations="float64")(ids)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    if theirs != layout:
        wrong = sf.models.Transformer(found.config, given, activations="float64")(ids)
        assert bench.relative_error(wrong, expected) > 0.1


# ---- how it is asked, with a library that only remembers -----------------------------------------


class FakeLibrary:
    """What llama_cpp has of functions, as far as they are called; `log` is what was."""

    LLAMA_LOAD_MODE_NONE, LLAMA_FLASH_ATTN_TYPE_DISABLED, LLAMA_FLASH_ATTN_TYPE_ENABLED = 10, 20, 21
    __version__ = "0.3.36"

    def __init__(self, model=1, context=2, status=0):
        self.model, self.context, self.status = model, context, status
        self.log, self.files, self.contexts, self.vocab_size = [], [], [], 300

    def llama_backend_init(self):
        self.log.append("init")

    def llama_model_default_params(self):
        return SimpleNamespace()

    llama_context_default_params = llama_model_default_params

    def llama_model_load_from_file(self, path, options):
        assert Path(os.fsdecode(path)).read_text() == "a model"
        self.files.append(path)
        assert options.load_mode == self.LLAMA_LOAD_MODE_NONE
        return self.model

    def llama_init_from_model(self, model, options):
        self.contexts.append(options)
        return self.context

    def llama_get_memory(self, context):
        return 3

    def llama_batch_init(self, count, embedding, texts):
        names = ("token", "pos", "logits", "n_seq_id")
        each = {name: [None] * count for name in names}
        return SimpleNamespace(**each, seq_id=[[None] * texts for _ in range(count)])

    def llama_batch_free(self, batch):
        pass

    def llama_memory_seq_rm(self, memory, sequence, first, end):
        self.log.append(("forget", first, end))

    def llama_decode(self, context, batch):
        assert len(batch.token) == batch.n_tokens
        assert np.ptp(batch.pos) == len(batch.pos) - 1
        assert np.flatnonzero(batch.logits).tolist() == [batch.n_tokens - 1]
        self.log.append(("decode", batch.token))
        return self.status

    def llama_get_logits_ith(self, context, which):
        assert which == -1
        return (ctypes.c_float * self.vocab_size)(*range(self.vocab_size))

    def llama_free(self, context):
        self.log.append("free context")

    def llama_model_free(self, model):
        self.log.append("free model")


@pytest.fixture
def fake(monkeypatch):
    """fake(...) puts a FakeLibrary in the place of llama_cpp, and gives it."""

    def install(**options):
        library = FakeLibrary(**options)
        monkeypatch.setattr(llama_cpp, "optional", {"llama_cpp": library}.get)
        monkeypatch.setattr(
            llama_cpp, "write_model", lambda path, *arguments: path.write_text("a model")
        )
        return library

    models.forget_models()
    yield install
    models.forget_models()


def test_contexts_are_as_large_as_the_work_and_have_our_threads(fake, rng):
    library = fake()
    work = smaller(CASES["Qwen3-0.6B/decode"]).work
    inputs = work.inputs(rng)
    with sf.num_threads(1):
        one = work.theirs(llama_cpp, inputs)
    assert [way.name for way in one.ways] == ["flash attention", "attention"]
    assert [options.flash_attn_type for options in library.contexts] == [21, 20]
    for options in library.contexts:
        assert options.n_ctx == options.n_batch == options.n_ubatch == work.in_cache + 1
        assert (options.n_threads, options.n_threads_batch) == (1, 1)
    prompt = list(inputs["ids"][: work.in_cache])
    assert library.log[1:] == [("forget", 0, -1), ("decode", prompt)] * 2
    library.log.clear()
    one.ways[0].call()
    step = [("forget", work.in_cache, -1), ("decode", list(inputs["ids"][work.in_cache :]))]
    assert library.log == step
    library.log.clear()
    logits = one.ways[0].result()
    assert (logits == np.arange(300)).all()
    few = list(work.checked_ids(inputs))
    checked = [("decode", few[:-1]), ("forget", len(few) - 1, -1), ("decode", few[-1:])]
    assert library.log == [*step, ("forget", 0, -1), *checked, "free context"]


def test_the_model_goes_after_its_contexts_and_its_file_before_them(fake, rng):
    library = fake()
    work = smaller(CASES["Qwen3-0.6B/decode"]).work
    one = work.theirs(llama_cpp, work.inputs(rng))
    (file,) = library.files
    assert not Path(os.fsdecode(file)).parent.exists()
    models.forget_models()
    assert "free model" not in library.log  # the contestant may still be called
    one.ways[0].call()
    del one
    gc.collect()
    assert library.log[-3:] == ["free context", "free context", "free model"]


def test_what_llama_cpp_refuses_is_a_reason_to_be_missing(fake, monkeypatch, rng):
    def no_room(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    work = smaller(CASES["Qwen3-0.6B/decode"]).work
    inputs = work.inputs(rng)
    for options, message in [
        ({"model": None}, "llama.cpp does not take model.gguf"),
        ({"context": None}, "llama.cpp has no memory for 21 ids"),
        ({"status": 1}, "llama.cpp does not take 20 ids"),
    ]:
        fake(**options)
        one = work.theirs(llama_cpp, inputs)
        assert one == Missing(LLAMA_CPP, f"could not be given the model: {message}")
        models.forget_models()
    fake()
    monkeypatch.setattr(llama_cpp, "write_model", no_room)
    one = work.theirs(llama_cpp, inputs)
    assert one.why.endswith("No space left on device")
    result = replace(a_result(mine=1.0), missing={LLAMA_CPP: one.why})
    assert one.why in report.summary(bench.Results(MACHINE, LIMITS, [result]))


def test_why_it_is_missing(fake, monkeypatch):
    def does_not_load(name):
        raise RuntimeError("Failed to load shared library")

    library = fake()
    assert llama_cpp.missing() is None
    monkeypatch.delattr(FakeLibrary, "LLAMA_LOAD_MODE_NONE")
    library.__version__ = "0.2.90"
    old = llama_cpp.missing()
    monkeypatch.setattr(llama_cpp, "optional", does_not_load)
    broken = llama_cpp.missing()
    monkeypatch.setattr(llama_cpp, "optional", lambda name: None)
    result = run_case(smaller(CASES["Qwen3-0.6B/q4_0/decode"]), LIMITS, 0.01, bench.Stopwatch())
    assert [str(goal) for goal in result.goals if result.met(goal) is None] == ["1× llama.cpp"]
    not_there = Missing(LLAMA_CPP, result.missing[LLAMA_CPP])
    absent = [
        (old, "llama-cpp-python 0.2.90 is installed, needs 0.3.36 or later"),
        (broken, "llama-cpp-python is installed, but does not load: Failed to load shared library"),
        (not_there, "llama-cpp-python is not installed"),
    ]
    for found, why in absent:
        assert found.why == why
        result = bench.Result(result.case, LIMITS, result.measured, {found.name: found.why})
        summary = report.summary(bench.Results(MACHINE, LIMITS, [result]))
        assert f"llama.cpp: {why}" in summary


# ---- what it computes, where it is installed -----------------------------------------------------


@pytest.fixture
def installed():
    missing = llama_cpp.missing()
    if missing:
        pytest.skip(f"compares with llama.cpp: {missing.why}")
    yield
    models.forget_models()


@pytest.mark.parametrize("flash", [True, False])
@each_shape
def test_the_logits_are_ours(installed, shape, flash, rng):
    """At every position, from a prompt and with a cache; wrong rows, frequencies, eps or heads
    would be 0.1 away at least.
    """
    config, weights = small(shape)
    ids = rng.integers(config.vocab_size, size=70)
    expected = sf.models.Transformer(config, weights)(ids)
    model = llama_cpp.model_of(config, weights)
    for count in (1, 2, 17, 70):
        context = llama_cpp.Context(model, 70, 2, flash=flash)
        got = context.logits(ids[:count])
        assert bench.relative_error(got, expected[count - 1]) < 0.02
        for more in range(count, min(count + 4, 70)):  # one more each
            got = context.logits(ids[more : more + 1], more)
            assert bench.relative_error(got, expected[more]) < 0.02
        again = context.logits(ids[:1])  # what is forgotten is forgotten
        assert bench.relative_error(again, expected[0]) < 0.02


@pytest.mark.parametrize("name", ["prefill/float32", "prefill/bfloat16", "decode"])
@each_shape
def test_it_races_and_its_error_is_shown(installed, shape, name):
    result = run_case(smaller(CASES[f"{shape}/{name}"]), LIMITS, 0.01, bench.Stopwatch())
    theirs = result.measured[LLAMA_CPP]
    assert theirs.way in ("flash attention", "attention")
    assert 0 < theirs.error < 0.02
    assert result.measured[OURS].error < 0.02
    assert all(result.met(goal) is not None for goal in result.goals)
    assert f"{theirs.error:.1e}" in report.cells(result)


def test_a_wrong_order_of_rows_is_another_result(installed, monkeypatch):
    monkeypatch.setattr(gguf_export, "in_layout", lambda rows, **arguments: rows)
    case = smaller(CASES["Llama-3.2-1B/decode"])
    result = run_case(case, LIMITS, 0.01, bench.Stopwatch())
    assert LLAMA_CPP not in result.measured
    assert "gives another result" in result.missing[LLAMA_CPP]


def test_its_version_is_told(installed):
    assert "llama-cpp-python" in bench.this_machine().versions


# ---- weights of few bits -------------------------------------------------------------------------

QUANTISED = [
    name
    for name, case in CASES.items()
    if isinstance(case.work, bench.ModelRun) and case.work.type != "bfloat16"
]


@pytest.mark.parametrize("name", QUANTISED)
def test_it_races_on_the_same_blocks_and_is_a_hundred_times_as_far_off(installed, name):
    result = run_case(smaller(CASES[name]), LIMITS, 0.01, bench.Stopwatch())
    theirs, mine = result.measured[LLAMA_CPP], result.measured[OURS]
    assert 0 < mine.error < theirs.error / 100 < 0.001
    assert all(result.met(goal) is not None for goal in result.goals)
