"""`from_pretrained`: a checkpoint with the tokenizer and the chat template that lie beside it."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from simdformer.checkpoints.locate import locate
from simdformer.models.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from simdformer.models.transformer import Transformer
from simdformer.text import tokenizer as tokenizers
from simdformer.text.chat import find_template
from simdformer.text.language_model import LanguageModel
from simdformer.text.tokenizer import Tokenizer
from simdformer.types import DTypeLike

__all__ = ["find_tokenizer", "from_pretrained", "load_tokenizer"]


def from_pretrained(
    path: str | os.PathLike[str],
    dtype: DTypeLike | None = None,
    activations: DTypeLike = "float32",
    max_seq_len: int | None = None,
    *,
    tokenizer: str | os.PathLike[str] | Tokenizer | None = None,
    format: str | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> LanguageModel:
    """Loads a language model: `model(ids)` gives logits, `model.generate(prompt)` text.

    Parameters
    ----------
    path : path or str
        A checkpoint, or a directory that holds one: of Meta (params.json, consolidated.00.pth), of
        Hugging Face (config.json, .safetensors), of MiniMind (.pth), of llama2.c (.bin). Where
        there is no such path, "demo" is the model that the package carries, and "Owner/Name" the
        one of the Hugging Face hub, if its cache on this machine holds it: nothing is downloaded.
    dtype : {None, "float32", "float16", "bfloat16"}
        Of the weights; None: as in the file.
    activations : {"float32", "float16", "bfloat16"}
        Of the arithmetic between the kernels.
    max_seq_len : int, optional
        The longest text; None: what the checkpoint was made for.
    tokenizer : path or Tokenizer, optional
        None: the one beside the checkpoint. Where there is none, the model takes and gives ids; so
        it does where the package that it takes is missing, and says so when asked for text.
    format : {None, "meta", "huggingface", "minimind", "llama2.c"}
        Where one directory holds several: which one.
    config : path or dict, optional
        What config.json would say, where the checkpoint has none beside it.

    Returns
    -------
    LanguageModel

    Raises
    ------
    FileNotFoundError
        There is no such path; for "Owner/Name" the message tells how to download it.
    CheckpointError
        A file is damaged, of another format, or does not fit the model. (It is a ValueError.)

    >>> import simdformer as sf
    >>> model = sf.from_pretrained(sf.demo_path())
    >>> model([1, 2, 3]).shape
    (3, 1024)
    >>> text = model.generate("Once upon a time", max_new_tokens=9)
    """
    checkpoint = read_checkpoint(locate(path), format, config)
    model = checkpoint.config
    if max_seq_len is not None:
        model = dataclasses.replace(model, max_seq_len=max_seq_len)
    missing = None
    if tokenizer is None:
        try:
            tokenizer = find_tokenizer(checkpoint)
        except ImportError as error:  # ids need no tokenizer
            missing = error
    elif isinstance(tokenizer, str | os.PathLike):
        tokenizer = load_tokenizer(tokenizer, checkpoint)
    return LanguageModel(
        Transformer(model, checkpoint.weights, dtype=dtype, activations=activations),
        tokenizer if missing is None else missing,
        eos_ids=checkpoint.eos_ids,
        chat_template=find_template(checkpoint, tokenizer),
    )


def find_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """The tokenizer beside a checkpoint. llama2.c's are many, so it is the one that has as many
    tokens as the model; usual names come first."""
    there = tokenizers.candidates(checkpoint.path, checkpoint.format)
    if checkpoint.format != "llama2.c":
        return load_tokenizer(there[0], checkpoint) if there else None
    vocab_size = checkpoint.config.vocab_size
    names = (f"tok{vocab_size}.bin", "tokenizer.bin")
    there.sort(key=lambda file: names.index(file.name) if file.name in names else len(names))
    loaded = map(tokenizers.load, there)
    return next((tokenizer for tokenizer in loaded if tokenizer.vocab_size == vocab_size), None)


def load_tokenizer(file: str | os.PathLike[str], checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer in a file. CheckpointError when it cannot be the model's; a model may have more
    tokens than its tokenizer (a padded vocabulary), except for llama2.c."""
    tokenizer = tokenizers.load(file)
    found, needed = tokenizer.vocab_size, checkpoint.config.vocab_size
    if found > needed or (found < needed and checkpoint.format == "llama2.c"):
        raise CheckpointError(
            f"{os.fspath(file)}: {found} tokens found, needed are the {needed} of "
            f"{checkpoint.path}; give the tokenizer of this model"
        )
    return tokenizer
