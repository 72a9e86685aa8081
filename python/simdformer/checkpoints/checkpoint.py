"""What every reader gives back, and what a format is.

A file is hostile until proven otherwise: its size is known before anything is allocated, nothing in
it is executed.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from simdformer.models.config import ModelConfig
from simdformer.models.tensors import Tensor

__all__ = ["Checkpoint", "ConfigSource", "Format", "StoredTemplate"]

ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | None


@dataclass(frozen=True)
class Checkpoint:
    """What a reader found: the config, every tensor under the names of `weight_shapes` (they fit
    the config), and the ids that end a text where a file says so. `path` is what the weights were
    read from, `metadata` what else that file says, by key, where it says more."""

    path: Path
    format: "Format"
    config: ModelConfig
    weights: Mapping[str, Tensor]
    eos_ids: tuple[int, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Reader(Protocol):
    """read(path, config) gives the checkpoint at a path."""

    def __call__(self, path: Path, config: ConfigSource, /) -> Checkpoint: ...


@dataclass(frozen=True, kw_only=True, repr=False)
class Format:
    """One way in which checkpoints are stored: everything that differs from one to the next.

    name
        What `format=` calls it.
    files
        The files that make one, for people.
    found_in(directory)
        Whether a directory holds one.
    has_file(file)
        Whether a file is one, or a part of one.
    read(path, config)
        The checkpoint at that file or in that directory.
    takes_config
        Whether `read` takes a config that does not lie beside the weights.
    tokenizer_files(checkpoint)
        The files beside it that may hold its tokenizer, the likeliest first.
    whole_vocabulary
        Whether its tokenizers have as many tokens as the model; others may have fewer (a padded
        vocabulary).
    chat_template(checkpoint)
        The template of conversations that it has with it.
    llama3_chat
        Whether models with Llama 3's tokenizer were trained on Llama 3's conversations, which no
        file says.
    """

    name: str
    files: str
    found_in: Callable[[Path], bool]
    has_file: Callable[[Path], bool]
    read: Reader
    takes_config: bool = False
    tokenizer_files: Callable[[Checkpoint], list[Path]]
    whole_vocabulary: bool = False
    chat_template: "Callable[[Checkpoint], StoredTemplate | None]" = lambda checkpoint: None
    llama3_chat: bool = False

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class StoredTemplate:
    """A chat template in jinja's language as `file` has it, and its bos_token, eos_token, ... by
    name."""

    text: str
    file: Path
    tokens: Mapping[str, str]
