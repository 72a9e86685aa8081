"""Texts of several lengths as a batch, with the labels that a model learns from, in steps; and what
goes wrong there.

texts: B lists of ids, answers: for each id whether it belongs to an answer -> ids, labels (B,L)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from simdformer.learn.catalogue import mistakes
from simdformer.learn.program import Program

__all__ = ["batch"]


def padded(rows: Sequence[Sequence[int]], fill: int, left: bool = False) -> Any:
    """Rows as long as the longest (B,L)."""
    longest = max(map(len, rows))
    out = np.full((len(rows), longest), fill)
    for row, values in zip(out, rows, strict=True):
        row[slice(longest - len(values), None) if left else slice(len(values))] = values
    return out


def moved(rows: Any, fill: int, by: int = 1) -> Any:
    """What stands `by` places further to the right (B,L)."""
    out = np.full_like(rows, fill)
    if by > 0:
        out[:, :-by] = rows[:, by:]
    else:
        out[:, -by:] = rows[:, :by]
    return out


batch = Program(
    "batch",
    """
    pad: ids = padded(texts, pad_id)
    rows: words, said = padded(texts, -100), padded(answers, 0)
    shift: next, counts = moved(words, -100), moved(said, 0)
    choose: labels = np.where(counts == 1, next, -100)
    give: out = ids, labels
    """,
    calls=(padded, moved),
    takes=("texts", "answers", "pad_id"),
    axes=("text", "token"),
)

mistakes(
    """
    batch.pad (09 §1) > Put pad_id behind each text until all are as long as the longest.

    padded_on_the_left: the padding stands in front of the texts, not behind them
        That is how texts are padded for generating, where all have to end at the same place.
        | ids = padded(texts, pad_id, True)
        rows | words, said = padded(texts, -100, True), padded(answers, 0, True)
    padded_with_0: the texts are padded with 0, not with pad_id
        np.zeros and pad_sequence fill with 0, which is the id of some token.
        | ids = padded(texts, 0)
    padded_with_ignored: the texts are padded with -100
        -100 is for labels; the embedding has no row for it.
        | ids = padded(texts, -100)
    cut_to_the_shortest: the texts are cut to the length of the shortest
        zip stops at the shortest, and the ends of the others are lost.
        | ids = padded(texts, pad_id)[:, : min(map(len, texts))]
        shift | shortest = min(map(len, texts))
        shift | next, counts = moved(words[:, :shortest], -100), moved(said[:, :shortest], 0)

    batch.rows (09 §1) > The labels of padding are -100.

    padding_learned: padding is learned
        The mask was made of the questions alone, and so padding counts as an answer.
        | words, said = padded(texts, pad_id), padded(answers, 1)

    batch.shift (09 §1) > labels[:, t] is ids[:, t + 1], and counts where answers[:, t + 1] says so.

    labels_not_shifted: the labels are not shifted: each place is to predict its own token
        Models of Hugging Face shift inside; here the label of a place is the token behind it.
        | next, counts = words, said
    last_not_shifted (rare): the labels are not shifted: each place is to predict its own token
        As many labels are written as a text has next tokens, but they are the tokens themselves.
        | next, counts = words, said * (moved(words, -100) != -100)
    labels_shifted_back: the shift goes the wrong way: the label is the token before
        ids[:, :-1] stands where ids[:, 1:] belongs.
        | next, counts = moved(words, -100, -1), moved(said, 0, -1)
    labels_shifted_twice: the labels are shifted twice
        Once for the data and once for the loss: the model learns the token after the next.
        | next, counts = moved(words, -100, 2), moved(said, 0, 2)
    mask_not_shifted: the labels are shifted, and the mask of the answers is not
        The first token of each answer is not learned, and what follows its end is.
        | next, counts = moved(words, -100), said
    mask_of_padded_not_shifted (rare): the labels are shifted, and the mask of the answers is not
        as above
        rows | words, said = padded(texts, pad_id), padded(answers, 0)
        | next, counts = moved(words, -100), said
    mask_alone_shifted: the mask of the answers is shifted, and the labels are not
        Only one of the two lines has [1:].
        | next, counts = words, moved(said, 0)
    labels_wrap_around: the label of the last place is the first token of the text
        np.roll turns the text round: what leaves in front comes back at the end.
        > The last place of a text has no label: -100.
        | next = padded([np.roll(row, -1) for row in texts], -100)
        | counts = padded([np.roll(row, -1) for row in answers], 0)
    batch_wraps_around (rare): the label of the last place is the first token of the text
        np.roll turns the row round: what leaves in front comes back at the end.
        > The last place of a text has no label: -100.
        | next, counts = np.roll(words, -1, 1), np.roll(said, -1, 1)
    labels_one_shorter: the labels are one place shorter than the ids
        labels = ids[:, 1:] has no label for the last place.
        > Put -100 behind them.
        | next, counts = words[:, 1:], said[:, 1:]

    batch.choose (09 §1) > The tokens of the answers count, their ends too; the others are -100.

    questions_learned: the questions are learned, too
        All tokens count, in place of those of the assistant: the model learns to ask.
        | labels = next
    everything_learned: nothing is ignored: questions and padding are learned
        The labels are the shifted ids alone.
        rows | words, said = padded(texts, pad_id), padded(answers, 0)
        | labels = next
    questions_alone_learned: the questions are learned, and not the answers
        The mask is the wrong way round: True was taken for "leave out".
        | labels = np.where(counts == 1, -100, next)
    end_not_learned: an answer's end is not learned, because it has the id of padding
        labels[labels == pad_id] = -100: such a model never learns to stop.
        > Ignore padding by its place, and not by its id.
        | labels = np.where((counts == 1) & (next != pad_id), next, -100)
    end_left_out: the last token of each answer is not learned
        It ends the answer: a model that never learns it does not stop.
        | labels = np.where((counts == 1) & (moved(counts, 0) == 1), next, -100)
    first_left_out: the first token of each answer is not learned
        The mask begins one place too late.
        | labels = np.where((counts == 1) & (moved(counts, 0, -1) == 1), next, -100)
    ignored_as_padding: the places that do not count have pad_id, not -100
        The loss does not know pad_id: such labels are learned.
        | labels = np.where(counts == 1, next, pad_id)
    ignored_as_0: the places that do not count have 0, not -100
        0 is the id of some token: such labels are learned.
        | labels = np.where(counts == 1, next, 0)
    ignored_as_minus_1: the places that do not count have -1, not -100
        Some libraries ignore -1; cross entropy here ignores -100, as PyTorch's does.
        | labels = np.where(counts == 1, next, -1)
    """,
)
