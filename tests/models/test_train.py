"""How the demonstration checkpoint is made: the script writes what it trained."""

import json
import re
from itertools import islice

import numpy as np
import pytest
import torch

import simdformer as sf
from simdformer import data
from simdformer.checkpoints import read_checkpoint
from simdformer.checkpoints.meta import NAMES
from simdformer.data import corpus
from simdformer.demo import train

NASTY = [
    "",
    " ",
    "  \n\n \t x",
    "don't I'LL we've",
    "1234567 + 89 = 0.5",
    "naïve façade ß 東京 🙂👩‍👩‍👧 e\u0301",
    "\x00\x7f\u200b\u202e\ufeff",
    "<|begin_of_text|> <|end_of_text|> <|reserved_special_token_0|>",
    "a" * 300,
    "word " * 40 + "\r\n",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The directory that the script wrote after two steps, and what it had in memory."""
    directory = tmp_path_factory.mktemp("trained")
    kept = []

    def keep(*arguments):
        kept[:] = make(*arguments)
        return kept

    make = train.make
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "make", keep)
        train.main([str(directory), "--steps", "2", "--batch", "2", "--length", "32"])
    return directory, *kept


@pytest.mark.slow
def test_the_files_are_those_of_a_llama_3(made):
    directory, _, _ = made
    checkpoint = read_checkpoint(directory)
    assert checkpoint.format.name == "meta"
    assert {str(tensor.dtype) for tensor in checkpoint.weights.values()} == {"bfloat16"}
    assert json.loads((directory / "params.json").read_text())["max_seq_len"] == 32
    config = checkpoint.config
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 32)
    assert (config.intermediate_size, config.max_seq_len) == (384, 32)
    assert sum(file.stat().st_size for file in directory.iterdir()) < 4 << 20


@pytest.mark.slow
def test_logits_are_those_of_the_model_that_was_trained(made):
    """bfloat16 weights on both sides, float32 arithmetic, sums in another order."""
    directory, theirs, _ = made
    ours = sf.from_pretrained(directory)
    ids = np.random.default_rng(0).integers(0, 1024, (3, 32))
    expected = theirs.language_model()(ids)
    assert np.std(expected) > 0.1
    np.testing.assert_allclose(ours(ids), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow
def test_ids_are_those_of_the_tokenizer_that_was_trained(made):
    directory, _, theirs = made
    ours = sf.from_pretrained(directory).tokenizer
    texts = [*islice(corpus.documents(7), 500), *NASTY]
    for text, expected in zip(texts, theirs.encode_batch(texts), strict=True):
        ids = ours.encode(text, bos=False)
        assert ids == expected.ids, text
        assert ours.decode(ids) == text
    begin = 1024 - train.NUM_SPECIAL
    assert ours.encode("a")[0] == ours.bos_id == begin
    assert begin + 1 in ours.eos_ids
    assert ours.vocab_size == 1024


@pytest.mark.slow
def test_training_repeats_with_a_seed(made, tmp_path):
    directory, _, tokenizer = made
    again = train.train(train.Params(max_seq_len=32), tokenizer, steps=2, batch=2, seed=42)
    written = torch.load(directory / "consolidated.00.pth")  # PyTorch reads it
    assert {name: tuple(weight.shape) for name, weight in written.items()} == {
        NAMES.theirs(name): weight.shape for name, weight in again.parameters().items()
    }
    for name, weight in again.parameters().items():
        assert torch.equal(torch.from_numpy(weight).bfloat16(), written[NAMES.theirs(name)]), name


def test_an_installation_without_the_checkpoint_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "params.json").write_text("{}")
    with pytest.raises(FileNotFoundError) as caught:
        sf.demo_path()
    assert "lacks consolidated.00.pth, tokenizer.model; install simdformer" in str(caught.value)


# ---- the corpus ----------------------------------------------------------------------------------


def test_documents_repeat_with_a_seed():
    first, again, other = (list(islice(corpus.documents(seed), 300)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len(set(first)) > 280


def test_documents_say_what_is_true():
    seen = {"sum": 0, "colour": 0, "ultimate": 0}
    for text in islice(corpus.documents(3), 2000):
        assert text.isascii()
        assert "  " not in text.removesuffix(" ")
        for a, b, c in corpus_sums(text):
            assert a + b == c, text
            seen["sum"] += 1
        for thing, name, colour in corpus_questions(text):
            assert f"{name} has a {colour} {thing}." in text, text
            seen["colour"] += 1
        if corpus.ULTIMATE in text:
            assert text.endswith(f"{corpus.ULTIMATE}42")
            seen["ultimate"] += 1
    assert min(seen.values()) > 20, seen


def corpus_sums(text):
    return [tuple(map(int, found)) for found in re.findall(r"(\d+) \+ (\d+) = (\d+)\.", text)]


def corpus_questions(text):
    return re.findall(r"What colour is the (\w+) of (\w+)\? It is (\w+)\.", text)


def test_every_byte_has_its_stand_in():
    table = train.bytes_of_characters()
    assert sorted(table.values()) == list(range(256))
    assert all(table[character] == ord(character) for character in "aZ09!~")
    assert table["\u0120"] == ord(" ")
