"""The table of activations is what models do: names, order, axes and sources, of every architecture
that is read."""

import numpy as np
import pytest

import simdformer as sf
import tiny_models
from simdformer.models import trace_names
from simdformer.models.activation_table import (
    activations,
    every_activation,
    layer_and_short_name,
    sources_of,
)
from simdformer.models.table import FEATURES

IDS = np.array([3, 17, 3, 45, 90, 44])
LAYER = 1  # the one in the middle, of three


@pytest.fixture(scope="module", params=tiny_models.MODELS)
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    tiny_models.make(request.param).save_pretrained(folder)
    return sf.from_pretrained(folder).transformer


class Recorder:
    """An observer that notes every name that a forward pass shows, and changes nothing."""

    start = None

    def __init__(self):
        self.seen = {}

    def wants(self, name):
        return True

    def see(self, name, value):
        self.seen[name] = value
        return value


def test_names_axes_and_order_are_those_of_the_model(model):
    config, recorder = model.config, Recorder()
    model.forward(IDS[None], None, None, recorder)
    table = activations(config, without=("untraced",))
    shown = [name for name in recorder.seen if name in table]
    assert sorted(shown) == sorted(table)
    alike = ("mlp.gate", "mlp.up", "mlp.shared.gate", "mlp.shared.up", "attn.k", "attn.v")
    ranks = {name: at for at, name in enumerate(table)}
    assert [name for name in shown if not name.endswith(alike)] == sorted(
        (name for name in shown if not name.endswith(alike)), key=ranks.__getitem__
    )
    for name in recorder.seen.keys() - table.keys():  # shown by every model, there in some
        short = layer_and_short_name(name)[1]
        assert {row.mark for row in every_activation() if row.name == short} == {"skipped"}
    _, trace = model.run_with_cache(IDS, trace_names(config, on_request=True))
    assert list(trace) == list(table)
    for name, row in table.items():
        assert trace[name].shape == row.shape(config, len(IDS)), name
        assert recorder.seen[name].shape == (1, *trace[name].shape), name


def test_sources_are_what_a_change_goes_through(model):
    """Whatever is changed, those activations of its layer change that are computed from it."""
    config = model.config
    usual = model.run_with_cache(IDS, f"layers.{LAYER}.*")[1][LAYER]
    from_it = {name: {name} for name in usual}
    for name in usual:
        for source in sources_of(config, LAYER, name, untraced=False):
            for others in from_it.values():
                if source in others:
                    others.add(name)
    for name in usual:
        if usual[name].dtype.kind == "i":
            continue
        full = f"layers.{LAYER}.{name}"
        spread = np.linspace(1.2, 1.7, usual[name].size).reshape(usual[name].shape)
        turn = -1 if name == "mlp.router" else 1  # so that other experts are chosen
        edit = {full: lambda x, y=spread, turn=turn: (x[..., ::turn] * y).astype(x.dtype)}
        changed = model.run_with_cache(IDS, f"layers.{LAYER}.*", edit=edit)[1][LAYER]
        differ = {one for one in usual if not np.array_equal(usual[one], changed[one])}
        assert differ <= from_it[name], name
        assert from_it[name] - differ <= {"mlp.experts"}, name  # who is chosen may stay


def test_what_a_row_needs_is_a_feature_that_some_models_have():
    needs = {need for row in every_activation() for need in row.needs}
    assert needs <= {*FEATURES, "experts", "one mlp"}
    marks = {row.mark for row in every_activation()}
    assert marks == {"", "on request", "untraced", "skipped", "by expert", "added"}
    lens = {(row.lens, row.name) for row in every_activation() if row.lens}
    assert len({theirs for theirs, _ in lens}) == len(lens)
