"""Speculation: cheap guesses of the next ids, which the model reads all at once.

Leviathan et al. 2022, arXiv:2211.17192, with guesses that are certain of themselves: the model's
own sampler chooses each id as ever, and the guesses are kept as far as it chose the same. So the
text is the one without them, greedy or sampled; what changes is how often the weights are read.
"""

from collections.abc import Sequence
from typing import Protocol

from simdformer.models.protocol import CausalModel

__all__ = ["Draft", "ModelDraft", "PromptLookup"]


class Draft(Protocol):
    """Proposes what may follow the ids of one text."""

    def propose(self, ids: Sequence[int], /) -> Sequence[int]: ...


class PromptLookup:
    """What followed when the last few ids stood in the text before (Saxena 2023): up to `most` ids
    behind the latest place where the longest run of them, at most `longest`, did.

    >>> from simdformer.text.draft import PromptLookup
    >>> PromptLookup().propose([1, 2, 3, 4, 9, 2, 3])
    [4, 9, 2, 3]
    """

    def __init__(self, longest: int = 3, most: int = 8) -> None:
        self.longest, self.most = longest, most
        self._read = 0
        self._after: dict[tuple[int, ...], int] = {}  # where a run of ids ended last

    def propose(self, ids: Sequence[int], /) -> Sequence[int]:
        # The run that ends the text itself is left out: nothing has followed it yet.
        for end in range(max(self._read, 1), len(ids)):
            for length in range(1, min(self.longest, end) + 1):
                self._after[tuple(ids[end - length : end])] = end
        self._read = len(ids)
        for length in range(min(self.longest, len(ids)), 0, -1):
            then = self._after.get(tuple(ids[-length:]))
            if then is not None:
                return list(ids[then : then + self.most])
        return []


class ModelDraft:
    """What a smaller model of the same vocabulary would say, greedily: `most` ids, in a text of up
    to `positions`."""

    def __init__(self, model: CausalModel, positions: int, most: int = 4) -> None:
        self.model, self.most = model, most
        self._cache = model.new_cache(min(positions, model.config.max_seq_len))
        self._read: list[int] = []

    def propose(self, ids: Sequence[int], /) -> Sequence[int]:
        room = self._cache.max_seq_len - len(ids)
        if room < 0:
            return []
        same = next(
            (at for at, (a, b) in enumerate(zip(self._read, ids, strict=False)) if a != b),
            min(len(self._read), len(ids)),
        )
        same = min(same, len(ids) - 1)  # its logits are wanted
        self._cache.truncate(same)
        unread, proposed = list(ids[same:]), []
        for _ in range(min(self.most, room + 1)):
            logits = self.model(unread, self._cache, logits_to_keep=1)
            unread = [int(logits[-1].argmax())]
            proposed += unread
        self._read = [*ids, *proposed[:-1]]
        return proposed
