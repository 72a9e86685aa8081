"""Where the time of a model goes: nothing counted twice, nothing left out, nothing changed."""

import numpy as np
import pytest

import simdformer as sf
from simdformer import bench
from simdformer.bench.profile import matrix_names
from simdformer.models.transformer import Transformer
from simdformer.text import Report

NEW = 6


@pytest.fixture(scope="module")
def found(demo):
    report, said = Report(), []
    profile = bench.profile(demo, "Once upon a time", NEW, report=report, streamer=said.append)
    return profile, report, "".join(said)


def test_the_text_and_the_logits_are_those_of_the_model(demo, found):
    _, report, said = found
    plain = Report()
    assert said == demo.generate("Once upon a time", NEW, report=plain)
    assert np.array_equal(report.logits, plain.logits)
    assert type(demo.transformer) is Transformer  # and nobody watches it now


def test_every_call_is_counted_once(demo, found):
    profile, _, _ = found
    layers = demo.config.num_layers
    assert profile.prompt.ids == len(demo.encode("Once upon a time"))
    assert profile.decode.ids == NEW - 1  # the last id is not read
    for phase, passes in ((profile.prompt, 1), (profile.decode, NEW - 1)):
        calls = {name: spent.calls for name, spent in phase.spent.items()}
        assert calls["lm_head"] == passes
        for name in ("wq wk wv", "wo", "gate up", "down", "attention, cache"):
            assert calls[name] == layers * passes, name


def test_the_parts_add_up_to_the_time_that_it_took(found):
    profile, report, _ = found
    for phase, seconds in (
        (profile.prompt, report.prefill_seconds),
        (profile.decode, report.decode_seconds),
    ):
        assert sum(spent.seconds for spent in phase.spent.values()) == pytest.approx(seconds)
        assert all(spent.seconds >= 0 for spent in phase.spent.values())


def test_bytes_and_operations_are_those_of_the_matrices(demo, found):
    profile, _, _ = found
    head = demo.transformer.weights.lm_head
    spent = profile.decode.of("lm_head")
    assert spent.nbytes == head.nbytes * (NEW - 1)
    assert spent.flops == 2 * head.shape[0] * head.shape[1] * (NEW - 1)


def test_the_table_has_80_columns_and_all_names(found):
    profile, _, _ = found
    lines = str(profile).splitlines()
    assert max(map(len, lines[:-1])) <= 80
    for name in ("prompt", "decode", "wq wk wv", "lm_head", "norms", "rope", "choosing ids"):
        assert any(line.strip().startswith(name) for line in lines), name


def test_experts_have_names_of_their_own(tmp_path):
    tiny_models = pytest.importorskip("tiny_models")  # needs transformers
    tiny_models.make("qwen3-moe").save_pretrained(tmp_path)
    model = sf.from_pretrained(tmp_path)
    names = set(matrix_names(model.transformer.weights).values())
    assert {"experts gate up", "experts down", "router", "lm_head"} <= names
