"""A checkpoint of the reader's own in the benchmark: what it is compared with, and beside whom."""

import numpy as np
import pytest

import simdformer as sf
import tiny_models
from bench_cases import LIMITS, hurry
from simdformer import bench
from simdformer.bench import llama_cpp
from simdformer.bench.contestants import LLAMA_CPP, TRANSFORMERS
from simdformer.bench.exact import Exact
from simdformer.checkpoints import read_checkpoint
from simdformer.models import Transformer
from simdformer.models.budget import cache_bytes
from simdformer.text.quantizing import quantize_checkpoint

# The shapes of SHAPES; biases and tied embeddings; LayerNorm; norms with 1 added, windows; experts;
# experts with sinks.
ARCHITECTURES = ["llama3.2", "qwen3", "qwen2-tied-yarn", "gpt2", "gemma2", "qwen3-moe", "gpt-oss"]


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    hurry(monkeypatch)
    monkeypatch.setattr("simdformer.bench.runner.measure_limits", lambda *arguments: LIMITS)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo model as a file of blocks."""
    path = tmp_path_factory.mktemp("demo") / "demo.gguf"
    quantize_checkpoint(sf.demo_path(), path, "q8_0")
    return path


@pytest.fixture
def saved(tmp_path):
    """A tiny model of random weights as Hugging Face publishes them."""

    def save(name):
        tiny_models.make(name).save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


def errors_of(results):
    """How far each contestant of each case was from float64."""
    return {
        result.case.name: {name: one.error for name, one in result.measured.items()}
        for result in results.results
    }


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_exact_is_the_model_with_its_weights_in_float64(name, saved, rng):
    found = read_checkpoint(saved(name))
    wide = {key: np.asarray(tensor, np.float64) for key, tensor in found.weights.items()}
    ids = rng.integers(found.config.vocab_size, size=(2, 9))
    expected = Transformer(found.config, wide, activations="float64")(ids)
    model = Transformer.of_fitting(found.config, found.weights)
    before = model(ids)
    assert bench.relative_error(Exact(model)(ids), expected) < 2e-7  # the logits are float32
    assert (model(ids) == before).all()
    assert model.activations == np.float32


def test_exact_reads_blocks_a_few_rows_at_a_time(demo, monkeypatch):
    """The same file with its values as floats is the same model."""
    monkeypatch.setattr("simdformer.bench.exact.ROWS", 7)
    model, ids = sf.from_pretrained(demo).transformer, np.arange(3, 12)
    as_floats = sf.from_pretrained(demo, dtype="float32").transformer
    assert bench.relative_error(Exact(model)(ids), Exact(as_floats)(ids)) < 1e-7
    assert bench.relative_error(model(ids), Exact(model)(ids)) > 1e-6


def test_a_file_of_blocks_is_measured_beside_llama_cpp(demo):
    cases = bench.checkpoint_cases(demo)
    names = ["demo.gguf/load", "demo.gguf/prefill/float32", "demo.gguf/decode"]
    assert [case.name for case in cases] == names
    results = bench.run(cases[1:], budget=0.01)
    for result in results.results:
        assert result.ours.error < 3e-4
        assert TRANSFORMERS in result.missing
        if llama_cpp.missing():
            assert "installed" in result.missing[LLAMA_CPP]
        else:
            assert result.measured[LLAMA_CPP].error > 10 * result.ours.error


@pytest.mark.slow
def test_a_directory_is_measured_beside_transformers(saved):
    results = bench.run(bench.checkpoint_cases(saved("qwen3"))[1:], budget=0.01)
    found = errors_of(results)
    assert list(found) == ["qwen3/prefill/float32", "qwen3/decode"]
    for name, errors in found.items():
        assert errors["simdformer"] < 1e-5 < errors[TRANSFORMERS], name


@pytest.mark.slow
def test_weights_of_16_bits_read_the_prompt_in_both_arithmetics(saved):
    path = saved("llama3.2")
    tiny_models.make("llama3.2").bfloat16().save_pretrained(path)
    cases = bench.checkpoint_cases(path)
    assert [case.name.split("/", 1)[1] for case in cases] == [
        *("load", "prefill/float32", "prefill/bfloat16", "decode"),
    ]
    exact, rounded, _ = (
        errors["simdformer"] for errors in errors_of(bench.run(cases[1:], budget=0.01)).values()
    )
    assert exact < 1e-5 < rounded


def test_a_step_of_a_mixture_counts_the_experts_that_it_reads(saved):
    path = saved("qwen3-moe")
    _, prompt, step = (case.work for case in bench.checkpoint_cases(path))
    every = sum(tensor.nbytes for tensor in read_checkpoint(path).weights.values())
    assert step.nbytes - cache_bytes(step.config, 65, 4) < every * 0.8  # three experts of five stay
    shared = step.last_matrix + step.config.num_experts * step.config.hidden_size
    assert shared < step.matrices + step.last_matrix < every / 4
    assert prompt.flops > step.flops


def test_a_model_that_a_library_does_not_take_is_told_and_others_go_on(demo, monkeypatch):
    if llama_cpp.missing():
        monkeypatch.setattr(llama_cpp, "missing", lambda: None)

    def refuses(*arguments):
        raise RuntimeError("no memory")

    monkeypatch.setattr(llama_cpp, "Model", refuses)
    (result, _) = bench.run(bench.checkpoint_cases(demo)[1:], budget=0.01).results
    assert result.missing[LLAMA_CPP] == "could not be given the model: no memory"
    assert result.ours is not None
    assert result.missing[TRANSFORMERS] == "could not be given the model: it opens directories"


def test_the_command(demo, command):
    status, out, err = command("bench", "--model", demo, "--budget", "0.01", "--only", "*/decode")
    assert (status, err) == (0, "")
    (line,) = (line for line in out.splitlines() if line.startswith("demo.gguf/"))
    assert line.startswith("demo.gguf/decode")
    assert "tok/s" in line
    status, out, _ = command("bench", "--model", demo, "--list")
    assert status == 0
    assert out.count("\n") == 3
    assert "1.3× llama.cpp or 85% read" in out


def test_a_file_that_is_cut_short_is_one_clear_error(demo, command, tmp_path):
    short = tmp_path / "short.gguf"
    short.write_bytes(demo.read_bytes()[:-1000])
    status, out, err = command("bench", "--model", short)
    assert status == 2
    assert "short.gguf" in err
    assert out == ""
    assert len(err.strip().splitlines()) == 1
