"""Tokenizers of published checkpoints, against the libraries that they come from."""

import base64
import io
import json
import shutil
import sys
import unicodedata

import numpy as np
import pytest
import sentencepiece
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from simdformer.checkpoints import CheckpointError
from simdformer.text.tiktoken_tokenizer import TiktokenTokenizer
from tokenizer_lies import BOS_IN_FRONT, JSON, MODEL, small_json, token_line

NASTY = [
    "",
    " ",
    "\n",
    "hello world!",
    "   two  spaces   ",
    " " * 200 + "x",
    "\n\n\ttabs and\r\nlines\r\n\r\n",
    "\0 zero \0\0",
    "I'll say: IT'S 12345678901234567890, 3.14 and 1e-5",
    "<|begin_of_text|><|eot_id|><|endoftext|><|im_start|>user<|im_end|></s><s><think>",
    "< |eot_id|> <|eot_id| >",
    "naïve café — “quotes” … €",
    "日本語 and العربية, עברית, हिन्दी, ไทย, 한국어",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈 🇩🇪",
    "e\u0301 a\u0308\u0323 \u1e69 \u212b combining",
    "\ufeff mark, \u202e override, \u00a0 no break, \u2028 line, \U0010ffff last, \x1c separator",
    "\ufffd",
    "def f(x):\n    return x  # 100%\n\n\n",
    "aA" * 500,
    ("The quick brown fox, 42 times. " * 400)[:10000],
]

text_of_all_kinds = st.text(max_size=60) | st.text(
    st.sampled_from("ab' \n\r\t1239.!é日👩\u200d\u0301<|>"), max_size=60
)


@pytest.fixture(scope="module")
def llama3(shared):
    return sf.tokenizer.load(shared / "data" / "llama3" / "tokenizer.model")


def ids_around(tokenizer):
    """Any ids, those of bytes and those around the end of the vocabulary more often."""
    size = tokenizer.vocab_size
    return st.lists(st.integers(0, 300) | st.integers(size - 300, size + 9) | st.integers(0, size))


def check_refusals(tokenizer):
    with pytest.raises(ValueError, match=r"encode: text\[3\] is the lone surrogate"):
        tokenizer.encode("ab \ud800")
    with pytest.raises(TypeError, match="encode: text is bytes, needs str"):
        tokenizer.encode(b"ab")
    with pytest.raises(IndexError, match="decode: id is -1, needs an id >= 0"):
        tokenizer.decode([-1])
    assert tokenizer.decode([tokenizer.vocab_size, 10**9]) == ""
    assert isinstance(tokenizer, sf.tokenizer.Tokenizer)


