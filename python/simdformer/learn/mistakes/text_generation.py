"""The loop that writes a text with a cache, in steps; and what goes wrong there."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from simdformer.learn.catalogue import Mistakes, instead
from simdformer.learn.program import Program, State

__all__ = ["generate"]

GENERATION = "02 §11"


def generate(model: Any, prompt: Sequence[int], max_new_tokens: int, end_id: int) -> list[int]:
    """Greedy; the prompt is read at once, then one id a call."""
    new: list[int] = []
    logits, cache = model(prompt, None)
    while len(new) < max_new_tokens and (id := int(logits[-1].argmax())) != end_id:
        new.append(id)
        logits, cache = model([id], cache)
    return new


generation = Program("text", of=generate, axes=("token",))


@generation.step
def generation_prompt(s: State) -> None:
    s.logits, s.cache = s.model(s.prompt, None)


@generation.step
def generation_choose(s: State) -> None:
    s.choose = lambda logits: int(np.argmax(logits[-1]))


@generation.step
def generation_feed(s: State) -> None:
    s.feed = lambda new, cache: s.model(new[-1:], cache)


@generation.step
def generation_loop(s: State) -> None:
    s.new = []
    logits, cache = s.logits, s.cache
    while len(s.new) < s.max_new_tokens:
        s.new = [*s.new, s.choose(logits)]
        if s.new[-1] == s.end_id:
            break
        logits, cache = s.feed(s.new, cache)


@generation.step
def generation_answer(s: State) -> None:
    s.out = np.array([id for id in s.new if id != s.end_id])


def generation_no_prompt(s: State) -> None:
    s.logits, s.cache = s.model(s.prompt[-1:], None)


def generation_last_twice(s: State) -> None:
    _, cache = s.model(s.prompt, None)
    s.logits, s.cache = s.model(s.prompt[-1:], cache)


Mistakes(
    "text.generation_prompt",
    see=GENERATION,
    fix="Give the model the whole prompt once, then one id a call.",
)(
    """
    generation_no_prompt: only the last token of the prompt is read
        The cache is empty at the beginning: somebody has to read the prompt.
    generation_last_twice: the last token of the prompt is read twice
        The prompt fills the cache, and then its last id is given once more.
        > The logits of the prompt's last position already foretell the first new token.
    """,
    generation_no_prompt=generation_no_prompt,
    generation_last_twice=generation_last_twice,
)

Mistakes("text.generation_choose", see=GENERATION, fix="Take logits[-1].")(
    """
    generation_first_row: the next token is taken from the first row of logits
        Row i foretells what follows position i; only the last row foretells something new.
    generation_least: the least likely token is taken
        argmin for argmax, or the first of what argsort gives.
        > Take the argmax of the last row.
    """,
    generation_first_row=instead(choose=lambda s: lambda logits: int(np.argmax(logits[0]))),
    generation_least=instead(choose=lambda s: lambda logits: int(np.argmin(logits[-1]))),
)

Mistakes("text.generation_feed", see=GENERATION, fix="Give the model the newest id alone.")(
    """
    generation_text_again: the whole text is given again, behind a cache that holds it already
        What the cache holds is read a second time, at later positions.
    generation_answer_again: all new ids are given again, behind a cache that holds most of them
        The list of new ids is given to the model, and not its last element.
    generation_old_cache: the cache stays that of the prompt
        What the model gives back as the new cache is thrown away.
        > Write logits, cache = model([id], cache) in the loop, too.
    generation_no_cache: the model forgets: it sees the newest token alone
        The cache is None in every call.
        > Pass on the cache that came with the last logits.
    """,
    generation_text_again=instead(
        feed=lambda s: lambda new, cache: s.model([*s.prompt, *new], cache)
    ),
    generation_answer_again=instead(feed=lambda s: lambda new, cache: s.model(new, cache)),
    generation_old_cache=instead(feed=lambda s: lambda new, cache: s.model(new[-1:], s.cache)),
    generation_no_cache=instead(feed=lambda s: lambda new, cache: s.model(new[-1:], None)),
)


def generation_endless_generation_loop(s: State) -> None:
    s.new = []
    logits, cache = s.logits, s.cache
    for _ in range(s.max_new_tokens):
        s.new = [*s.new, s.choose(logits)]
        logits, cache = s.feed(s.new, cache)


Mistakes("text.generation_answer", see=GENERATION, fix="Keep the new ids in a list of their own.")(
    """
    generation_with_prompt: the answer begins with the prompt
        The new ids were appended to those of the prompt.
    generation_with_end: end_id is part of the answer
        It is appended first and compared afterwards.
        > Compare first: end_id says that the answer is over, and belongs to nobody's text.
    generation_endless: the answer does not stop at end_id
        The loop runs max_new_tokens times, whatever the model says.
        > Stop when the likeliest id is end_id.
    """,
    generation_with_prompt=instead(
        out=lambda s: np.array([*s.prompt, *(id for id in s.new if id != s.end_id)])
    ),
    generation_with_end=instead(out=lambda s: np.array(s.new)),
    generation_endless={
        "generation_loop": generation_endless_generation_loop,
        "generation_answer": instead(out=lambda s: np.array(s.new)),
    },
)


def generation_one_less(s: State) -> None:
    s.max_new_tokens = s.max_new_tokens - 1
    generation_loop(s)


Mistakes("text.generation_loop", see=GENERATION, fix="Stop when max_new_tokens ids are there.")(
    """
    generation_one_less: there is one token too few
        The first new token comes out of the prompt's logits; it counts, too.
    """,
    generation_one_less=generation_one_less,
)
