"""What goes wrong with the projections of attention layers: one for another, or none."""

from collections.abc import Callable
from itertools import product

from simdformer.learn.mistakes.attention_layers import project_out, projected
from simdformer.learn.mistakes.split_heads import HEADS
from simdformer.learn.program import State, mistake

TOKENS = {"q": "queries", "k": "keys", "v": "values"}


def projecting(letter: str, other: str) -> Callable[[State], None]:
    """The queries, keys or values made with another's weight."""

    def wrong(s: State) -> None:
        setattr(s, letter, projected(s, getattr(s, f"for_{letter}"), getattr(s, f"w{other}")))

    return wrong


def words(order: str) -> tuple[str, str]:
    """Title and cause of a mistake that makes q, k, v with the weights in this order."""
    moved = [(letter, other) for letter, other in zip("qkv", order, strict=True) if letter != other]
    if len(set(order)) == 3 and len(moved) == 2:
        (a, b), _ = moved
        return f"w{a} and w{b} are swapped", "Two names stand in each other's place."
    if len(set(order)) == 3:
        return (
            "wq, wk and wv are in another order: "
            + ", ".join(f"w{other} makes the {TOKENS[letter]}" for letter, other in moved),
            "A fused or unpacked list of weights is read in the wrong order.",
        )
    return (
        "; ".join(f"w{other} is used for the {TOKENS[letter]}" for letter, other in moved),
        "A copied line in which the name of the weight was not changed.",
    )


for order in map("".join, product("qkv", repeat=3)):
    moved = [letter for letter, other in zip("qkv", order, strict=True) if letter != other]
    if moved and (len(set(order)) == 3 or len(moved) == 1):
        title, cause = words(order)
        mistake(
            *[f"projections.project_{letter}" for letter in moved],
            name="weights_" + order,
            title=title,
            cause=cause,
            fix="Make queries with wq, keys with wk, values with wv.",
            step=HEADS,
            rare=len(moved) == 3,
        )(
            type(
                "Wrong",
                (),
                {
                    f"project_{letter}": staticmethod(projecting(letter, other))
                    for letter, other in zip("qkv", order, strict=True)
                },
            )
        )


def not_transposed(letter: str) -> Callable[[State], None]:
    def wrong(s: State) -> None:
        weight = s.run.array(getattr(s, f"w{letter}"))
        setattr(s, letter, projected(s, getattr(s, f"for_{letter}"), weight.T))

    return wrong


def not_projected(letter: str) -> Callable[[State], None]:
    def wrong(s: State) -> None:
        setattr(s, letter, s.run.array(getattr(s, f"for_{letter}")))

    return wrong


for letter, tokens in TOKENS.items():
    mistake(
        f"projections.project_{letter}",
        name=f"w{letter}_not_transposed",
        title=f"w{letter} is not transposed",
        cause="x @ W runs without a word when W is square, but the rows of W are the outputs.",
        fix=f"Write x @ w{letter}.T.",
        step=HEADS,
    )(not_transposed(letter))
    mistake(
        f"projections.project_{letter}",
        name=f"w{letter}_forgotten",
        title=f"w{letter} is forgotten: the {tokens} are x itself",
        cause="The projection is missing, or its result is not used.",
        fix=f"Use x @ w{letter}.T.",
        step=HEADS,
    )(not_projected(letter))


@mistake(
    "projecting_out.project_out",
    title="wo is forgotten",
    cause="The merged heads are returned as they are.",
    fix="End with z @ wo.T, which mixes what the heads have found.",
    step=HEADS,
)
def wo_forgotten(s: State) -> None:
    s.out = s.z


@mistake(
    "projecting_out.project_out",
    title="wo is not transposed",
    cause="z @ W runs without a word when W is square, but the rows of W are the outputs.",
    fix="Write z @ wo.T.",
    step=HEADS,
)
def wo_not_transposed(s: State) -> None:
    s.out = projected(s, s.z, s.run.array(s.wo).T)


@mistake(
    "projecting_out.project_out",
    title="x is added to the result: that is the block's task",
    cause="The residual belongs around the layer: h = x + attention(norm(x)).",
    fix="Return z @ wo.T alone, and add x where the layer is called.",
    step=HEADS,
)
def residual_added(s: State) -> None:
    project_out(s)
    s.out = s.out + s.run.array(s.for_q)


# ---- mistakes: queries, keys and values of different inputs --------------------------------------


def inputs_mixed(letter: str, other: str) -> Callable[[State], None]:
    def wrong(s: State) -> None:
        setattr(s, letter, projected(s, getattr(s, f"for_{other}"), getattr(s, f"w{letter}")))

    return wrong


NAMES = {"q": "query", "k": "key", "v": "value"}
for letter, other in (("k", "q"), ("v", "q"), ("v", "k"), ("k", "v"), ("q", "k")):
    mistake(
        f"projections.project_{letter}",
        name=f"{TOKENS[letter]}_from_{NAMES[other]}",
        title=f"the {TOKENS[letter]} are made from `{NAMES[other]}` instead of `{NAMES[letter]}`",
        cause="In self-attention all three arguments are one array, and a mix-up does not show.",
        fix=f"Project `{NAMES[letter]}` with w{letter}.",
        step=HEADS,
    )(inputs_mixed(letter, other))


@mistake(
    "projections.project_k",
    "projections.project_v",
    title="keys and values are made from `query`",
    cause="Self-attention was written; here queries listen to another sequence.",
    fix="Project `key` with wk and `value` with wv.",
    step=HEADS,
)
class SelfAttention:
    project_k = staticmethod(inputs_mixed("k", "q"))
    project_v = staticmethod(inputs_mixed("v", "q"))
