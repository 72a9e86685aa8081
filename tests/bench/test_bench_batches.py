"""Many texts at once: what is counted, who does it, what is drawn."""

import numpy as np
import pytest

from bench_cases import CASES, LIMITS, MACHINE, hurry, measured, smaller
from simdformer import bench, models
from simdformer.bench import batches, llama_cpp
from simdformer.bench.contestants import LLAMA_CPP, OURS


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    hurry(monkeypatch)


BATCH = smaller(CASES["Qwen3-0.6B/batch/float32/64"]).work


def test_what_many_texts_take_is_counted():
    one = CASES["Qwen3-0.6B/batch/float32/1"].work
    step = CASES["Qwen3-0.6B/decode"].work
    assert (one.flops, one.nbytes, one.speed(0.5)) == (step.flops, step.nbytes, step.speed(0.5))
    many = CASES["Qwen3-0.6B/batch/float32/64"].work
    assert (many.flops, many.speed(0.5)) == (64 * one.flops, 64 * one.speed(0.5))
    cache = 28 * 2 * 8 * 128 * 65 * 2  # layers, keys and values, heads, depth, ids, bytes
    assert many.nbytes - one.nbytes == 63 * cache


def test_each_text_has_pages_of_its_own_and_stays_where_it_is(rng):
    inputs = BATCH.inputs(rng)
    model = models.Transformer(BATCH.config, inputs["weights"])
    cache = model.new_pages(dtype="bfloat16")
    beginning, ids = np.split(inputs["ids"], [BATCH.in_cache])
    texts = batches.begun(model, cache, beginning, 3)
    call = batches.step(model, texts, ids)
    first, second = call(), call()
    assert np.array_equal(first, second)
    assert [text.length for text in texts] == [BATCH.in_cache] * 3
    pages = [page for text in texts for page in text.pages]
    assert len(set(pages)) == len(pages) >= 3
    alone = model.new_cache(dtype="bfloat16")
    model(beginning, alone)
    assert np.array_equal(first, model(ids[-1:], alone)[-1])


def test_llama_cpp_has_a_text_of_its_own_for_each_id(monkeypatch, rng):
    asked = {}
    monkeypatch.setattr(bench.models, "_made", {})
    monkeypatch.setattr(llama_cpp, "missing", lambda: None)
    monkeypatch.setattr(llama_cpp, "model_of", lambda *_: None)
    monkeypatch.setattr(llama_cpp, "contestant", lambda *_, **how: asked.update(how))
    BATCH.theirs(llama_cpp, BATCH.inputs(rng))
    assert asked == {"each": True}


def results_of(*found):
    """(case, seconds of ours, of llama.cpp) each."""
    results = bench.Results(MACHINE, LIMITS)
    for name, mine, theirs in found:
        best = {OURS: measured(mine), LLAMA_CPP: measured(theirs)}
        results.results.append(bench.Result(CASES[f"Qwen3-0.6B/{name}"], LIMITS, best))
    return results


def test_throughput_is_drawn_against_the_number_of_texts(tmp_path):
    pytest.importorskip("matplotlib")
    results = results_of(
        ("batch/float32/8", 0.2, 0.4),
        ("batch/float32/1", 0.1, 0.2),
        ("batch/bfloat16/1", 0.05, 0.1),
        ("decode", 1.0, 1.0),
    )
    ax = bench.plot_throughput(results)
    assert all(list(line.get_xdata()) == [1, 8] for line in ax.lines)
    assert {line.get_label(): str(line.get_ydata()) for line in ax.lines} == {
        "simdformer, bfloat16": "[20. nan]",
        "simdformer, float32": "[10. 40.]",
        "llama.cpp, bfloat16": "[10. 20.]",
    }
    pictures = [tmp_path / "both.png", tmp_path / "roofline.png"]
    bench.save_plot(results, pictures[0])
    bench.save_plot(results_of(("decode", 1.0, 1.0)), pictures[1])
    both, roofline = (int.from_bytes(file.read_bytes()[16:20], "big") for file in pictures)
    assert both > 1.5 * roofline  # pixels from left to right
