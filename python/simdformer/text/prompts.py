"""What `generate` is given to continue: text or ids, one prompt or a list of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from simdformer.arguments import as_array

__all__ = ["IdsOfText", "Prompts", "read_prompts"]


class IdsOfText(list[int]):
    """A prompt of ids that is continued with text."""


@dataclass(frozen=True)
class Prompts:
    """The ids of each prompt, and in which form the results are wanted."""

    ids: list[list[int]]
    is_text: bool
    is_list: bool


def read_prompts(prompt: Any, encode: Callable[[str], list[int]]) -> Prompts:
    """A str, ids (L,), or a list of either. TypeError or ValueError for what is none."""
    if isinstance(prompt, str):
        return Prompts([checked(encode(prompt))], is_text=True, is_list=False)
    if isinstance(prompt, list | tuple) and prompt and all(isinstance(x, str) for x in prompt):
        return Prompts([checked(encode(text)) for text in prompt], is_text=True, is_list=True)
    if isinstance(prompt, IdsOfText):
        return Prompts([checked(prompt)], is_text=True, is_list=False)
    if isinstance(prompt, np.ndarray) and prompt.ndim == 2 and prompt.dtype.kind in "iu":
        rows = prompt.tolist()  # at once: a view may have more rows than fit into memory
        return Prompts([checked(ids) for ids in rows or [[]]], is_text=False, is_list=True)
    if is_nested(prompt):
        return Prompts([checked(ids) for ids in prompt], is_text=False, is_list=True)
    return Prompts([checked(prompt)], is_text=False, is_list=False)


def is_nested(prompt: Any) -> bool:
    """Whether it is a list of prompts. Its rows may differ in length: it need not be an array."""
    return isinstance(prompt, list | tuple) and any(
        as_array("generate", "prompt", ids).ndim for ids in prompt
    )


def checked(ids: Any) -> list[int]:
    array = as_array("generate", "prompt", ids)
    if array.size == 0:
        raise ValueError(
            "generate: prompt has no ids, needed is at least one (bos_id begins a text)"
        )
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(
            f"generate: prompt is {array.dtype} of shape {array.shape}, needed is text or ids (L,)"
        )
    return [int(id) for id in array.tolist()]
