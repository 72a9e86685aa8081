"""The gradients of embedding and repeat_kv in steps, and what goes wrong in them.

The meaning is that of `reference.backward`.
"""

from typing import Any

import numpy as np

from simdformer import backward
from simdformer.learn.catalogue import mistakes
from simdformer.learn.program import Program


def scattered(table: Any, ids: Any, rows: Any) -> Any:
    """The table with each row added at its id."""
    total = table.copy()
    np.add.at(total, ids, rows)
    return total


def put(table: Any, ids: Any, rows: Any) -> Any:
    """The table with each row written at its id; the last one stays."""
    total = table.copy()
    total[ids] = rows
    return total


embedding_backward = Program(
    "embedding_backward",
    """
    inputs: dy = array(grad)
    place: places = np.asarray(ids)
    zeros: total = np.zeros((num_embeddings, dy.shape[-1]), real)
    scatter: total = scattered(total, places, dy)
    give: out = total
    """,
    calls=(scattered,),
    of=backward.embedding,
    axes=("id", "channel"),
)
repeat_kv_backward = Program(
    "repeat_kv_backward",
    """
    inputs: dy = np.moveaxis(array(grad), axis, 0)
    group: copies = dy.reshape(len(dy) // n_rep, n_rep, *dy.shape[1:])
    fold: folded = copies.sum(axis=1)
    give: out = np.moveaxis(folded, 0, axis)
    """,
    of=backward.repeat_kv,
    axes=("head", "position", "channel"),
)

mistakes(
    """
    embedding_backward.scatter (08 §10) > Every place counts: np.add.at(total, ids, dy) adds
        them all.

    overwritten: ids that occur twice keep only one of their gradients
        total[ids] = dy keeps the last one, and total[ids] += dy does the same: it is buffered.
        | total = put(total, places, dy)
    averaged: ids that occur twice get the mean of their gradients, not the sum
        Every place adds its own part to the loss.
        | ...; total = total / np.maximum(np.bincount(places.ravel(), minlength=len(total)), 1
        | ).astype(real)[:, None]
    largest_kept (rare): ids that occur twice keep the largest of their gradients
        np.maximum.at, or a max over the places, where the sum is meant.
        | kept = np.full(total.shape, -np.inf, real); np.maximum.at(kept, places, dy)
        | total = np.where(np.isinf(kept), real(0), kept)
    counted (rare): the rows hold how often each id occurs: dy is missing
        The gradient that comes in is added at each place, not 1.
        | total = scattered(total, places, np.ones_like(dy))
    first_sequence_only: only the first sequence counts
        An index 0 on the batch axis.
        | unless(places.ndim < 2 or len(places) < 2); total = scattered(total, places[0], dy[0])
    last_sequence_only: only the last sequence counts
        The table is made anew for each sequence, or a loop assigns with = where += is meant.
        | unless(places.ndim < 2 or len(places) < 2); total = scattered(total, places[-1], dy[-1])
    ids_of_next_last_dropped (rare): each gradient goes to the next token's row, the last to none
        The shift of the labels is taken over for the inputs: ids[:, 1:] and dy[:, :-1].
        > Use the ids that went in, unshifted.
        | unless(places.ndim == 0); total = scattered(total, places[..., 1:], dy[..., :-1, :])
    ids_of_previous_first_dropped (rare): each gradient goes to the row of the token before
        ids[:, :-1] and dy[:, 1:]: the shift of the labels, the other way.
        > Use the ids that went in, unshifted.
        | unless(places.ndim == 0); total = scattered(total, places[..., :-1], dy[..., 1:, :])
    first_kept (rare): ids that occur twice keep the first of their gradients
        Every place adds its own part to the loss.
        | total = put(total, places.ravel()[::-1], dy.reshape(-1, dy.shape[-1])[::-1])
    padding_skipped: the row of id 0 gets no gradient: it is taken for padding
        padding_idx=0 of a layer that has one; the forward read that row like any other.
        > Leave a row out only if the forward left it out.
        | unless(not (places == 0).any()); ...; total = np.where(
        |     np.arange(len(total))[:, None] == 0, real(0), total)

    embedding_backward.place (08 §10) > Use the ids that went in, unshifted.

    ids_from_one: each gradient goes to row id - 1: ids are counted from 1
        total[ids - 1] += dy: tokenizers count from 0.
        > Use the ids that went in, as they are.
        | places = np.asarray(ids) - 1
    ids_plus_one: each gradient goes to row id + 1
        total[ids + 1] += dy, or a row for padding in front of the table.
        > Use the ids that went in, as they are.
        | places = np.minimum(np.asarray(ids) + 1, num_embeddings - 1)
    ids_of_next: the gradients go to the next token's row
        The shift of the labels is taken over for the inputs.
        | places = np.roll(np.asarray(ids), -1, axis=-1)
    ids_of_previous: the gradients go to the previous token's row
        as above
        | places = np.roll(np.asarray(ids), 1, axis=-1)
    ids_of_next_flat (rare, unless ids_of_next):
        the gradients go to the next token's row, across sequences
        np.roll without axis=-1 rolls the flattened ids.
        | places = np.roll(np.asarray(ids), -1)
    ids_of_previous_flat (rare, unless ids_of_previous):
        the gradients go to the previous token's row, across sequences
        as above
        | places = np.roll(np.asarray(ids), 1)

    repeat_kv_backward.fold (08 §9) > Sum over the n_rep copies of each head.

    not_folded: each copy of a head keeps a gradient of its own
        What was repeated is summed on the way back.
        | unless(n_rep == 1); folded = copies.reshape(-1, *copies.shape[2:])
    averaged: the copies of a head are averaged, not summed
        Each copy adds its own part to the loss.
        | folded = copies.mean(axis=1)
    largest_copy (rare): the largest of the copies of a head is taken, not the sum
        max and sum of an axis are written alike.
        | folded = copies.max(axis=1)
    first_copy_only: only the first copy of each head counts
        An index 0, or a step [::n_rep], where the sum is meant.
        | folded = copies[:, 0]
    last_copy_only: only the last copy of each head counts
        A loop that assigns with = where += is meant.
        | folded = copies[:, -1]

    repeat_kv_backward.group (08 §9) > Neighbours belong together: reshape(K, n_rep, ...).

    tiled: heads that are n_rep apart are folded, as if they had been tiled
        repeat copies each head in place (repeat_interleave); tile puts whole copies in a row.
        | copies = dy.reshape(n_rep, len(dy) // n_rep, *dy.shape[1:]).swapaxes(0, 1)
    """,
    calls=(put,),
)
