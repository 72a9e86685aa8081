"""Tokenizers that ask for endless memory or time: an exception that names the file."""

import base64
import json
import struct

import pytest

import seeds
import simdformer as sf
from simdformer.checkpoints import CheckpointError


def replacing(old, new):
    return {"type": "Replace", "pattern": old, "content": new}


def in_a_row(name, steps):
    return {"type": "Sequence", name: steps}


DOUBLED = in_a_row("normalizers", [replacing({"String": "a"}, "aa")] * 60)
CHARSMAP = base64.b64encode(struct.pack("<I", 0) + b"x" * 100_000 + b"\0").decode()
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
REPEATED = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 10_000,
    "pair": [],
    "special_tokens": {},
}
EXPLOSIONS = {
    "a step that doubles": (
        {"normalizer": DOUBLED},
        "found steps in normalizer and pre_tok",
    ),
    "nested": ({"normalizer": in_a_row("normalizers", [DOUBLED])}, "normalizer and pre_tokenizer"),
    "long contents": (
        {"normalizer": in_a_row("normalizers", [replacing({"Regex": "a?"}, "a" * 2000)] * 2)},
        "that can make a text 4e+06 times as long, needs at most 5000 times",
    ),
    "prefixes": (
        {"normalizer": in_a_row("normalizers", [{"type": "Prepend", "prepend": "a" * 99}] * 4)},
        "1e+08 times as long",
    ),
    "a table of characters": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}},
        "1e+05 times as long",
    ),
    "bytes of bytes": ({"pre_tokenizer": in_a_row("pretokenizers", [LEVEL] * 60)}, "1.15e+18"),
    "many steps": (
        {"normalizer": in_a_row("normalizers", [{"type": "Strip"}] * 65)},
        "found 65 steps in normalizer and pre_tokenizer, needs at most 64",
    ),
    "a template": (
        {"post_processor": REPEATED},
        "steps in post_processor that can make a text 1e",
    ),
    "a decoder": (
        {"decoder": in_a_row("decoders", [replacing({"String": "a"}, "aa")] * 60)},
        "found steps in decoder that can",
    ),
    "no type": (
        {"normalizer": {"pattern": {"String": "a"}}},
        "found a step in normalizer without a",
    ),
    "no steps": (
        {"normalizer": {"type": "Sequence"}},
        "found a Sequence in normalizer without normalizers",
    ),
}


@pytest.mark.parametrize("name", EXPLOSIONS)
def test_a_tokenizer_that_makes_a_text_endless_is_refused(tmp_path, name):
    """The package tokenizers would fill the memory, and end the process when there is no more."""
    parts, message = EXPLOSIONS[name]
    file = tmp_path / "tokenizer.json"
    plain = json.loads(seeds.tokenizer_jsons()[0]) | {"normalizer": None, "pre_tokenizer": None}
    file.write_text(json.dumps(plain | parts))
    with pytest.raises(CheckpointError) as caught:
        sf.tokenizer.load(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)


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
