"""A tokenizer trained on the data of a run, and the files that Hugging Face's libraries read."""

import json
from collections.abc import Iterable
from pathlib import Path

from simdformer.text.huggingface_tokenizer import HuggingFaceTokenizer
from simdformer.text.pieces import optional_package
from simdformer.training.files import write_text
from simdformer.training.sources import END_OF_DOCUMENT

__all__ = ["CHATML", "make_tokenizer"]

BEGIN, END = "<|im_start|>", "<|im_end|>"
# ChatML, as its users write it.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# How GPT-4's and Llama 3's tokenizers cut words before they merge.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_tokenizer(texts: Iterable[str], size: int, directory: Path) -> HuggingFaceTokenizer:
    """Trains byte-pair merges on texts, up to `size` tokens: 256 bytes, 3 special ones that begin
    and end texts, and merges. Writes tokenizer.json and tokenizer_config.json into the directory.

    ImportError: the package tokenizers is missing.
    """
    tokenizers = optional_package("tokenizers", "Training a tokenizer")
    special = [END_OF_DOCUMENT, BEGIN, END]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    before = tokenizers.pre_tokenizers
    tokenizer.pre_tokenizer = before.Sequence([
        before.Split(tokenizers.Regex(SPLIT), "isolated"),
        before.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=sorted(before.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": END_OF_DOCUMENT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHATML,
    }
    write_text(directory / "tokenizer_config.json", json.dumps(config, indent=1))
    write_text(directory / "tokenizer.json", tokenizer.to_str(pretty=True))
    return HuggingFaceTokenizer.load(directory / "tokenizer.json")
