"""Byte-pair encoding by score, as in sentencepiece and llama2.c.

A text is split into characters (one that is no piece becomes its bytes), then the neighbours are
joined whose union is the piece of the best score, the leftmost of equals, until there are none.
"""

import heapq
from collections.abc import Mapping, Sequence

__all__ = ["ScoredMerges"]


class ScoredMerges:
    """ids : of the pieces that may be joined
    scores : by id
    byte_ids : what stands for byte 0, 1, ... of a character that is no piece; they are never joined
    """

    def __init__(
        self, ids: Mapping[bytes, int], scores: Sequence[float], byte_ids: Sequence[int]
    ) -> None:
        self._ids, self._scores, self._byte_ids = ids, scores, byte_ids
        self._pieces = {id: piece for piece, id in ids.items()}

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ids: list[int] = []
        for character in text:
            piece = character.encode()
            known = self._ids.get(piece)
            ids += [self._byte_ids[byte] for byte in piece] if known is None else [known]
        return self._merge(ids)

    def _merge(self, ids: list[int]) -> list[int]:
        """Joins pairs, best score first. A heap of candidates over a linked list: n log n for n
        characters."""
        before, after = list(range(-1, len(ids) - 1)), [*range(1, len(ids)), -1]
        queue: list[
            tuple[float, int, int, int, int]
        ] = []  # (-score, left, its id, right's id, joined)

        def propose(left: int) -> None:
            right = after[left] if left >= 0 else -1
            if right < 0:
                return
            first, second = self._pieces.get(ids[left]), self._pieces.get(ids[right])
            if first is None or second is None:
                return
            joined = self._ids.get(first + second)
            if joined is not None:
                heapq.heappush(queue, (-self._scores[joined], left, ids[left], ids[right], joined))

        for left in range(len(ids) - 1):
            propose(left)
        while queue:
            _, left, left_id, right_id, joined = heapq.heappop(queue)
            right = after[left]
            if right < 0 or (ids[left], ids[right]) != (left_id, right_id):
                continue  # one of the two has been joined with another since
            ids[left], ids[right] = joined, -1
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
            propose(before[left])
            propose(left)
        return [id for id in ids if id >= 0]
