"""The exercises of training: every mistake of the catalogue in them is named, and no other."""

import pytest

import simdformer as sf
from simdformer.learn.catalogue import CATALOGUE
from test_exercises_text import with_mistake
from test_learn_commands import narrow

LINE = "labels[row, : len(text) - 1] = np.where(answer[1:], text[1:], -100)"
END = "return ids, labels"
PADDED = """labels[:, :-1], labels[:, -1] = ids[:, 1:], -100
    mask = np.zeros(shape, bool)
    for row, one in enumerate(answers):
        mask[row, : len(one)] = one
    labels[~mask] = -100
    return ids, labels"""

# The exercise, and by the name of the mistake what its solution says and what a learner writes.
WRONG = {
    "batch_and_labels": {
        "batch.padded_on_the_left": (
            "ids[row, : len(text)] = text",
            "ids[row, -len(text) :] = text\n        at = shape[1] - len(text)",
            "labels[row, : len(text) - 1]",
            "labels[row, at:-1]",
        ),
        "batch.padded_with_0": ("np.full(shape, pad_id)", "np.zeros(shape, int)"),
        "batch.padded_with_ignored": ("np.full(shape, pad_id)", "np.full(shape, -100)"),
        "batch.cut_to_the_shortest": (
            END,
            (
                "short = min(map(len, texts))\n    labels[:, short - 1] = -100\n"
                "    return ids[:, :short], labels[:, :short]"
            ),
        ),
        "batch.padding_learned": (
            END,
            (
                "for row, text in enumerate(texts):\n"
                "        labels[row, len(text) - 1 : -1] = pad_id\n    return ids, labels"
            ),
        ),
        "batch.labels_not_shifted": (
            LINE,
            "labels[row, : len(text)] = np.where(answer, text, -100)",
        ),
        "batch.last_not_shifted": (
            "np.where(answer[1:], text[1:], -100)",
            "np.where(answer, text, -100)[:-1]",
        ),
        "batch.labels_shifted_back": (
            LINE,
            "labels[row, 1 : len(text) + 1] = np.where(answer, text, -100)[: shape[1] - 1]",
        ),
        "batch.labels_shifted_twice": (
            END,
            "labels[:, :-1] = labels[:, 1:].copy()\n    return ids, labels",
        ),
        "batch.mask_not_shifted": ("np.where(answer[1:]", "np.where(answer[:-1]"),
        "batch.mask_of_padded_not_shifted": (END, PADDED),
        "batch.mask_alone_shifted": ("text[1:], -100", "text[:-1], -100"),
        "batch.labels_wrap_around": (
            LINE,
            "labels[row, : len(text)] = np.roll(np.where(answer, text, -100), -1)",
        ),
        "batch.batch_wraps_around": (
            LINE,
            "labels[row, : len(text)] = np.where(answer, text, -100)",
            END,
            "return ids, np.roll(labels, -1, axis=1)",
        ),
        "batch.labels_one_shorter": (END, "return ids, labels[:, :-1]"),
        "batch.questions_learned": ("np.where(answer[1:], text[1:], -100)", "text[1:]"),
        "batch.everything_learned": (END, "labels[:, :-1] = ids[:, 1:]\n    return ids, labels"),
        "batch.questions_alone_learned": ("text[1:], -100", "-100, text[1:]"),
        "batch.end_not_learned": (END, "return ids, np.where(labels == pad_id, -100, labels)"),
        "batch.end_left_out": (
            "np.where(answer[1:]",
            "np.where(np.logical_and(answer[1:], [*answer[2:], False])",
        ),
        "batch.first_left_out": (
            "np.where(answer[1:]",
            "np.where(np.logical_and(answer[1:], [False, *answer[1:-1]])",
        ),
        "batch.ignored_as_padding": ("-100", "pad_id"),
        "batch.ignored_as_0": ("-100", "0"),
        "batch.ignored_as_minus_1": ("-100", "-1"),
    },
}
ALL = [(name, mistake) for name, mistakes in WRONG.items() for mistake in mistakes]


@pytest.mark.parametrize(("name", "mistake"), ALL)
def test_each_mistake_is_named_and_no_other(name, mistake):
    outcome = sf.exercises.check(with_mistake(name, *WRONG[name][mistake]))[name]
    assert outcome.status == "wrong", outcome
    assert {one.name for one in outcome.report.diagnosis} == {mistake}, outcome
    assert narrow(repr(outcome))


def test_every_mistake_is_made_here():
    programs = {mistake.partition(".")[0] for _, mistake in ALL}
    known = {name for name in CATALOGUE.variations if name.partition(".")[0] in programs}
    assert known == {mistake for _, mistake in ALL}
