"""The curves of a run that goes on, in `sf.explore`."""

import json
import math
import re
import threading

import numpy as np
import pytest

import simdformer as sf
from simdformer.interpret.explorer.curves import MOST_POINTS, curves
from simdformer.training import TrainableModel

pytest.importorskip("anywidget", reason="needs the package anywidget")

IDS = [1, 40, 7, 300, 40, 7]


@pytest.fixture
def model():
    return TrainableModel.from_pretrained(sf.demo_path())


def steps_of(model, count):
    """Some steps of a loop of one's own: a line after each."""
    optimizer, log = sf.optim.AdamW(model.parameters(), lr=1e-3), []
    for step in range(1, count + 1):
        loss, gradients = model.loss_and_gradients(IDS)
        norm = sf.optim.clip_grad_norm_(gradients, 1.0)
        optimizer.step(gradients)
        log.append({"step": step, "loss": loss, "lr": 1e-3, "norm": norm})
        yield log


def received(explorer):
    messages = []
    explorer.send = lambda content, buffers=(): messages.append(content)
    return messages


def test_each_update_shows_the_curve_and_the_weights_of_now(model):
    explorer = sf.explore(model, IDS)
    messages = received(explorer)
    for log in steps_of(model, 3):
        explorer.update(log)
        [page] = messages
        messages.clear()
        assert page["kind"] == "page"
        assert page["data"]["run"]["loss"]["values"] == [line["loss"] for line in log]
        assert page["data"]["loss"]["mean"] == pytest.approx(model.loss(IDS), rel=1e-6)
        logits, _ = model.language_model().run_with_cache(IDS)
        np.testing.assert_array_equal(explorer.trace["logits"], logits)


def test_of_a_model_that_stays_only_the_curve_is_sent():
    explorer = sf.explore(sf.from_pretrained(sf.demo_path()), "Mia has")
    explorer.edits = [{"part": "head", "layer": 5, "at": 0, "value": "zero"}]
    messages, trace = received(explorer), explorer.trace
    explorer.update([3.0, 2.0])
    [told] = messages
    assert told["kind"] == "run"
    assert told["run"]["last"] == {"loss": 2.0}
    assert explorer.trace is trace
    with pytest.raises(ValueError, match="explore: log has no step, needs one at least"):
        explorer.update([])


def test_a_log_is_watched_while_it_grows(tmp_path):
    explorer = sf.explore(sf.from_pretrained(sf.demo_path()), "Mia has")
    heard, messages = threading.Semaphore(0), []

    def send(content, buffers=()):
        messages.append(content)
        heard.release()

    explorer.send = send
    directory = tmp_path / "run"
    explorer.watch(directory)  # that is not there yet
    directory.mkdir()
    with (directory / "log.jsonl").open("w") as log:
        log.write(json.dumps({"step": 1, "loss": 3.0}) + '\n{"step": 2, "lo')  # a line half written
        log.flush()
        assert heard.acquire(timeout=60)
        assert messages[0]["run"]["loss"]["values"] == [3.0]
        log.write('ss": 2.5, "val_loss": 2.75}\n')
        log.flush()
        assert heard.acquire(timeout=60)
    assert messages[1]["run"]["last"] == {"loss": 2.5, "val_loss": 2.75}
    assert messages[1]["run"]["val_loss"]["steps"] == [2]
    explorer.watch(None)


def test_long_runs_are_thinned_and_numbers_that_are_none_left_out():
    losses = [*np.linspace(5, 1, 10_000), math.nan]
    told = curves(losses)
    assert told["steps"] == 10_001
    assert len(told["loss"]["steps"]) == MOST_POINTS
    assert (told["loss"]["steps"][0], told["loss"]["steps"][-1]) == (1, 10_000)
    assert told["last"]["loss"] == 1
    assert set(told) == {"steps", "last", "loss"}


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_diverged_is_shown(model):
    explorer = sf.explore(model, IDS)
    model.parameters()["final_norm"][:] = np.nan
    explorer.update([3.0, math.nan])
    assert explorer._exploration.now.data["loss"]["mean"] is None
    page = explorer._exploration.page().html
    [data] = re.findall(r'<script id="data" type="application/json">(.*)</script>', page)
    assert json.loads(data)["run"]["loss"]["values"] == [3.0]
