"""Byte-pair encoding of one word, in steps; and what goes wrong there."""

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np

from simdformer.learn.catalogue import Mistakes, instead
from simdformer.learn.program import Program, State

__all__ = ["bpe_merges"]

BPE = "02 §1"

Choose = Callable[[list[str], Mapping[str, int]], int | None]


def bpe_merges(word: str, ranks: Mapping[str, int]) -> list[int]:
    """The ranks of the pairs that are merged, in that order."""
    return merged(word, ranks, lowest_rank)


def merged(word: str, ranks: Mapping[str, int], choose: Choose) -> list[int]:
    pieces, merges = list(word), []
    while (place := choose(pieces, ranks)) is not None:
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
        merges.append(ranks[pieces[place]])
    return merges


def known_pairs(pieces: list[str], ranks: Mapping[str, int]) -> dict[int, int]:
    """Where neighbours can be merged, and the rank of what comes out."""
    unions = enumerate(a + b for a, b in pairwise(pieces))
    return {place: ranks[union] for place, union in unions if union in ranks}


def lowest_rank(pieces: list[str], ranks: Mapping[str, int]) -> int | None:
    pairs = known_pairs(pieces, ranks)
    return min(pairs, key=lambda place: pairs[place], default=None)


bpe = Program("text", of=bpe_merges, axes=("merge",))


@bpe.step
def bpe_choose(s: State) -> None:
    s.choose = lowest_rank


@bpe.step
def bpe_merge(s: State) -> None:
    s.out = np.array(merged(s.word, s.ranks, s.choose))


def bpe_highest(s: State) -> None:
    def choose(pieces: list[str], ranks: Mapping[str, int]) -> int | None:
        pairs = known_pairs(pieces, ranks)
        return max(pairs, key=lambda place: pairs[place], default=None)

    s.choose = choose


Mistakes(
    "text.bpe_choose", see=BPE, fix="Look at all pairs, and merge the one of the lowest rank."
)(
    """
    bpe_leftmost: pairs are merged from left to right, whatever their rank
        The first pair that is in the list is taken. The pieces still spell the word, so that
        decoding hides it.
    bpe_rightmost: pairs are merged from right to left, whatever their rank
        The last pair that is in the list is taken.
    bpe_highest: the pair of the highest rank is merged first
        A rank is a turn: the lowest was learned first, and comes first.
        > Take min, not max, of the ranks.
    """,
    bpe_leftmost=instead(
        choose=lambda s: lambda pieces, ranks: min(known_pairs(pieces, ranks), default=None)
    ),
    bpe_rightmost=instead(
        choose=lambda s: lambda pieces, ranks: max(known_pairs(pieces, ranks), default=None)
    ),
    bpe_highest=bpe_highest,
)


def bpe_once(s: State) -> None:
    pairs = [a + b for a, b in pairwise(s.word)]
    s.out = np.array(sorted(s.ranks[pair] for pair in pairs if pair in s.ranks))


Mistakes("text.bpe_merge", see=BPE, fix="Look at all pairs again after every merge.")(
    """
    bpe_once: the pairs are looked up once: merged pieces are never merged again
        The new piece and its neighbours make new pairs.
    """,
    bpe_once=bpe_once,
)