def check_damaged(file, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        sf.tokenizer.load(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


# ---- tiktoken's format ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiktoken_llama3(shared):
    """Made by tiktoken's own means from the same file, special tokens as Meta publishes them."""
    lines = (shared / "data" / "llama3" / "tokenizer.model").read_bytes().split()
    ranks = {
        base64.b64decode(token): int(rank)
        for token, rank in zip(lines[::2], lines[1::2], strict=True)
    }
    special = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        *(f"<|reserved_special_token_{i}|>" for i in range(4)),
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|reserved_special_token_4|>",
        "<|eot_id|>",
        *(f"<|reserved_special_token_{i}|>" for i in range(5, 251)),
    ]
    split = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"
        r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return tiktoken.Encoding(
        "llama3",
        pat_str=split,
        mergeable_ranks=ranks,
        special_tokens={name: len(ranks) + i for i, name in enumerate(special)},
        explicit_n_vocab=128256,
    )


def test_llama3_known_ids(llama3):
    prompt = "the answer to the ultimate question of life, the universe, and everything is "
    ids = [128000, 1820, 4320, 311, 279, 17139, 3488, 315, 2324, 11, 279, 15861, 11, 323, 4395]
    assert llama3.encode(prompt) == [*ids, 374, 220]
    assert llama3.encode("hello world!", bos=False) == [15339, 1917, 0]
    assert llama3.decode([2983]) == "42"
    assert llama3.vocab_size == 128256
    assert llama3.bos_id == 128000
    assert llama3.eos_ids == (128001, 128009)
    assert llama3.encode("") == [128000]
    assert llama3.encode("", bos=False) == []
    check_refusals(llama3)


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("special", [False, True])
def test_llama3_encodes_as_tiktoken_does(llama3, tiktoken_llama3, text, special):
    allowed = "all" if special else set()
    want = tiktoken_llama3.encode(text, allowed_special=allowed, disallowed_special=())
    assert llama3.encode(text, bos=False, special=special) == want
    assert llama3.encode(text, special=special) == [128000, *want]
    assert llama3.decode(want) == text == tiktoken_llama3.decode(want)
    plain = [id for id in want if id < 128000]
    assert llama3.decode(want, skip_special=True) == tiktoken_llama3.decode(plain)


@given(data=st.data())
def test_llama3_any_ids_decode_as_with_tiktoken(llama3, tiktoken_llama3, data):
    ids = [id for id in data.draw(ids_around(llama3)) if id < 128256]
    assert llama3.decode(ids) == tiktoken_llama3.decode(ids)


def test_llama3_special_tokens_have_their_ids(llama3):
    for id, name in {
        128000: "<|begin_of_text|>",
        128001: "<|end_of_text|>",
        128002: "<|reserved_special_token_0|>",
        128006: "<|start_header_id|>",
        128007: "<|end_header_id|>",
        128008: "<|reserved_special_token_4|>",
        128009: "<|eot_id|>",
        128010: "<|reserved_special_token_5|>",
        128255: "<|reserved_special_token_250|>",
    }.items():
        assert llama3.encode(name, bos=False, special=True) == [id]
        assert llama3.decode([id]) == name
        assert llama3.decode([id], skip_special=True) == ""
        assert len(llama3.encode(name, bos=False)) > 1


def test_llama3_runs_too_long_for_the_regular_expression(llama3, tiktoken_llama3):
    """Cut as Llama 3 cuts them: after 25,000 of a kind, and after 400,000 characters."""
    for character in " a":
        encode = tiktoken_llama3.encode
        want = encode(character * 25000) * 2 + encode(character)
        assert llama3.encode(character * 50001, bos=False) == want
    text = "word " * 240_000  # 1.2 million characters
    parts = tiktoken_llama3.encode("word " * 80_000) * 3
    assert llama3.encode(text, bos=False) == parts
    assert llama3.decode(llama3.encode(" " * 1_200_000, bos=False)) == " " * 1_200_000


def test_tiktoken_is_needed_for_encoding_only(shared, monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    tokenizer = TiktokenTokenizer([bytes([byte]) for byte in range(256)])
    assert tokenizer.decode([104, 105]) == "hi"
    with pytest.raises(ImportError, match=r"needs the package 'tiktoken' .*simdformer\[models\]"):
        tokenizer.encode("hi")


def test_a_written_tiktoken_file_is_read(tmp_path):
    file = tmp_path / "tokenizer.model"
    for data in (MODEL, MODEL[:-1]):
        file.write_bytes(data)
        for path in (file, str(file), tmp_path):
            assert sf.tokenizer.load(path).encode("hi!") == [257, 256, 33]
    # No copy of the first file is kept anywhere.
    file.write_bytes(MODEL.replace(token_line(b"hi", 256), token_line(b"lo", 256)))
    assert sf.tokenizer.load(file).encode("hi!") == [257, 104, 105, 33]


# ---- tokenizer.json ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minimind(shared):
    return sf.tokenizer.load(shared / "data" / "minimind")


@pytest.fixture(scope="module")
def reference_minimind(shared):
    return tokenizers.Tokenizer.from_file(str(shared / "data" / "minimind" / "tokenizer.json"))


def test_minimind_is_as_its_files_say(minimind):
    assert (minimind.vocab_size, minimind.bos_id, minimind.eos_ids) == (6400, 1, (2,))
    assert minimind.encode("") == []  # add_bos_token is false
    assert minimind.encode("", bos=True) == [1]
    check_refusals(minimind)


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("special", [False, True])
def test_minimind_encodes_as_tokenizers_does(minimind, reference_minimind, text, special):
    reference_minimind.encode_special_tokens = not special
    want = reference_minimind.encode(text).ids
    assert minimind.encode(text, special=special) == want
    assert minimind.decode(want) == text
    assert minimind.decode(want, skip_special=True) == reference_minimind.decode(want)


@given(data=st.data())
def test_minimind_any_ids_decode_as_with_tokenizers(minimind, reference_minimind, data):
    ids = [id for id in data.draw(ids_around(minimind)) if id < 6400]
    for skip in (False, True):
        want = reference_minimind.decode(ids, skip_special_tokens=skip)
        assert minimind.decode(ids, skip_special=skip) == want


@pytest.mark.parametrize(
    ("parts", "config", "front", "bos_id", "eos_ids"),
    [
        ({}, None, [], None, ()),
        ({}, {"bos_token": "<s>"}, [], 257, ()),
        ({}, {"bos_token": {"content": "<s>"}, "eos_token": {"content": "</s>"}}, [], 257, (258,)),
        ({}, {"bos_token": "<s>", "add_bos_token": True}, [257], 257, ()),
        ({"post_processor": BOS_IN_FRONT}, None, [257], 257, ()),
        ({"post_processor": BOS_IN_FRONT}, {"eos_token": "</s>"}, [257], 257, (258,)),
        ({"post_processor": BOS_IN_FRONT}, {"add_bos_token": False}, [], 257, ()),
        ({"post_processor": BOS_IN_FRONT}, {"add_bos_token": True}, [257], 257, ()),
        ({"post_processor": BOS_IN_FRONT}, {"bos_token": None}, [257], 257, ()),
    ],
)
def test_what_is_put_in_front(tmp_path, parts, config, front, bos_id, eos_ids):
    (tmp_path / "tokenizer.json").write_text(json.dumps(small_json(**parts)))
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = sf.tokenizer.load(tmp_path)
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (bos_id, eos_ids)
    assert tokenizer.encode("hi") == [*front, 256]
    assert tokenizer.encode("hi", bos=False) == [256]
    assert tokenizer.encode("<s>hi", bos=False, special=True) == [257, 256]
    if bos_id is None:
        with pytest.raises(ValueError, match="bos is True, but this tokenizer has no bos_id"):
            tokenizer.encode("hi", bos=True)
    else:
        assert tokenizer.encode("hi", bos=True) == [bos_id, 256]
    assert tokenizer.decode([257, 256, 258]) == "<s>hi</s>"
    assert tokenizer.decode([257, 256, 258], skip_special=True) == "hi"


def test_special_tokens_map_says_what_the_config_leaves_open(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(small_json()))
    for name, told in {
        "special_tokens_map.json": {"bos_token": "hi", "eos_token": "</s>"},
        "tokenizer_config.json": {"bos_token": "<s>"},
    }.items():
        (tmp_path / name).write_text(json.dumps(told))
    tokenizer = sf.tokenizer.load(tmp_path / "tokenizer.json")
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (257, (258,))


def test_no_truncation_and_no_padding(tmp_path):
    padding = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"}
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    parts = {"padding": padding, "truncation": truncation}
    (tmp_path / "tokenizer.json").write_text(json.dumps(small_json(**parts)))
    assert sf.tokenizer.load(tmp_path).encode("hihihi") == [256] * 3


SPACED = [  # how Llama 2, Mistral and Gemma decode
    [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
    [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}],
]


@pytest.mark.parametrize("steps", SPACED)
def test_pieces_that_spell_spaces(tmp_path, steps):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "▁a", "▁b"]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={piece: id for id, piece in enumerate(pieces)},
            merges=[("▁", "a"), ("▁", "b")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    made.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    file = json.loads(made.to_str())
    file["decoder"] = {"type": "Sequence", "decoders": steps} if len(steps) > 1 else steps[0]
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "add_bos_token": true}')
    reference = tokenizers.Tokenizer.from_str(json.dumps(file))
    tokenizer = sf.tokenizer.load(tmp_path)
    assert tokenizer.encode("a b") == [1, 262, 263]
    for text in ("a b", " a", "  b ", ""):
        ids = tokenizer.encode(text, bos=False)
        assert ids == reference.encode(text).ids
        assert tokenizer.decode(ids) == reference.decode(ids) == text
        assert tokenizer.decode([1, *ids]) == "<s>" + text
        assert tokenizer.decode([1, *ids], skip_special=True) == text
        whole = f"{text}</s>{text}"
        assert tokenizer.decode(tokenizer.encode(whole, bos=False, special=True)) == whole
    if len(steps) > 1:
        assert tokenizer.decode(tokenizer.encode("a 日é\0", bos=False)) == "a 日é\0"
    stream = tokenizer.stream()
    assert [stream.put(id) for id in (1, 262, 263, 3 + 0xC3)][:3] == ["", "a", " b"]


def test_a_panic_becomes_an_error(tmp_path, monkeypatch):
    class PanicException(BaseException):
        pass

    class Panicking:
        @staticmethod
        def from_buffer(data):
            raise PanicException("called `Option::unwrap()`\non a `None` value")

    file = tmp_path / "tokenizer.json"
    file.write_text(JSON)
    monkeypatch.setattr(tokenizers, "Tokenizer", Panicking)
    check_damaged(file, r"called `Option::unwrap\(\)` on a `None` value")


def test_tokenizers_is_needed(shared, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"needs the package 'tokenizers' .*simdformer\[models\]"):
        sf.tokenizer.load(shared / "data" / "minimind")


# ---- vocab.json and merges.txt -------------------------------------------------------------------


@pytest.fixture(scope="module")
def qwen2(shared):
    return sf.tokenizer.load(shared / "data" / "qwen2")


@pytest.fixture(scope="module")
def reference_qwen2(shared):
    transformers = pytest.importorskip("transformers")
    return transformers.Qwen2Tokenizer.from_pretrained(str(shared / "data" / "qwen2"))


def test_qwen2_is_as_its_files_say(qwen2):
    assert (qwen2.vocab_size, qwen2.bos_id, qwen2.eos_ids) == (151646, None, (151645,))
    assert qwen2.encode("hello world!") == [14990, 1879, 0]
    assert qwen2.encode("<|im_end|>", special=True) == [151645]
    check_refusals(qwen2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", NASTY)
def test_qwen2_encodes_as_transformers_does(qwen2, reference_qwen2, text):
    for special in (False, True):
        want = reference_qwen2.encode(text, split_special_tokens=not special)
        assert qwen2.encode(text, special=special) == want
        assert qwen2.decode(want) == unicodedata.normalize("NFC", text)
        for skip in (False, True):
            decoded = reference_qwen2.decode(want, skip_special_tokens=skip)
            assert qwen2.decode(want, skip_special=skip) == decoded


@given(data=st.data())
def test_qwen2_any_ids_decode_as_with_transformers(qwen2, reference_qwen2, data):
    ids = [id for id in data.draw(ids_around(qwen2)) if id < 151646]
    assert qwen2.decode(ids) == reference_qwen2.decode(ids)


def test_qwen3_adds_tokens_that_are_not_special(shared, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).symlink_to(shared / "data" / "qwen2" / name)
    config = shared / "data" / "qwen2" / "qwen3_tokenizer_config.json"
    shutil.copy(config, tmp_path / "tokenizer_config.json")
    tokenizer = sf.tokenizer.load(tmp_path)
    assert tokenizer.vocab_size == 151669
    assert tokenizer.encode("<think>") == [151667]
    assert tokenizer.decode([151667, 151645]) == "<think><|im_end|>"
    assert tokenizer.decode([151667, 151645], skip_special=True) == "<think>"


CHARACTERS = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
GPT2 = {
    "vocab.json": json.dumps(
        {token: id for id, token in enumerate([*CHARACTERS, "hi", "Ġhi", "<|endoftext|>"])}
    ),
    "merges.txt": "#version: 0.2\nh i\nĠ hi\n",
    "config.json": '{"model_type": "gpt2"}',
}


def write_gpt2(directory, **changes):
    for name, text in (GPT2 | changes).items():
        if text is not None:
            (directory / name).write_text(text)


def test_gpt2(tmp_path):
    write_gpt2(tmp_path)
    for path in (tmp_path, tmp_path / "vocab.json", tmp_path / "merges.txt"):
        tokenizer = sf.tokenizer.load(path)
        assert tokenizer.encode("hi hi<|endoftext|>", special=True) == [256, 257, 258]
        assert tokenizer.eos_ids == (258,)
        assert tokenizer.decode([256, 257, 258], skip_special=True) == "hi hi"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "of the class None, needs GPT2Tokenizer or Qwen2"),
        ('{"model_type": "opt"}', "of the class 'opt', needs GPT2"),
    ],
)
def test_a_vocabulary_of_another_class_is_refused(tmp_path, config, message):
    write_gpt2(tmp_path, **{"config.json": config})
    check_damaged(tmp_path, message)


