"""From logits to what the next token is drawn from, in steps; and what goes wrong there.

logits (V,) -> probabilities (V,)
"""

from typing import Any

import numpy as np

from simdformer.learn.program import Program, State, mistake
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


@mistake(
    "text.sampling_temperature",
    title="the logits are multiplied by the temperature",
    cause="A high temperature should make all tokens alike; multiplied, it does the reverse.",
    fix="Divide the logits by the temperature.",
    step=SAMPLING,
)
def sampling_multiplied(s: State) -> None:
    s.scores = s.run.array(s.logits) * s.temperature


@mistake(
    "text.sampling_temperature",
    title="the temperature is not used",
    cause="The logits go to softmax as they are.",
    fix="Divide the logits by the temperature first.",
    step=SAMPLING,
)
def sampling_without_temperature(s: State) -> None:
    s.scores = s.run.array(s.logits)


@mistake(
    "text.sampling_temperature",
    "text.sampling_shares",
    title="the temperature comes after the cuts",
    cause="top_p then adds up the probabilities of temperature 1, and keeps other tokens.",
    fix="Divide the logits by the temperature first, then cut.",
    step=SAMPLING,
)
class SamplingTemperatureLast:
    @staticmethod
    def sampling_temperature(s: State) -> None:
        s.scores = s.run.array(s.logits)

    @staticmethod
    def sampling_shares(s: State) -> None:
        s.out = softmax(np.where(s.stay, s.scores / s.temperature, -np.inf))


@mistake(
    "text.sampling_top_k",
    title="top_k keeps one token too many",
    cause="The k-th largest of n sorted numbers is number n - k, counted from 0.",
    fix="Keep logits >= np.sort(logits)[-k].",
    step=SAMPLING,
)
def sampling_one_more(s: State) -> None:
    s.stay = s.scores >= -np.inf if s.top_k is None else likeliest(s.scores, s.top_k + 1)


@mistake(
    "text.sampling_top_k",
    title="top_k drops the k-th token",
    cause="Only what is greater than the k-th logit is kept: k - 1 tokens.",
    fix="Keep logits >= np.sort(logits)[-k].",
    step=SAMPLING,
)
def sampling_one_less(s: State) -> None:
    s.stay = s.scores >= -np.inf
    if s.top_k is not None:
        s.stay = s.scores > np.sort(s.scores)[-min(s.top_k, len(s.scores))]


@mistake(
    "text.sampling_top_k",
    title="top_k keeps the least likely tokens",
    cause="np.sort and np.argsort begin with the smallest.",
    fix="Take the last k of what np.argsort gives.",
    step=SAMPLING,
)
def sampling_least_likely(s: State) -> None:
    s.stay = s.scores >= -np.inf if s.top_k is None else likeliest(-s.scores, s.top_k)


@mistake(
    "text.sampling_top_k",
    title="top_k is not used",
    cause="All tokens stay.",
    fix="Set all logits below the k-th largest to -inf.",
    step=SAMPLING,
)
def sampling_without_top_k(s: State) -> None:
    s.stay = s.scores >= -np.inf


@mistake(
    "text.sampling_top_p",
    title="top_p drops the token with which the sum reaches p",
    cause="`cumsum <= p` keeps less than p; where the first token alone has more, it keeps none.",
    fix="A token stays if what comes before it sums up to less than p: cumsum - share < p.",
    step=SAMPLING,
)
def sampling_below_p(s: State) -> None:
    if s.top_p is not None:
        shares, order = by_share(s)
        s.stay = among(s, order[np.cumsum(shares) <= s.top_p])


@mistake(
    "text.sampling_top_p",
    title="top_p keeps one token too many",
    cause="The sum has reached p, and one more is taken.",
    fix="A token stays if what comes before it sums up to less than p: cumsum - share < p.",
    step=SAMPLING,
)
def sampling_beyond_p(s: State) -> None:
    if s.top_p is not None:
        shares, order = by_share(s)
        s.stay = among(s, order[: np.sum(np.cumsum(shares) - shares < s.top_p) + 1])


@mistake(
    "text.sampling_top_p",
    title="top_p adds up the probabilities in the order of the ids",
    cause="Without sorting, those that come first in the vocabulary stay.",
    fix="Sort by probability, the largest first, then add up.",
    step=SAMPLING,
)
def sampling_unsorted(s: State) -> None:
    if s.top_p is not None:
        shares = softmax(np.where(s.stay, s.scores, -np.inf))
        s.stay = s.stay & (np.cumsum(shares) - shares < s.top_p)


@mistake(
    "text.sampling_top_p",
    title="top_p begins with the least likely tokens",
    cause="np.sort and np.argsort begin with the smallest.",
    fix="Sort by -probability.",
    step=SAMPLING,
)
def sampling_ascending(s: State) -> None:
    if s.top_p is not None:
        shares, order = (x[::-1] for x in by_share(s))
        s.stay = among(s, order[np.cumsum(shares) - shares < s.top_p])


@mistake(
    "text.sampling_top_p",
    title="top_p is not used",
    cause="All tokens that top_k leaves stay.",
    fix="Sort by probability, add up, and keep the tokens before which the sum is below p.",
    step=SAMPLING,
)
def sampling_without_top_p(s: State) -> None:
    pass


@mistake(
    "text.sampling_top_p",
    title="top_p looks at the probabilities before top_k",
    cause="What top_k cuts away still counts, so the sum reaches p later.",
    fix="Take the softmax of what top_k has left, then add up.",
    step=SAMPLING,
)
def sampling_before_top_k(s: State) -> None:
    if s.top_p is not None:
        shares = softmax(s.scores)
        order = np.argsort(-shares, kind="stable")
        s.stay = among(s, order[np.cumsum(shares[order]) - shares[order] < s.top_p])


@mistake(
    "text.sampling_shares",
    title="what stays is not brought back to a sum of 1",
    cause="The probabilities that were cut away are missing.",
    fix="Divide by the sum of what stays, or take softmax after setting the others to -inf.",
    step=SAMPLING,
)
def sampling_not_normalized(s: State) -> None:
    s.out = np.where(s.stay, softmax(s.scores), 0)


@mistake(
    "text.sampling_shares",
    title="logits that are cut away are set to 0",
    cause="A logit of 0 still has a probability: exp(0) is 1.",
    fix="Set them to -inf.",
    step=SAMPLING,
)
def sampling_cut_to_zero(s: State) -> None:
    s.out = softmax(np.where(s.stay, s.scores, 0))


@mistake(
    "text.sampling_shares",
    title="the probabilities are in the order of their size",
    cause="They were sorted for top_p and not put back to their ids.",
    fix="Write the sorted ones back: result[order] = kept.",
    step=SAMPLING,
)
def sampling_left_sorted(s: State) -> None:
    s.out = -np.sort(-softmax(np.where(s.stay, s.scores, -np.inf)))
