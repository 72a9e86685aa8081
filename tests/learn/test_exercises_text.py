"""Exercises around the model: every mistake of the catalogue in them is told from all others, and
no right answer hangs on rounding."""

import inspect

import numpy as np
import pytest

import simdformer as sf
from simdformer.learn.catalogue import CATALOGUE
from simdformer.learn.exercises import EXERCISES, solutions
from test_learn_commands import narrow

SOURCE = inspect.getsource(solutions)

# name of the mistake: what is written in the solution, and what a learner writes instead
WRONG = {
    "sampling_multiplied": ("logits / temperature", "logits * temperature"),
    "sampling_without_temperature": ("logits / temperature", "logits"),
    "sampling_temperature_last": (
        "scores = logits / temperature",
        "scores = logits",
        "return probabilities / probabilities.sum()",
        "kept = probabilities ** (1 / temperature)\n    return kept / kept.sum()",
    ),
    "sampling_one_more": ("[-min(top_k, len(scores))]", "[-min(top_k + 1, len(scores))]"),
    "sampling_one_less": ("scores >= kth", "scores > kth"),
    "sampling_least_likely": (
        "np.sort(scores)[-min(top_k, len(scores))]",
        "np.sort(scores)[min(top_k, len(scores)) - 1]",
        "scores >= kth",
        "scores <= kth",
    ),
    "sampling_without_top_k": ("if top_k is not None", "if False"),
    "sampling_below_p": ("before >= top_p", "before + probabilities[order] > top_p"),
    "sampling_beyond_p": (
        "probabilities[order[before >= top_p]] = 0",
        "probabilities[order[(before < top_p).sum() + 1 :]] = 0",
    ),
    "sampling_unsorted": ("np.argsort(-probabilities)", "np.arange(len(logits))"),
    "sampling_ascending": ("np.argsort(-probabilities)", "np.argsort(probabilities)"),
    "sampling_without_top_p": ("if top_p is not None", "if False"),
    "sampling_before_top_k": (
        "before = np.cumsum(probabilities[order]) - probabilities[order]",
        "whole = softmax(logits / temperature)[order]\n        before = np.cumsum(whole) - whole",
    ),
    "sampling_not_normalized": (
        "return probabilities / probabilities.sum()",
        "return np.where(probabilities > 0, softmax(logits / temperature), 0)",
    ),
    "sampling_cut_to_zero": (
        "scores, -np.inf)",
        "scores, 0)",
        "return probabilities / probabilities.sum()",
        "return softmax(np.where(probabilities > 0, scores, 0))",
    ),
    "sampling_left_sorted": (
        "return probabilities / probabilities.sum()",
        "return np.sort(probabilities / probabilities.sum())[::-1]",
    ),
    "generation_no_prompt": ("model(prompt, None)", "model(prompt[-1:], None)"),
    "generation_last_twice": (
        "logits, cache = model(prompt, None)",
        "logits, cache = model(prompt[-1:], model(prompt, None)[1])",
    ),
    "generation_first_row": ("logits[-1]", "logits[0]"),
    "generation_least": ("argmax", "argmin"),
    "generation_text_again": ("model([id], cache)", "model(prompt + new, cache)"),
    "generation_answer_again": ("model([id], cache)", "model(new, cache)"),
    "generation_old_cache": (
        "logits, cache = model([id], cache)",
        "logits, _ = model([id], cache)",
    ),
    "generation_no_cache": ("model([id], cache)", "model([id], None)"),
    "generation_with_prompt": ("return new", "return prompt + new"),
    "generation_with_end": ("if id == end_id:\n", "if id == end_id:\n            new.append(id)\n"),
    "generation_endless": ("if id == end_id", "if False"),
    "generation_one_less": ("< max_new_tokens", "< max_new_tokens - 1"),
    "bpe_leftmost": ("min(known, key=ranks.get)", "known[0]"),
    "bpe_rightmost": ("min(known, key=ranks.get)", "known[-1]"),
    "bpe_highest": ("min(known, key=ranks.get)", "max(known, key=ranks.get)"),
    "bpe_once": (
        "known = [pair for pair in pairs if pair in ranks]",
        "return sorted(ranks[pair] for pair in pairs if pair in ranks)",
    ),
    "chat_without_bos": ('ids = [special["<|begin_of_text|>"]]', "ids = []"),
    "chat_two_bos": (
        'ids = [special["<|begin_of_text|>"]]',
        'ids = 2 * [special["<|begin_of_text|>"]]',
    ),
    "chat_no_line_ends": (', *encode("\\n\\n")]', "]"),
    "chat_one_line_end": ('encode("\\n\\n")', 'encode("\\n")'),
    "chat_one_role": ("encode(role)", 'encode(messages[0]["role"])'),
    "chat_not_stripped": (".strip()", ""),
    "chat_without_eot": ('        ids += [special["<|eot_id|>"]]\n', ""),
    "chat_end_of_text": ('"<|eot_id|>"', '"<|end_of_text|>"'),
    "chat_without_answer": ('return ids + header("assistant")', "return ids"),
    "chat_closed_answer": (
        'return ids + header("assistant")',
        'return [*ids, *header("assistant"), special["<|eot_id|>"]]',
    ),
    "chat_spelled_out": (
        "def header(role):",
        "special = {name: None for name in special}\n\n    def header(role):",
        "[start, *encode(role), end, *",
        '[*encode("<|start_header_id|>"), *encode(role), *encode("<|end_header_id|>"), *',
        '[special["<|begin_of_text|>"]]',
        'encode("<|begin_of_text|>")',
        '[special["<|eot_id|>"]]',
        'encode("<|eot_id|>")',
    ),
    "loss_overflows": (
        "logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))",
        "logs = np.log(np.exp(scores) / np.exp(scores).sum(-1, keepdims=True))",
    ),
    "loss_of_logits": (
        "logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))",
        "logs = scores",
    ),
    "loss_not_shifted": ("logits[:-1], ids[1:]", "logits, ids"),
    "loss_shifted_back": ("logits[:-1], ids[1:]", "logits[1:], ids[:-1]"),
    "loss_of_padding": ("[following != pad_id]", ""),
    "loss_summed": (".mean()", ".sum()"),
    "loss_over_length": (".mean()", ".sum() / len(ids)"),
    "loss_negative": ("return -right", "return right"),
    "loss_as_perplexity": (
        "return -right[following != pad_id].mean()",
        "return np.exp(-right[following != pad_id].mean())",
    ),
    "loss_in_bits": (".mean()", ".mean() / np.log(2)"),
    "loss_of_the_mean": (
        "return -right[following != pad_id].mean()",
        "return -np.log(np.exp(right[following != pad_id]).mean())",
    ),
}
EXERCISE_OF = {
    "sampling": "sampling_probabilities",
    "generation": "generate",
    "bpe": "bpe_merges",
    "chat": "chat_ids",
    "loss": "text_loss",
}
# what top_k would have cut, top_p cuts too: the one mistake cannot be told from the other
ALIKE = {"sampling_before_top_k": {"sampling_without_top_k"}}


