"""What a model is given to read: text or ids, one prompt or a list of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from simdformer.arguments import as_array

__all__ = ["IdsOfText", "Prompts", "is_texts", "read_prompts"]


class IdsOfText(list[int]):
    """A prompt of ids that is continued with text."""


@dataclass(frozen=True)
class Prompts:
    """The ids of each prompt, and in which form the results are wanted."""

    ids: list[list[int]]
    is_text: bool
    is_list: bool


def read_prompts(
    prompt: Any,
    encode: Callable[[str], list[int]],
    *,
    function: str = "generate",
    name: str = "prompt",
) -> Prompts:
    """A str, ids (L,), or a list of either. TypeError or ValueError for what is none."""

    def checked(ids: Any) -> list[int]:
        return checked_prompt(function, name, ids)

    if hasattr(prompt, "__dlpack__"):
        prompt = as_array(function, name, prompt)
    if isinstance(prompt, str):
        return Prompts([checked(encode(prompt))], is_text=True, is_list=False)
    if is_texts(prompt):
        return Prompts([checked(encode(text)) for text in prompt], is_text=True, is_list=True)
    if isinstance(prompt, IdsOfText):
        return Prompts([checked(prompt)], is_text=True, is_list=False)
    if isinstance(prompt, np.ndarray) and prompt.ndim == 2 and prompt.dtype.kind in "iu":
        rows = prompt.tolist()  # at once: a view may have more rows than fit into memory
        return Prompts([checked(ids) for ids in rows or [[]]], is_text=False, is_list=True)
    if is_nested(prompt, function, name):
        return Prompts([checked(ids) for ids in prompt], is_text=False, is_list=True)
    return Prompts([checked(prompt)], is_text=False, is_list=False)


def is_texts(prompt: Any) -> TypeGuard[Sequence[str]]:
    return (
        isinstance(prompt, list | tuple)
        and len(prompt) > 0
        and all(isinstance(text, str) for text in prompt)
    )


def is_nested(prompt: Any, function: str, name: str) -> bool:
    """Whether it is a list of prompts. Its rows may differ in length: it need not be an array."""
    return isinstance(prompt, list | tuple) and any(
        as_array(function, name, ids).ndim for ids in prompt
    )


def checked_prompt(function: str, name: str, ids: Any) -> list[int]:
    array = as_array(function, name, ids)
    if array.size == 0:
        raise ValueError(
            f"{function}: {name} has no ids, needs at least one (bos_id begins a text)"
        )
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(
            f"{function}: {name} is {array.dtype} of shape {array.shape}, needs text or ids (L,)"
        )
    return [int(id) for id in array.tolist()]
