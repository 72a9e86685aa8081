"""From logits to what the next token is drawn from, in steps; and what goes wrong there.

logits (V,) -> probabilities (V,)
"""

from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistakes, instead, skip
from simdformer.learn.program import Program, State
from simdformer.reference import softmax
from simdformer.text.sampling import Sampler

__all__ = ["sampling_probabilities"]

SAMPLING = "04 §6"


def sampling_probabilities(
    logits: Any, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Any:
    """What the next token is drawn from: (V,)"""
    return Sampler(temperature=temperature, top_k=top_k, top_p=top_p).probabilities(logits)


sampling = Program("text", of=sampling_probabilities, axes=("token",))


@sampling.step
def sampling_temperature(s: State) -> None:
    s.scores = s.run.array(s.logits) / s.temperature


@sampling.step
def sampling_top_k(s: State) -> None:
    s.stay = np.ones(len(s.scores), bool) if s.top_k is None else likeliest(s.scores, s.top_k)


@sampling.step
def sampling_top_p(s: State) -> None:
    if s.top_p is not None:
        shares, order = by_share(s)
        s.stay = among(s, order[np.cumsum(shares) - shares < s.top_p])


@sampling.step
def sampling_shares(s: State) -> None:
    s.out = softmax(np.where(s.stay, s.scores, -np.inf))


def likeliest(scores: Any, count: int) -> Any:
    """Where the `count` highest are."""
    return scores >= np.sort(scores)[-min(count, len(scores))]


def by_share(s: State) -> tuple[Any, Any]:
    """The shares of those that stay, the largest first, and whose they are."""
    shares = softmax(np.where(s.stay, s.scores, -np.inf))
    order = np.argsort(-shares, kind="stable")
    return shares[order], order


def among(s: State, chosen: Any) -> Any:
    return np.isin(np.arange(len(s.scores)), chosen) & s.stay


Mistakes("text.sampling_temperature", see=SAMPLING, fix="Divide the logits by the temperature.")(
    """
    sampling_multiplied: the logits are multiplied by the temperature
        A high temperature should make all tokens alike; multiplied, it does the reverse.
    sampling_without_temperature: the temperature is not used
        The logits go to softmax as they are.
        > Divide the logits by the temperature first.
    """,
    sampling_multiplied=instead(scores=lambda s: s.run.array(s.logits) * s.temperature),
    sampling_without_temperature=instead(scores=lambda s: s.run.array(s.logits)),
)

Mistakes(
    "text.sampling_shares",
    see=SAMPLING,
    fix="Divide the logits by the temperature first, then cut.",
)(
    """
    sampling_temperature_last: the temperature comes after the cuts
        top_p then adds up the probabilities of temperature 1, and keeps other tokens.
    sampling_not_normalized: what stays is not brought back to a sum of 1
        The probabilities that were cut away are missing.
        > Divide by the sum of what stays, or take softmax after setting the others to -inf.
    sampling_cut_to_zero: logits that are cut away are set to 0
        A logit of 0 still has a probability: exp(0) is 1.
        > Set them to -inf.
    sampling_left_sorted: the probabilities are in the order of their size
        They were sorted for top_p and not put back to their ids.
        > Write the sorted ones back: result[order] = kept.
    """,
    sampling_temperature_last={
        "sampling_temperature": instead(scores=lambda s: s.run.array(s.logits)),
        "sampling_shares": instead(
            out=lambda s: softmax(np.where(s.stay, s.scores / s.temperature, -np.inf))
        ),
    },
    sampling_not_normalized=instead(out=lambda s: np.where(s.stay, softmax(s.scores), 0)),
    sampling_cut_to_zero=instead(out=lambda s: softmax(np.where(s.stay, s.scores, 0))),
    sampling_left_sorted=instead(
        out=lambda s: -np.sort(-softmax(np.where(s.stay, s.scores, -np.inf)))
    ),
)


def sampling_one_less(s: State) -> None:
    s.stay = s.scores >= -np.inf
    if s.top_k is not None:
        s.stay = s.scores > np.sort(s.scores)[-min(s.top_k, len(s.scores))]


Mistakes("text.sampling_top_k", see=SAMPLING, fix="Keep logits >= np.sort(logits)[-k].")(
    """
    sampling_one_more: top_k keeps one token too many
        The k-th largest of n sorted numbers is number n - k, counted from 0.
    sampling_one_less: top_k drops the k-th token
        Only what is greater than the k-th logit is kept: k - 1 tokens.
    sampling_least_likely: top_k keeps the least likely tokens
        np.sort and np.argsort begin with the smallest.
        > Take the last k of what np.argsort gives.
    sampling_without_top_k: top_k is not used
        All tokens stay.
        > Set all logits below the k-th largest to -inf.
    """,
    sampling_one_more=instead(
        stay=lambda s: s.scores >= -np.inf if s.top_k is None else likeliest(s.scores, s.top_k + 1)
    ),
    sampling_one_less=sampling_one_less,
    sampling_least_likely=instead(
        stay=lambda s: s.scores >= -np.inf if s.top_k is None else likeliest(-s.scores, s.top_k)
    ),
    sampling_without_top_k=instead(stay=lambda s: s.scores >= -np.inf),
)


def sampling_below_p(s: State) -> None:
    if s.top_p is not None:
        shares, order = by_share(s)
        s.stay = among(s, order[np.cumsum(shares) <= s.top_p])


def sampling_beyond_p(s: State) -> None:
    if s.top_p is not None:
        shares, order = by_share(s)
        s.stay = among(s, order[: np.sum(np.cumsum(shares) - shares < s.top_p) + 1])


def sampling_unsorted(s: State) -> None:
    if s.top_p is not None:
        shares = softmax(np.where(s.stay, s.scores, -np.inf))
        s.stay = s.stay & (np.cumsum(shares) - shares < s.top_p)


def sampling_ascending(s: State) -> None:
    if s.top_p is not None:
        shares, order = (x[::-1] for x in by_share(s))
        s.stay = among(s, order[np.cumsum(shares) - shares < s.top_p])


def sampling_before_top_k(s: State) -> None:
    if s.top_p is not None:
        shares = softmax(s.scores)
        order = np.argsort(-shares, kind="stable")
        s.stay = among(s, order[np.cumsum(shares[order]) - shares[order] < s.top_p])


Mistakes(
    "text.sampling_top_p",
    see=SAMPLING,
    fix="A token stays if what comes before it sums up to less than p: cumsum - share < p.",
)(
    """
    sampling_below_p: top_p drops the token with which the sum reaches p
        `cumsum <= p` keeps less than p; where the first token alone has more, it keeps none.
    sampling_beyond_p: top_p keeps one token too many
        The sum has reached p, and one more is taken.
    sampling_unsorted: top_p adds up the probabilities in the order of the ids
        Without sorting, those that come first in the vocabulary stay.
        > Sort by probability, the largest first, then add up.
    sampling_ascending: top_p begins with the least likely tokens
        np.sort and np.argsort begin with the smallest.
        > Sort by -probability.
    sampling_without_top_p: top_p is not used
        All tokens that top_k leaves stay.
        > Sort by probability, add up, and keep the tokens before which the sum is below p.
    sampling_before_top_k: top_p looks at the probabilities before top_k
        What top_k cuts away still counts, so the sum reaches p later.
        > Take the softmax of what top_k has left, then add up.
    """,
    sampling_below_p=sampling_below_p,
    sampling_beyond_p=sampling_beyond_p,
    sampling_unsorted=sampling_unsorted,
    sampling_ascending=sampling_ascending,
    sampling_without_top_p=skip,
    sampling_before_top_k=sampling_before_top_k,
)
