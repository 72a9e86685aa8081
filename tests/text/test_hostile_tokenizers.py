"""Tokenizers that ask for endless memory or time: an exception that names the file."""

import json

import pytest

import seeds
import simdformer as sf
from simdformer.checkpoints import CheckpointError


def test_a_regular_expression_that_takes_for_ever_is_an_error(tmp_path):
    pattern = {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated"}
    file = tmp_path / "tokenizer.json"
    parts = {"pre_tokenizer": pattern | {"invert": False}}
    file.write_text(json.dumps(json.loads(seeds.tokenizer_jsons()[0]) | parts))
    tokenizer = sf.tokenizer.load(file)
    with pytest.raises(
        CheckpointError,
        match=r"tokenizer.json: found a text that it cannot encode \(.*retry-limit-in-match over",
    ):
        tokenizer.encode("a" * 60 + "!")


def test_a_vocabulary_of_a_billion_is_refused_beside_a_model(tmp_path):
    (tmp_path / "config.json").write_bytes(seeds.configs()[0])
    for name, data in seeds.huggingface_files().items():
        (tmp_path / name).write_bytes(data)
    state = json.loads(seeds.tokenizer_jsons()[0])
    state["model"]["vocab"]["far"] = 10**9
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(state))
    with pytest.raises(
        CheckpointError, match=r"with the id 1000000000, needs at most 11: .* has 12 "
    ):
        sf.from_pretrained(tmp_path)


def test_an_added_token_past_the_embedding_names_the_file_that_adds_it(tmp_path):
    (tmp_path / "config.json").write_bytes(seeds.configs()[0])
    for name, data in (seeds.huggingface_files() | seeds.merges_files()).items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "merges.txt").write_bytes(seeds.MERGES)
    vocabulary = json.loads((tmp_path / "vocab.json").read_bytes())
    config = {"tokenizer_class": "GPT2Tokenizer"}
    config["added_tokens_decoder"] = {str(len(vocabulary)): {"content": "<far>"}}
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as caught:
        sf.from_pretrained(tmp_path)
    assert str(caught.value) == (
        f"{file}: found the token '<far>' with the id {len(vocabulary)}, needs at most 11: "
        f"{tmp_path} has 12 tokens; give the tokenizer of this model"
    )
