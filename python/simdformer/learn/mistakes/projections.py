"""What goes wrong with the projections of attention layers: one for another, or none."""

from simdformer.learn.catalogue import mistakes
from simdformer.learn.mistakes.linear import SQUARE

TOKENS = {"q": "queries", "k": "keys", "v": "values"}
NAMES = {"q": "query", "k": "key", "v": "value"}
HEAD = "projections (01 §6) > Make queries with wq, keys with wk, values with wv."


def made(letter: str, *, by: str = "", of: str = "") -> str:
    """q, k or v with the weight, or of the input, of another."""
    x, w = f"x_{of or letter}", f"w{by or letter}"
    return f"project_{letter} | {letter} = run(linear, x={x}, weight={w}).out"


def transposed(letter: str) -> str:
    return f"project_{letter} | {letter} = run(linear, x=x_{letter}, weight=array(w{letter}).T).out"


# ---- the weight of another -----------------------------------------------------------------------

for letter in "qkv":
    for other in "qkv".replace(letter, ""):
        mistakes(
            f"""
            {HEAD}

            weights_{"qkv".replace(letter, other)}: w{other} is used for the {TOKENS[letter]}
                A copied line in which the name of the weight was not changed.
                {made(letter, by=other)}
            """
        )

for a, b in (("q", "k"), ("q", "v"), ("k", "v")):
    mistakes(
        f"""
        {HEAD}

        weights_{"qkv".translate({ord(a): b, ord(b): a})}: w{a} and w{b} are swapped
            Two names stand in each other's place.
            {made(a, by=b)}
            {made(b, by=a)}
        """
    )

for q, k, v in ("kvq", "vqk"):
    mistakes(
        f"""
        {HEAD}

        weights_{q}{k}{v} (rare): wq, wk, wv are in another order: w{q}, w{k}, w{v}
            A fused or unpacked list of weights is read in the wrong order.
            {made("q", by=q)}
            {made("k", by=k)}
            {made("v", by=v)}
        """
    )

# ---- not transposed, or not at all ---------------------------------------------------------------

for letter, tokens in TOKENS.items():
    mistakes(
        f"""
        projections (01 §6) > Write x @ w{letter}.T.

        w{letter}_not_transposed: w{letter} is not transposed
            {SQUARE}
            {transposed(letter)}
        w{letter}_forgotten: w{letter} is forgotten: the {tokens} are x itself
            The projection is missing, or its result is not used.
            project_{letter} | {letter} = array(x_{letter})
        """
    )

mistakes(
    f"""
    projections (01 §6) > Write x @ W.T for all four.

    three_not_transposed: wq, wk and wv are not transposed, while wo is
        {SQUARE}
        {transposed("q")}
        {transposed("k")}
        {transposed("v")}
    self_attention: keys and values are made from `query`
        Self-attention was written; here queries attend to another sequence.
        > Project `key` with wk and `value` with wv.
        {made("k", of="q")}
        {made("v", of="q")}

    projecting_out.project_out (01 §6)

    wo_forgotten: wo is forgotten
        The merged heads are returned as they are.
        > End with z @ wo.T, which mixes what the heads have found.
        | out = z
    wo_not_transposed: wo is not transposed
        {SQUARE}
        > Write z @ wo.T.
        | out = run(linear, x=z, weight=array(wo).T).out
    residual_added: x is added to the result: that is the block's task
        The residual belongs around the layer: h = x + attention(norm(x)).
        > Return z @ wo.T alone, and add x where the layer is called.
        | ...; out = out + array(x)
    """
)

# ---- queries, keys and values of different inputs ------------------------------------------------

for letter, other in (("k", "q"), ("v", "q"), ("v", "k"), ("k", "v"), ("q", "k")):
    mistakes(
        f"""
        projections (01 §6) > Project `{NAMES[letter]}` with w{letter}.

        {TOKENS[letter]}_from_{NAMES[other]}:
            the {TOKENS[letter]} are made from `{NAMES[other]}` instead of `{NAMES[letter]}`
            In self-attention all three arguments are one array, and a mix-up does not show.
            {made(letter, of=other)}
        """
    )