# ---- sentencepiece -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spm_model():
    """A small model made the way Llama 2's is."""
    text = "hello world how are you the quick brown fox jumps over the lazy dog 0123456789"
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text] * 50),
        model_writer=made,
        vocab_size=320,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    return made.getvalue()


@pytest.fixture(scope="module")
def spm(spm_model, tmp_path_factory):
    file = tmp_path_factory.mktemp("spm") / "tokenizer.model"
    file.write_bytes(spm_model)
    return sf.tokenizer.load(file)


def test_sentencepiece_is_told_apart_from_tiktoken(spm):
    assert (spm.vocab_size, spm.bos_id, spm.eos_ids) == (320, 1, (2,))
    assert spm.encode("", bos=None) == [1]
    check_refusals(spm)


@pytest.mark.parametrize("text", NASTY)
def test_sentencepiece_encodes_as_sentencepiece_does(spm, spm_model, text):
    reference = sentencepiece.SentencePieceProcessor(model_proto=spm_model)
    want = reference.encode(text)
    assert spm.encode(text) == [1, *want]
    assert spm.encode(text, bos=False) == want
    assert spm.decode(want) == text == reference.decode(want)
    assert spm.decode([1, *want]) == "<s>" + text
    assert spm.decode([1, *want, 2], skip_special=True) == text


