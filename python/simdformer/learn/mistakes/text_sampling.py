"""From logits to what the next token is drawn from, in steps; and what goes wrong there.

logits (V,) -> probabilities (V,)
"""

from typing import Any

import numpy as np

from simdformer.learn.catalogue import mistakes
from simdformer.learn.program import Program, State
from simdformer.reference import softmax

__all__ = ["sampling"]


def largest(scores: Any, count: int) -> Any:
    """Where the `count` highest are."""
    return scores >= np.sort(scores)[-min(count, len(scores))]


def by_share(s: State) -> tuple[Any, Any]:
    """The shares of those that stay, the largest first, and whose they are."""
    shares = softmax(np.where(s.stay, s.scores, -np.inf))
    order = np.argsort(-shares, kind="stable")
    return shares[order], order


def among(s: State, chosen: Any) -> Any:
    return np.isin(np.arange(len(s.scores)), chosen) & s.stay


sampling = Program(
    "text",
    """
    sampling_temperature: scores = array(logits) / temperature
    sampling_all: stay = scores >= -np.inf
    sampling_top_k if top_k is not None: stay = largest(scores, top_k)
    sampling_top_p if top_p is not None:
        shares, order = by_share(s)
        stay = among(s, order[np.cumsum(shares) - shares < top_p])
    sampling_shares: out = softmax(np.where(stay, scores, -np.inf))
    """,
    calls=(among, by_share, largest, softmax),
    takes=("logits", "temperature", "top_k", "top_p"),
    axes=("token",),
)

mistakes(
    """
    text.sampling_temperature (04 §6) > Divide the logits by the temperature.

    sampling_multiplied: the logits are multiplied by the temperature
        A high temperature should make all tokens alike; multiplied, it does the reverse.
        | scores = array(logits) * temperature
    sampling_without_temperature: the temperature is not used
        The logits go to softmax as they are.
        > Divide the logits by the temperature first.
        | scores = array(logits)

    text.sampling_shares (04 §6) > Divide the logits by the temperature first, then cut.

    sampling_temperature_last: the temperature comes after the cuts
        top_p then adds up the probabilities of temperature 1, and keeps other tokens.
        sampling_temperature | scores = array(logits)
        | out = softmax(np.where(stay, scores / temperature, -np.inf))
    sampling_not_normalized: what stays is not brought back to a sum of 1
        The probabilities that were cut away are missing.
        > Divide by the sum of what stays, or take softmax after setting the others to -inf.
        | out = np.where(stay, softmax(scores), 0)
    sampling_cut_to_zero: logits that are cut away are set to 0
        A logit of 0 still has a probability: exp(0) is 1.
        > Set them to -inf.
        | out = softmax(np.where(stay, scores, 0))
    sampling_left_sorted: the probabilities are in the order of their size
        They were sorted for top_p and not put back to their ids.
        > Write the sorted ones back: result[order] = kept.
        | out = -np.sort(-softmax(np.where(stay, scores, -np.inf)))

    text.sampling_top_k (04 §6) > Keep logits >= np.sort(logits)[-k].

    sampling_one_more: top_k keeps one token too many
        The k-th largest of n sorted numbers is number n - k, counted from 0.
        | stay = largest(scores, top_k + 1)
    sampling_one_less: top_k drops the k-th token
        Only what is greater than the k-th logit is kept: k - 1 tokens.
        | stay = scores > np.sort(scores)[-min(top_k, len(scores))]
    sampling_least_likely: top_k keeps the least likely tokens
        np.sort and np.argsort begin with the smallest.
        > Take the last k of what np.argsort gives.
        | stay = largest(-scores, top_k)
    sampling_without_top_k: top_k is not used
        All tokens stay.
        > Set all logits below the k-th largest to -inf.
        | pass

    text.sampling_top_p (04 §6) > A token stays if what comes before it sums up to less than p:
        cumsum - share < p.

    sampling_below_p: top_p drops the token with which the sum reaches p
        `cumsum <= p` keeps less than p; where the first token alone has more, it keeps none.
        | shares, order = by_share(s)
        | stay = among(s, order[np.cumsum(shares) <= top_p])
    sampling_beyond_p: top_p keeps one token too many
        The sum has reached p, and one more is taken.
        | shares, order = by_share(s)
        | stay = among(s, order[: np.sum(np.cumsum(shares) - shares < top_p) + 1])
    sampling_unsorted: top_p adds up the probabilities in the order of the ids
        Without sorting, those that come first in the vocabulary stay.
        > Sort by probability, the largest first, then add up.
        | shares = softmax(np.where(stay, scores, -np.inf))
        | stay = stay & (np.cumsum(shares) - shares < top_p)
    sampling_ascending: top_p begins with the least likely tokens
        np.sort and np.argsort begin with the smallest.
        > Sort by -probability.
        | shares, order = (x[::-1] for x in by_share(s))
        | stay = among(s, order[np.cumsum(shares) - shares < top_p])
    sampling_without_top_p: top_p is not used
        All tokens that top_k leaves stay.
        > Sort by probability, add up, and keep the tokens before which the sum is below p.
        | pass
    sampling_before_top_k: top_p looks at the probabilities before top_k
        What top_k cuts away still counts, so the sum reaches p later.
        > Take the softmax of what top_k has left, then add up.
        | shares = softmax(scores)
        | order = np.argsort(-shares, kind="stable")
        | stay = among(s, order[np.cumsum(shares[order]) - shares[order] < top_p])
    """,
)
