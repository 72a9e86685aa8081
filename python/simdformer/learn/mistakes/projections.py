"""What goes wrong with the projections of attention layers: one for another, or none."""

from simdformer.learn.catalogue import Change, Mistakes, instead, then
from simdformer.learn.mistakes.attention_layers import projected
from simdformer.learn.mistakes.split_heads import HEADS

TOKENS = {"q": "queries", "k": "keys", "v": "values"}
NAMES = {"q": "query", "k": "key", "v": "value"}

SQUARE = "x @ W runs without a word when W is square, but the rows of W are the outputs."
COPIED = "A copied line in which the name of the weight was not changed."

wrong = Mistakes(
    "projections", see=HEADS, fix="Make queries with wq, keys with wk, values with wv."
)


def made(letter: str, weight: str = "", source: str = "") -> dict[str, Change]:
    """q, k or v with the weight, or of the input, of another."""
    weight, source = weight or letter, source or letter
    value = instead(
        **{letter: lambda s: projected(s, getattr(s, f"for_{source}"), getattr(s, f"w{weight}"))}
    )
    return {f"project_{letter}": value}


# ---- the weight of another -----------------------------------------------------------------------

for letter in "qkv":
    for other in "qkv".replace(letter, ""):
        wrong.add(
            f"weights_{'qkv'.replace(letter, other)}",
            made(letter, other),
            f"w{other} is used for the {TOKENS[letter]}",
            COPIED,
        )

for a, b in (("q", "k"), ("q", "v"), ("k", "v")):
    wrong.add(
        f"weights_{'qkv'.translate({ord(a): b, ord(b): a})}",
        made(a, b) | made(b, a),
        f"w{a} and w{b} are swapped",
        "Two names stand in each other's place.",
    )

for order in ("kvq", "vqk"):
    wrong.add(
        f"weights_{order}",
        made("q", order[0]) | made("k", order[1]) | made("v", order[2]),
        f"wq, wk, wv are in another order: {', '.join(f'w{letter}' for letter in order)}",
        "A fused or unpacked list of weights is read in the wrong order.",
        rare=True,
    )

# ---- not transposed, or not at all ---------------------------------------------------------------


def transposed(letter: str) -> dict[str, Change]:
    value = instead(
        **{
            letter: lambda s: projected(
                s, getattr(s, f"for_{letter}"), s.run.array(getattr(s, f"w{letter}")).T
            )
        }
    )
    return {f"project_{letter}": value}


def forgotten(letter: str) -> dict[str, Change]:
    value = instead(**{letter: lambda s: s.run.array(getattr(s, f"for_{letter}"))})
    return {f"project_{letter}": value}


for letter, tokens in TOKENS.items():
    wrong.add(
        f"w{letter}_not_transposed",
        transposed(letter),
        f"w{letter} is not transposed",
        SQUARE,
        f"Write x @ w{letter}.T.",
    )
    wrong.add(
        f"w{letter}_forgotten",
        forgotten(letter),
        f"w{letter} is forgotten: the {tokens} are x itself",
        "The projection is missing, or its result is not used.",
        f"Use x @ w{letter}.T.",
    )

wrong(
    """
    three_not_transposed: wq, wk and wv are not transposed, while wo is
        x @ W runs without a word when W is square, but the rows of W are the outputs.
        > Write x @ W.T for all four.
    self_attention: keys and values are made from `query`
        Self-attention was written; here queries listen to another sequence.
        > Project `key` with wk and `value` with wv.
    """,
    three_not_transposed=transposed("q") | transposed("k") | transposed("v"),
    self_attention=made("k", source="q") | made("v", source="q"),
)

Mistakes("projecting_out.project_out", see=HEADS)(
    """
    wo_forgotten: wo is forgotten
        The merged heads are returned as they are.
        > End with z @ wo.T, which mixes what the heads have found.
    wo_not_transposed: wo is not transposed
        x @ W runs without a word when W is square, but the rows of W are the outputs.
        > Write z @ wo.T.
    residual_added: x is added to the result: that is the block's task
        The residual belongs around the layer: h = x + attention(norm(x)).
        > Return z @ wo.T alone, and add x where the layer is called.
    """,
    wo_forgotten=instead(out=lambda s: s.z),
    wo_not_transposed=instead(out=lambda s: projected(s, s.z, s.run.array(s.wo).T)),
    residual_added=then(out=lambda s: s.out + s.run.array(s.for_q)),
)

# ---- queries, keys and values of different inputs ------------------------------------------------

for letter, other in (("k", "q"), ("v", "q"), ("v", "k"), ("k", "v"), ("q", "k")):
    wrong.add(
        f"{TOKENS[letter]}_from_{NAMES[other]}",
        made(letter, source=other),
        f"the {TOKENS[letter]} are made from `{NAMES[other]}` instead of `{NAMES[letter]}`",
        "In self-attention all three arguments are one array, and a mix-up does not show.",
        f"Project `{NAMES[letter]}` with w{letter}.",
    )