def test_sentencepiece_special(spm):
    first, second = spm.encode("hello", bos=False), spm.encode("you", bos=False)
    assert spm.encode("hello</s><s>you", special=True) == [1, *first, 2, 1, *second]
    assert 2 not in spm.encode("hello</s><s>you")
    for text in ("hello</s><s>you", "</s>a </s> b</s>", "a<s> b", "<s></s>"):
        assert spm.decode(spm.encode(text, bos=False, special=True)) == text


def test_sentencepiece_keeps_the_space_of_a_continuation(spm):
    hello, world = spm.encode("hello world", bos=False)[:1], spm.encode("world", bos=False)
    stream = spm.stream()
    assert "".join(map(stream.put, hello)) + "".join(map(stream.put, world)) == (
        spm.decode(hello) + " world"
    )


def test_sentencepiece_with_a_config_that_wants_no_bos(spm_model, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(spm_model)
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    tokenizer = sf.tokenizer.load(tmp_path)
    assert tokenizer.encode("hello") == tokenizer.encode("hello", bos=True)[1:]


# ---- which file ----------------------------------------------------------------------------------


def test_formats_are_known_by_content_where_names_are_free(tmp_path, spm_model, shared):
    stories = (shared / "data" / "stories260K" / "tok512.bin").read_bytes()
    files = {"a": MODEL, "b": JSON.encode(), "c": spm_model, "d": stories}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    classes = [type(sf.tokenizer.load(tmp_path / name)).__name__ for name in files]
    assert classes == [
        "TiktokenTokenizer",
        "HuggingFaceTokenizer",
        "SentencePieceTokenizer",
        "Llama2cTokenizer",
    ]


def test_the_one_tokenizer_of_a_directory(tmp_path, spm_model):
    write_gpt2(tmp_path)
    assert sf.tokenizer.load(tmp_path).vocab_size == 259
    (tmp_path / "tokenizer.json").write_text(JSON)  # the same, as one file
    assert sf.tokenizer.load(tmp_path).decode([258]) == "</s>"
    (tmp_path / "tokenizer.model").write_bytes(spm_model)  # what it was made of
    assert sf.tokenizer.load(tmp_path).decode([258]) == "</s>"
    (tmp_path / "tokenizer.model").write_bytes(MODEL)
    message = r"found the tokenizers tokenizer.model, tokenizer.json, needs one .*; give the path"
    check_damaged(tmp_path, message)
    (tmp_path / "tokenizer.json").unlink()
    check_damaged(
        tmp_path, r"the tokenizers tokenizer.model, vocab.json, needs one .*; give the path of one"
    )
    (tmp_path / "merges.txt").unlink()
    (tmp_path / "tok512.bin").touch()
    check_damaged(
        tmp_path, r"the tokenizers tok512.bin, tokenizer.model, needs one .*; give the path of one"
    )


# ---- all of them ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama2c(shared):
    return sf.tokenizer.load(shared / "data" / "stories260K" / "tok512.bin")


@pytest.mark.parametrize("name", ["llama2c", "llama3", "minimind", "qwen2", "spm"])
@given(data=st.data())
def test_a_stream_gives_what_decode_gives_and_of_a_text_whole_characters(request, name, data):
    tokenizer = request.getfixturevalue(name)
    ids = data.draw(ids_around(tokenizer))
    stream = tokenizer.stream()
    pieces = [*map(stream.put, ids), stream.flush()]
    assert "".join(pieces) == tokenizer.decode(ids, skip_special=True)

    text = data.draw(text_of_all_kinds)
    stream, shown = tokenizer.stream(), ""
    said = unicodedata.normalize("NFC", text) if name == "qwen2" else text
    for id in tokenizer.encode(text):
        shown += stream.put(id)
        assert said.startswith(shown)
    assert stream.flush() == ""
    assert shown == said


@pytest.mark.parametrize("name", ["llama3", "minimind", "qwen2", "spm"])
def test_str_tokens_are_the_text_cut_up(request, name):
    tokenizer = request.getfixturevalue(name)
    text = "Once upon  a time, 42 kites"
    ids = tokenizer.encode(text)
    tokens = tokenizer.to_str_tokens(text)
    assert len(tokens) == len(ids)
    assert tokenizer.to_str_tokens(np.array(ids)) == tokens
    begins = [] if tokenizer.bos_id is None else tokenizer.to_str_tokens([tokenizer.bos_id])
    assert "".join(tokens[len(begins) if ids[:1] == [tokenizer.bos_id] else 0 :]).lstrip() == text
    spelled = "".join(tokenizer.to_str_tokens("\U0010fffd"))  # no token of its own
    assert spelled.endswith(r"\xf4\x8f\xbf\xbd")
    assert tokenizer.to_str_tokens([]) == []
    assert tokenizer.to_str_tokens([10**9]) == [""]
