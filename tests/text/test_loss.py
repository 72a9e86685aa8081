"""The loss of each token against the log-softmax of the logits, and perplexity over windows."""

import math

import numpy as np
import pytest

import simdformer as sf
from checkpoints import random_model
from simdformer.text import loss

IDS = np.random.default_rng(5).integers(0, 300, 50).tolist()


@pytest.fixture(scope="module")
def model():
    return sf.LanguageModel(random_model()[0])


def by_hand(model, ids):
    logits = model(ids).astype(np.float64)[:-1]
    logits -= logits.max(-1, keepdims=True)
    every = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -every[np.arange(len(ids) - 1), ids[1:]]


# ---- the loss ------------------------------------------------------------------------------------


def test_a_loss_is_the_negative_log_softmax(model, monkeypatch):
    expected = by_hand(model, IDS)
    for chunk in (256, 49, 48, 7, 1):
        monkeypatch.setattr(loss, "CHUNK", chunk)
        found = model.loss(IDS)
        assert (found.dtype, found.shape) == (np.float64, (49,))
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_text_and_lists_have_losses_too(demo):
    text = "Mia has a red kite."
    ids = demo.tokenizer.encode(text)
    np.testing.assert_allclose(demo.loss(text), by_hand(demo, ids), atol=2e-5)
    several = demo.loss([text, "Mia"])
    assert [len(one) for one in several] == [len(ids) - 1, 1]
    assert np.array_equal(several[0], demo.loss(text))
    assert [len(one) for one in demo.loss([[1, 2, 3], [4, 5]])] == [2, 1]
    assert [len(one) for one in demo.loss(np.array([[1, 2, 3], [4, 5, 6]]))] == [2, 2]
    assert demo.loss([7]).shape == (0,)


def test_losses_show_the_tokens_that_they_are_of(demo, model):
    losses = demo.loss("Mia has <b> kites.")
    assert "".join(losses.tokens) == "Mia has <b> kites."
    shown = losses._repr_html_()
    assert shown.count("<span title=") == len(losses) == len(losses.tokens)
    assert f"{losses[0]:.3f} nats" in shown
    assert f"{len(losses)} tokens, {losses.mean():.3f} nats each" in shown
    assert "<b>" not in shown
    assert losses[1:]._repr_html_() is None  # a part of them is an array
    assert type(losses.mean()) is np.float64
    assert type(losses * 2) is np.ndarray
    assert model.loss([3, 1, 4]).tokens == ["1", "4"]  # ids, where there is no tokenizer
    assert repr(demo.tokenizer).startswith("TiktokenTokenizer(vocab_size=1024, bos_id=")
    cache = demo.new_cache()
    demo("Mia has", cache)
    assert [repr(part) for part in (cache, cache.pages, *cache.texts)] == [
        f"KVCache({cache.length} of 256 positions, float32)",
        "PagedKVCache(1 pages of 32 positions, float32)",
        f"PagedSequence({cache.length} positions, 1 pages)",
    ]


def test_what_has_no_loss_is_refused(model):
    with pytest.raises(ValueError, match="loss: text has no ids, needs at least one"):
        model.loss([])
    with pytest.raises(TypeError, match=r"loss: text is float64 of shape \(2,\), needs text or"):
        model.loss([1.5, 2])
    with pytest.raises(ValueError, match="loss: text has 65 ids, needs at most max_seq_len = 64"):
        model.loss([1] * 65)
    with pytest.raises(IndexError, match="300"):
        model.loss([1, 300, 2])


# ---- perplexity ----------------------------------------------------------------------------------


def perplexity_by_hand(model, ids, window, stride, front=()):
    """Token after token: the loss in the first window that holds it, with what is in front."""
    text = list(ids)
    losses = []
    for at in range(0 if front else 1, len(text)):
        begin = 0
        while begin + window - len(front) <= at:
            begin += stride
        read = [*front, *text[begin : at + 1]]
        losses.append(by_hand(model, read)[-1])
    return losses


@pytest.mark.parametrize(
    ("window", "stride"), [(64, 32), (50, 49), (20, 10), (20, 19), (7, 3), (2, 1)]
)
@pytest.mark.parametrize("bos_id", [None, 1])
def test_each_token_counts_once_in_the_first_window_that_holds_it(model, window, stride, bos_id):
    front = [] if bos_id is None else [bos_id]
    losses = perplexity_by_hand(model, IDS, window, stride, front)
    for ids in ([*front, *IDS], IDS):
        found = loss.perplexity(model.transformer, ids, window=window, stride=stride, bos_id=bos_id)
        assert found.count == len(losses) == len(IDS) - (bos_id is None)
        assert found.value == pytest.approx(math.exp(np.mean(losses)), rel=1e-4)
        error = np.std(losses, ddof=1) / math.sqrt(len(losses)) * found.value
        assert found.error == pytest.approx(error, rel=1e-4)


def test_a_short_text_needs_no_windows(model):
    found = loss.perplexity(model.transformer, IDS)
    assert found.value == pytest.approx(math.exp(model.loss(IDS).mean()))
    one = loss.perplexity(model.transformer, IDS[:2])
    assert one.count == 1
    assert math.isnan(one.error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 65}, "window is 65, needs at most max_seq_len = 64"),
        ({"window": 20, "stride": 20}, "stride is 20, needs less than the window of 20"),
        ({"stride": 0}, "stride is 0, needs a whole number > 0"),
        ({"window": 1}, "stride is 1, needs less than the window of 1"),
        ({"window": 2.5}, "window is 2.5"),
    ],
)
def test_windows_that_make_no_sense_are_refused(model, changes, message):
    with pytest.raises(ValueError, match=f"perplexity: {message}"):
        loss.perplexity(model.transformer, IDS, **changes)


def test_a_text_has_two_tokens(model):
    for ids in ([], [3]):
        with pytest.raises(ValueError, match=f"perplexity: the text has {len(ids)} ids, needs"):
            loss.perplexity(model.transformer, ids)
    with pytest.raises(ValueError, match="the text has 1 ids"):
        loss.perplexity(model.transformer, [3], bos_id=3)


# ---- the command ---------------------------------------------------------------------------------


def test_eval_prints_a_perplexity(command, demo, tmp_path):
    file = tmp_path / "story.txt"
    file.write_text("Once upon a time there was a little dog named Max. " * 3, encoding="utf-8")
    status, out, err = command("eval", "demo", file, "--window", 20, "--stride", 10)
    assert (status, err) == (0, "")
    ids = demo.tokenizer.encode(file.read_text())
    expected = loss.perplexity(
        demo.transformer, ids, window=20, stride=10, bos_id=demo.tokenizer.bos_id
    )
    told = f"perplexity {expected.value:.4f} ± {expected.error:.4f} over {len(ids) - 1} tokens\n"
    assert out == told


def test_eval_refuses_in_one_line(command, tmp_path):
    file = tmp_path / "bytes.txt"
    file.write_bytes(b"\xff\xfe")
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    for arguments, message in (
        (("demo", tmp_path / "missing"), "there is no file"),
        (("demo", file), "bytes.txt: found bytes that are not UTF-8"),
        (("demo", empty), "empty.txt: the text has fewer than two tokens, needs at least two"),
        (("demo", tmp_path), "directory"),
        (("demo", file, "--window", "1"), "a whole number >= 2"),
    ):
        status, out, err = command("eval", *arguments)
        assert (status, out) == (2, "")
        assert message in err
