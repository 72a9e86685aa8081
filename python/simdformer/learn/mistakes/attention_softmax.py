"""What goes wrong in the softmax of attention, and in what else is handed out."""

from simdformer.learn.catalogue import mistakes

mistakes(
    """
    attention.softmax (01 §1) > Take the softmax over the last axis of the scores, once.

    softmax_over_queries: the softmax runs over the queries, not over the keys
        Another axis: the columns sum to one, while each query should give away one in total.
        | axis = -2; ...
    softmax_over_heads: the softmax runs over the heads
        dim=1 is the axis of the heads once they are split.
        | axis = -3; ...
    softmax_over_first_axis (rare): the softmax runs over the first axis
        axis=0 is the batch, or the heads.
        | axis = -2 if no_heads else 0; ...
    softmax_over_everything (rare): the softmax runs over all scores at once
        max() and sum() without an axis.
        > Give both axis=-1, keepdims=True.
        | axis = None; ...
    no_shift: exp overflows, because the largest score is not subtracted
        exp(89) does not fit into a float32, nor exp(12) into a float16; inf/inf is NaN.
        > Subtract the maximum of each row before exp; it changes nothing else.
        | exponentials = np.exp(scores)
        | total = exponentials.sum(axis=-1, keepdims=True) + np.exp(sink)
        | weights, lse = exponentials / total, np.log(total)[..., 0]
    no_softmax: there is no softmax
        The scores themselves average the values.
        > Turn the scores into shares first: softmax over the last axis.
        | ...; weights = scores
    not_divided: the exponentials are not divided by their sum
        exp alone makes numbers positive; shares also sum to one.
        > Divide by the sum over the last axis, keepdims=True.
        | ...; weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    softmax_keepdims_lost: keepdims is lost: the exponentials are divided by another query's sum
        Without its last axis the column of sums is spread along the rows; with as many queries as
        keys nothing complains.
        > Write sum(axis=-1, keepdims=True).
        | ...; exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
        | totals = exponentials.sum(axis=-1, keepdims=True)
        | weights = weights * totals / totals[..., 0]
    softmax_keepdims_lost_unshifted:
        keepdims is lost and no maximum subtracted: another query's sum
        exp(scores) / exp(scores).sum(-1): without its last axis the column of sums is spread along
        the rows.
        > Subtract max(axis=-1, keepdims=True) first, and divide by sum(axis=-1, keepdims=True).
        | ...; exponentials = np.exp(scores)
        | weights = exponentials / exponentials.sum(axis=-1)
    one_hot: each query takes the value of one key: this is argmax, not softmax
        A one at the largest score and zeros elsewhere; softmax leaves a share for all visible keys.
        > Divide exp of all scores by their sum.
        | ...; weights = (scores == scores.max(axis=-1, keepdims=True)).astype(real)
    softmax_twice: softmax is applied twice
        The shares go through softmax again: they become nearly equal.
        | ...; weights = np.exp(weights) / np.exp(weights).sum(axis=-1, keepdims=True)
    log_softmax (rare): the logarithm of the shares is taken
        log_softmax is what losses are made of; attention needs the shares.
        | ...; weights = np.log(weights)
    powers_of_two (rare): powers of 2 are taken instead of powers of e
        exp2 is the faster instruction, but the scores must then be multiplied by log2(e).
        > Use exp, or exp2(scores * 1.442695).
        | scores = scores * real(math.log(2)); ...
    sink_without_exp: the sink is added to the denominator as it is, without exp
        A sink is a score; the denominator adds up exponentials.
        > Add exp(sink - maximum) to the denominator.
        | ...; exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
        | total = exponentials.sum(axis=-1, keepdims=True)
        | weights = exponentials / (total + (0 if sinks is None else sink))
    lse_without_maximum: the lse lacks the maximum that was subtracted
        log(sum(exp(scores - maximum))) is smaller than the lse by the maximum.
        > Add the maximum of the row again.
        | ...; lse = lse - scores.max(axis=-1, initial=-np.inf)

    attention.sink (01 §1)

    no_sinks: the sinks are forgotten
        A sink is one more score of each head: it takes a share, and adds no value.
        > Add exp(sink - maximum) to the denominator.
        | pass

    attention.results (01 §2)

    results_swapped: the shares come before the output
        The order of the results is output, weights, scores, lse.
        > Give the output first.
        | ...; out = (out[1], out[0], *out[2:]) if isinstance(out, tuple) else out
    scores_before_mask (01 §3): the scores are handed out before the mask
        Scores are what goes into the softmax: scaled, and -inf where hidden.
        > Hand them out after masking.
        hide | plain = scores; ...
        | scores = plain; ...
    """
)

for few in ("float16", "bfloat16"):
    mistakes(
        f"""
        attention.softmax (01 §1) > Take the softmax in float32, and round the result if you must.

        softmax_in_{few} (rare): the softmax is computed in {few}
            Scores rounded to {few} lose their last digits before exp makes them large.
            | scores = scores.astype({few}).astype(real); ...
            | weights = weights.astype({few}).astype(real)
        """
    )
