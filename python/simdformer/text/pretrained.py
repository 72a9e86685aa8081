"""`from_pretrained`: a checkpoint with the tokenizer and the chat template that lie beside it."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal

from simdformer.arguments import read_whole
from simdformer.checkpoints.checkpoint import Checkpoint
from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.formats import read_checkpoint
from simdformer.checkpoints.locate import locate
from simdformer.checkpoints.peft import read_adapters
from simdformer.models.transformer import Transformer
from simdformer.parallel.mpi import communicator_of
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
    arithmetic: Literal["int16", "float32"] = "int16",
    adapter: str | os.PathLike[str] | None = None,
    comm: Any = None,
) -> LanguageModel:
    """Loads a language model: `model(ids)` gives logits, `model.generate(prompt)` text.

    Parameters
    ----------
    path : path or str
        A checkpoint, or a directory that holds one: of Meta (params.json, consolidated.00.pth), of
        Hugging Face (config.json, .safetensors), of llama.cpp (.gguf), of MiniMind (.pth), of
        llama2.c (.bin). Where there is no such path, "demo" is the model that the package carries,
        and "Owner/Name" the one of the Hugging Face hub, if its cache on this machine holds it:
        nothing is downloaded.
    dtype : {None, "float32", "float16", "bfloat16"}
        For the weights; None: as in the file. Weights of few bits (.gguf) are multiplied as they
        are; with a dtype they become floats, which take several times the memory.
    activations : {"float32", "float16", "bfloat16"}
        For the arithmetic between the kernels.
    max_seq_len : int, optional
        The longest text; None: what the checkpoint was made for.
    tokenizer : path or Tokenizer, optional
        None: the one beside the checkpoint. Where there is none, the model takes and gives ids; so
        it does where the package that it takes is missing, and says so when asked for text.
    format : {None, "meta", "huggingface", "gguf", "minimind", "llama2.c"}
        Where one directory holds several: which one.
    config : path or dict, optional
        What config.json would say, where the checkpoint has none beside it.
    arithmetic : {"int16", "float32"}
        Beside weights of few bits: activations rounded to 16-bit integers, which is fast and loses
        2e-5 to 5e-5, or as they are. See `linear`.
    adapter : path, optional
        A directory with an adapter of LoRA (adapter_config.json, adapter_model.safetensors), as
        `simdformer train --lora` and the package peft write it. The weights stay as they are,
        quantised ones too; what it adds is computed beside them.
    comm : mpi4py.MPI.Comm or Communicator, optional
        The processes (ranks) that hold the model together: each of them calls this, reads only its
        part of the weights, and then calls the same methods of the model in the same order. All get
        the same results; rank 0 alone samples and streams. See docs/scaling.md.

    Returns
    -------
    LanguageModel

    Raises
    ------
    FileNotFoundError
        There is no such path; for "Owner/Name" the message tells how to download it.
    ValueError
        There is no such format, or `max_seq_len` is no number > 0 that a computer can count to.
    CheckpointError
        A file is damaged, of another format, or does not fit the model. (It is a ValueError.)
    RankError
        Something failed on some of several ranks. (It is a ValueError.)

    >>> import simdformer as sf
    >>> model = sf.from_pretrained(sf.demo_path())
    >>> model([1, 2, 3]).shape
    (3, 1024)
    >>> text = model.generate("Once upon a time", max_new_tokens=9)
    """
    if max_seq_len is not None:
        max_seq_len = read_whole("from_pretrained", "max_seq_len", max_seq_len)
    communicator = communicator_of(comm)
    with communicator.together():
        checkpoint = read_checkpoint(locate(path), format, config)
        model = checkpoint.config
        if max_seq_len is not None:
            if model.positions == "learned" and max_seq_len > model.max_seq_len:
                raise ValueError(
                    f"from_pretrained: max_seq_len is {max_seq_len}, needs at most "
                    f"{model.max_seq_len}, the positions that the model has learned"
                )
            model = dataclasses.replace(model, max_seq_len=max_seq_len)
        missing = None
        if tokenizer is None:
            try:
                tokenizer = find_tokenizer(checkpoint)
            except ImportError as error:  # ids need no tokenizer
                missing = error
        elif isinstance(tokenizer, str | os.PathLike):
            tokenizer = load_tokenizer(tokenizer, checkpoint)
        adapters = None if adapter is None else read_adapters(locate(adapter, adapter=True), model)
        transformer = Transformer.of_fitting(
            model,
            checkpoint.weights,
            dtype=dtype,
            activations=activations,
            arithmetic=arithmetic,
            communicator=communicator,
        )
        return LanguageModel(
            transformer if adapters is None else transformer.with_adapters(adapters),
            tokenizer if missing is None else missing,
            eos_ids=checkpoint.eos_ids,
            chat_template=find_template(checkpoint, tokenizer),
        )


def find_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """The tokenizer beside a checkpoint: the first; where the format asks for its whole vocabulary,
    the first that has it."""
    there = checkpoint.format.tokenizer_files(checkpoint)
    if not checkpoint.format.whole_vocabulary:
        return load_tokenizer(there[0], checkpoint) if there else None
    needed = checkpoint.config.vocab_size
    loaded = map(tokenizers.load, there)
    return next((tokenizer for tokenizer in loaded if tokenizer.vocab_size == needed), None)


def load_tokenizer(file: str | os.PathLike[str], checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer in a file. CheckpointError when it cannot be the model's."""
    tokenizer = tokenizers.load(file)
    found, needed = tokenizer.vocab_size, checkpoint.config.vocab_size
    if found > needed:
        last = tokenizer.decode([found - 1])
        raise CheckpointError(
            f"the token {last[:40]!r} with the id {found - 1}",
            f"at most {needed - 1}: {checkpoint.path} has {needed} tokens",
            file=tokenizer.files.get(found - 1, file),
            advice="give the tokenizer of this model",
        )
    if found < needed and checkpoint.format.whole_vocabulary:
        raise CheckpointError(
            f"{found} tokens",
            f"the {needed} of {checkpoint.path}",
            file=file,
            advice="give the tokenizer of this model",
        )
    return tokenizer
