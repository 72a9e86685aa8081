"""Byte-pair encoding of one word, in steps; and what goes wrong there."""

from collections.abc import Callable, Mapping
from itertools import pairwise

from simdformer.learn.catalogue import mistakes
from simdformer.learn.program import Program

__all__ = ["bpe"]

Choose = Callable[[list[str], Mapping[str, int]], int | None]


def known_pairs(pieces: list[str], ranks: Mapping[str, int]) -> dict[int, int]:
    """Where neighbours can be merged, and the rank of what comes out."""
    unions = enumerate(a + b for a, b in pairwise(pieces))
    return {place: ranks[union] for place, union in unions if union in ranks}


def merged(word: str, ranks: Mapping[str, int], choose: Choose) -> list[int]:
    """The ranks of the pairs that are merged, in that order."""
    pieces, merges = list(word), []
    while (place := choose(pieces, ranks)) is not None:
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
        merges.append(ranks[pieces[place]])
    return merges


def lowest_rank(pieces: list[str], ranks: Mapping[str, int]) -> int | None:
    pairs = known_pairs(pieces, ranks)
    return min(pairs, key=lambda place: pairs[place], default=None)


bpe = Program(
    "text",
    """
    bpe_choose: choose = lowest_rank
    bpe_merge: out = np.array(merged(word, ranks, choose))
    """,
    calls=(lowest_rank, merged),
    takes=("word", "ranks"),
    axes=("merge",),
)

mistakes(
    """
    text.bpe_choose (02 §1) > Look at all pairs, and merge the one of the lowest rank.

    bpe_leftmost: pairs are merged from left to right, whatever their rank
        The first pair that is in the list is taken. The pieces still spell the word, so that
        decoding hides it.
        | choose = lambda pieces, ranks: min(known_pairs(pieces, ranks), default=None)
    bpe_rightmost: pairs are merged from right to left, whatever their rank
        The last pair that is in the list is taken.
        | choose = lambda pieces, ranks: max(known_pairs(pieces, ranks), default=None)
    bpe_highest: the pair of the highest rank is merged first
        A rank is a turn: the lowest was learned first, and comes first.
        > Take min, not max, of the ranks.
        | choose = lambda pieces, ranks: max(
        |     pairs := known_pairs(pieces, ranks), key=pairs.get, default=None
        | )

    text.bpe_merge (02 §1) > Look at all pairs again after every merge.

    bpe_once: the pairs are looked up once: merged pieces are never merged again
        The new piece and its neighbours make new pairs.
        | pairs = [a + b for a, b in pairwise(word)]
        | out = np.array(sorted(ranks[pair] for pair in pairs if pair in ranks))
    """,
    calls=(known_pairs, pairwise),
)