def with_mistake(name, *edits):
    """The solution of an exercise with a mistake in it: what it says, what a learner writes."""
    code = inspect.getsource(getattr(solutions, name))
    for right, wrong in zip(edits[::2], edits[1::2], strict=True):
        assert right in code, right
        code = code.replace(right, wrong)
    names = {}
    exec(f"{SOURCE}\n\n{code}", names)
    return names[name]


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("mistake", WRONG)
def test_each_mistake_is_named_and_no_other(mistake):
    name = EXERCISE_OF[mistake.partition("_")[0]]
    outcome = sf.exercises.check(with_mistake(name, *WRONG[mistake]))[name]
    assert outcome.status == "wrong", outcome
    found = {one.name for one in outcome.report.diagnosis}
    expected = {mistake, *ALIKE.get(mistake, ())}
    assert found == {f"text.{one}" for one in expected}, outcome
    assert narrow(repr(outcome))


def test_every_mistake_is_made_here():
    known = {name for name in CATALOGUE.variations if name.startswith("text.")}
    assert known == {f"text.{name}" for name in WRONG}


def test_no_cut_lies_near_a_sum_of_probabilities():
    for case in EXERCISES["sampling_probabilities"].cases():
        logits, temperature, top_k, top_p = case.arguments
        order = np.sort(logits.astype(np.float64) / temperature)[::-1]
        assert np.diff(order).max() < -1e-3
        sums = np.cumsum(sf.reference.softmax(order[:top_k]))
        if top_p is not None:
            assert np.abs(sums - top_p).min() > 0.01


def test_no_word_has_the_pair_twice_that_is_merged():
    """Whether both become one at once, or one after the other, is a matter of taste."""
    for case in EXERCISES["bpe_merges"].cases():
        merges = solutions.bpe_merges(*case.arguments)
        assert len(set(merges)) == len(merges)


def test_the_model_of_the_exercise_says_how_it_is_called():
    model = EXERCISES["generate"].cases()[0].arguments[0]
    logits, cache = model([1, 2, 3])
    assert logits.shape == (3, model.vocabulary)
    one, _ = model([2], model([1])[1])
    np.testing.assert_array_equal(one[0], logits[1])
    with pytest.raises(ValueError, match=r"ids has shape \(\), needs \(L,\)"):
        model(5, cache)
    with pytest.raises(TypeError, match="cache is ndarray, needs what the model gave"):
        model([5], logits)


def test_reading_the_whole_text_again_is_no_cache():
    def generate(model, prompt, max_new_tokens, end_id):
        new = []
        while len(new) < max_new_tokens:
            logits, _ = model(prompt + new)
            id = int(logits[-1].argmax())
            if id == end_id:
                break
            new.append(id)
        return new

    outcome = sf.exercises.check(generate)["generate"]
    assert outcome.status == "raised"
    assert "reads the whole text again for every new token" in outcome.note
    assert narrow(repr(outcome))


def loss_in(shape, *, sign=1):
    """A `text_loss` that gives its number in an array."""

    def text_loss(logits, ids, pad_id):
        loss = sign * solutions.text_loss(logits, ids, pad_id)
        return np.full(shape, loss)

    return text_loss


def test_a_number_may_stand_alone_in_an_array():
    assert sf.exercises.check(loss_in(1))["text_loss"].ok
    wrong = sf.exercises.check(loss_in(1, sign=-1))["text_loss"]
    assert [one.name for one in wrong.report.diagnosis] == ["text.loss_negative"]
    assert not wrong.report.shape
    for shape in (2, (1, 1)):
        other = sf.exercises.check(loss_in(shape))["text_loss"]
        assert other.report.shape == np.empty(shape).shape
        assert other.report.expected == ()
    right = sf.rope_frequencies(8, theta=100.0)
    for factor in (right[1], [right[1]]):
        assert sf.check(sf.rope_frequencies, (right[0], np.array(factor)), 8, theta=100.0).ok
    assert not sf.check(sf.rope_frequencies, (right[0], np.array([2.0])), 8, theta=100.0).ok
