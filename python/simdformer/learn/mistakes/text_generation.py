"""The loop that writes a text with a cache, in steps; and what goes wrong there."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from simdformer.learn.program import Program, State, mistake

__all__ = ["generate"]

GENERATION = "02 §10"


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


@mistake(
    "text.generation_prompt",
    title="only the last token of the prompt is read",
    cause="The cache is empty at the beginning: somebody has to read the prompt.",
    fix="Give the model the whole prompt once, then one id a call.",
    step=GENERATION,
)
def generation_no_prompt(s: State) -> None:
    s.logits, s.cache = s.model(s.prompt[-1:], None)


@mistake(
    "text.generation_prompt",
    title="the last token of the prompt is read twice",
    cause="The prompt fills the cache, and then its last id is given once more.",
    fix="The logits of the prompt's last position already foretell the first new token.",
    step=GENERATION,
)
def generation_last_twice(s: State) -> None:
    _, cache = s.model(s.prompt, None)
    s.logits, s.cache = s.model(s.prompt[-1:], cache)


@mistake(
    "text.generation_choose",
    title="the next token is taken from the first row of logits",
    cause="Row i foretells what follows position i; only the last row foretells something new.",
    fix="Take logits[-1].",
    step=GENERATION,
)
def generation_first_row(s: State) -> None:
    s.choose = lambda logits: int(np.argmax(logits[0]))


@mistake(
    "text.generation_choose",
    title="the least likely token is taken",
    cause="argmin for argmax, or the first of what argsort gives.",
    fix="Take the argmax of the last row.",
    step=GENERATION,
)
def generation_least(s: State) -> None:
    s.choose = lambda logits: int(np.argmin(logits[-1]))


@mistake(
    "text.generation_feed",
    title="the whole text is given again, behind a cache that holds it already",
    cause="What the cache holds is read a second time, at later positions.",
    fix="Give the model the newest id alone.",
    step=GENERATION,
)
def generation_text_again(s: State) -> None:
    s.feed = lambda new, cache: s.model([*s.prompt, *new], cache)


@mistake(
    "text.generation_feed",
    title="all new ids are given again, behind a cache that holds most of them",
    cause="The list of new ids is given to the model, and not its last element.",
    fix="Give the model the newest id alone.",
    step=GENERATION,
)
def generation_answer_again(s: State) -> None:
    s.feed = lambda new, cache: s.model(new, cache)


@mistake(
    "text.generation_feed",
    title="the cache stays that of the prompt",
    cause="What the model gives back as the new cache is thrown away.",
    fix="Write logits, cache = model([id], cache) in the loop, too.",
    step=GENERATION,
)
def generation_old_cache(s: State) -> None:
    s.feed = lambda new, cache: s.model(new[-1:], s.cache)


@mistake(
    "text.generation_feed",
    title="the model forgets: it sees the newest token alone",
    cause="The cache is None in every call.",
    fix="Pass on the cache that came with the last logits.",
    step=GENERATION,
)
def generation_no_cache(s: State) -> None:
    s.feed = lambda new, cache: s.model(new[-1:], None)


@mistake(
    "text.generation_answer",
    title="the answer begins with the prompt",
    cause="The new ids were appended to those of the prompt.",
    fix="Keep the new ids in a list of their own.",
    step=GENERATION,
)
def generation_with_prompt(s: State) -> None:
    s.out = np.array([*s.prompt, *(id for id in s.new if id != s.end_id)])


@mistake(
    "text.generation_answer",
    title="end_id is part of the answer",
    cause="It is appended first and compared afterwards.",
    fix="Compare first: end_id says that the answer is over, and belongs to nobody's text.",
    step=GENERATION,
)
def generation_with_end(s: State) -> None:
    s.out = np.array(s.new)


@mistake(
    "text.generation_loop",
    "text.generation_answer",
    title="the answer does not stop at end_id",
    cause="The loop runs max_new_tokens times, whatever the model says.",
    fix="Stop when the likeliest id is end_id.",
    step=GENERATION,
)
class GenerationEndless:
    @staticmethod
    def generation_loop(s: State) -> None:
        s.new = []
        logits, cache = s.logits, s.cache
        for _ in range(s.max_new_tokens):
            s.new = [*s.new, s.choose(logits)]
            logits, cache = s.feed(s.new, cache)

    @staticmethod
    def generation_answer(s: State) -> None:
        s.out = np.array(s.new)


@mistake(
    "text.generation_loop",
    title="there is one token too few",
    cause="The first new token comes out of the prompt's logits; it counts, too.",
    fix="Stop when max_new_tokens ids are there.",
    step=GENERATION,
)
def generation_one_less(s: State) -> None:
    s.max_new_tokens = s.max_new_tokens - 1
    generation_loop(s)
