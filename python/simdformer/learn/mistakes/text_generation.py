"""The loop that writes a text with a cache, in steps; and what goes wrong there."""

from simdformer.learn.catalogue import mistakes
from simdformer.learn.program import Program

__all__ = ["generation"]


generation = Program(
    "text",
    """
    generation_prompt: logits, cache = model(prompt, None)
    generation_choose: choose = lambda logits: int(np.argmax(logits[-1]))
    generation_feed: feed = lambda new, cache: model(new[-1:], cache)
    generation_loop:
        new = []
        while len(new) < max_new_tokens:
            new = [*new, choose(logits)]
            if new[-1] == end_id:
                break
            logits, cache = feed(new, cache)
    generation_answer: out = np.array([id for id in new if id != end_id])
    """,
    takes=("model", "prompt", "max_new_tokens", "end_id"),
    axes=("token",),
)

mistakes(
    """
    text.generation_prompt (02 §11) > Give the model the whole prompt once, then one id a call.

    generation_no_prompt: only the last token of the prompt is read
        The cache is empty at the beginning: somebody has to read the prompt.
        | logits, cache = model(prompt[-1:], None)
    generation_last_twice: the last token of the prompt is read twice
        The prompt fills the cache, and then its last id is given once more.
        > The logits of the prompt's last position already predict the first new token.
        | _, cache = model(prompt, None); logits, cache = model(prompt[-1:], cache)

    text.generation_choose (02 §11) > Take logits[-1].

    generation_first_row: the next token is taken from the first row of logits
        Row i predicts what follows position i; only the last row predicts something new.
        | choose = lambda logits: int(np.argmax(logits[0]))
    generation_least: the least likely token is taken
        argmin for argmax, or the first of what argsort gives.
        > Take the argmax of the last row.
        | choose = lambda logits: int(np.argmin(logits[-1]))

    text.generation_feed (02 §11) > Give the model the newest id alone.

    generation_text_again: the whole text is given again, behind a cache that holds it already
        What the cache holds is read a second time, at later positions.
        | feed = lambda new, cache: model([*prompt, *new], cache)
    generation_answer_again: all new ids are given again, behind a cache that holds most of them
        The list of new ids is given to the model, and not its last element.
        | feed = model
    generation_old_cache: the cache stays that of the prompt
        What the model gives back as the new cache is thrown away.
        > Write logits, cache = model([id], cache) in the loop, too.
        | feed = lambda new, _: model(new[-1:], cache)
    generation_no_cache: the model forgets: it sees the newest token alone
        The cache is None in every call.
        > Pass on the cache that came with the last logits.
        | feed = lambda new, cache: model(new[-1:], None)

    text.generation_answer (02 §11) > Keep the new ids in a list of their own.

    generation_with_prompt: the answer begins with the prompt
        The new ids were appended to those of the prompt.
        | out = np.array([*prompt, *(id for id in new if id != end_id)])
    generation_with_end: end_id is part of the answer
        It is appended first and compared afterwards.
        > Compare first: end_id says that the answer is over, and belongs to nobody's text.
        | out = np.array(new)
    generation_endless: the answer does not stop at end_id
        The loop runs max_new_tokens times, whatever the model says.
        > Stop when the likeliest id is end_id.
        generation_loop | new = []
        generation_loop | for _ in range(max_new_tokens):
        generation_loop |     new = [*new, choose(logits)]
        generation_loop |     logits, cache = feed(new, cache)
        | out = np.array(new)

    text.generation_loop (02 §11) > Stop when max_new_tokens ids are there.

    generation_one_less: there is one token too few
        The first new token comes out of the prompt's logits; it counts, too.
        | max_new_tokens = max_new_tokens - 1; ...
    """
)
