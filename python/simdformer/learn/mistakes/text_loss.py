"""How badly a model predicts a text, in steps; and what goes wrong there.

logits (L,V), ids (L,) -> a number
"""

from typing import Any

import numpy as np

from simdformer.learn.catalogue import mistakes
from simdformer.learn.program import Program, State

__all__ = ["loss"]


def picked(s: State) -> Any:
    """The logarithms of the shares of the tokens that came."""
    return s.logs[np.arange(len(s.next)), s.next][s.counted]


loss = Program(
    "text",
    """
    loss_logarithms:
        scores = array(logits)
        scores = scores - scores.max(-1, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    loss_next: logs, next = logs[:-1], ids[1:]
    loss_counted: counted = next != pad_id
    loss_mean: out = -picked(s).mean()
    """,
    calls=(picked,),
    takes=("logits", "ids", "pad_id"),
)

mistakes(
    """
    text.loss_logarithms (02 §10) > Subtract the maximum of each row before exp, or take a ready
        log_softmax.

    loss_overflows: exp overflows: the softmax is not shifted
        Logits of a hundred are usual, and float32's exp ends at 88.
        | e = np.exp(array(logits)); logs = np.log(e / e.sum(-1, keepdims=True))
    loss_of_logits: the logits themselves are taken for logarithms of probabilities
        The log of softmax is missing: logits are no logarithms of shares.
        > Subtract the logarithm of the sum of exp(logits) from each row.
        | logs = array(logits)

    text.loss_next (02 §10) > Compare logits[:-1] with ids[1:].

    loss_not_shifted: each row is compared with its own token, not with the next one
        The shift is missing: row i predicts ids[i + 1].
        | next = ids
    loss_shifted_back: the shift goes the wrong way: each row is compared with the token before
        logits[1:] and ids[:-1] are paired.
        | logs, next = logs[1:], ids[:-1]

    text.loss_counted (02 §10) > Leave out the places whose next token is pad_id.

    loss_of_padding: padding counts as text
        A model need not predict padding; with it the loss depends on how long others are.
        | counted = next >= 0

    text.loss_mean (02 §10) > Divide by the number of tokens that count.

    loss_summed: the loss is a sum, not a mean
        Longer texts get a higher loss.
        | out = -picked(s).sum()
    loss_over_length: the sum is divided by the length of the text
        The first token and padding are predicted by nobody, and still counted.
        | out = -picked(s).sum() / len(ids)
    loss_negative: the loss has the wrong sign
        Logarithms of probabilities are below 0, and a loss is their negative.
        > Put a minus in front.
        | out = picked(s).mean()
    loss_as_perplexity: this is the perplexity: exp of the loss
        The perplexity is made of the loss, and asked for is the loss.
        > Leave the exp away.
        | out = np.exp(-picked(s).mean())
    loss_in_bits: the loss is in bits, not in nats
        np.log2 in place of np.log.
        > Take the natural logarithm.
        | out = -picked(s).mean() / np.log(2)
    loss_of_the_mean: the mean is taken before the logarithm
        -log of the mean probability is less than the mean of -log.
        > Take the logarithm of each probability, then the mean.
        | out = -np.log(np.exp(picked(s)).mean())
    """,
)
