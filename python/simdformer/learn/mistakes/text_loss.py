"""How badly a model foretells a text, in steps; and what goes wrong there.

logits (L,V), ids (L,) -> a number
"""

from typing import Any

import numpy as np

from simdformer.learn.program import Program, State, mistake
from simdformer.reference import softmax

__all__ = ["text_loss"]

LOSS = "02 §9"


def text_loss(logits: Any, ids: Any, pad_id: int) -> Any:
    """Mean of -log(probability of the right next token) over all that are no padding, in nats."""
    with np.errstate(divide="ignore"):
        logs = np.log(softmax(logits))[np.arange(len(ids) - 1), ids[1:]]
    return -logs[ids[1:] != pad_id].mean()


loss = Program("text", of=text_loss)


@loss.step
def loss_logarithms(s: State) -> None:
    scores = s.run.array(s.logits)
    scores = scores - scores.max(-1, keepdims=True)
    s.logs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))


@loss.step
def loss_next(s: State) -> None:
    s.logs, s.next = s.logs[:-1], s.ids[1:]


@loss.step
def loss_counted(s: State) -> None:
    s.counted = s.next != s.pad_id


@loss.step
def loss_mean(s: State) -> None:
    s.out = -picked(s).mean()


def picked(s: State) -> Any:
    """The logarithms of the shares of the tokens that came."""
    return s.logs[np.arange(len(s.next)), s.next][s.counted]


@mistake(
    "text.loss_logarithms",
    title="exp overflows: the softmax is not shifted",
    cause="Logits of a hundred are usual, and float32's exp ends at 88.",
    fix="Subtract the maximum of each row before exp, or take a ready log_softmax.",
    step=LOSS,
)
def loss_overflows(s: State) -> None:
    e = np.exp(s.run.array(s.logits))
    s.logs = np.log(e / e.sum(-1, keepdims=True))


@mistake(
    "text.loss_logarithms",
    title="the logits themselves are taken for logarithms of probabilities",
    cause="The log of softmax is missing: logits are no logarithms of shares.",
    fix="Subtract the logarithm of the sum of exp(logits) from each row.",
    step=LOSS,
)
def loss_of_logits(s: State) -> None:
    s.logs = s.run.array(s.logits)


@mistake(
    "text.loss_next",
    title="each row is compared with its own token, not with the next one",
    cause="The shift is missing: row i foretells ids[i + 1].",
    fix="Compare logits[:-1] with ids[1:].",
    step=LOSS,
)
def loss_not_shifted(s: State) -> None:
    s.next = s.ids


@mistake(
    "text.loss_next",
    title="the shift goes the wrong way: each row is compared with the token before it",
    cause="logits[1:] and ids[:-1] are paired.",
    fix="Compare logits[:-1] with ids[1:].",
    step=LOSS,
)
def loss_shifted_back(s: State) -> None:
    s.logs, s.next = s.logs[1:], s.ids[:-1]


@mistake(
    "text.loss_counted",
    title="padding counts as text",
    cause="A model need not foretell padding; with it the loss depends on how long others are.",
    fix="Leave out the places whose next token is pad_id.",
    step=LOSS,
)
def loss_of_padding(s: State) -> None:
    s.counted = s.next >= 0


@mistake(
    "text.loss_mean",
    title="the loss is a sum, not a mean",
    cause="Longer texts get a higher loss.",
    fix="Divide by the number of tokens that count.",
    step=LOSS,
)
def loss_summed(s: State) -> None:
    s.out = -picked(s).sum()


@mistake(
    "text.loss_mean",
    title="the sum is divided by the length of the text",
    cause="The first token and padding are foretold by nobody, and still counted.",
    fix="Divide by the number of tokens that count.",
    step=LOSS,
)
def loss_over_length(s: State) -> None:
    s.out = -picked(s).sum() / len(s.ids)


@mistake(
    "text.loss_mean",
    title="the loss has the wrong sign",
    cause="Logarithms of probabilities are below 0, and a loss is their negative.",
    fix="Put a minus in front.",
    step=LOSS,
)
def loss_negative(s: State) -> None:
    s.out = picked(s).mean()


@mistake(
    "text.loss_mean",
    title="this is the perplexity: exp of the loss",
    cause="The perplexity is made of the loss, and asked for is the loss.",
    fix="Leave the exp away.",
    step=LOSS,
)
def loss_as_perplexity(s: State) -> None:
    s.out = np.exp(-picked(s).mean())


@mistake(
    "text.loss_mean",
    title="the loss is in bits, not in nats",
    cause="np.log2 in place of np.log.",
    fix="Take the natural logarithm.",
    step=LOSS,
)
def loss_in_bits(s: State) -> None:
    s.out = -picked(s).mean() / np.log(2)


@mistake(
    "text.loss_mean",
    title="the mean is taken before the logarithm",
    cause="-log of the mean probability is less than the mean of -log.",
    fix="Take the logarithm of each probability, then the mean.",
    step=LOSS,
)
def loss_of_the_mean(s: State) -> None:
    s.out = -np.log(np.exp(picked(s)).mean())
