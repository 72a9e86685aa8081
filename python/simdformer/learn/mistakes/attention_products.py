"""What goes wrong in the products of attention: scale, softcap, what is multiplied, heads and those
that share keys and values."""

from typing import Any

from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.attention import default_scale
from simdformer.learn.program import State


def positions_before_heads(s: State, x: Any) -> Any:
    """(...,H,L,D) -> (...,L,H,D); a sample has the same positions of query, key and value."""
    sampled = s.rows is not None and x.shape[-2] == s.S
    return (x[..., s.rows, :] if sampled else x).swapaxes(-3, -2)


mistakes(
    """
    attention.scale (01 §2) > Divide the scores by sqrt(head_dim), the last axis of the query, once.

    no_scale: the scores are not scaled
        query @ keyᵀ grows with head_dim; without 1/sqrt(D) the softmax is too sharp.
        | pass
    scale_by_head_dim: the scores are divided by D, not by its root
        1/D in place of 1/sqrt(D): the softmax becomes too flat.
        | scores = scores * real(1 / head_dim)
    scale_by_hidden_size (01 §4): the scores are divided by sqrt(E), the width of all heads together
        hidden_size is H times head_dim; each head works on head_dim numbers only.
        | scores = scores * real(1 / math.sqrt(head_dim * num_heads))
    scale_by_length (rare): the scores are divided by the root of the number of positions
        shape[-2] or shape[1] is taken for head_dim; which axis that is depends on the layout.
        > Take the last axis of the query, query.shape[-1].
        | scores = scores * real(1 / math.sqrt(S))
    scale_by_num_heads (rare): the scores are divided by the root of the number of heads
        as above
        > Take the last axis of the query, query.shape[-1].
        | unless(num_heads == 1); scores = scores * real(1 / math.sqrt(num_heads))
    scale_twice: the scores are scaled twice
        The query was scaled already, in the projection or in the line before.
        | scores = scores * real(scale_of(s) ** 2)
    divided_by_scale: the scores are divided by the scale instead of multiplied with it
        `scale` is 1/sqrt(D) already; dividing by it multiplies with sqrt(D).
        > Write scores * scale, or scores / sqrt(D).
        | scores = scores / real(scale_of(s))
    scale_ignored: the scale that is given is ignored
        1/sqrt(D) is written into the code, although this call has a scale of its own.
        > Use the argument, and 1/sqrt(D) only where it is None.
        | scale = scale and default_scale(s); ...
    scale_or_default (01 §4): a scale of 0 is taken for no scale
        `scale or 1/sqrt(D)` throws 0.0 away, because zero is false.
        > Write `if scale is None`.
        | scale = scale or default_scale(s); ...
    scale_besides_default: the scale comes on top of 1/sqrt(D)
        The scale that is given replaces 1/sqrt(D); here the scores are multiplied with both.
        > Multiply with the given scale alone.
        | scale = default_scale(s) * scale; ...

    attention.weigh (01 §2) > Write weights @ value.

    scale_after_softmax: the scale comes after the softmax
        The shares are multiplied with 1/sqrt(D), not the scores: they no longer sum to one.
        > Scale the scores, before the softmax.
        scale | pass
        | weights = weights * real(scale_of(s)); ...
    weights_transposed: the shares are transposed before they average the values
        weightsᵀ @ value sums over the queries instead of the keys.
        | z = weights.swapaxes(-1, -2) @ v
    values_copied (rare): the shares are not used: every token keeps its own value
        The last product is missing.
        > Multiply the shares with the value: weights @ value.
        | z = v + 0 * weights.sum(axis=-1, keepdims=True)

    attention.cap (01 §2) > Write softcap * tanh(scores / softcap).

    no_softcap: the softcap is forgotten
        The call asks for softcap * tanh(scores / softcap), and the scores go on as they are.
        > Cap the scores after scaling and before masking.
        | pass
    softcap_not_multiplied: the softcap is not multiplied back
        tanh(scores / softcap) lies between -1 and 1: nearly all shares become alike.
        | scores = np.tanh(scores / softcap)
    softcap_clips: the scores are cut off at the softcap instead of bent towards it
        clip keeps scores up to the cap as they are; tanh bends all of them.
        | scores = np.clip(scores, -softcap, softcap)
    softcap_before_scale: the softcap comes before the scale
        The order is scale, softcap, mask, softmax; tanh does not commute with a factor.
        > Scale the scores first, then cap them.
        scale | pass
        | ...; scores = scores * real(scale_of(s))

    attention.inputs (01 §2) > Compare the query with the key, average the value.

    key_as_value: the key is used as the value
        A copied line, such as `v = k[0]`: the shares average keys.
        | ...; v = k
    value_as_key: the value is used as the key
        A copied line: the scores are query @ valueᵀ.
        | ...; k = v
    key_and_value_swapped: key and value are swapped
        The order of the arguments is query, key, value.
        | ...; k, v = v, k
    query_as_key: the query is used as the key
        query @ queryᵀ: each token looks for what is like its own question.
        | ...; k = q
    query_as_value: the query is used as the value
        A copied line: the shares average queries.
        | ...; v = q
    first_sequence_for_all (rare): all sequences read the keys and values of the first one
        An index 0 on the batch axis.
        > Keep the batch axis: key and value have one entry for each sequence.
        | ...; k, v = (k[:1], v[:1]) if k.ndim > 3 else (k, v)

    attention.dot (01 §2) > Swap the last two axes of the key: key.swapaxes(-1, -2).

    query_and_key_swapped: query and key are swapped: the scores are transposed
        key @ queryᵀ: row i then holds what the others think of token i.
        > Write query @ keyᵀ; rows are queries, columns are keys.
        | scores = k @ q.swapaxes(-1, -2)
    key_not_transposed: the key is not transposed
        query @ key runs when there are as many keys as numbers in a head.
        | scores = q @ k
    key_reshaped (rare): the key is reshaped to (D, S), not transposed
        reshape gives the shape that the product needs, but leaves every number where it was.
        | unless(head_dim == S); scores = q @ k.reshape(*k.shape[:-2], head_dim, S)
    all_axes_transposed: .T reverses all axes of the key, not only the last two
        key.T is right for two axes; with heads and a batch it lines heads up with positions.
        > Write key.swapaxes(-1, -2), in torch key.transpose(-1, -2).
        | scores = q @ (k[0].T[None] if no_heads else k.T)

    attention.share (03 §3) > Give query head h the key/value head h // (H // K).

    heads_tiled: key/value heads are tiled a b a b instead of repeated a a b b
        np.tile, or torch's repeat, gives query head h the key head h % K, not h // group.
        > Use np.repeat(key, H // K, axis=-3), in torch repeat_interleave, or sf.repeat_kv.
        | k_head = v_head = np.arange(num_heads) % num_kv_heads
    values_tiled: values are shared in an order unlike that of keys: tiled a b a b
        Only one of the two repeat lines is right.
        > Repeat keys and values in the same way, a a b b.
        | k_head = np.arange(num_heads) // group
        | v_head = np.arange(num_heads) % num_kv_heads
    one_kv_head: all query heads read the first key/value head
        An index 0, or broadcasting from one head: that is multi-query attention.
        | k_head = v_head = np.arange(num_heads) * 0
    divided_by_kv_heads: the head is divided by K, not by the size of a group
        head // K in place of head // (H // K): the groups are of the wrong size.
        > Compute the group: head // (H // K).
        | unless(group == num_kv_heads); k_head = v_head = np.arange(num_heads) // num_kv_heads

    attention.repeat (02 §5) > Transpose (B, L, H, D) to (B, H, L, D) before the product, and back.

    over_heads: attention runs over the heads, not over the positions
        q, k and v are still (B, L, H, D) at the product, so that each token attends to its own
        heads, and to no other token.
        | unless(L != S or num_heads == 1); ...
        | q, k, v = (positions_before_heads(s, x) for x in (q, k, v))
        | S = num_heads; i, j = np.arange(S)[:, None], np.arange(S)
        weigh | ...; z = z.swapaxes(-3, -2)
    """,
    calls=(default_scale, positions_before_heads),
)

for size in (2, 4, 8):
    mistakes(
        f"""
        attention.share (03 §3) > Compute the group: head // (H // K).

        group_of_{size}: a group of {size} heads is written into the code
            head // {size} is right only where H / K is {size}; here it is another number.
            | unless(num_heads <= {size}); k_head = v_head = np.arange(num_heads) // {size}
        """
    )
